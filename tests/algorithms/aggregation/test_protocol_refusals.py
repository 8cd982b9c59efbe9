"""What a device refuses, because answering could reveal more than a sum (safety rules 1 and 2).

Every refusal is checked twice: that it is raised, and by `Played.refused` that it names no secret.
"""

from __future__ import annotations

import pytest
from protocol_rounds import (
    LINKED,
    bits,
    expelled_list,
    key_list,
    make,
    play,
    raw,
    request,
    ring_request,
    shares_by_receiver,
)

from hpcfl.comm.phases import Pattern
from hpcfl.errors import MessageError, RefusedError

DEVICES = 9  # t = 5
WITHOUT_SHARES = 8  # dropped out before share_keys
DROPPED = [0, 3]  # dropped out before masked_input
SURVIVORS = [1, 2, 4, 5, 6, 7]

# The points of X25519 with which every shared secret is zero, and their other encodings.
LOW_ORDER = [
    0,
    1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
    2**255 - 20,
    2**255 - 19,
    2**255 - 18,
]


@pytest.fixture(params=LINKED)
def asked(request):
    """Return a round in which the server is about to ask for shares."""
    dropouts = dict.fromkeys(DROPPED, "masked_input") | {WITHOUT_SHARES: "share_keys"}
    return play(make(request.param, DEVICES, 12), dropouts=dropouts, before="unmask")


@pytest.fixture(params=LINKED)
def listed(request):
    return listing(request.param)


def listing(name):
    """Return a round in which the server is about to send the list of public keys."""
    protocol = make(name, DEVICES, 12)
    return play(protocol, before=("advertise_keys", protocol.topology.pattern))


def ask(played, id, survivors, dropped):
    """Ask a device to unmask; return its answer."""
    device = played.devices[id]
    device.receive_unmask(request(played, id, survivors, dropped))
    return device.send_unmask()


def assert_refused(played, survivors, dropped, reason, kind=RefusedError):
    """Assert that device 2 refuses a request and does not answer it either."""
    error = played.refused(kind, ask, played, 2, survivors, dropped)
    assert reason in str(error)
    played.refused(RefusedError, played.devices[2].send_unmask)


def test_the_request_of_an_honest_server_is_answered(asked):
    expected = request(asked, 2, SURVIVORS, DROPPED).tobytes()
    assert expected == asked.server.send_unmask(2).tobytes()
    assert 4 * (6 * 6 + 2 * 10) == ask(asked, 2, SURVIVORS, DROPPED).size


def test_both_secrets_of_a_device_are_refused(asked):
    assert_refused(asked, [*SURVIVORS, 3], DROPPED, "both secrets of device 3")
    assert_refused(asked, SURVIVORS, [*DROPPED, 5], "both secrets of device 5")
    assert_refused(asked, SURVIVORS, [*DROPPED, 2], "both secrets of device 2")


def test_both_secrets_of_a_device_are_refused_one_after_the_other(asked):
    ask(asked, 2, SURVIVORS, DROPPED)

    for survivors, dropped in [
        ([*SURVIVORS, 3], [0]),
        ([1, 2, 4, 5, 6], [*DROPPED, 7]),
        (SURVIVORS, DROPPED),
    ]:
        error = asked.refused(RefusedError, ask, asked, 2, survivors, dropped)
        assert "refuses a second unmasking request" in str(error)


def test_a_second_request_is_refused_even_before_the_first_is_answered(asked):
    device = asked.devices[2]
    device.receive_unmask(request(asked, 2, SURVIVORS, DROPPED))
    second = request(asked, 2, [*SURVIVORS, 3], [0])

    asked.refused(RefusedError, device.receive_unmask, second)
    # What was asked first is what is answered.
    assert 4 * (6 * 6 + 2 * 10) == device.send_unmask().size


