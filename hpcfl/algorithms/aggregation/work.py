"""The terms of the learned cost model: quantities that a party's work in a round grows with.

`terms` gives the amount of each for a party in a round: peers, values, masked values, and the like;
your own protocol declares them in a method ``terms``. The cost per unit is learned from small real
rounds (:mod:`hpcfl.costmodel.learning`), for each protocol and party separately, so a term need
only be proportional to the work. Each party also has a constant cost per round. Values that do not
fit the cache cost more: `far` counts them in a second term.
"""

from __future__ import annotations

import math
from functools import singledispatch

from hpcfl.algorithms.aggregation.assisted import Assisted
from hpcfl.algorithms.aggregation.base import AggregationProtocol
from hpcfl.algorithms.aggregation.ckks import Ckks
from hpcfl.algorithms.aggregation.coded import CodedProtocol
from hpcfl.algorithms.aggregation.cohort import Cohort
from hpcfl.algorithms.aggregation.committee import Committee
from hpcfl.algorithms.aggregation.common import CommonCoordinates
from hpcfl.algorithms.aggregation.fedavg import FedAvg
from hpcfl.algorithms.aggregation.flamingo import Flamingo
from hpcfl.algorithms.aggregation.lightsecagg import LightSecAgg
from hpcfl.algorithms.aggregation.opa import Opa
from hpcfl.algorithms.aggregation.pine import Pine
from hpcfl.algorithms.aggregation.prf import Prf
from hpcfl.algorithms.aggregation.quantised import QuantisedProtocol
from hpcfl.algorithms.aggregation.secagg import SecAgg
from hpcfl.algorithms.aggregation.sparse import SparseSecAgg
from hpcfl.algorithms.parameters import Parameters
from hpcfl.crypto import ckks
from hpcfl.crypto.groups import Group, Ring
from hpcfl.errors import UsageError
from hpcfl.values import dataclass

Terms = dict[str, float]
# Number of coordinates, of eight bytes each, that fit the cache.
CACHED = 1 << 17


@dataclass(frozen=True)
class Crowd:
    """The numbers of devices in a round with exactly the planned dropouts."""

    devices: int  # N
    degree: int  # neighbours of a device
    dropped: int

    @classmethod
    def of(cls, parameters: Parameters, degree: int | None = None) -> Crowd:
        """Return the numbers for a round; by default, all devices are neighbours."""
        known = parameters.devices - 1 if degree is None else degree
        return cls(parameters.devices, known, parameters.planned_dropouts)

    @property
    def survivors(self) -> int:
        """Number of devices whose vectors are in the sum."""
        return self.devices - self.dropped

    @property
    def broken_pairs(self) -> float:
        """Expected number of pairs of neighbours with one survivor and one dropped device."""
        return self.dropped * self.degree * self.survivors / max(1, self.devices - 1)


def far(name: str, count: float, length: float | None = None) -> Terms:
    """Return the work on `count` values of a vector of `length` (`count` by default)."""
    length = count if length is None else length
    beyond = max(0.0, 1 - CACHED / length) if length else 0.0
    return {name: count, f"{name}, not cached": count * beyond}


def masked(group: Group, count: float, name: str = "masked values") -> Terms:
    """Return the work of adding `count` keystream elements to a vector; in a ring, by bytes."""
    if isinstance(group, Ring):
        return {f"{name}, bytes": count * group.dtype.itemsize}
    return {name: count}


def summed(group: Group, vectors: float, length: float) -> Terms:
    """Return the work of unpacking and adding up `vectors` uploads of `length` values."""
    ring = isinstance(group, Ring)
    size = group.dtype.itemsize if ring else 1
    name = "received values, bytes" if ring else "received values"
    return far(name, vectors * length * size, length) | packed(group, vectors * length)


def packed(group: Group, count: float) -> Terms:
    """Return the work of packing, or unpacking, `count` elements."""
    return {} if group.whole_words else {"packed bytes": count * group.bits / 8}


def coded(group: Group, rows: int, inner: int, columns: int) -> Terms:
    """Return the work of a matrix product; elements of at most 16 bits take a quarter."""
    name = "products of short elements" if group.bits <= 16 else "products"
    return {name: float(rows * inner * columns)}


@singledispatch
def terms(protocol: AggregationProtocol) -> dict[str, Terms]:
    """Return the terms of each party's work in a round, without the constant.

    Parties are ``device``, ``server`` and, if the protocol has them, ``helper`` and ``member`` of a
    committee; a member's work includes its work as a device. UsageError if there are no terms.
    """
    own = getattr(protocol, "terms", None)
    if own is None:
        raise UsageError(
            f"there is no cost model of {protocol.name!r}: its class has no method terms; measure "
            "it with hpcfl bench"
        )
    found: dict[str, Terms] = own()
    return found


