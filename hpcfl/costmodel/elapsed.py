"""How long rounds take on this machine: said before they are played."""

from __future__ import annotations

from hpcfl.algorithms.aggregation.base import AggregationProtocol
from hpcfl.algorithms.aggregation.quantised import QuantisedProtocol
from hpcfl.costmodel.calibration import default_path, load
from hpcfl.costmodel.model import predict
from hpcfl.errors import HpcflError


def calibrated() -> bool:
    """Return whether there is a calibration of this host that can be used."""
    try:
        load(default_path())
    except HpcflError:
        return False
    return True


def seconds_of_round(
    protocol: AggregationProtocol, ranks: int = 1, servers: int = 1
) -> float | None:
    """Return the elapsed seconds of a round on so many ranks (1: one process), some the server's.

    With what takes longest when it is validated, noise. None without a calibration of this host for
    as many ranks, and for what the model does not know.
    """
    try:
        calibration = load(default_path())
        seconds = predict(protocol, calibration, ranks=ranks, servers=servers).measured_seconds
    except HpcflError:
        return None
    if seconds is None:
        return None
    if isinstance(protocol, QuantisedProtocol) and protocol.noise is not None:
        # It is drawn once more when the round is validated.
        integers = protocol.inclusion * protocol.parameters.dim
        drawn = protocol.parameters.devices * integers / max(1, ranks - servers)
        seconds += drawn * calibration.cost("noise")
    return seconds
