"""Sums of vectors encrypted by CKKS: exact, telling nothing of the key, and what is refused."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from hpcfl.algorithms.aggregation.ckks import REPORTERS, Ckks, SharedKey
from hpcfl.algorithms.aggregation.work import costs_of
from hpcfl.algorithms.parameters import Parameters
from hpcfl.benchmark.experiment import Experiment
from hpcfl.comm.loopback import Loopback
from hpcfl.crypto import ckks
from hpcfl.errors import BelowThresholdError, HpcflError, MessageError, RefusedError, UsageError
from hpcfl.options.bench import BenchOptions
from hpcfl.options.training import TrainOptions
from hpcfl.privacy.exposure import exposure
from hpcfl.privacy.population import Population
from hpcfl.rounds.enrolment import enrol
from hpcfl.rounds.observer import Results
from hpcfl.rounds.timed import Played
from hpcfl.training.build import check_algorithm

tenseal = pytest.importorskip("tenseal")

DEVICES, DIM = 6, 50
WRONG = "the aggregate of round 0 is wrong"


@pytest.fixture(scope="module")
def context():
    return ckks.Context()


def rounds_of(devices=DEVICES, **options):
    experiment = Experiment.prepare(
        BenchOptions(**{"protocol": "ckks", "dim": DIM, "rounds": 2, "warmup": 0} | options),
        devices,
    )
    found = Results[Played]()
    experiment.run(Loopback(devices), found)
    return experiment, found.results


@pytest.mark.parametrize("devices", [2, 9])
def test_two_survivors_are_to_tell_the_sum(devices):
    _, played = rounds_of(devices, dropout=0.3)
    for one in played:
        assert one.right
        assert one.record.in_committee.sum() == REPORTERS
        assert one.record.survived[one.record.in_committee].all()


def test_a_sum_that_is_off_by_one_step_is_found(monkeypatch):
    from hpcfl.algorithms.aggregation.ckks import CkksServer

    finish = CkksServer.finish_decrypt

    def wrong(self):
        finish(self)
        self.total = self.total.copy()
        self.total[7] += 2.0**-ckks.STEP_BITS

    monkeypatch.setattr(CkksServer, "finish_decrypt", wrong)
    with pytest.raises(HpcflError, match=WRONG):
        rounds_of()


def added(context, vectors, times=1):
    """Return the encrypted sum of some vectors, each encrypted so many times."""
    total = []
    for vector in vectors:
        for _ in range(times):
            total = context.add(total, context.encrypt(vector), vector.size)
    return context.summed(total)


@settings(max_examples=15, deadline=None)
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
    assert error <= ckks.largest_error(devices, np.abs(steps).max()) < 0.5


def test_the_error_of_the_most_vectors_at_the_limit_is_less_than_half_a_step():
    largest = ckks.LARGEST * 2.0**ckks.STEP_BITS + ckks.MOST_VECTORS / 2
    assert ckks.largest_error(ckks.MOST_VECTORS, largest) < 0.4


def test_errors_have_the_variance_of_the_noise_that_the_bound_counts_with(context):
    """Another distribution could be wider than 21; a chi-squared test, 1e-6 either way.

    A real part has half of the coefficients' variance, 42 fair bits' each.
    """
    sizes = [ckks.SLOTS] * 5
    errors = np.concatenate([context.decoded(added(context, [np.zeros(n)]), n) for n in sizes])
    variance = ckks.DEGREE / 2 * 42 / 4 / 4.0**ckks.SCALE_BITS
    ratio = float((errors**2).sum()) / variance
    low, high = stats.chi2.ppf([1e-6, 1 - 1e-6], errors.size)
    assert low < ratio < high


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


def sealed(vector):
    """Return a vector of TenSEAL's as we send it."""
    return ckks._end_to_end(iter([vector]))


