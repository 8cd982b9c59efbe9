"""An audit from start to end: run, bound, and compare with what the accounts say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hpcfl.audit.bounds import EpsilonBound, gaussian_bound, lower_bound
from hpcfl.audit.game import Game
from hpcfl.audit.instance import Instance
from hpcfl.report import formats
from hpcfl.report.formats import counted
from hpcfl.report.jsontext import finite
from hpcfl.report.table import Column, Facts, Table, label, paragraph

_EPSILONS = (
    label("value", ""),
    Column("epsilon", "epsilon", format=formats.number),
    Column("runs", "runs on each"),
)


@dataclass(frozen=True)
class Audit:
    """The result of an audit."""

    instance: Instance
    neighbours: str  # in what the datasets differ, here and where it is proven,
    paper_neighbours: str  # and by the paper's claim
    # How often the canary is used in every round that its device is in; empty if by chance.
    accesses: tuple[int, ...]
    delta: float  # of all values; 0 for Laplace noise
    paper: float  # the accounts' epsilons
    proven: float
    measured: EpsilonBound  # for any mechanism
    gaussian: EpsilonBound | None  # by way of mu, where the noise is Gaussian
    confidence: float  # with which each bound holds

    @property
    def best(self) -> float:
        """The larger of the lower bounds."""
        return max(self.measured.epsilon, 0.0 if self.gaussian is None else self.gaussian.epsilon)

    @property
    def agrees(self) -> bool:
        """Whether no lower bound is above the proven value."""
        return self.best <= self.proven

    @property
    def exceeds_paper(self) -> bool:
        """Whether a lower bound is above the paper's value."""
        return self.best > self.paper

    def render(self) -> str:
        """Return the audit as text: the instance, all values of epsilon, what they mean."""
        rows: list[list[Any]] = [["paper", self.paper, None]]
        rows.append(["measured, at least", self.measured.epsilon, self.measured.runs])
        if self.gaussian is not None:
            rows.append(["measured by mu, at least", self.gaussian.epsilon, self.gaussian.runs])
        rows.append(["proven", self.proven, None])
        facts = {
            "algorithm": f"{self.instance.algorithm}, sigma {self.instance.sigma:g}, "
            f"{counted(self.instance.rounds, 'round')}",
            "neighbours": self.neighbours,
            "delta": f"{self.delta:g}",
        }
        if self.accesses:
            facts["canary is used"] = (
                f"{', '.join(map(str, self.accesses))} times in the rounds of its device"
            )
        claim = f"the paper's {self.paper:.4g}"
        if self.paper_neighbours != self.neighbours:
            claim += f", which is said of neighbours that {self.paper_neighbours}"
        meaning = (
            f"With a confidence of {self.confidence:g} each, no epsilon below the measured ones "
            f"holds: this {'refutes' if self.exceeds_paper else 'does not refute'} {claim}, and "
            f"{'agrees with' if self.agrees else 'CONTRADICTS'} the proven {self.proven:.4g}."
        )
        table = Table(_EPSILONS, rows).text()
        return f"{Facts(facts).text()}\n\n{table}\n\n{paragraph(meaning)}"

    def as_dict(self) -> dict[str, Any]:
        """Return the audit for JSON, an infinite epsilon as None."""
        judged = {"agrees": self.agrees, "exceeds_paper": self.exceeds_paper}
        return dict(finite(asdict(self) | judged))


def audit(
    instance: Instance,
    runs: int,
    seed: int = 0,
    confidence: float = 0.99,
    *,
    progress: Callable[[int], object] = lambda done: None,
) -> Audit:
    """Run an instance on two neighbouring datasets, and bound epsilon from below.

    Of `runs` runs on each dataset, at least 20, one half chooses the threshold. Each of the bounds
    holds with the confidence. `progress` is called with 1 after each run.
    """
    game = Game(instance, seed)
    spent = game.account()

    def played(canary: bool, run: int) -> float:
        score = game.play(canary, run)
        progress(1)
        return score

    without, with_ = (
        np.array([played(canary, run) for run in range(runs)]) for canary in (False, True)
    )
    return Audit(
        instance,
        game.neighbours,
        game.paper_neighbours,
        game.devices.accesses,
        game.delta,
        spent.paper,
        spent.proven,
        lower_bound(without, with_, game.delta, confidence),
        gaussian_bound(without, with_, game.delta, confidence) if instance.gaussian else None,
        confidence,
    )
