"""Masks from one enrolment: exact sums, keys by an independent path, and what is refused."""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from protocol_rounds import bits, play, raw, updates
from protocol_rounds import enrolled as enrolled_for
from scipy import stats
from slow_reference import elements, hkdf, modulus_of, stream, unpacked

from hpcfl.algorithms.aggregation.prf import KeyDirectory, Member, Prf
from hpcfl.algorithms.parameters import Parameters
from hpcfl.benchmark.experiment import Experiment
from hpcfl.comm.loopback import Loopback
from hpcfl.crypto.groups import FQ
from hpcfl.crypto.keys import KeyPair, agree, insecure_secrets
from hpcfl.errors import BelowThresholdError, MessageError, RefusedError
from hpcfl.options.bench import BenchOptions
from hpcfl.rounds.driver import Round, RoundConfig
from hpcfl.rounds.ledger import Ledger
from hpcfl.rounds.observer import Results
from hpcfl.rounds.timed import Played

GROUPS = ["fq", "ring32", "ring16", "ring12"]
DEVICES = 7
# The number that stands for the round of an enrolment.
NO_ROUND = 2**32 - 1


def enrolled(devices=DEVICES, seed=5):
    return enrolled_for("prf", devices, seed, "passive")


def selection(members, devices, dim=40, weights=None, **options):
    """Return the protocol of a round in which some enrolled devices are selected."""
    shares = None if weights is None else np.array(weights, np.float64) / sum(weights)
    parameters = Parameters(len(members), dim, dropout=0.0, levels=1000, weights=shares, **options)
    protocol = Prf(parameters)
    protocol.join(devices, members, len(devices))
    return protocol


def uploads(played):
    """Return the masked vectors, a row for each device of the round."""
    sent = played.sent("masked_input")
    group, dim = played.protocol.summed_in, played.protocol.parameters.dim
    return np.array([unpacked(sent[slot], dim, group.modulus) for slot in sorted(sent)])


def plain(protocol, vectors, index):
    """Return the sum of the quantised vectors, as Python integers."""
    rows = [protocol.quantise(vector, slot, index).tolist() for slot, vector in enumerate(vectors)]
    return [sum(column) for column in zip(*rows, strict=True)]


# Exact sums


@given(data=st.data(), group=st.sampled_from(GROUPS))
def test_the_sum_is_exact_for_any_devices_selected_in_any_rounds(data, group):
    upload = data.draw(st.sampled_from(["gather", "reduce"][: 1 + (group != "ring12")]))
    count = data.draw(st.integers(2, 9))
    devices = enrolled(count)
    rounds = sorted(data.draw(st.sets(st.integers(0, 2**32 - 2), min_size=1, max_size=3)))
    for index in rounds:
        members = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=2)))
        dim = data.draw(st.integers(1, 9))
        weights = data.draw(
            st.none() | st.lists(st.integers(1, 9), min_size=len(members), max_size=len(members))
        )
        protocol = selection(members, devices, dim, weights, group=group)
        vectors = updates(protocol, seed=index % 97)
        played = play(protocol, vectors, index=index, upload=upload)

        assert plain(protocol, vectors, index) == played.server.total.tolist()
        assert list(range(len(members))) == played.server.survivors


# Keys and masks by an independent path


def slow_seed(i, j, private, public):
    """Return the seed of a pair, 32 bytes: HKDF-SHA256 without salt, its first block."""
    (secret,) = agree(private, [public])
    key = hmac.digest(bytes(32), secret, hashlib.sha256)
    info = f"hpcfl/1 prf pair {min(i, j)} {max(i, j)} seed".encode()
    return hmac.digest(key, info + b"\x01", hashlib.sha256)


def slow_mask_key(seed, index, members, devices):
    """Return the key of a pair's mask in a round."""
    digest = hashlib.sha256(bits(members, devices)).hexdigest()
    context = f"hpcfl/1 prf round {index} selected {digest} of {devices} additive mask"
    return hkdf(seed, context)


def private_key(id):
    """Return the private key that a device of `enrolled` drew."""
    return insecure_secrets(5, NO_ROUND, id)(32)