def strange(name):
    """Return ten values encrypted in a way in which nobody encrypts them."""
    library, ones = tenseal, [1.0] * 10
    primes = [40, 20, 40] if name == "degree" else [60, 40, 60 if name == "primes" else 40]
    degree = 4096 if name == "degree" else ckks.DEGREE
    if name == "scheme":
        plain = library.context(library.SCHEME_TYPE.BFV, degree, 1032193)
        return sealed(library.bfv_vector(plain, [1] * 10))
    other = library.context(library.SCHEME_TYPE.CKKS, degree, -1, primes)
    other.global_scale = 2.0**20 if name in ("scale", "three polynomials") else 2.0**40
    vector = library.ckks_vector(other, ones)
    if name == "fewer primes":
        vector = vector * ones
    if name == "three polynomials":
        other.auto_relin = other.auto_rescale = False
        vector = vector * vector
    return sealed(vector)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("scale", "of another form"),
        ("fewer primes", "no ciphertext"),
        ("three polynomials", "no ciphertext"),
        ("primes", "no ciphertext"),
        ("degree", "no ciphertext"),
        ("scheme", "no ciphertext"),
    ],
)
def test_a_ciphertext_of_other_parameters_costs_its_sender_alone(context, name, words):
    """Were the first one taken, those of all others could not be added to it."""
    with pytest.raises(ValueError, match=words):
        context.add([], strange(name), 10)


def zstd(blocks):
    """Return blocks, as (kind, size, content), as a frame of zstd within SEAL's header."""
    content = ckks._FRAME + ckks._INFLATED.to_bytes(4, "little")
    for number, (kind, size, data) in enumerate(blocks, start=1):
        last = number == len(blocks)
        content += (size << 3 | kind << 1 | last).to_bytes(3, "little") + data
    size = 16 + len(content)
    one = ckks._MAGIC + b"\x04\x03" + ckks._ZSTD + size.to_bytes(8, "little") + content
    return size.to_bytes(4, "little") + one


@pytest.mark.parametrize("count", [17, 64])
def test_a_ciphertext_that_inflates_to_more_than_one_takes_is_not_inflated(context, count):
    """A block of four bytes inflates to 128 KiB, a message to all memory there is."""
    with pytest.raises(ValueError, match="inflates to more"):
        context.add([], zstd([(1, 1 << 17, b"0")] * count), 10)


def test_what_says_that_it_holds_more_ciphertexts_than_it_does_is_refused(context):
    """TenSEAL reads beyond its memory for a vector of ten values without a ciphertext."""
    for content in (b"\x0a\x01\x0a", context._context.serialize(), b""):
        with pytest.raises(ValueError, match="cipher"):
            context.add([], len(content).to_bytes(4, "little") + content, 10)


# In a process of its own: what is looked for is a crash of it, or that it does not end.
FUZZED = """
import random, sys
import numpy as np
from hpcfl.crypto import ckks

seed, count = map(int, sys.argv[1:])
chance = random.Random(seed)
holder, server = ckks.Context(), ckks.Context()
good, secret = holder.encrypt(np.ones(10)), holder.written()
found = {"taken": 0, "refused": 0}
for number in range(count):
    key = number % 8 == 7
    content = bytearray(secret if key else good)
    for _ in range(chance.choice([1, 1, 4])):
        place = chance.randrange(chance.choice([48, len(content)]))
        content[place] = chance.choice([0, 255, chance.randrange(256), content[place] ^ 1])
    if chance.random() < 0.2:
        del content[chance.randrange(len(content)):]
        if not key and len(content) > 20:
            content[:4] = (len(content) - 4).to_bytes(4, "little")
            content[12:20] = (len(content) - 4).to_bytes(8, "little")
    try:
        if key:
            ckks.Context(bytes(content)).encrypt(np.ones(10))
        else:
            total = server.add(server.add([], bytes(content), 10), good, 10)
            holder.decrypt(ckks.Context.summed(total), 10)
        found["taken"] += 1
    except (ValueError, OverflowError):
        found["refused"] += 1
print(found)
"""


