"""Sums of vectors encrypted by CKKS: right within their bound, and what is refused."""

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from hpcfl.algorithms.aggregation.ckks import REPORTERS, Ckks, SharedKey
from hpcfl.algorithms.parameters import Parameters
from hpcfl.benchmark.experiment import Experiment
from hpcfl.comm.loopback import Loopback
from hpcfl.crypto import ckks
from hpcfl.errors import BelowThresholdError, HpcflError, MessageError, RefusedError, UsageError
from hpcfl.options.bench import BenchOptions
from hpcfl.privacy.exposure import exposure
from hpcfl.privacy.population import Population
from hpcfl.rounds.enrolment import enrol
from hpcfl.rounds.observer import Results
from hpcfl.rounds.timed import Played

pytest.importorskip("tenseal")

DEVICES, DIM = 6, 50
WRONG = "the aggregate of round 0 is wrong"


@pytest.fixture(scope="module")
def context():
    return ckks.Context()


def rounds_of(devices=DEVICES, **options):
    experiment = Experiment.prepare(
        BenchOptions(protocol="ckks", dim=DIM, rounds=2, warmup=0, **options), devices
    )
    found = Results[Played]()
    experiment.run(Loopback(devices), found)
    return experiment, found.results


@pytest.mark.parametrize("phase", ["encrypted_input", "decrypt"])
@pytest.mark.parametrize("devices", [2, 9])
def test_sums_are_right_within_their_bound_whoever_drops_out(devices, phase):
    """Those that tell the sum may be among those that vanish; one of them is enough."""
    experiment, played = rounds_of(devices, dropout=0.3, dropout_phase=phase)
    for one in played:
        assert one.right
        assert one.record.in_committee.sum() == REPORTERS
    (claim,) = (promise.claim for promise in experiment.protocol.promises())
    assert "off by at most" in claim


def test_a_sum_that_is_off_by_more_than_the_bound_is_found(monkeypatch):
    from hpcfl.algorithms.aggregation.ckks import CkksServer

    finish = CkksServer.finish_decrypt

    def wrong(self):
        finish(self)
        self.total = self.total.copy()
        self.total[7] += 2 * self._protocol.error_bound(1.0)

    monkeypatch.setattr(CkksServer, "finish_decrypt", wrong)
    with pytest.raises(HpcflError, match=WRONG):
        rounds_of()


@settings(max_examples=15, deadline=None)
@given(
    size=st.integers(1, 5000),
    vectors=st.integers(1, 4),
    scale=st.sampled_from([1e-6, 1.0, 1e4]),
    seed=st.integers(0, 1000),
)
def test_what_is_added_encrypted_is_the_sum_within_the_bound(context, size, vectors, scale, seed):
    generator = np.random.default_rng(seed)
    values = generator.uniform(-scale, scale, (vectors, size))
    total = []
    for one in values:
        total = context.add(total, context.encrypt(one), size)
    found = context.decrypt(context.summed(total), size)

    largest = np.abs(values).sum(axis=0).max()
    bound = ckks.error_bound(vectors, size, largest, 2.0**-40)
    assert np.abs(found - values.sum(axis=0)).max() <= bound


def test_errors_have_the_variance_that_the_bound_counts_with(context):
    """Half a ring's degree of coefficients' variance; a chi-squared test, 1e-6 either way."""
    errors = np.concatenate(
        [context.decrypt(context.encrypt(np.zeros(ckks.SLOTS)), ckks.SLOTS) for _ in range(5)]
    )
    largest = ckks.DEGREE * ckks._ERROR_VARIANCE / 4.0**ckks.SCALE_BITS
    ratio = errors.size * float(np.mean(errors**2)) / largest
    # The bound counts each coefficient whole, the real part has half of it.
    assert ratio < stats.chi2.ppf(1e-6, errors.size)
    assert 2 * ratio > 0.9 * stats.chi2.ppf(1e-6, errors.size)


def test_two_ciphertexts_of_one_vector_differ(context):
    assert context.encrypt(np.ones(10)) != context.encrypt(np.ones(10))


@pytest.mark.parametrize(
    "change",
    [
        lambda content: b"",
        lambda content: content[:-1],
        lambda content: content[:100],
        lambda content: content + b"0",
        lambda content: b"\xff" * len(content),
        lambda content: (1).to_bytes(4, "little") + content[4:],
        lambda content: content[:4] + bytes(len(content) - 4),
    ],
)
def test_bytes_that_are_no_ciphertexts_are_refused(context, change):
    content = context.encrypt(np.ones(10))
    with pytest.raises(ValueError, match=r"cipher|bytes"):
        context.add([], change(content), 10)


def test_a_ciphertext_of_another_size_or_kind_is_refused(context):
    with pytest.raises(ValueError, match="holds 9 values"):
        context.add([], context.encrypt(np.ones(9)), 10)
    with pytest.raises(ValueError, match="too large"):
        context.encrypt(np.full(3, 1e30))


