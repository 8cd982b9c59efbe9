"""Checks every aggregate against the sum of the survivors' vectors, formed on a second path.

No masks, no messages of the protocol: each rank adds up what its surviving devices contributed, and
one reduction adds up the ranks. None of it is timed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.base import Aggregate, AggregationProtocol
from hpcfl.algorithms.aggregation.quantised import QuantisedProtocol
from hpcfl.comm.phases import Device
from hpcfl.comm.transport import Transport
from hpcfl.report.formats import number, share
from hpcfl.rounds.driver import Inputs

UNIT_ROUNDOFF = 2.0**-53
PART = 1 << 20  # coordinates that are compared at a time
# A mean is doubtful if less of all weight is in the sum than this, and rounding makes a larger part
# of the mean than that.
LITTLE_WEIGHT, ROUGH = 0.1, 0.01


def as_expected(
    protocol: AggregationProtocol,
    transport: Transport,
    survivors: Iterable[Device],
    inputs: Inputs,
    total: NDArray[Any],
) -> bool:
    """Return, at the server, whether its total is the sum of what the survivors contributed.

    Every rank calls this for its survivors; `total` counts at the server alone, shape (d,).
    Contributions to a group are integers, whose sum is exact. It takes words as narrow as the
    group's elements where noise does not make integers as large as it likes, and what the largest
    of each device add up to is within the group's range, so that no sum has left it. They may add
    up to more where not all devices send the same coordinates: then the sums are formed once more,
    in 64 bits. Without a group they are real numbers: the sums of n of them, x, in two orders
    differ by at most 2 n u sum(abs(x)), u the unit roundoff.
    """
    dim, group = protocol.parameters.dim, protocol.summed_in
    survivors = list(survivors)
    if group is None:
        return _near(transport, survivors, inputs, total, dim)
    expected = np.zeros(0)
    within = 0
    if isinstance(protocol, QuantisedProtocol) and protocol.noise is None:
        expected = np.zeros(dim, f"<i{group.dtype.itemsize}")
        largest = sum(_add(expected, device, inputs) for device in survivors)
        together = transport.sum_to_server(np.array([min(largest, group.modulus)]))
        within = transport.tell(int(together is not None and together[0] <= group.half_range))
    if not within:
        expected = np.zeros(dim, np.int64)
        for device in survivors:
            _add(expected, device, inputs)
    right = not transport.has_server or total.shape == (dim,)
    for start in range(0, dim, PART):
        part = slice(start, start + PART)
        summed = transport.sum_to_server(expected[part])
        right = right and (summed is None or bool((total[part] == summed).all()))
    return right


def _add(total: NDArray[Any], device: Any, inputs: Inputs) -> int:
    """Add what a device contributed to a sum; return the largest magnitude of its integers."""
    largest = 0
    vector = inputs(device.id)
    blocks = getattr(device, "contributions", None)
    for where, values in [device.contribution(vector)] if blocks is None else blocks(vector):
        if values.size:
            largest = max(largest, int(values.max()), -int(values.min()))
        total[where] += values.astype(total.dtype)
    return largest


def _near(
    transport: Transport,
    survivors: Iterable[Device],
    inputs: Inputs,
    total: NDArray[Any],
    dim: int,
) -> bool:
    expected, magnitude = np.zeros(dim), np.zeros(dim)
    for device in survivors:
        where, values = device.contribution(inputs(device.id))
        expected[where] += values
        magnitude[where] += np.abs(values, out=values)
    summed, magnitudes = transport.sum_to_server(expected), transport.sum_to_server(magnitude)
    if summed is None or magnitudes is None:
        return True
    tolerance = 2 * transport.placement.devices * UNIT_ROUNDOFF * magnitudes
    return total.shape == (dim,) and bool(np.all(np.abs(total - summed) <= tolerance))


def doubtful(protocol: AggregationProtocol, aggregate: Aggregate, survivors: int) -> str:
    """Return in a sentence why the mean of so many survivors is worth little; "" if it is not.

    Levels are planned for the weight of all devices. Where most of it is there, the mean is as fine
    as was asked for; without the few that have most of it, the others have hardly any levels.
    """
    if not aggregate.has_mean:
        return "the devices in the sum all have the weight 0: there is no mean"
    if not isinstance(protocol, QuantisedProtocol) or aggregate.survived > LITTLE_WEIGHT:
        return ""
    weights = np.asarray(aggregate.weight)
    inverse = float(np.mean(1 / weights[weights > 0] ** 2))
    # A device's rounding has at most half a level for its standard deviation.
    error = math.sqrt(protocol.inclusion * survivors * inverse) / 2 / protocol.parameters.levels
    size = math.sqrt(np.mean(aggregate.mean_as_sent**2))
    if error <= ROUGH * size:
        return ""
    return (
        f"the devices in the sum have {share(aggregate.survived)} of the weight of all devices: "
        f"the rounding error of their mean is up to {number(error, 3)} in a coordinate, and the "
        f"mean itself is {number(size, 3)} (root mean squares); give weights that differ less, or "
        "more levels or bits"
    )


def quantisation(
    transport: Transport,
    survivors: Iterable[Any],
    inputs: Inputs,
    aggregate: Aggregate | None,
    dim: int,
) -> tuple[float, float]:
    """Return how far an aggregate is from the sum of the vectors before they became integers.

    That is the root mean square error of a coordinate, clipping and rounding together, and the
    fraction of the values sent that were clipped; NaN except at the server, and where a device has
    no method ``unquantised``. Every rank calls this for its survivors.
    """
    total = np.zeros(dim)
    counts = np.zeros(3, np.int64)
    for device in survivors:
        if not hasattr(device, "unquantised"):
            counts += (0, 0, 1)
            continue
        where, values, clipped = device.unquantised(inputs(device.id))
        total[where] += values
        counts += (clipped, values.size, 0)
    summed = transport.sum_to_server(total)
    counted = transport.sum_to_server(counts)
    if summed is None or counted is None or aggregate is None or counted[2]:
        return float("nan"), float("nan")
    exact = replace(aggregate, encoded=summed, decode=None)
    error = float(np.sqrt(np.mean((aggregate.mean_as_sent - exact.mean_as_sent) ** 2)))
    return error, float(counted[0] / counted[1])
