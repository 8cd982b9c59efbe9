"""Masks from one enrolment: of pairs in prf, of devices and helpers in assisted."""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from protocol_rounds import Wire, bits, enrolled, play, raw, updates
from scipy import stats
from slow_reference import elements, hkdf, modulus_of, stream, unpacked

from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.aggregation.assisted import Assisted
from hpcfl.algorithms.aggregation.prf import KeyDirectory, Member, Prf
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm import envelope
from hpcfl.comm.loopback import Loopback
from hpcfl.crypto import keys
from hpcfl.crypto.groups import FQ
from hpcfl.crypto.keys import KeyPair, agree, helper_secrets, insecure_secrets
from hpcfl.errors import BelowThresholdError, MessageError, RefusedError
from hpcfl.rounds.enrolment import NO_ROUND, enrol

GROUPS = ["fq", "ring32", "ring16", "ring12"]
DEVICES, SEED = 7, 5


def of_pairs(devices=DEVICES, seed=SEED):
    return enrolled("prf", devices, seed, "passive")


def selection(members, devices, dim=40, weights=None, **options):
    """Return the protocol of a round in which some enrolled devices are selected."""
    shares = None if weights is None else np.array(weights, np.float64) / sum(weights)
    parameters = Parameters(len(members), dim, dropout=0.0, levels=1000, weights=shares, **options)
    protocol = Prf(parameters)
    protocol.join(devices, members, len(devices))
    return protocol


def assisted(devices=DEVICES, dim=20, helpers=2, **options):
    """Return a protocol whose devices and helpers have enrolled."""
    found = enrol(Assisted, Loopback(devices, helpers), insecure_seed=SEED)
    protocol = Assisted(Parameters(devices, dim, **{"levels": 1000, "helpers": helpers} | options))
    protocol.join(found.devices, range(devices), devices)
    return protocol


@given(data=st.data(), group=st.sampled_from(GROUPS))
def test_the_sum_is_exact_for_any_devices_selected_in_any_rounds(data, group):
    upload = data.draw(st.sampled_from(["gather", "reduce"][: 1 + (group != "ring12")]))
    count = data.draw(st.integers(2, 9))
    devices = of_pairs(count)
    for index in sorted(data.draw(st.sets(st.integers(0, 2**32 - 2), min_size=1, max_size=3))):
        members = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=2)))
        weights = data.draw(st.permutations(range(1, 10)))[: len(members)]
        protocol = selection(members, devices, data.draw(st.integers(1, 9)), weights, group=group)
        play(protocol, updates(protocol, index % 97), index=index, upload=upload).goes_on()


# Keys and masks by an independent path


def seed_of(agreed, context):
    """Return 32 bytes by HKDF-SHA256 without salt, its first block."""
    key = hmac.digest(bytes(32), agreed, hashlib.sha256)
    return hmac.digest(key, context.encode() + b"\x01", hashlib.sha256)


def private_key(id):
    """Return the private key that a device drew when it enrolled."""
    return insecure_secrets(SEED, NO_ROUND, id)(32)


def slow_mask_key(id, peer, index, members):
    """Return the key of the mask of a pair of prf in a round."""
    (agreed,) = agree(private_key(id), [KeyPair.from_private(private_key(peer)).public])
    seed = seed_of(agreed, f"hpcfl/1 prf pair {min(id, peer)} {max(id, peer)} seed")
    digest = hashlib.sha256(bits(members, DEVICES)).hexdigest()
    return hkdf(seed, f"hpcfl/1 prf round {index} selected {digest} of {DEVICES} additive mask")


@pytest.mark.parametrize("group", GROUPS)
def test_uploads_are_vectors_and_masks_as_a_slow_implementation_has_them(group):
    members, index, dim, modulus = [0, 2, 5, 6], 11, 33, modulus_of(group)
    played = play(selection(members, of_pairs(), dim, group=group), index=index)

    for slot, id in enumerate(members):
        expected = played.protocol.quantise(played.vectors[slot], slot, index).astype(object)
        for peer in {*members} - {id}:
            mask = elements(slow_mask_key(id, peer, index, members), dim, modulus)
            expected = expected + (1 if id < peer else -1) * np.array(mask, object)
        sent = unpacked(played.sent("masked_input")[slot], dim, modulus)
        assert (expected % modulus).tolist() == sent


