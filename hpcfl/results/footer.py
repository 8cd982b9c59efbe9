"""Lines ``HPCFL key: value`` that other programs read: what a run was, whether it counts, its cost.

Keys keep their names, units and meanings; new ones may be added.
"""

from __future__ import annotations

import math
from typing import Any

from hpcfl.results.reader import Run
from hpcfl.results.summary import summarise

VERSION = 1
# Of each key the unit, ``1`` for a number without one and "" for words, and the figure of the
# summary that it is; milliseconds are seconds there.
LINES = {
    "footer": ("1", ""),  # version of these lines
    "valid": ("", ""),  # true: complete, every aggregate right; partial: some; false: all else
    "status": ("", "status"),
    "command": ("", ""),
    "protocol": ("", ""),
    "devices": ("1", "devices"),
    "dim": ("1", "dim"),
    "ranks": ("1", "ranks"),
    "rounds": ("1", "rounds_measured"),
    "survivors": ("1", "survivors_mean"),
    "device_upload_bytes": ("B", "bytes_up_mean"),
    "device_download_bytes": ("B", "bytes_down_mean"),
    "device_cpu_ms": ("ms", "device_cpu_seconds_median"),
    "server_cpu_ms": ("ms", "server_cpu_seconds_median"),
    "round_ms": ("ms", "round_seconds_median"),
    "modelled_ms": ("ms", "modelled_round_seconds_median"),
    "link": ("", "link"),
    "algorithm": ("", "algorithm"),
    "accuracy": ("1", "accuracy"),
    "upload_total_bytes": ("B", "bytes_up_total"),
    "epsilon_paper": ("1", "epsilon_paper"),
    "epsilon_proven": ("1", "epsilon_proven"),
    "file": ("", "path"),
}
# Only after training; numbers are those of the last round.
OF_TRAINING = {"algorithm", "accuracy", "upload_total_bytes", "epsilon_paper", "epsilon_proven"}


def valid(run: Run) -> str:
    """Return whether a run's figures count: ``true``, ``partial`` or ``false``."""
    if run.status not in ("complete", "interrupted") or not run.validated.any():
        return "false"
    return "true" if run.status == "complete" and run.validated.all() else "partial"


def footer(run: Run) -> str:
    """Return the lines of a run, in ASCII; HpcflError if it does not record what they say.

    A number that is not known is ``nan``. What is not ASCII in a name is escaped as Python does it.
    """
    known: dict[str, Any] = {**summarise(run, run.link()).figures}
    for name, values in run.training.items():
        if run.rounds:
            known[name] = float(values[-1])
    command = "train" if run.training else "bench"
    own = {"footer": VERSION, "valid": valid(run), "command": command, "protocol": run.protocol}
    return "\n".join(
        f"HPCFL {key}: {_text(own[key] if key in own else known.get(figure), unit)}"
        for key, (unit, figure) in LINES.items()
        if run.training or key not in OF_TRAINING
    )


def _text(value: Any, unit: str) -> str:
    """Return a value on one line; numbers in decimals, without exponent."""
    if not unit:
        return str("none" if value is None else value).encode("unicode_escape").decode()
    if value is None or not math.isfinite(value):
        return "nan" if value is None else str(float(value))
    value = 1e3 * value if unit == "ms" else value
    return f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