def test_the_sum_of_fewer_than_t_devices_is_refused(asked):
    assert_refused(asked, SURVIVORS[:4], [6, 7, *DROPPED], "the sum of 4 devices")
    assert_refused(asked, [2], sorted({*SURVIVORS, *DROPPED} - {2}), "the sum of 1 devices")
    assert_refused(asked, [], sorted({*SURVIVORS, *DROPPED}), "the sum of 0 devices")


def test_the_sum_of_exactly_t_devices_is_not_refused(asked):
    assert 4 * (5 * 6 + 3 * 10) == ask(asked, 2, SURVIVORS[:5], [*DROPPED, 7]).size


def test_a_request_that_leaves_out_a_device_is_refused(asked):
    reason = "does not name exactly the devices that shared keys with it"
    assert_refused(asked, SURVIVORS, [0], reason)
    assert_refused(asked, SURVIVORS[:-1], DROPPED, reason)
    assert_refused(asked, [1, 4, 5, 6, 7], DROPPED, reason)


def test_a_request_that_names_a_device_without_shares_is_refused(asked):
    reason = "does not name exactly the devices that shared keys with it"
    assert_refused(asked, [*SURVIVORS, WITHOUT_SHARES], DROPPED, reason)
    assert_refused(asked, SURVIVORS, [*DROPPED, WITHOUT_SHARES], reason)


def test_a_request_that_swaps_one_device_for_another_is_refused(asked):
    reason = "does not name exactly the devices that shared keys with it"
    assert_refused(asked, SURVIVORS, [0, WITHOUT_SHARES], reason)


def test_a_request_that_names_a_device_beyond_the_last_is_refused(asked):
    """Nine devices or slots: the last bits of the second byte of either list are nobody's."""
    on_ring = asked.parameters.degree is not None
    for place in (1, 3):
        changed = bytearray(request(asked, 2, SURVIVORS, DROPPED).tobytes())
        changed[place + 4 * on_ring] |= 1
        error = asked.refused(MessageError, asked.devices[2].receive_unmask, raw(bytes(changed)))
        assert ("unmask", "the server") == (error.phase, error.sender)
        assert ("a slot that nobody is in" if on_ring else "beyond the last") in error.reason


def test_a_slot_of_a_device_that_advertised_nothing_is_refused():
    protocol = make("cohort", DEVICES, 12)
    played = play(protocol, dropouts={4: "advertise_keys"}, before="unmask")
    survivors = [id for id in range(DEVICES) if id != 4]
    for named in ([*survivors, 4], []), (survivors, [4]):
        error = played.refused(MessageError, ask, played, 2, *named)
        assert "a slot that nobody is in" in str(error)
    assert 4 * 8 * 6 == ask(played, 2, survivors, []).size


@pytest.mark.parametrize("total", [0, 5, 10, 2**32 - 1])
def test_a_number_of_survivors_that_cannot_be_is_refused(total):
    """Fewer than are named, or more than there are devices."""
    protocol = make("cohort", DEVICES, 12)
    dropouts = dict.fromkeys(DROPPED, "masked_input") | {WITHOUT_SHARES: "share_keys"}
    played = play(protocol, dropouts=dropouts, before="unmask")
    asking = ring_request(played, 2, SURVIVORS, DROPPED, total)
    error = played.refused(MessageError, played.devices[2].receive_unmask, asking)
    assert f"{total} survivors of 9 cannot be" in error.reason
    played.devices[2].receive_unmask(ring_request(played, 2, SURVIVORS, DROPPED, 6))


def test_a_device_that_is_named_as_dropped_refuses(asked):
    without = [id for id in SURVIVORS if id != 2]
    assert_refused(asked, without, [*DROPPED, 2], "it is named as dropped")


@pytest.mark.parametrize("change", [lambda request: request[:-1], lambda request: request + b"\0"])
def test_a_request_of_another_size_is_refused(asked, change):
    changed = raw(change(request(asked, 2, SURVIVORS, DROPPED).tobytes()))

    error = asked.refused(MessageError, asked.devices[2].receive_unmask, changed)
    assert ("unmask", "the server") == (error.phase, error.sender)


