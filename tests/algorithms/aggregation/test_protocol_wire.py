"""How many bytes move, who moves them, and that the ledger says the same."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import slow_ring
from protocol_rounds import (
    ALL,
    LINKED,
    SCATTERING,
    SECURE,
    SERVER,
    Header,
    make,
    places,
    play,
    sent_by,
    sent_by_device,
    spoiling,
)

from hpcfl.comm.phases import Pattern

DEVICES = 9
# Device 0 is on no list, device 4 is but takes no part: seven devices send it what is lost.
DROPOUTS = {0: "advertise_keys", 4: "share_keys", 7: "masked_input", 2: "unmask"}
NAMES = ("fedavg", *SECURE)

# The sizes that the documentation of the protocols states, envelope included.
ENVELOPE = 16
SHARE = ENVELOPE + 4 * (10 + 6) + 16


def play_with_dropouts(name, **options):
    dropouts = {3: "upload", 5: "upload"} if name == "fedavg" else DROPOUTS
    protocol = make(name, DEVICES, 50, alpha=0.8, **options)
    return play(protocol, dropouts=dropouts, index=2**32 - 1)


# sizes


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("alpha", [0.01, 0.5, 1.0])
@pytest.mark.parametrize("dim", [1, 7, 65, 999])
def test_a_sparse_upload_is_24_bytes_4_for_every_location_and_the_shorter_coding_of_all(
    dim, alpha, devices
):
    """Two devices with alpha = 1 select every coordinate: no upload is larger than announced."""
    sizes = {}
    for coding in ("auto", "bitmap", "gaps"):
        protocol = make("sparse", devices, dim, alpha=alpha, locations=coding, levels=1)
        played = play(protocol)
        payloads = played.sent("masked_input")
        sizes[coding] = [len(payload) for payload in payloads.values()]
        assert max(sizes[coding]) <= protocol.largest_message
        if coding == "bitmap":
            sent = [sent_by(played, id).size for id in payloads]
            expected = [8 + math.ceil(dim / 8) + 4 * count for count in sent]
            assert expected == sizes[coding]
    shorter = [min(both) for both in zip(sizes["bitmap"], sizes["gaps"], strict=True)]
    assert shorter == sizes["auto"]


@pytest.mark.full
def test_100_devices_send_4dp_bytes_of_values_and_locations_near_the_entropy():
    """All keys are fixed, so this is one fixed number a coding.

    With fresh keys, the average over 50 devices would deviate from its expectation by 0.1 %.
    """
    protocol = make("sparse", 100, 165_000, alpha=0.1, locations="gaps", levels=2**20)
    played = play(protocol, np.zeros((100, 165_000), np.float32), before="masked_input")
    sent = [played.devices[id].send_masked_input(played.vectors[id]) for id in range(0, 100, 2)]
    gaps = float(np.mean([ENVELOPE + upload.size for upload in sent]))
    count = np.mean([int.from_bytes(upload[4:8].tobytes(), "little") for upload in sent])
    p = 1 - (1 - 0.1 / 99) ** 99
    entropy = -p * math.log2(p) - (1 - p) * math.log2(1 - p)

    assert count == pytest.approx(165_000 * p, rel=0.01)
    assert gaps <= 1.01 * (4 * 165_000 * p + 165_000 * entropy / 8)


@pytest.mark.parametrize("name", SECURE)
def test_keys_shares_and_requests_have_the_documented_sizes(name):
    played = play_with_dropouts(name)
    sizes = {
        (phase, pattern): {len(message.sealed) for message in played.messages(phase, pattern)}
        for phase, pattern in [
            ("model", Pattern.BROADCAST),
            ("advertise_keys", Pattern.GATHER),
            ("advertise_keys", played.protocol.topology.pattern),
            ("share_keys", Pattern.ROUTE),
            ("challenge", Pattern.BROADCAST),
            ("checks", Pattern.GATHER),
            ("unmask", played.protocol.topology.pattern),
            ("unmask", Pattern.GATHER),
        ]
    }
    # On the ring of nine, a nonce, a place, nine slots and the seven others that are there;
    # requests are a number and two times the slots, of a cohort of 7 the 13 places around as well.
    told = {
        ("advertise_keys", Pattern.BROADCAST): {16 + 2 + 8 * 64},
        ("unmask", Pattern.BROADCAST): {16 + 2 + 2},
    }
    if name in SCATTERING:
        told = {
            ("advertise_keys", Pattern.SCATTER): {16 + 16 + 4 + 2 + 7 * 68},
            ("unmask", Pattern.SCATTER): {16 + 4 + 2 + 2 + (2 if name == "cohort" else 0)},
        }

    assert {
        ("model", Pattern.BROADCAST): {16 + 4 * 50},
        ("advertise_keys", Pattern.GATHER): {16 + 64},
        ("share_keys", Pattern.ROUTE): {SHARE},
        ("challenge", Pattern.BROADCAST): {16 + 16},
        ("checks", Pattern.GATHER): {16 + 4 * 2 * 7},
        ("unmask", Pattern.GATHER): {16 + 4 * (6 * 6 + 1 * 10)},
    } | told == sizes


@pytest.mark.parametrize("name", LINKED)
def test_the_list_of_expelled_devices_has_the_documented_size_and_is_sent_only_if_there_are(name):
    """A bitmap of nine devices, or of nine slots behind a number."""
    protocol = make(name, DEVICES, 50)
    pattern = protocol.topology.pattern
    assert [] == play_with_dropouts(name).messages("expelled", pattern)

    # Whose rows two others cannot open is expelled.
    played = play(protocol, change=spoiling(protocol, 3, [1, 5]), dropouts={0: "share_keys"})
    headers = {
        (m.header.sender, m.header.receiver): len(m.sealed)
        for m in played.messages("expelled", pattern)
    }
    if name in SCATTERING:
        assert {(SERVER, id): 16 + 4 + 2 for id in range(1, 9)} == headers
    else:
        assert {(SERVER, ALL): 16 + 2} == headers
    # It goes with share_keys in the ledger, to all who are there, whoever is expelled.
    row = protocol.phases().index("share_keys")
    assert_in_ledger(played, row)
    # Requests and answers are about the seven others alone. The expelled device hears of nothing,
    # and says once that it has left.
    later = protocol.phases().index("masked_input")
    assert not played.record.bytes_down[later:, 3].any()
    (left,) = [m for m in played.wire.messages if m.header.step >= len(protocol.steps)]
    assert 3 == left.header.sender
    assert [len(left.sealed), 0, 0] == played.record.bytes_up[later:, 3].tolist()
    assert {7 * 6 * 4} == {len(reply) for reply in played.sent("unmask").values()}
    assert [id for id in range(1, 9) if id != 3] == sorted(played.sent("unmask"))


@pytest.mark.parametrize("alpha", [0.2, 0.35, 1.0])
@pytest.mark.parametrize("dim", [1, 4, 10, 1003])
@pytest.mark.parametrize("gone", [0, 2])
def test_an_upload_of_a_cohort_is_4_bytes_for_every_coordinate_of_its_run_and_no_more(
    dim, alpha, gone
):
    protocol = make("cohort", 10, dim, alpha=alpha, levels=1)
    dropouts = dict.fromkeys(range(gone), "advertise_keys")
    played = play(protocol, dropouts=dropouts)
    told = places(played)
    sizes = {id: len(m) for id, m in played.sent("masked_input").items()}

    # Who is gone from the beginning has a place as well: nobody sends what it would have sent.
    size = slow_ring.cohort_size(10, alpha)
    assert gone or 4 * size * dim == sum(sizes.values())
    assert list(range(gone, 10)) == list(told) == list(sizes)
    for id, position in told.items():
        assert 4 * len(slow_ring.run(dim, 10, size, position)) == sizes[id]
        assert abs(sizes[id] - 4 * size * dim / 10) < 4
        assert sizes[id] <= protocol.largest_message


def assert_in_ledger(played, rows=slice(None)):
    """Assert that the ledger has the sizes and numbers of the messages themselves."""
    names, devices = played.protocol.phases(), played.parameters.devices
    totals = np.zeros((4, len(names), devices), np.uint64)
    for message in played.wire.messages:
        if message.header.step >= len(played.protocol.steps):
            # A device that refuses to go on says so in a step that is none of the protocol's.
            continue
        phase = played.protocol.steps[message.header.step].phase
        row, size = names.index(phase), len(message.sealed)
        if message.header.sender != SERVER:
            totals[:2, row, message.header.sender] += np.array([size, 1], np.uint64)
        receivers = [message.header.receiver]
        if message.header.receiver == ALL:
            receivers = played.taking_part(phase)
        for receiver in receivers:
            if receiver in played.taking_part(phase):
                totals[2:, row, receiver] += np.array([size, 1], np.uint64)
    record = played.record
    found = (record.bytes_up, record.messages_up, record.bytes_down, record.messages_down)
    for expected, entered in zip(totals, found, strict=True):
        assert expected[rows].tolist() == entered[rows].tolist()


# envelopes


@pytest.mark.parametrize("name", NAMES)
def test_every_message_says_its_step_round_sender_and_receiver(name):
    played = play_with_dropouts(name)
    seen = {}
    for message in played.wire.messages:
        header = message.header
        assert (1, 0, 2**32 - 1) == (header.version, header.reserved, header.round)
        seen.setdefault(header.step, []).append((header.sender, header.receiver))

    expected = {}
    for number, step in enumerate(played.protocol.steps):
        present = played.taking_part(step.phase)
        if step.wants is not None:
            # All mask keys could be reconstructed.
            continue
        if step.pattern is Pattern.BROADCAST:
            expected[number] = [(SERVER, ALL)]
        elif step.pattern is Pattern.SCATTER:
            expected[number] = [(SERVER, id) for id in present]
        elif step.pattern is Pattern.GATHER:
            expected[number] = [(id, SERVER) for id in present]
        elif step.pattern is Pattern.ROUTE:
            # Device 4 advertised keys and then vanished: its peers cannot know.
            members = played.taking_part("advertise_keys")
            expected[number] = [(i, j) for i, j in itertools.product(present, members) if i != j]
    assert expected == {step: sorted(pairs) for step, pairs in seen.items()}
    assert_in_ledger(played)
    # A transport decides by that bound how many messages it holds at once.
    assert [] == [(size, largest) for size, largest in played.wire.announced if size > largest]


# ledger


def test_of_a_row_that_was_not_sent_the_relay_passes_on_an_envelope():
    """So that its receiver knows that its sender takes part, and masks with it."""

    def leave_out(rows):
        return rows[Header.receivers_of(rows) != 5]

    protocol = make("secagg", DEVICES, 50)
    played = play(protocol, change=sent_by_device(protocol, "share_keys", 3, leave_out))
    before = play(protocol).record
    row = protocol.phases().index("share_keys")
    missing = [SHARE - ENVELOPE if id == 5 else 0 for id in range(DEVICES)]
    down = before.bytes_down[row].astype(int) - played.record.bytes_down[row].astype(int)
    assert missing == down.tolist()
    assert before.messages_down[row].tolist() == played.record.messages_down[row].tolist()
    played.goes_on()


def test_with_reduce_the_ledger_holds_the_same_uploads_without_envelopes():
    gathered, reduced = (
        play(make("secagg", DEVICES, 50), dropouts=DROPOUTS, upload=upload)
        for upload in ("gather", "reduce")
    )
    row = gathered.protocol.phases().index("masked_input")
    uploads = [len(reduced.wire.summed.get(id, b"")) for id in range(DEVICES)]

    assert [0, 200, 200, 200, 0, 200, 200, 0, 200] == uploads
    assert uploads == reduced.record.bytes_up[row].tolist()
    assert [size // 200 for size in uploads] == reduced.record.messages_up[row].tolist()
    assert gathered.sent("masked_input") == reduced.wire.summed
    assert gathered.server.total.tolist() == reduced.server.total.tolist()
