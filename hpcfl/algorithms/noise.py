"""Discrete Gaussian noise that every device adds to its integers before they are masked.

The server learns only sums, and a sum holds the noise of all its devices, so each device adds only
a part of the noise that it needs (Kairouz, Liu and Steinke 2021, "The distributed discrete Gaussian
mechanism"). Rounded real-valued noise would prove nothing about sums of integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hpcfl.crypto.discrete_gaussian import LARGEST_SIGMA, discrete_gaussian
from hpcfl.crypto.groups import Signed
from hpcfl.crypto.keys import SecretSource, derive, insecure_stream, system_secrets
from hpcfl.errors import UsageError
from hpcfl.values import dataclass, field

NoiseSecrets = Callable[[int, int], SecretSource]
"""From the number of a round that is played, and whose noise it is, to where its secret bytes come
from: a device's number, or one that no device has for whatever else needs noise."""


def system_noise(play: int, owner: int) -> SecretSource:
    """Return the operating system's generator; it serves every round and owner."""
    return system_secrets


def insecure_noise(seed: int) -> NoiseSecrets:
    """Return sources that follow from a seed: for tests, never for secrets.

    Each round and owner has one source, the same on every rank, so that results do not depend on
    the number of ranks.
    """
    return lambda play, owner: insecure_stream(seed, f"noise of {owner} in round {play}")


@dataclass(frozen=True)
class IntegerNoise:
    """The noise that a device adds to its integers, and the clipping before it."""

    sigma: int  # parameter of the noise on every integer, about its standard deviation
    # The key of this rank's noise; it has no other use and is never written anywhere.
    secret: bytes = field(repr=False)
    norm: float | None = None  # l2 norm that vectors are clipped to first; None for no clipping
    rounded_norm: float | None = None  # limit of the integers' l2 norm before the noise

    def __post_init__(self) -> None:
        if self.sigma > LARGEST_SIGMA:
            raise UsageError(
                f"noise of {self.sigma} integers is asked for, and at most {LARGEST_SIGMA} can be "
                "drawn: lower --levels, or the noise"
            )

    def clip(self, values: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return the vector clipped to the norm, if there is one."""
        return values if self.norm is None else clip_l2(values, self.norm)

    def draw(self, size: int, device: int, round_index: int) -> Signed:
        """Return a device's noise of a round, int64 (size,); repeated calls return the same."""
        context = f"hpcfl/1 discrete Gaussian noise round {round_index} device {device}"
        return discrete_gaussian(derive(self.secret, context.encode()), size, self.sigma)

    def bound(self, devices: int, dim: int, failure: float) -> int:
        """Return a bound of all devices' summed noise at all coordinates.

        It fails with probability `failure` at most. A discrete Gaussian is subgaussian with
        parameter sigma (Canonne, Kamath and Steinke 2020, Corollary 17), so a sum of n exceeds t
        with probability at most 2 exp(-t**2 / (2 n sigma**2)); plus a union bound.
        """
        return math.ceil(self.sigma * math.sqrt(2 * devices * math.log(2 * dim / failure)))


def clip_l2(values: NDArray[np.floating], norm: float) -> NDArray[np.floating]:
    """Return a vector in the same direction whose l2 norm is at most `norm`.

    A vector with a value that is not finite has no such vector; NaN takes its place, which devices
    refuse to send.
    """
    length = float(np.linalg.norm(values.astype(np.float64)))
    if not math.isfinite(length):
        return np.full_like(values, np.nan)
    if length <= norm:
        return values
    # Rounded down, because in float32 the result could otherwise exceed the norm slightly.
    factor = norm / length * (1 - 4 * float(np.finfo(values.dtype).eps))
    return values * values.dtype.type(factor)
