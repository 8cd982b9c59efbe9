"""Who holds shares of whose secrets, and what the messages about them say, worked out slowly."""

from __future__ import annotations

import itertools
import struct
from functools import cache

import numpy as np
import pytest
from protocol_rounds import BROADCASTING, SECURE, Played, bits, make, on_ring, play
from slow_reference import MASK_KEY_LIMBS, SlowRound, lagrange, limbs

from hpcfl.comm.phases import Pattern

DEVICES = 12
DROPOUTS = {2: "share_keys", 0: "masked_input", 5: "masked_input", 6: "unmask"}
# SecAgg's complete graph; then rings of an odd and an even size, on which everybody is a neighbour,
# or everybody once a device is gone, or few are.
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
        protocol = on_ring(name, DEVICES, 5, degree, threshold, alpha=0.5)
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
        secret = limbs(slow.drawn(i, "mask key")) + limbs(slow.drawn(i, "seed"))
        # Its coefficients are those that the device's own randomness gives.
        shares = slow.shares_of(i)
        assert [rows[i, j] for j in peers] == [shares[j] for j in peers]
        for k in (0, MASK_KEY_LIMBS - 1, MASK_KEY_LIMBS, len(secret) - 1):
            points = [(slow.point(i, j), rows[i, j][k]) for j in peers]
            assert len({x for x, _ in points}) == len(peers) >= t
            assert secret[k] == lagrange(points[:t], at=0)
            # All further shares lie on the same polynomial, but t - 1 shares do not give it: the
            # chance that they do is 1 in q.
            assert [y for _, y in points] == [lagrange(points[:t], at=x) for x, _ in points]
            assert points[0][1] != lagrange(points[1:t], at=points[0][0])


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
        slots = slow.holders(id)
        named = [[k for k, one in enumerate(slots) if one in ids] for ids in (survivors, [0, 5])]
        assert bits(named[0], len(slots)) + bits(named[1], len(slots)) == request
        assert len(slots) == min(degree + 1, 12 - len(gone))
        assert id == slots[len(slots) // 2]


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
def test_on_a_ring_a_key_list_is_a_place_and_the_neighbours_ids_and_keys_by_slot(
    name: str, degree: int, threshold: int, gone: tuple[int, ...]
) -> None:
    played, slow = played_on(name, degree, threshold, gone)
    sent, told = played.sent("advertise_keys"), played.told_each("advertise_keys")

    assert list(sent) == list(told)
    assert {*range(len(sent))} == {struct.unpack("<II", one[:8])[1] for one in told.values()}
    for id, message in told.items():
        neighbours = [one for one in slow.holders(id) if one != id]
        expected = struct.pack("<II", len(sent), slow.order.index(id))
        expected += b"".join(struct.pack("<I", one) + sent[one] for one in neighbours)
        assert expected == message
        assert 8 + 68 * min(degree, len(sent) - 1) == len(message)
        # The k / 2 next on either side.
        if degree < len(sent) - 1:
            ahead = neighbours[degree // 2]
            assert slow.order[(slow.order.index(id) + 1) % len(sent)] == ahead
