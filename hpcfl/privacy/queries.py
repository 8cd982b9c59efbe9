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
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hpcfl.errors import UsageError, no_such
from hpcfl.privacy.distributions import Floats
from hpcfl.report import formats
from hpcfl.report.table import Column, Table, label

MOST_DEVICES = 10_000
"""Every number b of them is tried."""


@dataclass(frozen=True)
class Constants:
    """What the bound depends on besides T, b and the privacy; UsageError if out of range."""

    devices: int  # number N of devices
    dim: int  # number p of parameters
    samples: float  # number d of samples on all devices together
    # G, in l2: no expected squared norm of a device's gradient is over G**2 (Assumption 5).
    gradient_norm: float
    smoothness: float  # lambda (Assumption 3)
    convexity: float  # mu, at most lambda (Assumption 4)
    distance: float  # Y0 = ||theta_0 - theta*||**2
    clip_norm: float  # xi, the l1 norm to which the gradient of a sample is clipped
    heterogeneity: float = 0.0  # Gamma = F* - sum_i p_i F_i* (Definition 4)

    def __post_init__(self) -> None:
        for field in fields(self):
            value, from_zero = getattr(self, field.name), field.default is not MISSING
            number = isinstance(value, int | float) and math.isfinite(value)
            if not number or value < 0 or (value == 0 and not from_zero):
                wanted = "0 or more" if from_zero else "above 0"
                raise UsageError(f"{field.name} is {value!r}; it must be {wanted}")
        if self.convexity > self.smoothness:
            raise UsageError(
                f"convexity mu is {self.convexity:g} and smoothness lambda {self.smoothness:g}; "
                "lambda is never below mu"
            )
        if self.devices != int(self.devices) or self.devices > MOST_DEVICES:
            raise UsageError(f"devices is {self.devices}; it must be 1 to {MOST_DEVICES}")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Constants:
        """Return constants by name; UsageError if one is missing, unknown or out of range."""
        names = {field.name: field.default is MISSING for field in fields(cls)}
        for name in values:
            if name not in names:
                raise no_such("constant", name, list(names))
        missing = [name for name, needed in names.items() if needed and name not in values]
        if missing:
            raise UsageError(f"the bound needs {', '.join(missing)}: give all constants")
        return cls(**values)

    @classmethod
    def read(cls, path: Path) -> Constants:
        """Return the constants of a JSON file, as in ``{"devices": 10, "dim": 7840, ...}``."""
        try:
            found = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot read {path}: {error}") from None
        if not isinstance(found, dict):
            raise UsageError(f"{path} must have constants by name, as in {{'dim': 7840}}")
        return cls.from_dict(found)

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


class Bound:
    """The bound U(T, b) = (C1 / b + C2 b T**2 + C3) / (T + gamma) (Theorem 3).

    Parameters
    ----------
    constants : Constants
    epsilons : float or sequence of float
        Privacy budget of a device for all its replies: one for all, or one each.
    """

    def __init__(self, constants: Constants, epsilons: ArrayLike) -> None:
        budgets = np.atleast_1d(np.asarray(epsilons, float))
        if budgets.size not in (1, constants.devices):
            raise UsageError(
                f"there are {budgets.size} epsilons for {constants.devices} devices: give one for "
                "all, or one each"
            )
        if not np.all(np.isfinite(budgets) & (budgets > 0)):
            raise UsageError("every epsilon must be above 0")
        self.constants, self.epsilons = constants, budgets

    def noise(self, per_round: ArrayLike, replies: ArrayLike) -> Floats:
        """Return E||w_t||**2 of the mean of b devices' noise, of r replies (Proposition 1).

        The noise has the scale 2 xi N r / (d epsilon) on every coordinate.
        """
        constants = self.constants
        moved = 2 * constants.clip_norm * constants.devices / constants.samples
        scales = np.mean((moved / self.epsilons) ** 2)
        squares = np.square(np.asarray(replies, float))
        return np.asarray(2 * constants.dim * scales * squares / np.asarray(per_round))

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

    def best_per_round(self, rounds: float) -> float:
        """Return b*(T) = sqrt(C1 / C2) / T, where U is least over 1 <= b <= N for a fixed T."""
        c1, c2, _ = self.coefficients
        return float(np.clip(math.sqrt(c1 / c2) / rounds, 1, self.constants.devices))

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

    def best_whole_rounds(self, per_round: int) -> Optimum:
        """Return the best whole T from 1 on for b devices in a round, with whole replies.

        Of all T with the same number of replies, the largest is the best. U with whole replies is
        never below U, which is convex: nothing is better far beyond T*(b).
        """
        turns = self.constants.devices / per_round
        replies = np.arange(1, min(2 * self.best_rounds(per_round) / turns, 1e6) + 10)
        rounds = np.floor(replies * turns + 1e-9)
        values = self.value(rounds, per_round, whole=True)
        least = int(np.argmin(values))
        return Optimum(int(rounds[least]), per_round, float(values[least]))

    def best_whole(self) -> Optimum:
        """Return the best whole T and b of all; without a round, if Y0 is less than every U."""
        tried = [self.best_whole_rounds(b) for b in range(1, self.constants.devices + 1)]
        start = Optimum(0, 0, self.constants.distance)
        return min([start, *tried], key=lambda one: one.bound)


def best(bound: Bound) -> dict[str, Any]:
    """Return everything there is to say of a bound, for JSON."""
    constants, whole = bound.constants, bound.best_whole()
    # The whole number of replies makes the paper's noise the proven one.
    replies = math.ceil(whole.rounds * whole.per_round / constants.devices)
    moved = 2 * constants.clip_norm * constants.devices / constants.samples
    scales = {
        f"{epsilon:g}": moved * replies / epsilon for epsilon in np.unique(bound.epsilons).tolist()
    }
    return {
        "algorithm": "fedsgd-dpc",
        "epsilons": bound.epsilons.tolist(),
        "constants": asdict(constants) | {"gamma": constants.gamma},
        "joint": asdict(bound.joint()),
        "whole_replies": asdict(whole) | {"replies": replies, "noise": scales},
    }


def render(found: Mapping[str, Any]) -> str:
    """Return what `best` found as text."""
    values = ", ".join(f"{name} {value:.6g}" for name, value in found["constants"].items())
    columns = [
        label("optimum", ""),
        Column("rounds", "T", format=formats.number),
        Column("per_round", "b", format=formats.number),
        Column("bound", "U", format=formats.number),
    ]
    whole = found["whole_replies"]
    named = {"of real numbers": found["joint"], "of whole numbers": whole}
    rows = [[name, one["rounds"], one["per_round"], one["bound"]] for name, one in named.items()]
    last = "no training has a smaller bound than the start, at these budgets"
    if whole["rounds"]:
        scales = ", ".join(
            f"{formats.rounded_up(scale, 4):g} (epsilon {epsilon})"
            for epsilon, scale in whole["noise"].items()
        )
        last = f"scale of the noise on a coordinate, of {whole['replies']} replies: {scales}"
    return f"fedsgd-dpc, Laplace noise\n{values}\n\n{Table(columns, rows).text()}\n\n{last}"
