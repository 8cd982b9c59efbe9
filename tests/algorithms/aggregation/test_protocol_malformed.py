"""A message that is not what its phase requires is an error that names its sender and its phase.

It costs the round that sender alone, while enough are left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from protocol_rounds import (
    SECURE,
    Change,
    Header,
    Played,
    assert_tells_no_secret,
    make,
    play,
    raw,
    seeded_sources,
    sum_of,
)
from slow_reference import MASK_KEY_LIMBS, SEED_LIMBS, Q, SlowRound, lagrange

from hpcfl.algorithms.aggregation import secagg
from hpcfl.comm.phases import Pattern
from hpcfl.errors import BelowThresholdError, HpcflError, MessageError

DEVICES = 5
VICTIM = 2
Rows = NDArray[np.uint8]


def refused_in(
    phase: str, sender: str, reason: str, call: Callable[[], Any], of: Played | None = None
) -> None:
    """Assert that a call ends with the right error, which holds no secret of the round `of`."""
    with pytest.raises(MessageError) as caught:
        call()
    if of is not None:
        assert_tells_no_secret(caught.value, of.sources)
    assert (phase, sender) == (caught.value.phase, caught.value.sender)
    assert reason in caught.value.reason
    assert f"malformed {phase} message from {sender}: {caught.value.reason}" == str(caught.value)


def assert_named(error: HpcflError, phase: str, sender: str, reason: str) -> None:
    """Assert that an error says what was wrong, and with whose message."""
    assert f"malformed {phase} message from {sender}: " in str(error)
    assert reason in str(error)


def goes_on(played: Played, survivors: list[int]) -> None:
    """Assert that a round ended with the sum over these devices."""
    assert survivors == played.server.survivors
    assert (sum_of(played, survivors) == played.server.total).all()


def does_without(played: Played, sender: str, reason: str) -> None:
    """Assert that the victim could not use a share, but goes on, as all do."""
    assert ({}, {}) == (played.kept_out, played.left)
    goes_on(played, played.taking_part("masked_input"))
    for error in played.devices[VICTIM].ignored:
        assert_tells_no_secret(error, played.sources)
    named = [e for e in played.devices[VICTIM].ignored if (sender, reason) == (e.sender, e.reason)]
    assert ["share_keys"] == [error.phase for error in named]


def drops_out(played: Played, reason: str) -> None:
    """Assert that the victim drops out before it uploads, and says why; the others go on."""
    assert [VICTIM] == list(played.left) == list(played.kept_out)
    assert_tells_no_secret(played.left[VICTIM], played.sources)
    for error in (played.left[VICTIM], played.kept_out[VICTIM]):
        assert reason in str(error)
    assert f"device {VICTIM} left the round in masked_input" in str(played.kept_out[VICTIM])
    goes_on(played, [id for id in played.taking_part("masked_input") if id != VICTIM])


def change_rows(name: str, change: Callable[[Rows], Rows]) -> Change:
    """Return a change of the rows that one device receives in share_keys."""
    route = make(name, DEVICES, 1).steps.index(
        next(step for step in make(name, DEVICES, 1).steps if step.pattern is Pattern.ROUTE)
    )

    def changed(header: Header, message: Rows) -> Rows:
        if header.step == route and header.receiver == VICTIM:
            return change(message.copy())
        return message

    return changed


def play_with_rows(name: str, change: Callable[[Rows], Rows], **options: Any) -> Played:
    return play(make(name, DEVICES, 8), change=change_rows(name, change), **options)


def row_of(rows: Rows, sender: int) -> int:
    return next(k for k, row in enumerate(rows) if Header.of(row).sender == sender)


def with_sender(row: Rows, sender: int) -> Rows:
    row = row.copy()
    row[8:12] = raw(sender.to_bytes(4, "little"))
    return row


# encrypted shares


@pytest.mark.parametrize("name", SECURE)
@pytest.mark.parametrize("place", [16, 16 + 35, 16 + 4 * (MASK_KEY_LIMBS + SEED_LIMBS), -1])
def test_a_share_altered_on_the_way_is_refused(name: str, place: int) -> None:
    def alter(rows: Rows) -> Rows:
        rows[row_of(rows, 3), place] ^= 0x40
        return rows

    does_without(play_with_rows(name, alter), "device 3", "it does not decrypt")


@pytest.mark.parametrize("size", [16, 17, 16 + 15, 16 + 16, 16 + 71, 16 + 73])
@pytest.mark.parametrize("name", SECURE)
def test_shares_of_another_size_are_refused(name: str, size: int) -> None:
    def cut(rows: Rows) -> Rows:
        return np.pad(rows, ((0, 0), (0, 1)))[:, :size]

    played = play_with_rows(name, cut)
    for sender in (0, 1, 3, 4):
        does_without(played, f"device {sender}", "it does not decrypt")


@pytest.mark.parametrize("name", SECURE)
def test_rows_too_short_for_an_envelope_are_refused(name: str) -> None:
    played = play_with_rows(name, lambda rows: rows[:, :15])
    drops_out(played, "malformed share_keys message")


@pytest.mark.parametrize("name", SECURE)
def test_shares_with_exchanged_senders_are_refused(name: str) -> None:
    def exchange(rows: Rows) -> Rows:
        one, other = row_of(rows, 1), row_of(rows, 4)
        rows[one, 8:12], rows[other, 8:12] = rows[other, 8:12].copy(), rows[one, 8:12].copy()
        return rows

    played = play_with_rows(name, exchange)
    for sender in (1, 4):
        does_without(played, f"device {sender}", "it does not decrypt")


@pytest.mark.parametrize("name", SECURE)
def test_a_share_that_comes_twice_is_refused(name: str) -> None:
    def repeat(rows: Rows) -> Rows:
        return np.vstack([rows, rows[row_of(rows, 4)]])

    does_without(play_with_rows(name, repeat), "device 4", "it came twice")


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", SECURE)
def test_of_two_shares_the_one_that_decrypts_counts(name: str, first: bool) -> None:
    def repeat(rows: Rows) -> Rows:
        forged = rows[row_of(rows, 4)].copy()
        forged[-1] ^= 1
        return np.vstack([forged, rows] if first else [rows, forged])

    played = play_with_rows(name, repeat)
    does_without(played, "device 4", "it came twice")
    came = played.server._seed_shares[VICTIM]
    assert not (came == 2**32 - 1).any()


@pytest.mark.parametrize("name", SECURE)
def test_a_device_says_which_shares_it_was_not_sent(name: str) -> None:
    """All ones stand for a share; the secret is reconstructed from the others' shares."""

    def alter(rows: Rows) -> Rows:
        rows[[row_of(rows, 3), row_of(rows, 4)], -1] ^= 0x40
        return rows

    played = play_with_rows(name, alter, dropouts={4: "masked_input"})
    goes_on(played, [0, 1, 2, 3])
    for shares, count in (
        (played.server._seed_shares, 1),
        (played.server._mask_key_shares, 1),
    ):
        for id in range(4):
            absent = (shares[id] == 2**32 - 1).all(axis=1)
            assert (count if id == VICTIM else 0) == absent.sum()


