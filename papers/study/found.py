"""Looks up results of the study, and compares them with intervals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import mean
from typing import Any, NamedTuple

from hpcfl.algorithms.aggregation import find
from hpcfl.costmodel.model import COMPUTING_WITHIN, DEVICE_WITHIN
from papers.artefact import Result, key
from papers.statistics import half_width
from papers.study import costs


class Missing(Exception):
    """A result is missing: it has not been run, or a protocol has refused it."""


class Estimate(NamedTuple):
    """A figure with the ends of its interval, which are equal if it is exact."""

    value: float
    low: float
    high: float

    def over(self, other: Estimate) -> Estimate:
        """Return the ratio of two figures.

        Two 96.9 % intervals of medians (the extremes of six rounds) give an interval of the ratio
        with at least 93.8 %.
        """
        return Estimate(self.value / other.value, self.low / other.high, self.high / other.low)

    def __str__(self) -> str:
        if self.low == self.high:
            return _digits(self.value)
        return f"{_digits(self.value)} [{_digits(self.low)}, {_digits(self.high)}]"


def _digits(value: float) -> str:
    """Return a number with three digits, or with all digits before the point."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"


class Costs:
    """The costs of rounds by setting."""

    def __init__(self, results: Iterable[Result]) -> None:
        self._found = {key(one.setting): one.found for one in results}

    def at(self, protocol: str, **changes: Any) -> dict[str, Any]:
        """Return the result for BASE with changes; raise Missing if there is none."""
        setting: dict[str, Any] = {"protocol": protocol, **costs.BASE}
        if find(protocol).sparse_upload:
            setting["alpha"] = costs.ALPHA
        found = self._found.get(key({**setting, **changes}))
        if found is None or found["state"] == costs.REFUSED:
            raise Missing(f"{protocol}, {changes}")
        return dict(found)

    def figure(self, what: str, protocol: str, **changes: Any) -> Estimate:
        """Return a figure for BASE with changes; predicted seconds have 90 % error bounds."""
        found = self.at(protocol, **changes)
        figure = spread(found[what])
        if found["state"] == costs.PREDICTED and what.endswith("seconds"):
            least, most = DEVICE_WITHIN if what == "device_cpu_seconds" else COMPUTING_WITHIN
            return Estimate(figure.value, figure.low * least, figure.high * most)
        return figure

    def versus(self, what: str, protocol: str, **changes: Any) -> Estimate:
        """Return a figure of a protocol over that of `secagg`."""
        return self.figure(what, protocol, **changes).over(self.figure(what, "secagg", **changes))


def spread(stored: float | list[float]) -> Estimate:
    """Return a stored figure: a number, or a list of a median and the ends of its interval."""
    if not isinstance(stored, list):
        return Estimate(stored, stored, stored)
    return Estimate(*stored) if len(stored) == 3 else Estimate(*stored, *stored, *stored)


def mean_of(values: Sequence[float]) -> Estimate:
    """Return a mean and its 95 % interval (Student's t)."""
    if len(values) < 2:
        raise Missing("one seed")
    middle, half = mean(values), half_width(values)
    return Estimate(middle, middle - half, middle + half)
