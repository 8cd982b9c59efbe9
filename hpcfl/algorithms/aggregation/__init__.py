"""Aggregation protocols: how the sum of the devices' vectors is formed.

To add a protocol, write a class in its own file, which declares everything that commands need, and
add one line to `PROTOCOLS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpcfl.algorithms.registry import find_class, registry
from hpcfl.errors import UsageError
from hpcfl.system.plugins import load_class

if TYPE_CHECKING:
    from hpcfl.algorithms.aggregation.base import AggregationProtocol

PROTOCOLS = registry(
    __name__,
    {
        "fedavg": ("fedavg:FedAvg", "plain vectors, the floor"),
        "secagg": ("secagg:SecAgg", "masks between all pairs (Bonawitz et al. 2017)"),
        "secagg-graph": (
            "graph:GraphSecAgg",
            "masks between neighbours on a ring (Bell et al. 2020)",
        ),
        "sparse": ("sparse:SparseSecAgg", "coordinates that pairs select (Ergun et al. 2021)"),
        "cohort": ("cohort:Cohort", "a part alpha of the coordinates, each masked in a cohort"),
        "common": (
            "common:CommonCoordinates",
            "secagg on one random subset of the coordinates, shared by all devices",
        ),
        "lightsecagg": (
            "lightsecagg:LightSecAgg",
            "masks whose sum is recovered in one go (So et al. 2022)",
        ),
        "committee": (
            "committee:Committee",
            "no masks, shares that a committee adds up (as in DisAgg, 2026)",
        ),
        "opa": (
            "opa:Opa",
            "one message: ring-LWE masks, keys shared with a committee (as in OPA, 2024)",
        ),
        "assisted": ("assisted:Assisted", "masks whose sums helpers tell (Behnia et al. 2024)"),
        "pine": ("pine:Pine", "vectors proven short to two servers (Rothblum et al. 2024)"),
        "ckks": ("ckks:Ckks", "homomorphic encryption under a shared key (extra hpcfl[ckks])"),
        "prf": ("prf:Prf", "masks from seeds agreed on once, no dropouts (Hu et al. 2021)"),
    },
)
# Variants of these protocols against a server that cheats.
ACTIVE = registry(
    __name__,
    {
        "secagg": ("active:ActiveSecAgg", "the same, against a server that cheats"),
        "sparse": ("active:ActiveSparse", "the same, against a server that cheats"),
    },
)


def find(
    name: str, security: str = "passive", others: Sequence[str] = ()
) -> type[AggregationProtocol]:
    """Return the protocol called `name`, or the class that ``MODULE:CLASS`` names.

    The `security` is ``"passive"``, or ``"active"`` for the variant against a server that cheats.
    Raise UsageError for an unknown name; `others` are further names that the user may have meant.
    """
    from hpcfl.algorithms.aggregation.base import AggregationProtocol

    found: type[AggregationProtocol]
    found = find_class(name, PROTOCOLS, AggregationProtocol, "protocol", others)
    uploads = [step.phase for step in getattr(found, "steps", ()) if step.upload]
    if len(uploads) != 1:
        raise UsageError(
            f"the protocol {name!r} must have steps, a tuple of hpcfl.comm.phases.Step, exactly "
            f"one of them with upload=True; these have it: {', '.join(uploads) or 'none'}"
        )
    active = active_variant(found) if security == "active" else found
    if active is None:
        raise UsageError(f"{name} cannot be run with --security active: use {' or '.join(ACTIVE)}")
    return active


def active_variant(kind: type[AggregationProtocol]) -> type[AggregationProtocol] | None:
    """Return the variant of a protocol against a server that cheats, or None."""
    from hpcfl.algorithms.aggregation.base import AggregationProtocol

    known = ACTIVE.get(kind.name)
    return None if known is None else load_class(known.home, AggregationProtocol, kind.name)


def find_named(name: str, given: str | None = None) -> type[AggregationProtocol]:
    """Return the protocol that a file names; the user may have `given` its ``MODULE:CLASS``.

    A file never decides which code is loaded: the user must name the class of a protocol that does
    not come with hpcfl. Raise UsageError otherwise.
    """
    if name in PROTOCOLS:
        return find(name)

    if given is None:
        raise UsageError(
            f"the protocol {name!r} does not come with hpcfl: name its class with "
            "--protocol MODULE:CLASS"
        )
    found = find(given)
    if found.name != name:
        raise UsageError(f"the protocol is {name!r}, and --protocol {given} is {found.name!r}")
    return found