@pytest.mark.parametrize("name", SECURE)
def test_a_second_share_in_place_of_a_missing_one_makes_the_device_drop_out(name: str) -> None:
    """It may be device 4's: whether that masks with this device cannot be known then."""

    def exchange(rows: Rows) -> Rows:
        rows[row_of(rows, 4)] = with_sender(rows[row_of(rows, 4)], 1)
        return rows

    drops_out(play_with_rows(name, exchange), "device 1: it came twice")


@pytest.mark.parametrize("sender", [1, VICTIM, DEVICES, 2**32 - 3])
@pytest.mark.parametrize("name", SECURE)
def test_a_share_from_a_device_without_keys_is_refused(name: str, sender: int) -> None:
    """Device 1 is gone, the receiver is itself, and the other two do not exist."""

    def add(rows: Rows) -> Rows:
        return np.vstack([rows, with_sender(rows[0], sender)])

    played = play_with_rows(name, add, dropouts={1: "advertise_keys"})
    does_without(played, f"device {sender}", "it advertised no keys")


@pytest.mark.parametrize("name", SECURE)
def test_a_share_of_another_round_is_refused_even_if_all_keys_are_the_same(name: str) -> None:
    other = play(make(name, DEVICES, 8), index=1, sources=seeded_sources(DEVICES))
    rows_before = {
        (m.header.sender, m.header.receiver): raw(m.sealed)
        for m in other.messages("share_keys", Pattern.ROUTE)
    }

    def replay(rows: Rows) -> Rows:
        rows[row_of(rows, 3), 16:] = rows_before[3, VICTIM][16:]
        return rows

    def replay_envelope(rows: Rows) -> Rows:
        rows[row_of(rows, 3)] = rows_before[3, VICTIM]
        return rows

    does_without(play_with_rows(name, replay), "device 3", "it does not decrypt")
    drops_out(play_with_rows(name, replay_envelope), "its envelope is of another message")