def slow_mask(device, helper, index, dim, group):
    """Return the mask of a device and a helper: X25519, HKDF-SHA256 twice, AES-CTR."""
    public = KeyPair.from_private(helper_secrets(SEED, NO_ROUND, helper)(32)).public
    (agreed,) = agree(private_key(device), [public])
    secret = seed_of(agreed, f"hpcfl/1 assisted device {device} helper {helper} secret")
    seed = hkdf(secret, f"hpcfl/1 assisted round {index} additive mask")
    return np.array(elements(seed, dim, modulus_of(group)), object)


@pytest.mark.parametrize("group", GROUPS)
def test_uploads_and_answers_are_masks_of_what_was_agreed_on_once(group):
    dim, index, modulus = 9, 6, modulus_of(group)
    protocol = assisted(dim=dim, group=group, levels=10 if group == "ring12" else 1000)
    played = play(protocol, dropouts={2: "masked_input"}, index=index)
    sent, answers = played.sent("masked_input"), played.sent("unmask")
    masks = {
        (id, helper): slow_mask(id, helper, index, dim, group)
        for id in played.server.survivors
        for helper in range(2)
    }
    for id in played.server.survivors:
        integers = protocol.quantise(played.vectors[id], id, index).astype(object)
        expected = (integers + masks[id, 0] + masks[id, 1]) % modulus
        assert expected.tolist() == unpacked(sent[id], dim, modulus)
    for helper in range(2):
        expected = -sum(masks[id, helper] for id in played.server.survivors) % modulus
        assert expected.tolist() == unpacked(answers[envelope.HELPERS + helper], dim, modulus)


@pytest.mark.parametrize(("name", "security"), [("prf", "passive"), ("secagg", "active")])
def test_the_key_that_pairs_agreed_with_is_forgotten_after_the_enrolment(
    name, security, monkeypatch
):
    """All secrets of pairs would follow from it, also for who breaks in years later."""
    made: list[bytes] = []
    generate = keys.KeyPair.generate

    def noted(secrets):
        pair = generate(secrets)
        made.append(pair.private)
        return pair

    monkeypatch.setattr(keys.KeyPair, "generate", noted)
    found = enrol(find(name, security), Loopback(5))

    assert found is not None
    assert len(made) == 5
    kept = [one for device in found.devices.values() for one in everything_in(device)]
    assert b"".join(kept), "nothing was looked at"
    assert not any(private in one for private in made for one in kept)


def everything_in(thing):
    """Return all bytes in the attributes of an object, and in those of what they hold."""
    found = []
    for value in vars(thing).values():
        if isinstance(value, bytes):
            found.append(value)
        elif hasattr(value, "__dict__"):
            found += everything_in(value)
    return found


# What devices refuse


