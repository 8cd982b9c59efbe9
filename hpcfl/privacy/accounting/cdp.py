"""Local noisy SGD under secure aggregation (Hu, Guo and Gong, 2021, zCDP-FL): `cdp`, `dp-dsgd`.

In a round, r of n devices each take tau steps theta <- theta - eta (g + N(0, sigma**2 I)), g the
mean over gamma samples of gradients clipped to the norm G, and the server learns their models
(without secure aggregation) or only the sum of them (with it). One device has m samples, and takes
part in C rounds. Neighbouring datasets differ in one record of one device, replaced.

An access of the record costs rho_acc = (2 G / gamma)**2 / (2 sigma**2) = 2 G**2 / (gamma sigma)**2.

The paper (Theorem 1) charges a record C tau gamma / m accesses and divides by r under secure
aggregation. What is proven of that, for a record with a accesses in a round (0 if a = 0), where r_h
of the devices do not tell the server their noise:

- **P1**, without credit for secure aggregation, any loss: a rho_acc. Noisy gradients of one device
  compose; the model is computed from them.
- **P2**, secure aggregation, and tau = 1 or steps that never expand distances, clipping included:
  min(a rho_acc, a**2 rho_acc / r_h). Fix all noise but the last step's: the
  models' sums are then Gaussian with variance r_h eta**2 sigma**2 and their means at most
  2 a eta G / gamma apart. Rényi and hockey-stick divergences are jointly convex, so averaging over
  the fixed noise only lowers them. Steps on clipped gradients are known not to expand distances for
  linear models of two classes, and eta <= 2 / smoothness: a sample's gradient has one direction
  there, and clipped it is still that of a convex function. A convex loss is not enough: clipping
  turns the gradients of a softmax regression with three classes into those of no function, and some
  of its steps expand distances however small eta is. So do those of ReLU networks.
- **P3**, secure aggregation, any loss: min(a rho_acc, 2 G**2 (1/gamma + tau - 1)**2 /
  (r_h sigma**2)). As P2, but clipping alone keeps the models from parting by more than 2 eta G in
  each step after the access.
- **P4**, secure aggregation, steps with a certified Lipschitz constant l >= 1:
  min(a rho_acc, a**2 l**(2 (tau - 1)) rho_acc / r_h). As P2, each difference grown by l in every
  later step.

The accesses are integers, and how they fall into rounds depends on how the data are shuffled
(:data:`SHUFFLES`). All bounds are rho of Gaussians that dominate, so they are converted exactly.
Discrete noise in the last step is that of rounded Gaussians, a little narrower
(:mod:`~hpcfl.privacy.accounting.distributed`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from hpcfl.errors import UsageError
from hpcfl.privacy.accounting import distributed, sampling, zcdp
from hpcfl.privacy.accounting.guarantee import (
    NOTHING_LEFT,
    REPLACE_RECORD,
    Guarantee,
    Schedule,
    check_delta,
    failure_clauses,
    less_failures,
)
from hpcfl.report.formats import counted

#: How a device goes through its data; each epoch is a partition of it into batches of gamma.
SHUFFLES = {
    "fresh": "every round starts a new epoch on newly shuffled data",
    "continuing": "epochs continue across rounds, and a reshuffle within a round puts the records "
    "already used in it behind the round's end",
    "straddling": "epochs continue across rounds, and a record may be last in one and first in the "
    "next within a round",
}


# More coordinates than models have: what a sum of discrete Gaussians lacks is charged for each.
_MOST_COORDINATES = 10**12


@dataclass(frozen=True)
class Settings(Schedule):
    """How `cdp` or `dp-dsgd` runs: of n `devices`, r `per_round`, in T `rounds`.

    `sigma` is the standard deviation of the noise on every coordinate of a mini-batch's mean
    gradient.
    """

    claim: ClassVar[str] = "Theorem 1"

    # Mini-batch size gamma, which a step's sum of gradients is divided by; a device with fewer
    # samples has all of them in every batch.
    batch_size: int
    samples: int  # number m of records on a device
    steps: int = 1  # local steps tau in a round
    clip_norm: float = 1.0  # norm G to which every sample's gradient is clipped
    delta: float = 1e-5
    secagg: bool = True  # whether the server learns only sums
    # Whether no step on clipped gradients expands distances: a linear model with one output or two
    # classes, and eta <= 2 / smoothness.
    convex: bool = False
    lipschitz: float | None = None  # certified, of a local step as a map of the model; at least 1
    shuffle: str = "fresh"  # one of `SHUFFLES`
    # Whether shuffles are uniform and known to the device only, which fresh ones gain from.
    secret_order: bool = False
    colluding: int = 0  # devices that tell the server their noise
    # Whether the noise of the last step is a sum of discrete Gaussians, on integers; and a device's
    # parameter, in integers, at the least. The exact conversion takes 4 off its square.
    discrete: bool = False
    integer_sigma: float = 8.0
    participations: int | None = None  # rounds C of the device that takes part most; else by turns
    failure: float = 0.0  # probability, in a round, that what is assumed of its sum does not hold

    def __post_init__(self) -> None:
        super().__post_init__()
        counts, naturals = ("batch_size", "samples", "steps"), ("colluding", "participations")
        self.check(("clip_norm", "integer_sigma"), counts, naturals, shuffle=SHUFFLES)
        check_delta(self.delta)
        if self.colluding >= self.devices:
            raise UsageError(
                f"{self.colluding} of {self.devices} devices collude; at least one must be honest"
            )
        if self.lipschitz is not None and not 1 <= self.lipschitz < math.inf:
            raise UsageError(
                f"the step's Lipschitz constant is {self.lipschitz}; it must be at least 1 "
                "and finite; declare the loss convex where steps never expand distances"
            )
        if self.secret_order and self.shuffle != "fresh":
            raise UsageError(
                f"secret shuffles amplify privacy only where every round has a fresh one, not "
                f"with {self.shuffle} epochs"
            )
        self.check_participations(self.participations)

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


@dataclass(frozen=True)
class OneStep(Settings):
    """How `dp-dsgd` runs: `cdp` with one step a round."""

    claim: ClassVar[str] = "Section VI-C"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps != 1:
            raise UsageError(f"dp-dsgd takes one step a round, not {self.steps}; leave steps out")

    @property
    def paper_rho(self) -> float:
        """The paper's for its baseline (Section VI-C), 2 C G**2 / (n gamma**2 sigma**2)."""
        return self.worst_participations * self.access_rho / self.devices