@pytest.mark.parametrize("name", SECURE)
def test_a_share_that_is_sent_back_to_its_sender_is_refused(name: str) -> None:
    """Both directions of a pair have the same key."""
    honest = play(make(name, DEVICES, 8))
    own = {
        m.header.receiver: m
        for m in honest.messages("share_keys", Pattern.ROUTE)
        if m.header.sender == VICTIM
    }

    def reflect(rows: Rows) -> Rows:
        rows[row_of(rows, 4), 16:] = raw(own[4].payload)
        return rows

    does_without(play_with_rows(name, reflect), "device 4", "it does not decrypt")


@pytest.mark.parametrize("field", [0, 1, 2, 4, 12])
def test_a_share_whose_envelope_is_of_another_message_is_refused(field: int) -> None:
    def alter(rows: Rows) -> Rows:
        rows[row_of(rows, 3), field] ^= 1
        return rows

    drops_out(play_with_rows("secagg", alter), "its envelope is of another message")


@pytest.mark.parametrize("name", SECURE)
def test_a_row_of_nobody_is_ignored_where_all_have_sent_theirs(name: str) -> None:
    def add(rows: Rows) -> Rows:
        other = rows[:1].copy()
        other[0, 4] ^= 1
        return np.vstack([rows, other])

    played = play_with_rows(name, add)
    does_without(played, "an unknown device", "its envelope is of another message")


@pytest.mark.parametrize("name", SECURE)
def test_a_share_that_is_no_field_element_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = secagg.shamir.split
    calls = iter(range(DEVICES))

    def split_wrongly(*arguments: Any) -> NDArray[np.uint32]:
        shares = split(*arguments)
        if next(calls) == 3:
            shares[:, -1] = Q
        return shares

    monkeypatch.setattr(secagg.shamir, "split", split_wrongly)
    # Nobody has a share of device 3's, not even itself, and it has uploaded.
    with pytest.raises(
        BelowThresholdError, match="0 of the 5 devices that hold shares of device 3's"
    ):
        play(make(name, DEVICES, 8))


@pytest.mark.parametrize("name", SECURE)
def test_a_share_to_one_device_that_is_no_field_element_is_missing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = secagg.shamir.split
    calls = iter(range(DEVICES))

    def split_wrongly(*arguments: Any) -> NDArray[np.uint32]:
        shares = split(*arguments)
        if next(calls) == 3:
            holders = arguments[2]
            shares[1 if holders[1] != 3 else 0, -1] = Q
        return shares

    monkeypatch.setattr(secagg.shamir, "split", split_wrongly)
    played = play(make(name, DEVICES, 8))
    ignored = [error for device in played.devices.values() for error in device.ignored]
    if ignored:
        assert_named(*ignored, "share_keys", "device 3", "a share is no field element")
    else:
        # On a ring the second place may be device 3's own: it is caught when it answers.
        assert_named(played.kept_out[3], "unmask", "device 3", "a share is no field element")
    goes_on(played, [0, 1, 2, 3, 4])


