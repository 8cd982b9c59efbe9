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
    guess: int | None = None,
) -> int:
    """Return the most levels with which the noise can be drawn, and no sum with it wraps around.

    `build` returns the protocol with so many levels, `noises` the noise of its rounds, those with
    the most of it at least. A guess that is nearly right saves time. UsageError if there is no such
    number.
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
    if guess is not None and low < guess <= high:
        # Away from the guess in longer and longer steps, until the number is between two of them.
        upwards, step, near = admissible(guess), 1, guess
        low, high = (guess, high) if upwards else (low, guess - 1)
        while low < high and near == (low if upwards else high + 1):
            near = min(near + step, high) if upwards else max(near - step, low + 1)
            low, high = (near, high) if admissible(near) else (low, near - 1)
            step *= 4
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if admissible(middle) else (low, middle - 1)
    if not low:
        raise UsageError(
            f"no number of levels leaves room for the noise in the group {one.summed_in.name}: "
            "lower --clip, the noise, or the number of devices"
        )
    return low
