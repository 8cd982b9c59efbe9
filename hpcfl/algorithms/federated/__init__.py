"""Federated algorithms: who takes part in a round, what they contribute, and what it costs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcfl.algorithms.federated.base import FederatedAlgorithm

SPARSIFIED = ("rand-k", "top-k")
"""Algorithms that send some coordinates of an update, in the clear."""

NOISY = ("cdp", "dp-dsgd", "fedsgd-dpc")
"""Algorithms whose devices clip every sample's gradient and add noise in every step."""

PRIVATE = (*NOISY, "dp-fedavg", "locks")
"""Algorithms with an account of what they cost in privacy."""

_CLASSES = {
    "fedavg": "base:FedAvg",
    "rand-k": "sparsification:RandKFedAvg",
    "top-k": "sparsification:TopKFedAvg",
    "cdp": "noisysgd:NoisySGD",
    "dp-dsgd": "noisysgd:DistributedSGD",
    "fedsgd-dpc": "noisysgd:FedSGDDPC",
    "dp-fedavg": "dpfedavg:DPFedAvg",
    "locks": "locks:Locks",
}
ALGORITHMS = tuple(_CLASSES)


def find(name: str) -> type[FederatedAlgorithm]:
    """Return the class of an algorithm that is one of `ALGORITHMS`."""
    module, _, attribute = _CLASSES[name].partition(":")
    found: type[FederatedAlgorithm] = getattr(
        importlib.import_module(f"hpcfl.algorithms.federated.{module}"), attribute
    )
    return found
