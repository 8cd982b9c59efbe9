"""Who holds shares of whose secrets, and what the messages about them say, worked out slowly."""

from __future__ import annotations

import itertools
import struct
from functools import cache

import numpy as np
import pytest
from protocol_rounds import BROADCASTING, SECURE, Played, bits, make, on_ring, play
from slow_reference import KEY_SHARE, SEED_SHARE, Q, SlowRound, elements, lagrange, limbs
from slow_ring import slots

from hpcfl.comm.phases import Pattern

DEVICES = 12
DROPOUTS = {2: "share_keys", 0: "masked_input", 5: "masked_input", 6: "unmask"}
# SecAgg's complete graph; then rings of an even size on which everybody is a neighbour, or all but
# one are, or few are. Of a device that is gone from the beginning the slots stay empty.
COMPLETE, NEARLY, SMALL = (12, 6), (10, 5), (4, 2)
RINGS = [("secagg-graph", COMPLETE), ("secagg-graph", NEARLY), *[(name, SMALL) for name in SECURE]]
GRAPHS = [
    *[pytest.param(name, None, None, (), id=name) for name in BROADCASTING],
    *[
        pytest.param(name, *ring, gone, id=f"{name} {ring[0]} of {12 - len(gone)}")
        for name, ring in RINGS
        for gone in ((), (8,))
    ],
]


@cache
def played_on(
    name: str, degree: int | None, threshold: int | None, gone: tuple[int, ...]
) -> tuple[Played, SlowRound]:
    dropouts = DROPOUTS | dict.fromkeys(gone, "advertise_keys")
    if degree is None or threshold is None:
        played = play(make(name, DEVICES, 5), dropouts=dropouts, index=3)
    else:
        # Four of twelve are planned to drop out: with fewer planned, the round would be refused.
        protocol = on_ring(name, DEVICES, 5, degree, threshold, alpha=0.5, dropout=0.34)
        played = play(protocol, dropouts=dropouts, index=3)
    return played, SlowRound(played)


@pytest.mark.parametrize(("name", "degree", "threshold", "gone"), GRAPHS)
def test_shares_on_the_wire_lie_on_polynomials_of_degree_t_minus_1_through_the_secrets(
    name: str, degree: int | None, threshold: int | None, gone: tuple[int, ...]
) -> None:
    played, slow = played_on(name, degree, threshold, gone)
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
    assert linked == set(rows)
    assert linked == {(j, i) for i, j in linked}
    for i in slow.sharers:
        peers = slow.peers(i)
        secret = slow.secret_values(i)
        assert limbs(slow.drawn(i, "mask key")) == secret[: KEY_SHARE - 1]
        assert limbs(slow.drawn(i, "seed")) == secret[KEY_SHARE:-1]
        # Its coefficients are those that the device's own randomness gives.
        shares = slow.shares_of(i)
        assert [rows[i, j] for j in peers] == [shares[j] for j in peers]
        for k in (0, KEY_SHARE - 2, KEY_SHARE - 1, KEY_SHARE, len(secret) - 1):
            points = [(slow.point(i, j), rows[i, j][k]) for j in peers]
            assert len({x for x, _ in points}) == len(peers) >= t
            assert secret[k] == lagrange(points[:t], at=0)
            # All further shares lie on the same polynomial, but t - 1 shares do not give it: the
            # chance that they do is 1 in q.
            assert [y for _, y in points] == [lagrange(points[:t], at=x) for x, _ in points]
            assert points[0][1] != lagrange(points[1:t], at=points[0][0])


@pytest.mark.parametrize(("name", "degree", "threshold", "gone"), GRAPHS)
def test_answers_to_the_challenge_are_the_check_plus_the_combined_limbs_of_every_owner(
    name: str, degree: int | None, threshold: int | None, gone: tuple[int, ...]
) -> None:
    played, slow = played_on(name, degree, threshold, gone)

    assert played.servers.drawn[1] == played.told("challenge")
    assert [16, 16] == [len(drawn) for drawn in played.servers.drawn]
    assert slow.sharers == list(played.sent("checks"))
    for j, content in played.sent("checks").items():
        assert np.array(slow.checks(j), "<u4").tobytes() == content
    # Of an owner they lie on a polynomial of degree t - 1 through the answer from its secret.
    for i in slow.sharers:
        shares = slow.shares_of(i)
        points = [
            [(slow.point(i, j), slow.answer(shares[j])[kind]) for j in slow.holders(i)]
            for kind in (0, 1)
        ]
        for kind in (0, 1):
            first = points[kind][: slow.threshold]
            assert slow.answer(slow.secret_values(i))[kind] == lagrange(first, at=0)
            assert [y for _, y in points[kind]] == [lagrange(first, at=x) for x, _ in points[kind]]


