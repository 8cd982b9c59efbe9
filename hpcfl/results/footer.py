"""Lines ``HPCFL key: value`` that other programs read: what a run was, whether it counts, its cost.

Keys keep their names, units and meanings; new ones may be added.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hpcfl.results.reader import Run
from hpcfl.results.schema import Metric
from hpcfl.results.summary import Summary, summarise

VERSION = 1


@dataclass(frozen=True)
class Line:
    """A line of the footer."""

    key: str
    unit: str  # ``1`` for a number without one, "" for words
    about: str
    value: Callable[[Run, Summary], Any]
    training: bool = False  # whether it is there only after training


def valid(run: Run) -> str:
    """Return whether a run's figures count: ``true``, ``partial`` or ``false``."""
    if run.status not in ("complete", "interrupted") or not run.validated.any():
        return "false"
    return "true" if run.status == "complete" and run.validated.all() else "partial"


def _figure(name: str, factor: float = 1) -> Callable[[Run, Summary], Any]:
    def value(run: Run, of: Summary) -> Any:
        return of[name] if of[name] is None or factor == 1 else factor * of[name]

    return value


def _last(metric: Metric) -> Callable[[Run, Summary], float | None]:
    return lambda run, of: float(run.training[metric][-1]) if run.rounds else None


LINES = (
    Line("footer", "1", "version of these lines", lambda run, of: VERSION),
    Line(
        *("valid", ""),
        "true: complete, every aggregate right; partial: a signal ended the run, or a round could "
        "not be checked; false: all else",
        lambda run, of: valid(run),
    ),
    Line("status", "", "complete, interrupted or failed", _figure("status")),
    Line("command", "", "bench or train", lambda run, of: "train" if run.training else "bench"),
    Line("protocol", "", "name of the aggregation protocol", lambda run, of: run.protocol),
    Line("devices", "1", "devices N", _figure("devices")),
    Line("dim", "1", "parameters d", _figure("dim")),
    Line("ranks", "1", "MPI ranks, 1 in one process", _figure("ranks")),
    Line("rounds", "1", "measured rounds, without warm-up", _figure("rounds_measured")),
    Line("survivors", "1", "devices in a round's aggregate, mean", _figure("survivors_mean")),
    Line(
        *("device_upload_bytes", "B", "sent by a device in the aggregate in a round, mean"),
        _figure("bytes_up_mean"),
    ),
    Line(
        *("device_download_bytes", "B", "received by such a device in a round, mean"),
        _figure("bytes_down_mean"),
    ),
    Line(
        *("device_cpu_ms", "ms", "CPU time of the slowest device, without training, median"),
        _figure("device_cpu_seconds_median", 1e3),
    ),
    Line(
        *("server_cpu_ms", "ms", "CPU time of the server in a round, median"),
        _figure("server_cpu_seconds_median", 1e3),
    ),
    Line(
        *("round_ms", "ms", "elapsed time of a round here, without training, median"),
        _figure("round_seconds_median", 1e3),
    ),
    Line(
        *("modelled_ms", "ms", "time of a round without training over the next line's link"),
        _figure("modelled_round_seconds_median", 1e3),
    ),
    Line("link", "", "link between a device and the server", _figure("link")),
    Line("algorithm", "", "name of the federated algorithm", _figure("algorithm"), True),
    Line("accuracy", "1", "on held-out data, after the last round", _last(Metric.ACCURACY), True),
    Line(
        *("upload_total_bytes", "B", "sent by all devices in all rounds"),
        *(_last(Metric.BYTES_UP_TOTAL), True),
    ),
    Line(
        *("epsilon_paper", "1", "epsilon spent as the paper counts; nan without privacy"),
        *(_last(Metric.EPSILON_PAPER), True),
    ),
    Line(
        *("epsilon_proven", "1", "epsilon spent as is proven; nan without privacy"),
        *(_last(Metric.EPSILON_PROVEN), True),
    ),
    Line("file", "", "results file", _figure("path")),
)


def footer(run: Run) -> str:
    """Return the lines of a run, in ASCII; HpcflError if it does not record what they say.

    A number that is not known is ``nan``. What is not ASCII in a name is escaped as Python does it.
    """
    summary = summarise(run, run.link())
    lines = (line for line in LINES if run.training or not line.training)
    return "\n".join(
        f"HPCFL {line.key}: {_text(line.value(run, summary), line.unit)}" for line in lines
    )


def _text(value: Any, unit: str) -> str:
    """Return a value on one line; numbers in decimals, without exponent."""
    if not unit:
        return str("none" if value is None else value).encode("unicode_escape").decode()
    if value is None or not math.isfinite(value):
        return "nan" if value is None else str(float(value))
    return f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
