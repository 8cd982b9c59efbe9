"""How many bytes and operations a round takes, phase by phase, as expected values.

Bytes follow from the layouts in `hpcfl.algorithms.aggregation` and are exact where those are fixed;
of what chance decides (how many coordinates are selected, which neighbours drop out) it is the
expectation. Operations are those of :mod:`hpcfl.costmodel.kernels`, which measures each of them.

The devices that drop out do so before the upload, exactly floor(theta N) of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.aggregation.secagg import SHARE_BYTES, SecAgg
from hpcfl.algorithms.aggregation.sharing import ANSWERS, CHALLENGE_BYTES, KEY_SHARE, SEED_SHARE
from hpcfl.algorithms.aggregation.topology import (
    ADVERTISED_BYTES,
    NEIGHBOUR,
    NONCE_BYTES,
    Complete,
)
from hpcfl.algorithms.locations import HEADER, MAX_RICE
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm import envelope
from hpcfl.comm.phases import Pattern
from hpcfl.costmodel.kernels import CACHED, GAP_RATES
from hpcfl.crypto.groups import BLOCK_WORDS
from hpcfl.errors import UsageError

Operations = dict[str, float]
LIMBS = KEY_SHARE + SEED_SHARE


@dataclass
class PhaseCounts:
    """What a phase takes.

    Attributes
    ----------
    name : str
        The phase.
    up, down : float
        Bytes that a device sends and receives which is in the phase, envelopes included.
    messages_up, messages_down : float
        Messages of such a device.
    routed : float
        Those of the bytes that such a device sends, and receives, in rows of a route.
    senders, receivers : int
        Devices that send, and that receive.
    device : dict of str to float
        Operations of a device that is in it to its end.
    server : dict of str to float
        Operations of the server.
    around : dict of str to float
        Operations that take time and are nobody's work.
    scattered : bool
        Whether the server sends every device a message of its own.
    """

    name: str
    up: float = 0.0
    down: float = 0.0
    messages_up: float = 0.0
    messages_down: float = 0.0
    routed: float = 0.0
    senders: int = 0
    receivers: int = 0
    device: Operations = field(default_factory=dict)
    server: Operations = field(default_factory=dict)
    around: Operations = field(default_factory=dict)
    scattered: bool = False

    def sends(self, size: float, senders: int, messages: float = 1) -> None:
        """Let so many devices send messages, of so many bytes together without envelopes."""
        self.up += size + envelope.BYTES * messages
        self.messages_up += messages
        self.senders = senders

    def routes(self, size: float, devices: int, rows: float) -> None:
        """Let so many devices send each other rows, of so many bytes together of each of them."""
        self.sends(size, devices, rows)
        self.receives(size, devices, rows)
        self.routed += size + envelope.BYTES * rows

    def receives(self, size: float, receivers: int, messages: float = 1) -> None:
        """Let so many devices receive messages, of so many bytes together without envelopes."""
        self.down += size + envelope.BYTES * messages
        self.messages_down += messages
        self.receivers = receivers


def add(operations: Operations, more: Mapping[str, float], times: float = 1.0) -> None:
    """Add operations, so many times, to others, in place."""
    for name, count in more.items():
        operations[name] = operations.get(name, 0.0) + times * count


def along(length: float, names: Sequence[str], times: float = 1.0) -> Operations:
    """Return operations on all elements of a vector, of which a part may not fit the cache."""
    return {key: n for name in names for key, n in at(name, times * length, length).items()}


def at(name: str, count: float, length: float) -> Operations:
    """Return operations on some elements of a vector of that length."""
    far = max(0.0, 1 - CACHED / length) if length else 0.0
    return {name: count * (1 - far), f"{name}_far": count * far}


@dataclass(frozen=True)
class Round:
    """Who is in a round.

    Attributes
    ----------
    protocol : str
        Its name.
    parameters : Parameters
        Its parameters.
    degree, threshold : int
        Neighbours of a device, and holders that reconstruct a secret.
    ring : bool
        Whether the neighbours are those on a ring.
    cohort : int
        Devices of a cohort; 0 where there are none.
    """

    protocol: str
    parameters: Parameters
    degree: int
    threshold: int
    ring: bool
    cohort: int = 0

    @property
    def devices(self) -> int:
        """Number N of devices."""
        return self.parameters.devices

    @property
    def dim(self) -> int:
        """Number d of coordinates."""
        return self.parameters.dim

    @property
    def dropped(self) -> int:
        """Number of devices that drop out."""
        return math.floor(Fraction(repr(self.parameters.dropout)) * self.devices)

    @property
    def survivors(self) -> int:
        """Number of devices whose vectors are in the sum."""
        return self.devices - self.dropped

    def neighbours_among(self, count: int) -> float:
        """Return how many neighbours a device expects among `count` other devices."""
        return self.degree * count / max(1, self.devices - 1)


def counts(protocol: str, parameters: Parameters) -> list[PhaseCounts]:
    """Return what every phase of a round takes.

    Parameters
    ----------
    protocol : str
        A protocol that comes with hpcfl.
    parameters : Parameters
        Its parameters.

    Returns
    -------
    list of PhaseCounts
        In the order of the phases.

    Raises
    ------
    UsageError
        If the protocol is another one, or cannot have these parameters.
    """
    if protocol not in _UPLOADS:
        raise UsageError(
            f"there is no cost model of {protocol!r}; there is one of {', '.join(_UPLOADS)}"
        )
    if parameters.security != "passive":
        raise UsageError(
            f"there is no cost model of --security {parameters.security}: leave it out, or measure "
            f"it with: hpcfl bench {protocol} --security {parameters.security}"
        )
    built = find(protocol)(parameters)
    degree, threshold, ring = parameters.devices - 1, 0, False
    if isinstance(built, SecAgg):
        topology = built.topology
        degree, threshold = topology.degree, topology.threshold
        ring = topology.pattern is Pattern.SCATTER and not isinstance(topology, Complete)
    played = Round(protocol, parameters, degree, threshold, ring, getattr(built, "cohort_size", 0))
    phases = {name: PhaseCounts(name) for name in built.phases()}
    _model(played, phases["model"])
    if "share_keys" in phases:
        _advertise(played, phases["advertise_keys"])
        _share(played, phases["share_keys"])
        _unmask(played, phases["unmask"])
    _UPLOADS[protocol](played, phases)
    upload = phases[built.upload_phase()]
    add(upload.device, {f"device_{protocol}": 1})
    add(upload.server, {f"server_{protocol}": played.devices})
    add(upload.around, {f"around_{protocol}": played.devices})
    if "result" in phases and protocol != "fedavg":
        add(phases["result"].server, along(played.dim, ["decoded"]))
    return list(phases.values())


def _model(played: Round, phase: PhaseCounts) -> None:
    extra = math.ceil(played.devices / 8) if played.protocol == "prf" else 0
    phase.receives(4 * played.dim + extra, played.devices)
    add(phase.device, {"message": 1})
    # The copy behind the envelope is made once for all, outside the server's time.
    add(phase.server, {"message": 1})
    add(phase.around, {"sealed_byte": 4 * played.dim})


def _advertise(played: Round, phase: PhaseCounts) -> None:
    holders = played.degree + 1
    phase.scattered = played.ring
    if played.ring:
        bits = math.ceil(holders / 8)
        listed = NONCE_BYTES + 4 + bits + NEIGHBOUR.itemsize * played.degree
        add(phase.server, {"listed": played.devices * played.degree, "ordered": played.devices})
    else:
        listed = math.ceil(played.devices / 8) + ADVERTISED_BYTES * played.devices
    phase.sends(ADVERTISED_BYTES, played.devices)
    phase.receives(listed, played.devices)
    add(
        phase.device,
        {
            "message": 2,
            "key_pair": 2,
            "holder": holders,
            "agreement": played.degree,
            "derivation": played.degree,
        },
    )
    add(phase.server, {"message": played.devices * (2 if played.ring else 1)})


def _share(played: Round, phase: PhaseCounts) -> None:
    peers, terms, devices = played.degree, played.threshold, played.devices
    phase.routes(SHARE_BYTES * peers, devices, peers)
    phase.receives(CHALLENGE_BYTES, devices)
    phase.sends(4 * ANSWERS * (peers + 1), devices)
    add(
        phase.device,
        {
            "message": 4,
            # The polynomials and the two checks that are dealt, then the challenge to all else.
            "element_key": 2,
            "element": terms * LIMBS,
            "share_product": (peers + 1) * terms * LIMBS,
            "sealed_share": peers,
            "opened_share": peers,
            "answered": peers + 1,
        },
    )
    answers = devices * (peers + 1)
    add(phase.server, {"message": devices, "booked": devices, "settled": answers})
    if played.ring:
        add(phase.server, {"asked": devices, "ring_reply": devices})


def _unmask(played: Round, phase: PhaseCounts) -> None:
    """Enter requests, replies and the reconstruction of secrets; masks are the protocols' own."""
    survivors, dropped = played.survivors, played.dropped
    holders = played.degree + 1
    alive = 1 + played.neighbours_among(survivors - 1)
    gone = played.neighbours_among(dropped)
    bits = math.ceil((holders if played.ring else played.devices) / 8)
    around = math.ceil((2 * played.cohort - 1) / 8) if played.cohort else 0
    phase.scattered = played.ring
    phase.receives((4 if played.ring else 0) + 2 * bits + around, survivors)
    phase.sends(4 * (SEED_SHARE * alive + KEY_SHARE * gone), survivors)
    add(phase.device, {"message": 2, "reply_holder": holders})
    secrets = survivors + dropped
    limbs = SEED_SHARE * survivors + KEY_SHARE * dropped
    work: Operations = {
        "message": survivors * (2 if played.ring else 1),
        "verified": survivors,
        "verified_share": survivors * (alive + gone),
        "secret": secrets,
        "key_pair": dropped,
        "derivation": survivors,
    }
    if played.ring:
        add(
            work,
            {
                # For both lists of a request, and of a reply.
                "asked": 4 * survivors,
                "ring_reply": 2 * survivors,
                "ring_weight": secrets * played.threshold**2,
                "ring_inverse": secrets * played.threshold,
                "share_product": played.threshold * limbs,
            },
        )
    else:
        add(
            work,
            {
                "weight": played.threshold,
                "weight_pair": played.threshold**2,
                "share_product": played.threshold * limbs,
            },
        )
    add(phase.server, work)


