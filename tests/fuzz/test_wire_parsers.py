"""What a party makes of one changed message: named errors, no other; a server is left as it was."""

import struct
from unittest import mock

import fuzzed_wire as wire
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import seeded

from hpcfl.algorithms import locations
from hpcfl.comm import envelope
from hpcfl.comm import rows as rows_of
from hpcfl.errors import MessageError

numbers = st.integers(0, 10**6)
words = st.sampled_from(wire.BOUNDARIES) | st.integers(0, 2**32 - 1)


def receive_changed(case, stands):
    """Let parties receive changed messages: some are refused, and some are not."""
    pool = wire.honest(case, 5)[1]
    seen = set()

    @seeded(200)
    @given(st.sampled_from(range(len(stands))), st.sampled_from(wire.KINDS), numbers, numbers)
    def messages(which, kind, x, y):
        seen.add(wire.receive(stands[which], kind, x, y, pool))

    messages()
    assert {"accepted", "refused"} == seen


@pytest.mark.parametrize("case", wire.each(wire.CASES))
def test_no_party_is_upset_by_a_changed_message(case):
    receive_changed(case, wire.stands_of(case, 5))


@pytest.mark.parametrize("case", wire.CASES)
def test_unchanged_messages_are_accepted(case):
    """So that what refuses the changed ones is the change."""
    for stand in wire.stands_of(case, 5):
        getattr(stand.party_again(), stand.method)(*stand.arguments)


@pytest.mark.parametrize("case", wire.each(wire.SHARING))
def test_no_device_is_upset_by_a_changed_list_of_expelled_devices(case):
    stands = wire.told_of_expulsions(case, 5)
    assert [0, 1, 3, 4] == [stand.party.id for stand in stands]
    receive_changed(case, stands)
    for stand in stands:
        device = stand.party_again()
        assert 2 in device._members()
        device.receive_expelled(*stand.arguments)
        assert 2 not in device._members()


@seeded(300)
@given(
    st.sets(st.integers(0, 199), max_size=60), st.sampled_from(["bitmap", "gaps"]), numbers, numbers
)
def test_changed_locations_are_others_or_refused(chosen, coding, x, y):
    """Two messages of the same length that say the same would be two spellings of one."""
    positions = np.array(sorted(chosen), np.int64)
    message = locations.encode(positions, 200, coding)
    assert locations.decode(message, 200)[0].tolist() == positions.tolist()
    other = np.frombuffer(wire.changed(message.tobytes(), "flip", x, y, [b""]), np.uint8)
    try:
        found, used = locations.decode(other, 200)
    except ValueError:
        return
    # With one coding and Rice parameter; what is left over would have to be values.
    same = found.tolist() == positions.tolist() and used == other.size
    assert not same or bytes(other[:2]) != bytes(message[:2])


# envelopes


@seeded(200)
@given(st.binary(max_size=40), st.integers(0, 9), words, words)
def test_an_envelope_is_the_expected_one_or_refused(raw, step, round_index, sender):
    message = np.frombuffer(raw, np.uint8)
    with pytest.raises(MessageError) as caught:
        envelope.unseal(message, "unmask", step, round_index, sender, envelope.SERVER)
        # Forty random bytes are no envelope, but in one of 2**128 cases.
    assert "unmask" == caught.value.phase
    assert envelope.refusal_in(message, round_index, sender) is None


@seeded(300)
@given(st.binary(max_size=600))
def test_a_reason_to_leave_is_short_and_printable(text):
    body = np.frombuffer(text, np.uint8)
    message = envelope.seal(envelope.REFUSAL, 3, 1, envelope.SERVER, body)
    found = envelope.refusal_in(message, 3, 1)
    assert found is not None
    assert found.isprintable()
    assert 0 < len(found) <= envelope.REASON_BYTES
    assert envelope.refusal_in(message, 2, 1) is None
    assert envelope.refusal_in(message, 3, 2) is None


@seeded(300)
@given(st.lists(st.binary(min_size=20, max_size=20), max_size=6))
def test_rows_of_other_messages_hold_nothing(sent):
    """Whoever sent them, who is known; one in a right envelope among them holds what it holds."""
    right = struct.pack("<BBHIII", 1, 3, 0, 7, 5, 2) + b"held"
    block = np.frombuffer(b"".join([*sent, right]), np.uint8).reshape(-1, 20)
    senders = np.array([*range(len(sent)), 5])
    payloads = envelope.unseal_rows(block, 3, 7, senders, 2)
    assert (len(sent) + 1, 4) == payloads.shape
    assert not payloads[:-1].any()
    assert b"held" == payloads[-1].tobytes()
    # The same in the name of another sender, or read by another receiver, is nothing.
    assert not envelope.unseal_rows(block, 3, 7, senders + 1, 2).any()
    assert not envelope.unseal_rows(block, 3, 7, senders, 3).any()


@seeded(300)
@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from([0, 1, 2, 3, 4, 5, 2**31, 2**32 - 1])),
        max_size=12,
    ),
    st.sampled_from([30, 60, 1 << 25]),
)
def test_rows_are_delivered_to_devices_and_from_whom_they_came(sent, at_once):
    """The label is the transport's: what a row says of its sender is none of its business."""
    with (
        mock.patch.multiple(rows_of, WINDOW_BYTES=at_once, BATCH_BYTES=at_once),
        mock.patch("hpcfl.comm.scratch.PAGES_BYTES", at_once),
    ):
        check_delivery(sent)


def check_delivery(sent):
    blocks = []
    for sender in range(5):
        rows = [
            struct.pack("<BBHIII", 1, 3, 0, 7, 99, receiver) + struct.pack("<I", number)
            for number, (one, receiver) in enumerate(sent)
            if one == sender
        ]
        blocks.append(np.frombuffer(b"".join(rows), np.uint8).reshape(-1, 20))
    homes = np.array([1, 2, 1, 2, 1])  # of five devices on two ranks
    batches = rows_of.label(range(5), blocks, 20, devices=5)
    windows = rows_of.windows(5, sum(batch.size for batch in batches))
    labelled = rows_of.by_window(batches, windows, homes)
    for part in labelled:
        assert (np.diff(homes[rows_of.receivers_of(part)]) >= 0).all()
    found = dict(rows_of.delivered(range(5), windows, labelled))
    expected = {
        (receiver, sender, number)
        for number, (sender, receiver) in enumerate(sent)
        if receiver < 5 and receiver != sender
    }
    assert expected == {
        (receiver, int(sender), int(row[16:].view("<u4")[0]))
        for receiver, came in found.items()
        for sender, row in zip(came.senders, came.rows, strict=True)
    }
    # Of another size, none.
    assert not any(map(len, rows_of.label(range(5), blocks, 21, devices=5)))
