"""The scores of a submission: what each phase, and a whole round, cost over its launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcfl.report import formats
from hpcfl.report.table import RULE, Column, Table, label
from hpcfl.results.reader import Run
from hpcfl.results.statistics import CONFIDENCE, Interval, Percentiles, median_interval
from hpcfl.results.summary import PhaseSummary, summarise

ROUND = "round"


@dataclass(frozen=True)
class Quantity:
    """A quantity that is scored in every phase."""

    name: str  # with its unit, as in JSON
    title: str
    of: Callable[[PhaseSummary], float | None]  # of one launch; None where nobody has it
    unit: str = "B"
    format: Callable[[float], str] = formats.count


def _milliseconds(name: str, title: str, of: Callable[[PhaseSummary], float | None]) -> Quantity:
    return Quantity(name, title, of, "ms", formats.milliseconds)


def _median(found: Percentiles | None) -> float | None:
    return None if found is None else found.median


# CPU seconds of the slowest device, member or helper of a round, wall seconds of whoever took
# longest, bytes of one device, member or helper. Nothing here is modelled.
QUANTITIES = (
    _milliseconds("server_cpu_seconds", "server CPU", lambda of: of.server_cpu_seconds.median),
    _milliseconds("device_cpu_seconds", "device CPU", lambda of: of.device_cpu_seconds.median),
    _milliseconds("member_cpu_seconds", "member CPU", lambda of: _median(of.member_cpu_seconds)),
    _milliseconds("helper_cpu_seconds", "helper CPU", lambda of: _median(of.helper_cpu_seconds)),
    _milliseconds("wall_seconds", "wall time", lambda of: of.wall_seconds.median),
    Quantity("device_up_bytes", "device up", lambda of: of.bytes_up_mean),
    Quantity("device_down_bytes", "device down", lambda of: of.bytes_down_mean),
    Quantity("member_up_bytes", "member up", lambda of: of.member_bytes_up_mean),
    Quantity("member_down_bytes", "member down", lambda of: of.member_bytes_down_mean),
    Quantity("helper_up_bytes", "helper up", lambda of: of.helper_bytes_up_mean),
    Quantity("helper_down_bytes", "helper down", lambda of: of.helper_bytes_down_mean),
)


@dataclass(frozen=True)
class Score:
    """The median over launches of a launch's median round (of bytes, its mean device)."""

    median: float
    interval: Interval  # 95 %, by ranks of the launches


@dataclass(frozen=True)
class PhaseScores:
    """The scores of a phase, or of a whole `ROUND`, by the names of `QUANTITIES`."""

    phase: str
    scores: dict[str, Score]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it."""
        named = {
            name: {
                "median": score.median,
                "low": score.interval.low,
                "high": score.interval.high,
            }
            for name, score in self.scores.items()
        }
        return {"phase": self.phase, **named}


def scores(runs: Sequence[Run]) -> list[PhaseScores]:
    """Return the scores of launches of one configuration, every phase and the round.

    The wall time of the round is that between its barriers, which is more than that of its phases
    together where parties wait for each other.
    """
    summaries = [summarise(run, run.link()) for run in runs]
    found = []
    for at, phase in enumerate([*runs[0].phases, ROUND]):
        launches = [[*one.phases, one.total][at] for one in summaries]
        values = {one.name: [one.of(launch) for launch in launches] for one in QUANTITIES}
        if at == len(runs[0].phases):
            values["wall_seconds"] = [one.round_seconds.median for one in summaries]
        known = {
            name: _score([value for value in of_launches if value is not None])
            for name, of_launches in values.items()
            if None not in of_launches
        }
        found.append(PhaseScores(phase, known))
    return found


def _score(values: Sequence[float]) -> Score:
    return Score(float(np.median(values)), median_interval(values))


def table(found: Sequence[PhaseScores]) -> Table:
    """Return scores as a table: a row for each phase, medians with their intervals."""
    named = {name for phase in found for name in phase.scores}
    shown = [one for one in QUANTITIES if one.name in named]
    columns = [label("phase")]
    columns += [Column(one.name, one.title, one.unit, _shown(one)) for one in shown]
    rows: list[Sequence[Any]] = [
        (phase.phase, *(phase.scores.get(one.name) for one in shown)) for phase in found
    ]
    rows.insert(len(rows) - 1, RULE)
    title = f"medians of the launches, with {100 * CONFIDENCE:g} % intervals (order statistics)"
    return Table(columns, rows, title)


def _shown(quantity: Quantity) -> Callable[[Score | None], str]:
    def shown(score: Score | None) -> str:
        if score is None:
            return formats.NOTHING
        median, ends = quantity.format(score.median), score.interval
        # Bytes are the same in every launch.
        if not ends.known or ends.low == ends.high:
            return median
        return f"{median} {formats.interval(ends.low, ends.high, quantity.format)}"

    return shown
