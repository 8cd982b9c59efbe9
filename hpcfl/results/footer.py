"""Lines ``HPCFL key: value`` that other programs read: what a run was, whether it counts, its cost.

Keys keep their names, units and meanings; new ones may be added.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from hpcfl.results.reader import Run
from hpcfl.results.schema import Metric
from hpcfl.results.summary import summarise

VERSION = 1


@dataclass(frozen=True)
class Line:
    """A line of the footer."""

    key: str
    unit: str  # ``1`` for a number without one, "" for words
    about: str
    figure: str = ""  # of the summary; milliseconds are seconds there
    metric: Metric | None = None  # of the last round of training, in place of a figure

    @property
    def training(self) -> bool:
        """Whether it is there only after training."""
        return self.metric is not None or self.key == "algorithm"


LINES = (
    Line("footer", "1", "version of these lines"),
    Line("valid", "", "true: complete, every aggregate right; partial: some were; false: all else"),
    Line("status", "", "complete, interrupted or failed", "status"),
    Line("command", "", "bench or train"),
    Line("protocol", "", "name of the aggregation protocol"),
    Line("devices", "1", "devices N", "devices"),
    Line("dim", "1", "parameters d", "dim"),
    Line("ranks", "1", "MPI ranks, 1 in one process", "ranks"),
    Line("rounds", "1", "measured rounds, without warm-up", "rounds_measured"),
    Line("survivors", "1", "devices in the aggregate of a round, mean", "survivors_mean"),
    Line("device_upload_bytes", "B", "sent by such a device in a round, mean", "bytes_up_mean"),
    Line("device_download_bytes", "B", "received by it, mean", "bytes_down_mean"),
    Line("device_cpu_ms", "ms", "CPU of the slowest device, median", "device_cpu_seconds_median"),
    Line("server_cpu_ms", "ms", "CPU of the server, median", "server_cpu_seconds_median"),
    Line("round_ms", "ms", "elapsed time of a round, median", "round_seconds_median"),
    Line("modelled_ms", "ms", "the same over the link below", "modelled_round_seconds_median"),
    Line("link", "", "link between a device and the server", "link"),
    Line("algorithm", "", "name of the federated algorithm", "algorithm"),
    Line("accuracy", "1", "after the last round", metric=Metric.ACCURACY),
    Line("upload_total_bytes", "B", "sent by all devices", metric=Metric.BYTES_UP_TOTAL),
    Line("epsilon_paper", "1", "spent as the paper counts", metric=Metric.EPSILON_PAPER),
    Line("epsilon_proven", "1", "spent as is proven", metric=Metric.EPSILON_PROVEN),
    Line("file", "", "results file", "path"),
)


def valid(run: Run) -> str:
    """Return whether a run's figures count: ``true``, ``partial`` or ``false``."""
    if run.status not in ("complete", "interrupted") or not run.validated.any():
        return "false"
    return "true" if run.status == "complete" and run.validated.all() else "partial"


def footer(run: Run) -> str:
    """Return the lines of a run, in ASCII; HpcflError if it does not record what they say.

    A number that is not known is ``nan``. What is not ASCII in a name is escaped as Python does it.
    """
    summary = summarise(run, run.link())
    known: dict[str, Any] = {
        "footer": VERSION,
        "valid": valid(run),
        "command": "train" if run.training else "bench",
        "protocol": run.protocol,
    }
    found = []
    for line in LINES:
        value = known[line.key] if line.key in known else summary.figures.get(line.figure)
        if line.metric is not None and run.training and run.rounds:
            value = float(run.training[line.metric][-1])
        if run.training or not line.training:
            found.append(f"HPCFL {line.key}: {_text(value, line.unit)}")
    return "\n".join(found)


def _text(value: Any, unit: str) -> str:
    """Return a value on one line; numbers in decimals, without exponent."""
    if not unit:
        return str("none" if value is None else value).encode("unicode_escape").decode()
    if value is None or not math.isfinite(value):
        return "nan" if value is None else str(float(value))
    value = 1e3 * value if unit == "ms" else value
    return f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
