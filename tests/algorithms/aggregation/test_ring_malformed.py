"""On a ring: messages that are not what they should be, places that are wrong, requests refused."""

from __future__ import annotations

import struct
import tracemalloc
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from protocol_rounds import (
    SCATTERING,
    SECURE,
    Played,
    bits,
    on_ring,
    play,
    raw,
    ring_list,
    shares_by_receiver,
    sum_of,
)
from slow_reference import Q
from slow_ring import holders, ring_order

from hpcfl.algorithms.aggregation.topology import RingLinks
from hpcfl.comm.phases import Pattern
from hpcfl.errors import BelowThresholdError, HpcflError, MessageError, RefusedError

DEVICES, DEGREE, DEVICE = 11, 4, 2
ENTRY = 4 + 64


def listing(name: str, degree: int = DEGREE) -> tuple[Played, list[int]]:
    """Return a round in which the server is about to send key lists, and the order on its ring."""
    protocol = on_ring(name, DEVICES, 12, degree, 3, alpha=0.5)
    played = play(protocol, before=("advertise_keys", Pattern.SCATTER))
    return played, ring_order(played.sent("advertise_keys"), f"{name} round 0")


@pytest.fixture(params=SCATTERING)
def listed(request: pytest.FixtureRequest) -> tuple[Played, list[int]]:
    return listing(request.param)


def honest_list(played: Played, order: list[int], degree: int = DEGREE) -> bytes:
    keys = played.sent("advertise_keys")
    content = ring_list(order, order.index(DEVICE), keys, degree).tobytes()
    assert content == played.server.send_advertise_keys(DEVICE).tobytes()
    return content


def refuse_list(
    played: Played,
    content: bytes,
    reason: str,
    kind: type[HpcflError] = MessageError,
    sender: str = "the server",
) -> None:
    """Assert that device 2 refuses a key list, and for which reason."""
    error = played.refused(kind, played.devices[DEVICE].receive_advertise_keys, raw(content))
    assert reason in str(error)
    if isinstance(error, MessageError):
        assert ("advertise_keys", sender) == (error.phase, error.sender)


# key lists


def test_a_list_without_a_whole_place_is_refused(listed: tuple[Played, list[int]]) -> None:
    played, order = listed
    for size in range(8):
        content = honest_list(played, order)[:size]
        refuse_list(played, content, f"{size} bytes hold no place on a ring")


def test_a_list_of_another_size_is_refused(listed: tuple[Played, list[int]]) -> None:
    played, order = listed
    content = honest_list(played, order)
    for other in (
        content[:8],
        content[:-1],
        content[:-ENTRY],
        content + b"\0",
        content + bytes(ENTRY),
        content[:8] + content[8:] * 2,
    ):
        refuse_list(played, other, f"{len(other) - 8} bytes came, {4 * ENTRY} were expected")


def test_a_small_ring_has_only_as_many_neighbours_as_devices() -> None:
    played, order = listing("secagg-graph")
    content = honest_list(played, order)
    for ring in (2, 3, 4):
        small = struct.pack("<II", ring, 1) + content[8:]
        refuse_list(played, small, f"{4 * ENTRY} bytes came, {(ring - 1) * ENTRY} were expected")


@pytest.mark.parametrize(
    ("ring", "position"), [(0, 0), (0, 5), (11, 11), (11, 12), (5, 2**32 - 1), (2**32 - 1,) * 2]
)
def test_a_position_beyond_the_ring_is_refused(
    listed: tuple[Played, list[int]], ring: int, position: int
) -> None:
    played, order = listed
    content = struct.pack("<II", ring, position) + honest_list(played, order)[8:]
    refuse_list(played, content, f"there is no position {position} of {ring}")


def test_a_ring_of_nobody_else_is_refused(listed: tuple[Played, list[int]]) -> None:
    refuse_list(listed[0], struct.pack("<II", 1, 0), "share keys with 1 devices", RefusedError)


def replaced(content: bytes, entry: int, id: int | None = None, keys: bytes | None = None) -> bytes:
    """Return a list in which one neighbour has another id or other keys."""
    changed = bytearray(content)
    start = 8 + ENTRY * entry
    if id is not None:
        changed[start : start + 4] = struct.pack("<I", id)
    if keys is not None:
        changed[start + 4 : start + ENTRY] = keys
    return bytes(changed)