def paper(settings: Settings) -> Guarantee:
    """Return the epsilon that the paper claims."""
    epsilon = zcdp.bun_steinke_epsilon(settings.paper_rho, settings.delta)
    return _paper(settings, epsilon, "Bun-Steinke")


def tight(settings: Settings) -> Guarantee:
    """Return the epsilon of the paper's rho, converted exactly."""
    epsilon = zcdp.exact_epsilon(settings.paper_rho, settings.delta)
    return _paper(settings, epsilon, "exact Gaussian")


def _paper(settings: Settings, epsilon: float, conversion: str) -> Guarantee:
    return Guarantee(
        epsilon,
        settings.delta,
        REPLACE_RECORD,
        (
            "accesses of a record count as fractions, and all noise of a round protects it",
            f"a device takes part in at most {counted(settings.worst_participations, 'round')}",
        ),
        f"{settings.claim}, {conversion}, rho = {settings.paper_rho:.4g}",
    )


def bounds(settings: Settings) -> tuple[Guarantee, ...]:
    """Return everything that is proven under the declared settings, P1 first.

    P2, P3 and P4 need secure aggregation; P2 also one step or steps that never expand distances, P4
    a Lipschitz constant. With secret fresh shuffles, every one of them is followed by its amplified
    version.
    """
    found = []
    for name, cost, assumptions in _round_costs(settings):
        rounds, failure = settings.rounds, 0.0 if name == "P1" else settings.failure
        left = less_failures(settings.delta, rounds, failure)
        basis = (
            *assumptions,
            f"a device takes part in at most {settings.worst_participations} of the {rounds} "
            "rounds",
            f"the gradient of every sample is clipped to {settings.clip_norm:g}, and their sum "
            f"divided by {settings.batch_size} in every batch",
            *failure_clauses(rounds, failure),
            SHUFFLES[settings.shuffle],
        )
        ways = [(_converted(settings, worst_rho(settings, cost), left), basis)]
        if settings.secret_order and settings.steps <= settings.epoch:
            secret = "every shuffle is uniform, and known to nobody but the device"
            ways.append((_amplified(settings, cost, left), (*basis, secret)))
        found += [
            Guarantee(epsilon, settings.delta, REPLACE_RECORD, needs, f"{name}, {method}")
            for (epsilon, method), needs in ways
        ]
    return tuple(found)


def _converted(settings: Settings, rho: float, delta: float) -> tuple[float, str]:
    """Return the epsilon of a rho, and how it was found."""
    if not delta:
        return math.inf, NOTHING_LEFT
    if not settings.discrete:
        return zcdp.exact_epsilon(rho, delta), "exact Gaussian"
    wider, apart = _rounded(settings)
    exact = distributed.nearly_gaussian_epsilon(rho * wider, apart, delta)
    return min((zcdp.rdp_epsilon(rho, delta), "RDP"), (exact, "exact Gaussian, rounded"))