def test_a_server_that_selects_differently_towards_devices_gets_no_sum():
    """It tells device 0 of one more than the others: that could cancel, and does not."""
    protocol = selection([0, 1, 2], of_pairs(), 20_000)
    vectors = np.zeros((3, 20_000))
    played = play(protocol, vectors, before="masked_input")
    lie = played.told("model")[:-1] + bits([0, 1, 2, 3], DEVICES)
    played.devices[0].receive_model(raw(lie))
    sent = [played.devices[slot].send_masked_input(vectors[slot]).view("<u4") for slot in range(3)]
    extra = of_pairs()[3].mask_keys(protocol, 0, [0, 1, 2, 3])[0]
    total = sum(row.astype(np.int64) for row in sent)
    total -= np.frombuffer(stream(extra, 80_000), "<u4").astype(np.int64)
    observed = np.bincount(total % FQ.modulus * 64 // FQ.modulus, minlength=64)
    # Spread evenly over 64 parts of the group; wrong once in a billion times.
    assert stats.chisquare(observed).pvalue > 1e-9


def test_a_device_masks_once_for_a_round_and_never_for_an_earlier_one():
    devices, helped = of_pairs(), assisted()
    play(selection([0, 1], devices), index=4)
    play(helped, index=4)
    for index in (4, 3, 0):
        words = f"device 0 refuses round {index}: it has masked a vector for round 4 already"
        for protocol in (selection([0, 1], devices), helped):
            with pytest.raises(BelowThresholdError, match=words):
                play(protocol, index=index)
    play(selection([0, 1], devices), index=5).goes_on()
    # Who was not selected has masked for no round, whatever round it was.
    play(selection([2, 3], devices), index=0).goes_on()


@pytest.mark.parametrize(
    ("told", "kind", "sentence"),
    [
        ([1, 3], RefusedError, "device 2 refuses round 0: it is not among the selected"),
        ([2], RefusedError, "device 2 refuses round 0: it is selected alone"),
        ([2, 7], MessageError, "it names a device beyond the last, 6"),
    ],
)
def test_a_selection_that_would_not_hide_a_vector_is_refused(told, kind, sentence):
    protocol = selection([2, 3], of_pairs())
    device = protocol.device(0, 0, insecure_secrets(1, 0, 0))

    def take_part():
        device.receive_model(raw(bytes(4 * protocol.parameters.dim) + bits(told, 8)))
        device.send_masked_input(np.zeros(protocol.parameters.dim))

    with pytest.raises(RefusedError, match="not among the selected"):
        device.send_masked_input(np.zeros(protocol.parameters.dim))
    with pytest.raises(kind, match=sentence):
        take_part()
    # It has not masked anything: the same round can be played rightly.
    play(protocol)


PUBLIC = [KeyPair.from_private(private_key(id)).public for id in range(DEVICES)]
OTHER = KeyPair.from_private(bytes(range(32))).public


@pytest.mark.parametrize(
    ("listed", "sentence"),
    [
        ([OTHER, *PUBLIC[1:]], "this device's own key is not as it sent it"),
        ([*PUBLIC[:3], PUBLIC[2], *PUBLIC[4:]], "a public key is listed twice"),
        ([*PUBLIC[:3], bytes(32), *PUBLIC[4:]], "a public key has low order"),
        ([*PUBLIC[:6], PUBLIC[6][:-1]], "received 223 bytes, expected 224"),
    ],
)
def test_a_device_enrols_once_with_a_right_list_of_keys(listed, sentence):
    member = Member(0, DEVICES, insecure_secrets(SEED, NO_ROUND, 0))
    with pytest.raises(MessageError, match=sentence):
        member.receive_advertise_keys(raw(b"".join(listed)))
    member = Member(0, DEVICES, insecure_secrets(SEED, NO_ROUND, 0))
    member.receive_advertise_keys(raw(b"".join(PUBLIC)))
    with pytest.raises(RefusedError, match="device 0 refuses to enrol twice"):
        member.receive_advertise_keys(raw(b"".join(PUBLIC)))


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (lambda key: key + key, "two helpers have the same public key"),
        (lambda key: key + bytes(32), "low order"),
        (lambda key: key, "received 33 bytes, expected 64"),
        (lambda key: key + bytes(range(32)) + b"\xfe", "received 2 bytes, expected 1"),
    ],
)
def test_a_device_agrees_with_helpers_that_are_two(sent, words):
    """One behind two names would know both masks by itself."""
    device = Assisted.enrolment(DEVICES, 2).device(0, insecure_secrets(1, 0, 0))
    key = KeyPair.generate(insecure_secrets(1, 0, 1)).public
    with pytest.raises(MessageError, match=words):
        device.receive_offer(raw(sent(key) + b"\xfe"))
    with pytest.raises(RefusedError, match="it has not enrolled"):
        device.mask_keys(assisted(), 0)


