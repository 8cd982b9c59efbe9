"""What the work of each party in a round grows with, protocol by protocol; see `terms`.

A protocol of one's own says it in a method ``terms``.
"""

from __future__ import annotations

import math
from functools import singledispatch

from hpcfl.algorithms.aggregation import terms as of
from hpcfl.algorithms.aggregation.assisted import Assisted
from hpcfl.algorithms.aggregation.base import AggregationProtocol
from hpcfl.algorithms.aggregation.ckks import Ckks
from hpcfl.algorithms.aggregation.coded import CodedProtocol
from hpcfl.algorithms.aggregation.cohort import Cohort
from hpcfl.algorithms.aggregation.committee import Committee
from hpcfl.algorithms.aggregation.common import CommonCoordinates
from hpcfl.algorithms.aggregation.costs import Crowd
from hpcfl.algorithms.aggregation.fedavg import FedAvg
from hpcfl.algorithms.aggregation.lightsecagg import LightSecAgg
from hpcfl.algorithms.aggregation.prf import Prf
from hpcfl.algorithms.aggregation.secagg import SecAgg
from hpcfl.algorithms.aggregation.sparse import SparseSecAgg
from hpcfl.algorithms.aggregation.terms import Terms
from hpcfl.crypto import ckks
from hpcfl.errors import UsageError


