"""Lines ``HPCFL key: value`` that other programs read: what a run was, whether it counts, its cost.

Keys are names of the columns of tables, with their meanings, in seconds and bytes; and ``valid``.
"""

from __future__ import annotations

from hpcfl.report.formats import has_value
from hpcfl.results.columns import COLUMNS
from hpcfl.results.reader import Run
from hpcfl.results.summary import RATIOS, summarise

# All that a run has by itself.
KEYS = ("valid", *(name for name in COLUMNS if name not in ("row", *RATIOS)))


def valid(run: Run) -> str:
    """Return whether a run's figures count: ``true``, ``partial`` or ``false``."""
    if run.status not in ("complete", "interrupted") or not run.validated.any():
        return "false"
    return "true" if run.status == "complete" and run.validated.all() else "partial"


def footer(run: Run) -> str:
    """Return the lines of what has a value, in ASCII; HpcflError if a run does not record it.

    Numbers have no exponent. What is not ASCII in a name is escaped as Python does it.
    """
    known = {**summarise(run, run.link()).figures, "valid": valid(run)}
    lines = []
    for key in KEYS:
        value = known.get(key)
        if has_value(value):
            if isinstance(value, float):
                value = f"{value:.9f}".rstrip("0").rstrip(".")
            lines.append(f"HPCFL {key}: {str(value).encode('unicode_escape').decode()}")
    return "\n".join(lines)