@pytest.mark.parametrize("entry", range(DEGREE))
def test_a_neighbour_that_is_listed_twice_is_refused(
    listed: tuple[Played, list[int]], entry: int
) -> None:
    played, order = listed
    neighbours = [id for id in holders(order, DEVICE, DEGREE) if id != DEVICE]
    content = honest_list(played, order)

    twice = replaced(content, entry, id=neighbours[entry - 1])
    refuse_list(played, twice, "a neighbour is listed twice")
    # Its own id: it would agree on a key with itself.
    refuse_list(played, replaced(content, entry, id=DEVICE), "a neighbour is listed twice")


@pytest.mark.parametrize("to", [0, 32])
@pytest.mark.parametrize("source", [0, 32])
@pytest.mark.parametrize("owner", ["itself", "a neighbour"])
def test_a_key_that_is_listed_twice_is_refused(
    listed: tuple[Played, list[int]], owner: str, source: int, to: int
) -> None:
    played, order = listed
    slots = holders(order, DEVICE, DEGREE)
    sent = played.sent("advertise_keys")
    of = DEVICE if owner == "itself" else slots[0]
    twice = bytearray(sent[slots[-1]])
    twice[to : to + 32] = sent[of][source : source + 32]
    content = replaced(honest_list(played, order), DEGREE - 1, keys=bytes(twice))
    refuse_list(played, content, "a public key is listed twice")


def test_a_neighbour_with_one_key_for_both_uses_is_refused(
    listed: tuple[Played, list[int]],
) -> None:
    played, order = listed
    content = honest_list(played, order)
    start = 8 + ENTRY + 4
    twice = replaced(content, 1, keys=content[start : start + 32] * 2)
    refuse_list(played, twice, "a public key is listed twice")


@pytest.mark.parametrize("point", [0, 1, 2**255 - 20])
def test_a_neighbours_key_of_low_order_is_refused_before_it_is_used(
    listed: tuple[Played, list[int]], point: int
) -> None:
    played, order = listed
    content = honest_list(played, order)
    low = point.to_bytes(32, "little")
    keys = content[8 + 4 : 8 + ENTRY]
    owner = f"device {int.from_bytes(content[8:12], 'little')}"
    for both in (low + keys[32:], keys[:32] + low):
        refuse_list(played, replaced(content, 0, keys=both), "low order", sender=owner)


@pytest.mark.parametrize("ring", [2**20, 2**32 - 1])
@pytest.mark.parametrize("name", SCATTERING)
def test_a_ring_that_is_said_to_be_enormous_takes_no_memory(name: str, ring: int) -> None:
    played, order = listing(name)
    content = struct.pack("<II", ring, ring - 1) + honest_list(played, order)[8:]
    tracemalloc.start()
    with suppress(HpcflError):
        device = played.devices[DEVICE]
        device.receive_advertise_keys(raw(content))
        device.send_share_keys()
        device.send_masked_input(played.vectors[DEVICE])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


@pytest.mark.parametrize("name", SCATTERING)
def test_a_neighbour_beyond_the_last_device_is_refused(name: str) -> None:
    """Else a row of shares would go to a device that does not exist: under MPI, a traceback."""
    played, order = listing(name)
    for id in (DEVICES, 2**31, 2**32 - 2, 2**32 - 1):
        content = replaced(honest_list(played, order), 0, id=id)
        refuse_list(played, content, "beyond the last, 10")


@pytest.mark.parametrize("name", SCATTERING)
def test_a_ring_of_more_than_all_devices_is_refused(name: str) -> None:
    """On a ring that is too large, most of a cohort's places would be empty."""
    played, order = listing(name)
    for ring in (DEVICES + 1, 2**32 - 1):
        content = struct.pack("<II", ring, 3) + honest_list(played, order)[8:]
        refuse_list(played, content, f"a ring of {ring}")


