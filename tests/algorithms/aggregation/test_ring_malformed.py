"""On a ring: messages that are not what they should be, places that are wrong, requests refused."""

from __future__ import annotations

import struct

import pytest
import slow_ring
from protocol_rounds import (
    bits,
    expelled_list,
    key_list,
    on_ring,
    play,
    raw,
    ring_list,
    spoiling,
)

from hpcfl.comm.phases import Pattern
from hpcfl.errors import BelowThresholdError, MessageError, RefusedError

DEVICES, DEGREE, DEVICE = 11, 4, 2
ENTRY = 4 + 64
# Behind the nonce comes the place, then the bits of the slots, then the neighbours.
PLACE, BITS, LISTED = 16, 20, 21


def slots_of(order, id=DEVICE):
    return slow_ring.slots(order, id, DEGREE)


def cohort(degree=DEGREE, threshold=3, **options):
    return on_ring("cohort", DEVICES, 12, degree, threshold, **{"alpha": 0.5, **options})


# key lists


def listing(degree=DEGREE, dropouts=()):
    """Return a round in which the server is about to send key lists, and its order and keys."""
    before = ("advertise_keys", Pattern.SCATTER)
    played = play(cohort(degree, alpha=0.6), dropouts=dict(dropouts), before=before)
    return played, played.order(), played.sent("advertise_keys")


def refuse_list(played, content, reason, kind=MessageError):
    """Assert that device 2 refuses a key list, and for which reason."""
    error = played.refused(kind, played.devices[DEVICE].receive_advertise_keys, raw(content))
    assert reason in str(error)
    if isinstance(error, MessageError):
        assert ("advertise_keys", "the server") == (error.phase, error.sender)


def malformed_lists(right, neighbours):
    """Yield changed key lists, and why they are refused."""
    for size in (0, 15, 16, LISTED - 1):
        yield right[:size], f"{size} bytes hold no place on a ring"
    for other in (
        right[:LISTED],
        right[:-1],
        right[:-ENTRY],
        right + b"\0",
        right + bytes(ENTRY),
    ):
        yield other, f"received {len(other) - LISTED} bytes, expected {4 * ENTRY}"

    def with_slots(slots, count=DEGREE + 1):
        return right[:BITS] + bits(slots, count) + right[LISTED:]

    # There is an entry for every slot that somebody else is in.
    for slots in ([2], [1, 2, 3], [0, 1, 2, 3]):
        reason = f"received 272 bytes, expected {ENTRY * (len(slots) - 1)}"
        yield with_slots(slots), reason
    # Slots without the device, or beyond the last.
    for slots in ([], [0], [0, 1, 3, 4], [0, 1, 2, 3, 4, 5], [2, 7], [5], [7]):
        yield with_slots(slots, 8), "its slots are not those of this device"
    for position in (11, 12, 2**31, 2**32 - 1):
        changed = right[:PLACE] + struct.pack("<I", position) + right[BITS:]
        yield changed, f"there is no position {position} of 11"

    def with_neighbour(entry, id):
        start = LISTED + ENTRY * entry
        return right[:start] + struct.pack("<I", id) + right[start + 4 :]

    for entry in (0, DEGREE - 1):
        # With its own id, it would agree on a key with itself.
        for id in (neighbours[entry - 1], DEVICE):
            yield with_neighbour(entry, id), "a neighbour is listed twice"
    # A row of shares would go to a device that does not exist: under MPI, a traceback.
    for id in (DEVICES, 2**31, 2**32 - 2, 2**32 - 1):
        yield with_neighbour(0, id), "beyond the last, 10"


def test_key_lists_that_are_malformed_or_of_nobody_else_are_refused():
    played, order, keys = listing()
    right = key_list(played, DEVICE, keys).tobytes()
    assert right == played.server.send_advertise_keys(DEVICE).tobytes()
    neighbours = [id for id in slots_of(order) if id != DEVICE]
    for content, reason in malformed_lists(right, neighbours):
        refuse_list(played, content, reason)
    alone = right[:BITS] + bits([2], DEGREE + 1)
    refuse_list(played, alone, "share keys with 1 devices", RefusedError)
    played.devices[DEVICE].receive_advertise_keys(raw(right))


# places