def _pairs_to_unmask(played: Round) -> float:
    """Return the pairs of a dropped device and a surviving neighbour."""
    return played.dropped * played.neighbours_among(played.survivors)


def _masks(keys: float, words: int) -> Operations:
    """Return what it takes to add so many masks to a vector (`Group.add_masks`)."""
    blocks = math.ceil(words / BLOCK_WORDS)
    return {"mask_key": keys, "mask_block": keys * blocks, "mask_word": keys * words}


def _fedavg(played: Round, phases: Mapping[str, PhaseCounts]) -> None:
    upload, dim, survivors = phases["upload"], played.dim, played.survivors
    upload.sends(4 * dim, survivors)
    add(upload.device, {"message": 1, "sealed_byte": 4 * dim} | along(dim, ["weighted"]))
    add(upload.server, {"upload": survivors, "float_added": survivors * dim})


def _dense(played: Round, phases: Mapping[str, PhaseCounts]) -> None:
    """Secagg and secagg-graph: whole vectors, a mask for every neighbour."""
    upload, dim, survivors = phases["masked_input"], played.dim, played.survivors
    masks = played.degree + 1
    upload.sends(4 * dim, survivors)
    add(
        upload.device,
        {
            "message": 1,
            "agreement": played.degree,
            "derivation": masks,
            **along(dim, ["quantised", "reduced"]),
            **_masks(masks, dim),
            "sealed_byte": 4 * dim,
        },
    )
    add(upload.server, {"upload": survivors, "summed": survivors * dim})
    pairs = _pairs_to_unmask(played)
    add(
        phases["unmask"].server,
        {
            "agreement": pairs,
            "derivation": pairs,
            **_masks(survivors + pairs, dim),
            **along(dim, ["reduced"]),
        },
    )


