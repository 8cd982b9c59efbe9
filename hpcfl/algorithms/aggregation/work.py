"""What the work of a round takes, protocol by protocol, in the operations of `costs`."""

from __future__ import annotations

import math
from functools import singledispatch

from hpcfl.algorithms.aggregation.assisted import Assisted
from hpcfl.algorithms.aggregation.base import AggregationProtocol
from hpcfl.algorithms.aggregation.ckks import REPORTERS, Ckks
from hpcfl.algorithms.aggregation.coded import CodedProtocol
from hpcfl.algorithms.aggregation.cohort import Cohort
from hpcfl.algorithms.aggregation.committee import Committee
from hpcfl.algorithms.aggregation.common import CommonCoordinates
from hpcfl.algorithms.aggregation.costs import (
    Crowd,
    Operations,
    PhaseCosts,
    Phases,
    add,
    at,
    beyond_cache,
    coded,
    converted,
    exchanged,
    mask_words,
    masked_upload,
    masks,
    packed,
    received,
    reduced,
    sealed_rows,
    sent,
    streamed,
    summed,
    unpacked,
)
from hpcfl.algorithms.aggregation.fedavg import FedAvg
from hpcfl.algorithms.aggregation.lightsecagg import LightSecAgg
from hpcfl.algorithms.aggregation.prf import Prf
from hpcfl.algorithms.aggregation.quantised import QuantisedProtocol
from hpcfl.algorithms.aggregation.secagg import SecAgg
from hpcfl.algorithms.aggregation.sharing import KEY_SHARE, SEED_SHARE
from hpcfl.algorithms.aggregation.sparse import SparseSecAgg
from hpcfl.algorithms.aggregation.topology import Topology
from hpcfl.algorithms.rotation import butterflies
from hpcfl.comm.phases import Pattern
from hpcfl.crypto import ckks, shamir
from hpcfl.crypto.coding import INTERPOLATED_ROW
from hpcfl.crypto.sampling import GapSampler
from hpcfl.errors import UsageError

LIMBS = KEY_SHARE + SEED_SHARE


def costs_of(protocol: AggregationProtocol) -> list[PhaseCosts]:
    """Return what every phase of a round takes, in order.

    UsageError if nothing declares it, or not for these parameters.
    """
    phases, plan = exchanged(protocol), protocol.parameters
    if plan.security == "active":
        raise UsageError(
            "there is no cost model of --security active: leave it out, or measure it with: hpcfl "
            f"bench {protocol.name} --security active"
        )
    if "model" in phases:
        model, dim = phases["model"], _model_dim(protocol)
        add(model.device, {"message": 1})
        # The copy behind the envelope is made once for all, outside the server's time.
        add(model.server, {"message": 1})
        add(model.around, at("summed", dim / 2, dim))
    count(protocol, phases)
    if "result" in phases and protocol.summed_in is not None:
        add(phases["result"].server, {"decoded": plan.dim})
    upload = phases[protocol.upload_phase()]
    if plan.rotate:
        for work in (upload.device, phases["result"].server):
            add(work, {"butterfly": butterflies(plan.dim)})
    if isinstance(protocol, QuantisedProtocol) and protocol.noise is not None:
        add(upload.device, {"noise": protocol.inclusion * plan.dim})
    return list(phases.values())


def _model_dim(protocol: AggregationProtocol) -> int:
    """Return the number of coordinates of the model that a device is sent in a round."""
    if isinstance(protocol, CommonCoordinates) and protocol.parameters.model_update == "changed":
        return protocol.upload_dim
    return protocol.parameters.dim


def cost_notes(protocol: AggregationProtocol) -> list[str]:
    """Return in clauses what the costs leave out."""
    if isinstance(protocol, CommonCoordinates) and protocol.parameters.model_update == "changed":
        return ["without the first round, in which the whole model is sent"]
    if isinstance(protocol, Prf):
        return ["without the enrolment before the first round, one agreement a pair"]
    if isinstance(protocol, Assisted):
        return ["without the enrolment before the first round, one agreement with each helper"]
    return []