def parties(devices=DEVICES, seed=1):
    protocol = Ckks(Parameters(devices, DIM))
    enrolled = enrol(Ckks, Loopback(devices), first_round=0, insecure_seed=seed)
    assert enrolled is not None
    protocol.join(enrolled.devices, range(devices), devices)
    made = [protocol.device(id, 0, bytes) for id in range(devices)]
    return protocol, made, protocol.server(0, np.zeros(DIM, np.float32)), enrolled


def test_a_device_decrypts_a_sum_of_enough_devices_once_a_round():
    _, devices, server, _ = parties()
    vectors = np.random.default_rng(0).uniform(-1, 1, (DEVICES, DIM))
    for id, device in enumerate(devices):
        server.receive_encrypted_input(id, device.send_encrypted_input(vectors[id]))
    server.finish_encrypted_input()
    told = server.send_decrypt()
    few = told.copy()
    few[0] = 0b11100000
    with pytest.raises(RefusedError, match="a sum of 3 devices is not one of 4"):
        devices[0].receive_decrypt(few)
    with pytest.raises(MessageError, match="beyond the last, 5"):
        devices[0].receive_decrypt(np.concatenate([few[:1] * 0 + 255, told[1:]]))
    devices[0].receive_decrypt(told)
    with pytest.raises(RefusedError, match="refuses round 0: it has decrypted a sum of round 0"):
        devices[0].receive_decrypt(told)
    np.testing.assert_allclose(
        devices[0].send_decrypt().view("<f8"), vectors.mean(axis=0), atol=1e-7, rtol=0
    )
    with pytest.raises(RefusedError, match="was not given a sum"):
        devices[1].send_decrypt()
    with pytest.raises(MessageError, match="it is no reporter"):
        server.receive_decrypt(3, devices[0].send_decrypt())
    server.receive_decrypt(0, devices[0].send_decrypt())
    devices[1].receive_decrypt(told)
    server.receive_decrypt(1, (devices[1].send_decrypt().view("<f8") + 1).view(np.uint8))
    with pytest.raises(BelowThresholdError, match="two devices decrypted the sum differently"):
        server.finish_decrypt()


def test_an_upload_that_is_none_costs_its_sender_alone():
    _, devices, server, _ = parties()
    sent = devices[0].send_encrypted_input(np.zeros(DIM))
    server.receive_encrypted_input(0, sent)
    with pytest.raises(MessageError, match="it was received twice"):
        server.receive_encrypted_input(0, sent)
    with pytest.raises(MessageError, match="no ciphertext of CKKS"):
        server.receive_encrypted_input(1, np.concatenate([sent[:4], sent[4:] * 0]))
    assert server.survivors == [0]


def test_the_server_sees_no_key_and_cannot_open_what_it_adds():
    _, devices, server, enrolled = parties()
    sent = devices[0].send_encrypted_input(np.ones(DIM))
    opened = server._context.decrypt(sent.tobytes(), DIM)
    assert np.abs(opened).max() > 1e3  # nothing like it
    secrets = {holder._secrets for holder in enrolled.devices.values()}
    assert len(secrets) == 1  # the same for all


def test_a_sealed_key_that_was_changed_is_refused():
    enrolment = SharedKey(3)
    from hpcfl.crypto.keys import insecure_secrets

    holders = [enrolment.device(id, insecure_secrets(0, 0, id)) for id in range(3)]
    relay = enrolment.server()
    for id, holder in enumerate(holders):
        relay.receive_advertise_keys(id, holder.send_advertise_keys())
    listed = relay.send_advertise_keys()
    for holder in holders:
        holder.receive_advertise_keys(listed)
    assert [True, False, False] == [holder.in_committee for holder in holders]
    sent = holders[0].send_shared_key()
    with pytest.raises(MessageError, match="another device is to make it"):
        relay.receive_shared_key(1, sent)
    relay.receive_shared_key(0, sent)
    told = relay.send_shared_key().copy()
    told[100] ^= 1
    with pytest.raises(MessageError, match="does not open"):
        holders[1].receive_shared_key(told)
    with pytest.raises(BelowThresholdError, match="that was to make the shared key sent none"):
        enrolment.server().send_shared_key()


@pytest.mark.parametrize(("colluding", "alone"), [(0, 0.0), (1, 1.0)])
def test_one_device_that_colludes_opens_everything(colluding, alone):
    population = Population(20, colluding)
    found = exposure("ckks", Ckks.masking(20, 1.0, None), population, samples=100)
    assert (found.alone_of_sent.value, found.masked) == (alone, not colluding)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"degree": 4}, "--degree has no effect"),
        ({"group": "ring32"}, "--group has no effect"),
        ({"committee": 3}, "has two reporters always"),
    ],
)
def test_options_that_it_has_no_use_for_are_refused(options, words):
    with pytest.raises(UsageError, match=words):
        Ckks(Parameters(DEVICES, DIM, **options))


def test_without_the_library_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tenseal", None)
    with pytest.raises(UsageError, match=r"pip install hpcfl\[ckks\]"):
        Ckks(Parameters(DEVICES, DIM))
