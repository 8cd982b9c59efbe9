"""Discrete Gaussian noise that every device adds to its integers before they are masked.

The server learns only sums, and in a sum is the noise of all its devices: so each needs to add but
a part of what would hide it (Kairouz, Liu and Steinke 2021, "The distributed discrete Gaussian
mechanism"). Noise of real numbers, rounded, would prove nothing about sums of integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hpcfl.crypto.discrete_gaussian import LARGEST_SIGMA, discrete_gaussian
from hpcfl.crypto.groups import Signed
from hpcfl.crypto.keys import SecretSource, derive, insecure_stream, system_secrets
from hpcfl.errors import UsageError

NoiseSecrets = Callable[[int, int], SecretSource]
"""From the number of a round that is played, and whose noise it is, to where its secret bytes come
from: a device's number, or one that no device has for whatever else needs noise."""


def system_noise(play: int, owner: int) -> SecretSource:
    """Return the operating system's generator, for every round and owner."""
    return system_secrets


def insecure_noise(seed: int) -> NoiseSecrets:
    """Return sources that repeat themselves for the same seed: for tests, never for secrets.

    Every round and owner has one, whichever rank asks, so that results do not depend on how many
    ranks there are.
    """
    return lambda play, owner: insecure_stream(seed, f"noise of {owner} in round {play}")


@dataclass(frozen=True)
class IntegerNoise:
    """What a device does to a vector besides rounding it."""

    sigma: int  # parameter of the noise on every integer, about its standard deviation
    # From which this rank's devices draw; of no other use, and never written anywhere.
    secret: bytes = field(repr=False)
    norm: float | None = None  # vectors are clipped to this l2 norm first, if there is one
    rounded_norm: float | None = None  # their integers, before the noise, are held to this one

    def __post_init__(self) -> None:
        if self.sigma > LARGEST_SIGMA:
            raise UsageError(
                f"noise of {self.sigma} integers is asked for, and at most {LARGEST_SIGMA} can be "
                "drawn: lower --levels, or the noise"
            )

    def clip(self, values: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return a vector of at most the norm, in the same direction."""
        return values if self.norm is None else clip_l2(values, self.norm)

    def draw(self, size: int, device: int, round_index: int) -> Signed:
        """Return a device's noise of a round, int64 of shape (size,); the same when asked again."""
        context = f"hpcfl/1 discrete Gaussian noise round {round_index} device {device}"
        return discrete_gaussian(derive(self.secret, context.encode()), size, self.sigma)

    def bound(self, devices: int, dim: int, failure: float) -> int:
        """Return what the sum of all devices' noise stays within, at all coordinates.

        But for the probability `failure`. A discrete Gaussian is subgaussian with the parameter
        sigma (Canonne, Kamath and Steinke 2020, Corollary 17), so a sum of n exceeds t with a
        probability of at most 2 exp(-t**2 / (2 n sigma**2)); a union bound over the coordinates.
        """
        return math.ceil(self.sigma * math.sqrt(2 * devices * math.log(2 * dim / failure)))


def clip_l2(values: NDArray[np.floating], norm: float) -> NDArray[np.floating]:
    """Return a vector in the same direction whose l2 norm is at most `norm`.

    Of a vector with a value that is not finite there is none: NaN stands for it, which no device
    sends.
    """
    length = float(np.linalg.norm(values.astype(np.float64)))
    if not math.isfinite(length):
        return np.full_like(values, np.nan)
    if length <= norm:
        return values
    # Rounded down: in float32 the result could otherwise be a little longer than it may be.
    factor = norm / length * (1 - 4 * float(np.finfo(values.dtype).eps))
    return values * values.dtype.type(factor)
