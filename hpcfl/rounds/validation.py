"""Checks every aggregate against the sum of the survivors' vectors, formed on a second path.

No masks, no messages of the protocol: each rank adds up what its surviving devices contributed, and
one reduction adds up the ranks. None of it is timed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.base import Aggregate
from hpcfl.comm.phases import Device
from hpcfl.comm.transport import Transport
from hpcfl.rounds.driver import Inputs

UNIT_ROUNDOFF = 2.0**-53


def expected_total(
    transport: Transport, survivors: Iterable[Device], inputs: Inputs, dim: int, exact: bool
) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Return, at the server, the sum of what the survivors contributed, and how far it may be off.

    Both have shape (d,); every rank calls this for its survivors. `exact` contributions are
    integers, whose sum is exact. The sums of n real numbers x in two orders differ by at most
    2 n u sum(abs(x)), u the unit roundoff.
    """
    total = np.zeros(dim, np.int64 if exact else np.float64)
    magnitude = np.zeros(dim)
    for device in survivors:
        where, values = device.contribution(inputs(device.id))
        total[where] += values
        if not exact:
            magnitude[where] += np.abs(values)
    summed: NDArray[Any] | None = transport.sum_to_server(total)
    if exact:
        return None if summed is None else (summed, np.zeros(1, np.int64))
    magnitudes: NDArray[Any] | None = transport.sum_to_server(magnitude)
    if summed is None or magnitudes is None:
        return None
    return summed, 2 * transport.placement.devices * UNIT_ROUNDOFF * magnitudes


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
    exact = replace(aggregate, sent=summed)
    error = float(np.sqrt(np.mean((aggregate.mean_as_sent - exact.mean_as_sent) ** 2)))
    return error, float(counted[0] / counted[1])


def agrees(total: NDArray[Any], expected: NDArray[Any], tolerance: NDArray[Any]) -> bool:
    """Return whether every element of `total` is the expected one, up to the tolerance."""
    return total.shape == expected.shape and bool(np.all(np.abs(total - expected) <= tolerance))
