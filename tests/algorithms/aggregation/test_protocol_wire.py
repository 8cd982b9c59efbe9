"""How many bytes move, who moves them, and that the ledger says the same."""

from __future__ import annotations

import itertools
import math
import struct

import numpy as np
import pytest
import slow_ring
from protocol_rounds import (
    ALL,
    SCATTERING,
    SECURE,
    SERVER,
    Header,
    make,
    on_ring,
    places,
    play,
    sent_by,
    spoiling,
)
from slow_reference import SlowRound

from hpcfl.comm.phases import Pattern

DEVICES = 9
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


@pytest.mark.parametrize("dim", [1, 7, 64, 1000])
@pytest.mark.parametrize("group", ["fq", "ring32"])
def test_a_secagg_upload_is_16_bytes_and_4_for_every_coordinate(dim, group):
    played = play(make("secagg", 3, dim, group=group))

    uploads = played.messages("masked_input", Pattern.GATHER)
    assert [16 + 4 * dim] * 3 == [len(message.sealed) for message in uploads]


@pytest.mark.parametrize("dim", [1, 7, 64, 65, 1000])
def test_a_sparse_upload_with_a_bitmap_is_24_bytes_the_bitmap_and_4_for_every_location(dim):
    played = play(make("sparse", 4, dim, alpha=0.5, locations="bitmap"))

    for message in played.messages("masked_input", Pattern.GATHER):
        sent = sum(byte.bit_count() for byte in message.payload[8 : 8 + math.ceil(dim / 8)])
        assert 16 + 8 + math.ceil(dim / 8) + 4 * sent == len(message.sealed)


@pytest.mark.parametrize("alpha", [0.01, 0.1, 0.5, 1.0])
def test_locations_chosen_automatically_are_those_of_the_shorter_coding(alpha):
    sizes = {}
    for coding in ("auto", "bitmap", "gaps"):
        played = play(make("sparse", 4, 999, alpha=alpha, locations=coding))
        sizes[coding] = [len(payload) for payload in played.sent("masked_input").values()]

    shorter = [min(both) for both in zip(sizes["bitmap"], sizes["gaps"], strict=True)]
    assert shorter == sizes["auto"]


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


@pytest.mark.parametrize("name", SECURE)
def test_the_list_of_expelled_devices_has_the_documented_size_and_is_sent_only_if_there_are(name):
    """A bitmap of nine devices, or of nine slots behind a number."""
    protocol = make(name, DEVICES, 50)
    pattern = protocol.topology.pattern
    assert [] == play_with_dropouts(name).messages("expelled", pattern)

    # Whose rows two others cannot open is expelled.
    played = play(protocol, change=spoiling(3, [1, 5]), dropouts={0: "share_keys"})
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
    bytes_up, messages_up, bytes_down, messages_down = moved(played)
    for expected, found in (
        (bytes_up, played.record.bytes_up),
        (messages_up, played.record.messages_up),
        (bytes_down, played.record.bytes_down),
        (messages_down, played.record.messages_down),
    ):
        assert expected[row].tolist() == found[row].tolist()
    # Requests and answers are about the seven others alone. The expelled device hears of nothing,
    # and says once that it has left.
    later = protocol.phases().index("masked_input")
    assert not played.record.bytes_down[later:, 3].any()
    (left,) = [m for m in played.wire.messages if m.header.step >= len(protocol.steps)]
    assert 3 == left.header.sender
    assert [len(left.sealed), 0, 0] == played.record.bytes_up[later:, 3].tolist()
    assert {7 * 6 * 4} == {len(reply) for reply in played.sent("unmask").values()}
    assert [id for id in range(1, 9) if id != 3] == sorted(played.sent("unmask"))


@pytest.mark.parametrize("count", [12, 7])
@pytest.mark.parametrize("name", SECURE)
def test_on_a_ring_what_moves_depends_on_the_degree_and_not_on_the_devices(name, count):
    """All but the last advertise keys; of the rest, one drops out and one more after it."""
    protocol = on_ring(name, count + 1, 40, 6, 2, alpha=0.5)
    played = play(protocol, dropouts={count: "advertise_keys", 1: "masked_input"})
    slow = SlowRound(played)

    peers = {id: len(slow.holders(id)) - 1 for id in range(count)}
    assert {5, 6} >= {*peers.values()}
    # Seven slots: one byte for those that are there, for the survivors and for the dropped.
    for id, told in played.told_each("advertise_keys").items():
        assert 16 + 4 + 1 + 68 * peers[id] == len(told)
    around = 0 if name != "cohort" else math.ceil((2 * math.ceil((count + 1) / 2) - 1) / 8)
    assert {22 + around} == {len(m.sealed) for m in played.messages("unmask", Pattern.SCATTER)}
    assert sum(peers.values()) == len(played.messages("share_keys", Pattern.ROUTE))
    for id, answers in played.sent("checks").items():
        assert 4 * 2 * (peers[id] + 1) == len(answers) <= protocol.largest_message
    for id, reply in played.sent("unmask").items():
        dropped = 1 in slow.holders(id)
        size = 4 * (6 * (peers[id] + 1 - dropped) + 10 * dropped)
        assert size == len(reply) <= protocol.largest_message


