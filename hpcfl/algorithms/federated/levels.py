"""How finely vectors are rounded where an account pays for the rounding: as finely as can be.

Rounding moves each of d coordinates by up to an integer, which costs privacy or noise. The more
integers to a unit, the less that is; and a sum must not wrap around, with its noise.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from hpcfl.algorithms.aggregation.quantised import QuantisedProtocol
from hpcfl.errors import UsageError


def largest_levels(one: QuantisedProtocol, check: Callable[[int], object]) -> int:
    """Return the most levels with which the noise can be drawn, and no sum with it wraps around.

    `one` is the protocol with one level; `check` refuses, by UsageError, a number of levels that
    leaves no room for the noise. UsageError if there is no other.
    """

    def too_many(levels: int) -> bool:
        try:
            check(levels)
        except UsageError:
            return True
        return False

    # Refuse what no noise makes up for, which would otherwise look like too few levels.
    one.hidden_failure()
    most = bisect_left(range(1, one.largest_levels() + 1), True, key=too_many)
    if not most:
        raise UsageError(
            f"no number of levels leaves room for the noise in the group {one.summed_in.name}: "
            "lower --clip, the noise, or the number of devices"
        )
    return most