# envelopes


def phase_of(protocol: Any, header: Header) -> tuple[str, Pattern | None]:
    """Return the phase and pattern of a message; a refusal is of none."""
    if header.step >= len(protocol.steps):
        return "", None
    return protocol.steps[header.step].phase, protocol.steps[header.step].pattern


@pytest.mark.parametrize("field", ["version", "step", "reserved", "round", "sender", "receiver"])
@pytest.mark.parametrize("phase", ["advertise_keys", "masked_input", "unmask"])
@pytest.mark.parametrize("name", SECURE)
def test_the_server_refuses_a_message_with_a_wrong_envelope(
    name: str, phase: str, field: str
) -> None:
    protocol = make(name, DEVICES, 8)
    offset = {"version": 0, "step": 1, "reserved": 2, "round": 4, "sender": 8, "receiver": 12}

    def change(header: Header, message: Rows) -> Rows:
        if phase_of(protocol, header)[0] == phase and header.sender == 3:
            message = message.copy()
            message[offset[field]] ^= 1
        return message

    played = play(protocol, change=change)
    assert 3 == next(iter(played.kept_out))
    assert_named(played.kept_out[3], phase, "device 3", f"its {field} is")
    goes_on(played, [id for id in range(DEVICES) if id != 3 or phase == "unmask"])


@pytest.mark.parametrize("phase", ["model", "advertise_keys", "unmask"])
@pytest.mark.parametrize("name", SECURE)
def test_a_device_refuses_a_message_of_the_server_of_another_round(name: str, phase: str) -> None:
    protocol = make(name, DEVICES, 8)

    def change(header: Header, message: Rows) -> Rows:
        told = (Pattern.BROADCAST, Pattern.SCATTER)
        if phase_of(protocol, header) in [(phase, pattern) for pattern in told]:
            message = message.copy()
            message[4] ^= 1
        return message

    with pytest.raises(BelowThresholdError) as caught:
        play(protocol, change=change)
    assert_named(caught.value, phase, "the server", "its round is 1, expected 0 (and 4 more)")


@pytest.mark.parametrize("name", SECURE)
def test_a_message_without_room_for_an_envelope_is_refused(name: str) -> None:
    def change(header: Header, message: Rows) -> Rows:
        return message[:15] if header.sender == 3 and header.step == 1 else message

    played = play(make(name, DEVICES, 8), change=change)
    assert_named(played.kept_out[3], "advertise_keys", "device 3", "15 bytes hold no envelope")
    goes_on(played, [0, 1, 2, 4])


@pytest.mark.parametrize("phase", ["advertise_keys", "masked_input", "unmask"])
@pytest.mark.parametrize("name", SECURE)
def test_of_several_malformed_messages_the_first_is_reported(name: str, phase: str) -> None:
    protocol = make(name, DEVICES, 8)

    def change(header: Header, message: Rows) -> Rows:
        return message[:20] if header.sender in (1, 2, 4) and is_gather(header) else message

    def is_gather(header: Header) -> bool:
        return phase_of(protocol, header) == (phase, Pattern.GATHER)

    with pytest.raises(BelowThresholdError) as caught:
        play(protocol, change=change)
    assert_named(caught.value, phase, "device 1", " (and 2 more)")


# what the server is sent


@pytest.fixture(params=SECURE)
def collecting(request: pytest.FixtureRequest) -> Played:
    """Return a round in which devices 0 to 3 are about to upload; device 4 shared no keys."""
    protocol = make(request.param, DEVICES, 12, alpha=0.9, locations="bitmap")
    return play(protocol, dropouts={4: "share_keys"}, before="masked_input")


@pytest.fixture(params=SECURE)
def unmasking(request: pytest.FixtureRequest) -> Played:
    """Return a round in which devices 0, 2 and 3 are about to answer; 1 uploaded nothing."""
    protocol = make(request.param, DEVICES, 12)
    dropouts = {1: "masked_input", 4: "share_keys"}
    return play(protocol, dropouts=dropouts, before=("unmask", Pattern.GATHER))


