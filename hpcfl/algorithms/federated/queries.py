"""How many queries and replies FedSGD-DPC should have: its bound U(T, b), and where it is least.

In each of T rounds, the queries, b of N devices answer, so that a device replies T b / N times in
all, and its noise grows with that. U(T, b) bounds the squared distance of the model from the best
one, E||theta_T - theta*||**2, after steps of eta_t = 2 / (mu (t + gamma)) with gamma = 2 lambda/mu:

    U(T, b) = ((4 / mu**2) B(T, b) + gamma Y0) / (T + gamma)

B is the sum of what makes a step miss: 2 (N - b) G**2 / (b (N - 1)) as only b devices answer
(Lemma 2), Lambda**2 / (q d) as they use a part of their samples (Lemma 4), 2 lambda Gamma as they
differ (Lemma 3), and the noise (Propositions 1 and 2). All devices have d / N samples and the same
weight, as in the paper's analysis.

The source is "Optimizing the numbers of queries and replies in federated learning with differential
privacy" (the queries-and-replies paper); its equations, propositions and theorems are those meant
here. A loss gap F - F* is at most lambda / 2 times U.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hpcfl.errors import UsageError, no_such

# More numbers of rounds than this are not tried one by one.
MOST_CANDIDATES = 10**6


@dataclass(frozen=True)
class Constants:
    """What the bound depends on besides T, b and the privacy; UsageError if out of range."""

    devices: int  # number N of devices
    dim: int  # number p of parameters
    samples: float  # number d of samples on all devices together
    # G, in l2: no expected squared norm of a device's gradient is over G**2 (Assumption 5).
    gradient_norm: float
    smoothness: float  # lambda (Assumption 3)
    convexity: float  # mu, above 0 and at most lambda (Assumption 4)
    heterogeneity: float  # Gamma = F* - sum_i p_i F_i* (Definition 4)
    distance: float  # Y0 = ||theta_0 - theta*||**2, above 0
    # xi1 and xi2, the norms to which the gradient of a sample is clipped; Laplace noise needs the
    # first, Gaussian noise the second.
    l1_clip: float | None = None
    l2_clip: float | None = None
    # Lambda**2, the mean over the devices of the variance of a sample's gradient (Assumption 6);
    # only Gaussian noise has to do with it.
    variance: float = 0.0

    def __post_init__(self) -> None:
        for name in ("devices", "dim"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"{name} is {value!r}; it must be a whole number from 1")
        for field in fields(self)[2:]:
            value, from_zero = (
                getattr(self, field.name),
                field.name in ("heterogeneity", "variance"),
            )
            if value is None and field.name in ("l1_clip", "l2_clip"):
                continue
            if not _is_finite(value) or value < 0 or (value == 0 and not from_zero):
                wanted = "0 or more" if from_zero else "above 0"
                raise UsageError(f"{field.name} is {value!r}; it must be {wanted}")
        if self.convexity > self.smoothness:
            raise UsageError(
                f"convexity mu is {self.convexity:g} and smoothness lambda {self.smoothness:g}; "
                "lambda is never below mu"
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Constants:
        """Return constants by name; UsageError if one is missing, unknown or out of range."""
        known = {field.name for field in fields(cls)}
        strange = sorted(set(values) - known)
        if strange:
            raise no_such("constant", strange[0], NAMES)
        missing = [name for name in REQUIRED if name not in values]
        if missing:
            raise UsageError(f"the bound needs {', '.join(missing)}: give all constants")
        return cls(**values)

    def as_dict(self) -> dict[str, Any]:
        """Return all constants by name."""
        return asdict(self)

    @property
    def gamma(self) -> float:
        """Shift of the step size, 2 lambda / mu."""
        return 2 * self.smoothness / self.convexity

    @property
    def sampling(self) -> float:
        """Lemma 2's factor 2 G**2 / (N - 1); 0 of a single device, which always answers."""
        return 2 * self.gradient_norm**2 / (self.devices - 1) if self.devices > 1 else 0.0

    @property
    def difference(self) -> float:
        """Lemma 3's 2 lambda Gamma, as devices differ."""
        return 2 * self.smoothness * self.heterogeneity


NAMES = tuple(field.name for field in fields(Constants))
REQUIRED = tuple(field.name for field in fields(Constants) if field.default is MISSING)


def _is_finite(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value)