@pytest.mark.parametrize("phase", ["advertise_keys", "unmask"])
@pytest.mark.parametrize("name", SCATTERING)
def test_a_device_for_which_the_server_has_nothing_drops_out(
    name: str, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = {"advertise_keys": "key_list", "unmask": "request"}[phase]
    send = getattr(RingLinks, message)

    def send_less(links: RingLinks, receiver: int, *rest: Any) -> Any:
        return None if receiver in (3, 7) else send(links, receiver, *rest)

    monkeypatch.setattr(RingLinks, message, send_less)
    played = play(on_ring(name, DEVICES, 12, DEGREE, 3, alpha=0.5))
    assert [3, 7] == list(played.left) == list(played.kept_out)
    for error in played.left.values():
        assert f"malformed {phase} message from the server: none came" == str(error)
    gone = () if phase == "unmask" else (3, 7)
    survivors = [id for id in range(DEVICES) if id not in gone]
    assert survivors == played.server.survivors
    assert (sum_of(played, survivors) == played.server.total).all()


# places


@pytest.mark.parametrize("name", SECURE)
def test_on_a_complete_ring_only_the_place_that_follows_from_the_keys_is_taken(name: str) -> None:
    played, order = listing(name, degree=DEVICES - 1)
    keys = played.sent("advertise_keys")
    place = order.index(DEVICE)
    swapped = order.copy()
    swapped[place - 1], swapped[place - 2] = swapped[place - 2], swapped[place - 1]
    rotated = order[1:] + order[:1]
    for wrong in (swapped, order[::-1], sorted(order)):
        content = ring_list(wrong, wrong.index(DEVICE), keys, DEVICES - 1).tobytes()
        refuse_list(played, content, "device 2 refuses its place", RefusedError)
    # The right neighbours, but where the ring begins is wrong: other segments would be sent.
    content = ring_list(rotated, rotated.index(DEVICE), keys, DEVICES - 1).tobytes()
    assert honest_list(played, order, DEVICES - 1)[8:] == content[8:]
    refuse_list(played, content, "device 2 refuses its place", RefusedError)
    # Another device's keys are others, so the order is another one.
    neighbour = next(id for id in order if id != DEVICE)
    altered = {**keys, neighbour: bytes(64)}
    content = ring_list(order, place, altered, DEVICES - 1).tobytes()
    assert content != honest_list(played, order, DEVICES - 1)
    altered[neighbour] = bytes([1]) * 32 + keys[neighbour][32:]
    content = ring_list(order, place, altered, DEVICES - 1).tobytes()
    refuse_list(played, content, "device 2 refuses its place", RefusedError)

    played.devices[DEVICE].receive_advertise_keys(raw(honest_list(played, order, DEVICES - 1)))


@pytest.mark.parametrize("gone", [3, 4, 5])
def test_a_ring_that_has_become_complete_is_checked_too(gone: int) -> None:
    """Of 11 devices with 6 neighbours, 7 or fewer make a complete ring: odd and even ones."""
    left = DEVICES - gone
    dropouts = dict.fromkeys(range(left, DEVICES), "advertise_keys")
    protocol = on_ring("cohort", DEVICES, 12, 6, 3, alpha=0.6)
    played = play(protocol, dropouts=dropouts, before=("advertise_keys", Pattern.SCATTER))
    keys = played.sent("advertise_keys")
    order = ring_order(keys, "cohort round 0")
    rotated = order[1:] + order[:1]
    content = ring_list(rotated, rotated.index(DEVICE), keys, 6)
    device = played.devices[DEVICE]
    if left <= 7:
        played.refused(RefusedError, device.receive_advertise_keys, content)
    else:
        # Who knows only its neighbours takes the order on trust.
        device.receive_advertise_keys(content)
    device.receive_advertise_keys(ring_list(order, order.index(DEVICE), keys, 6))


# shares


@pytest.mark.parametrize("name", SCATTERING)
def test_a_share_of_a_device_that_is_no_neighbour_is_refused(name: str) -> None:
    played = play(on_ring(name, DEVICES, 12, DEGREE, 3, alpha=0.5), before="share_keys")
    order = ring_order(played.sent("advertise_keys"), f"{name} round 0")
    stranger = next(id for id in order if id not in holders(order, DEVICE, DEGREE))
    senders, rows = shares_by_receiver(played.devices)[DEVICE]
    assert DEGREE == len(senders)

    strangers = (stranger, DEVICE, DEVICES)
    device = played.devices[DEVICE]
    device.receive_share_keys(np.append(senders, strangers), np.vstack([rows, *rows[:3, None]]))
    # All neighbours have sent theirs, so that it is none of them who has not.
    assert [("share_keys", f"device {id}", "it advertised no keys") for id in strangers] == [
        (error.phase, error.sender, error.reason) for error in device.ignored
    ]
    assert sorted([*senders.tolist(), DEVICE]) == sorted(device._members())


@pytest.mark.parametrize("name", SCATTERING)
def test_a_share_of_no_neighbour_in_place_of_one_makes_the_device_drop_out(name: str) -> None:
    played = play(on_ring(name, DEVICES, 12, DEGREE, 3, alpha=0.5), before="share_keys")
    senders, rows = shares_by_receiver(played.devices)[DEVICE]
    device = played.devices[DEVICE]
    senders[1] = DEVICES
    error = played.refused(MessageError, device.receive_share_keys, senders, rows)
    assert ("share_keys", f"device {DEVICES}") == (error.phase, error.sender)


@pytest.mark.parametrize("name", SECURE)
def test_shares_go_to_neighbours_only(name: str) -> None:
    played = play(on_ring(name, DEVICES, 12, DEGREE, 3, alpha=0.5), before="share_keys")
    order = ring_order(played.sent("advertise_keys"), f"{name} round 0")
    for id, device in played.devices.items():
        receivers, rows = device.send_share_keys()
        assert [one for one in holders(order, id, DEGREE) if one != id] == receivers.tolist()
        assert (DEGREE, 72) == rows.shape


@pytest.mark.parametrize("name", SCATTERING)
def test_a_device_with_too_few_neighbours_left_does_not_go_on(name: str) -> None:
    played = play(on_ring(name, DEVICES, 12, DEGREE, 4, alpha=0.5), before="share_keys")
    senders, rows = shares_by_receiver(played.devices)[DEVICE]
    device = played.devices[DEVICE]

    error = played.refused(RefusedError, device.receive_share_keys, senders[:2], rows[:2])
    assert "refuses to go on with 3 devices: the threshold is 4" in str(error)
    device.receive_share_keys(senders[:3], rows[:3])


# requests, of device 2 with four neighbours of whom the first shared no keys


@pytest.fixture(params=SCATTERING)
def asked(request: pytest.FixtureRequest) -> Played:
    """Return a round in which the server is about to ask for shares."""
    protocol = on_ring(request.param, DEVICES, 12, DEGREE, 3, alpha=0.5)
    begun = play(protocol, before="share_keys")
    order = ring_order(begun.sent("advertise_keys"), f"{protocol.name} round 0")
    first = holders(order, DEVICE, DEGREE)[0]
    return play(protocol, dropouts={first: "share_keys"}, before="unmask")


def ask(played: Played, survivors: list[int], dropped: list[int]) -> NDArray[np.uint8]:
    """Ask device 2 with these slots named; return its answer."""
    device = played.devices[DEVICE]
    device.receive_unmask(raw(bits(survivors, DEGREE + 1) + bits(dropped, DEGREE + 1)))
    return device.send_unmask()


def test_a_request_names_slots_and_is_answered_for_each(asked: Played) -> None:
    assert bits([1, 2, 3, 4], 5) + bits([], 5) == asked.server.send_unmask(DEVICE).tobytes()
    assert 4 * (3 * 5 + 9) == ask(asked, [1, 2, 4], [3]).size


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
def test_a_request_that_could_reveal_more_than_a_sum_is_refused(
    asked: Played, survivors: list[int], dropped: list[int], reason: str
) -> None:
    error = asked.refused(RefusedError, ask, asked, survivors, dropped)
    assert reason in str(error)
    asked.refused(RefusedError, asked.devices[DEVICE].send_unmask)


def test_a_second_request_is_refused_whatever_it_names(asked: Played) -> None:
    ask(asked, [1, 2, 3, 4], [])
    for survivors, dropped in [([1, 2, 3, 4], []), ([1, 2, 3], [4])]:
        error = asked.refused(RefusedError, ask, asked, survivors, dropped)
        assert "a second unmasking request" in str(error)


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("slot", [5, 6, 7])
def test_a_slot_beyond_the_last_is_refused(asked: Played, slot: int, place: int) -> None:
    request = bytearray(bits([1, 2, 3, 4], 5) + bits([], 5))
    request[place] |= 1 << (7 - slot)
    error = asked.refused(MessageError, asked.devices[DEVICE].receive_unmask, raw(bytes(request)))
    assert ("unmask", "the server") == (error.phase, error.sender)
    assert "a slot beyond the last" in error.reason


@pytest.mark.parametrize("size", [0, 1, 3, 4])
def test_a_request_of_another_size_is_refused(asked: Played, size: int) -> None:
    request = (bits([1, 2, 3, 4], 5) + bits([], 5) + bytes(2))[:size]
    error = asked.refused(MessageError, asked.devices[DEVICE].receive_unmask, raw(request))
    assert f"{size} bytes came, 2 were expected" in str(error)


# what the server does with answers


def answering(name: str, silent: list[int], threshold: int = 3) -> tuple[Played, list[int]]:
    """Return a round that is all but unmasked; devices at these places stay silent."""
    protocol = on_ring(name, DEVICES, 12, DEGREE, threshold, alpha=0.5)
    begun = play(protocol, before="share_keys")
    order = ring_order(begun.sent("advertise_keys"), f"{name} round 0")
    played = play(protocol, before=("unmask", Pattern.GATHER))
    for place, id in enumerate(order):
        if place not in silent:
            played.server.receive_unmask(id, played.devices[id].send_unmask())
    return played, order


@pytest.mark.parametrize("name", SCATTERING)
def test_a_secret_of_which_too_few_shares_came_is_not_reconstructed(name: str) -> None:
    """Places 3 to 5 are silent: of the five holders around each of them, two are left."""
    played, order = answering(name, [3, 4, 5])
    error = played.refused(BelowThresholdError, played.server.finish_unmask)
    assert str(error).startswith("2 of the 5 devices that hold shares of device ")
    assert f"device {min(order[3:6])}'s secrets answered" in str(error)
    assert "at least 3 are needed" in str(error)
    assert 0 == played.server.total.size


@pytest.mark.parametrize("silent", [[3, 4], [3, 5], [0, 5], [10, 0], []])
@pytest.mark.parametrize("name", SCATTERING)
def test_a_secret_of_which_just_enough_shares_came_is(name: str, silent: list[int]) -> None:
    played, _ = answering(name, silent)
    played.server.finish_unmask()
    played.server.finish_result()
    whole, _ = answering(name, [])
    whole.server.finish_unmask()
    whole.server.finish_result()
    assert whole.server.total.tolist() == played.server.total.tolist()


@pytest.mark.parametrize("place", [0, 5, -1])
@pytest.mark.parametrize("name", SCATTERING)
def test_the_server_refuses_an_answer_of_another_size(name: str, place: int) -> None:
    played, order = answering(name, list(range(DEVICES)))
    id = order[place]
    answer = played.devices[id].send_unmask()
    assert 4 * 5 * 5 == answer.size
    for wrong in (answer[:-4], answer[:-1], answer[:0], np.append(answer, answer[:20])):
        error = played.refused(MessageError, played.server.receive_unmask, id, wrong)
        assert ("unmask", f"device {id}") == (error.phase, error.sender)
        assert f"{wrong.size} bytes came, 100 were expected" in error.reason


# uploads of cohorts


@pytest.fixture
def collecting() -> tuple[Played, list[int]]:
    """Return a round before the uploads; 35 coordinates in 11 segments, of which a device has 4."""
    protocol = on_ring("cohort", DEVICES, 35, DEGREE, 3, alpha=0.35)
    played = play(protocol, before="masked_input")
    return played, ring_order(played.sent("advertise_keys"), "cohort round 0")


def test_the_server_refuses_a_run_of_another_length(collecting: tuple[Played, list[int]]) -> None:
    played, order = collecting
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
            assert f"{wrong.size} bytes came, {uploads[id].size} were expected" in error.reason
    assert [] == played.server.survivors


@pytest.mark.parametrize("place", [0, 6, -1])
def test_the_server_refuses_a_value_of_a_run_that_is_no_field_element(
    collecting: tuple[Played, list[int]], place: int
) -> None:
    played, order = collecting
    upload = played.devices[order[0]].send_masked_input(played.vectors[order[0]]).view("<u4")
    wrong: Any = upload.copy()
    wrong[place] = Q
    error = played.refused(
        MessageError, played.server.receive_masked_input, order[0], wrong.view(np.uint8)
    )
    assert "a value is no group element" in str(error)
    played.server.receive_masked_input(order[0], upload.view(np.uint8))
    assert [order[0]] == played.server.survivors