@pytest.mark.parametrize("gone", [0, 1, 5])
def test_on_a_complete_ring_only_the_place_that_follows_from_nonce_and_keys_is_taken(gone):
    """Absentees have places of their own; without their keys, the keys of the others decide."""
    degree = DEVICES - 1
    dropouts = dict.fromkeys(range(DEVICES - gone, DEVICES), "advertise_keys")
    played, order, keys = listing(degree, dropouts)
    nonce, place = played.nonce, order.index(DEVICE)
    assert list(range(DEVICES)) == sorted(order)
    # Two have changed places, one of them absent if any is; or where the ring begins is wrong:
    # other segments would be sent.
    one, other = order.index(DEVICES - 1), order.index(0)
    swapped, rotated = order.copy(), order[1:] + order[:1]
    swapped[one], swapped[other] = swapped[other], swapped[one]
    wrong = [
        ring_list(nonce, changed, changed.index(DEVICE), keys, degree)
        for changed in (swapped, rotated, order[::-1], sorted(order))
    ]
    # Another nonce gives another order, of which this is not; and so do another device's keys.
    wrong.append(ring_list(bytes(16), order, place, keys, degree))
    altered = {**keys, 0: bytes([1]) * 32 + keys[0][32:]}
    wrong.append(ring_list(nonce, order, place, altered, degree))
    for content in wrong:
        refuse_list(played, content, "device 2 refuses its place", RefusedError)
    right = ring_list(nonce, order, place, keys, degree)
    played.devices[DEVICE].receive_advertise_keys(right)
    # Who knows only its neighbours takes the order on trust.
    played, order, keys = listing(6)
    rotated = order[1:] + order[:1]
    content = ring_list(played.nonce, rotated, rotated.index(DEVICE), keys, 6)
    played.devices[DEVICE].receive_advertise_keys(content)


# shares, and devices that are expelled


@pytest.mark.parametrize("place", [0, 5, DEVICES - 1])
def test_a_dealer_is_expelled_by_two_neighbours_and_all_others_are_told_the_number(place):
    """Who is not linked with it is told of it too: what is promised depends on how many are.

    One that fails one neighbour stays.
    """
    protocol = cohort()
    order = play(protocol, before="share_keys").order()
    dealer = order[place]
    around = slots_of(order, dealer)
    played = play(protocol, change=spoiling(protocol, dealer, [around[3]]))
    played.nobody_left()
    assert {} == played.told_each("expelled")
    played.goes_on()

    played = play(protocol, change=spoiling(protocol, dealer, [around[0], around[3]]))
    assert [dealer] == list(played.kept_out) == list(played.left)
    assert "too many holders have no right share of its secrets: it is expelled" in str(
        played.kept_out[dealer]
    )
    told = played.told_each("expelled")
    expected = {id: expelled_list(played, id, [dealer]).tobytes() for id in range(DEVICES)}
    assert expected == told
    survivors = [id for id in range(DEVICES) if id != dealer]
    played.goes_on(survivors)
    outcomes = [played.server.outcome()]
    for id in survivors:
        left = [one for one in slots_of(order, id) if one != dealer]
        assert sorted(left) == sorted(played.devices[id]._members())
        assert 1 == played.devices[id].state.expelled
        outcomes.append(played.devices[id]._outcome(played.devices[id].state.request))
    assert {(DEVICES, DEVICES - 1, 1)} == {(o.devices, o.survivors, o.expelled) for o in outcomes}


# what the server does with answers


def answering(silent):
    """Return a round that is all but unmasked; devices at these places stay silent."""
    protocol = on_ring("secagg-graph", DEVICES, 12, DEGREE, 3)
    order = play(protocol, before="share_keys").order()
    played = play(protocol, before=("unmask", Pattern.GATHER))
    for place, id in enumerate(order):
        if place not in silent:
            played.server.receive_unmask(id, played.devices[id].send_unmask())
    return played, order


def test_a_secret_of_which_too_few_shares_came_is_not_reconstructed():
    """Places 3 to 5 are silent: of the five holders around each of them, two are left."""
    played, order = answering([3, 4, 5])
    error = played.refused(BelowThresholdError, played.server.finish_unmask)
    assert str(error).startswith("2 of the 5 devices that hold shares of device ")
    assert f"device {min(order[3:6])}'s secrets answered" in str(error)
    assert "at least 3 are needed" in str(error)
    assert 0 == played.server.total.size