def laplace_noise(
    dim: int,
    sensitivities: ArrayLike,
    epsilons: ArrayLike,
    per_round: ArrayLike,
    replies: ArrayLike,
) -> NDArray[np.float64]:
    """Return E||w_t||**2 of the mean of b devices' Laplace noise (Theorem 1, Proposition 1).

    A device, which replies r times, draws every coordinate from Lap(0, Delta1_i r / eps_i), where
    Delta1_i is the l1 sensitivity of its mean gradient and eps_i its budget for all its replies:
    one for all devices, or one each. With r = T b / N this is Proposition 1, 2 p b T**2 / N**3
    times the sum of Delta1_i**2 / eps_i**2.
    """
    scale = np.mean((np.asarray(sensitivities, float) / np.asarray(epsilons, float)) ** 2)
    return np.asarray(2 * dim * scale * np.square(replies, dtype=float) / np.asarray(per_round))


def gaussian_noise(
    dim: int,
    sensitivities: ArrayLike,
    epsilons: ArrayLike,
    per_round: ArrayLike,
    replies: ArrayLike,
    *,
    delta: float,
    fraction: float = 1.0,
    c2: float = 1.0,
) -> NDArray[np.float64]:
    """Return E||w_t||**2 of the mean of b devices' Gaussian noise (Theorem 2, Proposition 2).

    A device draws every coordinate from N(0, sigma_i**2), where sigma_i is Delta2_i c2 q sqrt(r
    ln(1 / delta)) / eps_i, with the l2 sensitivity Delta2_i of the mean gradient of a batch, which
    has the part q of the samples. With r = T b / N it does not depend on b.

    Theorem 2 holds for an unknown c2 and for small eps_i only: noise for an actual run is for an
    accountant to find, and is mostly larger.
    """
    scale = np.mean((np.asarray(sensitivities, float) / np.asarray(epsilons, float)) ** 2)
    each = scale * (c2 * fraction) ** 2 * -math.log(delta) * np.asarray(replies, float)
    return np.asarray(dim * each / np.asarray(per_round))


@dataclass(frozen=True)
class Optimum:
    """A choice of T and b."""

    rounds: float  # T; infinite if more rounds are always better, 0 if the start is best kept
    per_round: float  # b; 0 if there is no round
    bound: float  # U(T, b), or Y0 without a round


