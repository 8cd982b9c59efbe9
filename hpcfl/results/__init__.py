"""Results of runs: what is stored, and how it is read and summarised."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcfl.results.reader import Run, load, load_many
    from hpcfl.results.record import RoundRecord

__all__ = ["RoundRecord", "Run", "load", "load_many"]

# Every rank of a benchmark imports this package, and only the server's rank needs h5py.
_HOMES = {
    "RoundRecord": "hpcfl.results.record",
    "Run": "hpcfl.results.reader",
    "load": "hpcfl.results.reader",
    "load_many": "hpcfl.results.reader",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
