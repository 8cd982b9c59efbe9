"""Local noisy SGD under secure aggregation (Hu, Guo and Gong, 2021, zCDP-FL): `cdp`, `dp-dsgd`.

In a round, r of n devices each take tau steps theta <- theta - eta (g + N(0, sigma**2 I)), g the
mean over gamma samples of gradients clipped to the norm G, and the server learns their models
(without secure aggregation) or only the sum of them (with it). One device has m samples, and takes
part in C rounds. Neighbouring datasets differ in one record of one device, replaced.

An access of the record costs rho_acc = (2 G / gamma)**2 / (2 sigma**2) = 2 G**2 / (gamma sigma)**2.

The paper (Theorem 1) charges a record C tau gamma / m accesses and divides by r under secure
aggregation. What is proven (docs/privacy.md), for a record with a accesses in a round, where
r_h of the devices do not tell the server their noise:

- **P1**, any loss, no credit for secure aggregation: a rho_acc. Noisy gradients of one device
  compose; the model is computed from them.
- **P2**, secure aggregation, and tau = 1 or steps that never expand distances, clipping included:
  min(a rho_acc, a**2 rho_acc / r_h). Fix all noise but the last step's: the models' sums are then
  Gaussian with variance r_h eta**2 sigma**2 and their means at most 2 a eta G / gamma apart.
  Divergences are jointly convex, so averaging over the fixed noise only lowers them.
- **P3**, secure aggregation, any loss: min(a rho_acc, 2 G**2 (1/gamma + tau - 1)**2 /
  (r_h sigma**2)). As P2, but clipping alone keeps the models from parting by more than 2 eta G in
  each step after the access.

All bounds are rho of Gaussians that dominate, so they are converted exactly. Discrete noise in the
last step is that of rounded Gaussians, a little narrower
(:mod:`~hpcfl.privacy.accounting.distributed`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import ClassVar

from hpcfl.errors import UsageError
from hpcfl.options.definition import option
from hpcfl.privacy.accounting import distributed, zcdp
from hpcfl.privacy.accounting.account import REPLACE_RECORD, Account, Found, Guarantee
from hpcfl.report.formats import counted
from hpcfl.values import MISSING, dataclass

SHUFFLES = {
    "fresh": "every round starts a new epoch on newly shuffled data",
    "continuing": "epochs continue across rounds, and a reshuffle within a round puts the records "
    "already used in it behind the round's end",
}
"""How a device goes through its data; each epoch is a partition of it into batches of gamma."""

Cost = Callable[[int], float]
"""The rho of a round, from the number of a record's accesses in it."""

# More coordinates than models have: what a sum of discrete Gaussians lacks is charged for each.
_MOST_COORDINATES = 10**12


