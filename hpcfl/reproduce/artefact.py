"""A table or figure of a paper: what to run for it, and how it compares with what is printed.

An artefact is a list of settings, which are run one by one and stored at once, so that a run that
was interrupted goes on with the next setting. What they gave is then compared with the paper, line
by line, and drawn.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import stdev
from typing import Any

from hpcfl.comm.world import World
from hpcfl.plots.panels import Panel as Panel  # for the modules of the artefacts

Setting = Mapping[str, Any]
MATCHES, DIFFERS, SHOWN = "matches", "differs", "shown"
OPEN = "open"  # differs for a reason that is not known
# Scale of further settings, which are compared as far as they were run.
MORE = "more"


@dataclass(frozen=True)
class Context:
    """What a setting is run with: all processes run every setting."""

    world: World
    data_dir: Path | None


@dataclass(frozen=True)
class Line:
    """One thing that a paper says, beside what was found here."""

    what: str  # with its unit
    paper: str  # in words; "" where there is nothing to compare with
    ours: str
    verdict: str  # MATCHES, DIFFERS, OPEN, or SHOWN where there is nothing to compare with
    why: str = ""  # how closely it matches, why it differs, or what was tried


@dataclass(frozen=True)
class Result:
    """What was found for one setting."""

    setting: Setting
    found: Mapping[str, Any]


@dataclass(frozen=True)
class Scale:
    """How much of an artefact is run."""

    what: str  # is smaller or larger than in the paper
    settings: Sequence[Setting]  # in order
    minutes: float  # about, on two cores


@dataclass(frozen=True)
class Artefact:
    """A table or figure of a paper."""

    id: str  # ``paper/name``
    title: str
    # ``paper``: as printed; ``small``: less of it. At least one of them. ``more``: further seeds,
    # other readings of the text, each of which stands by itself.
    scales: Mapping[str, Scale] = field(default_factory=dict)
    # To figures that JSON can hold; on every rank.
    run: Callable[[Setting, Context], Mapping[str, Any]] = lambda setting, context: {}
    # Of the results, in the order of the settings.
    compare: Callable[[Sequence[Result]], list[Line]] = lambda results: []
    draw: Callable[[Sequence[Result]], list[Panel]] | None = None
    data: tuple[str, ...] = ()  # data sets that it needs

    def scale(self, minutes: float) -> str:
        """Return the largest scale that takes so long at most, or the shortest."""
        whole = [scale for scale in self.scales if scale != MORE]
        if "paper" in whole and self.scales["paper"].minutes <= minutes:
            return "paper"
        return min(whole, key=lambda scale: self.scales[scale].minutes)


def by_round(values: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    """Return a curve over the rounds, from 1."""
    return range(1, len(values) + 1), values


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean."""
    return stdev(values) / math.sqrt(len(values))


def key(setting: Setting) -> str:
    """Return a text that is the same for equal settings only."""
    return json.dumps(setting, sort_keys=True)


def within(what: str, paper: float, ours: float, tolerance: float, unit: str, why: str) -> Line:
    """Compare two numbers, which match up to a relative tolerance; else `why` says why not."""
    off = ours / paper - 1
    values = (f"{paper:g} {unit}".strip(), f"{ours:.4g} {unit}".strip())
    if abs(off) <= tolerance:
        return Line(what, *values, MATCHES, f"within {abs(off):.1%}")
    return Line(what, *values, DIFFERS, why)


def says(what: str, paper: str, ours: str, holds: bool, why: str = "") -> Line:
    """Compare a sentence of the paper with what was found; "" where the paper says nothing.

    `why` is the reason where it does not hold.
    """
    if not paper:
        return Line(what, "", ours, SHOWN, "" if holds else why)
    return Line(what, paper, ours, MATCHES if holds else DIFFERS, "" if holds else why)