def upload_of(played: Played, id: int) -> Rows:
    return played.devices[id].send_masked_input(played.vectors[id])


@pytest.mark.parametrize("name", SECURE)
def test_the_model_has_d_numbers(name: str) -> None:
    device = make(name, DEVICES, 12).device(0, 0, seeded_sources(1)[0])
    for size in (0, 47, 49, 96):
        refused_in(
            "model",
            "the server",
            f"{size} bytes came, 48 were expected",
            lambda size=size: device.receive_model(np.zeros(size, np.uint8)),
        )


@pytest.mark.parametrize("name", SECURE)
def test_the_server_refuses_public_keys_of_another_size(name: str) -> None:
    server = make(name, DEVICES, 12).server(0, np.zeros(12, np.float32))
    for size in (0, 32, 63, 65):
        refused_in(
            "advertise_keys",
            "device 3",
            f"{size} bytes came, 64 were expected",
            lambda size=size: server.receive_advertise_keys(3, np.zeros(size, np.uint8)),
        )


@pytest.mark.parametrize("name", SECURE)
def test_the_server_refuses_shares_of_a_device_without_keys(name: str) -> None:
    played = play(make(name, DEVICES, 12), dropouts={1: "advertise_keys"}, before="share_keys")

    refused_in(
        "share_keys",
        "device 1",
        "it advertised no keys",
        lambda: played.server.receive_share_keys(np.array([0, 1, 2, 3])),
        of=played,
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m[:-1],
        lambda m: m[:-4],
        lambda m: m[:0],
        lambda m: np.append(m, np.zeros(4, np.uint8)),
    ],
)
def test_the_server_refuses_an_upload_of_another_size(collecting: Played, change: Any) -> None:
    upload = change(upload_of(collecting, 2))

    refused_in(
        "masked_input",
        "device 2",
        "",
        lambda: collecting.server.receive_masked_input(2, upload),
        of=collecting,
    )


def test_the_server_refuses_an_upload_of_a_device_that_shared_no_keys(collecting: Played) -> None:
    upload = upload_of(collecting, 2)
    for sender in (4, 5, 2**32 - 1):
        refused_in(
            "masked_input",
            f"device {sender}",
            "it shared no keys",
            lambda sender=sender: collecting.server.receive_masked_input(sender, upload),
            of=collecting,
        )


def test_the_server_refuses_a_second_upload_of_a_device(collecting: Played) -> None:
    upload = upload_of(collecting, 2)
    collecting.server.receive_masked_input(2, upload)

    refused_in(
        "masked_input",
        "device 2",
        "it came twice",
        lambda: collecting.server.receive_masked_input(2, upload),
        of=collecting,
    )


@pytest.mark.parametrize("name", SECURE)
def test_the_server_refuses_second_keys_of_a_device(name: str) -> None:
    server = make(name, DEVICES, 12).server(0, np.zeros(12, np.float32))
    server.receive_advertise_keys(3, raw(bytes(range(64))))

    refused_in(
        "advertise_keys",
        "device 3",
        "it came twice",
        lambda: server.receive_advertise_keys(3, np.ones(64, np.uint8)),
    )


def test_the_server_refuses_a_second_answer_of_a_device(unmasking: Played) -> None:
    answer = unmasking.devices[2].send_unmask()
    unmasking.server.receive_unmask(2, answer)

    refused_in(
        "unmask",
        "device 2",
        "it came twice",
        lambda: unmasking.server.receive_unmask(2, answer),
        of=unmasking,
    )


@pytest.mark.parametrize(
    ("total", "reason"),
    [(np.zeros(1, np.uint32), "shape"), (np.full(4, Q, np.uint32), "no group element")],
)
def test_the_server_refuses_a_sum_of_another_form(total: np.ndarray, reason: str) -> None:
    played = play(make("secagg", DEVICES, 4), before="masked_input")

    refused_in(
        "masked_input",
        "the devices",
        reason,
        lambda: played.server.receive_sum_masked_input([0, 1, 2, 3], total),
        of=played,
    )