def test_a_device_that_was_not_asked_does_not_answer(asked):
    asked.refused(RefusedError, asked.devices[2].send_unmask)


# the list of public keys


def refuse_list(played, keys, reason, kind=MessageError, device=2, sender="the server"):
    receive = played.devices[device].receive_advertise_keys
    error = played.refused(kind, receive, key_list(played, device, keys))
    assert reason in str(error)
    if kind is MessageError:
        assert ("advertise_keys", sender) == (error.phase, error.sender)


def test_a_list_of_t_devices_is_taken_and_one_of_fewer_is_refused(listed):
    keys = listed.sent("advertise_keys")
    refuse_list(
        listed, {id: keys[id] for id in (1, 2, 3, 4)}, "share keys with 4 devices", RefusedError
    )
    enough = {id: keys[id] for id in (1, 2, 3, 4, 5)}
    listed.devices[2].receive_advertise_keys(key_list(listed, 2, enough))

    receivers, _ = listed.devices[2].send_share_keys()
    assert [1, 3, 4, 5] == sorted(receivers.tolist())


def test_a_device_refuses_a_list_in_which_its_own_keys_are_not_as_it_sent_them():
    """Altered anywhere, exchanged with each other, or not there at all."""
    listed = listing("secagg")
    keys = listed.sent("advertise_keys")
    changed = [keys[2][32:] + keys[2][:32]]
    for place in (0, 31, 32, 63):
        altered = bytearray(keys[2])
        altered[place] ^= 1
        changed.append(bytes(altered))
    for own in changed:
        refuse_list(listed, {**keys, 2: own}, "own keys are not as it sent them")
    del keys[2]
    refuse_list(listed, keys, "own keys are not as it sent them")


def assert_takes_list(played, keys):
    """Assert that device 2 takes a list, and that what it derives for no two of it is the same."""
    device, others = played.devices[2], [id for id in range(DEVICES) if id != 2]
    device.receive_advertise_keys(key_list(played, 2, keys))
    receivers, _ = device.send_share_keys()
    assert others == sorted(receivers.tolist())
    sealing = [key for key in device._transport_keys if key]
    # One after the other: what is derived with one does not depend on who else is there.
    masks = [secret for id in others for secret in device._mask_secrets([id])[1]]
    assert len(sealing) == len(masks) == DEVICES - 1
    assert 2 * (DEVICES - 1) == len({*sealing, *masks})


@pytest.mark.parametrize("owner", [5, 8, 2])
def test_a_device_takes_a_list_in_which_a_key_appears_twice(listed, owner):
    """Of a device with a lower or a higher id, or its own: it goes on with both all the same."""
    keys = listed.sent("advertise_keys")
    twice = [keys[owner]]
    for to, source in ((0, 0), (32, 32), (0, 32), (32, 0)):
        part = keys[owner][source : source + 32]
        twice.append(keys[7][:to] + part + keys[7][to + 32 :])
    for changed in twice:
        assert_takes_list(listing(listed.protocol.name), {**keys, 7: changed})


def test_a_device_takes_a_list_in_which_devices_have_one_key_for_both_uses(listed):
    """One of the others, or all of them the same one."""
    keys = listed.sent("advertise_keys")
    assert_takes_list(listing(listed.protocol.name), {**keys, 7: keys[7][:32] * 2})
    assert_takes_list(listed, {id: keys[id] if id == 2 else keys[5][:32] * 2 for id in keys})


@pytest.mark.parametrize("point", LOW_ORDER)
def test_keys_of_low_order_are_refused_before_they_are_used(listed, point):
    keys = listed.sent("advertise_keys")
    low = point.to_bytes(32, "little")
    for changed in (low + keys[6][32:], keys[6][:32] + low):
        refuse_list(listed, {**keys, 6: changed}, "low order", sender="device 6")


