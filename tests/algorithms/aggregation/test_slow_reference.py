"""Whole rounds, also on rings and in cohorts, against slow ones, from what the devices drew."""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np
import pytest
from protocol_rounds import bits, integers_of, make, on_ring, play, raw, sent_by_device
from slow_reference import KEY_SHARE, SlowRound, lagrange, limbs, packed
from slow_ring import slots

from hpcfl.comm.phases import Pattern

DEVICES, DIM = 11, 47
DROPOUTS = {
    "nobody": {},
    "before masked_input": {1: "masked_input", 4: "masked_input", 6: "masked_input"},
    "in every phase": {0: "advertise_keys", 2: "share_keys", 5: "masked_input", 7: "unmask"},
}
# Cohorts of 2 devices, of more than half and of all: two runs of a pair may meet at both ends.
# Neighbours are few, or everybody, or fewer than a cohort has; slots of who is gone stay empty.
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


# One of each kind of links.
LINKS = ("secagg", "gaps on a ring", "cohorts of 8", "cohorts of unlinked", "graph")


def protocol_of(kind):
    name, degree, options = KINDS[kind]
    weights = np.arange(1.0, DEVICES + 1)
    options = {"locations": "bitmap", "weights": weights / weights.sum(), **options}
    if degree is None:
        return make(name, DEVICES, DIM, **options)
    return on_ring(name, DEVICES, DIM, degree, 2 if degree < 6 else 4, **options)


@cache
def played_kind(kind, dropouts):
    played = play(protocol_of(kind), dropouts=DROPOUTS[dropouts], index=4)
    return played, SlowRound(played)


@pytest.mark.parametrize("dropouts", DROPOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_uploads_are_those_of_equation_18_and_unmasked_by_the_corrected_equation_21(kind, dropouts):
    """An upload is the vector plus its private mask plus those of pairs, where some selected.

    The server takes off private masks and those of pairs with whom vanished. No printed form of
    the equation would do.
    """
    played, slow = played_kind(kind, dropouts)
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


# shares, and what is answered about them


@pytest.mark.parametrize("kind", LINKS)
def test_shares_on_the_wire_lie_on_polynomials_of_degree_t_minus_1_through_the_secrets(kind):
    played, slow = played_kind(kind, "in every phase")
    t = slow.threshold
    rows = {
        (m.header.sender, m.header.receiver): slow.decrypt(
            m.header.sender, m.header.receiver, m.payload
        )
        for m in played.messages("share_keys", Pattern.ROUTE)
        if m.header.receiver in slow.sharers
    }
    linked = {
        pair for pair in itertools.permutations(slow.sharers, 2) if pair[1] in slow.peers(pair[0])
    }
    assert linked == set(rows) == {(j, i) for i, j in linked}
    for i in slow.sharers:
        peers, secret = slow.peers(i), slow.secret_values(i)
        assert limbs(slow.drawn(i, "mask key")) == secret[: KEY_SHARE - 1]
        assert limbs(slow.drawn(i, "seed")) == secret[KEY_SHARE:-1]
        # Its coefficients are those that the device's own randomness gives.
        shares = slow.shares_of(i)
        assert [rows[i, j] for j in peers] == [shares[j] for j in peers]
        for k in (0, KEY_SHARE - 1, len(secret) - 1):
            points = [(slow.point(i, j), rows[i, j][k]) for j in peers]
            assert len({x for x, _ in points}) == len(peers) >= t
            assert secret[k] == lagrange(points[:t], at=0)
            # All further shares lie on the same polynomial, but t - 1 shares do not give it: the
            # chance that they do is 1 in q.
            assert [y for _, y in points] == [lagrange(points[:t], at=x) for x, _ in points]
            assert points[0][1] != lagrange(points[1:t], at=points[0][0])


@pytest.mark.parametrize("kind", LINKS)
def test_answers_to_the_challenge_and_to_the_request_are_those_of_every_owner(kind):
    """The check plus the combined limbs; then one share of one secret of all that shared keys."""
    played, slow = played_kind(kind, "in every phase")

    assert played.servers.drawn[1] == played.told("challenge")
    assert [16, 16] == [len(drawn) for drawn in played.servers.drawn]
    assert slow.sharers == list(played.sent("checks"))
    for j, content in played.sent("checks").items():
        assert np.array(slow.checks(j), "<u4").tobytes() == content
    assert [j for j in slow.survivors if j != 7] == list(played.sent("unmask"))
    for j, content in played.sent("unmask").items():
        assert np.array(slow.reply(j), "<u4").tobytes() == content


@pytest.mark.parametrize("kind", LINKS)
def test_what_is_told_of_pairs_is_what_their_masks_follow_from_and_not_what_their_keys_agree_on(
    kind,
):
    """Nobody has a share of device 5's mask key any more: all tell what they have in common."""
    protocol, later = protocol_of(kind), {5: "masked_input"}
    slow = SlowRound(play(protocol, dropouts=later, index=3))

    def forget(answer):
        return np.append(answer[: -4 * KEY_SHARE], raw(b"\xff" * 4 * KEY_SHARE))

    change = sent_by_device(protocol, "unmask", slow.peers(5), forget)
    played = play(protocol, dropouts=later, index=3, change=change)
    if not slow.on_ring:
        assert bits([5], DEVICES) == played.told("pairs")
    for id, message in played.told_each("pairs").items():
        around = slots(slow.order, id, slow.degree)
        assert bits([slot for slot, one in enumerate(around) if one == 5], len(around)) == message
    told = played.sent("pairs")
    assert slow.survivors == list(told)
    for j, content in told.items():
        assert content == (slow.mask_secret(5, j) if j in slow.peers(5) else b"")
        agreed = slow.agreed(5, j, "mask key")
        assert all(agreed not in m.sealed for m in played.wire.messages)
    # It is enough to take the masks off.
    played.goes_on(slow.survivors)


# what the server draws


def test_the_challenge_is_drawn_after_all_has_been_dealt():
    for before, count in [("share_keys", 1), ("masked_input", 2)]:
        assert count == len(play(make("secagg", 5, 5), before=before).servers.drawn)


def test_the_nonce_is_drawn_once_all_keys_have_come():
    """So that no device can choose its keys to the order that they give."""
    protocol = on_ring("cohort", DEVICES, DIM, 4, 2, alpha=0.4)
    begun = play(protocol, before=("advertise_keys", Pattern.GATHER))
    assert [] == begun.servers.drawn
    played = play(protocol, before=("advertise_keys", Pattern.SCATTER))
    assert [16] == [len(drawn) for drawn in played.servers.drawn]