def test_the_challenge_is_drawn_after_all_has_been_dealt() -> None:
    for phase, pattern, count in [
        ("share_keys", Pattern.ROUTE, 1),
        ("masked_input", Pattern.GATHER, 2),
    ]:
        played = play(make("secagg", 5, 5), before=(phase, pattern))
        assert count == len(played.servers.drawn)


def test_every_limb_counts_in_an_answer() -> None:
    """A coefficient that were 0 would let its limb be shared as one likes."""
    _, slow = played_on("secagg", None, None, ())

    assert 14 == len({*slow.challenge})
    assert all(0 < c < Q for c in slow.challenge)
    assert elements(slow.played.servers.drawn[1], 14, Q) == slow.challenge
    share = list(range(KEY_SHARE + SEED_SHARE))
    before = slow.answer(share)
    for k in range(KEY_SHARE + SEED_SHARE):
        moved = slow.answer([value + (k == at) for at, value in enumerate(share)])
        assert [k < KEY_SHARE, k >= KEY_SHARE] == [
            one != other for one, other in zip(before, moved, strict=True)
        ]


@pytest.mark.parametrize(("name", "degree", "threshold", "gone"), GRAPHS)
def test_unmasking_replies_hold_one_share_of_one_secret_of_every_device_that_shared_keys(
    name: str, degree: int | None, threshold: int | None, gone: tuple[int, ...]
) -> None:
    played, slow = played_on(name, degree, threshold, gone)

    assert [j for j in (1, 3, 4, 7, 8, 9, 10, 11) if j not in gone] == list(played.sent("unmask"))
    for j, content in played.sent("unmask").items():
        assert np.array(slow.reply(j), "<u4").tobytes() == content


@pytest.mark.parametrize(("name", "degree", "threshold", "gone"), GRAPHS)
def test_a_request_is_two_bitmaps_of_survivors_and_of_those_that_uploaded_nothing(
    name: str, degree: int | None, threshold: int | None, gone: tuple[int, ...]
) -> None:
    played, slow = played_on(name, degree, threshold, gone)
    survivors = [id for id in (1, 3, 4, 6, 7, 8, 9, 10, 11) if id not in gone]

    if degree is None:
        assert bits(survivors, 12) + bits([0, 5], 12) == played.told("unmask")
        return
    told = played.told_each("unmask")
    assert [id for id in survivors if id != 6] == list(told)
    for id, request in told.items():
        # By slot of the receiver's, who is in the middle.
        around = slots(slow.order, id, degree)
        assert len(around) == min(degree + 1, 12)
        assert id == around[len(around) // 2]
        named = [[k for k, one in enumerate(around) if one in ids] for ids in (survivors, [0, 5])]
        expected = struct.pack("<I", len(survivors))
        expected += bits(named[0], len(around)) + bits(named[1], len(around))
        if name == "cohort":
            # Cohorts of 6: who survived from five places before to five behind.
            place = slow.order.index(id)
            near = [slow.order[(place + k) % 12] for k in range(-5, 6)]
            expected += bits([k for k, one in enumerate(near) if one in survivors], 11)
        assert expected == request


@pytest.mark.parametrize("name", BROADCASTING)
def test_the_key_list_is_a_bitmap_of_devices_and_then_their_keys_as_they_sent_them(
    name: str,
) -> None:
    played = play(make(name, 10, 4), dropouts={0: "advertise_keys"})
    sent = played.sent("advertise_keys")

    assert bits(range(1, 10), 10) + b"".join(sent[id] for id in range(1, 10)) == played.told(
        "advertise_keys"
    )
    assert 2 + 9 * 64 == len(played.told("advertise_keys"))


@pytest.mark.parametrize(
    ("name", "degree", "threshold", "gone"), [case for case in GRAPHS if case.values[1]]
)
def test_on_a_ring_a_key_list_is_a_nonce_a_place_and_the_neighbours_ids_and_keys_by_slot(
    name: str, degree: int, threshold: int, gone: tuple[int, ...]
) -> None:
    played, slow = played_on(name, degree, threshold, gone)
    sent, told = played.sent("advertise_keys"), played.told_each("advertise_keys")

    assert list(sent) == list(told)
    for id, message in told.items():
        around = slots(slow.order, id, degree)
        there = [slot for slot, one in enumerate(around) if one not in gone]
        neighbours = [around[slot] for slot in there if around[slot] != id]
        expected = played.nonce + struct.pack("<I", slow.order.index(id))
        expected += bits(there, len(around))
        expected += b"".join(struct.pack("<I", one) + sent[one] for one in neighbours)
        assert expected == message
        # The k / 2 next on either side, whether they are there or not.
        if degree < 11:
            ahead = around[degree // 2 + 1]
            assert slow.order[(slow.order.index(id) + 1) % 12] == ahead
