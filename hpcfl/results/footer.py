"""Lines ``HPCFL key: value`` that other programs read: what a run was, whether it counts, its cost.

Keys keep their names, units and meanings; new ones may be added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from hpcfl.report.table import Table, label
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


def _last(metric: Metric) -> Callable[[Run, Summary], float | None]:
    def value(run: Run, _: Summary) -> float | None:
        return float(run.training[metric][-1]) if run.rounds else None

    return value


def _of_run(value: Callable[[Run], Any]) -> Callable[[Run, Summary], Any]:
    return lambda run, _: value(run)


def _of_summary(path: str, scale: float) -> Callable[[Run, Summary], Any]:
    def value(_: Run, summary: Summary) -> Any:
        found = attrgetter(path)(summary)
        return found if found is None or scale == 1 else scale * found

    return value


def _lines() -> Iterator[Line]:
    yield Line("footer", "1", "version of these lines", lambda run, of: VERSION)
    yield Line(
        "valid",
        "",
        "true: complete, every aggregate right; partial: a signal ended the run, or a round "
        "could not be checked; false: all else",
        lambda run, of: valid(run),
    )
    for key, unit, about, value in (
        ("status", "", "complete, interrupted or failed", lambda run: run.status),
        ("command", "", "bench or train", lambda run: "train" if run.training else "bench"),
        ("protocol", "", "name of the aggregation protocol", lambda run: run.protocol),
        ("devices", "1", "devices N", lambda run: run.devices),
        ("dim", "1", "parameters d", lambda run: run.dim),
        ("ranks", "1", "MPI ranks, 1 in one process", lambda run: run.environment.get("ranks")),
    ):
        yield Line(key, unit, about, _of_run(value))
    for key, unit, about, path, scale in (
        ("rounds", "1", "measured rounds, without warm-up", "rounds_measured", 1),
        ("survivors", "1", "devices in a round's aggregate, mean", "survivors_mean", 1),
        (
            "device_upload_bytes",
            "B",
            "sent by a device in a round, mean over those in the aggregate",
            "total.bytes_up_mean",
            1,
        ),
        (
            "device_download_bytes",
            "B",
            "received by such a device in a round, mean",
            "total.bytes_down_mean",
            1,
        ),
        (
            "device_cpu_ms",
            "ms",
            "CPU time of the slowest device of a round, without training, median",
            "total.device_cpu_seconds.median",
            1e3,
        ),
        (
            "server_cpu_ms",
            "ms",
            "CPU time of the server in a round, median",
            "total.server_cpu_seconds.median",
            1e3,
        ),
        (
            "round_ms",
            "ms",
            "elapsed time of a round on this machine, without training, median",
            "round_seconds.median",
            1e3,
        ),
        (
            "modelled_ms",
            "ms",
            "time of a round without training over the link of the next line, median",
            "modelled_round_seconds.median",
            1e3,
        ),
    ):
        yield Line(key, unit, about, _of_summary(path, scale))
    yield Line("link", "", "link between a device and the server", lambda run, of: of.link)
    yield Line(
        "algorithm",
        "",
        "name of the federated algorithm",
        lambda run, of: run.config.get("algorithm"),
        training=True,
    )
    for key, unit, about, metric in (
        ("accuracy", "1", "on held-out data, after the last round", Metric.ACCURACY),
        ("upload_total_bytes", "B", "sent by all devices in all rounds", Metric.BYTES_UP_TOTAL),
        (
            "epsilon_paper",
            "1",
            "epsilon spent as the paper counts; nan without differential privacy",
            Metric.EPSILON_PAPER,
        ),
        (
            "epsilon_proven",
            "1",
            "epsilon spent as is proven; nan without differential privacy",
            Metric.EPSILON_PROVEN,
        ),
    ):
        yield Line(key, unit, about, _last(metric), training=True)
    yield Line("file", "", "results file", lambda run, of: run.path)


LINES = tuple(_lines())


def footer(run: Run) -> str:
    """Return the lines of a run, in ASCII; HpcflError if it does not record what they say.

    A number that is not known is ``nan``. What is not ASCII in a name is escaped as Python does it.
    """
    summary = summarise(run, run.link())
    lines = (line for line in LINES if run.training or not line.training)
    return "\n".join(
        f"HPCFL {line.key}: {_text(line.value(run, summary), line.unit)}" for line in lines
    )


def description() -> Table:
    """Return what every line says, for the documentation."""
    columns = (label("key"), label("unit"), label("what it says"))
    return Table(
        columns,
        [
            (line.key, line.unit, f"{line.about}{' (train)' if line.training else ''}")
            for line in LINES
        ],
    )


def _text(value: Any, unit: str) -> str:
    """Return a value on one line; numbers in decimals, without exponent."""
    if not unit:
        return str("none" if value is None else value).encode("unicode_escape").decode()
    if value is None or not math.isfinite(value):
        return "nan" if value is None else str(float(value))
    return f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
