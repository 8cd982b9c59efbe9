"""Statistical comparison of the costs of two configurations, versions or machines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.errors import HpcflError, UsageError
from hpcfl.options.report import METRICS, CompareOptions
from hpcfl.report import brief, formats
from hpcfl.report.jsontext import finite
from hpcfl.report.table import Column, Table, label
from hpcfl.results import pooling, summary
from hpcfl.results.pooling import Pool
from hpcfl.results.reader import Run
from hpcfl.results.record import Floats
from hpcfl.results.statistics import (
    DIFFERENT,
    UNKNOWN,
    Interval,
    launches_p_value,
    least_p_value,
    mann_whitney,
    median_interval,
    shift,
)
from hpcfl.values import asdict, dataclass


@dataclass(frozen=True)
class Side:
    """One side of a comparison."""

    files: tuple[str, ...]  # one per launch
    samples: int  # number of measured rounds, or of launches
    median: float
    interval: Interval  # of the median, from order statistics


@dataclass(frozen=True, repr=False)
class Comparison:
    """The result of comparing the costs of two sides, A and B."""

    metric: str
    unit: str
    sampled_by: str  # ``rounds``, or ``launches`` if these differ more than their rounds do
    significance: float  # level of the test; all intervals have the confidence 1 - significance
    a: Side
    b: Side
    p_value: float  # of the two-sided rank test
    difference: float  # B minus A: median of the differences of all pairs of samples
    difference_interval: Interval
    ratio: float | None  # B over A: median of the ratios of all pairs; None where a sample is 0
    ratio_interval: Interval
    # What B costs compared with A: more, less, not distinguishable, or too few samples.
    verdict: str
    # Options, and facts about machine and software, in which A and B differ, with both values.
    configuration: dict[str, tuple[Any, Any]]
    machine: dict[str, tuple[Any, Any]]
    warnings: tuple[str, ...]  # disturbances of either side, if seconds are compared

    @property
    def sentence(self) -> str:
        """The finding as a sentence, without a full stop."""
        if self.verdict == "too few samples":
            return (
                f"not distinguishable: {self.a.samples} against {self.b.samples} "
                f"{self.sampled_by} are too few for any difference to be seen"
            )
        if self.verdict == "not distinguishable":
            return f"not distinguishable (p = {self.p_value:.3g}, level {self.significance:g})"
        of_time = self.metric == "round_seconds"
        words = ("is slower", "is faster") if of_time else ("needs more", "needs less")
        word = words[self.verdict == "less"]
        if self.ratio is None:
            return f"B {word} by {formats.number(abs(self.difference))} {self.unit}"
        sign = -1 if self.verdict == "less" else 1
        low, high = sorted(
            100 * sign * (end - 1) for end in (self.ratio_interval.low, self.ratio_interval.high)
        )
        return f"B {word} by {100 * sign * (self.ratio - 1):.3g} % [{low:.3g}, {high:.3g}]"

    def exceeds(self, limit: float) -> bool:
        """Return whether the whole interval of B / A is above 1 + `limit` (0.05 for 5 %).

        The probability of a false alarm is at most significance / 2. Raises HpcflError if there is
        no ratio.
        """
        if self.ratio is None:
            raise HpcflError(f"some {self.metric} are 0, so there is no ratio of B to A")
        return self.ratio_interval.low > 1 + limit

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as JSON-ready values."""
        return dict(finite({**asdict(self), "sentence": self.sentence}))

    def table(self) -> Table:
        """Return a table of both sides and their difference, with intervals and the finding."""
        percent = f"{100 * (1 - self.significance):g} %"
        # Byte counts are exact, so all digits are shown.
        number = _whole if self.unit == "B" else formats.number
        rows: list[list[Any]] = [
            [
                *(name, side.median, side.interval.low, side.interval.high, side.samples),
                *(len(side.files), Path(side.files[0]).name + " ..." * (len(side.files) > 1)),
            ]
            for name, side in (("A", self.a), ("B", self.b))
        ]
        ends, ratios = self.difference_interval, self.ratio_interval
        rows.append(["B - A", self.difference, ends.low, ends.high, None, None, None])
        within = formats.interval(ratios.low, ratios.high, formats.number)
        notes = [
            self.sentence,
            f"B / A: {formats.number(self.ratio)} {within}",
            f"rank test (Mann-Whitney): p = {self.p_value:.3g}",
        ]
        if self.sampled_by == "launches":
            notes.append(
                "samples are launches, each by its median, because those of a side differ more "
                "than their rounds do"
            )
        elif min(len(self.a.files), len(self.b.files)) == 1:
            notes.append(
                "a side has one launch: the intervals do not include variation between launches"
            )
        notes += [
            f"{title} differ: {name}: {formats.words(a)} | {formats.words(b)}"
            for title, pairs in (("options", self.configuration), ("machine", self.machine))
            for name, (a, b) in pairs.items()
        ]
        notes += [f"warning: {sentence}" for sentence in self.warnings]
        columns = [
            label("side", ""),
            Column("median", "median", self.unit, number),
            Column("low", f"{percent} from", self.unit, number),
            Column("high", "to", self.unit, number),
            Column("samples", self.sampled_by, format=formats.count),
            Column("launches", "launches", format=formats.count),
            label("files"),
        ]
        return Table(columns, rows, f"{self.metric}, {percent} intervals (order statistics)", notes)

    def __repr__(self) -> str:
        ratio = formats.ratio(self.ratio)
        return brief.line("Comparison", self.metric, f"B / A {ratio}", self.sentence)

    def _repr_html_(self) -> str:
        return self.table().html()


