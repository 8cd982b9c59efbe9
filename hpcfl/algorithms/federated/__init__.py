"""Federated algorithms: who takes part in a round, what they contribute, and what it costs.

An algorithm is a class in a file of its own and one line in `REGISTRY`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from hpcfl.errors import UsageError
from hpcfl.system.plugins import load_class

if TYPE_CHECKING:
    from hpcfl.algorithms.federated.base import FederatedAlgorithm
    from hpcfl.algorithms.federated.private import PrivateAlgorithm


class Registered(NamedTuple):
    """Where an algorithm is, and what commands say of it without importing it.

    Attributes
    ----------
    home : str
        ``MODULE:CLASS``, within this package.
    about : str
        One line for the help.
    kind : str
        ``"sparsified"``, ``"private"`` or ``""``.
    """

    home: str
    about: str
    kind: str = ""


REGISTRY = {
    "fedavg": Registered("base:FedAvg", "every device sends its update"),
    "rand-k": Registered(
        "sparsification:RandKFedAvg",
        "a random part alpha of its coordinates, in the clear",
        "sparsified",
    ),
    "top-k": Registered(
        "sparsification:TopKFedAvg",
        "the part alpha of the largest magnitude, in the clear",
        "sparsified",
    ),
    "dp-fedavg": Registered(
        "dpfedavg:DPFedAvg",
        "updates of bounded norm, Gaussian noise on their sum (McMahan et al. 2018)",
        "private",
    ),
    "cdp": Registered("noisysgd:NoisySGD", "noisy local steps (Hu, Guo and Gong 2021)", "private"),
    "dp-dsgd": Registered("noisysgd:DistributedSGD", "one noisy step a round", "private"),
    "fedsgd-dpc": Registered(
        "noisysgd:FedSGDDPC", "one noisy gradient a round, of devices in turn", "private"
    ),
    "locks": Registered(
        "locks:Locks",
        "those with larger updates are heard more often, all of it noisy",
        "private",
    ),
}


def _of_kind(kind: str) -> tuple[str, ...]:
    return tuple(name for name, known in REGISTRY.items() if known.kind == kind)


SPARSIFIED = _of_kind("sparsified")
"""Algorithms that send some coordinates of an update, in the clear."""

PRIVATE = _of_kind("private")
"""Algorithms with an account of what they cost in privacy."""


def find(name: str) -> type[FederatedAlgorithm]:
    """Return the algorithm called `name`, or the class that ``MODULE:CLASS`` names.

    Raises
    ------
    UsageError
        If there is none.
    """
    from hpcfl.algorithms.federated.base import FederatedAlgorithm

    known = REGISTRY.get(name)
    if known is None and ":" not in name:
        raise UsageError(
            f"there is no algorithm {name!r}; choose one of {', '.join(REGISTRY)}, or give "
            "MODULE:CLASS"
        )
    home = name if known is None else f"{__name__}.{known.home}"
    found: type[FederatedAlgorithm] = load_class(
        home, FederatedAlgorithm, f"the algorithm {name!r}"
    )
    return found


def find_private(name: str) -> type[PrivateAlgorithm]:
    """Return the algorithm called `name`, or ``MODULE:CLASS``, that accounts for its privacy.

    Raises
    ------
    UsageError
        If there is none.
    """
    found: Any = find(name) if name in REGISTRY or ":" in name else None
    if getattr(found, "accountant", None) is None:
        raise UsageError(
            f"there is no account for {name!r}; choose one of {', '.join(PRIVATE)}, or give "
            "MODULE:CLASS"
        )
    return found