@pytest.mark.parametrize("count", [300, pytest.param(6000, marks=pytest.mark.full)])
def test_no_ciphertext_and_no_key_crashes_the_library(count):
    command = [sys.executable, "-c", FUZZED, "1", str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, (done.returncode, done.stderr[-500:])
    assert "'taken': 0" not in done.stdout
    assert "'refused': 0" not in done.stdout


def test_vectors_of_another_size_and_values_that_are_too_large_are_refused(context):
    with pytest.raises(ValueError, match="a ciphertext is cut off"):
        context.add([], context.encrypt(np.ones(9)), ckks.SLOTS + 1)
    with pytest.raises(ValueError, match="bytes behind the last"):
        context.add([], context.encrypt(np.ones(ckks.SLOTS + 1)), 9)
    with pytest.raises(ValueError, match="a value is beyond 512"):
        context.encrypt(np.full(3, 513.0))


def test_what_no_vectors_add_up_to_is_not_told(context):
    """A sum under another key, or of values beyond the limit, decrypts to anything."""
    with pytest.raises(OverflowError, match="values that are too large"):
        context.decrypt(ckks.Context().encrypt(np.ones(10)), 10)
    with pytest.raises(OverflowError, match="values that are too large"):
        context.decrypt(added(context, [np.full(10, L)], 3), 10)


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
        ckks.from_steps(devices[0].send_decrypt().view("<i8")),
        vectors.mean(axis=0),
        atol=DEVICES * 2.0**-ckks.STEP_BITS,
        rtol=0,
    )
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
    opened = server._context.decoded(sent.tobytes(), DIM)
    assert np.abs(opened).max() > 1e3 * 2.0**ckks.STEP_BITS  # nothing like it
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
    assert (found.alone_of_sent.value, found.masking.masks) == (alone, not colluding)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"degree": 4}, "leave out --degree"),
        ({"group": "ring32"}, "leave out --group and --bits"),
        ({"committee": 3}, "has two reporters always"),
    ],
)
def test_options_that_it_has_no_use_for_are_refused(options, words):
    with pytest.raises(UsageError, match=words):
        Ckks(Parameters(DEVICES, DIM, **options))


def test_a_vector_beyond_the_limit_and_too_many_devices_are_refused():
    _, devices, _, _ = parties()
    for value in (513.0, -513.0):
        with pytest.raises(RefusedError, match="beyond 512, the largest that ckks sums"):
            devices[0].send_encrypted_input(np.r_[np.zeros(DIM - 1), value])
    # Its weight does not count: of all vectors together it is one.
    devices[0].send_encrypted_input(np.full(DIM, 512.0))
    with pytest.raises(UsageError, match="at most 1048576 vectors"):
        Ckks(Parameters(2**20 + 1, DIM))


@pytest.mark.parametrize("count", [2, 20_000])
def test_the_sealed_key_is_no_larger_than_announced(count):
    """It grows with the number of devices."""
    holder = SharedKey(count).device(0, bytes)
    listed = np.zeros((count, 32), np.uint8)
    listed[0] = holder.send_advertise_keys()
    holder.receive_advertise_keys(listed.reshape(-1))
    assert 32 * count < holder.send_shared_key().size <= SharedKey(count).largest_message


def test_without_the_library_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tenseal", None)
    with pytest.raises(UsageError, match=r"pip install 'hpcfl\[ckks\]'"):
        Ckks(Parameters(DEVICES, DIM))


@pytest.mark.parametrize(
    "options",
    [
        {"algorithm": "dp-fedavg", "noise": "central"},
        {"algorithm": "locks", "variant": "trusted", "sampling": "poisson"},
    ],
)
def test_noise_that_the_server_adds_is_refused_as_devices_have_the_sum_without_it(options):
    options = TrainOptions(aggregate="ckks", devices=4, sigma=1.0, **options)
    with pytest.raises(UsageError, match="learn the sum before the server adds its noise"):
        check_algorithm(options, 4, dim=1)


def test_predicted_bytes_are_those_of_a_round_but_for_what_compression_varies():
    """What is predicted is the mean of ciphertexts, whose sizes differ by parts of a hundredth."""
    experiment, (_, one) = rounds_of(4, dim=ckks.SLOTS + 1, dropout=0.0)
    record, members = one.record, one.record.in_committee
    for number, phase in enumerate(costs_of(experiment.protocol)):
        if phase.name == "advertise_keys":
            continue  # once, before the first round
        up, down = record.bytes_up[number], record.bytes_down[number]
        assert up[~members] == pytest.approx(phase.up, rel=4e-3), phase.name
        assert up[members] == pytest.approx(phase.up + phase.member_up, rel=4e-3), phase.name
        assert down == pytest.approx(phase.down, rel=4e-3), phase.name
    assert set(record.bytes_up[3][members].tolist()) == {16 + 8 * (ckks.SLOTS + 1)}
