"""Federated algorithms: a round's participants, their contributions, and the privacy costs.

To add an algorithm, write a class in its own file, and add one line to `REGISTRY`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcfl.algorithms.aggregation import PROTOCOLS
from hpcfl.algorithms.registry import find_class, registry
from hpcfl.errors import UsageError, no_such

if TYPE_CHECKING:
    from hpcfl.algorithms.federated.base import FederatedAlgorithm
    from hpcfl.algorithms.federated.private import PrivateAlgorithm


# The last word is the group that the algorithm is listed in: "sparsified", "private" or none.
REGISTRY = registry(
    __name__,
    {
        "fedavg": ("base:FederatedAveraging", "every device sends its update"),
        "rand-k": (
            "sparsification:RandK",
            "a random part alpha of its coordinates, in the clear",
            "sparsified",
        ),
        "top-k": (
            "sparsification:TopK",
            "the part alpha of the largest magnitude, in the clear",
            "sparsified",
        ),
        "dp-fedavg": (
            "dpfedavg:DPFedAvg",
            "updates of bounded norm, Gaussian noise on their sum (McMahan et al. 2018)",
            "private",
        ),
        "cdp": ("noisysgd:NoisySGD", "noisy local steps (Hu, Guo and Gong 2021)", "private"),
        "dp-dsgd": ("noisysgd:DistributedSGD", "one noisy step a round", "private"),
        "fedsgd-dpc": (
            "noisysgd:FedSGDDPC",
            "one noisy gradient a round, of devices in turn",
            "private",
        ),
        "locks": (
            "locks:Locks",
            "devices with larger updates take part more often; all with noise",
            "private",
        ),
    },
)


SPARSIFIED = tuple(name for name, known in REGISTRY.items() if known.kind == "sparsified")
"""Algorithms that send some coordinates of an update, in the clear."""

PRIVATE = tuple(name for name, known in REGISTRY.items() if known.kind == "private")
"""Algorithms with an account of what they cost in privacy."""


def find(name: str) -> type[FederatedAlgorithm]:
    """Return the algorithm called `name`, or the class that ``MODULE:CLASS`` names.

    Raise UsageError if there is none.
    """
    from hpcfl.algorithms.federated.base import FederatedAlgorithm

    if name in PROTOCOLS and name not in REGISTRY:
        raise UsageError(
            f"{name} is a protocol: train an algorithm by it, as in "
            f"hpcfl train fedavg --aggregate {name}"
        )
    found = find_class(name, REGISTRY, FederatedAlgorithm, "algorithm")
    if found.private and getattr(found, "account", None) is None:
        raise UsageError(
            f"the algorithm {name!r} is private without an account of what it costs: make it a "
            "PrivateAlgorithm with an accountant"
        )
    return found


def find_private(name: str) -> type[PrivateAlgorithm]:
    """Return the private algorithm called `name`, or the one that ``MODULE:CLASS`` names.

    Raise UsageError if there is none.
    """
    found: Any = find(name) if name in PRIVATE or ":" in name else None
    if found is None or not found.private:
        raise no_such("private algorithm", name, PRIVATE, also="or give MODULE:CLASS")
    return found
