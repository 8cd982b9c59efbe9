"""Who holds shares of whose secrets, and what the messages about them say, worked out slowly.

Who is expelled for shares that do not belong together, and what is told of pairs, too.
"""

from __future__ import annotations

import itertools
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
from protocol_rounds import (
    bits,
    make,
    on_ring,
    play,
    raw,
    sent_by_device,
)
from slow_reference import KEY_SHARE, SlowRound, lagrange, limbs, packed
from slow_ring import slots

from hpcfl.comm.phases import Pattern

DEVICES = 12
DROPOUTS = {2: "share_keys", 0: "masked_input", 5: "masked_input", 6: "unmask"}


class Graph(NamedTuple):
    """A protocol, degree and threshold of its ring, and who is gone before there is one."""

    name: str
    degree: int | None = None
    threshold: int | None = None
    gone: tuple[int, ...] = ()

    def protocol(self):
        if self.degree is None:
            return make(self.name, DEVICES, 5)
        # Four of twelve are planned to drop out: with fewer planned, the round would be refused.
        options = {"alpha": 0.5, "dropout": 0.34}
        return on_ring(self.name, DEVICES, 5, self.degree, self.threshold, **options)


# SecAgg's complete graph; then rings of an even size on which everybody is a neighbour, or all but
# one are, or few are. Of a device that is gone from the beginning the slots stay empty.
GRAPHS = [
    Graph("secagg"),
    Graph("secagg-graph", 12, 6),
    Graph("secagg-graph", 10, 5, (8,)),
    Graph("sparse", 4, 2),
    Graph("cohort", 4, 2, (8,)),
]
WHOLE = [graph._replace(gone=()) for graph in GRAPHS]
on_every_graph = pytest.mark.parametrize("graph", GRAPHS, ids=lambda g: f"{g.name} {g.degree}")


@cache
def played_on(graph):
    dropouts = DROPOUTS | dict.fromkeys(graph.gone, "advertise_keys")
    played = play(graph.protocol(), dropouts=dropouts, index=3)
    return played, SlowRound(played)


@on_every_graph
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


@on_every_graph
def test_answers_to_the_challenge_and_to_the_request_are_those_of_every_owner(graph):
    """The check plus the combined limbs; then one share of one secret of all that shared keys."""
    played, slow = played_on(graph)

    assert played.servers.drawn[1] == played.told("challenge")
    assert [16, 16] == [len(drawn) for drawn in played.servers.drawn]
    assert slow.sharers == list(played.sent("checks"))
    for j, content in played.sent("checks").items():
        assert np.array(slow.checks(j), "<u4").tobytes() == content
    assert [j for j in slow.survivors if j != 6] == list(played.sent("unmask"))
    for j, content in played.sent("unmask").items():
        assert np.array(slow.reply(j), "<u4").tobytes() == content


def test_the_challenge_is_drawn_after_all_has_been_dealt():
    for before, count in [("share_keys", 1), ("masked_input", 2)]:
        assert count == len(play(make("secagg", 5, 5), before=before).servers.drawn)


# The steps by number; nobody sends anything in that of an optional step that is not played.
CHECKS, EXPELLED, UPLOAD, REQUEST, REPLY, PAIRS, TOLD = range(5, 12)
# Device 5 shares keys and vanishes. Whether 3 and 9 are expelled or not, all others stay.
LATER = {5: "masked_input"}


def check_sum(played, slow):
    """Check uploads and their sum, which nobody that was expelled has any part in."""
    for i in slow.survivors:
        where = slow.u(i)
        integers = played.protocol.quantise(played.vectors[i][where], i, played.index).tolist()
        masked = slow.upload(i, dict(zip(where, integers, strict=True)))
        content = packed([*masked.values()], slow.modulus)
        # Before the values of sparse there are locations.
        assert played.sent("masked_input")[i].endswith(content)
    played.goes_on(slow.survivors)


@pytest.mark.parametrize("graph", WHOLE, ids=lambda g: f"{g.name} {g.degree}")
def test_what_is_told_of_pairs_is_what_their_masks_follow_from_and_not_what_their_keys_agree_on(
    graph,
):
    """Nobody has a share of device 5's mask key any more: all tell what they have in common."""
    slow = SlowRound(play(graph.protocol(), dropouts=LATER, index=3))

    def forget(answer):
        return np.append(answer[: -4 * KEY_SHARE], raw(b"\xff" * 4 * KEY_SHARE))

    protocol = graph.protocol()
    change = sent_by_device(protocol, "unmask", slow.peers(5), forget)
    played = play(protocol, dropouts=LATER, index=3, change=change)
    if graph.degree is None:
        assert bits([5], 12) == played.told("pairs")
    for id, message in played.told_each("pairs").items():
        around = slots(slow.order, id, graph.degree)
        assert bits([slot for slot, one in enumerate(around) if one == 5], len(around)) == message
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