def _pair_masks(probability: float, dim: int, pairs: float) -> Operations:
    """Return what a pair's selection and masks take (`SparseSecAgg.pair_masks`), of so many."""
    selected = probability * dim
    drawn = selected + 5 * math.sqrt(selected) + 8
    return {
        "derivation": 3,
        "agreement": 1,
        "gap_key": 1,
        **_gaps(probability, drawn, pairs),
        "element_key": 1,
        **at("element", selected, pairs * selected),
        **at("folded", selected, dim),
    }


def _gaps(probability: float, count: float, pairs: float) -> Operations:
    """Return gaps drawn for a pair, each as so much of the two probabilities it lies between."""
    known = sorted(GAP_RATES)
    chosen = min(max(probability, known[0]), known[-1])
    above = next(rate for rate in known if rate >= chosen)
    below = next(rate for rate in reversed(known) if rate <= chosen)
    part = math.log(chosen / below) / math.log(above / below) if above > below else 1.0
    found: Operations = {}
    add(found, at(f"gap_{GAP_RATES[below]}", count * (1 - part), pairs * count))
    add(found, at(f"gap_{GAP_RATES[above]}", count * part, pairs * count))
    return found


def _sparse(played: Round, phases: Mapping[str, PhaseCounts]) -> None:
    parameters, dim = played.parameters, played.dim
    if parameters.sampler != "gaps":
        raise UsageError("there is no cost model of --sampler dense; leave it at gaps")
    upload, survivors = phases["masked_input"], played.survivors
    share = parameters.selection_probability
    sent = share * dim
    probability = float(parameters.pair_probability)
    upload.sends(
        HEADER.itemsize + location_bytes(share, dim, parameters.locations) + 4 * sent, survivors
    )
    add(upload.device, _pair_masks(probability, dim, played.degree), played.degree)
    add(
        upload.device,
        {
            "message": 1,
            "derivation": 1,
            "element_key": 1,
            **along(dim, ["scanned"]),
            **along(sent, ["element", "quantised", "reduced"]),
            **at("located", sent, dim),
            **at("picked", sent, dim),
            "sealed_byte": 4 * sent,
        },
    )
    taken = along(dim, ["unlocated_dim"])
    for name in ("unlocated", "scatter_added"):
        add(taken, at(name, sent, dim))
    add(upload.server, taken, survivors)
    add(upload.server, {"upload": survivors})
    unmask = phases["unmask"].server
    add(unmask, taken | {"element_key": 1} | along(sent, ["element"]), survivors)
    alive = played.neighbours_among(survivors)
    add(unmask, _pair_masks(probability, dim, alive), played.dropped * alive)
    add(unmask, along(dim, ["reduced"]))


