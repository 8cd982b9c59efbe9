"""What is made of the options of a protocol before any round: the protocol, and its dropouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.aggregation.base import AggregationProtocol
from hpcfl.algorithms.parameters import Parameters
from hpcfl.errors import UsageError
from hpcfl.options.definition import values_of
from hpcfl.options.shared import DEFAULT_LEVELS, ProtocolOptions, RoundOptions, SeedOptions
from hpcfl.rounds.dropouts import DropoutSchedule


def build(
    name: str,
    options: RoundOptions,
    devices: int,
    dim: int,
    weights: NDArray[np.float64] | None = None,
    population: int | None = None,
) -> tuple[AggregationProtocol, DropoutSchedule]:
    """Return a protocol and its dropouts for N = `devices` and d = `dim`.

    `weights` are the devices', shape (N,), equal by default; `population` is the number of devices
    that these are drawn from, all by default. A UsageError says which options do not go together.
    """
    values = values_of(options, ProtocolOptions)
    values["levels"] = DEFAULT_LEVELS if options.levels is None else options.levels
    seed = options.seed if isinstance(options, SeedOptions) else 0
    parameters = Parameters(
        devices, dim, seed=seed, weights=weights, population=population, **values
    )
    protocol = find(name, options.security)(parameters)
    if options.upload == "reduce" and (protocol.sparse_upload or not protocol.summed_in):
        raise UsageError(
            f"{protocol.name} cannot use --upload reduce: MPI can only sum whole vectors of "
            "group elements on the way"
        )
    phase = options.dropout_phase or protocol.upload_phase()
    droppable = [name for name in protocol.phases() if name not in ("model", "result")]
    if phase not in droppable:
        raise UsageError(
            f"{protocol.name} has no phase {phase!r} to drop out before; "
            f"choose one of {', '.join(droppable)}"
        )
    return protocol, DropoutSchedule(devices, options.dropout, options.dropout_model, phase, seed)


def without_dropouts(name: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what is given, and no dropouts where nothing is said and the protocol has none."""
    try:
        tolerant = find(name).tolerates_dropouts
    except UsageError:
        tolerant = True  # An unknown protocol is refused when the run is prepared.
    return given if tolerant else {"dropout": 0.0} | dict(given)