def one_configuration(runs: Sequence[Run], name: str) -> Pool:
    """Return the launches of the side `name` as a pool.

    Raises UsageError if they differ in configuration or machine, or if one is a training run.
    """
    if any(run.training for run in runs):
        raise UsageError(
            f"{name} holds a training run, whose rounds are no repeats: give runs of hpcfl bench"
        )
    first, *others = pooling.group(runs)
    if others:
        differing = [
            fact
            for facts in (pooling.configuration, pooling.machine)
            for fact in pooling.differences(facts, first.runs[0], others[0].runs[0])
        ]
        raise UsageError(
            f"{name} holds {1 + len(others)} configurations, which differ in "
            f"{', '.join(differing)}: give files of one"
        )
    return first


def compare(
    a: Pool, b: Pool, metric: str = "round_seconds", *, significance: float = 0.05
) -> Comparison:
    """Compare the measured rounds of two configurations, and list how these differ.

    `metric` is a key of `METRICS`. A sample is a round. If the launches of a side differ more than
    their rounds do, the rounds of a launch are not independent, and a sample is the median of a
    launch. Raises UsageError if the sizes of A and B differ, or if their links differ and `metric`
    is modelled seconds. Raises HpcflError if a side has no measured round.
    """
    CompareOptions(metric=metric)  # raises UsageError for an unknown metric
    first, second = a.runs[0], b.runs[0]
    if (first.devices, first.dim) != (second.devices, second.dim):
        raise UsageError(
            f"runs of different sizes are not compared: A has {first.devices} devices and "
            f"{first.dim} parameters, B has {second.devices} and {second.dim}"
        )
    if metric == "modelled_seconds" and first.link() != second.link():
        raise UsageError(
            "A and B model different links, so their modelled seconds cannot be compared"
        )
    sides = [_launches(pool, metric, name) for pool, name in ((a, "A"), (b, "B"))]
    p_values = [launches_p_value(side) for side in sides]
    by_launch = any(p_value is not None and p_value <= DIFFERENT for p_value in p_values)
    x, y = (
        np.array([np.median(values) for values in side]) if by_launch else np.concatenate(side)
        for side in sides
    )
    return Comparison(
        metric=metric,
        unit=METRICS[metric],
        sampled_by="launches" if by_launch else "rounds",
        significance=significance,
        a=_side(a, x, 1 - significance),
        b=_side(b, y, 1 - significance),
        configuration=pooling.differences(pooling.configuration, first, second),
        machine=pooling.differences(pooling.machine, first, second),
        warnings=tuple(
            f"{name}: {sentence}"
            for name, pool in (("A", a), ("B", b))
            for sentence in summary.warnings(pool.runs)
            if METRICS[metric] == "s"
        ),
        **_tested(x, y, significance),
    )


def _tested(x: Floats, y: Floats, significance: float) -> dict[str, Any]:
    """Return the fields of a `Comparison` that follow from the rank test of two samples."""
    statistic, p_value = mann_whitney(x, y)
    verdict = "not distinguishable"
    if p_value <= significance:
        verdict = "more" if statistic > x.size * y.size / 2 else "less"
    elif least_p_value(x.size, y.size) > significance:
        verdict = "too few samples"
    ratio, ratios = None, UNKNOWN
    if x.min() > 0 and y.min() > 0:
        # The shift of the logarithms, because its interval then agrees with the rank test.
        scaled, ends = shift(np.log(x), np.log(y), 1 - significance)
        ratio, ratios = math.exp(scaled), Interval(math.exp(ends.low), math.exp(ends.high))
    difference, ends = shift(x, y, 1 - significance)
    found = {"p_value": p_value, "difference": difference, "difference_interval": ends}
    return found | {"ratio": ratio, "ratio_interval": ratios, "verdict": verdict}


def _side(pool: Pool, samples: Floats, confidence: float) -> Side:
    files = tuple(str(run.path) for run in pool.runs)
    interval = median_interval(samples, confidence)
    return Side(files, samples.size, float(np.median(samples)), interval)


def _launches(pool: Pool, metric: str, name: str) -> list[Floats]:
    """Return the metric of every measured round, one array per launch."""
    launches = [values for run in pool.runs if (values := _of_rounds(run, metric)).size]
    if not launches:
        raise HpcflError(f"{name} has no measured round: there is nothing to compare")
    return launches


def _of_rounds(run: Run, metric: str) -> Floats:
    """Return the metric of each measured round; raise HpcflError if a round lacks it."""
    party, _, what = metric.partition("_")
    if metric == "round_seconds":
        found = run.round_seconds[run.measured]
    elif metric == "modelled_seconds":
        found = run.modelled_seconds(run.link()).sum(axis=1)
    elif metric == "server_cpu_seconds":
        found = run.cpu_seconds[run.measured].sum(axis=1)[:, -1]
    elif what == "cpu_seconds":
        found = run.slowest_cpu_seconds(party)[:, -1]
    elif what == "peak_bytes":
        of_party = np.nan_to_num(run.peak_bytes[run.measured, run.ranks_of[party]], nan=-1.0)
        found = of_party.max(axis=1, initial=-1.0)
        found[found < 0] = np.nan
    else:  # a round without survivors has no value
        found = run.survivor_bytes("member" if party == "member" else "device")
        found = found[~np.isnan(found)] if not np.isnan(found).all() else found
    if np.isnan(found).any():
        raise HpcflError(f"{run.path} does not record the {metric} of every round")
    return found


def _whole(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0") if formats.has_value(value) else formats.NOTHING
