"""Storage, reading and summaries of the results of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcfl.results.reader import load

__all__ = ["load"]


def __getattr__(name: str) -> Any:
    # Lazy, because every rank imports this package but only the server's rank needs h5py.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hpcfl.results import reader

    return getattr(reader, name)
