"""Whether one configuration, version or machine is faster than another, and by how much."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.errors import HpcflError, UsageError
from hpcfl.options.report import METRICS, CompareOptions
from hpcfl.report import brief, formats
from hpcfl.report.formats import counted
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

_NEEDS = ("needs more", "needs less")


@dataclass(frozen=True)
class Side:
    """One of the two that are compared."""

    files: tuple[str, ...]  # its launches
    samples: int  # measured rounds, or launches
    median: float
    interval: Interval  # of the median, by ranks


@dataclass(frozen=True, repr=False)
class Comparison:
    """By how much B costs more than A."""

    metric: str
    unit: str
    sampled_by: str  # ``rounds`` or ``launches``
    sampled_because: str  # why
    significance: float  # level of the test; all intervals have the confidence 1 - significance
    a: Side
    b: Side
    exact: bool  # no sample differs from another on its side: two values, and no test
    p_value: float | None  # of the two-sided rank test; None where `exact`
    difference: float  # B minus A: median of the differences of all pairs of samples
    difference_interval: Interval
    ratio: float | None  # B over A: median of the ratios of all pairs; None where a sample is 0
    ratio_interval: Interval
    # Whether B costs more than A: more, less, equal, not distinguishable, or too few samples.
    verdict: str
    # In what options and facts about machine and software the two differ, with both values.
    configuration: dict[str, tuple[Any, Any]]
    machine: dict[str, tuple[Any, Any]]
    # What disturbed the launches of a side, where seconds are compared; a sentence each.
    warnings: tuple[str, ...]

    def exceeds(self, limit: float) -> bool:
        """Return whether B surely costs more than A by more than a share (0.05 for 5 %).

        That is so where the whole interval of the ratio is above 1 + limit, or where both are exact
        and their ratio is. A B that costs no more than 1 + limit times A is so blamed with a
        probability of at most significance / 2. HpcflError if there is no ratio, because a sample
        is 0.
        """
        if self.ratio is None:
            raise HpcflError(
                f"some {self.metric} are 0, so B cannot be so many per cent above A: compare "
                "another --metric"
            )
        return self.ratio_interval.low > 1 + limit

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it."""
        return dict(finite(asdict(self)))

    def table(self) -> Table:
        """Return both sides and their difference, each with its interval, and what was found."""
        percent = f"{100 * (1 - self.significance):g} %"
        # Bytes are exact up to the last one.
        number = _whole if self.unit == "B" else formats.number
        rows: list[list[Any]] = [
            [
                *(name, side.median, side.interval.low, side.interval.high, side.samples),
                *(len(side.files), Path(side.files[0]).name + " ..." * (len(side.files) > 1)),
            ]
            for name, side in (("A", self.a), ("B", self.b))
        ]
        ends = self.difference_interval
        rows.append(["B - A", self.difference, ends.low, ends.high, None, None, None])
        within = "[too few for an interval]"
        if self.ratio_interval.known:
            low, high = self.ratio_interval.low, self.ratio_interval.high
            within = formats.interval(low, high, formats.number)
        notes = [
            verdict(self),
            self.sampled_because,
            f"B / A: {formats.number(self.ratio)} {within}",
        ]
        if self.p_value is not None:
            notes.append(f"rank test (Mann-Whitney): p = {self.p_value:.3g}")
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
        return brief.line(
            "Comparison", self.metric, f"B / A {formats.ratio(self.ratio)}", verdict(self)
        )

    def _repr_html_(self) -> str:
        return self.table().html()


def one_configuration(runs: Sequence[Run], name: str) -> Pool:
    """Return the launches of a side.

    It is a UsageError if they are of several configurations or machines, or of training.
    """
    if any(run.training for run in runs):
        raise UsageError(f"{name} holds a training run: its rounds are not repeats of one another")
    first, *others = pooling.group(runs)
    if others:
        configuration, machine = _differing(first, others[0])
        raise UsageError(
            f"{name} holds {1 + len(others)} configurations, which differ in "
            f"{', '.join(configuration | machine)}: give files of one"
        )
    return first