def not_played(protocol: AggregationProtocol) -> str:
    """Return why a round that can be predicted cannot be played, in a clause; "" if it can."""
    if not isinstance(protocol, SecAgg) or protocol.topology.threshold <= shamir.MAX_TERMS:
        return ""
    return (
        f"{protocol.name} among more than {2 * (shamir.MAX_TERMS - 1)} devices cannot be run: "
        f"secret sharing takes thresholds up to {shamir.MAX_TERMS}; give --degree"
    )


@singledispatch
def count(protocol: AggregationProtocol, phases: Phases) -> None:
    """Enter the operations of each phase, besides those on the model and its decoding."""
    own = getattr(protocol, "count", None)
    if own is None:
        raise UsageError(
            f"there is no cost model of {protocol.name!r}: its class has no method count; measure "
            "it with hpcfl bench"
        )
    own(phases)


@count.register
def _count_fedavg(protocol: FedAvg, phases: Phases) -> None:
    upload, dim = phases["upload"], protocol.parameters.dim
    survivors = Crowd.of(protocol.parameters).survivors
    # To be weighted takes a vector as long as to be added up.
    add(upload.device, sent(3 * dim))
    add(upload.server, received(None, survivors, dim))


@count.register
def _count_secagg(protocol: SecAgg, phases: Phases) -> None:
    crowd = Crowd.of(protocol.parameters, protocol.topology.degree)
    _advertise(phases["advertise_keys"], protocol.topology, crowd)
    _share(phases["share_keys"], protocol.topology, crowd)
    _unmask(phases["unmask"], protocol.topology, crowd)
    count_masks(protocol, phases, crowd)


def _advertise(phase: PhaseCosts, topology: Topology, crowd: Crowd) -> None:
    ring = topology.pattern is Pattern.SCATTER
    add(
        phase.device,
        {
            "message": 2,
            # Two of them to make the key pairs.
            "agreement": 2 + crowd.degree,
            "derivation": crowd.degree,
        },
    )
    add(phase.server, {"message": crowd.devices * (2 if ring else 1)})


def _share(phase: PhaseCosts, topology: Topology, crowd: Crowd) -> None:
    peers, terms, devices = crowd.degree, topology.threshold, crowd.devices
    add(
        phase.device,
        {
            "message": 4,
            # The polynomials and the two checks that are dealt, then the challenge to all else.
            "keystream": 2,
            "mask_word": terms * LIMBS,
            "share_product": (peers + 1) * terms * LIMBS,
            "share": peers,
        },
    )
    answers = devices * (peers + 1)
    add(phase.server, {"message": devices, "settled": answers})
    if topology.pattern is Pattern.SCATTER:
        add(phase.server, {"ring": devices})


def _unmask(phase: PhaseCosts, topology: Topology, crowd: Crowd) -> None:
    survivors, dropped = crowd.survivors, crowd.dropped
    ring = topology.pattern is Pattern.SCATTER
    alive = 1 + crowd.neighbours_among(survivors - 1)
    gone = crowd.neighbours_among(dropped)
    add(phase.device, {"message": 2})
    secrets, terms = survivors + dropped, topology.threshold
    work: Operations = {
        "message": survivors * (2 if ring else 1),
        # To compare a share with its holder's answer takes half of settling that answer.
        "settled": survivors * (alive + gone) / 2,
        # The key pairs of those that are gone.
        "agreement": dropped,
        "derivation": survivors,
        "share_product": terms * (SEED_SHARE * survivors + KEY_SHARE * dropped),
    }
    add(phase.server, work)
    if ring:
        # Lagrange's weights of each secret's own holders: eleven products for each of t^2.
        add(phase.server, {"share_product": 11 * secrets * terms**2})