@pytest.mark.parametrize("cut", [0, 1, 2, 65, -1])
def test_a_key_list_of_another_size_is_refused(listed, cut):
    message = listed.server.send_advertise_keys(2)

    error = listed.refused(MessageError, listed.devices[2].receive_advertise_keys, message[:cut])
    assert ("advertise_keys", "the server") == (error.phase, error.sender)


def test_a_key_list_that_names_a_device_beyond_the_last_is_refused():
    listed = listing("secagg")
    message = listed.server.send_advertise_keys().copy()
    message[1] |= 1

    error = listed.refused(MessageError, listed.devices[2].receive_advertise_keys, message)
    assert "beyond the last, 8" in error.reason


@pytest.mark.parametrize("name", LINKED)
def test_a_device_with_the_shares_of_fewer_than_t_devices_refuses_to_go_on(name):
    played = play(make(name, DEVICES, 12), before="share_keys")
    device = played.devices[2]
    senders, rows = shares_by_receiver(played.devices)[2]

    error = played.refused(RefusedError, device.receive_share_keys, senders[:3], rows[:3])
    assert "refuses to go on with 4 devices: the threshold is 5" in str(error)
    device.receive_share_keys(senders[:4], rows[:4])
    assert device.send_masked_input(played.vectors[2]).size


# the list of those that are expelled


@pytest.fixture(params=LINKED)
def challenged(request):
    """Return a round in which devices are about to answer the challenge."""
    return play(make(request.param, DEVICES, 12), before=("share_keys", Pattern.GATHER))


@pytest.fixture(params=LINKED)
def checked(request):
    """Return a round in which devices have answered, and are about to upload."""
    return play(make(request.param, DEVICES, 12), before="masked_input")


def expel(played, *ids):
    """Tell device 2 who is expelled."""
    played.devices[2].receive_expelled(expelled_list(played, 2, ids))


TOO_EARLY_OR_LATE = "device 2 refuses to expel devices at this point"


def test_nobody_is_expelled_before_it_could_be_known_who_is_to_be(challenged):
    """A device that has not answered helps nobody to find out."""
    device = challenged.devices[2]
    for ids in ([3], []):
        assert TOO_EARLY_OR_LATE in str(challenged.refused(RefusedError, expel, challenged, *ids))
    assert list(range(DEVICES)) == sorted(device._members())
    device.send_checks()
    expel(challenged, 3)
    assert 3 not in device._members()


@pytest.mark.parametrize("first", [[3], [3, 5], []], ids=str)
def test_devices_are_expelled_once(checked, first):
    expel(checked, *first)
    left = [id for id in range(DEVICES) if id not in first]
    for again in ([3], [6], first, []):
        error = checked.refused(RefusedError, expel, checked, *again)
        assert TOO_EARLY_OR_LATE in str(error)
    assert left == sorted(checked.devices[2]._members())


def test_nobody_is_expelled_after_the_upload(checked):
    """It has masked with them: without their masks its vector would lack some."""
    device = checked.devices[2]
    device.send_masked_input(checked.vectors[2])
    for ids in ([3], []):
        assert TOO_EARLY_OR_LATE in str(checked.refused(RefusedError, expel, checked, *ids))
    assert list(range(DEVICES)) == sorted(device._members())


@pytest.mark.parametrize("ids", [[2], [2, 3], [1, 2, 3, 4, 5]], ids=str)
def test_a_device_that_is_told_that_it_is_expelled_leaves(checked, ids):
    error = checked.refused(RefusedError, expel, checked, *ids)
    assert "device 2 is told that the shares of its secrets do not belong together" == str(error)


def test_with_fewer_than_t_members_left_a_device_refuses_to_go_on(checked):
    error = checked.refused(RefusedError, expel, checked, 0, 3, 5, 7, 8)
    assert "device 2 refuses to go on with 4 devices: the threshold is 5" == str(error)


