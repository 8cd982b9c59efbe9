"""Helpers that know masks: exact sums, masks by an independent path, and what is refused."""

import hashlib
import hmac

import numpy as np
import pytest
from protocol_rounds import Wire, bits, play, raw, updates
from slow_reference import elements, hkdf, modulus_of, unpacked

from hpcfl.algorithms.aggregation.assisted import (
    Assisted,
)
from hpcfl.algorithms.parameters import Parameters
from hpcfl.benchmark.experiment import Experiment
from hpcfl.comm import envelope
from hpcfl.comm.loopback import Loopback
from hpcfl.crypto.keys import KeyPair, agree, helper_secrets, insecure_secrets
from hpcfl.errors import BelowThresholdError, MessageError, RefusedError
from hpcfl.options.bench import BenchOptions
from hpcfl.rounds.enrolment import NO_ROUND, enrol
from hpcfl.rounds.observer import Results
from hpcfl.rounds.timed import Played as Timed

DEVICES, SEED = 7, 5
GROUPS = ["fq", "ring32", "ring16", "ring12"]


def assisted(devices=DEVICES, dim=20, helpers=2, members=None, **options):
    """Return a protocol whose devices and helpers have enrolled; `members` of them are selected."""
    found = enrol(Assisted, Loopback(devices, helpers), first_round=0, insecure_seed=SEED)
    members = range(devices) if members is None else members
    given = {"levels": 1000, "helpers": helpers} | options
    protocol = Assisted(Parameters(len(members), dim, **given))
    protocol.join(found.devices, members, devices)
    return protocol


# Exact sums


# Masks by an independent path


def slow_mask(device, helper, index, dim, group, count=DEVICES):
    """Return the mask of a device and a helper: X25519, HKDF-SHA256 twice, AES-CTR."""
    private = insecure_secrets(SEED, NO_ROUND, device)(32)
    public = KeyPair.from_private(helper_secrets(SEED, NO_ROUND, helper)(32)).public
    (agreed,) = agree(private, [public])
    key = hmac.digest(bytes(32), agreed, hashlib.sha256)
    info = f"hpcfl/1 assisted device {device} helper {helper} secret".encode()
    secret = hmac.digest(key, info + b"\x01", hashlib.sha256)
    seed = hkdf(secret, f"hpcfl/1 assisted round {index} additive mask")
    return np.array(elements(seed, dim, modulus_of(group)), object)


@pytest.mark.parametrize("group", GROUPS)
def test_uploads_and_answers_are_masks_of_what_was_agreed_on_once(group):
    dim, index, modulus = 9, 6, modulus_of(group)
    levels = 10 if group == "ring12" else 1000
    played = play(
        assisted(dim=dim, group=group, levels=levels), dropouts={2: "masked_input"}, index=index
    )
    sent, protocol = played.sent("masked_input"), played.protocol
    for id in played.server.survivors:
        integers = protocol.quantise(played.vectors[id], id, index).astype(object)
        masks = [slow_mask(id, helper, index, dim, group) for helper in range(2)]
        expected = (integers + sum(masks)) % modulus
        assert expected.tolist() == unpacked(sent[id], dim, modulus)

    answers = played.sent("unmask")
    for helper in range(2):
        masks = [slow_mask(id, helper, index, dim, group) for id in played.server.survivors]
        expected = -sum(masks) % modulus
        assert expected.tolist() == unpacked(answers[envelope.HELPERS + helper], dim, modulus)


# What is refused


def asked(protocol, survivors, index=0):
    """Return a helper's side of a round, asked for these devices' masks."""
    helper = protocol.helper(0, index, None)
    helper.receive_unmask(raw(bits(survivors, DEVICES)))
    return helper


@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        (bits(range(3), DEVICES), RefusedError, "a sum of 3 devices is not one of 4"),
        (bits([], DEVICES), RefusedError, "a sum of 0 devices"),
        (b"\xff", MessageError, "a device beyond the last, 6"),
        (bytes(2), MessageError, "received 2 bytes, expected 1"),
    ],
)
def test_a_helper_tells_its_masks_of_no_fewer_devices_than_the_threshold(content, kind, words):
    helper = assisted().helper(0, 0, None)
    with pytest.raises(kind, match=words):
        helper.receive_unmask(raw(content))
    with pytest.raises(RefusedError, match="was not asked to unmask"):
        helper.send_unmask()