@singledispatch
def terms(protocol: AggregationProtocol) -> dict[str, Terms]:
    """Return what the work of each party in a round grows with, less what comes once.

    Parties are ``device``, ``server``, and, where there are some, ``helper`` and ``member`` of a
    committee, whose work as a device is in it. UsageError if nothing declares it.
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
    """Return in clauses what the costs leave out."""
    if isinstance(protocol, Prf):
        return ["without the enrolment before the first round, one agreement a pair"]
    if isinstance(protocol, Assisted):
        return ["without the enrolment before the first round, one agreement with each helper"]
    return []


@terms.register
def _of_fedavg(protocol: FedAvg) -> dict[str, Terms]:
    dim, crowd = protocol.parameters.dim, Crowd.of(protocol.parameters)
    return {
        "device": of.far("values", dim),
        "server": {
            "devices": crowd.devices,
            **of.far("received values", crowd.survivors * dim, dim),
        },
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
        "pairs": crowd.dropped * crowd.neighbours_among(crowd.survivors),
    }
    for_device, for_server = mask_terms(protocol, crowd)
    return {"device": device | for_device, "server": server | for_server}


@singledispatch
def mask_terms(protocol: SecAgg, crowd: Crowd) -> tuple[Terms, Terms]:
    """Return what masking a vector, and taking masks off the sum, grows with."""
    group, dim, survivors = protocol.summed_in, protocol.upload_dim, crowd.survivors
    pairs = crowd.dropped * crowd.neighbours_among(survivors)
    device = of.far("values", dim) | of.masked(group, (crowd.degree + 1) * dim)
    unmasked = of.masked(group, (survivors + pairs) * dim, "unmasked values")
    server = of.summed(group, survivors, dim) | unmasked | of.far("values", dim)
    return device | of.packed(group, dim), server


@mask_terms.register
def _masks_of_sparse(protocol: SparseSecAgg, crowd: Crowd) -> tuple[Terms, Terms]:
    dim, survivors = protocol.parameters.dim, crowd.survivors
    group, selected = protocol.summed_in, protocol.inclusion * dim
    of_pair = float(protocol.pair_probability) * dim
    pairs = crowd.dropped * crowd.neighbours_among(survivors)
    device = (
        of.far("coordinates", dim)
        | of.far("selected values", selected, dim)
        | of.far("masked values", crowd.degree * of_pair, dim)
    )
    server = (
        of.far("coordinates", dim)
        | of.far("received values", survivors * selected, dim)
        | of.far("unmasked values", pairs * of_pair, dim)
    )
    return device | of.packed(group, selected), server | of.packed(group, survivors * selected)


@mask_terms.register
def _masks_of_common(protocol: CommonCoordinates, crowd: Crowd) -> tuple[Terms, Terms]:
    device, server = mask_terms.dispatch(SecAgg)(protocol, crowd)
    whole = of.far("coordinates", protocol.parameters.dim)
    return device | whole, server | whole


@mask_terms.register
def _masks_of_cohort(protocol: Cohort, crowd: Crowd) -> tuple[Terms, Terms]:
    dim, size, survivors = protocol.parameters.dim, protocol.cohort_size, crowd.survivors
    group, segment = protocol.summed_in, dim / crowd.devices
    run = size * segment
    # Those at a distance of 1, 2, ... on either side have ever less in common.
    reach = min(size - 1, math.ceil(crowd.degree / 2))
    both = min(2 * reach, crowd.degree)
    common = 2 * sum(size - distance for distance in range(1, reach + 1)) * segment
    gone = crowd.dropped * survivors / max(1, crowd.devices - 1)
    device = {"cohort": both} | of.far("values", run, dim) | of.masked(group, common + run)
    server = (
        {"cohorts": gone * both}
        | of.far("coordinates", dim)
        | of.far("received values", survivors * run, dim)
        | of.masked(group, gone * common + survivors * run, "unmasked values")
    )
    return device | of.packed(group, run), server | of.packed(group, survivors * run)


@terms.register
def _of_prf(protocol: Prf) -> dict[str, Terms]:
    group, dim, devices = protocol.summed_in, protocol.parameters.dim, protocol.parameters.devices
    device = {"peers": devices - 1} | of.far("values", dim) | of.packed(group, dim)
    server = {"devices": devices} | of.summed(group, devices, dim) | of.far("values", dim)
    return {"device": device | of.masked(group, (devices - 1) * dim), "server": server}


@terms.register
def _of_assisted(protocol: Assisted) -> dict[str, Terms]:
    group, dim, crowd = protocol.summed_in, protocol.upload_dim, Crowd.of(protocol.parameters)
    helpers = protocol.helpers
    device = {"helpers": helpers} | of.far("values", dim) | of.masked(group, helpers * dim)
    server = (
        {"devices": crowd.devices}
        | of.summed(group, crowd.survivors + helpers, dim)
        | of.far("values", dim)
    )
    helper = {"devices": crowd.survivors} | of.masked(group, crowd.survivors * dim)
    return {
        "device": device | of.packed(group, dim),
        "server": server,
        "helper": helper | of.far("values", dim) | of.packed(group, dim),
    }


@terms.register
def _of_ckks(protocol: Ckks) -> dict[str, Terms]:
    dim, crowd = protocol.parameters.dim, Crowd.of(protocol.parameters)
    blocks = ckks.blocks(dim)
    device = {"blocks": blocks} | of.far("values", dim)
    server = {"devices": crowd.devices, "received blocks": blocks * crowd.survivors}
    return {"device": device, "member": device, "server": server | of.far("values", dim)}


def _recovery(protocol: CodedProtocol, answers: float) -> Terms:
    """Return what recovering what was coded, from so many sums of pieces, grows with."""
    code = protocol.code
    return (
        {"values of answers": answers * code.width, "interpolated": code.needed * code.pieces}
        | of.coded(protocol.field, code.pieces, code.needed, code.width)
        | of.packed(protocol.field, answers * code.width)
    )


@terms.register
def _of_lightsecagg(protocol: LightSecAgg) -> dict[str, Terms]:
    code, crowd = protocol.code, Crowd.of(protocol.parameters)
    devices, field = crowd.devices, protocol.field
    pieces = devices * code.width
    device = (
        {"peers": devices - 1, "mask values": code.dim + code.private * code.width}
        | of.far("values", code.dim)
        | of.far("values of pieces", pieces)
        | of.coded(field, devices, code.needed, code.width)
        | of.packed(field, 2 * pieces)
    )
    server = (
        {"devices": devices}
        | of.summed(protocol.summed_in, crowd.survivors, code.dim)
        | of.far("values", code.dim)
        | _recovery(protocol, crowd.survivors)
    )
    return {"device": device, "server": server}


@terms.register
def _of_committee(protocol: Committee) -> dict[str, Terms]:
    code, crowd, field = protocol.code, Crowd.of(protocol.parameters), protocol.field
    members, there = code.devices, code.devices * crowd.survivors / crowd.devices
    device = (
        {"peers": members, "mask values": code.private * code.width}
        | of.far("values", code.dim)
        | of.far("values of pieces", members * code.width)
        | of.coded(field, members, code.needed, code.width)
        | of.packed(field, members * code.width)
    )
    received = crowd.survivors * code.width
    member = device | {"peers": crowd.devices} | of.far("received values", received)
    server = {"devices": crowd.devices} | of.far("values", code.dim)
    return {
        "device": device,
        "member": member | of.packed(field, members * code.width + received),
        "server": server | _recovery(protocol, there),
    }
