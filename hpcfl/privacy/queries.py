"""How many queries and replies FedSGD-DPC should have: its bound U(T, b), and where it is least.

In each of T rounds, the queries, b of N devices answer, so that a device replies T b / N times in
all, and its noise grows with that. U(T, b) bounds the squared distance of the model from the best
one, E||theta_T - theta*||**2, after steps of eta_t = 2 / (mu (t + gamma)) with gamma = 2 lambda/mu:

    U(T, b) = ((4 / mu**2) B(T, b) + gamma Y0) / (T + gamma)

B is the sum of what makes a step miss: 2 (N - b) G**2 / (b (N - 1)) as only b devices answer
(Lemma 2), 2 lambda Gamma as they differ (Lemma 3), and the Laplace noise (Proposition 1). All
devices have d / N samples and the same weight, as in the paper's analysis. With Gaussian noise
there is nothing to look for: all devices, and as many rounds as can be, are best (Theorem 4).

The source is "Optimizing the numbers of queries and replies in federated learning with differential
privacy" (the queries-and-replies paper); its equations, propositions and theorems are those meant
here. A loss gap F - F* is at most lambda / 2 times U.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hpcfl.errors import UsageError
from hpcfl.privacy.distributions import Floats
from hpcfl.report import formats
from hpcfl.report.table import Column, Table, label
from hpcfl.values import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class Constants:
    """What the bound depends on besides T, b and the privacy; UsageError if out of range."""

    devices: int  # number N
    dim: int  # number p of parameters
    samples: float  # number d of samples, on all devices together
    gradient_norm: float  # G: no expected squared l2 norm of a gradient is over G**2 (Assumption 5)
    smoothness: float  # lambda (Assumption 3)
    convexity: float  # mu, at most lambda (Assumption 4)
    distance: float  # Y0 = ||theta_0 - theta*||**2
    clip_norm: float  # xi, the l1 norm that gradients are clipped to
    heterogeneity: float = 0.0  # Gamma = F* - sum_i p_i F_i* (Definition 4)

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (0 < value < math.inf or (name == "heterogeneity" and value == 0)):
                raise UsageError(f"{name} is {value}; it must be a number above 0")
        if self.convexity > self.smoothness:
            raise UsageError(
                f"convexity mu is {self.convexity:g} and smoothness lambda {self.smoothness:g}; "
                "lambda is never below mu"
            )

    @classmethod
    def read(cls, path: Path) -> Constants:
        """Return the constants of a JSON file, as in ``{"devices": 10, "dim": 7840, ...}``."""
        try:
            return cls(**json.loads(path.read_text("utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise UsageError(f"{path} cannot be read as constants of the bound: {error}") from None

    @property
    def gamma(self) -> float:
        """Shift of the step size, 2 lambda / mu."""
        return 2 * self.smoothness / self.convexity


@dataclass(frozen=True)
class Optimum:
    """A choice of T and b."""

    rounds: float  # T; 0 if the start is best kept
    per_round: float  # b; 0 if there is no round
    bound: float  # U(T, b), or Y0 without a round


@dataclass(frozen=True)
class Bound:
    """The bound U(T, b) = (C1 / b + C2 b T**2 + C3) / (T + gamma) (Theorem 3)."""

    constants: Constants
    epsilon: float  # privacy budget of a device for all its replies

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < math.inf:
            raise UsageError(f"--epsilon is {self.epsilon}; it must be above 0")

    def scale(self, replies: ArrayLike) -> Floats:
        """Return the scale of the noise on a coordinate, of r replies: 2 xi N r / (d epsilon)."""
        constants = self.constants
        moved = 2 * constants.clip_norm * constants.devices / constants.samples
        return moved * np.asarray(replies, float) / self.epsilon

    def noise(self, per_round: ArrayLike, replies: ArrayLike) -> Floats:
        """Return E||w_t||**2 of the mean of b devices' noise, of r replies (Proposition 1)."""
        return 2 * self.constants.dim * self.scale(replies) ** 2 / np.asarray(per_round)

    def value(self, rounds: ArrayLike, per_round: ArrayLike, *, whole: bool = False) -> Floats:
        """Return U(T, b), of shapes that broadcast. At T = 0 it is above Y0, which is exact there.

        With `whole` it counts the replies of the device that replies most, ceil(T b / N), instead
        of the paper's T b / N, which can be a fraction and then is too little noise for it.
        """
        constants = self.constants
        T, b = np.asarray(rounds, float), np.asarray(per_round, float)
        replies = T * b / constants.devices
        step = self._spread * (constants.devices - b) / b
        step = step + 2 * constants.smoothness * constants.heterogeneity
        step = step + self.noise(b, np.ceil(replies) if whole else replies)
        gamma, mu = constants.gamma, constants.convexity
        return np.asarray((4 / mu**2 * step + gamma * constants.distance) / (T + gamma))

    @property
    def _spread(self) -> float:
        """Lemma 2's factor 2 G**2 / (N - 1); 0 of a single device, which always answers."""
        devices = self.constants.devices
        return 2 * self.constants.gradient_norm**2 / (devices - 1) if devices > 1 else 0.0

    @cached_property
    def coefficients(self) -> tuple[float, float, float]:
        """C1, C2 and C3 of the theorem."""
        constants = self.constants
        factor = 4 / constants.convexity**2
        rest = 2 * constants.smoothness * constants.heterogeneity - self._spread
        return (
            factor * constants.devices * self._spread,
            factor * float(self.noise(1, 1 / constants.devices)),  # that at T = b = 1
            factor * rest + constants.gamma * constants.distance,
        )

    def best_rounds(self, per_round: float) -> float:
        """Return T*(b), where U is least over T >= 0 for a fixed b (eq. 6)."""
        c1, c2, c3 = self.coefficients
        ratio, gamma = (c1 / per_round + c3) / (c2 * per_round), self.constants.gamma
        # sqrt(gamma**2 + ratio) - gamma without cancellation.
        return ratio / (math.sqrt(gamma**2 + ratio) + gamma)

    def joint(self) -> Optimum:
        """Return where U is least over both T and b.

        There b is 1 or N: where U is least over b between them, b = sqrt(C1 / C2) / T, it is
        monotone in T. Or the start is kept, T = 0.
        """
        found = [Optimum(0, 0, self.constants.distance)]
        for b in (1, self.constants.devices):
            T = self.best_rounds(b)
            found.append(Optimum(T, b, float(self.value(T, b))))
        return min(found, key=lambda one: (one.bound, one.rounds))

    def best_whole(self) -> Optimum:
        """Return the best whole T and b, with whole replies; no round, if Y0 is below every U.

        Of all T with the same number of replies, the largest is the best; far beyond T*(b) is none.
        """
        found = [Optimum(0, 0, self.constants.distance)]
        for b in range(1, self.constants.devices + 1):
            turns = self.constants.devices / b
            replies = np.arange(1, min(2 * self.best_rounds(b) / turns, 1e6) + 10)
            rounds = np.floor(replies * turns + 1e-9)
            values = self.value(rounds, b, whole=True)
            least = int(np.argmin(values))
            found.append(Optimum(int(rounds[least]), b, float(values[least])))
        return min(found, key=lambda one: one.bound)


