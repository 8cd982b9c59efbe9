"""On a ring: messages that are not what they should be, places that are wrong, requests refused."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import slow_ring
from protocol_rounds import (
    SCATTERING,
    Header,
    bits,
    expelled_list,
    on_ring,
    play,
    raw,
    ring_list,
    shares_by_receiver,
    spoiling,
    sum_of,
)

from hpcfl.algorithms.aggregation.topology import RingLinks
from hpcfl.comm.phases import Pattern
from hpcfl.errors import BelowThresholdError, MessageError, RefusedError

DEVICES, DEGREE, DEVICE = 11, 4, 2
ENTRY = 4 + 64
# Behind the nonce comes the place, then the bits of the slots, then the neighbours.
PLACE, BITS, LISTED = 16, 20, 21


def listing(name, degree=DEGREE):
    """Return a round in which the server is about to send key lists, and the order on its ring."""
    protocol = on_ring(name, DEVICES, 12, degree, 3, alpha=0.5)
    played = play(protocol, before=("advertise_keys", Pattern.SCATTER))
    return played, played.order()


@pytest.fixture
def listed():
    return listing("cohort")


def slots_of(order, id=DEVICE):
    return slow_ring.slots(order, id, DEGREE)


def honest_list(played, order, degree=DEGREE):
    keys = played.sent("advertise_keys")
    content = ring_list(played.nonce, order, order.index(DEVICE), keys, degree).tobytes()
    assert content == played.server.send_advertise_keys(DEVICE).tobytes()
    return content


def refuse_list(played, content, reason, kind=MessageError, sender="the server"):
    """Assert that device 2 refuses a key list, and for which reason."""
    error = played.refused(kind, played.devices[DEVICE].receive_advertise_keys, raw(content))
    assert reason in str(error)
    if isinstance(error, MessageError):
        assert ("advertise_keys", sender) == (error.phase, error.sender)


# key lists


def test_a_list_without_a_whole_place_is_refused(listed):
    played, order = listed
    for size in range(LISTED):
        content = honest_list(played, order)[:size]
        refuse_list(played, content, f"{size} bytes hold no place on a ring")


def test_a_list_of_another_size_is_refused(listed):
    played, order = listed
    content = honest_list(played, order)
    for other in (
        content[:LISTED],
        content[:-1],
        content[:-ENTRY],
        content + b"\0",
        content + bytes(ENTRY),
        content[:LISTED] + content[LISTED:] * 2,
    ):
        refuse_list(played, other, f"received {len(other) - LISTED} bytes, expected {4 * ENTRY}")


def with_slots(content, slots, count=DEGREE + 1):
    return content[:BITS] + bits(slots, count) + content[LISTED:]


def test_a_list_has_an_entry_for_every_slot_that_somebody_else_is_in(listed):
    played, order = listed
    content = honest_list(played, order)
    for slots in ([2], [1, 2, 3], [0, 1, 2, 3]):
        wrong = with_slots(content, slots)
        refuse_list(played, wrong, f"received 272 bytes, expected {ENTRY * (len(slots) - 1)}")


@pytest.mark.parametrize("slots", [[], [0], [0, 1, 3, 4], [0, 1, 2, 3, 4, 5], [2, 7], [5], [7]])
def test_slots_without_the_device_or_beyond_the_last_are_refused(listed, slots):
    played, order = listed
    wrong = with_slots(honest_list(played, order), slots, 8)
    refuse_list(played, wrong, "its slots are not those of this device")


@pytest.mark.parametrize("position", [11, 12, 2**31, 2**32 - 1])
def test_a_position_beyond_the_ring_is_refused(listed, position):
    played, order = listed
    content = honest_list(played, order)
    content = content[:PLACE] + struct.pack("<I", position) + content[BITS:]
    refuse_list(played, content, f"there is no position {position} of 11")


def test_a_ring_of_nobody_else_is_refused(listed):
    content = with_slots(honest_list(*listed)[:LISTED], [2])
    refuse_list(listed[0], content, "share keys with 1 devices", RefusedError)


def replaced(content, entry, id=None, keys=None):
    """Return a list in which one neighbour has another id or other keys."""
    changed = bytearray(content)
    start = LISTED + ENTRY * entry
    if id is not None:
        changed[start : start + 4] = struct.pack("<I", id)
    if keys is not None:
        changed[start + 4 : start + ENTRY] = keys
    return bytes(changed)


@pytest.mark.parametrize("entry", [0, DEGREE - 1])
def test_a_neighbour_that_is_listed_twice_is_refused(listed, entry):
    played, order = listed
    neighbours = [id for id in slots_of(order) if id != DEVICE]
    content = honest_list(played, order)

    twice = replaced(content, entry, id=neighbours[entry - 1])
    refuse_list(played, twice, "a neighbour is listed twice")
    # Its own id: it would agree on a key with itself.
    refuse_list(played, replaced(content, entry, id=DEVICE), "a neighbour is listed twice")


def test_a_neighbour_beyond_the_last_device_is_refused():
    """Else a row of shares would go to a device that does not exist: under MPI, a traceback."""
    played, order = listing("cohort")
    for id in (DEVICES, 2**31, 2**32 - 2, 2**32 - 1):
        content = replaced(honest_list(played, order), 0, id=id)
        refuse_list(played, content, "beyond the last, 10")


@pytest.mark.parametrize("phase", ["advertise_keys", "unmask"])
def test_a_device_for_which_the_server_has_nothing_drops_out(phase, monkeypatch):
    message = {"advertise_keys": "key_list", "unmask": "request"}[phase]
    send = getattr(RingLinks, message)

    def send_less(links, receiver, *rest):
        return None if receiver in (3, 7) else send(links, receiver, *rest)

    monkeypatch.setattr(RingLinks, message, send_less)
    played = play(on_ring("cohort", DEVICES, 12, DEGREE, 3, alpha=0.5))
    assert [3, 7] == list(played.left) == list(played.kept_out)
    for error in played.left.values():
        assert f"malformed {phase} message from the server: none was received" == str(error)
    gone = () if phase == "unmask" else (3, 7)
    survivors = [id for id in range(DEVICES) if id not in gone]
    assert survivors == played.server.survivors
    assert (sum_of(played, survivors) == played.server.total).all()


# places


def test_on_a_complete_ring_only_the_place_that_follows_from_nonce_and_keys_is_taken():
    played, order = listing("cohort", degree=DEVICES - 1)
    keys, nonce = played.sent("advertise_keys"), played.nonce
    place = order.index(DEVICE)
    swapped = order.copy()
    swapped[place - 1], swapped[place - 2] = swapped[place - 2], swapped[place - 1]
    rotated = order[1:] + order[:1]
    for wrong in (swapped, order[::-1], sorted(order)):
        content = ring_list(nonce, wrong, wrong.index(DEVICE), keys, DEVICES - 1).tobytes()
        refuse_list(played, content, "device 2 refuses its place", RefusedError)
    # The right neighbours, but where the ring begins is wrong: other segments would be sent.
    content = ring_list(nonce, rotated, rotated.index(DEVICE), keys, DEVICES - 1).tobytes()
    honest = honest_list(played, order, DEVICES - 1)
    assert (honest[:PLACE], honest[BITS:]) == (content[:PLACE], content[BITS:])
    refuse_list(played, content, "device 2 refuses its place", RefusedError)
    # Another nonce gives another order, of which this is not.
    content = ring_list(bytes(16), order, place, keys, DEVICES - 1).tobytes()
    refuse_list(played, content, "device 2 refuses its place", RefusedError)
    # Another device's keys are others, so the order is another one.
    neighbour = next(id for id in order if id != DEVICE)
    altered = {**keys, neighbour: bytes(64)}
    content = ring_list(nonce, order, place, altered, DEVICES - 1).tobytes()
    assert content != honest_list(played, order, DEVICES - 1)
    altered[neighbour] = bytes([1]) * 32 + keys[neighbour][32:]
    content = ring_list(nonce, order, place, altered, DEVICES - 1).tobytes()
    refuse_list(played, content, "device 2 refuses its place", RefusedError)

    played.devices[DEVICE].receive_advertise_keys(raw(honest_list(played, order, DEVICES - 1)))


@pytest.mark.parametrize("gone", [1, 3, 5])
def test_the_place_on_a_complete_ring_is_checked_with_absentees_too(gone):
    """They have places of their own; without their keys, the keys of the others decide."""
    left = DEVICES - gone
    dropouts = dict.fromkeys(range(left, DEVICES), "advertise_keys")
    protocol = on_ring("cohort", DEVICES, 12, DEVICES - 1, 3, alpha=0.6)
    played = play(protocol, dropouts=dropouts, before=("advertise_keys", Pattern.SCATTER))
    keys, nonce, order = played.sent("advertise_keys"), played.nonce, played.order()
    assert list(range(DEVICES)) == sorted(order)
    device = played.devices[DEVICE]
    # An absentee and a device that is there have changed places, and all are one place further.
    one, other = order.index(DEVICES - 1), order.index(0)
    swapped = order.copy()
    swapped[one], swapped[other] = swapped[other], swapped[one]
    for wrong in (swapped, order[1:] + order[:1]):
        content = ring_list(nonce, wrong, wrong.index(DEVICE), keys, DEVICES - 1)
        error = played.refused(RefusedError, device.receive_advertise_keys, content)
        assert "the ring does not follow from the keys" in str(error)
    device.receive_advertise_keys(ring_list(nonce, order, order.index(DEVICE), keys, DEVICES - 1))


def test_who_knows_only_its_neighbours_takes_the_order_on_trust():
    played, order = listing("cohort", degree=6)
    keys = played.sent("advertise_keys")
    rotated = order[1:] + order[:1]
    content = ring_list(played.nonce, rotated, rotated.index(DEVICE), keys, 6)
    played.devices[DEVICE].receive_advertise_keys(content)


# shares


def test_a_row_of_a_device_that_is_no_neighbour_is_nothing_to_its_receiver():
    """The transport delivers it; a device hears only of those that it sends to."""
    protocol = on_ring("cohort", DEVICES, 12, DEGREE, 3, alpha=0.5)
    order = play(protocol, before="share_keys").order()
    stranger = next(id for id in order if id not in slots_of(order))

    def also(header, block):
        if block.ndim == 1 or header.sender != stranger:
            return block
        extra = block[:1].copy()
        extra[0, 12:16] = raw(struct.pack("<I", DEVICE))
        return np.vstack([block, extra])

    played = play(protocol, change=also)
    assert ({}, {}) == (played.kept_out, played.left)
    assert [] == played.devices[DEVICE].ignored
    assert sorted(slots_of(order)) == sorted(played.devices[DEVICE]._members())
    assert (sum_of(played, range(DEVICES)) == played.server.total).all()


def test_a_row_to_a_stranger_in_place_of_one_to_a_neighbour_is_a_missing_row():
    """Its sender takes part, so that both mask for each other; a share of it is missing."""
    protocol = on_ring("cohort", DEVICES, 12, DEGREE, 3, alpha=0.5)
    order = play(protocol, before="share_keys").order()
    stranger = next(id for id in order if id not in slots_of(order))
    neighbour = slots_of(order)[0]

    def elsewhere(header, block):
        if block.ndim == 1 or header.sender != neighbour:
            return block
        block = block.copy()
        block[Header.receivers_of(block) == DEVICE, 12:16] = raw(struct.pack("<I", stranger))
        return block

    played = play(protocol, change=elsewhere)
    assert ({}, {}) == (played.kept_out, played.left)
    ignored = [(id, e.sender) for id, one in played.devices.items() for e in one.ignored]
    assert [(DEVICE, f"device {neighbour}")] == ignored
    assert (sum_of(played, range(DEVICES)) == played.server.total).all()


def test_shares_go_to_neighbours_only():
    played = play(on_ring("cohort", DEVICES, 12, DEGREE, 3, alpha=0.5), before="share_keys")
    order = played.order()
    for id, device in played.devices.items():
        receivers, rows = device.send_share_keys()
        assert [one for one in slots_of(order, id) if one != id] == receivers.tolist()
        assert (DEGREE, 80) == rows.shape


def test_a_device_with_too_few_neighbours_left_does_not_go_on():
    played = play(on_ring("cohort", DEVICES, 12, DEGREE, 4, alpha=0.5), before="share_keys")
    senders, rows = shares_by_receiver(played.devices)[DEVICE]
    device = played.devices[DEVICE]

    error = played.refused(RefusedError, device.receive_share_keys, senders[:2], rows[:2])
    assert "refuses to go on with 3 devices: the threshold is 4" in str(error)
    device.receive_share_keys(senders[:3], rows[:3])


# devices that are expelled


@pytest.mark.parametrize("place", [0, 1, 5, DEVICES - 1])
def test_a_dealer_is_expelled_by_two_neighbours_and_all_others_are_told_the_number(place):
    """Who is not linked with it is told of it too: what is promised depends on how many are."""
    protocol = on_ring("cohort", DEVICES, 12, DEGREE, 3, alpha=0.5)
    order = play(protocol, before="share_keys").order()
    dealer = order[place]
    around = slots_of(order, dealer)
    played = play(protocol, change=spoiling(dealer, [around[0], around[3]]))

    assert [dealer] == list(played.kept_out) == list(played.left)
    assert "two holders or more have no right share of its secrets: it is expelled" in str(
        played.kept_out[dealer]
    )
    told = played.told_each("expelled")
    assert list(range(DEVICES)) == sorted(told)
    for id, message in told.items():
        expected = [slot for slot, one in enumerate(slots_of(order, id)) if one == dealer]
        assert struct.pack("<I", 1) + bits(expected, DEGREE + 1) == message
        assert (id in around) == bool(expected)
        assert 1 == played.devices[id]._expelled
    survivors = [id for id in range(DEVICES) if id != dealer]
    assert survivors == played.server.survivors
    assert (sum_of(played, survivors) == played.server.total).all()
    for id in survivors:
        left = [one for one in slots_of(order, id) if one != dealer]
        assert sorted(left) == sorted(played.devices[id]._members())
    outcomes = [played.server.outcome()]
    outcomes += [played.devices[id]._outcome(played.devices[id]._request) for id in survivors]
    assert {(DEVICES, DEVICES - 1, 1)} == {(o.devices, o.survivors, o.expelled) for o in outcomes}


def test_a_dealer_that_fails_one_neighbour_stays():
    protocol = on_ring("cohort", DEVICES, 12, DEGREE, 3, alpha=0.5)
    order = play(protocol, before="share_keys").order()
    for slot in (0, 1, 3, 4):
        dealer, victim = order[5], slots_of(order, order[5])[slot]
        played = play(protocol, change=spoiling(dealer, [victim]))
        assert ({}, {}) == (played.kept_out, played.left)
        assert {} == played.told_each("expelled")
        assert (sum_of(played, range(DEVICES)) == played.server.total).all()


def test_a_device_with_too_few_neighbours_left_after_an_expulsion_does_not_go_on():
    protocol = on_ring("cohort", DEVICES, 12, DEGREE, 3, alpha=0.5)
    for count in (2, 3):
        played = play(protocol, before="masked_input")
        expelled = [id for id in slots_of(played.order()) if id != DEVICE][:count]
        message, device = expelled_list(played, DEVICE, expelled), played.devices[DEVICE]
        if count == 2:
            device.receive_expelled(message)
            assert 3 == len(device._members())
        else:
            error = played.refused(RefusedError, device.receive_expelled, message)
            assert "refuses to go on with 2 devices: the threshold is 3" in str(error)


# requests, of device 2 with four neighbours of whom the first shared no keys


@pytest.fixture(params=SCATTERING)
def asked(request):
    """Return a round in which the server is about to ask for shares."""
    protocol = on_ring(request.param, DEVICES, 12, DEGREE, 3, alpha=0.5)
    begun = play(protocol, before="share_keys")
    first = slots_of(begun.order())[0]
    return play(protocol, dropouts={first: "share_keys"}, before="unmask")


def slots_request(played, survivors, dropped, total=DEVICES - 1):
    """Return a request to device 2 with these slots named."""
    content = struct.pack("<I", total) + bits(survivors, DEGREE + 1) + bits(dropped, DEGREE + 1)
    if played.protocol.name == "cohort":
        # Cohorts of six of eleven: all eleven places around survived.
        content += bits(range(11), 11)
    return content


def ask(played, survivors, dropped):
    """Ask device 2 with these slots named; return its answer."""
    device = played.devices[DEVICE]
    device.receive_unmask(raw(slots_request(played, survivors, dropped)))
    return device.send_unmask()


def test_a_request_names_slots_and_is_answered_for_each(asked):
    honest = asked.server.send_unmask(DEVICE).tobytes()
    assert struct.pack("<I", 10) + bits([1, 2, 3, 4], 5) + bits([], 5) == honest[:6]
    assert 4 * (3 * 6 + 10) == ask(asked, [1, 2, 4], [3]).size


@pytest.mark.parametrize(
    ("survivors", "dropped", "reason"),
    [
        ([1, 2, 3, 4], [3], "both secrets of device"),
        ([1, 2, 3, 4], [2], "both secrets of device 2"),
        ([1, 2], [3, 4], "the sum of 2 devices: the threshold is 3"),
        ([], [1, 2, 3, 4], "the sum of 0 devices"),
        ([1, 2, 3], [], "does not name exactly"),
        ([0, 1, 2, 3, 4], [], "does not name exactly"),
        ([1, 2, 3, 4], [0], "does not name exactly"),
        ([0, 1, 2, 3], [], "does not name exactly"),
        ([1, 3, 4], [], "does not name exactly"),
        ([1, 3, 4], [2], "it is named as dropped"),
    ],
)
def test_a_request_that_could_reveal_more_than_a_sum_is_refused(asked, survivors, dropped, reason):
    error = asked.refused(RefusedError, ask, asked, survivors, dropped)
    assert reason in str(error)
    asked.refused(RefusedError, asked.devices[DEVICE].send_unmask)


@pytest.mark.parametrize("place", [4, 5])
@pytest.mark.parametrize("slot", [0, 5, 6, 7])
def test_a_slot_beyond_the_last_is_refused(asked, slot, place):
    """In slot 0 is a neighbour that shared no keys: there it is a request that cannot be."""
    request = bytearray(slots_request(asked, [1, 2, 3, 4], []))
    request[place] |= 1 << (7 - slot)
    kind = RefusedError if slot == 0 else MessageError
    error = asked.refused(kind, asked.devices[DEVICE].receive_unmask, raw(bytes(request)))
    if isinstance(error, MessageError):
        assert ("unmask", "the server") == (error.phase, error.sender)
        assert "a slot that nobody is in" in error.reason
    else:
        assert "does not name exactly" in str(error)


@pytest.mark.parametrize("change", [-1, -2, 1, 2])
def test_a_request_of_another_size_is_refused(asked, change):
    honest = slots_request(asked, [1, 2, 3, 4], [])
    request = (honest + bytes(2))[: len(honest) + change]
    error = asked.refused(MessageError, asked.devices[DEVICE].receive_unmask, raw(request))
    assert f"received {6 + change} bytes, expected 6" in str(error)


def test_a_request_too_short_for_its_cohorts_is_refused():
    protocol = on_ring("cohort", DEVICES, 12, DEGREE, 3, alpha=0.5)
    played = play(protocol, before="unmask")
    for size in (0, 1):
        error = played.refused(
            MessageError, played.devices[DEVICE].receive_unmask, raw(bytes(size))
        )
        assert f"{size} bytes hold no list of cohorts" in str(error)


# what the server does with answers


def answering(name, silent, threshold=3):
    """Return a round that is all but unmasked; devices at these places stay silent."""
    protocol = on_ring(name, DEVICES, 12, DEGREE, threshold, alpha=0.5)
    order = play(protocol, before="share_keys").order()
    played = play(protocol, before=("unmask", Pattern.GATHER))
    for place, id in enumerate(order):
        if place not in silent:
            played.server.receive_unmask(id, played.devices[id].send_unmask())
    return played, order


def test_a_secret_of_which_too_few_shares_came_is_not_reconstructed():
    """Places 3 to 5 are silent: of the five holders around each of them, two are left."""
    played, order = answering("secagg-graph", [3, 4, 5])
    error = played.refused(BelowThresholdError, played.server.finish_unmask)
    assert str(error).startswith("2 of the 5 devices that hold shares of device ")
    assert f"device {min(order[3:6])}'s secrets answered" in str(error)
    assert "at least 3 are needed" in str(error)
    assert 0 == played.server.total.size


@pytest.mark.parametrize("silent", [[3, 4], [3, 5], [0, 5], [10, 0], []])
def test_a_secret_of_which_just_enough_shares_came_is(silent):
    played, _ = answering("secagg-graph", silent)
    played.server.finish_unmask()
    played.server.finish_result()
    whole, _ = answering("secagg-graph", [])
    whole.server.finish_unmask()
    whole.server.finish_result()
    assert whole.server.total.tolist() == played.server.total.tolist()


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