@singledispatch
def count_masks(protocol: SecAgg, phases: Phases, crowd: Crowd) -> None:
    """Enter the upload, and the masks that are taken off the sum."""
    upload, dim, survivors = phases["masked_input"], protocol.upload_dim, crowd.survivors
    group = protocol.summed_in
    masked_upload(upload, group, dim, survivors, crowd.degree + 1)
    add(upload.device, {"agreement": crowd.degree, "derivation": crowd.degree + 1})
    pairs = crowd.dropped * crowd.neighbours_among(survivors)
    unmask = phases["unmask"].server
    add(unmask, {"agreement": pairs, "derivation": pairs})
    add(unmask, masks(group, survivors + pairs, dim) | reduced(group, dim))


@count_masks.register
def _masks_of_sparse(protocol: SparseSecAgg, phases: Phases, crowd: Crowd) -> None:
    parameters, dim, survivors = protocol.parameters, protocol.parameters.dim, crowd.survivors
    if not isinstance(protocol.sampler, GapSampler):
        raise UsageError("there is no cost model of --sampler dense; leave it at gaps")
    share = parameters.selection_probability
    selected = share * dim
    upload, unmask = phases["masked_input"], phases["unmask"].server
    pair = _cost_of_pair(protocol, protocol.sampler.words_for(dim))
    group = protocol.summed_in
    private = {"keystream": 1, **mask_words(group, selected)}
    add(upload.device, pair, crowd.degree)
    # All coordinates are gone through for the selected ones, in memory that is new.
    scanned = at("summed", dim * (1 + beyond_cache(dim)), dim)
    # Of each selected one the value is taken and converted, and its location coded, which takes
    # about as long as 1.3 conversions.
    coded = converted(selected, 2 + 1.3) | at("scattered", selected, dim)
    for work in (sent(selected), {"derivation": 1}, private, scanned, coded):
        add(upload.device, work)
    add(upload.device, packed(group, selected))
    # Its location is decoded, as fast, and its element added; in unmask, its mask comes off.
    taken = converted(selected, 1.3) | at("scattered", selected, dim)
    add(upload.server, {"message": 2} | taken | unpacked(group, selected), survivors)
    add(unmask, taken, survivors)
    add(unmask, private, survivors)
    alive = crowd.neighbours_among(survivors)
    add(unmask, pair, crowd.dropped * alive)
    add(unmask, converted(dim))


@count_masks.register
def _masks_of_common(protocol: CommonCoordinates, phases: Phases, crowd: Crowd) -> None:
    count_masks.dispatch(SecAgg)(protocol, phases, crowd)
    dim, sent = protocol.parameters.dim, protocol.upload_dim
    add(phases["masked_input"].device, converted(sent) | at("scattered", sent, dim))
    if _model_dim(protocol) < dim:
        add(phases["model"].device, at("scattered", sent, dim))
        # The model is compared with the one before, and kept.
        add(phases["model"].server, at("summed", 2 * dim, dim) | at("scattered", sent, dim))
    add(phases["result"].server, converted(sent) | at("scattered", sent / 2, sent))