def best(bound: Bound) -> dict[str, Any]:
    """Return everything there is to say of a bound, for JSON."""
    constants, whole = bound.constants, bound.best_whole()
    # The whole number of replies makes the paper's noise the proven one.
    replies = math.ceil(whole.rounds * whole.per_round / constants.devices)
    return {
        "algorithm": "fedsgd-dpc",
        "epsilon": bound.epsilon,
        "constants": asdict(constants) | {"gamma": constants.gamma},
        "joint": asdict(bound.joint()),
        "whole_replies": asdict(whole) | {"replies": replies, "noise": float(bound.scale(replies))},
    }


def render(found: Mapping[str, Any]) -> str:
    """Return what `best` found as text."""
    values = ", ".join(f"{name} {value:.6g}" for name, value in found["constants"].items())
    whole = found["whole_replies"]
    named = {"of real numbers": found["joint"], "of whole numbers": whole}
    names = ("T", "b", "U")
    columns = [label("optimum", ""), *(Column(one, one, format=formats.number) for one in names)]
    rows = [[name, one["rounds"], one["per_round"], one["bound"]] for name, one in named.items()]
    last = "no training has a smaller bound than the start, at this epsilon"
    if whole["rounds"]:
        scale = formats.rounded_up(whole["noise"], 4)
        last = f"scale of the noise on a coordinate, of {whole['replies']} replies: {scale:g}"
    return f"fedsgd-dpc, Laplace noise\n{values}\n\n{Table(columns, rows).text()}\n\n{last}"