def location_bytes(share: float, dim: int, coding: str) -> float:
    """Return the expected bytes of the locations of i.i.d. coordinates, without their header."""
    bitmap = math.ceil(dim / 8)
    # E[floor(gap / 2^k)] of a geometric gap from 0: r / (1 - r), r = (1 - p)^(2^k).
    stay = 1 - share
    bits = []
    for rice in range(MAX_RICE + 1):
        ratio = stay ** (2**rice)
        bits.append(share * dim * (ratio / (1 - ratio) + 1 + rice) if ratio < 1 else math.inf)
    gaps = min(bits) / 8
    if coding == "bitmap" or (coding == "auto" and bitmap <= gaps):
        return bitmap
    return gaps


def _cohort(played: Round, phases: Mapping[str, PhaseCounts]) -> None:
    size = played.cohort
    upload, survivors = phases["masked_input"], played.survivors
    segment = played.dim / played.devices
    run = size * segment
    # Those at a distance of 1, 2, ... on either side have ever less in common.
    reach = min(size - 1, math.ceil(played.degree / 2))
    both = min(2 * reach, played.degree)
    common = 2 * sum(size - distance for distance in range(1, reach + 1)) * segment
    pairs: Operations = {
        "agreement": both,
        # The pair's secret, and the key of the run.
        "derivation": 2 * both,
        "stream_key": both,
        "near": both,
        **at("streamed", common, run),
    }
    own: Operations = {"stream_key": 1, **along(run, ["streamed"])}
    upload.sends(4 * run, survivors)
    add(upload.device, pairs)
    add(upload.device, own)
    add(
        upload.device,
        {
            "message": 1,
            "derivation": 1,
            "near": played.degree,
            **along(run, ["dealt", "quantised", "reduced"]),
            **at("picked", run, played.dim),
            "sealed_byte": 4 * run,
        },
    )
    add(upload.server, {"upload": survivors} | along(run, ["run_added"], survivors))
    unmask = phases["unmask"].server
    added = along(run, ["run_added"])
    add(unmask, own | added, survivors)
    alive = survivors / max(1, played.devices - 1)
    add(unmask, pairs, played.dropped * alive)
    add(unmask, {"near": played.neighbours_among(survivors)} | added, played.dropped)
    add(unmask, along(played.dim, ["dealt", "dealt_back", "reduced"]))


def _prf(played: Round, phases: Mapping[str, PhaseCounts]) -> None:
    upload, dim, devices = phases["masked_input"], played.dim, played.devices
    upload.sends(4 * dim, devices)
    add(
        upload.device,
        {
            "message": 1,
            "derivation": played.degree,
            **along(dim, ["quantised", "reduced"]),
            **_masks(played.degree, dim),
            "sealed_byte": 4 * dim,
        },
    )
    add(upload.server, {"upload": devices, "summed": devices * dim} | along(dim, ["reduced"]))


_UPLOADS: dict[str, Callable[[Round, Mapping[str, PhaseCounts]], None]] = {
    "fedavg": _fedavg,
    "secagg": _dense,
    "secagg-graph": _dense,
    "sparse": _sparse,
    "cohort": _cohort,
    "prf": _prf,
}
PROTOCOLS = tuple(_UPLOADS)
