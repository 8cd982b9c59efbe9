"""What SecAgg's secrets cost in a round: keys, shares, and the reconstruction of what is needed.

Masks are the protocols' own: see ``count_masks`` of each.
"""

from __future__ import annotations

import math

from hpcfl.algorithms.aggregation.costs import Crowd, Operations, PhaseCosts, Phases, add
from hpcfl.algorithms.aggregation.sharing import (
    ANSWERS,
    CHALLENGE_BYTES,
    KEY_SHARE,
    SEED_SHARE,
    SHARE_BYTES,
)
from hpcfl.algorithms.aggregation.topology import ADVERTISED_BYTES, NEIGHBOUR, NONCE_BYTES, Topology
from hpcfl.comm.phases import Pattern

LIMBS = KEY_SHARE + SEED_SHARE


def count(phases: Phases, topology: Topology, crowd: Crowd) -> None:
    """Enter the phases before and after the upload."""
    _advertise(phases["advertise_keys"], topology, crowd)
    _share(phases["share_keys"], topology, crowd)
    _unmask(phases["unmask"], topology, crowd)


def _advertise(phase: PhaseCosts, topology: Topology, crowd: Crowd) -> None:
    holders = crowd.degree + 1
    ring = phase.scattered = topology.pattern is Pattern.SCATTER
    if ring:
        bits = math.ceil(holders / 8)
        listed = NONCE_BYTES + 4 + bits + NEIGHBOUR.itemsize * crowd.degree
    else:
        listed = math.ceil(crowd.devices / 8) + ADVERTISED_BYTES * crowd.devices
    phase.sends(ADVERTISED_BYTES, crowd.devices)
    phase.receives(listed, crowd.devices)
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
    phase.routes(SHARE_BYTES * peers, devices, peers)
    phase.receives(CHALLENGE_BYTES, devices)
    phase.sends(4 * ANSWERS * (peers + 1), devices)
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
    holders = crowd.degree + 1
    ring = phase.scattered = topology.pattern is Pattern.SCATTER
    alive = 1 + crowd.neighbours_among(survivors - 1)
    gone = crowd.neighbours_among(dropped)
    bits = math.ceil((holders if ring else crowd.devices) / 8)
    phase.receives((4 if ring else 0) + 2 * bits, survivors)
    phase.sends(4 * (SEED_SHARE * alive + KEY_SHARE * gone), survivors)
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
