"""The parameters that an aggregation protocol is run with, checked before anything starts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.locations import CODINGS
from hpcfl.crypto.groups import GROUPS, Group
from hpcfl.crypto.sampling import SAMPLERS
from hpcfl.errors import UsageError

MAX_DEVICES = 2**31
SECURITIES = ("passive", "active")
DROPOUT_MODELS = ("exact", "bernoulli")
SCALINGS = ("survivors", "paper")
# Positions and element counts are sent as 32-bit numbers.
MAX_DIM = 2**32 - 1


@dataclass(frozen=True)
class Parameters:
    """What all devices and the server of a run agree on.

    Attributes
    ----------
    devices : int
        Number N of devices.
    dim : int
        Number d of coordinates of a vector.
    alpha : float
        Fraction of the coordinates that a device of a sparse protocol sends, in (0, 1].
    dropout : float
        Expected fraction theta of devices that drop out, in [0, 0.5).
    group : str
        ``"fq"`` or ``"ring32"``.
    sampler : str
        ``"gaps"`` or ``"dense"``, how pairs select coordinates.
    locations : str
        ``"auto"``, ``"bitmap"`` or ``"gaps"``, how locations are coded.
    clip : float
        Coordinates are clipped to [-clip, clip] before quantisation.
    levels : int
        Quantisation levels c per unit.
    weights : ndarray of float64, shape (N,), optional
        The devices' weights beta, adding up to 1; equal by default.
    seed : int
        Seed of the stochastic rounding; never of a key.
    degree : int, optional
        Number k of neighbours with which a device shares keys and masks, even; by default the
        protocol's own choice.
    gamma : float
        Fraction of the population that may collude with the server, in [0, 0.5): what a degree is
        chosen for.
    population : int, optional
        Number of devices that the N of a round are drawn from; N by default.
    scaling : str
        How a sum becomes a mean: ``"survivors"``, by the weight of the devices that are in it, or
        ``"paper"``, where devices divide by the planned 1 - theta beforehand (eq. 16).
    dropout_model : str
        ``"exact"``: floor(theta N) devices drop out; ``"bernoulli"``: each with probability theta.
    min_cohort : int
        Fewest honest survivors of a cohort that is accepted.
    security_bits, correctness_bits : int
        A degree is chosen, and a floor accepted, so that what they promise fails with a
        probability of at most 2 to the minus this: a secret is revealed, a round cannot end.
    security : str
        ``"passive"``: the server is curious but keeps to the protocol; ``"active"``: it may cheat.
    """

    devices: int
    dim: int
    alpha: float = 0.1
    dropout: float = 0.3
    group: str = "fq"
    sampler: str = "gaps"
    locations: str = "auto"
    clip: float = 1.0
    levels: int = 2**20
    weights: NDArray[np.float64] | None = field(default=None, compare=False)
    seed: int = 0
    degree: int | None = None
    gamma: float = 0.1
    min_cohort: int = 1
    security_bits: int = 40
    correctness_bits: int = 20
    security: str = "passive"
    population: int | None = None
    dropout_model: str = "exact"
    scaling: str = "survivors"

    def __post_init__(self) -> None:
        _require(
            1 <= self.devices < MAX_DEVICES,
            f"the number of devices is {self.devices}; it must be 1 to {MAX_DEVICES - 1}",
        )
        _require(1 <= self.dim <= MAX_DIM, f"dim is {self.dim}; it must be 1 to {MAX_DIM}")
        _require(0 < self.alpha <= 1, f"alpha is {self.alpha}; it must be above 0, at most 1")
        _require(
            0 <= self.dropout < 0.5,
            f"the dropout rate is {self.dropout}; it must be at least 0 and below 0.5, "
            "as more than half of the devices must stay to unmask the sum",
        )
        _require(
            0 < self.clip < float("inf"), f"clip is {self.clip}; it must be positive and finite"
        )
        _require(self.levels >= 1, f"levels is {self.levels}; it must be at least 1")
        _require(
            self.degree is None or (self.degree >= 2 and self.degree % 2 == 0),
            f"the degree is {self.degree}; it must be an even number of at least 2",
        )
        _require(
            0 <= self.gamma < 0.5,
            f"gamma is {self.gamma}; it must be at least 0 and below 0.5, as a threshold of more "
            "than half protects against no more colluding devices",
        )
        _require(
            self.population is None or self.population >= self.devices,
            f"{self.devices} devices cannot be drawn from {self.population}",
        )
        _require(self.min_cohort >= 1, f"min-cohort is {self.min_cohort}; it must be at least 1")
        for name in ("security_bits", "correctness_bits"):
            value = getattr(self, name)
            _require(
                1 <= value <= 1000,
                f"{name.replace('_', '-')} is {value}; it must be 1 to 1000",
            )
        choices = (
            *(("group", GROUPS), ("sampler", SAMPLERS), ("locations", CODINGS)),
            *(("security", SECURITIES), ("dropout_model", DROPOUT_MODELS)),
            ("scaling", SCALINGS),
        )
        for name, known in choices:
            value = getattr(self, name)
            _require(value in known, f"{name} is {value!r}; choose one of {', '.join(known)}")
        if self.security == "active":
            self._check_active()
        if self.weights is not None:
            _require(
                self.weights.shape == (self.devices,),
                f"the weights have the shape {self.weights.shape} for {self.devices} devices",
            )
            _require(
                bool(np.all(self.weights >= 0)) and abs(float(self.weights.sum()) - 1) < 1e-12,
                "the devices' weights must not be negative and must add up to 1",
            )

    def _check_active(self) -> None:
        for name in ("dropout", "gamma"):
            value = getattr(self, name)
            _require(
                3 * Fraction(repr(float(value))) < 1,
                f"{name} is {value}; with --security active it must be below 1/3, as more than two "
                "thirds of the devices must stay to unmask the sum, and to agree on whose it is",
            )
        _require(
            self.degree is None,
            f"the degree is {self.degree}; with --security active every device is linked with all "
            "others: on a ring the server could choose whom a device has as neighbours, and they "
            "are too few for their lists to show that it cheats",
        )

    @property
    def threshold(self) -> int:
        """Number t of survivors needed to unmask: floor(N / 2) + 1.

        If the server may cheat, floor(2 N / 3) + 1: two lists of survivors cannot both be endorsed
        by t devices if fewer than a third collude (Bonawitz et al. 2017, section 6).
        """
        return (2 * self.devices // 3 if self.security == "active" else self.devices // 2) + 1

    @property
    def arithmetic(self) -> Group:
        """The group in which vectors are masked and summed."""
        return GROUPS[self.group]

    @property
    def neighbours(self) -> int:
        """Number of devices that a device of a sparse protocol makes pairs with."""
        return min(self.degree or self.devices - 1, self.devices - 1)

    @property
    def pair_probability(self) -> Fraction:
        """Probability pi = alpha / (N - 1) that a pair selects a coordinate (eq. 13).

        On a ring of degree k it is alpha / k, so that a device sends as much.
        """
        return Fraction(self.alpha) / self.neighbours

    @property
    def selection_probability(self) -> float:
        """Probability p that a device sends a coordinate (eq. 14)."""
        rate = float(self.pair_probability)
        return -math.expm1(self.neighbours * math.log1p(-rate)) if rate < 1 else 1.0

    def weight(self, device: int) -> float:
        """Return the weight beta of a device."""
        return 1 / self.devices if self.weights is None else float(self.weights[device])


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UsageError(message)
