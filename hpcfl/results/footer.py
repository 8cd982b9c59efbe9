"""Summary of a run in lines of the form ``HPCFL key: value``, which other programs parse.

Keys are ``valid`` and names of table columns, with the same meanings, in seconds and bytes.
"""

from __future__ import annotations

from hpcfl.report.formats import has_value
from hpcfl.results.columns import COLUMNS
from hpcfl.results.reader import Run
from hpcfl.results.summary import RATIOS, summarise

# All columns except those that compare runs.
KEYS = ("valid", *(name for name in COLUMNS if name not in ("row", *RATIOS)))


def valid(run: Run) -> str:
    """Return whether a run's figures count: ``true``, ``partial`` or ``false``."""
    if run.status not in ("complete", "interrupted") or not run.validated.any():
        return "false"
    return "true" if run.status == "complete" and run.validated.all() else "partial"


def footer(run: Run) -> str:
    """Return an ASCII line for each figure that has a value.

    Numbers have no exponent; other characters than ASCII are escaped as in Python. Raises
    HpcflError if the run does not record its number of parameters.
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