@count_masks.register
def _masks_of_cohort(protocol: Cohort, phases: Phases, crowd: Crowd) -> None:
    dim, size, survivors = protocol.parameters.dim, protocol.cohort_size, crowd.survivors
    group = protocol.summed_in
    segment = dim / crowd.devices
    run = size * segment
    # Those at a distance of 1, 2, ... on either side have ever less in common.
    reach = min(size - 1, math.ceil(crowd.degree / 2))
    both = min(2 * reach, crowd.degree)
    common = 2 * sum(size - distance for distance in range(1, reach + 1)) * segment
    pairs: Operations = {
        "agreement": both,
        # The pair's secret, and the key of the run.
        "derivation": 2 * both,
        "keystream": both,
        "common_run": both,
        **streamed(group, common, run),
    }
    own: Operations = {"keystream": 1, **streamed(group, run, run)}
    upload, unmask = phases["masked_input"], phases["unmask"]
    # A place of the run turned into a coordinate takes a third of one of the two conversions.
    masking = (pairs, {"derivation": 1}, own)
    for work in (*masking, sent(run), converted(run, 2.3), at("scattered", run, dim)):
        add(upload.device, work)
    add(upload.device, packed(group, run))
    add(upload.server, received(group, survivors, run))
    add(upload.server, unpacked(group, run), survivors)
    add(unmask.server, own, survivors)
    alive = survivors / max(1, crowd.devices - 1)
    add(unmask.server, pairs, crowd.dropped * alive)
    # What is taken off for each device.
    add(unmask.server, summed(group, run, crowd.devices))
    # To look whether a neighbour shares the cohort takes as long as to settle an answer.
    add(unmask.server, {"settled": crowd.dropped * crowd.neighbours_among(survivors)})
    # The sum is reduced, in half of a conversion, and goes from places to coordinates, which
    # lie evenly: the caches help.
    add(unmask.server, converted(dim, 0.8) | at("scattered", dim / 3, dim))


def _cost_of_pair(protocol: SparseSecAgg, gaps: int) -> Operations:
    """Return what a pair's selection and masks take (`pair_masks`), drawn in so many gaps."""
    dim = protocol.parameters.dim
    selected = float(protocol.parameters.pair_probability) * dim
    return {
        "derivation": 3,
        "agreement": 1,
        # Of its gaps and of its masks, each one of many that are read in a row.
        "mask_key": 2,
        "gap": gaps,
        **mask_words(protocol.summed_in, selected),
        **at("scattered", selected, dim),
    }


@count.register
def _count_prf(protocol: Prf, phases: Phases) -> None:
    plan, upload = protocol.parameters, phases["masked_input"]
    dim, devices = plan.dim, plan.devices
    masked_upload(upload, protocol.summed_in, dim, devices, devices - 1)
    add(upload.device, {"derivation": devices - 1})
    add(upload.server, reduced(protocol.summed_in, dim))


@count.register
def _count_assisted(protocol: Assisted, phases: Phases) -> None:
    dim, group, survivors = (
        protocol.upload_dim,
        protocol.summed_in,
        Crowd.of(protocol.parameters).survivors,
    )
    if protocol.parameters.shared:
        whole = protocol.parameters.dim
        add(phases["masked_input"].device, converted(dim) | at("scattered", dim, whole))
        add(phases["result"].server, converted(dim) | at("scattered", dim / 2, dim))
    upload = phases["masked_input"]
    helpers = protocol.helpers_in_round
    masked_upload(upload, group, dim, survivors, helpers)
    add(upload.device, {"derivation": helpers})
    if protocol.parameters.helper_dropout:
        add(upload.device, {"message": 1})
        add(upload.helper, {"message": 1})
        add(upload.server, {"message": helpers + 1})
    unmask = phases["unmask"]
    work = {"message": 2, "derivation": survivors} | packed(group, dim)
    add(unmask.helper, work | masks(group, survivors, dim))
    # Their answers are added up as uploads are.
    add(unmask.server, received(group, helpers, dim) | unpacked(group, helpers * dim))
    add(phases["result"].server, reduced(group, dim))


@count.register
def _count_ckks(protocol: Ckks, phases: Phases) -> None:
    dim, survivors = protocol.parameters.dim, Crowd.of(protocol.parameters).survivors
    blocks = ckks.blocks(dim)
    size = blocks * (4 + ckks.TYPICAL_BYTES)
    upload = phases["encrypted_input"]
    phases["encrypted_input"].members = phases["decrypt"].members = REPORTERS
    add(upload.device, sent(size / 4) | {"encrypted": blocks, "key_read": 1})
    add(upload.server, {"message": 2 * survivors, "ciphertext": blocks * survivors})
    decrypt = phases["decrypt"]
    add(decrypt.device, {"message": 1, "decrypted": blocks, "key_read": 1})
    add(decrypt.member, sent(2 * dim))
    # To write the sum takes about as long as to read and add a vector.
    add(decrypt.server, {"message": REPORTERS, "ciphertext": blocks})
    add(decrypt.server, at("summed", 2 * dim, dim))


