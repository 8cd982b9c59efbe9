"""LightSecAgg: exact sums, the code by an independent path, what pieces say, what is refused."""

import itertools

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from protocol_rounds import Header, bits, make, play, raw, sent_by_device, updates
from slow_reference import elements, hkdf

from hpcfl.algorithms.aggregation.lightsecagg import LightSecAgg
from hpcfl.algorithms.aggregation.promises import failure_of
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.phases import Pattern
from hpcfl.crypto.groups import FIELDS, FQ
from hpcfl.crypto.keys import agree
from hpcfl.errors import BelowThresholdError, MessageError, RefusedError, UsageError

Q = 2**32 - 5
DEVICES = 9


def light(devices=DEVICES, dim=20, **options):
    return make("lightsecagg", devices, dim, **options)


# Exact sums


# U and T


@pytest.mark.parametrize(
    ("devices", "options", "needed", "private"),
    [
        (100, {"dropout": 0.28, "gamma": 0.33}, 70, 33),
        (100, {"dropout": 0.3, "gamma": 0.1}, 68, 10),
        (100, {"dropout": 0.0, "gamma": 0.0}, 98, 1),
        (4, {"dropout": 0.3, "gamma": 0.0}, 3, 1),
        (2, {"dropout": 0.3, "gamma": 0.1}, 2, 1),
    ],
)
def test_the_code_follows_from_the_plan_of_the_round(devices, options, needed, private):
    code = LightSecAgg(Parameters(devices, 10, **options)).code

    assert (needed, private) == (code.needed, code.private)


def test_where_more_may_collude_than_stay_the_protocol_refuses_to_be_run():
    with pytest.raises(UsageError, match="38 of 40 devices may collude, and 21 stay to the end"):
        LightSecAgg(Parameters(40, 10, gamma=0.45, dropout=0.49, population=1000))


# The code, again in Python's integers


def slow_value(points, values, place):
    """Return the value at a place of the polynomial through these values."""
    total = 0
    for x, value in zip(points, values, strict=True):
        up, down = value, 1
        for other in points:
            if other != x:
                up, down = up * (place - other) % Q, down * (x - other) % Q
        total += up * pow(down, -1, Q)
    return total % Q