def _differing(a: Pool, b: Pool) -> tuple[dict[str, tuple[Any, Any]], dict[str, tuple[Any, Any]]]:
    """Return in what options and facts of the machine two differ, with both values."""
    configuration, machine = (
        pooling.differences(facts, a.runs[0], b.runs[0])
        for facts in (pooling.configuration, pooling.machine)
    )
    return configuration, machine


def compare(
    a: Pool, b: Pool, metric: str = "round_seconds", *, significance: float = 0.05, by: str = "auto"
) -> Comparison:
    """Compare the measured rounds of two configurations, and tell what these differ in.

    `metric` is a name of `METRICS`. A sample is a round, or (`by` launches) the median of a
    launch's rounds. With `by` auto it is a launch where those of a side differ more than their
    rounds do: the test would else take rounds of one launch for independent. Runs of other sizes,
    of other links where modelled seconds are compared, and options out of range are a UsageError; a
    side without a measured round is an HpcflError.
    """
    CompareOptions(metric=metric, by=by)  # refuses what is out of range
    first, second = a.runs[0], b.runs[0]
    for name, one, other in (
        ("devices", first.devices, second.devices),
        ("parameters", first.dim, second.dim),
    ):
        if one != other:
            raise UsageError(
                f"A has {one} {name} and B has {other}: runs of different sizes are not compared"
            )
    if metric == "modelled_seconds" and first.link() != second.link():
        raise UsageError("A and B were made for different links: modelled seconds are not compared")
    launches = {"A": _launches(a, metric, "A"), "B": _launches(b, metric, "B")}
    p_values = {name: launches_p_value(values) for name, values in launches.items()}
    by, because = _sampled(by, p_values)
    x, y = (
        np.array([np.median(values) for values in side])
        if by == "launches"
        else np.concatenate(side)
        for side in launches.values()
    )
    exact = metric == "bytes_up" and bool(np.ptp(x) == 0 and np.ptp(y) == 0)
    configuration, machine = _differing(a, b)
    found = _exact(x, y) if exact else _tested(x, y, significance)
    return Comparison(
        metric=metric,
        unit=METRICS[metric],
        sampled_by=by,
        sampled_because=because,
        significance=significance,
        a=_side(a, x, 1 - significance),
        b=_side(b, y, 1 - significance),
        exact=exact,
        configuration=configuration,
        machine=machine,
        warnings=_disturbed(a, b) if METRICS[metric] == "s" else (),
        **found,
    )


def _disturbed(a: Pool, b: Pool) -> tuple[str, ...]:
    """Return what reports warn of, with the side or sides that it is about."""
    sides: dict[str, list[str]] = {}
    for name, pool in (("A", a), ("B", b)):
        for sentence in summary.warnings(pool.runs):
            sides.setdefault(sentence, []).append(name)
    return tuple(f"{', '.join(names)}: {sentence}" for sentence, names in sides.items())


def _exact(x: Floats, y: Floats) -> dict[str, Any]:
    """Compare two values of which every sample is a copy."""
    one, other = float(x[0]), float(y[0])
    ratio = other / one if one > 0 else None
    return {
        "p_value": None,
        "difference": other - one,
        "difference_interval": Interval(other - one, other - one),
        "ratio": ratio,
        "ratio_interval": UNKNOWN if ratio is None else Interval(ratio, ratio),
        "verdict": "equal" if one == other else "more" if other > one else "less",
    }


def _tested(x: Floats, y: Floats, significance: float) -> dict[str, Any]:
    """Compare two groups of samples by ranks."""
    statistic, p_value = mann_whitney(x, y)
    outcome = "not distinguishable"
    if p_value <= significance:
        outcome = "more" if statistic > x.size * y.size / 2 else "less"
    elif least_p_value(x.size, y.size) > significance:
        outcome = "too few samples"
    found: dict[str, Any] = {"p_value": p_value}
    found |= {"verdict": outcome, "ratio": None, "ratio_interval": UNKNOWN}
    found["difference"], found["difference_interval"] = shift(x, y, 1 - significance)
    if x.min() > 0 and y.min() > 0:
        # A shift of the logarithms, so that its interval goes with the same test.
        scaled, ends = shift(np.log(x), np.log(y), 1 - significance)
        found["ratio"] = math.exp(scaled)
        found["ratio_interval"] = Interval(math.exp(ends.low), math.exp(ends.high))
    return found


