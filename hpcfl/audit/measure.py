"""A whole audit: run an instance, bound epsilon from below, and compare with the accounts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.audit.game import Game
from hpcfl.audit.instance import Instance
from hpcfl.privacy.accounting.zcdp import exact_epsilon
from hpcfl.report import formats
from hpcfl.report.formats import counted
from hpcfl.report.jsontext import finite
from hpcfl.report.table import Column, Facts, Table, label, paragraph
from hpcfl.values import asdict, dataclass

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class EpsilonBound:
    """A lower bound on epsilon, and the test that gives it."""

    epsilon: float
    true_positives: int  # runs with the canary that reach the threshold
    false_positives: int  # runs without the canary that reach the threshold
    runs: int  # runs on each dataset
    threshold: float  # of the statistic, a natural logarithm
    mu: float | None = None  # lower bound on mu, if epsilon was derived from it


def lower_bound(without: Floats, with_: Floats, delta: float, confidence: float) -> EpsilonBound:
    """Return a lower bound on epsilon from a statistic's values on two neighbouring datasets.

    Large values indicate the second dataset. The first half of each chooses the threshold.
    """

    def epsilon(true: Any, false: Any, runs: int) -> Floats:
        least, most = _rates(true, false, runs, confidence)
        with np.errstate(divide="ignore"):
            return np.maximum(0.0, np.log(np.maximum(0.0, least - delta)) - np.log(most))

    threshold, true, false, runs = _test(without, with_, epsilon)
    return EpsilonBound(float(epsilon(true, false, runs)), int(true), int(false), runs, threshold)


def gaussian_bound(without: Floats, with_: Floats, delta: float, confidence: float) -> EpsilonBound:
    """Return a lower bound on epsilon derived from mu; it is valid only for Gaussian noise.

    See Nasr et al. (2023), Section 4. The parameters are those of `lower_bound`.
    """
    from scipy.special import ndtri

    def mu(true: Any, false: Any, runs: int) -> Floats:
        least, most = _rates(true, false, runs, confidence)
        with np.errstate(invalid="ignore"):
            return np.nan_to_num(np.maximum(0.0, ndtri(least) - ndtri(most)), nan=0.0)

    threshold, true, false, runs = _test(without, with_, mu)
    least = float(mu(true, false, runs))
    epsilon = exact_epsilon(least**2 / 2, delta)
    return EpsilonBound(epsilon, int(true), int(false), runs, threshold, least)


def _rates(true: Any, false: Any, runs: int, confidence: float) -> tuple[Floats, Floats]:
    """Return bounds that jointly hold with the confidence: least true, largest false positives."""
    each = (1 - confidence) / 2
    return clopper_pearson(true, runs, each)[0], clopper_pearson(false, runs, each)[1]


def _test(
    without: Floats, with_: Floats, value: Callable[[Any, Any, int], Floats]
) -> tuple[float, int, int, int]:
    """Choose the threshold with the largest value on the first half, and count on the second.

    Return the threshold, true positives, false positives, and the runs counted on each dataset.
    """
    half = without.size // 2
    negatives, positives = np.sort(without[:half]), np.sort(with_[:half])
    candidates = np.unique(np.concatenate([negatives, positives]))
    true = half - np.searchsorted(positives, candidates)
    false = half - np.searchsorted(negatives, candidates)
    threshold = float(candidates[int(np.argmax(value(true, false, half)))])
    hits, alarms = (int(np.sum(one[half:] >= threshold)) for one in (with_, without))
    return threshold, hits, alarms, without.size - half


def clopper_pearson(count: Any, runs: int, error: float) -> tuple[Floats, Floats]:
    """Return lower and upper bounds of a probability, each wrong with probability <= `error`.

    Clopper and Pearson (1934): for the lower bound, `runs` independent trials have at least `count`
    successes with probability `error`; for the upper bound, at most `count`.
    """
    from scipy.stats import beta

    count = np.asarray(count, np.float64)
    lower = beta.ppf(error, count, runs - count + 1)
    upper = beta.ppf(1 - error, count + 1, runs - count)
    return np.nan_to_num(lower, nan=0.0), np.nan_to_num(upper, nan=1.0)


_EPSILONS = (
    label("value", ""),
    Column("epsilon", "epsilon", format=formats.number),
    Column("runs", "runs on each"),
)


@dataclass(frozen=True)
class Audit:
    """The result of an audit."""

    instance: Instance
    neighbours: str  # difference between the datasets, in the audit and the proof
    paper_neighbours: str  # difference between the datasets in the paper's claim
    # Number of uses of the canary in each round of its device; empty if random.
    accesses: tuple[int, ...]
    delta: float  # for all epsilons; 0 for Laplace noise
    paper: float  # epsilon of the paper's account
    proven: float  # epsilon of the proven account
    measured: EpsilonBound  # valid for any mechanism
    gaussian: EpsilonBound | None  # derived from mu, if the noise is Gaussian
    confidence: float  # of each bound

    @property
    def best(self) -> float:
        """The larger of the lower bounds."""
        return max(self.measured.epsilon, 0.0 if self.gaussian is None else self.gaussian.epsilon)

    @property
    def agrees(self) -> bool:
        """Whether all lower bounds are at most the proven value."""
        return self.best <= self.proven

    @property
    def exceeds_paper(self) -> bool:
        """Whether a lower bound is above the paper's value."""
        return self.best > self.paper

    def render(self) -> str:
        """Return the audit as text: the instance, all values of epsilon, and their meaning."""
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
        """Return the audit for JSON, with None for an infinite epsilon."""
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

    Each dataset has `runs` runs, at least 20; one half of them chooses the threshold. Each bound
    holds with probability `confidence`. `progress` is called with 1 after each run.
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
