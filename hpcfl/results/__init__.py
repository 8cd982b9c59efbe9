"""Results of runs: what is stored, and how it is read and summarised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcfl.results.reader import load, load_many
    from hpcfl.results.writer import check_writable

__all__ = ["check_writable", "load", "load_many"]


def __getattr__(name: str) -> Any:
    # Every rank of a benchmark imports this package, and only the server's rank needs h5py.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hpcfl.results import reader, writer

    return getattr(writer if name == "check_writable" else reader, name)