def test_the_server_refuses_a_sum_with_a_device_that_shared_no_keys() -> None:
    played = play(make("secagg", DEVICES, 4), dropouts={4: "share_keys"}, before="masked_input")

    refused_in(
        "masked_input",
        "device 4",
        "it shared no keys",
        lambda: played.server.receive_sum_masked_input([0, 1, 2, 4], np.zeros(4, np.uint32)),
        of=played,
    )
    assert [] == played.server.survivors


@pytest.mark.parametrize("value", [Q, Q + 1, 2**32 - 1])
def test_the_server_refuses_a_value_that_is_no_field_element(
    collecting: Played, value: int
) -> None:
    upload = upload_of(collecting, 2).copy()
    upload[-4:] = raw(value.to_bytes(4, "little"))

    refused_in(
        "masked_input",
        "device 2",
        "a value is no group element",
        lambda: collecting.server.receive_masked_input(2, upload),
        of=collecting,
    )


@pytest.mark.parametrize("name", SECURE)
def test_every_word_is_an_element_of_the_ring(name: str) -> None:
    played = play(make(name, 3, 12, alpha=0.9, group="ring32"), before="masked_input")
    upload = upload_of(played, 2).copy()
    upload[-4:] = 255

    played.server.receive_masked_input(2, upload)
    assert [2] == played.server.survivors


def sparse_upload(body: bytes, values: int) -> Rows:
    return np.concatenate([raw(body), np.zeros(4 * values, np.uint8)])


@pytest.mark.parametrize(
    "upload",
    [
        pytest.param(sparse_upload(b"\0\0\0\0\1\0\0\0" + b"\0\x08", 1), id="bitmap"),
        # One gap of 12, in unary: twelve zeros and a one; then the same with a Rice parameter.
        pytest.param(sparse_upload(b"\1\0\0\0\1\0\0\0" + b"\0\x08", 1), id="gaps"),
        pytest.param(sparse_upload(b"\1\2\0\0\1\0\0\0" + b"\x10", 1), id="gaps-rice"),
    ],
)
def test_the_server_refuses_a_location_beyond_the_last_coordinate(upload: Rows) -> None:
    played = play(make("sparse", DEVICES, 12), before="masked_input")

    refused_in(
        "masked_input",
        "device 2",
        "",
        lambda: played.server.receive_masked_input(2, upload),
        of=played,
    )
    # One coordinate less is the last one.
    played.server.receive_masked_input(1, sparse_upload(b"\0\0\0\0\1\0\0\0" + b"\0\x10", 1))


@pytest.mark.parametrize(
    "upload",
    [
        pytest.param(sparse_upload(b"\2\0\0\0\0\0\0\0\0\0", 0), id="unknown coding"),
        pytest.param(sparse_upload(b"\0\0\1\0\0\0\0\0\0\0", 0), id="reserved bytes"),
        pytest.param(sparse_upload(b"\0\0\0\0\2\0\0\0\x80\0", 2), id="fewer bits than announced"),
        pytest.param(sparse_upload(b"\0\0\0\0\1\0\0\0\xc0\0", 1), id="more bits than announced"),
        pytest.param(sparse_upload(b"\0\0\0\0\x0d\0\0\0\xff\xf8", 13), id="more than d"),
        pytest.param(sparse_upload(b"\1\0\0\0\2\0\0\0\x80", 0), id="fewer gaps than announced"),
        pytest.param(sparse_upload(b"\0\0\0\0", 0), id="no header"),
    ],
)
def test_the_server_refuses_locations_that_no_device_writes(upload: Rows) -> None:
    played = play(make("sparse", DEVICES, 12), before="masked_input")

    refused_in(
        "masked_input",
        "device 2",
        "",
        lambda: played.server.receive_masked_input(2, upload),
        of=played,
    )


