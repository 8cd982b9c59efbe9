"""Aggregation protocols: how the sum of the devices' vectors is formed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcfl.errors import UsageError
from hpcfl.system.plugins import load_object

if TYPE_CHECKING:
    from hpcfl.algorithms.aggregation.base import AggregationProtocol

PROTOCOLS = {
    "fedavg": "hpcfl.algorithms.aggregation.fedavg:FedAvg",
    "secagg": "hpcfl.algorithms.aggregation.secagg:SecAgg",
    "secagg-graph": "hpcfl.algorithms.aggregation.graph:GraphSecAgg",
    "sparse": "hpcfl.algorithms.aggregation.sparse:SparseSecAgg",
    "cohort": "hpcfl.algorithms.aggregation.cohort:Cohort",
    "prf": "hpcfl.algorithms.aggregation.prf:Prf",
}
# Against a server that cheats.
ACTIVE = {
    "secagg": "hpcfl.algorithms.aggregation.active:ActiveSecAgg",
    "sparse": "hpcfl.algorithms.aggregation.active:ActiveSparse",
}
_NOT_ACTIVE = {
    "fedavg": "it hides nothing from the server",
    "secagg-graph": "the server could choose whom a device has as neighbours on the ring",
    "cohort": "the server could choose survivors so that a cohort is left with one device",
    "prf": "it has no survivors to agree on, and no shares",
}


def find(name: str, security: str = "passive") -> type[AggregationProtocol]:
    """Return the protocol called `name`, or the class that ``module:Class`` names.

    Parameters
    ----------
    name : str
        The name.
    security : str
        ``"passive"``, or ``"active"`` for the variant against a server that cheats.

    Raises
    ------
    UsageError
        If there is none.
    """
    if security == "active":
        return _find_active(name)
    if name not in PROTOCOLS and ":" not in name:
        known = ", ".join(PROTOCOLS)
        raise UsageError(f"there is no protocol {name!r}; choose {known}, or give MODULE:CLASS")
    try:
        found = load_object(PROTOCOLS.get(name, name))
    except Exception as error:
        raise UsageError(f"the protocol {name!r} cannot be loaded: {error}") from error

    from hpcfl.algorithms.aggregation.base import AggregationProtocol

    if not (isinstance(found, type) and issubclass(found, AggregationProtocol)):
        raise UsageError(
            f"{name!r} is no aggregation protocol: it must be a subclass of "
            "hpcfl.algorithms.aggregation.base.AggregationProtocol"
        )
    return found


def _find_active(name: str) -> type[AggregationProtocol]:
    if name not in ACTIVE:
        reason = _NOT_ACTIVE.get(name, "there is no such variant of it")
        raise UsageError(
            f"{name} cannot be run with --security active: {reason}; use {' or '.join(ACTIVE)}"
        )
    return find(ACTIVE[name])