def test_a_device_whose_key_was_not_received_takes_no_part_and_costs_itself_alone():
    def lost(header, message):
        first = header.step == 1 and header.sender == 3
        return message[:-1] if first else message

    found = enrol(Assisted, Wire(DEVICES, lost, 2), insecure_seed=SEED)
    protocol = assisted()
    protocol.join(found.devices, range(DEVICES), DEVICES)
    played = play(protocol)

    played.goes_on([0, 1, 2, 4, 5, 6])
    assert "device 3 refuses round 0: it has not enrolled" in str(played.left[3])


# What helpers refuse


@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        (bits(range(3), DEVICES), RefusedError, "a sum of 3 devices is not one of 4"),
        (b"\xff", MessageError, "a device beyond the last, 6"),
    ],
)
def test_a_helper_tells_its_masks_of_no_fewer_devices_than_the_threshold(content, kind, words):
    helper = assisted().helper(0, 0, None)
    with pytest.raises(kind, match=words):
        helper.receive_unmask(raw(content))
    with pytest.raises(RefusedError, match="was not asked to unmask"):
        helper.send_unmask()


def test_a_helper_answers_once_a_round():
    """The difference of two answers would be the masks of fewer devices than the threshold."""
    protocol = assisted()

    def ask(count, index):
        protocol.helper(0, index, None).receive_unmask(raw(bits(range(count), DEVICES)))

    ask(7, 4)
    for index in (0, 3, 4):
        with pytest.raises(RefusedError, match="has had a list of survivors for round"):
            ask(6, index)
    ask(6, 5)


def test_a_helper_counts_only_devices_that_have_enrolled():
    helper = Assisted.enrolment(DEVICES, 1).helper(0, helper_secrets(SEED, NO_ROUND, 0))
    helper.receive_advertise_keys(raw(b"".join(PUBLIC[:6]) + bytes(32)))

    assert 6 == len(helper.mask_keys(assisted(), 0, range(7)))
    assert list(range(6)) == helper.known(range(7))
    with pytest.raises(RefusedError, match="refuses to enrol twice"):
        helper.receive_advertise_keys(raw(bytes(32 * DEVICES)))


# What the server refuses


@pytest.mark.parametrize("upload", ["gather", "reduce"])
@pytest.mark.parametrize(
    ("gone", "named"), [([1], "device 3"), ([0, 2], "devices 0, 5"), ([0, 1, 2], "devices 0, 3, 5")]
)
def test_a_round_in_which_a_device_is_missing_is_refused_with_its_id(upload, gone, named):
    protocol = selection([0, 3, 5, 6], of_pairs())
    with pytest.raises(BelowThresholdError) as caught:
        play(protocol, dropouts=dict.fromkeys(gone, "masked_input"), index=8, upload=upload)
    assert str(caught.value) == (
        f"round 8 cannot end: prf has no way to remove the masks of {named}, which sent no "
        "vector; use secagg"
    )
    # Nor can those be taken off of a device whose vector is not a finite number.
    vectors = np.zeros((4, 40))
    vectors[gone[0], 0] = np.nan
    with pytest.raises(BelowThresholdError, match=rf"device {gone[0]} .*not a finite number"):
        play(selection([0, 3, 5, 6], of_pairs()), vectors)


def test_a_key_that_comes_twice_not_at_all_or_is_no_key_is_refused():
    directory = KeyDirectory(3)
    directory.receive_advertise_keys(1, raw(OTHER))
    for id, key, words in (
        (0, bytes(31), "device 0: received 31 bytes, expected 32"),
        (0, bytes(32), "device 0: a public key has low order"),
        (1, PUBLIC[1], "device 1: it was received twice"),
        (0, OTHER, "device 0: its public key is taken already"),
    ):
        with pytest.raises(MessageError, match=words):
            directory.receive_advertise_keys(id, raw(key))
    directory.receive_advertise_keys(0, raw(PUBLIC[0]))
    with pytest.raises(BelowThresholdError, match="cannot end: device 2 advertised no key"):
        directory.finish_advertise_keys()