@pytest.mark.parametrize("group", GROUPS)
def test_uploads_are_vectors_and_masks_as_a_slow_implementation_has_them(group):
    members, index, dim = [0, 2, 5, 6], 11, 33
    protocol = selection(members, enrolled(), dim, group=group)
    vectors = updates(protocol)
    sent = uploads(play(protocol, vectors, index=index))

    for slot, id in enumerate(members):
        expected = protocol.quantise(vectors[slot], slot, index).tolist()
        for peer in members:
            if peer == id:
                continue
            public = KeyPair.from_private(private_key(peer)).public
            seed = slow_seed(id, peer, private_key(id), public)
            key = slow_mask_key(seed, index, members, DEVICES)
            mask = elements(key, dim, modulus_of(group))
            sign = 1 if id < peer else -1
            expected = [a + sign * b for a, b in zip(expected, mask, strict=True)]
        assert [value % modulus_of(group) for value in expected] == sent[slot].tolist()


def test_no_two_pairs_rounds_or_selections_have_a_mask_key_in_common():
    keys = {}
    for index, members in enumerate([[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 4], range(DEVICES)]):
        devices = enrolled()
        for id in members:
            for peer, key in devices[id].mask_keys(index, list(members)).items():
                pair = (index, min(id, peer), max(id, peer))
                # The two of a pair have the same.
                assert key == keys.setdefault(pair, key)
    assert len({*keys.values()}) == len(keys) == 6 + 6 + 6 + 21
    # In the same round, another selection gives other keys.
    one, other = enrolled()[0], enrolled()[0]
    first, second = one.mask_keys(3, [0, 1, 2]), other.mask_keys(3, [0, 1, 3])
    assert first[1] != second[1]
    # And the operating system's are never the same.
    one, other = enrolled(3, seed=None), enrolled(3, seed=None)
    assert one[0].mask_keys(0, [0, 1]) != other[0].mask_keys(0, [0, 1])


# What an upload hides


