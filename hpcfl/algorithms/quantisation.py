"""Stochastic quantisation of real vectors to integers (SparseSecAgg, eqs. 15 and 16)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.crypto.groups import Group, Signed
from hpcfl.errors import UsageError
from hpcfl.values import dataclass

# Number of coordinates to process at a time, in cache, without copies of the whole vector. Larger
# blocks would make the operating system allocate and clear memory anew each time.
BLOCK = 1 << 13


@dataclass(frozen=True)
class Quantiser:
    """Clips, scales and stochastically rounds values without bias."""

    clip: float  # coordinates are clipped to [-clip, clip]
    levels: float  # number c of levels per unit

    def blocks(
        self,
        values: NDArray[np.floating],
        scale: float,
        generator: np.random.Generator,
        norm: float | None = None,
        dtype: type[np.signedinteger[Any]] = np.int64,
    ) -> Iterator[tuple[slice, Signed, int]]:
        """Yield ``c * Q_c(scale * clip(values))``, integers whose mean is ``c * scale * values``.

        Each part comes with its slice and its number of clipped values. The `scale` is the device's
        weight over the probability that a coordinate is included; the `generator` decides which way
        values are rounded. Raise ValueError if a value is not finite.

        A `norm` limits the integers' l2 norm: a block that would exceed it is rounded towards zero.
        Raise ValueError if the scaled vector itself exceeds it.
        """
        room = math.inf if norm is None else self._room(values, scale, norm)
        block = np.empty(min(BLOCK, values.size))
        for part, scaled, clipped in self._scaled(values, scale):
            rounded = generator.random(out=block[: scaled.size])
            rounded += scaled
            np.floor(rounded, out=rounded)
            if norm is not None:
                lengthened = _lengthened(scaled, rounded)
                if lengthened > room:
                    np.trunc(scaled, out=rounded)
                    lengthened = _lengthened(scaled, rounded)
                room -= lengthened
            yield part, rounded.astype(dtype), clipped

    def _scaled(
        self, values: NDArray[np.floating], scale: float
    ) -> Iterator[tuple[slice, NDArray[np.float64], int]]:
        """Yield the scaled values to round, part by part, and the number of clipped values.

        All parts are in the same memory.
        """
        block = np.empty(min(BLOCK, values.size))
        for start in range(0, values.size, BLOCK):
            part = slice(start, start + BLOCK)
            # In float64 before clipping, because the clip rounded to float32 could be larger.
            low, high, clipped = float(values[part].min()), float(values[part].max()), 0
            scaled = block[: values[part].size]
            scaled[:] = values[part]
            # With a NaN in the block, both are NaN.
            if not (low > -math.inf and high < math.inf):
                raise ValueError("it holds a value that is not a finite number")
            if low < -self.clip or high > self.clip:
                clipped = int(np.count_nonzero(np.abs(scaled) > self.clip))
                np.clip(scaled, -self.clip, self.clip, out=scaled)
            scaled *= scale * self.levels
            yield part, scaled, clipped

    def _room(self, values: NDArray[np.floating], scale: float, norm: float) -> float:
        """Return the amount that rounding may add to the squared norm."""
        squared = math.fsum(float(scaled @ scaled) for _, scaled, _ in self._scaled(values, scale))
        # A little less, because sums of squares are rounded, too. This matters only for norms from
        # 1e11 on, for which a sum of 32 bits has no room.
        room = norm * norm * (1 - 1e-11) - squared
        if room < 0:
            raise ValueError("it is longer than the norm that was to be accounted for")
        return room


def _lengthened(scaled: NDArray[np.float64], rounded: NDArray[np.float64]) -> float:
    """Return the amount that rounding adds to the squared norm of a block."""
    return float((rounded - scaled) @ (rounded + scaled))


def all_finite(values: NDArray[np.floating]) -> bool:
    """Return whether no value is infinite or not a number."""
    starts = range(0, values.size, BLOCK)
    return all(np.isfinite(values[start : start + BLOCK]).all() for start in starts)


# Larger than the order of any group, but still an int64 in results.
MOST_LEVELS = 2.0**62


def largest_levels(
    group: Group, devices: int, clip: float, inclusion: float, weight: float = 1, reserve: int = 0
) -> int:
    """Return the largest number of levels with which no sum can wrap around.

    A coordinate's sum holds the vectors of at most `devices` devices, whose weights add up to at
    most `weight`, and every device rounds by less than one. So the magnitude of a sum is at most
    ``levels * clip * weight / inclusion + devices``. With a `reserve` for noise, it must fit the
    group's half range. `inclusion` is the probability that vectors are scaled by, p (1 - theta).
    """
    room = (group.half_range - devices - reserve) * inclusion
    # The quotient is infinite for the smallest clips.
    return math.floor(min(room / clip / weight, MOST_LEVELS))


def check_levels(levels: int, largest: int, group: Group, clip: float, noisy: bool = False) -> None:
    """Raise UsageError for more levels than `largest`, as a sum could silently wrap around."""
    if levels <= largest:
        return
    if largest >= 1 and not noisy:
        raise UsageError(
            f"levels {levels} with clip {clip:g} could overflow the group {group.name}: the "
            f"largest admissible number of levels is {largest}"
        )
    if noisy and levels > 1:
        # Noise is drawn in steps of a level, so fewer levels leave more room.
        raise UsageError(
            f"levels {levels} with clip {clip:g} and noise could overflow the group {group.name}: "
            + (f"{largest} have room" if largest >= 1 else "give fewer")
        )
    raise UsageError(
        f"clip {clip:g}{' with this noise' if noisy else ''} is too large for the group "
        f"{group.name} at any number of levels{'' if group.bits == 32 else ': take more bits'}"
    )
