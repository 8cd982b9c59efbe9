"""A table or figure of a paper: what to run for it, and how it compares with what is printed.

An artefact is a list of settings, which are run one by one and stored at once, so that a run that
was interrupted goes on with the next setting. What they gave is then compared with the paper, line
by line, and drawn.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcfl.comm.world import World

# For the modules of the artefacts.
from hpcfl.plots.panels import Panel as Panel
from hpcfl.reproduce.verdicts import DIFFERS as DIFFERS
from hpcfl.reproduce.verdicts import MATCHES as MATCHES
from hpcfl.reproduce.verdicts import SHOWN as SHOWN
from hpcfl.reproduce.verdicts import Claim as Claim
from hpcfl.reproduce.verdicts import Contrast as Contrast
from hpcfl.reproduce.verdicts import Line as Line
from hpcfl.reproduce.verdicts import judge
from hpcfl.reproduce.verdicts import means as means
from hpcfl.reproduce.verdicts import says as says
from hpcfl.reproduce.verdicts import within as within

Setting = Mapping[str, Any]
# Scale of further settings, which are compared as far as they were run.
MORE = "more"


@dataclass(frozen=True)
class Context:
    """What a setting is run with: all processes run every setting."""

    world: World
    data_dir: Path | None


@dataclass(frozen=True)
class Result:
    """What was found for one setting."""

    setting: Setting
    found: Mapping[str, Any]


# From the best to the least: as printed; less of it; something else in place of data that are not
# at hand, of which nothing is said about the paper.
SCALES = ("paper", "small", "stand-in")


@dataclass(frozen=True)
class Scale:
    """How much of an artefact is run."""

    what: str  # is smaller or larger than in the paper
    settings: Sequence[Setting]  # in order
    minutes: float  # about, on two cores
    # Where it is no part of what the paper ran: what it is called, and the data sets that it needs.
    title: str | None = None
    data: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Artefact:
    """A table or figure of a paper."""

    id: str  # ``paper/name``
    title: str
    # By `SCALES`, at least one of them; and `MORE`: further seeds, other readings of the text, each
    # of which stands by itself.
    scales: Mapping[str, Scale] = field(default_factory=dict)
    # To figures that JSON can hold; on every rank.
    run: Callable[[Setting, Context], Mapping[str, Any]] = lambda setting, context: {}
    # Of the results, in the order of the settings.
    compare: Callable[[Sequence[Result]], Sequence[Line | Claim]] = lambda results: []
    draw: Callable[[Sequence[Result]], list[Panel]] | None = None
    data: tuple[str, ...] = ()  # data sets that it needs

    @property
    def group(self) -> str:
        """The paper, or the study, that it belongs to."""
        return self.id.partition("/")[0]

    def lines(self, results: Sequence[Result]) -> list[Line]:
        """Return what the paper says beside what was found, with verdicts."""
        return judge(self.compare(results))

    def scale(self, minutes: float) -> str:
        """Return the largest scale that takes so long at most, or the shortest."""
        whole = [scale for scale in self.scales if scale != MORE]
        if "paper" in whole and self.scales["paper"].minutes <= minutes:
            return "paper"
        return min(whole, key=lambda scale: self.scales[scale].minutes)

    def titled(self, scale: str | None) -> str:
        """Return what it is called where it was run at a scale."""
        found = self.scales.get(scale or "")
        return (found and found.title) or self.title

    def needs(self, scale: str) -> tuple[str, ...]:
        """Return the data sets that a scale needs."""
        data = self.scales[scale].data
        return self.data if data is None else data


def by_round(values: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    """Return a curve over the rounds, from 1."""
    return range(1, len(values) + 1), values


def key(setting: Setting) -> str:
    """Return a text that is the same for equal settings only."""
    return json.dumps(setting, sort_keys=True)