def assert_uniform(values, modulus):
    """Assert that values spread evenly over 64 parts of a group; wrong once in a billion times."""
    observed = np.bincount(values * 64 // modulus, minlength=64)
    assert stats.chisquare(observed).pvalue > 1e-9


def test_a_server_that_selects_differently_towards_devices_gets_no_sum():
    """It tells device 0 of one more than the others: that could cancel, and does not."""
    devices = enrolled()
    protocol = selection([0, 1, 2], devices, 20_000)
    vectors = np.zeros((3, 20_000))
    played = play(protocol, vectors, before="masked_input")
    told = played.told("model")
    lie = told[:-1] + bits([0, 1, 2, 3], DEVICES)
    played.devices[0].receive_model(raw(lie))
    sent = [played.devices[slot].send_masked_input(vectors[slot]).view("<u4") for slot in range(3)]
    extra = enrolled()[3].mask_keys(0, [0, 1, 2, 3])[0]
    total = sum(row.astype(np.int64) for row in sent)
    total -= np.frombuffer(stream(extra, 80_000), "<u4").astype(np.int64)
    assert_uniform(total % FQ.modulus, FQ.modulus)


# What a device refuses


def test_a_device_masks_once_for_a_round_and_never_for_an_earlier_one():
    devices = enrolled()
    play(selection([0, 1], devices), index=4)
    for index in (4, 3, 0):
        with pytest.raises(BelowThresholdError) as caught:
            play(selection([0, 1], devices), index=index)
        assert (
            f"device 0 refuses round {index}: it has masked a vector for round 4 already"
        ) in str(caught.value)
    played = play(selection([0, 1], devices), index=5)
    again = np.zeros(played.parameters.dim)
    error = played.refused(RefusedError, played.devices[1].send_masked_input, again)
    assert "device 1 refuses round 5" in str(error)
    # Who was not selected has masked for no round, whatever round it was.
    play(selection([2, 3], devices), index=0)


@pytest.mark.parametrize(
    ("told", "kind", "sentence"),
    [
        ([1, 3], RefusedError, "device 2 refuses round 0: it is not among the selected"),
        ([], RefusedError, "device 2 refuses round 0: it is not among the selected"),
        ([2], RefusedError, "device 2 refuses round 0: it is selected alone"),
        ([2, 7], MessageError, "it names a device beyond the last, 6"),
        ([2, 3, 4, 8], MessageError, "bytes, expected 1"),
    ],
)
def test_a_selection_that_would_not_hide_a_vector_is_refused(told, kind, sentence):
    devices = enrolled()
    protocol = selection([2, 3], devices)
    device = protocol.device(0, 0, insecure_secrets(1, 0, 0))
    model = bytes(4 * protocol.parameters.dim)

    def take_part():
        device.receive_model(raw(model + bits(told, 9 if 8 in told else 8)))
        device.send_masked_input(np.zeros(protocol.parameters.dim))

    with pytest.raises(RefusedError, match="not among the selected"):
        device.send_masked_input(np.zeros(protocol.parameters.dim))
    with pytest.raises(kind, match=sentence):
        take_part()
    for wrong in (model, model[4:] + bits(told, 8), model + bits(told, 8) + bytes(4)):
        with pytest.raises(MessageError, match="malformed model message from the server"):
            device.receive_model(raw(wrong))
    # It has not masked anything: the same round can be played rightly.
    play(protocol)


PUBLIC = [KeyPair.from_private(insecure_secrets(5, NO_ROUND, id)(32)).public for id in range(7)]
OTHER = KeyPair.from_private(bytes(range(32))).public


@pytest.mark.parametrize(
    ("listed", "sentence"),
    [
        ([OTHER, *PUBLIC[1:]], "this device's own key is not as it sent it"),
        ([*PUBLIC[:3], PUBLIC[2], *PUBLIC[4:]], "a public key is listed twice"),
        ([*PUBLIC[:3], bytes(32), *PUBLIC[4:]], "a public key has low order"),
        ([*PUBLIC[:6], PUBLIC[6][:-1]], "received 223 bytes, expected 224"),
        ([*PUBLIC, bytes(32)], "received 256 bytes, expected 224"),
    ],
)
def test_a_device_enrols_once_with_a_right_list_of_keys(listed, sentence):
    member = Member(0, DEVICES, insecure_secrets(5, NO_ROUND, 0))
    with pytest.raises(MessageError, match=sentence):
        member.receive_advertise_keys(raw(b"".join(listed)))
    member = Member(0, DEVICES, insecure_secrets(5, NO_ROUND, 0))
    member.receive_advertise_keys(raw(b"".join(PUBLIC)))
    with pytest.raises(RefusedError, match="device 0 refuses to enrol twice"):
        member.receive_advertise_keys(raw(b"".join(PUBLIC)))


# What the server refuses


@pytest.mark.parametrize("upload", ["gather", "reduce"])
@pytest.mark.parametrize(
    ("gone", "named"),
    [([1], "device 3"), ([0, 2], "devices 0, 5"), ([0, 1, 2, 3], "devices 0, 3, 5, 6")],
)
def test_a_round_in_which_a_device_is_missing_is_refused_with_its_id(upload, gone, named):
    protocol = selection([0, 3, 5, 6], enrolled())
    with pytest.raises(BelowThresholdError) as caught:
        play(protocol, dropouts=dict.fromkeys(gone, "masked_input"), index=8, upload=upload)
    assert str(caught.value) == (
        f"round 8 cannot end: prf has no way to remove the masks of {named}, which sent no "
        "vector; use secagg"
    )
    if upload == "gather":
        # Nor can those be taken off of a device whose vector is not a finite number.
        vectors = np.zeros((4, 40))
        vectors[gone[0], 0] = np.nan
        words = rf"refused: device {gone[0]} .*not a finite number"
        with pytest.raises(BelowThresholdError, match=words):
            play(selection([0, 3, 5, 6], enrolled()), vectors)


def test_an_enrolment_without_all_devices_is_refused():
    enrolment = Prf.enrolment(4)
    devices = {id: enrolment.device(id, insecure_secrets(1, 0, id)) for id in range(4)}
    with pytest.raises(BelowThresholdError, match="cannot end: device 2 advertised no key"):
        Round(
            enrolment.steps,
            Loopback(4),
            Ledger(["advertise_keys"], 4, range(4), True),
            RoundConfig(index=NO_ROUND, dim=0, largest_message=32),
            devices={id: device for id, device in devices.items() if id != 2},
            server=enrolment.server(),
            inputs=lambda id: np.empty(0),
        ).play()


def test_a_key_that_comes_twice_or_is_no_key_is_refused():
    directory = KeyDirectory(2)
    with pytest.raises(MessageError, match="device 1: received 31 bytes, expected 32"):
        directory.receive_advertise_keys(1, raw(bytes(31)))
    with pytest.raises(MessageError, match="device 1: a public key has low order"):
        directory.receive_advertise_keys(1, raw(bytes(32)))
    directory.receive_advertise_keys(1, raw(bytes(range(32))))
    with pytest.raises(MessageError, match="device 1: it was received twice"):
        directory.receive_advertise_keys(1, raw(bytes(range(1, 33))))
    with pytest.raises(MessageError, match="device 0: its public key is taken already"):
        directory.receive_advertise_keys(0, raw(bytes(range(32))))


# What it costs


def bench(devices=6, **options):
    options = {"dim": 50, "rounds": 2, "warmup": 0, "dropout": 0.0} | options
    rounds = Results[Played]()
    Experiment.prepare(BenchOptions("prf", **options), devices).run(Loopback(devices), rounds)
    return rounds.records
