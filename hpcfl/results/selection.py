"""Which of several runs are meant: ``protocol=sparse,devices=50|100``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from hpcfl.errors import UsageError, no_such
from hpcfl.report import formats

if TYPE_CHECKING:
    from hpcfl.results.reader import Run

# A run of this package or a subclass of it, such as that of the API.
AnyRun = TypeVar("AnyRun", bound="Run")

# More values than these are not listed in an error.
_LISTED = 8


def select(runs: Sequence[AnyRun], text: str) -> list[AnyRun]:
    """Return those of the runs that a text describes, in their order.

    Parameters
    ----------
    runs : sequence of Run
        All runs.
    text : str
        ``KEY=VALUE`` one or several times, with commas between them, all of which must hold. A key
        is ``protocol``, ``devices`` or an option by the name that results files record, with
        underscores or dashes; ``A|B`` stands for either value, and ``none`` for an option without
        one. Values are compared as numbers where both are numbers, else as text, capital or not.

    Raises
    ------
    UsageError
        If the text is not of this form, no run records the key, or no run is as described. It names
        the keys or values that there are.
    """
    selected = [*runs]
    for term in text.split(","):
        key, equals, value = (part.strip() for part in term.partition("="))
        key = key.replace("-", "_")
        if not (key and equals and value):
            raise UsageError(
                f"--where has {term.strip()!r}: give KEY=VALUE, as in "
                "protocol=sparse,devices=50|100"
            )
        known = {name for run in runs for name in _recorded(run)}
        if key not in known:
            raise no_such("key that a run records called", key, sorted(known), place="--where: ")
        wanted = [one.strip() for one in value.split("|")]
        kept = [run for run in selected if any(_equal(_value(run, key), one) for one in wanted)]
        if not kept:
            there = sorted({_value(run, key) for run in selected})
            more = ", ..." if len(there) > _LISTED else ""
            raise UsageError(
                f"no run has {key}={value}: there are {', '.join(there[:_LISTED])}{more}"
            )
        selected = kept
    return selected


def _recorded(run: Run) -> dict[str, object]:
    return {**run.config, "protocol": run.protocol, "devices": run.devices}


def _value(run: Run, key: str) -> str:
    return formats.words(_recorded(run).get(key), nothing="none")


def _equal(value: str, wanted: str) -> bool:
    try:
        return float(value) == float(wanted)
    except ValueError:
        return value.lower() == wanted.lower()