@pytest.mark.parametrize("degree", [2, 6, 8, 14, 16])
def test_a_request_has_a_bit_for_every_slot(degree):
    played = play(on_ring("secagg-graph", 20, 5, degree, 2))

    requests = played.told_each("unmask")
    survivors = "1" * (degree + 1) + "0" * (-(degree + 1) % 8)
    expected = int(survivors, 2).to_bytes(len(survivors) // 8, "big")
    assert {struct.pack("<I", 20) + expected + bytes(len(expected))} == {*requests.values()}
    assert 20 == len(requests)


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


def test_on_a_ring_a_sparse_device_sends_as_many_coordinates_as_among_all():
    """Each of 6 neighbours selects with alpha / 6, so p = 1 - (1 - alpha / 6)^6.

    The keys are fixed; with fresh ones, 9 devices with 20,000 coordinates each would be off by
    more than six standard deviations once in 5e8 times.
    """
    played = play(on_ring("sparse", 9, 20_000, 6, 2, alpha=0.3))
    sent = sum(sent_by(played, id).size for id in range(9))

    p = 1 - (1 - 0.3 / 6) ** 6
    # Each coordinate that a pair selects is sent by both, which doubles the variance at most.
    assert abs(sent - 180_000 * p) < 6 * math.sqrt(2 * 180_000 * p * (1 - p))


@pytest.fixture(scope="module")
def main_case():
    """Average size of an upload of 100 devices with 165,000 coordinates, per coding.

    All keys are fixed, so this is one fixed number a coding. With fresh keys, the average over 50
    devices would deviate from its expectation by 0.1 %: the tests leave nine times that.
    """
    protocol = make("sparse", 100, 165_000, alpha=0.1, locations="gaps", levels=2**20)
    played = play(protocol, np.zeros((100, 165_000), np.float32), before="masked_input")
    sizes = {}
    sent = [played.devices[id].send_masked_input(played.vectors[id]) for id in range(0, 100, 2)]
    sizes["gaps"] = float(np.mean([ENVELOPE + upload.size for upload in sent]))
    counts = [int.from_bytes(upload[4:8].tobytes(), "little") for upload in sent]
    sizes["bitmap"] = float(np.mean([ENVELOPE + 8 + 20_625 + 4 * count for count in counts]))
    return sizes


P = 1 - (1 - 0.1 / 99) ** 99


def test_100_devices_send_4dp_bytes_of_values_and_d_bits_of_bitmap(main_case):
    paper = 4 * 165_000 * P + 165_000 / 8
    assert abs(main_case["bitmap"] / paper - 1) < 0.01


def test_100_devices_send_4dp_bytes_of_values_and_gaps_near_the_entropy(main_case):
    entropy = -P * math.log2(P) - (1 - P) * math.log2(1 - P)
    assert main_case["gaps"] <= 1.01 * (4 * 165_000 * P + 165_000 * entropy / 8)


@pytest.mark.parametrize(("devices", "alpha"), [(3, 0.001), (3, 0.3), (3, 1.0), (2, 1.0)])
@pytest.mark.parametrize("coding", ["auto", "bitmap", "gaps"])
@pytest.mark.parametrize("dim", [1, 7, 200])
def test_no_upload_is_larger_than_announced(dim, coding, devices, alpha):
    """Two devices with alpha = 1 select every coordinate."""
    protocol = make("sparse", devices, dim, alpha=alpha, locations=coding, levels=1)
    played = play(protocol)

    for payload in played.sent("masked_input").values():
        assert len(payload) <= protocol.largest_message


@pytest.mark.parametrize("dim", [1, 500])
@pytest.mark.parametrize("name", SECURE)
def test_no_message_to_the_server_is_larger_than_the_transport_was_told(name, dim):
    """A transport decides by that bound how many messages it holds at once."""
    played = play(make(name, 20, dim, alpha=1.0), dropouts=dict.fromkeys(range(9), "masked_input"))

    assert [] == [(size, largest) for size, largest in played.wire.announced if size > largest]


# envelopes


@pytest.mark.parametrize("name", NAMES)
def test_every_message_says_its_step_round_sender_and_receiver(name):
    played = play_with_dropouts(name)
    seen: dict[int, list[tuple[int, int]]] = {}
    for message in played.wire.messages:
        header = message.header
        assert (1, 0, 2**32 - 1) == (header.version, header.reserved, header.round)
        seen.setdefault(header.step, []).append((header.sender, header.receiver))

    expected: dict[int, list[tuple[int, int]]] = {}
    for number, step in enumerate(played.protocol.steps):
        present = played.taking_part(step.phase)
        if step.optional:
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


# ledger


def moved(played):
    """Return bytes and messages up, and bytes and messages down, from the messages themselves."""
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
    return tuple(totals)


@pytest.mark.parametrize("name", NAMES)
def test_the_ledger_holds_the_sizes_and_numbers_of_the_messages_that_moved(name):
    played = play_with_dropouts(name)
    bytes_up, messages_up, bytes_down, messages_down = moved(played)

    assert bytes_up.tolist() == played.record.bytes_up.tolist()
    assert messages_up.tolist() == played.record.messages_up.tolist()
    assert bytes_down.tolist() == played.record.bytes_down.tolist()
    assert messages_down.tolist() == played.record.messages_down.tolist()


@pytest.mark.parametrize("name", SECURE)
def test_what_devices_send_each_other_is_what_they_receive_but_for_those_that_left(name):
    """Beside the challenge and the answers to it, two numbers for everybody of U2."""
    row = make(name, DEVICES, 50).phases().index("share_keys")
    everybody = play(make(name, DEVICES, 50)).record
    answers, challenge = 16 + 4 * 2 * 9, 16 + 16
    assert [8 * SHARE + answers] * 9 == everybody.bytes_up[row].tolist()
    assert [8 * SHARE + challenge] * 9 == everybody.bytes_down[row].tolist()

    # Device 0 is on no list, device 4 is but takes no part: seven devices send it what is lost.
    record = play_with_dropouts(name).record
    there = [0 if id in (0, 4) else 1 for id in range(DEVICES)]
    answers = 16 + 4 * 2 * 7
    assert [(7 * SHARE + answers) * one for one in there] == record.bytes_up[row].tolist()
    assert [(6 * SHARE + challenge) * one for one in there] == record.bytes_down[row].tolist()
    between = record.bytes_up[row].sum() - record.bytes_down[row].sum()
    assert 7 * (SHARE + answers - challenge) == between


def test_of_a_row_that_was_not_sent_the_relay_passes_on_an_envelope():
    """So that its receiver knows that its sender takes part, and masks with it."""

    def leave_out(header, message):
        if header.sender == 3 and message.ndim == 2:
            return message[Header.receivers_of(message) != 5]
        return message

    protocol = make("secagg", DEVICES, 50)
    played = play(protocol, change=leave_out)
    before = play(protocol).record
    row = protocol.phases().index("share_keys")
    missing = [SHARE - ENVELOPE if id == 5 else 0 for id in range(DEVICES)]
    down = before.bytes_down[row].astype(int) - played.record.bytes_down[row].astype(int)
    assert missing == down.tolist()
    assert before.messages_down[row].tolist() == played.record.messages_down[row].tolist()
    assert list(range(DEVICES)) == played.server.survivors


def test_a_device_that_left_is_charged_nothing_from_then_on():
    played = play_with_dropouts("secagg")
    phases = played.protocol.phases()
    for device, phase in DROPOUTS.items():
        moved = played.record.bytes_up[:, device] + played.record.bytes_down[:, device]
        there = phases.index(phase)
        assert moved[:there].all()
        assert not moved[there:].any()


def test_with_reduce_the_ledger_holds_the_vectors_without_envelopes():
    protocol = make("secagg", DEVICES, 50)
    played = play(protocol, dropouts=DROPOUTS, upload="reduce")
    row = protocol.phases().index("masked_input")

    uploads = [len(played.wire.summed.get(id, b"")) for id in range(DEVICES)]
    assert [0, 200, 200, 200, 0, 200, 200, 0, 200] == uploads
    assert uploads == played.record.bytes_up[row].tolist()
    assert [size // 200 for size in uploads] == played.record.messages_up[row].tolist()


def test_reduce_and_gather_end_with_the_same_total_from_the_same_uploads():
    gathered, reduced = (
        play(make("secagg", DEVICES, 50), dropouts=DROPOUTS, upload=upload)
        for upload in ("gather", "reduce")
    )

    assert gathered.sent("masked_input") == reduced.wire.summed
    assert gathered.server.total.tolist() == reduced.server.total.tolist()
    assert gathered.server.survivors == reduced.server.survivors
