"""Selection of runs by conditions such as ``protocol=sparse,devices=50|100``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from hpcfl.errors import UsageError, no_such
from hpcfl.report import formats

if TYPE_CHECKING:
    from hpcfl.results.reader import Run

# A run of this package or a subclass of it, such as that of the API.
AnyRun = TypeVar("AnyRun", bound="Run")


def select(runs: Sequence[AnyRun], text: str) -> list[AnyRun]:
    """Return the runs that meet all conditions in a text, in their order.

    The text is a comma-separated list of conditions ``KEY=VALUE``. A key is ``protocol``,
    ``devices`` or a recorded option; ``A|B`` matches either value, and ``none`` an option without a
    value. Values are compared as numbers if both are numbers, otherwise as text without regard to
    case. Raises UsageError if no run records a key, or if no run meets the conditions.
    """
    recorded = {
        run.path: {**run.config, "protocol": run.protocol, "devices": run.devices} for run in runs
    }
    known = {name for facts in recorded.values() for name in facts}
    selected = [*runs]
    for term in text.split(","):
        key, _, value = (part.strip() for part in term.partition("="))
        key = key.replace("-", "_")
        if not (key and value):
            raise UsageError(
                f"--where has {term.strip()!r}: give KEY=VALUE, as in "
                "protocol=sparse,devices=50|100"
            )
        if key not in known:
            raise no_such("key that a run records called", key, sorted(known), place="--where: ")
        values = {
            run.path: formats.words(recorded[run.path].get(key), nothing="none") for run in selected
        }
        wanted = {_comparable(one.strip()) for one in value.split("|")}
        selected = [run for run in selected if _comparable(values[run.path]) in wanted]
        if not selected:
            there = ", ".join(sorted({*values.values()}))
            raise UsageError(f"no run has {key}={value}: there are {there}")
    return selected


def _comparable(value: str) -> Any:
    try:
        return float(value)
    except ValueError:
        return value.lower()
