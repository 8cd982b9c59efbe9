"""What a device refuses, because answering could reveal more than a sum (safety rules 1 and 2).

Every refusal is checked twice: that it is raised, and by `Played.refused` that it names no secret.
"""

from __future__ import annotations

import pytest
from protocol_rounds import (
    LINKED,
    expelled_list,
    key_list,
    make,
    play,
    request,
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


NOT_EXACTLY = "does not name exactly the devices that shared keys with it"
HIDDEN = sorted({*SURVIVORS, *DROPPED} - {2})


@pytest.mark.parametrize(
    ("survivors", "dropped", "reason"),
    [
        ([*SURVIVORS, 3], DROPPED, "both secrets of device 3"),
        (SURVIVORS, [*DROPPED, 5], "both secrets of device 5"),
        (SURVIVORS, [*DROPPED, 2], "both secrets of device 2"),
        (SURVIVORS[:4], [6, 7, *DROPPED], "the sum of 4 devices"),
        ([2], HIDDEN, "the sum of 1 devices"),
        ([], [2, *HIDDEN], "the sum of 0 devices"),
        (SURVIVORS, [0], NOT_EXACTLY),
        (SURVIVORS[:-1], DROPPED, NOT_EXACTLY),
        ([1, 4, 5, 6, 7], DROPPED, NOT_EXACTLY),
        ([*SURVIVORS, WITHOUT_SHARES], DROPPED, NOT_EXACTLY),
        (SURVIVORS, [*DROPPED, WITHOUT_SHARES], NOT_EXACTLY),
        (SURVIVORS, [0, WITHOUT_SHARES], NOT_EXACTLY),
        ([1, 4, 5, 6, 7], [*DROPPED, 2], "it is named as dropped"),
    ],
)
def test_a_request_that_could_reveal_more_than_a_sum_is_refused(asked, survivors, dropped, reason):
    assert_refused(asked, survivors, dropped, reason)
    # The sum of exactly t devices is not.
    assert 4 * (5 * 6 + 3 * 10) == ask(asked, 2, SURVIVORS[:5], [*DROPPED, 7]).size


# the list of public keys


def refuse_list(played, keys, reason, kind=MessageError, device=2, sender="the server"):
    receive = played.devices[device].receive_advertise_keys
    error = played.refused(kind, receive, key_list(played, device, keys))
    assert reason in str(error)
    if kind is MessageError:
        assert ("advertise_keys", sender) == (error.phase, error.sender)


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
    holders = device._links.holders
    sealing = [device._transport_key(holders.index(id)) for id in others]
    # One after the other: what is derived with one does not depend on who else is there.
    masks = [secret for id in others for secret in device._mask_secrets([id])[1]]
    assert len(sealing) == len(masks) == DEVICES - 1
    assert 2 * (DEVICES - 1) == len({*sealing, *masks})


@pytest.mark.parametrize("owner", [5, 2])
def test_a_device_takes_a_list_in_which_a_key_appears_twice(listed, owner):
    """Of a device with a lower or a higher id, or its own: it goes on with both all the same."""
    keys = listed.sent("advertise_keys")
    twice = [keys[owner]]
    for to, source in ((0, 0), (32, 32), (0, 32), (32, 0)):
        part = keys[owner][source : source + 32]
        twice.append(keys[7][:to] + part + keys[7][to + 32 :])
    # One key for both uses, of one of the others.
    twice.append(keys[7][:32] * 2)
    for changed in twice:
        assert_takes_list(listing(listed.protocol.name), {**keys, 7: changed})


@pytest.mark.parametrize("point", LOW_ORDER)
def test_keys_of_low_order_are_refused_before_they_are_used(listed, point):
    keys = listed.sent("advertise_keys")
    low = point.to_bytes(32, "little")
    for changed in (low + keys[6][32:], keys[6][:32] + low):
        refuse_list(listed, {**keys, 6: changed}, "low order", sender="device 6")


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
def checked(request):
    """Return a round in which devices have answered, and are about to upload."""
    return play(make(request.param, DEVICES, 12), before="masked_input")


def expel(played, *ids):
    """Tell device 2 who is expelled."""
    played.devices[2].receive_expelled(expelled_list(played, 2, ids))


@pytest.mark.parametrize("name", LINKED)
@pytest.mark.parametrize("first", [[3, 5], []], ids=str)
def test_devices_are_expelled_once_between_their_answers_and_their_uploads(name, first):
    """A device that has not answered helps nobody to find out who is to be.

    One that has uploaded has masked with all: without their masks its vector would lack some.
    """

    def too_early_or_late(*ids):
        error = played.refused(RefusedError, expel, played, *ids)
        assert "device 2 refuses to expel devices at this point" in str(error)

    played = play(make(name, DEVICES), before=("share_keys", Pattern.GATHER))
    device = played.devices[2]
    too_early_or_late(3)
    too_early_or_late()
    device.send_checks()
    expel(played, *first)
    for again in ([3], [6], first, []):
        too_early_or_late(*again)
    assert [id for id in range(DEVICES) if id not in first] == sorted(device._members())

    played = play(make(name, DEVICES), before="masked_input")
    played.devices[2].send_masked_input(played.vectors[2])
    too_early_or_late(*first)
    assert list(range(DEVICES)) == sorted(played.devices[2]._members())


TOLD = "device 2 is told that the shares of its secrets do not belong together"


@pytest.mark.parametrize(
    ("ids", "sentence"),
    [
        ([2], TOLD),
        ([1, 2, 3, 4, 5], TOLD),
        ([0, 3, 5, 7, 8], "device 2 refuses to go on with 4 devices: the threshold is 5"),
    ],
    ids=str,
)
def test_a_device_leaves_if_it_is_expelled_or_too_few_are_left(checked, ids, sentence):
    assert sentence == str(checked.refused(RefusedError, expel, checked, *ids))
