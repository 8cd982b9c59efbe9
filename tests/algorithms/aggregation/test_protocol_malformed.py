"""A message that is not what its phase requires is an error that names its sender and its phase.

It costs the round that sender alone, while enough are left.
"""

from __future__ import annotations

import itertools
import re
import struct

import numpy as np
import pytest
from protocol_rounds import (
    LINKED,
    UPLOADING,
    Header,
    assert_tells_no_secret,
    make,
    play,
    raw,
    sent_by,
    sent_by_device,
    sum_of,
)
from slow_reference import KEY_SHARE, Q

from hpcfl.algorithms.aggregation import sharing
from hpcfl.errors import BelowThresholdError, MessageError

DEVICES = 5  # t = 3
VICTIM, SENDER = 2, 3

with_each_upload = pytest.mark.parametrize("name", UPLOADING)


def only_at_fault(played, id, phase, reason):
    """Assert that no device left but the one at fault, whose honest part finds itself left out."""
    assert {*played.left} <= {id}
    assert [id] == list(played.kept_out)
    assert f"malformed {phase} message from device {id}: " in str(played.kept_out[id])
    assert reason in str(played.kept_out[id])


# rows of shares: device 3 sends them, device 2 is the victim


def written(start, content):
    """Return a change of the row to the victim, from a byte on."""

    def write(rows):
        rows[to_victim(rows), start : start + len(content)] = raw(content)
        return rows

    return write


def to_victim(rows):
    return Header.receivers_of(rows).tolist().index(VICTIM)


def preceded(change):
    """Return a change that puts the changed row in front of the honest ones."""
    return lambda rows: np.vstack([change(rows.copy())[to_victim(rows)], rows])


SENT_BY, SENT_TO = 8, 12  # in an envelope
LOST_ROWS = {
    "other bytes": written(16 + 35, bytes(8)),
    "another step": written(1, b"\x63"),
    # In the name of another device, from which this takes nothing, even if it is first.
    **{f"from {id}": written(SENT_BY, struct.pack("<I", id)) for id in (0, VICTIM, 2**32 - 1)},
    **{f"also from {id}": preceded(written(SENT_BY, struct.pack("<I", id))) for id in (0, VICTIM)},
    # To nobody, or to its own sender.
    **{f"to {id}": written(SENT_TO, struct.pack("<I", id)) for id in (SENDER, DEVICES, 2**32 - 2)},
    "none": lambda rows: rows[Header.receivers_of(rows) != VICTIM],
    # Of several rows the first counts.
    "another one first": preceded(written(16, bytes(8))),
}


@pytest.mark.parametrize("change", LOST_ROWS.values(), ids=LOST_ROWS)
@pytest.mark.parametrize("name", LINKED)
def test_a_row_that_is_not_as_it_was_sent_is_a_missing_share(name, change):
    """It leaves device 2 alone without a share of device 3; all have the others, and stay."""
    protocol = make(name, DEVICES, 8)
    played = play(protocol, change=sent_by_device(protocol, "share_keys", SENDER, change))
    played.nobody_left()
    ignored = {id: device.ignored for id, device in played.devices.items() if device.ignored}
    assert [VICTIM] == list(ignored)
    (error,) = ignored[VICTIM]
    reason = "it does not decrypt"
    assert ("share_keys", f"device {SENDER}", reason) == (error.phase, error.sender, error.reason)
    assert_tells_no_secret(error, played.sources)
    played.goes_on()


# what is dealt: rightly sealed, but not what it should be


@pytest.fixture
def deals(monkeypatch):
    """Return what lets one device deal other shares than its own."""
    dealt = sharing.deal

    def let(dealer, change):
        calls = itertools.count()

        def deal(*arguments):
            shares = dealt(*arguments)
            return change(shares.copy()) if next(calls) % DEVICES == dealer else shares

        monkeypatch.setattr(sharing, "deal", deal)

    return let


def limb_moved(limb):
    """Return a change of a limb of the secret: a constant is added to all shares of it."""

    def move(shares):
        shares[:, limb] = ((shares[:, limb].astype(np.uint64) + 2**31) % Q).astype(np.uint32)
        return shares

    return move


def test_a_share_that_is_no_field_element_is_a_missing_one(deals):
    def beyond(shares):
        shares[VICTIM, 0] = Q
        return shares

    deals(SENDER, beyond)
    played = play(make("secagg", DEVICES, 8))
    (error,) = played.devices[VICTIM].ignored
    assert (f"device {SENDER}", "a share is not a field element") == (error.sender, error.reason)
    played.nobody_left()
    played.goes_on()


@with_each_upload
def test_a_seed_that_is_no_string_of_16_bytes_costs_its_dealer(name, deals):
    """Its upload is in the sum, under a mask of its own making: it could have sent anything."""
    deals(SENDER, limb_moved(KEY_SHARE))
    played = play(make(name, DEVICES, 8))
    assert list(range(DEVICES)) == played.server.survivors
    assert {} == played.left
    only_at_fault(played, SENDER, "unmask", "the shares do not combine to a secret")
    # Where it sent nothing, the sum is right.
    others = np.ones(8, np.bool_)
    others[sent_by(played, SENDER)] = False
    assert (sum_of(played, range(DEVICES)) == played.server.total)[others].all()


# answers, and shares that do not fit them


def uniform(answers):
    """Return answers about all dealers that have nothing to do with any share."""
    words = np.random.default_rng(2).integers(0, Q, answers.size // 4)
    return words.astype("<u4").view(np.uint8)


@pytest.mark.parametrize("name", LINKED)
def test_with_one_answer_less_a_liar_ends_the_round_and_nobody_is_expelled(name):
    """Of t + 1 answers any t fit, and nobody can tell whether dealer or holder is wrong.

    The round ends before anybody has masked anything.
    """
    protocol, uploads = make(name, DEVICES, 8), []
    lying = sent_by_device(protocol, "checks", VICTIM, uniform)

    def change(header, message):
        if header.step < len(protocol.steps) and protocol.steps[header.step].upload:
            uploads.append(header.sender)
        return lying(header, message)

    with pytest.raises(BelowThresholdError) as caught:
        play(protocol, change=change, dropouts={4: "share_keys"})
    assert re.fullmatch(
        r"the 4 answers about the shares of device \d's secrets contradict each other; it would "
        r"take 5 to tell whether that device or one of those that answered is at fault",
        str(caught.value),
    )
    assert [] == uploads


# what the server is sent


@pytest.mark.parametrize(
    ("senders", "total", "at_fault", "reason"),
    [
        ([0, 1, 2, 3], np.zeros(1, np.uint32), "the devices", "shape"),
        ([0, 1, 2, 3], np.full(4, Q, np.uint32), "the devices", "not a group element"),
        ([0, 1, 2, 4], np.zeros(4, np.uint32), "device 4", "it shared no keys"),
    ],
)
def test_the_server_refuses_a_sum_of_another_form_or_with_a_device_that_shared_no_keys(
    senders, total, at_fault, reason
):
    played = play(make("secagg", DEVICES, 4), dropouts={4: "share_keys"}, before="masked_input")
    take = played.server.receive_sum_masked_input
    error = played.refused(MessageError, take, senders, total)
    assert ("masked_input", at_fault) == (error.phase, error.sender)
    assert reason in error.reason
    assert [] == played.server.survivors