def notes(protocol: AggregationProtocol) -> list[str]:
    """Return clauses that state what the costs leave out."""
    if isinstance(protocol, Prf | Flamingo):
        return ["without the enrolment before the first round: a key agreement of each pair"]
    if isinstance(protocol, Assisted | Pine):
        return ["without the enrolment before the first round: a key agreement with each helper"]
    if isinstance(protocol, QuantisedProtocol) and protocol.keeps_transport_keys:
        return ["without the agreement on transport keys, once for each pair of devices"]
    return []


@terms.register
def _of_fedavg(protocol: FedAvg) -> dict[str, Terms]:
    dim, crowd = protocol.parameters.dim, Crowd.of(protocol.parameters)
    return {
        "device": far("values", dim),
        "server": {"devices": crowd.devices, **far("received values", crowd.survivors * dim, dim)},
    }


@terms.register
def _of_secagg(protocol: SecAgg) -> dict[str, Terms]:
    if protocol.parameters.security == "active":
        raise UsageError(
            "there is no cost model of --security active: leave it out, or measure it with: hpcfl "
            f"bench {protocol.name} --security active"
        )
    crowd = Crowd.of(protocol.parameters, protocol.topology.degree)
    device = {"peers": crowd.degree, "shares": crowd.degree * protocol.topology.threshold}
    server = {
        "devices": crowd.devices,
        "answers": crowd.devices * crowd.degree,
        "pairs": crowd.broken_pairs,
    }
    for_device, for_server = mask_terms(protocol, crowd)
    return {"device": device | for_device, "server": server | for_server}


@singledispatch
def mask_terms(protocol: SecAgg, crowd: Crowd) -> tuple[Terms, Terms]:
    """Return the terms of masking a vector, and of removing masks from the sum."""
    group, dim, survivors = protocol.summed_in, protocol.upload_dim, crowd.survivors
    device = far("values", dim) | masked(group, (crowd.degree + 1) * dim)
    unmasked = masked(group, (survivors + crowd.broken_pairs) * dim, "unmasked values")
    server = summed(group, survivors, dim) | unmasked | far("values", dim)
    return device | packed(group, dim), server


@mask_terms.register
def _masks_of_sparse(protocol: SparseSecAgg, crowd: Crowd) -> tuple[Terms, Terms]:
    dim, survivors = protocol.parameters.dim, crowd.survivors
    group, selected = protocol.summed_in, protocol.inclusion * dim
    of_pair = float(protocol.pair_probability) * dim
    device = (
        far("coordinates", dim)
        | far("selected values", selected, dim)
        | far("masked values", crowd.degree * of_pair, dim)
    )
    server = (
        far("coordinates", dim)
        | far("received values", survivors * selected, dim)
        | far("unmasked values", crowd.broken_pairs * of_pair, dim)
    )
    return device | packed(group, selected), server | packed(group, survivors * selected)


@mask_terms.register
def _masks_of_common(protocol: CommonCoordinates, crowd: Crowd) -> tuple[Terms, Terms]:
    device, server = mask_terms.dispatch(SecAgg)(protocol, crowd)
    whole = far("coordinates", protocol.parameters.dim)
    return device | whole, server | whole


@mask_terms.register
def _masks_of_cohort(protocol: Cohort, crowd: Crowd) -> tuple[Terms, Terms]:
    dim, size, survivors = protocol.parameters.dim, protocol.cohort_size, crowd.survivors
    group, segment = protocol.summed_in, dim / crowd.devices
    run = size * segment
    # Devices at distances 1, 2, ... on either side share ever fewer coordinates.
    reach = min(size - 1, math.ceil(crowd.degree / 2))
    both = min(2 * reach, crowd.degree)
    common = 2 * sum(size - distance for distance in range(1, reach + 1)) * segment
    gone = crowd.dropped * survivors / max(1, crowd.devices - 1)
    device = {"cohort": both} | far("values", run, dim) | masked(group, common + run)
    server = (
        {"cohorts": gone * both}
        | far("coordinates", dim)
        | far("received values", survivors * run, dim)
        | masked(group, gone * common + survivors * run, "unmasked values")
    )
    return device | packed(group, run), server | packed(group, survivors * run)


@terms.register
def _of_prf(protocol: Prf) -> dict[str, Terms]:
    group, dim, devices = protocol.summed_in, protocol.parameters.dim, protocol.parameters.devices
    device = {"peers": devices - 1} | far("values", dim) | packed(group, dim)
    server = {"devices": devices} | summed(group, devices, dim) | far("values", dim)
    return {"device": device | masked(group, (devices - 1) * dim), "server": server}


