"""On a ring: messages that are not what they should be, places that are wrong, requests refused."""

from __future__ import annotations

import itertools
import struct

import numpy as np
import pytest
import slow_ring
from protocol_rounds import (
    SCATTERING,
    Header,
    bits,
    expelled_list,
    key_list,
    on_ring,
    play,
    raw,
    ring_list,
    sent_by_device,
    shares_by_receiver,
    spoiling,
)

from hpcfl.algorithms.aggregation.topology import RingLinks
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


@pytest.mark.parametrize("phase", ["advertise_keys", "unmask"])
def test_a_device_for_which_the_server_has_nothing_drops_out(phase, monkeypatch):
    message = {"advertise_keys": "key_list", "unmask": "request"}[phase]
    send = getattr(RingLinks, message)

    def send_less(links, receiver, *rest):
        return None if receiver in (3, 7) else send(links, receiver, *rest)

    monkeypatch.setattr(RingLinks, message, send_less)
    played = play(cohort())
    assert [3, 7] == list(played.left) == list(played.kept_out)
    for error in played.left.values():
        assert f"malformed {phase} message from the server: none was received" == str(error)
    gone = () if phase == "unmask" else (3, 7)
    played.goes_on([id for id in range(DEVICES) if id not in gone])


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


def readdressed(rows, receiver):
    """Return rows of shares whose receiver is another one."""
    rows[:, 12:16] = raw(struct.pack("<I", receiver))
    return rows


def test_rows_between_devices_that_are_no_neighbours_are_nothing_to_their_receivers():
    """The transport delivers them; a device hears only of those that it sends to.

    In place of one to a neighbour, such a row is a missing share, and its sender takes part.
    """
    begun = play(cohort(), before="share_keys")
    for id, device in begun.devices.items():
        receivers, rows = device.send_share_keys()
        assert [one for one in slots_of(begun.order(), id) if one != id] == receivers.tolist()
        assert (DEGREE, 80) == rows.shape
    around = slots_of(begun.order())
    stranger = next(id for id in begun.order() if id not in around)

    def also(rows):
        return np.vstack([rows, readdressed(rows[:1].copy(), DEVICE)])

    def elsewhere(rows):
        chosen = Header.receivers_of(rows) == DEVICE
        rows[chosen] = readdressed(rows[chosen], stranger)
        return rows

    for sender, change, ignored in [(stranger, also, []), (around[0], elsewhere, [around[0]])]:
        protocol = cohort()
        played = play(protocol, change=sent_by_device(protocol, "share_keys", sender, change))
        played.nobody_left()
        found = {id: [e.sender for e in one.ignored] for id, one in played.devices.items()}
        assert [f"device {id}" for id in ignored] == found.pop(DEVICE)
        assert not any(found.values())
        assert sorted(around) == sorted(played.devices[DEVICE]._members())
        played.goes_on()


def test_a_device_with_too_few_neighbours_left_does_not_go_on():
    played = play(cohort(threshold=4), before="share_keys")
    senders, rows = shares_by_receiver(played.devices)[DEVICE]
    device = played.devices[DEVICE]
    error = played.refused(RefusedError, device.receive_share_keys, senders[:2], rows[:2])
    assert "refuses to go on with 3 devices: the threshold is 4" in str(error)
    device.receive_share_keys(senders[:3], rows[:3])

    played = play(cohort(), before="masked_input")
    device, others = played.devices[DEVICE], [id for id in slots_of(played.order()) if id != DEVICE]
    message = expelled_list(played, DEVICE, others[:3])
    error = played.refused(RefusedError, device.receive_expelled, message)
    assert "refuses to go on with 2 devices: the threshold is 3" in str(error)
    played = play(cohort(), before="masked_input")
    played.devices[DEVICE].receive_expelled(expelled_list(played, DEVICE, others[:2]))
    assert 3 == len(played.devices[DEVICE]._members())


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


# requests, of device 2 with four neighbours of whom the first shared no keys


@pytest.fixture(params=SCATTERING)
def asked(request):
    """Return a round in which the server is about to ask for shares."""
    protocol = on_ring(request.param, DEVICES, 12, DEGREE, 3, alpha=0.5)
    first = slots_of(play(protocol, before="share_keys").order())[0]
    return play(protocol, dropouts={first: "share_keys"}, before="unmask")