def test_the_server_refuses_shares_of_a_device_that_is_no_survivor(unmasking: Played) -> None:
    reply = unmasking.devices[2].send_unmask()
    for sender in (1, 4, 5):
        refused_in(
            "unmask",
            f"device {sender}",
            "it is no survivor",
            lambda sender=sender: unmasking.server.receive_unmask(sender, reply),
            of=unmasking,
        )


@pytest.mark.parametrize("size", [0, 4, -1, -4])
def test_the_server_refuses_a_reply_of_another_size(unmasking: Played, size: int) -> None:
    reply = unmasking.devices[2].send_unmask()[:size]

    refused_in(
        "unmask",
        "device 2",
        "bytes came",
        lambda: unmasking.server.receive_unmask(2, reply),
        of=unmasking,
    )


def test_the_server_refuses_a_share_that_is_no_field_element(unmasking: Played) -> None:
    reply = unmasking.devices[2].send_unmask().copy()
    reply[:4] = raw(Q.to_bytes(4, "little"))

    refused_in(
        "unmask",
        "device 2",
        "a share is no field element",
        lambda: unmasking.server.receive_unmask(2, reply),
        of=unmasking,
    )


def finish_with(played: Played, change: Callable[[NDArray[np.uint32]], None]) -> None:
    """Let the survivors answer, device 2 with changed shares; take off the masks."""
    for id in (0, 2, 3):
        shares = played.devices[id].send_unmask().view("<u4").copy()
        if id == 2:
            change(shares)
        played.server.receive_unmask(id, shares.view(np.uint8))
    played.server.finish_unmask()


def move(played: Played, owner: int, limb: int, amount: int) -> Callable[[Any], None]:
    """Return what changes device 2's share of a limb, so that the limb is off by an amount.

    Devices 0, 2 and 3 combine; with SecAgg's points 1, 3 and 4 the weight of device 2 for the value
    at zero is 1 * 4 over (1 - 3) * (4 - 3).
    """
    slow = SlowRound(played)
    points = [(slow.point(owner, holder), int(holder == 2)) for holder in (0, 2, 3)]
    delta = amount * pow(lagrange(points, at=0), -1, Q)
    # Shares of seeds come first; owners in the order of the holder's list.
    held = [id for id in slow.holders(2) if id in (0, 2, 3)]
    place = SEED_LIMBS * held.index(owner) if owner in held else SEED_LIMBS * len(held)

    def alter(shares: NDArray[np.uint32]) -> None:
        shares[place + limb] = (int(shares[place + limb]) + delta) % Q

    return alter


@pytest.mark.parametrize("limb", range(1, MASK_KEY_LIMBS - 1))
def test_shares_that_combine_to_a_wrong_mask_key_are_noticed(unmasking: Played, limb: int) -> None:
    """The altered share moves one limb of device 1's key by 2**20: still a 32-byte string."""
    key = int.from_bytes(unmasking.sources[1].drawn[1], "little")
    step = -(2**20) if key >> 31 * limb + 20 & 1 else 2**20
    refused_in(
        "unmask",
        "the survivors",
        "the shares give a wrong mask key for device 1",
        lambda: finish_with(unmasking, move(unmasking, 1, limb, step)),
        of=unmasking,
    )


@pytest.mark.parametrize("secret", ["seed", "mask key"])
def test_shares_that_combine_to_no_secret_are_noticed(unmasking: Played, secret: str) -> None:
    """The highest limb of a seed has 4 bits, that of a key 8: 30 is beyond both."""
    owner, limb = (3, SEED_LIMBS - 1) if secret == "seed" else (1, MASK_KEY_LIMBS - 1)

    refused_in(
        "unmask",
        "the survivors",
        "the shares do not combine to a secret",
        lambda: finish_with(unmasking, move(unmasking, owner, limb, 2**30)),
        of=unmasking,
    )


def test_unaltered_shares_combine(unmasking: Played) -> None:
    finish_with(unmasking, lambda shares: None)
    unmasking.server.finish_result()

    assert 12 == unmasking.server.total.size