def _sampled(by: str, p_values: Mapping[str, float | None]) -> tuple[str, str]:
    """Return what a sample is, and why, in words."""
    if by != "auto":
        return by, f"samples are {by}, as --by says"
    differing = [
        f"{name} (p = {p_value:.2g})"
        for name, p_value in p_values.items()
        if p_value is not None and p_value <= DIFFERENT
    ]
    if differing:
        return "launches", (
            "samples are launches, each by its median: rounds of one launch are more alike than "
            f"those of all launches of {' and '.join(differing)}"
        )
    if all(p_value is None for p_value in p_values.values()):
        return "rounds", "samples are rounds: each side has one launch"
    return "rounds", "samples are rounds: the launches of a side differ no more than its rounds do"


def _side(pool: Pool, samples: Floats, confidence: float) -> Side:
    files = tuple(str(run.path) for run in pool.runs)
    interval = median_interval(samples, confidence)
    return Side(files, samples.size, float(np.median(samples)), interval)


def _launches(pool: Pool, metric: str, name: str) -> list[Floats]:
    """Return a metric of every measured round, those of each launch by themselves."""
    launches = [_of_rounds(run, metric) for run in pool.runs]
    launches = [values for values in launches if values.size]
    if not launches:
        raise HpcflError(f"{name} has no measured round: there is nothing to compare")
    return launches


def _of_rounds(run: Run, metric: str) -> Floats:
    """Return a metric of each measured round; HpcflError if a round is without it."""
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
        peaks = np.empty((run.rounds, 0)) if run.peak_bytes is None else run.peak_bytes
        of_party = np.nan_to_num(peaks[run.measured, run.ranks_of[party]], nan=-1.0)
        found = of_party.max(axis=1, initial=-1.0)
        found[found < 0] = np.nan
    else:  # a round that no device survived has none
        found = run.survivor_bytes("member" if party == "member" else "device")
        found = found[~np.isnan(found)] if not np.isnan(found).all() else found
    if np.isnan(found).any():
        raise HpcflError(f"{run.path} does not tell the {metric} of every round")
    return found


def verdict(found: Comparison) -> str:
    """Return what a comparison says, as a sentence without a full stop."""
    if found.verdict == "too few samples":
        one = found.sampled_by.removesuffix("es" if found.sampled_by == "launches" else "s")
        return (
            f"not distinguishable: {counted(found.a.samples, one)} against {found.b.samples} are "
            f"too few for any difference to be seen at {found.significance:g}"
        )
    if found.verdict == "not distinguishable":
        return (
            f"not distinguishable (p = {found.p_value:.3g}, significance = {found.significance:g})"
        )
    if found.verdict == "equal":
        return f"A and B are equal: {_value(found.a.median, found.unit)}"
    more, less = ("is slower", "is faster") if found.metric == "round_seconds" else _NEEDS
    word = more if found.verdict == "more" else less
    if found.ratio is None:
        return f"B {word} by {_value(abs(found.difference), found.unit)}"
    ratios = (found.ratio, found.ratio_interval.low, found.ratio_interval.high)
    change, low, high = (100 * (ratio - 1) for ratio in ratios)
    if found.verdict == "less":
        change, low, high = -change, -high, -low
    ends = "" if found.exact or math.isnan(low) else f" [{low:.3g}, {high:.3g}]"
    return f"B {word} by {change:.3g} %{ends}"


def remarks(found: Comparison) -> list[str]:
    """Return what a reader of the verdict should know, a sentence each, without a full stop."""
    one_launch = min(len(found.a.files), len(found.b.files)) == 1
    if one_launch and found.sampled_by == "rounds" and not found.exact:
        return ["a side has one launch: what a further launch would change is not in the intervals"]
    return []


def _value(value: float, unit: str) -> str:
    return f"{_whole(value) if unit == 'B' else formats.number(value)} {unit}"


def _whole(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0") if formats.has_value(value) else formats.NOTHING
