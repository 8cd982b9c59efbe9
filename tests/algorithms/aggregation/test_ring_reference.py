"""Whole rounds, also on rings and in cohorts, against slow ones, from what the devices drew."""

from __future__ import annotations

import math

import numpy as np
import pytest
from protocol_rounds import bits, integers_of, make, on_ring, play
from slow_reference import SlowRound, packed

from hpcfl.comm.phases import Pattern
from hpcfl.crypto.keys import insecure_secrets

DEVICES, DIM = 11, 47
DROPOUTS = {
    "nobody": {},
    "before masked_input": {1: "masked_input", 4: "masked_input", 6: "masked_input"},
    "in every phase": {0: "advertise_keys", 2: "share_keys", 5: "masked_input", 7: "unmask"},
}
# Cohorts of 2 devices, of more than half and of all: two runs of a pair may meet at both ends.
# Neighbours are few, or everybody, or fewer than a cohort has.
KINDS = {
    "secagg": ("secagg", None, {}),
    "gaps": ("sparse", None, {"alpha": 0.7, "scaling": "paper"}),
    "ring32": ("sparse", None, {"alpha": 0.7, "group": "ring32"}),
    "gaps on a ring": ("sparse", 4, {"alpha": 0.6, "group": "ring20", "levels": 900}),
    "cohorts of 2": ("cohort", 4, {"alpha": 0.2}),
    "cohorts of 8": ("cohort", 10, {"alpha": 0.7, "group": "ring32"}),
    "cohorts of unlinked": ("cohort", 4, {"alpha": 0.7, "group": "ring12", "levels": 90}),
    "one cohort": ("cohort", 10, {"alpha": 1.0}),
    "graph": ("secagg-graph", 6, {"group": "ring16", "levels": 900}),
    "few bits": ("secagg", None, {"group": "ring8", "levels": 50}),
}


def play_kind(kind, dropouts=()):
    name, degree, options = KINDS[kind]
    weights = np.arange(1.0, DEVICES + 1)
    options = {"locations": "bitmap", "weights": weights / weights.sum(), **options}
    protocol = make(name, DEVICES, DIM, **options)
    if degree is not None:
        protocol = on_ring(name, DEVICES, DIM, degree, 2, **options)
    return play(protocol, dropouts=dict(dropouts), index=3)


@pytest.mark.parametrize("dropouts", DROPOUTS.values(), ids=DROPOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_uploads_are_those_of_equation_18_and_unmasked_by_the_corrected_equation_21(kind, dropouts):
    """An upload is the vector plus its private mask plus those of pairs, where some selected.

    The server takes off private masks and those of pairs with whom vanished. No printed form of
    the equation would do.
    """
    played = play_kind(kind, dropouts)
    slow = SlowRound(played)
    received, plain = [0] * DIM, [0] * DIM

    assert slow.survivors == list(played.sent("masked_input")) == played.server.survivors
    for i in slow.survivors:
        where = slow.u(i)
        if played.protocol.name == "sparse":
            # M_i(l) = 1 - prod (1 - b_ij(l)): exactly these coordinates are sent.
            selected = [math.prod(k not in slow.b(i, j) for j in slow.peers(i)) for k in range(DIM)]
            assert [k for k in range(DIM) if not selected[k]] == where
        integers = dict(zip(where, integers_of(played, i, where).tolist(), strict=True))
        masked = slow.upload(i, integers)
        content = packed([*masked.values()], slow.modulus)
        if played.protocol.name == "sparse":
            content = bytes(4) + len(where).to_bytes(4, "little") + bits(where, DIM) + content
        assert content == played.sent("masked_input")[i]
        for k, value in masked.items():
            received[k] += value
            plain[k] += integers[k]

    total = [slow.signed(element) for element in slow.unmask(received)]
    assert plain == total == played.server.total.tolist()
    if slow.dropped:
        mistakes = [(False, True)]
        if played.protocol.name == "sparse":
            mistakes += [(False, False), (True, False)]
        for signs, indicator in mistakes:
            wrong = slow.unmask(received, right_signs=signs, right_indicator=indicator)
            assert total != [slow.signed(element) for element in wrong]


def test_the_nonce_is_drawn_once_all_keys_have_come():
    """So that no device can choose its keys to the order that they give."""
    protocol = on_ring("cohort", DEVICES, DIM, 4, 2, alpha=0.4)
    begun = play(protocol, before=("advertise_keys", Pattern.GATHER))
    assert [] == begun.servers.drawn
    played = play(protocol, before=("advertise_keys", Pattern.SCATTER))
    assert [16] == [len(drawn) for drawn in played.servers.drawn]

    # The same keys and another nonce give every device another neighbourhood.
    orders = []
    for seed in range(2):
        server = protocol.server(0, np.zeros(DIM, np.float32), insecure_secrets(seed, 0, 0))
        for id, keys in played.sent("advertise_keys").items():
            server.receive_advertise_keys(id, np.frombuffer(keys, np.uint8))
        server.finish_advertise_keys()
        orders.append(server._links.order.tolist())
        told = server.send_advertise_keys(3).tobytes()
        assert told[:16] == insecure_secrets(seed, 0, 0)(16) == server.state.nonce
        assert orders[-1][int.from_bytes(told[16:20], "little")] == 3
    assert orders[0] != orders[1]
