"""How likely it is that a round cannot end, of devices that chance has drawn in secret.

A run that ends in such a round tells that few took part in it, which is what a secret sample keeps
to itself. So it is found out beforehand, for every number of devices that may be drawn, whether the
protocol plays a round of so many, and whether enough of them stay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hpcfl.algorithms.aggregation.base import AggregationProtocol
from hpcfl.algorithms.aggregation.promises import Outcome, objection
from hpcfl.errors import UsageError
from hpcfl.privacy.distributions import binomial
from hpcfl.privacy.population import count_of


@dataclass(frozen=True)
class EarlyEnd:
    """That a round cannot end."""

    chance: float  # at most
    devices: int  # the number of them that contributes most
    reason: str  # with that number, in a clause
    dropouts: bool  # whether devices may drop out by chance


def early_end(
    protocol: AggregationProtocol, devices: int, rate: float, levels: int | None = None
) -> EarlyEnd:
    """Return how likely it is that a round cannot end.

    Parameters
    ----------
    protocol : AggregationProtocol
        As it is for some number of devices; only its parameters count.
    devices : int
        Number n of devices that a round's are drawn from.
    rate : float
        Probability with which each of them is drawn.
    levels : int, optional
        Those of every round; by default each has as many as there is room for.
    """
    drawn = binomial(devices, rate, np.arange(devices + 1))
    # What is left out adds up to a sixteenth of what is let pass, and is counted.
    rare = drawn <= 2.0 ** -(protocol.parameters.security_bits + 4) / (devices + 1)
    chance, most, worst = float(drawn[1:][rare[1:]].sum()), 0.0, (0, "")
    # Nobody is a round as well: nothing is summed in it.
    for count in (np.flatnonzero(~rare[1:]) + 1).tolist():
        ends, reason = _ends(protocol, count, levels)
        chance += drawn[count] * ends
        if drawn[count] * ends > most:
            most, worst = drawn[count] * ends, (count, reason)
    return EarlyEnd(float(chance), *worst, protocol.parameters.drop_by_chance)


def _ends(protocol: AggregationProtocol, count: int, levels: int | None) -> tuple[float, str]:
    """Return how likely it is that a round of so many devices cannot end, and why."""
    known = replace(protocol.parameters, devices=count, weights=None, levels=levels or 1)
    try:
        chosen = type(protocol)(known)
    except UsageError as error:
        return 1.0, str(error)
    least = fewest_survivors(chosen)
    reason = f"at least {least} of them must stay"
    spare = count - least
    if spare < 0:
        return 1.0, reason
    if known.dropout_model == "exact" or not known.dropout:
        few = float(count_of(known.dropout, count) > spare)
    else:
        dropped = binomial(count, known.dropout, np.arange(count + 1))
        few = float(dropped[spare + 1 :].sum())
    stuck = chosen.stuck
    if stuck > few:
        reason = "chance may leave one of them with too few others: raise --correctness-bits"
    return min(1.0, few + stuck), reason


def fewest_survivors(protocol: AggregationProtocol) -> int:
    """Return the fewest devices in a sum with which a round ends, one more than all if none do."""
    devices, promises = protocol.parameters.devices, protocol.promises()
    low, high = protocol.needed_in_sum, devices + 1
    while low < high:
        middle = (low + high) // 2
        if objection(promises, Outcome(devices, middle)) is None:
            high = middle
        else:
            low = middle + 1
    return low