class Bound(ABC):
    """The bound U(T, b) for one kind of noise.

    The devices' budgets eps_i are one for all, or one each: UsageError if not, or if a value is out
    of range.
    """

    mechanism: str

    def __init__(self, constants: Constants, epsilons: ArrayLike) -> None:
        budgets = np.atleast_1d(np.asarray(epsilons, float))
        if budgets.shape not in ((1,), (constants.devices,)):
            raise UsageError(
                f"there are {budgets.size} epsilons for {constants.devices} devices: give one for "
                "all, or one each"
            )
        if not np.all(np.isfinite(budgets) & (budgets > 0)):
            raise UsageError("every epsilon must be above 0")
        self.constants = constants
        self.epsilons = np.broadcast_to(budgets, constants.devices)

    @abstractmethod
    def noise(self, per_round: ArrayLike, replies: ArrayLike) -> NDArray[np.float64]:
        """Return E||w_t||**2 for b devices in a round and r replies of a device."""

    @abstractmethod
    def best_rounds(self, per_round: float) -> float:
        """Return T*(b), where U is least over T >= 0 for a fixed b; it may be infinite."""

    @abstractmethod
    def best_per_round(self, rounds: float) -> float:
        """Return b*(T), where U is least over 1 <= b <= N for a fixed T."""

    @property
    @abstractmethod
    def _ends(self) -> tuple[int, ...]:
        """The b at which the least U over both T and b may be."""

    @property
    @abstractmethod
    def batch_variance(self) -> float:
        """What the choice of a batch adds to the variance of a step (Lemma 4)."""

    def value(
        self, rounds: ArrayLike, per_round: ArrayLike, *, whole: bool = False
    ) -> NDArray[np.float64]:
        """Return U(T, b), of shapes that broadcast. At T = 0 it is above Y0, which is exact there.

        With `whole` it counts the replies of the device that replies most, ceil(T b / N), instead
        of the paper's T b / N, which can be a fraction and then is too little noise for it.
        """
        T, b = np.asarray(rounds, float), np.asarray(per_round, float)
        replies = T * b / self.constants.devices
        return self.with_noise(T, b, self.noise(b, np.ceil(replies) if whole else replies))

    def with_noise(
        self, rounds: ArrayLike, per_round: ArrayLike, noise: ArrayLike
    ) -> NDArray[np.float64]:
        """Return U(T, b) for another E||w_t||**2 than the paper's, say an accountant's."""
        T = np.asarray(rounds, float)
        step = self._step_variance(per_round) + np.asarray(noise)
        gamma, mu = self.constants.gamma, self.constants.convexity
        return np.asarray((4 / mu**2 * step + gamma * self.constants.distance) / (T + gamma))

    def solutions(self) -> dict[str, Optimum]:
        """Return the paper's candidates for the least U over both T and b, by name.

        With Laplace noise, S1 has b = 1 and S2 has b = N: where U is least over b between them,
        b = sqrt(C1 / C2) / T, it is monotone in T. With Gaussian noise, S1 has b = N. The last one
        is to keep the start, T = 0, where the distance is Y0 exactly. A solution that does not
        exist is left out.
        """
        found = [self._at_best_rounds(b) for b in self._ends]
        found.append(Optimum(0, 0, self.constants.distance))
        # Of b = 1 or N without a round there is only the bound, and that is no better than Y0.
        return {
            f"S{number}": one
            for number, one in enumerate(found, 1)
            if one.rounds or not one.per_round
        }

    def joint(self) -> Optimum:
        """Return the least of `solutions`; of equal ones, that with the fewest replies."""
        found = self.solutions().values()
        return min(found, key=lambda one: (one.bound, one.rounds, one.per_round))

    def best_whole_rounds(
        self, per_round: int, most: int | None = None, *, whole: bool = False
    ) -> Optimum:
        """Return the best whole T from 1 to `most` for b devices in a round.

        `whole` is that of `value`. UsageError if T*(b) is infinite and `most` is not given.
        """
        best = self.best_rounds(per_round)
        if most is None and not math.isfinite(best):
            raise UsageError("the more rounds, the smaller the bound: give a largest number")
        last = math.inf if most is None else most
        around = min(max(best, 1.0), last)
        near = np.unique([max(1, math.floor(around)), min(last, math.ceil(around))])
        if whole:
            near = self._candidates(per_round, near, last)
        values = self.value(near, per_round, whole=whole)
        least = int(np.argmin(values))
        return Optimum(int(near[least]), per_round, float(values[least]))

    def integer(self, most: int | None = None, *, whole: bool = False) -> Optimum:
        """Return the best whole T and b of all, by trying every b from 1 to N.

        Without a round, if Y0 is less than every U; see `best_whole_rounds`.
        """
        tried = [
            self.best_whole_rounds(b, most, whole=whole)
            for b in range(1, self.constants.devices + 1)
        ]
        start = Optimum(0, 0, self.constants.distance)
        return min([start, *tried], key=lambda one: one.bound)

    def _step_variance(self, per_round: ArrayLike) -> NDArray[np.float64]:
        """Return B(T, b) without the noise."""
        constants, b = self.constants, np.asarray(per_round, float)
        unsampled = constants.sampling * (constants.devices - b) / b
        return np.asarray(unsampled + self.batch_variance + constants.difference)

    def _at_best_rounds(self, per_round: float) -> Optimum:
        T = self.best_rounds(per_round)
        return Optimum(T, per_round, self._limit(T, per_round))

    def _limit(self, rounds: float, per_round: float) -> float:
        return float(self.value(rounds, per_round))

    def _candidates(
        self, per_round: int, near: NDArray[np.float64], last: float
    ) -> NDArray[np.float64]:
        """Return all T that may be better than those near T*(b) once replies are whole numbers.

        U with whole replies is never below U itself, so that nothing can be better where U is above
        what is found near T*(b); U is convex, so that the rest is an interval. Where it is very
        long, only the last rounds before the devices have to reply once more are looked at.
        """
        devices = self.constants.devices
        replies = np.floor(near[0] * per_round / devices) + np.arange(2)
        turns = np.floor(replies * devices / per_round + 1e-9)
        known = np.unique([*near, *turns[(turns >= 1) & (turns <= last)]])
        reach = float(self.value(known, per_round, whole=True).min())
        low, high, step = known[0], known[-1], 1.0
        while low > 1 and self.value(low, per_round) <= reach:
            low, step = max(1.0, low - step), 2 * step
        step = 1.0
        while high < last and self.value(high, per_round) <= reach:
            high, step = min(float(last), high + step), 2 * step
        if high - low > MOST_CANDIDATES:
            return known
        return np.arange(low, high + 1)