def _rounded(settings: Settings) -> tuple[float, float]:
    """Return by what rho grows if integers are rounded Gaussians, and how far from these they are.

    Of one device's noise, which is what P1 has, rounding takes more than of a sum of several.
    """
    sigma = settings.integer_sigma
    variance = distributed.gaussian_variance(sigma)
    apart = distributed.divergence(settings.hidden, sigma) + distributed.smoothing_divergence()
    growth = sigma * sigma / variance if variance > 0 else math.inf
    return growth, settings.worst_participations * _MOST_COORDINATES * apart


def worst_rho(settings: Settings, cost: Callable[[int], float]) -> float:
    """Return the largest total that any record's accesses can cost.

    `cost` is from the number of accesses in a round, at least 1, to their rho.
    """
    rounds, steps, epoch = settings.worst_participations, settings.steps, settings.epoch
    if settings.shuffle == "fresh":
        return rounds * cost(-(-steps // epoch))
    accesses = -(-rounds * steps // epoch)
    if settings.shuffle == "continuing" and steps <= epoch:
        return min(rounds, accesses) * cost(1)
    # Where an epoch and a round begin together, all begins anew.
    again, rest = divmod(rounds * steps, math.lcm(steps, epoch))
    whole = again * _worst_split(math.lcm(steps, epoch), steps, epoch, cost) if again else 0.0
    return whole + (_worst_split(rest, steps, epoch, cost) if rest else 0.0)


def _worst_split(total: int, steps: int, epoch: int, cost: Callable[[int], float]) -> float:
    """Choose a step in every epoch so that the costs of the rounds add up to the most.

    Of the rounds that an epoch reaches, only the first and the last can have accesses of other
    epochs; all between them are alike. States are the accesses in the latest round chosen.
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


def _round_costs(
    settings: Settings,
) -> list[tuple[str, Callable[[int], float], tuple[str, ...]]]:
    """Return the bounds that apply: name, rho of a round from its accesses, assumptions."""
    rho, hidden, steps = settings.access_rho, settings.hidden, settings.steps
    apart = (1 + settings.batch_size * (steps - 1)) ** 2  # over (2 eta G / gamma)**2

    def summed(moved: Callable[[int], float]) -> Callable[[int], float]:
        return lambda accesses: min(accesses * rho, moved(accesses) * rho / hidden)

    found: list[tuple[str, Callable[[int], float], tuple[str, ...]]]
    found = [("P1", lambda accesses: accesses * rho, ())]
    if not settings.secagg:
        return found
    kind = (
        "the noise of the last step is discrete Gaussian, of a parameter of "
        f"{settings.integer_sigma:g} integers or more, and sigma allows for rounding"
        if settings.discrete
        else "the noise is Gaussian: rounded to integers by every device it needs another bound"
    )
    sums = (
        f"the server learns only the sum of a round's models, and {kind}",
        "the learning rate is the same for all steps and devices of a round, without momentum",
        f"the noise of {hidden} of the {settings.per_round} devices of a round is in its sum, and "
        "known to nobody else",
    )
    if steps == 1:
        found.append(("P2", summed(lambda accesses: accesses**2), sums))
    elif settings.convex:
        smooth = (
            "no step on clipped gradients expands distances: proven for linear models with one "
            "output or two classes, and eta <= 2 / smoothness"
        )
        found.append(("P2", summed(lambda accesses: accesses**2), (*sums, smooth)))
    else:
        found.append(("P3", summed(lambda accesses: apart), sums))
    if settings.lipschitz is not None and steps > 1:
        exponent = 2 * (steps - 1) * math.log(settings.lipschitz)
        growth = math.exp(exponent) if exponent < 700 else math.inf
        certified = f"a local step has the Lipschitz constant {settings.lipschitz:g}"
        found.append(("P4", summed(lambda accesses: accesses**2 * growth), (*sums, certified)))
    return found


def _amplified(settings: Settings, cost: Callable[[int], float], delta: float) -> tuple[float, str]:
    """Return the epsilon with credit for fresh secret shuffles, and how it was found.

    A round uses a sample of tau gamma records, without replacement. Given the sample, a round's
    release is dominated by a Gaussian of rho = cost(1).
    """
    if not delta:
        return math.inf, NOTHING_LEFT
    growth, apart = _rounded(settings) if settings.discrete else (1.0, 0.0)
    if math.isinf(growth) or not apart < 1:
        return math.inf, "too few integers for amplification"
    epsilon, method = sampling.fixed_size_gaussian(
        settings.samples,
        min(settings.steps * settings.batch_size, settings.samples),
        zcdp.gaussian_multiplier(cost(1) * growth),
        settings.worst_participations,
        delta * math.exp(-apart),
    )
    return epsilon + 2 * apart, method