def test_rows_are_the_sealed_coded_pieces_of_a_mask():
    """From what the devices drew: keys, mask, random pieces, Lagrange coding, AES-GCM."""
    devices, dim, index = 5, 11, 4
    played = play(light(devices, dim, dropout=0.0, gamma=0.3), index=index)
    code = played.protocol.code
    needed, private, width = code.needed, code.private, -(-dim // (code.needed - code.private))
    assert (3, 1, 6) == (needed, private, width)

    secrets = {id: source.drawn for id, source in played.sources.items()}
    for i, j in itertools.permutations(range(devices), 2):
        mask, random = (
            elements(secrets[i][k], count, Q) for k, count in ((1, dim), (2, private * width))
        )
        words = [*mask, *[0] * ((needed - private) * width - dim), *random]
        pieces = [words[k * width : (k + 1) * width] for k in range(needed)]
        points = range(devices + 1, devices + needed + 1)
        coded = [slow_value(points, column, j + 1) for column in zip(*pieces, strict=True)]

        (secret,) = agree(secrets[i][0], [played.sent("advertise_keys")[j]])
        name = f"hpcfl/1 lightsecagg round {index}"
        key = hkdf(secret, f"{name} pair {min(i, j)} {max(i, j)} piece transport")
        nonce = i.to_bytes(4, "little") + j.to_bytes(4, "little") + bytes(4)
        content = np.array(coded, "<u4").tobytes()
        row = AESGCM(key).encrypt(nonce, content, f"{name} from {i} to {j}".encode())
        (found,) = [
            message.payload
            for message in played.messages("share_masks", Pattern.ROUTE)
            if (i, j) == (message.header.sender, message.header.receiver)
        ]
        assert row == found


# What pieces say


# Hostile devices, and messages that are none


@pytest.mark.parametrize("upload", ["gather", "reduce"])
def test_a_device_of_whose_pieces_two_others_hold_none_is_left_out(upload):
    protocol = light(dropout=0.2)

    def spoil(rows):
        rows[np.isin(Header.receivers_of(rows), [2, 5]), -1] ^= 1
        return rows

    change = sent_by_device(protocol, "share_masks", 4, spoil)
    played = play(protocol, change=change, upload=upload)

    played.goes_on([0, 1, 2, 3, 5, 6, 7, 8])
    assert {4} == {*played.kept_out} == {*played.left}
    assert "is told that too many others hold no piece of its mask" in str(played.left[4])
    assert "too many devices hold no piece of it" in str(played.kept_out[4])


def test_one_device_that_holds_no_piece_of_another_leaves_the_end_to_others():
    protocol = light(dropout=0.2)

    def spoil(rows):
        rows[Header.receivers_of(rows) == 2, -1] ^= 1
        return rows

    played = play(protocol, change=sent_by_device(protocol, "share_masks", 4, spoil))

    played.goes_on(range(9))
    assert {2} == {*played.left}
    assert "it holds no piece of device 4" in str(played.left[2])


def other_sum(payload):
    # Two that are wrong by the same may look like a third one that is wrong.
    payload.view("<u4")[1] //= 2
    return payload


def test_a_wrong_sum_of_pieces_is_found_and_left_out():
    protocol = light(dropout=0.2)

    played = play(protocol, change=sent_by_device(protocol, "unmask", 3, other_sum))

    played.goes_on(range(9))
    assert {3} == {*played.kept_out}
    assert "its sum of pieces, or a piece that it was dealt, contradicts the others" in str(
        played.kept_out[3]
    )


@pytest.mark.parametrize("field", [FQ, *FIELDS.values()], ids=lambda field: field.name)
def test_a_wrong_sum_of_pieces_is_found_in_few_bits_as_well(field):
    """One combination of 8 bits alone would miss one of 251: there are as many as it takes."""
    assert field.modulus**field.checks > 2**62
    protocol = light(dropout=0.2, group=field.name, levels=10)
    for index in range(100 if field.bits == 8 else 1):
        change = sent_by_device(protocol, "unmask", 3, one_more)
        assert {3} == {*play(protocol, change=change, index=index).kept_out}


def one_more(payload):
    """Change the last element of a sum of pieces, by one."""
    payload[-1] ^= 1
    return payload


@pytest.mark.parametrize(
    ("liars", "absent", "words"),
    [
        ([3], 2, "that 7 devices sent contradict each other: 1 or more are wrong"),
        ([3, 4], 0, "that 9 devices sent contradict each other: 2 or more are wrong"),
    ],
)
def test_wrong_sums_that_cannot_be_told_apart_end_the_round(liars, absent, words):
    """One of U + 1 cannot be told from the others, nor can two of U + 3, which differ by 4."""
    protocol = light(dropout=0.2)
    gone = dict.fromkeys(range(9 - absent, 9), "unmask")

    with pytest.raises(BelowThresholdError, match=words):
        play(
            protocol,
            dropouts=gone,
            change=sent_by_device(protocol, "unmask", liars, other_sum),
        )


def test_pieces_that_do_not_belong_together_end_the_round():
    def wrap(id, device):
        if id == 4:
            send = device.send_share_masks

            def dealing():
                receivers, rows = send()
                device.state.mask_key, device.state.dealt = b"", False
                # A piece of another mask, sealed as it should be.
                rows[3] = send()[1][3]
                return receivers, rows

            device.send_share_masks = dealing
        return device

    protocol = light(dropout=0.2)
    with pytest.raises(BelowThresholdError, match="dealt pieces that do not belong together"):
        play(protocol, wrap=wrap)


@pytest.mark.parametrize("group", ["fq", "field8", "field28"])
@pytest.mark.parametrize("dim", [20, 40_000])
def test_pieces_that_are_no_field_elements_cost_their_dealer_alone(group, dim):
    """Those of the others are kept, which short ones are unpacked with."""

    def wrap(id, device):
        if id == 4:
            seal = device._sealed

            def dealing(peers, pieces):
                pieces = pieces.copy()
                pieces[[peers.index(2), peers.index(3)], -1] = 2**protocol.summed_in.bits - 1
                return seal(peers, pieces)

            device._sealed = dealing
        return device

    protocol = light(dropout=0.2, dim=dim, group=group, levels=10)
    played = play(protocol, wrap=wrap)

    played.goes_on([id for id in range(DEVICES) if id != 4])
    for id in range(DEVICES):
        wrong = [error.sender for error in played.devices[id].ignored]
        assert (["device 4"] if id in (2, 3) else []) == wrong
        assert all("not a group element" in str(e) for e in played.devices[id].ignored)


# What devices refuse


def device_about_to_unmask(id=0):
    played = play(light(), before=("unmask", Pattern.BROADCAST))
    return played, played.devices[id]


@pytest.mark.parametrize(
    ("survivors", "words"),
    [
        (range(4), "refuses to unmask the sum of 4 devices: 5 are needed"),
        (range(1, 9), "it is named as dropped"),
    ],
)
def test_a_device_adds_up_pieces_of_enough_devices_and_its_own(survivors, words):
    played, device = device_about_to_unmask()
    error = played.refused(RefusedError, device.receive_unmask, raw(bits(survivors, 9)))
    assert words in str(error)
    played.refused(RefusedError, device.send_unmask)


def test_a_device_answers_once_a_round():
    """The difference of two sums would be what one device's pieces hide."""
    played, device = device_about_to_unmask()
    device.receive_unmask(raw(bits(range(9), 9)))
    for survivors in (range(9), range(8)):
        error = played.refused(RefusedError, device.receive_unmask, raw(bits(survivors, 9)))
        assert "refuses a second request to unmask" in str(error)
    device.send_unmask()
    assert "or has told" in str(played.refused(RefusedError, device.send_unmask))


def test_a_device_deals_and_uploads_once_a_round():
    played, device = device_about_to_unmask()
    assert "deal pieces twice" in str(played.refused(RefusedError, device.send_share_masks))
    vector = updates(played.protocol)[0]
    error = played.refused(RefusedError, device.send_masked_input, vector)
    assert "upload twice" in str(error)


@pytest.mark.parametrize("bad", [bytes(32), (2**255 - 19).to_bytes(32, "little")])
def test_a_key_with_which_nothing_can_be_agreed_is_refused_by_both_sides(bad):
    """Otherwise one device could make all others leave."""
    protocol = light(dropout=0.2)
    change = sent_by_device(protocol, "advertise_keys", 4, lambda payload: raw(bad).copy())
    played = play(protocol, change=change)
    played.goes_on([id for id in range(9) if id != 4])

    played = play(light(), before=("advertise_keys", Pattern.BROADCAST))
    listed = played.server.send_advertise_keys().copy()
    listed[2 + 32 : 2 + 64] = raw(bad)
    error = played.refused(MessageError, played.devices[0].receive_advertise_keys, listed)
    assert "from device 1: a public key" in str(error)


@pytest.mark.parametrize(
    ("options", "claim", "worst"),
    [
        (
            {"gamma": 0.0},
            "with one device in collusion the sum of the others: one piece says nothing",
            0,
        ),
        ({"gamma": 0.3}, "with 12 devices in collusion the sum of the others: 12 pieces say", 0),
        ({"gamma": 0.1, "population": 400}, "The probability that more collude is at most 2^-", 1),
    ],
)
def test_what_is_promised_counts_those_who_collude(options, claim, worst):
    protocol = LightSecAgg(Parameters(40, 10, **options))
    (promise,) = protocol.promises()
    assert claim in promise.claim
    assert (0 < promise.worst < 2**-40) == bool(worst)
    assert promise.worst == failure_of(protocol.promises(), None)


# As it is used