class LaplaceBound(Bound):
    """Theorem 3: U = (C1 / b + C2 b T**2 + C3) / (T + gamma); needs the constant l1_clip."""

    mechanism = "laplace"
    batch_variance = 0.0  # all samples are in every gradient

    def __init__(self, constants: Constants, epsilons: ArrayLike) -> None:
        super().__init__(constants, epsilons)
        if constants.l1_clip is None:
            raise UsageError(
                "Laplace noise needs the l1 norm l1_clip that gradients are clipped to"
            )
        self.sensitivity = 2 * constants.l1_clip * constants.devices / constants.samples

    def noise(self, per_round: ArrayLike, replies: ArrayLike) -> NDArray[np.float64]:
        return laplace_noise(
            self.constants.dim, self.sensitivity, self.epsilons, per_round, replies
        )

    @cached_property
    def coefficients(self) -> tuple[float, float, float]:
        """C1, C2 and C3."""
        constants = self.constants
        factor, spread = 4 / constants.convexity**2, constants.sampling
        # The noise is that at T = b = 1 times b T**2.
        noise = float(self.noise(1, 1 / constants.devices))
        rest = constants.difference - spread
        c3 = constants.gamma * constants.distance + factor * rest
        return factor * constants.devices * spread, factor * noise, c3

    @property
    def _ends(self) -> tuple[int, ...]:
        return (1, self.constants.devices)

    def best_rounds(self, per_round: float) -> float:
        """Return T*(b), eq. (6)."""
        c1, c2, c3 = self.coefficients
        ratio, gamma = (c1 / per_round + c3) / (c2 * per_round), self.constants.gamma
        # sqrt(gamma**2 + ratio) - gamma without cancellation.
        return ratio / (math.sqrt(gamma**2 + ratio) + gamma)

    def best_per_round(self, rounds: float) -> float:
        """Return b*(T) = sqrt(C1 / C2) / T, within 1 and N."""
        c1, c2, _ = self.coefficients
        if rounds <= 0:
            return float(self.constants.devices)
        return float(np.clip(math.sqrt(c1 / c2) / rounds, 1, self.constants.devices))


class GaussianBound(Bound):
    """Theorem 4: U = (E1 / b + E2) / (T + gamma) + E3; needs the constant l2_clip.

    `delta` is that of the guarantee, `fraction` the part q of a device's samples in a batch, `c2`
    the unknown constant of Theorem 2. With `replace`, neighbouring data differ in a record's value,
    which moves the mean gradient of a batch by at most 2 xi2 N / (q d); else in its presence, which
    moves it half as far.
    """

    mechanism = "gaussian"

    def __init__(
        self,
        constants: Constants,
        epsilons: ArrayLike,
        delta: float = 1e-5,
        fraction: float = 1.0,
        c2: float = 1.0,
        replace: bool = True,
    ) -> None:
        super().__init__(constants, epsilons)
        if constants.l2_clip is None:
            raise UsageError(
                "Gaussian noise needs the l2 norm l2_clip that gradients are clipped to"
            )
        if not 0 < delta < 1:
            raise UsageError(f"delta is {delta}; it must be above 0 and below 1")
        if not 0 < fraction <= 1:
            raise UsageError(f"the fraction is {fraction}; it must be above 0, at most 1")
        if not 0 < c2 < math.inf:
            raise UsageError(f"c2 is {c2}; it must be above 0")
        self.delta, self.fraction, self.c2 = delta, fraction, c2
        batch = fraction * constants.samples / constants.devices
        self.sensitivity = (2 if replace else 1) * constants.l2_clip / batch

    def noise(self, per_round: ArrayLike, replies: ArrayLike) -> NDArray[np.float64]:
        return gaussian_noise(
            self.constants.dim,
            self.sensitivity,
            self.epsilons,
            per_round,
            replies,
            delta=self.delta,
            fraction=self.fraction,
            c2=self.c2,
        )

    @property
    def batch_variance(self) -> float:
        return self.constants.variance / (self.fraction * self.constants.samples)

    @cached_property
    def coefficients(self) -> tuple[float, float, float]:
        """E1, E2 and E3."""
        constants = self.constants
        factor, spread = 4 / constants.convexity**2, constants.sampling
        # The noise is that of a round times T, whatever b is.
        e3 = factor * float(self.noise(1, 1 / constants.devices))
        rest = self.batch_variance + constants.difference - spread
        e2 = factor * rest + constants.gamma * (constants.distance - e3)
        return factor * constants.devices * spread, e2, e3

    @property
    def _ends(self) -> tuple[int, ...]:
        return (self.constants.devices,)

    def best_rounds(self, per_round: float) -> float:
        """Return infinity, where U falls to E3, or 0."""
        e1, e2, _ = self.coefficients
        return math.inf if e1 / per_round + e2 > 0 else 0.0

    def best_per_round(self, rounds: float) -> float:
        """Return N: the noise does not depend on b, and all else is the less the larger b is."""
        return float(self.constants.devices)

    def _limit(self, rounds: float, per_round: float) -> float:
        return self.coefficients[2] if math.isinf(rounds) else super()._limit(rounds, per_round)
