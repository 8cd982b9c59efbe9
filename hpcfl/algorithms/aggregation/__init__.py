"""Aggregation protocols: how the sum of the devices' vectors is formed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcfl.errors import UsageError
from hpcfl.plugins import load_object

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


def find(name: str) -> type[AggregationProtocol]:
    """Return the protocol called `name`, or the class that ``module:Class`` names.

    Raises
    ------
    UsageError
        If there is none.
    """
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