def slots_request(played, survivors, dropped):
    """Return a request to device 2 with these slots named."""
    content = struct.pack("<I", DEVICES - 1)
    content += bits(survivors, DEGREE + 1) + bits(dropped, DEGREE + 1)
    if played.protocol.name == "cohort":
        # Cohorts of six of eleven: all eleven places around survived.
        content += bits(range(11), 11)
    return content


def ask(played, survivors, dropped):
    """Ask device 2 with these slots named; return its answer."""
    device = played.devices[DEVICE]
    device.receive_unmask(raw(slots_request(played, survivors, dropped)))
    return device.send_unmask()


@pytest.mark.parametrize(
    ("survivors", "dropped", "reason"),
    [
        ([1, 2, 3, 4], [3], "both secrets of device"),
        ([1, 2, 3, 4], [2], "both secrets of device 2"),
        ([1, 2], [3, 4], "the sum of 2 devices: the threshold is 3"),
        ([1, 2, 3], [], "does not name exactly"),
        ([0, 1, 2, 3, 4], [], "does not name exactly"),
        ([1, 2, 3, 4], [0], "does not name exactly"),
        ([0, 1, 2, 3], [], "does not name exactly"),
        ([1, 3, 4], [2], "it is named as dropped"),
    ],
)
def test_a_request_that_could_reveal_more_than_a_sum_is_refused(asked, survivors, dropped, reason):
    error = asked.refused(RefusedError, ask, asked, survivors, dropped)
    assert reason in str(error)
    asked.refused(RefusedError, asked.devices[DEVICE].send_unmask)


def test_a_request_names_slots_and_is_answered_for_each(asked):
    right, take = slots_request(asked, [1, 2, 3, 4], []), asked.devices[DEVICE].receive_unmask
    assert right[:6] == asked.server.send_unmask(DEVICE).tobytes()[:6]
    for place, slot in itertools.product((4, 5), (5, 6, 7)):
        beyond = bytearray(right)
        beyond[place] |= 1 << (7 - slot)
        error = asked.refused(MessageError, take, raw(bytes(beyond)))
        assert ("unmask", "the server") == (error.phase, error.sender)
        assert "a slot that nobody is in" in error.reason
    for change in (-1, -2, 1, 2):
        wrong = (right + bytes(2))[: len(right) + change]
        error = asked.refused(MessageError, take, raw(wrong))
        assert f"received {6 + change} bytes, expected 6" in str(error)
    if asked.protocol.name == "cohort":
        for size in (0, 1):
            error = asked.refused(MessageError, take, raw(bytes(size)))
            assert f"{size} bytes hold no list of cohorts" in str(error)
    assert 4 * (3 * 6 + 10) == ask(asked, [1, 2, 4], [3]).size


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


@pytest.mark.parametrize("silent", [[3, 4], [0, 5], [10, 0]])
def test_a_secret_of_which_just_enough_shares_came_is(silent):
    played, _ = answering(silent)
    played.server.finish_unmask()
    played.server.finish_masks()
    played.server.finish_result()
    played.goes_on()


# uploads of cohorts


def test_the_server_refuses_a_run_of_another_length():
    """35 coordinates in 11 segments, of which a device has 4."""
    played = play(on_ring("cohort", DEVICES, 35, DEGREE, 3, alpha=0.35), before="masked_input")
    order = played.order()
    uploads = {
        id: device.send_masked_input(played.vectors[id]) for id, device in played.devices.items()
    }
    # Most have 13 coordinates and some 12: neither may send what the other does.
    assert {48, 52} == {upload.size for upload in uploads.values()}
    for id in order:
        other = next(one for one in uploads.values() if one.size != uploads[id].size)
        for wrong in (other, uploads[id][:-4], uploads[id][:-1], uploads[id][:0]):
            error = played.refused(MessageError, played.server.receive_masked_input, id, wrong)
            assert ("masked_input", f"device {id}") == (error.phase, error.sender)
            assert f"received {wrong.size} bytes, expected {uploads[id].size}" in error.reason
    assert [] == played.server.survivors
