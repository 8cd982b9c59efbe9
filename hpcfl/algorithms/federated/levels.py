"""The largest number of levels, for accounts in which rounding costs privacy or noise.

Rounding moves each of d coordinates by up to one integer. The more integers per unit, the lower the
cost, but a sum with its noise must not wrap around.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from hpcfl.algorithms.aggregation.quantised import QuantisedProtocol
from hpcfl.errors import UsageError


def largest_levels(one: QuantisedProtocol, check: Callable[[int], object]) -> int:
    """Return the most levels with which the noise can be drawn and no sum wraps around.

    `one` is the protocol with one level; `check` raises UsageError for a number of levels that
    leaves no room for the noise. Raise UsageError if no number of levels leaves room.
    """

    def too_many(levels: int) -> bool:
        try:
            check(levels)
        except UsageError:
            return True
        return False

    # Refuse masks that fail with certainty, which would otherwise look like too few levels.
    one.hidden_failure()
    most = bisect_left(range(1, one.largest_levels() + 1), True, key=too_many)
    if not most:
        raise UsageError(
            f"no number of levels leaves room for the noise in the group {one.summed_in.name}: "
            "lower --clip, the noise, or the number of devices"
        )
    return most
