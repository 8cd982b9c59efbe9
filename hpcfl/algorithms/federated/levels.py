"""How finely vectors are rounded where an account pays for the rounding: as finely as can be.

Rounding moves each of d coordinates by up to an integer, which costs privacy or noise. The more
integers to a unit, the less that is; and a sum must not wrap around, with its noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hpcfl.algorithms.aggregation.quantised import QuantisedProtocol
from hpcfl.algorithms.noise import IntegerNoise
from hpcfl.errors import UsageError


def largest_levels(
    build: Callable[[int], QuantisedProtocol],
    noises: Callable[[QuantisedProtocol], Iterable[IntegerNoise]],
) -> int:
    """Return the most levels with which the noise can be drawn, and no sum with it wraps around.

    `build` returns the protocol with so many levels, `noises` the noise of its rounds, those with
    the most of it at least. UsageError if there is no such number.
    """

    def admissible(levels: int) -> bool:
        try:
            protocol = build(levels)
            for noise in noises(protocol):
                protocol.add_noise(noise)
        except UsageError:
            return False
        return True

    one = build(1)
    # Refuse what no noise makes up for, which would otherwise look like too few levels.
    one.check_noise()
    one.hidden_failure()
    low, high = 0, one.largest_levels()
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if admissible(middle) else (low, middle - 1)
    if not low:
        raise UsageError(
            f"no number of levels leaves room for the noise in the group {one.summed_in.name}: "
            "lower --clip, the noise, or the number of devices"
        )
    return low