@terms.register
def _of_assisted(protocol: Assisted) -> dict[str, Terms]:
    group, dim, crowd = protocol.summed_in, protocol.upload_dim, Crowd.of(protocol.parameters)
    helpers = protocol.helpers
    device = {"helpers": helpers} | far("values", dim) | masked(group, helpers * dim)
    server = (
        {"devices": crowd.devices}
        | summed(group, crowd.survivors + helpers, dim)
        | far("values", dim)
    )
    helper = {"devices": crowd.survivors} | masked(group, crowd.survivors * dim)
    return {
        "device": device | packed(group, dim),
        "server": server,
        "helper": helper | far("values", dim) | packed(group, dim),
    }


@terms.register
def _of_pine(protocol: Pine) -> dict[str, Terms]:
    dim, survivors = protocol.parameters.dim, Crowd.of(protocol.parameters).survivors
    # One proof takes as long as another, and each of its tests goes through the vector.
    checked = {"proofs": survivors} | far("proven values", survivors * dim, dim)
    return {"device": far("proven values", dim), "server": checked, "helper": checked}


@terms.register
def _of_flamingo(protocol: Flamingo) -> dict[str, Terms]:
    group, dim, crowd = protocol.summed_in, protocol.upload_dim, Crowd.of(protocol.parameters)
    (members, needed), pairs = protocol.setting, protocol.broken_links(crowd.dropped)
    masks = masked(group, (protocol.degree + 1) * dim) | far("values", dim) | packed(group, dim)
    dealt = {"products": members * needed, "shares": members, "devices": crowd.devices}
    device = {"peers": protocol.degree} | dealt | masks
    removed = masked(group, (crowd.survivors + pairs) * dim, "unmasked values")
    server = {"devices": crowd.devices, "pairs": pairs, "points": pairs * needed}
    return {
        "device": device,
        "member": device | {"points": pairs, "shares": members + crowd.survivors},
        "server": server | summed(group, crowd.survivors, dim) | removed | far("values", dim),
    }


@terms.register
def _of_ckks(protocol: Ckks) -> dict[str, Terms]:
    dim, crowd = protocol.parameters.dim, Crowd.of(protocol.parameters)
    blocks = ckks.blocks(dim)
    device = {"blocks": blocks} | far("values", dim)
    server = {"devices": crowd.devices, "received blocks": blocks * crowd.survivors}
    return {"device": device, "member": device, "server": server | far("values", dim)}


def _recovery(protocol: CodedProtocol, answers: float) -> Terms:
    """Return the terms of decoding the coded sum from `answers` sums of pieces."""
    code = protocol.code
    return (
        {"values of answers": answers * code.width, "interpolated": code.needed * code.pieces}
        | coded(protocol.field, code.pieces, code.needed, code.width)
        | packed(protocol.field, answers * code.width)
    )


@terms.register
def _of_lightsecagg(protocol: LightSecAgg) -> dict[str, Terms]:
    code, crowd = protocol.code, Crowd.of(protocol.parameters)
    devices, field = crowd.devices, protocol.field
    pieces = devices * code.width
    device = (
        {"peers": devices - 1, "mask values": code.dim + code.private * code.width}
        | far("values", code.dim)
        | far("values of pieces", pieces)
        | coded(field, devices, code.needed, code.width)
        | packed(field, 2 * pieces)
    )
    server = (
        {"devices": devices}
        | summed(protocol.summed_in, crowd.survivors, code.dim)
        | far("values", code.dim)
        | _recovery(protocol, crowd.survivors)
    )
    return {"device": device, "server": server}


@terms.register
def _of_committee(protocol: Committee) -> dict[str, Terms]:
    code, crowd, field = protocol.code, Crowd.of(protocol.parameters), protocol.field
    members, there = code.devices, code.devices * crowd.survivors / crowd.devices
    device = (
        {"peers": members, "mask values": code.private * code.width}
        | far("values", code.dim)
        | far("values of pieces", members * code.width)
        | coded(field, members, code.needed, code.width)
        | packed(field, members * code.width)
    )
    received = crowd.survivors * code.width
    member = device | {"peers": crowd.devices} | far("received values", received)
    server = {"devices": crowd.devices} | far("values", code.dim)
    return {
        "device": device,
        "member": member | packed(field, members * code.width + received),
        "server": server | _recovery(protocol, there),
    }


@terms.register
def _of_opa(protocol: Opa) -> dict[str, Terms]:
    code, crowd, dim = protocol.code, Crowd.of(protocol.parameters), protocol.parameters.dim
    members, words = code.devices, protocol.words
    device = {"peers": members, "masked words": words} | far("values", dim)
    server = (
        {"devices": crowd.devices, "masked words": words}
        | far("values", dim)
        | far("received words", crowd.survivors * words, words)
    )
    return {
        "device": device,
        "member": device | {"dealers": crowd.survivors},
        # The field of keys grows with N: no costs of its own, which small rounds would not show.
        "server": server | {"recovered": code.needed * code.pieces * code.width},
    }
