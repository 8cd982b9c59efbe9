"""Who holds shares of whose secrets, and what the messages about them say, worked out slowly.

Who is expelled for shares that do not belong together, and what is told of pairs, too.
"""

from __future__ import annotations

import itertools
import struct
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
from protocol_rounds import (
    ALL,
    BROADCASTING,
    ENVELOPE_BYTES,
    Header,
    bits,
    integers_of,
    make,
    on_ring,
    play,
    sum_of,
)
from slow_reference import (
    ABSENT,
    KEY_SHARE,
    SEED_SHARE,
    Q,
    SlowRound,
    elements,
    lagrange,
    limbs,
)
from slow_ring import slots

from hpcfl.comm.phases import Pattern
from hpcfl.errors import MessageError, RefusedError

DEVICES = 12
DROPOUTS = {2: "share_keys", 0: "masked_input", 5: "masked_input", 6: "unmask"}
# SecAgg's complete graph; then rings of an even size on which everybody is a neighbour, or all but
# one are, or few are. Of a device that is gone from the beginning the slots stay empty.
COMPLETE, NEARLY, SMALL = (12, 6), (10, 5), (4, 2)
RINGS = [
    ("secagg-graph", COMPLETE, ()),
    ("secagg-graph", NEARLY, ()),
    ("secagg-graph", NEARLY, (8,)),
    ("sparse", SMALL, ()),
    ("cohort", SMALL, ()),
    ("cohort", SMALL, (8,)),
]


class Graph(NamedTuple):
    """A protocol, degree and threshold of its ring, and who is gone before there is one."""

    name: str
    degree: int | None = None
    threshold: int | None = None
    gone: tuple[int, ...] = ()


GRAPHS = [
    pytest.param(Graph("secagg"), id="secagg"),
    *[
        pytest.param(Graph(name, *ring, gone), id=f"{name} {ring[0]} of {12 - len(gone)}")
        for name, ring, gone in RINGS
    ],
]


@cache
def played_on(graph):
    dropouts = DROPOUTS | dict.fromkeys(graph.gone, "advertise_keys")
    played = play(protocol_on(graph), dropouts=dropouts, index=3)
    return played, SlowRound(played)


def protocol_on(graph):
    name, degree, threshold, _ = graph
    if degree is None or threshold is None:
        return make(name, DEVICES, 5)
    # Four of twelve are planned to drop out: with fewer planned, the round would be refused.
    return on_ring(name, DEVICES, 5, degree, threshold, alpha=0.5, dropout=0.34)


@pytest.mark.parametrize("graph", GRAPHS)
def test_shares_on_the_wire_lie_on_polynomials_of_degree_t_minus_1_through_the_secrets(graph):
    played, slow = played_on(graph)
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


@pytest.mark.parametrize("graph", GRAPHS)
def test_answers_to_the_challenge_are_the_check_plus_the_combined_limbs_of_every_owner(graph):
    played, slow = played_on(graph)

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


def test_the_challenge_is_drawn_after_all_has_been_dealt():
    for phase, pattern, count in [
        ("share_keys", Pattern.ROUTE, 1),
        ("masked_input", Pattern.GATHER, 2),
    ]:
        played = play(make("secagg", 5, 5), before=(phase, pattern))
        assert count == len(played.servers.drawn)


def test_every_limb_counts_in_an_answer():
    """A coefficient that were 0 would let its limb be shared as one likes."""
    _, slow = played_on(Graph("secagg"))

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


