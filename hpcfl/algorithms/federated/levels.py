"""How finely vectors are rounded where an account pays for the rounding: as finely as can be.

Rounding moves each of d coordinates by up to an integer, which costs privacy or noise. The more
integers to a unit, the less that is; and a sum must not wrap around, with its noise.
"""

from __future__ import annotations

from bisect import bisect_left
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

    def too_many(levels: int) -> bool:
        try:
            protocol = build(levels)
            for noise in noises(protocol):
                protocol.add_noise(noise)
        except UsageError:
            return True
        return False

    one = build(1)
    # Refuse what no noise makes up for, which would otherwise look like too few levels.
    one.check_noise()
    one.hidden_failure()
    most = bisect_left(range(1, one.largest_levels() + 1), True, key=too_many)
    if not most:
        raise UsageError(
            f"no number of levels leaves room for the noise in the group {one.summed_in.name}: "
            "lower --clip, the noise, or the number of devices"
        )
    return most
