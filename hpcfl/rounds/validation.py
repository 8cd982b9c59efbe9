"""Checks every aggregate against the sum of the survivors' vectors, computed in a second way.

The check uses no masks and no messages of the protocol: each rank adds up the contributions of its
surviving devices, and one reduction adds up the ranks. It is not timed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.base import Aggregate, AggregationProtocol
from hpcfl.algorithms.aggregation.quantised import QuantisedProtocol
from hpcfl.comm.phases import Device
from hpcfl.comm.transport import Transport
from hpcfl.rounds.driver import Inputs

UNIT_ROUNDOFF = 2.0**-53
PART = 1 << 20  # coordinates that are compared at a time


def as_expected(
    protocol: AggregationProtocol,
    transport: Transport,
    survivors: Iterable[Device],
    inputs: Inputs,
    total: NDArray[Any],
) -> bool:
    """Return, at the server, whether its total is the sum of the survivors' contributions.

    Every rank calls this for its survivors; `total`, shape (d,), counts only at the server.
    Contributions to a group are integers with an exact sum. The sum uses words of the size of the
    group's elements if there is no noise, whose integers are unbounded, and if the devices' largest
    magnitudes add up to a number within the group's range, so that no sum overflows. They may add
    up to more if devices send different coordinates: the sums are then formed again in 64 bits.
    Without a group, contributions are real numbers. The sums of n of them, x, in two orders differ
    by at most 2 n u sum(abs(x)), where u is the unit roundoff.
    """
    dim, group = protocol.parameters.dim, protocol.summed_in
    survivors = list(survivors)
    if group is None:
        step = PART if protocol.by_coordinate else dim
        right = not transport.has_server or total.shape == (dim,)
        for start in range(0, dim, step):
            part = slice(start, min(start + step, dim))
            right &= _near(transport, survivors, inputs, total, part)
        return right
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
    """Add a device's contribution to a sum; return the largest magnitude of its integers."""
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
    part: slice,
) -> bool:
    expected, magnitude = np.zeros((2, part.stop - part.start))
    for device in survivors:
        where, values = device.contribution(inputs(device.id)[part])
        expected[where] += values
        magnitude[where] += np.abs(values, out=values)
    summed, magnitudes = transport.sum_to_server(expected), transport.sum_to_server(magnitude)
    if summed is None or magnitudes is None:
        return True
    tolerance = 2 * transport.placement.devices * UNIT_ROUNDOFF * magnitudes
    found = total[part]
    return found.shape == summed.shape and bool(np.all(np.abs(found - summed) <= tolerance))


def quantisation(
    transport: Transport,
    survivors: Iterable[Any],
    inputs: Inputs,
    aggregate: Aggregate | None,
    dim: int,
) -> tuple[float, float]:
    """Return the error of an aggregate from clipping and rounding, and the clipped fraction.

    The first is the root mean square error of a coordinate, the second the fraction of the values
    sent that were clipped. Both are NaN except at the server, and if a device has no method
    ``unquantised``. Every rank calls this for its survivors.
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
    error = float(np.sqrt(np.mean((aggregate.mean - exact.mean) ** 2)))
    return error, float(counted[0] / counted[1])