@pytest.mark.parametrize("index", [0, 3, 4])
def test_a_helper_answers_once_a_round(index):
    """The difference of two answers would be the masks of fewer devices than the threshold."""
    protocol = assisted()
    asked(protocol, range(7), 4)
    with pytest.raises(RefusedError, match="has had a list of survivors for round"):
        asked(protocol, range(6), index)
    asked(protocol, range(6), 5)


def test_a_helper_counts_only_devices_that_have_enrolled():
    enrolment = Assisted.enrolment(DEVICES, 1)
    helper = enrolment.helper(0, helper_secrets(SEED, NO_ROUND, 0))
    keys = [KeyPair.generate(insecure_secrets(SEED, NO_ROUND, id)).public for id in range(6)]
    helper.receive_advertise_keys(raw(b"".join(keys) + bytes(32)))

    assert 6 == len(helper.mask_keys(0, range(7)))
    assert list(range(6)) == helper.known(range(7))
    with pytest.raises(RefusedError, match="refuses to enrol twice"):
        helper.receive_advertise_keys(raw(bytes(32 * DEVICES)))


def test_a_device_masks_once_a_round():
    protocol = assisted()
    device = protocol.device(0, 4, None)
    device.send_masked_input(updates(protocol)[0])
    for index in (4, 3):
        again = protocol.device(0, index, None)
        with pytest.raises(RefusedError, match="it has masked a vector for round 4 already"):
            again.send_masked_input(updates(protocol)[0])


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (lambda key: key + key, "two helpers have the same public key"),
        (lambda key: key + bytes(32), "low order"),
        (lambda key: key, "received 33 bytes, expected 64"),
        (lambda key: key + bytes(range(32)) + b"\xfe", "received 2 bytes, expected 1"),
    ],
)
def test_a_device_agrees_with_helpers_that_are_two(keys, words):
    """One behind two names would know both masks by itself."""
    device = Assisted.enrolment(DEVICES, 2).device(0, insecure_secrets(1, 0, 0))
    key = KeyPair.generate(insecure_secrets(1, 0, 1)).public
    with pytest.raises(MessageError, match=words):
        device.receive_offer(raw(keys(key) + b"\xfe"))
    with pytest.raises(RefusedError, match="it has not enrolled"):
        device.mask_keys(0)


def test_a_device_whose_key_was_not_received_takes_no_part_and_costs_itself_alone():
    def lost(header, message):
        first = header.step == 1 and header.sender == 3
        return message[:-1] if first else message

    class Losing(Wire):
        def __init__(self):
            super().__init__(DEVICES, lost, 2)

    found = enrol(Assisted, Losing(), first_round=0, insecure_seed=SEED)
    protocol = assisted()
    protocol.join(found.devices, range(DEVICES), DEVICES)
    played = play(protocol)

    played.goes_on([0, 1, 2, 4, 5, 6])
    assert "device 3 refuses round 0: it has not enrolled" in str(played.left[3])


def test_a_helper_that_does_not_answer_ends_the_round():
    """Its masks are in the sum; a malformed answer is none."""

    def cut(header, message):
        return message[:-1] if header.sender == envelope.HELPERS + 1 else message

    with pytest.raises(BelowThresholdError) as caught:
        play(assisted(), change=cut)
    assert (
        "round 0 cannot end: helper 1 did not tell the sum of its masks; refused: malformed "
        "unmask message from helper 1: received 79 bytes, expected 80"
    ) == str(caught.value)


# As it is used


def test_noise_of_honest_devices_is_counted_on():
    options = {"aggregate": "assisted", "noise_multiplier": 1.0, "dim": 50, "rounds": 2}
    rounds = Results[Timed]()
    experiment = Experiment.prepare(BenchOptions("dp-fedavg", warmup=0, **options), 12)
    experiment.run(Loopback(12, 2), rounds)

    assert [True, True] == [record.validated for record in rounds.records]
