"""Benchmark suite for private federated learning over MPI; see :mod:`hpcfl.api`."""

from __future__ import annotations

# Replaces typing.TYPE_CHECKING, whose import costs milliseconds. Type checkers know the name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hpcfl.api import (
        Run,
        Runs,
        advise,
        bench,
        compare,
        exposure,
        load,
        load_many,
        plot,
        predict,
        sweep,
        train,
    )
    from hpcfl.errors import HpcflError, UsageError

    __version__: str

__all__ = [
    "HpcflError",
    "Run",
    "Runs",
    "UsageError",
    "advise",
    "bench",
    "compare",
    "exposure",
    "load",
    "load_many",
    "plot",
    "predict",
    "sweep",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that ``import hpcfl`` itself loads nothing."""
    if name == "__version__":
        from hpcfl.system.revision import version

        return version()
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    home = "hpcfl.errors" if name.endswith("Error") else "hpcfl.api"
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
