"""Helpers that know masks: exact sums, masks by an independent path, and what is refused."""

import hashlib
import hmac

import numpy as np
import pytest
from protocol_rounds import Wire, bits, play, raw, updates
from slow_reference import elements, hkdf, modulus_of, unpacked

from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.aggregation.assisted import (
    AgreedWithHelpers,
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
    enrolment = AgreedWithHelpers(DEVICES, 1)
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
    device = AgreedWithHelpers(DEVICES, 2).device(0, insecure_secrets(1, 0, 0))
    key = KeyPair.generate(insecure_secrets(1, 0, 1)).public
    with pytest.raises(MessageError, match=words):
        device.receive_offer(raw(keys(key) + b"\xfe"))
    with pytest.raises(RefusedError, match="it has not enrolled"):
        device.mask_keys(0, range(2))


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


def test_shared_coordinates_are_those_of_common_and_others_in_the_next_round():
    protocol, whole = assisted(dim=50, shared=True, alpha=0.2), find("common")
    common = whole(Parameters(DEVICES, 50, alpha=0.2))
    for index in range(3):
        where = protocol.sent_in(index)
        assert where.tolist() == common.sent_in(index).tolist()
        assert len({*where.tolist()}) == 10
        played = play(protocol, index=index)
        assert {40} == {len(one) for one in played.sent("masked_input").values()}
        untouched = np.delete(played.server.total, where)
        assert not untouched.any()
        played.goes_on()
    assert protocol.sent_in(0).tolist() != protocol.sent_in(1).tolist()


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


# Rounds that can do without some helpers


def test_devices_mask_with_just_the_helpers_that_are_there():
    dim, index, there = 9, 6, (0, 2, 3)
    protocol = assisted(dim=dim, helpers=5, helper_dropout=2)
    played = play(protocol, dropouts={DEVICES + k: "masked_input" for k in (1, 4)}, index=index)

    assert bits(there, 5) == played.told("ready")
    assert {*(envelope.HELPERS + k for k in there)} == {*played.sent("ready")}
    sent, modulus = played.sent("masked_input"), modulus_of("fq")
    for id in range(DEVICES):
        integers = protocol.quantise(played.vectors[id], id, index).astype(object)
        masks = [slow_mask(id, helper, index, dim, "fq") for helper in there]
        assert ((integers + sum(masks)) % modulus).tolist() == unpacked(sent[id], dim, modulus)


def test_a_round_does_not_begin_with_fewer_helpers_than_it_needs():
    """Those that are there might be just the ones that pool what they know with the server."""
    gone = dict.fromkeys((DEVICES, DEVICES + 2), "masked_input")
    with pytest.raises(BelowThresholdError) as caught:
        play(assisted(helpers=3, helper_dropout=1), dropouts=gone)
    words = "round 0 cannot begin: 1 of 3 helpers are there, and 2 are needed"
    assert words == str(caught.value)


def test_a_helper_that_vanishes_behind_the_upload_costs_the_round():
    with pytest.raises(BelowThresholdError, match="helper 1 did not tell the sum of its masks"):
        play(assisted(helpers=3, helper_dropout=1), dropouts={DEVICES + 1: "unmask"})


@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        (bits([2], 3), RefusedError, "device 0 refuses to mask: 1 of 3 helpers are there, and 2"),
        (bits([], 3), RefusedError, "0 of 3 helpers are there"),
        (b"\xff", MessageError, "it names a helper beyond the last, 2"),
        (b"", MessageError, "received 0 bytes, expected 1"),
    ],
)
def test_a_device_masks_with_no_fewer_helpers_than_were_promised(content, kind, words):
    """A server that names one helper alone, which it runs, would know all masks."""
    device = assisted(helpers=3, helper_dropout=1).device(0, 0, None)
    with pytest.raises(kind, match=words):
        device.receive_ready(raw(content))


def test_an_answer_of_a_helper_whose_masks_are_in_no_vector_is_not_added():
    def lost(header, message):
        says_ready = header.step == 1 and header.sender == envelope.HELPERS + 1
        return message[:0] if says_ready else message

    played = play(assisted(helpers=3, helper_dropout=1), change=lost)
    played.goes_on()
    assert "its masks are in no vector of this round" in str(played.kept_out[DEVICES + 1])


def test_a_helper_says_that_it_is_there_once_and_nothing_else():
    server = assisted(helpers=3, helper_dropout=1).server(0, np.zeros(20, np.float32))
    server.receive_ready(1, raw(b""))
    with pytest.raises(MessageError, match="it was received twice"):
        server.receive_ready(1, raw(b""))
    with pytest.raises(MessageError, match="it is not empty"):
        server.receive_ready(2, raw(b"x"))


# As it is used


def test_noise_of_honest_devices_is_counted_on():
    options = {"aggregate": "assisted", "noise_multiplier": 1.0, "dim": 50, "rounds": 2}
    rounds = Results[Timed]()
    experiment = Experiment.prepare(BenchOptions("dp-fedavg", warmup=0, **options), 12)
    experiment.run(Loopback(12, 2), rounds)

    assert [True, True] == [record.validated for record in rounds.records]