@dataclass(frozen=True)
class CDPAccount(Account):
    """The account of `cdp`: of n `devices`, r `per_round`, in T `rounds`.

    `sigma` is the standard deviation of the noise on every coordinate of a mini-batch's mean
    gradient.
    """

    algorithm: ClassVar[str] = "cdp"
    claim: ClassVar[str] = "Theorem 1"

    # A step's sum of gradients is divided by it also on a device with fewer samples.
    batch_size: int = option(MISSING, "Samples gamma in a mini-batch.", at_least=1)
    samples: int = option(
        MISSING, "Records m on a device, on the smallest if they differ.", at_least=1
    )
    steps: int = option(1, "Local steps tau in a round.", at_least=1)
    delta: float = option(1e-5, "Delta of the guarantee.", above=0, below=1)
    secagg: bool = option(True, "Whether the server learns only sums.")
    convex: bool = option(
        False,
        "Declare that local steps with clipped gradients never expand distances. This is proven "
        "for linear models with one output or two classes and learning rates of at most "
        "2 / smoothness, and false for softmax with more classes and for networks.",
    )
    shuffle: str = option(
        "fresh",
        "Start a new epoch in every round, or continue epochs, with no record twice in a round.",
        choices=tuple(SHUFFLES),
    )
    colluding: int = option(0, "Devices that tell the server their noise.", at_least=0)
    discrete: bool = False  # whether the last step's noise is discrete Gaussian, on integers
    # A device's parameter of discrete noise, in integers, at the least. The exact conversion takes
    # 4 off its square.
    integer_sigma: float = 8.0
    participations: int | None = None  # rounds C of the device that takes part most; else by turns

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.colluding >= self.devices:
            raise UsageError(
                f"{self.colluding} of {self.devices} devices collude; at least one must be honest"
            )

    @property
    def worst_participations(self) -> int:
        """Rounds C of the device that takes part most."""
        return self.turns if self.participations is None else self.participations

    @property
    def hidden(self) -> int:
        """Devices r_h of a round whose noise nobody else knows, at the worst."""
        return max(1, self.per_round - self.colluding)

    @property
    def access_rho(self) -> float:
        """The rho_acc of one access of a record: 2 G**2 / (gamma sigma)**2."""
        return zcdp.gaussian_rho(self.batch_size * self.sigma / (2 * self.clip_norm))

    @property
    def epoch(self) -> int:
        """Steps of an epoch at the least: a last, smaller batch may be left out."""
        return max(1, self.samples // self.batch_size)

    @property
    def paper_rho(self) -> float:
        """2 C tau G**2 / (r m gamma sigma**2) (Theorem 1); without r if sums are not hidden."""
        used = min(1.0, self.batch_size / self.samples)
        accesses = self.worst_participations * self.steps * used
        return accesses * self.access_rho / (self.per_round if self.secagg else 1)

    def paper(self) -> Guarantee:
        """Return the epsilon that the paper claims."""
        rho = self.paper_rho
        most = counted(self.worst_participations, "round")
        assumptions = (
            "accesses of a record count as fractions, and all noise of a round protects it",
            f"a device takes part in at most {most}",
        )
        epsilon = zcdp.bun_steinke_epsilon(rho, self.delta)
        method = f"{self.claim}, Bun-Steinke, rho = {rho:.4g}"
        return Guarantee(epsilon, self.delta, REPLACE_RECORD, assumptions, method)

    def bounds(self) -> tuple[Guarantee, ...]:
        """Return everything that is proven under the settings, P1 first."""
        always = (
            f"a device takes part in at most {self.worst_participations} of the {self.rounds} "
            "rounds",
            f"the gradient of every sample is clipped to {self.clip_norm:g}, and their sum "
            f"divided by {self.batch_size} in every batch",
            SHUFFLES[self.shuffle],
        )
        return tuple(
            self.guarantee(
                partial(self._converted, name, self.worst_rho(cost)),
                self.delta,
                REPLACE_RECORD,
                (*assumptions, *always),
                failure=0.0 if name == "P1" else self.failure,
            )
            for name, cost, assumptions in self.round_costs()
        )

    def round_costs(self) -> list[tuple[str, Cost, tuple[str, ...]]]:
        """Return the bounds that apply: name, rho of a round from its accesses, assumptions."""
        rho, hidden = self.access_rho, self.hidden
        alone: tuple[str, Cost, tuple[str, ...]] = ("P1", lambda accesses: accesses * rho, ())
        if not self.secagg:
            return [alone]
        noise = (
            "the noise of the last step is discrete Gaussian, of a parameter of "
            f"{self.integer_sigma:g} integers or more, and sigma allows for rounding"
            if self.discrete
            else "the noise is Gaussian: rounded to integers by every device it needs another bound"
        )
        sums: tuple[str, ...] = (
            f"the server learns only the sum of a round's models, and {noise}",
            "the learning rate is the same for all steps and devices of a round, without momentum",
            f"the noise of {hidden} of the {self.per_round} devices of a round is in its sum, and "
            "known to nobody else",
        )
        if self.steps > 1 and not self.convex:
            apart = (1 + self.batch_size * (self.steps - 1)) ** 2  # over (2 eta G / gamma)**2
            return [alone, ("P3", lambda a: min(a * rho, apart * rho / hidden), sums)]
        if self.steps > 1:
            smooth = (
                "no step on clipped gradients expands distances: proven for linear models with one "
                "output or two classes, and eta <= 2 / smoothness"
            )
            sums = (*sums, smooth)
        return [alone, ("P2", lambda a: min(a * rho, a**2 * rho / hidden), sums)]

    def worst_rho(self, cost: Cost) -> float:
        """Return the largest total that any record's accesses can cost."""
        rounds, steps, epoch = self.worst_participations, self.steps, self.epoch
        if self.shuffle == "fresh":
            return rounds * cost(-(-steps // epoch))
        if steps <= epoch:
            return min(rounds, -(-rounds * steps // epoch)) * cost(1)
        # Where an epoch and a round begin together, all begins anew.
        period = math.lcm(steps, epoch)
        again, rest = divmod(rounds * steps, period)
        whole = again * _worst_split(period, steps, epoch, cost) if again else 0.0
        return whole + (_worst_split(rest, steps, epoch, cost) if rest else 0.0)

    def _converted(self, name: str, rho: float, delta: float) -> Found:
        """Return the epsilon of a rho, and how it was found."""
        if not self.discrete:
            return zcdp.exact_epsilon(rho, delta), f"{name}, exact Gaussian"
        # Of one device's noise, which is what P1 has, rounding takes more than of a sum of several.
        sigma = self.integer_sigma
        variance = distributed.gaussian_variance(sigma)
        growth = sigma * sigma / variance if variance > 0 else math.inf
        apart = distributed.divergence(self.hidden, sigma) + distributed.smoothing_divergence()
        apart *= self.worst_participations * _MOST_COORDINATES
        exact = distributed.nearly_gaussian_epsilon(rho * growth, apart, delta)
        return exact, f"{name}, exact Gaussian, rounded"


@dataclass(frozen=True)
class DPDSGDAccount(CDPAccount):
    """The account of `dp-dsgd`: `cdp` with one step a round."""

    algorithm: ClassVar[str] = "dp-dsgd"
    claim: ClassVar[str] = "Section VI-C"

    steps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps != 1:
            raise UsageError(f"dp-dsgd takes one step a round, not {self.steps}; leave steps out")

    @property
    def paper_rho(self) -> float:
        """The paper's for its baseline (Section VI-C), 2 C G**2 / (n gamma**2 sigma**2)."""
        return self.worst_participations * self.access_rho / self.devices


def _worst_split(total: int, steps: int, epoch: int, cost: Cost) -> float:
    """Choose a step in every epoch so that the costs of the rounds add up to the most.

    Of the rounds that an epoch reaches, only the first and the last can have accesses of other
    epochs; all between them are alike.
    """
    states = {(-1, 0): 0.0}  # (round, accesses in it) -> most that all accesses cost so far
    for start in range(0, total, epoch):
        first, last = start // steps, (min(start + epoch, total) - 1) // steps
        following: dict[tuple[int, int], float] = {}
        for (latest, count), spent in states.items():
            for chosen in {first, min(first + 1, last), last}:
                now = count + 1 if chosen == latest else 1
                more = cost(now) - (cost(count) if chosen == latest else 0.0)
                key = (chosen, now)
                following[key] = max(following.get(key, 0.0), spent + more)
        states = following
    return max(states.values())