@pytest.mark.parametrize("ids", [[], [3], [0, 3, 5, 8]], ids=str)
def test_with_t_members_left_it_masks_with_those_alone(checked, ids):
    """And is asked about those alone: whoever names an expelled device asks too much."""
    device = checked.devices[2]
    expel(checked, *ids)
    left = [id for id in range(DEVICES) if id not in ids]
    assert left == sorted(device._members())
    others = checked.devices[6]
    others.receive_expelled(expelled_list(checked, 6, ids))
    assert left == sorted(others._members())
    device.send_masked_input(checked.vectors[2])

    reason = "does not name exactly the devices that shared keys with it"
    for id in ids:
        assert_refused(checked, sorted([*left, id]), [], reason)
        assert_refused(checked, left, [id], reason)
    assert 4 * 6 * len(left) == ask(checked, 2, left, []).size


@pytest.mark.parametrize("cut", [0, 1, -1, 1000])
def test_a_list_of_expelled_devices_of_another_size_is_refused(checked, cut):
    right = expelled_list(checked, 2, [3]).tobytes()
    wrong = right[:cut] if cut < 1000 else right + b"\0"
    error = checked.refused(MessageError, checked.devices[2].receive_expelled, raw(wrong))
    assert ("share_keys", "the server") == (error.phase, error.sender)
    assert f"received {len(wrong)} bytes, expected {len(right)}" in error.reason


@pytest.mark.parametrize("place", [9, 15])
def test_expelled_devices_beyond_the_last_are_refused(checked, place):
    """Nine devices, or slots: the last bits are nobody's."""
    on_ring = checked.parameters.degree is not None
    wrong = (bytes([1, 0, 0, 0]) if on_ring else b"") + bits([place], 16)
    error = checked.refused(MessageError, checked.devices[2].receive_expelled, raw(wrong))
    assert ("share_keys", "the server") == (error.phase, error.sender)
    assert ("a slot that nobody is in" if on_ring else "beyond the last, 8") in error.reason


@pytest.mark.parametrize("total", [0, 1, 10, 2**32 - 1])
def test_a_number_of_expelled_devices_that_cannot_be_is_refused(total):
    """Fewer than are named, or more than there are devices."""
    played = play(make("cohort", DEVICES, 12), before="masked_input")
    wrong = expelled_list(played, 2, [3, 5], total)
    error = played.refused(MessageError, played.devices[2].receive_expelled, wrong)
    assert ("share_keys", "the server") == (error.phase, error.sender)
    assert f"{total} expelled devices of 9 cannot be" in error.reason


def test_an_expelled_slot_of_a_device_that_advertised_nothing_is_refused():
    protocol = make("cohort", DEVICES, 12)
    played = play(protocol, dropouts={4: "advertise_keys"}, before="masked_input")
    error = played.refused(MessageError, expel, played, 4)
    assert ("share_keys", "the server") == (error.phase, error.sender)
    assert "a slot that nobody is in" in error.reason


@pytest.mark.parametrize("name", LINKED)
def test_a_second_vector_is_never_masked(name):
    # The difference of two uploads under the same masks is the difference of the vectors.
    played = play(make(name, 3, 12), before="masked_input")
    device = played.devices[1]
    device.send_masked_input(played.vectors[1])
    with pytest.raises(RefusedError, match="device 1 refuses to upload twice in a round"):
        device.send_masked_input(2 * played.vectors[1])


@pytest.mark.parametrize("name", LINKED)
def test_keys_are_never_shared_twice(name):
    # Two ciphertexts under one key and nonce give their plaintexts' difference away.
    played = play(make(name, 3, 12), before="share_keys")
    device = played.devices[1]
    device.send_share_keys()
    with pytest.raises(RefusedError, match="device 1 refuses to share keys twice in a round"):
        device.send_share_keys()
