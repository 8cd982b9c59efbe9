"""Sums of vectors encrypted by CKKS: exact, telling nothing of the key, and what is refused."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcfl.algorithms.aggregation.ckks import Ckks, CkksServer
from hpcfl.algorithms.parameters import Parameters
from hpcfl.benchmark.experiment import Experiment
from hpcfl.comm.loopback import Loopback
from hpcfl.crypto import ckks
from hpcfl.crypto.keys import insecure_secrets
from hpcfl.errors import BelowThresholdError, HpcflError, MessageError, RefusedError, UsageError
from hpcfl.options.bench import BenchOptions
from hpcfl.rounds.enrolment import enrol

DEVICES, DIM = 6, 50


@pytest.fixture(scope="module")
def context():
    return ckks.Context()


def test_a_sum_that_is_off_by_one_step_is_found(monkeypatch):
    finish = CkksServer.finish_decrypt

    def wrong(self):
        finish(self)
        self.total = self.total.copy()
        self.total[7] += 2.0**-ckks.STEP_BITS

    monkeypatch.setattr(CkksServer, "finish_decrypt", wrong)
    asked = BenchOptions("ckks", dim=DIM, rounds=1, warmup=0)
    experiment = Experiment.prepare(asked, DEVICES)
    with pytest.raises(HpcflError, match="the aggregate of round 0 is wrong"):
        experiment.run(Loopback(DEVICES))


def added(context, vectors, times=1):
    """Return the encrypted sum of some vectors, each encrypted so many times."""
    total = []
    for vector in vectors:
        for _ in range(times):
            total = context.add(total, context.encrypt(vector), vector.size)
    return context.summed(total)


@given(
    size=st.integers(1, 5000),
    vectors=st.integers(1, 4),
    scale=st.sampled_from([1e-6, 1.0, ckks.LARGEST / 4]),
    seed=st.integers(0, 1000),
)
def test_what_is_added_encrypted_is_exactly_the_sum(context, size, vectors, scale, seed):
    generator = np.random.default_rng(seed)
    values = generator.uniform(-scale, scale, (vectors, size))
    found = context.decrypt(added(context, values), size)
    np.testing.assert_array_equal(found, ckks.in_steps(values).sum(axis=0))


L = float(ckks.LARGEST)
EXTREMES = {
    "all at the limit": np.full(ckks.SLOTS, L),
    "signs in turn": L * (-1.0) ** np.arange(ckks.SLOTS),
    "one at the limit": np.r_[L, np.zeros(ckks.SLOTS - 1)],
    "one small value": np.r_[2.0**-27, np.zeros(ckks.SLOTS - 1)],
    "random signs": L * np.random.default_rng(0).choice([-1.0, 1.0], ckks.SLOTS),
    "one value": np.array([-L]),
    "just above the slots": np.r_[np.full(ckks.SLOTS, L), -L],
}


# SEAL's error of a fresh ciphertext is at most 21 a coefficient: its centred binomial distribution
# has 42 bits. To encode rounds a coefficient besides.
ERROR = 21 + 0.5
# Rounding errors of a transform, 13 stages of butterflies, relative to a vector's Euclidean norm;
# a value's is at most that of all its block, there and back (Higham 2002, theorem 24.2).
RELATIVE = 2 * 13 * 6.7 * 2.0**-53 * math.sqrt(ckks.DEGREE)


def largest_error(vectors, largest):
    """Return what a value of a decrypted sum may be off by before it is rounded, in steps.

    None of the values that are added, taken together, is larger than `largest` steps. A decrypted
    value is a sum of the degree's number of coefficients times the cosines of odd multiples of half
    a circle's part: their magnitudes add up to cot(pi / 2 / degree). Nothing in it is chance.
    """
    cosines = 1 / math.tan(math.pi / 2 / ckks.DEGREE)
    return vectors * ERROR * cosines / 2.0**ckks.SCALE_BITS + RELATIVE * largest


@pytest.mark.parametrize(
    ("devices", "name"),
    [(2, name) for name in EXTREMES]
    + [pytest.param(1000, name, marks=pytest.mark.full) for name in EXTREMES],
)
def test_sums_stay_exact_at_the_extremes(context, devices, name):
    """All devices alike: what encoding rounds by then adds up, and is not a matter of chance."""
    values = EXTREMES[name] / devices
    total, steps = added(context, [values], devices), devices * ckks.in_steps(values)
    np.testing.assert_array_equal(context.decrypt(total, values.size), steps)
    error = np.abs(context.decoded(total, values.size) - steps).max()
    assert error <= largest_error(devices, np.abs(steps).max()) < 0.5


def test_the_error_of_the_most_vectors_at_the_limit_is_less_than_half_a_step():
    largest = ckks.LARGEST * 2.0**ckks.STEP_BITS + ckks.MOST_VECTORS / 2
    assert largest_error(ckks.MOST_VECTORS, largest) < 0.4


def test_what_the_server_is_told_depends_on_the_vectors_alone():
    """Errors would give it the key: they are linear in it (Li and Micciancio 2021)."""
    vectors = np.random.default_rng(3).uniform(-1, 1, (DEVICES, DIM))
    vectors[:, :10] = 0  # whose sign would be that of the error
    told = []
    for seed in (1, 2):  # other keys, and other errors in any case
        _, devices, server, _ = parties(seed=seed)
        for id, device in enumerate(devices):
            server.receive_encrypted_input(id, device.send_encrypted_input(vectors[id]))
        server.finish_encrypted_input()
        request = server.send_decrypt()
        for device in devices:
            device.receive_decrypt(request)
            told.append(device.send_decrypt().tobytes())
    assert len(set(told)) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda content: b"",
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


def test_vectors_of_another_size_and_values_that_are_too_large_are_refused(context):
    with pytest.raises(ValueError, match="a ciphertext is cut off"):
        context.add([], context.encrypt(np.ones(9)), ckks.SLOTS + 1)
    with pytest.raises(ValueError, match="bytes behind the last"):
        context.add([], context.encrypt(np.ones(ckks.SLOTS + 1)), 9)
    with pytest.raises(ValueError, match="a value is beyond 512"):
        context.encrypt(np.full(3, 513.0))
    # A sum under another key, or of values beyond the limit, decrypts to anything.
    for told in (ckks.Context().encrypt(np.ones(10)), added(context, [np.full(10, L)], 3)):
        with pytest.raises(OverflowError, match="values that are too large"):
            context.decrypt(told, 10)


def parties(devices=DEVICES, seed=1):
    protocol = Ckks(Parameters(devices, DIM))
    enrolled = enrol(Ckks, Loopback(devices), insecure_seed=seed)
    assert enrolled is not None
    protocol.join(enrolled.devices, range(devices), devices)
    made = [protocol.device(id, 0, bytes) for id in range(devices)]
    return protocol, made, protocol.server(0, np.zeros(DIM, np.float32)), enrolled


def test_a_device_decrypts_a_sum_of_enough_devices_once_a_round():
    _, devices, server, _ = parties()
    for id, device in enumerate(devices):
        server.receive_encrypted_input(id, device.send_encrypted_input(np.ones(DIM)))
    server.finish_encrypted_input()
    told = server.send_decrypt()
    few = np.append(np.uint8(0b11100000), told[1:])
    with pytest.raises(RefusedError, match="a sum of 3 devices is not one of 4"):
        devices[0].receive_decrypt(few)
    with pytest.raises(MessageError, match="beyond the last, 5"):
        devices[0].receive_decrypt(np.append(np.uint8(255), told[1:]))
    devices[0].receive_decrypt(told)
    with pytest.raises(RefusedError, match="refuses round 0: it has decrypted a sum of round 0"):
        devices[0].receive_decrypt(told)
    with pytest.raises(RefusedError, match="was not given a sum"):
        devices[1].send_decrypt()
    with pytest.raises(MessageError, match="it is no reporter"):
        server.receive_decrypt(3, devices[0].send_decrypt())
    server.receive_decrypt(0, devices[0].send_decrypt())
    devices[1].receive_decrypt(told)
    server.receive_decrypt(1, (devices[1].send_decrypt().view("<i8") + 1).view(np.uint8))
    with pytest.raises(BelowThresholdError, match="two devices decrypted the sum differently"):
        server.finish_decrypt()


def test_a_vector_under_another_key_ends_the_round_and_nobody_is_blamed_for_it():
    _, devices, server, _ = parties()
    for device in devices:
        server.receive_encrypted_input(device.id, device.send_encrypted_input(np.zeros(DIM)))
    foreign = ckks.Context().encrypt(np.zeros(DIM))
    server._sum = server._context.add(server._sum, foreign, DIM)
    server.finish_encrypted_input()
    told = server.send_decrypt()
    for device in devices:
        with pytest.raises(RefusedError, match="nobody can tell whose"):
            device.receive_decrypt(told)


def test_the_server_sees_no_key_and_cannot_open_what_it_adds():
    _, devices, server, _ = parties()
    sent = devices[0].send_encrypted_input(np.ones(DIM))
    opened = server._context.decoded(sent.tobytes(), DIM)
    assert np.abs(opened).max() > 1e3 * 2.0**ckks.STEP_BITS  # nothing like it


def test_a_sealed_key_that_was_changed_is_refused():
    enrolment = Ckks.enrolment(3)
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


def test_a_vector_beyond_the_limit_and_too_many_devices_are_refused():
    _, devices, _, _ = parties()
    for value in (513.0, -513.0):
        with pytest.raises(RefusedError, match="beyond 512, the largest that ckks sums"):
            devices[0].send_encrypted_input(np.r_[np.zeros(DIM - 1), value])
    # Its weight does not count: of all vectors together it is one.
    devices[0].send_encrypted_input(np.full(DIM, 512.0))
    with pytest.raises(UsageError, match="at most 1048576 vectors"):
        Ckks(Parameters(2**20 + 1, DIM))