def _recovery(protocol: CodedProtocol, answers: float) -> Operations:
    """Return what it takes to recover what was coded from so many sums of pieces."""
    code = protocol.code
    return {
        "recovered": 1,
        "answered": answers * code.width,
        "interpolated": code.needed * (code.pieces + INTERPOLATED_ROW),
    } | coded(protocol.field, code.pieces, code.needed, code.width)


@count.register
def _count_lightsecagg(protocol: LightSecAgg, phases: Phases) -> None:
    code, crowd = protocol.code, Crowd.of(protocol.parameters)
    devices, peers, survivors = crowd.devices, crowd.devices - 1, crowd.survivors
    advertise = phases["advertise_keys"]
    # One of them to make the key pair.
    add(advertise.device, {"message": 2, "agreement": 1 + peers, "derivation": peers})
    add(advertise.server, {"message": devices})

    share, row = phases["share_masks"], protocol.row_bytes
    words = code.dim + code.private * code.width
    add(
        share.device,
        {
            "message": 4,
            "keystream": 2,
            "mask_word": words,
        }
        | coded(protocol.field, code.devices, code.needed, code.width),
    )
    # Its own and theirs.
    add(share.device, sealed_rows(peers, row), 2)
    add(share.device, packed(protocol.field, peers * code.width))
    add(share.device, unpacked(protocol.field, peers * code.width))
    add(share.server, {"message": devices})

    masked_upload(phases["masked_input"], protocol.summed_in, code.dim, survivors, 1)

    unmask = phases["unmask"]
    add(unmask.device, {"message": 2} | summed(None, code.width, survivors))
    add(unmask.device, packed(protocol.field, code.width))
    add(unmask.server, {"message": survivors} | unpacked(protocol.field, survivors * code.width))
    add(unmask.server, _recovery(protocol, survivors))
    add(unmask.server, converted(code.dim, 2))


@count.register
def _count_committee(protocol: Committee, phases: Phases) -> None:
    code, crowd = protocol.code, Crowd.of(protocol.parameters)
    devices, survivors, members = crowd.devices, crowd.survivors, code.devices
    # Those that are there after the upload, of the members.
    there = members * survivors / devices
    advertise = phases["advertise_keys"]
    # One of them to make the key pair.
    pairs = {"agreement": 1 + members, "derivation": members}
    add(advertise.device, {"message": 2} | pairs)
    # A member agrees once, with all others, and not with the members before.
    more = devices - 1 - members
    add(advertise.member, {"message": 1, "agreement": more, "derivation": more})
    add(advertise.server, {"message": devices})

    share, row = phases["share_input"], protocol.row_bytes
    # A member keeps its own share.
    add(
        share.device,
        {
            "message": 1,
            "keystream": 1,
            "mask_word": code.private * code.width,
        }
        | coded(protocol.field, code.devices, code.needed, code.width)
        | packed(protocol.field, members * code.width)
        | sealed_rows(members, row)
        | converted(code.dim, 2),
    )
    add(share.member, {"message": 2} | sealed_rows(survivors, row))
    add(share.member, unpacked(protocol.field, survivors * code.width))
    add(share.server, {"message": there})

    summing = phases["sum_shares"]
    add(summing.member, {"message": 2} | summed(None, code.width, survivors))
    add(summing.member, packed(protocol.field, code.width))
    add(summing.server, {"message": there} | _recovery(protocol, there))
    add(summing.server, unpacked(protocol.field, there * code.width))
    # It is decoded in a copy, which takes half of what adding it up does.
    add(phases["result"].server, at("summed", code.dim / 2, code.dim))