@pytest.mark.parametrize("graph", GRAPHS)
def test_unmasking_replies_hold_one_share_of_one_secret_of_every_device_that_shared_keys(graph):
    played, slow = played_on(graph)

    assert [j for j in (1, 3, 4, 7, 8, 9, 10, 11) if j not in graph.gone] == list(
        played.sent("unmask")
    )
    for j, content in played.sent("unmask").items():
        assert np.array(slow.reply(j), "<u4").tobytes() == content


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_request_is_two_bitmaps_of_survivors_and_of_those_that_uploaded_nothing(graph):
    played, slow = played_on(graph)
    survivors = [id for id in (1, 3, 4, 6, 7, 8, 9, 10, 11) if id not in graph.gone]

    if graph.degree is None:
        assert bits(survivors, 12) + bits([0, 5], 12) == played.told("unmask")
        return
    told = played.told_each("unmask")
    assert [id for id in survivors if id != 6] == list(told)
    for id, request in told.items():
        # By slot of the receiver's, who is in the middle.
        around = slots(slow.order, id, graph.degree)
        assert len(around) == min(graph.degree + 1, 12)
        assert id == around[len(around) // 2]
        named = [[k for k, one in enumerate(around) if one in ids] for ids in (survivors, [0, 5])]
        expected = struct.pack("<I", len(survivors))
        expected += bits(named[0], len(around)) + bits(named[1], len(around))
        if graph.name == "cohort":
            # Cohorts of 6: who survived from five places before to five behind.
            place = slow.order.index(id)
            near = [slow.order[(place + k) % 12] for k in range(-5, 6)]
            expected += bits([k for k, one in enumerate(near) if one in survivors], 11)
        assert expected == request


@pytest.mark.parametrize("name", BROADCASTING)
def test_the_key_list_is_a_bitmap_of_devices_and_then_their_keys_as_they_sent_them(name):
    played = play(make(name, 10, 4), dropouts={0: "advertise_keys"})
    sent = played.sent("advertise_keys")

    assert bits(range(1, 10), 10) + b"".join(sent[id] for id in range(1, 10)) == played.told(
        "advertise_keys"
    )
    assert 2 + 9 * 64 == len(played.told("advertise_keys"))


@pytest.mark.parametrize("graph", [case for case in GRAPHS if case.values[0].degree])
def test_on_a_ring_a_key_list_is_a_nonce_a_place_and_the_neighbours_ids_and_keys_by_slot(graph):
    played, slow = played_on(graph)
    sent, told = played.sent("advertise_keys"), played.told_each("advertise_keys")

    assert list(sent) == list(told)
    for id, message in told.items():
        around = slots(slow.order, id, graph.degree)
        there = [slot for slot, one in enumerate(around) if one not in graph.gone]
        neighbours = [around[slot] for slot in there if around[slot] != id]
        expected = played.nonce + struct.pack("<I", slow.order.index(id))
        expected += bits(there, len(around))
        expected += b"".join(struct.pack("<I", one) + sent[one] for one in neighbours)
        assert expected == message
        # The k / 2 next on either side, whether they are there or not.
        if graph.degree < 11:
            ahead = around[graph.degree // 2 + 1]
            assert slow.order[(slow.order.index(id) + 1) % 12] == ahead


# The steps by number; nobody sends anything in that of an optional step that is not played.
ROUTE, CHALLENGE, CHECKS, EXPELLED, UPLOAD, REQUEST, REPLY, PAIRS, TOLD = range(3, 12)
WHOLE = [case for case in GRAPHS if not case.values[0].gone]
# Device 5 shares keys and vanishes. Whether 3 and 9 are expelled or not, all others stay.
LATER = {5: "masked_input"}
# What is done to a row of shares: the share of a limb is another one, or that of a check, or the
# row cannot be opened.
FALSELY = {"limb": 0, "check": KEY_SHARE - 1, "seed": KEY_SHARE + 2, "nothing": None}


def victims_of(slow, dealer, count):
    """Return so many holders of a device's shares, none of whom drops out or deals falsely."""
    return [j for j in slow.peers(dealer) if j not in (3, 5, 9)][:count]


def dealing_falsely(slow, victims, falsely):
    """Let devices send some of their holders another share than they dealt, or none."""
    at = FALSELY[falsely]

    def change(header, message):
        if header.step != ROUTE or header.sender not in victims:
            return message
        changed = message.copy()
        for row in changed:
            receiver = Header.of(row).receiver
            if receiver in victims[header.sender]:
                if at is None:
                    row[-1] ^= 1
                    continue
                share = slow.decrypt(header.sender, receiver, row[ENVELOPE_BYTES:].tobytes())
                share[at] = (share[at] + 1) % Q
                sealed = slow.encrypt(header.sender, receiver, share)
                row[ENVELOPE_BYTES:] = np.frombuffer(sealed, np.uint8)
        return changed

    return change


def with_false_dealers(graph, counts, falsely="limb"):
    """Return a round in which devices wrong so many of their holders, and whom."""
    honest = play(protocol_on(graph), dropouts=LATER, index=3)
    slow = SlowRound(honest)
    victims = {dealer: victims_of(slow, dealer, count) for dealer, count in counts.items()}
    assert [*counts.values()] == [len(holders) for holders in victims.values()]
    change = dealing_falsely(slow, victims, falsely)
    played = play(protocol_on(graph), dropouts=LATER, index=3, change=change)
    expelled = tuple(dealer for dealer, count in counts.items() if count >= 2)
    return played, SlowRound(played, expelled), victims


def check_sum(played, slow):
    """Check uploads and their sum, which nobody that was expelled has any part in."""
    assert slow.survivors == list(played.server.survivors)
    for i in slow.survivors:
        where = slow.u(i)
        integers = integers_of(played, i, where).tolist()
        masked = slow.upload(i, dict(zip(where, integers, strict=True)))
        content = b"".join(value.to_bytes(4, "little") for value in masked.values())
        # Before the values of sparse there are locations.
        assert played.sent("masked_input")[i].endswith(content)
    assert sum_of(played, slow.survivors).tolist() == played.server.total.tolist()


@pytest.mark.parametrize("graph", WHOLE)
@pytest.mark.parametrize("counts", [{3: 2}, {3: 3, 9: 2}, {3: 2, 9: 1}], ids=str)
def test_who_is_expelled_is_told_in_a_bitmap_and_behind_their_number_on_a_ring(graph, counts):
    """One of whom a single holder has no right share is not named: it may be the holder's doing."""
    played, slow, _ = with_false_dealers(graph, counts)
    expelled = [3, 9] if counts.get(9) == 2 else [3]

    if graph.degree is None:
        assert bits(expelled, 12) == played.told("expelled")
        (message,) = played.messages("expelled", Pattern.BROADCAST)
        assert (EXPELLED, ALL) == (message.header.step, message.header.receiver)
    else:
        told = played.told_each("expelled")
        assert list(range(12)) == sorted(told)
        for id, message in told.items():
            # How many in all, though few have them for neighbours; by slot of the receiver's.
            around = slots(slow.order, id, graph.degree)
            named = [slot for slot, one in enumerate(around) if one in expelled]
            assert struct.pack("<I", len(expelled)) + bits(named, len(around)) == message
        steps = {m.header.step for m in played.messages("expelled", Pattern.SCATTER)}
        assert {EXPELLED} == steps
    assert {EXPELLED + 1} == {
        m.header.step for m in played.messages("masked_input", Pattern.GATHER)
    }
    # Who is told that it is expelled itself takes no further part.
    assert expelled == sorted(played.left)
    assert {RefusedError} == {type(error) for error in played.left.values()}
    assert expelled == sorted(played.kept_out)
    assert all(
        type(error) is MessageError and "two holders or more have no right share" in str(error)
        for error in played.kept_out.values()
    )
    assert [id for id in range(12) if id not in (5, *expelled)] == slow.survivors
    check_sum(played, slow)


@pytest.mark.parametrize("graph", WHOLE)
@pytest.mark.parametrize("falsely", FALSELY)
def test_two_holders_without_a_right_share_are_needed_to_expel_a_dealer(graph, falsely):
    for count in (1, 2):
        played, slow, victims = with_false_dealers(graph, {3: count}, falsely)
        told = [m for m in played.wire.messages if m.header.step == EXPELLED]
        assert (count == 2) == bool(told)
        assert ([3] if count == 2 else []) == sorted(played.left)
        assert (3 in slow.survivors) == (count == 1)
        # Of the dealer, its victims answer for the shares that they got: for none with all ones.
        sent = played.sent("checks")
        assert list(range(12)) == list(sent)
        for j, content in sent.items():
            owners = [i for i in slow.holders(j) if i in slow.dealers]
            expected = []
            for i in owners:
                share, at = slow.shares_of(i)[j], FALSELY[falsely]
                if i == 3 and j in victims[3]:
                    expected += (
                        [ABSENT, ABSENT]
                        if at is None
                        else slow.answer([value + (k == at) for k, value in enumerate(share)])
                    )
                else:
                    expected += slow.answer(share)
            assert np.array(expected, "<u4").tobytes() == content
        check_sum(played, slow)


@pytest.mark.parametrize("graph", WHOLE)
def test_answers_of_one_holder_expel_nobody_and_those_of_two_whom_both_answer_for(graph):
    """Whoever answers falsely, one device costs nobody else the round."""
    honest = play(protocol_on(graph), dropouts=LATER, index=3)
    slow = SlowRound(honest)
    # Three that have one another's shares.
    dealer = 3
    first, second = next(
        pair
        for pair in itertools.combinations(victims_of(slow, dealer, 12), 2)
        if pair[1] in slow.peers(pair[0])
    )
    for liars in ([first], [first, second]):

        def change(header, message, liars=liars):
            if header.step != CHECKS or header.sender not in liars:
                return message
            if len(liars) == 1:
                # All its answers are wrong.
                return answering(message, range(len(slow.checks(header.sender))))
            owners = [i for i in slow.holders(header.sender) if i in slow.dealers]
            return answering(message, [2 * owners.index(dealer)])

        played = play(protocol_on(graph), dropouts=LATER, index=3, change=change)
        expelled = () if len(liars) == 1 else (dealer,)
        assert bool(expelled) == any(m.header.step == EXPELLED for m in played.wire.messages)
        assert list(expelled) == sorted(played.left)
        check_sum(played, SlowRound(played, expelled))


def answering(message, places):
    """Return a sealed message of answers with some of them changed."""
    changed = message.copy()
    values = changed[ENVELOPE_BYTES:].view("<u4")
    for place in places:
        values[place] = (int(values[place]) + 1) % Q
    return changed


def test_in_a_round_without_false_shares_nobody_speaks_of_expelling():
    for case in GRAPHS:
        played, _ = played_on(*case.values)
        steps = {m.header.step for m in played.wire.messages}
        assert {CHECKS, UPLOAD, REQUEST, REPLY} <= steps
        assert EXPELLED not in steps


@pytest.mark.parametrize("graph", WHOLE)
def test_what_is_told_of_pairs_is_what_their_masks_follow_from_and_not_what_their_keys_agree_on(
    graph,
):
    """Nobody has a share of device 5's mask key any more: all tell what they have in common."""
    slow = SlowRound(play(protocol_on(graph), dropouts=LATER, index=3))

    def change(header, message):
        if header.step == REPLY and 5 in slow.peers(header.sender):
            changed = message.copy()
            changed[-4 * KEY_SHARE :] = 255
            return changed
        return message

    played = play(protocol_on(graph), dropouts=LATER, index=3, change=change)
    if graph.degree is None:
        assert bits([5], 12) == played.told("pairs")
    for id, message in played.told_each("pairs").items():
        around = slots(slow.order, id, graph.degree)
        named = [slot for slot, one in enumerate(around) if one == 5]
        assert bits(named, len(around)) == message
    asking = Pattern.BROADCAST if graph.degree is None else Pattern.SCATTER
    assert {PAIRS} == {m.header.step for m in played.messages("pairs", asking)}
    assert {TOLD} == {m.header.step for m in played.messages("pairs", Pattern.GATHER)}
    told = played.sent("pairs")
    assert slow.survivors == list(told)
    for j, content in told.items():
        assert content == (slow.mask_secret(5, j) if j in slow.peers(5) else b"")
        agreed = slow.agreed(5, j, "mask key")
        assert all(agreed not in m.sealed for m in played.wire.messages)
    # It is enough to take the masks off.
    check_sum(played, slow)
