"""Compiled code gives the results of NumPy and `cryptography`, and is used only if it does."""

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from crypto_reference import fixed_keys
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from hpcfl.algorithms.aggregation.secagg import SecAgg
from hpcfl.algorithms.parameters import Parameters
from hpcfl.algorithms.quantisation import Quantiser
from hpcfl.crypto import keys, keystream, native, ringlwe
from hpcfl.crypto.groups import FQ, GROUPS, Field
from hpcfl.errors import RefusedError
from hpcfl.results.pooling import MACHINE
from hpcfl.system import doctor, environment

deriver = pytest.mark.skipif(native.deriver() is None, reason="hashlib has no SHA256_Init")
kernel = pytest.mark.skipif(native.masker() is None, reason="kernel.c was not compiled")
library = pytest.mark.skipif(native.lib25519() is None, reason="no lib25519 where the linker looks")
FIELDS = [FQ, *(group for group in GROUPS.values() if group.name.startswith("field"))]
RINGS = [group for group in GROUPS.values() if group.name.startswith("ring")]
# Half, a quarter of all words are rejected.
REJECTING = [Field(2**31 - 1, "half"), Field(3 * 2**30 + 1, "quarter")]


@kernel
@pytest.mark.parametrize("group", [*FIELDS, *REJECTING, *RINGS], ids=lambda group: group.name)
def test_masks_by_the_kernel_are_those_of_numpy(group, monkeypatch):
    """At all lengths around those of vector instructions, over several blocks, with both signs.

    With keystreams of the kernel, and with those of the faster mode of `cryptography`.
    """
    for count in (*range(1, 70), 8191, 70_001, 140_000):
        vector = np.random.default_rng(count).integers(0, group.modulus, count)
        vector[:1] = group.modulus - 1
        vector = vector.astype(group.dtype)
        secrets, signs = fixed_keys(5, seed=count), [1, -1, -1, 1, 1]
        found = [group.add_masks(vector, secrets, signs)]
        with monkeypatch.context() as without:
            without.setattr(keystream, "counts", lambda size: False)
            found.append(group.add_masks(vector, secrets, signs))
            without.setattr(native, "masker", lambda: None)
            expected = group.add_masks(vector, secrets, signs)
        assert all(np.array_equal(each, expected) for each in found)


@kernel
@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_the_kernel_adds_and_subtracts_as_integers_do_at_the_ends_of_the_field(field):
    ends = np.array([0, 1, field.modulus // 2, field.modulus - 2, field.modulus - 1], field.dtype)
    vector, words = (part.reshape(-1).copy() for part in np.meshgrid(ends, ends))
    for sign in (1, -1):
        found = vector.copy()
        add = native.masker().adder(field, found, words)
        assert not add(sign)
        expected = vector.astype(object) + sign * words.astype(object)
        assert (expected % field.modulus).tolist() == found.tolist()


@kernel
@pytest.mark.parametrize("group", [*FIELDS, *RINGS], ids=lambda group: group.name)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_kernel_quantises_as_numpy_does(group, dtype):
    """At lengths around those of vector instructions and blocks, with values beyond the clip."""
    quantiser, draw = Quantiser(0.7, group.half_range / 2), np.random.default_rng(group.bits)
    for count in (*range(70), 255, 256, 257, 20_001):
        values = draw.normal(0, 0.3, count).astype(dtype)
        found, expected = np.empty(count, group.dtype), np.empty(count, group.dtype)
        scale, draws = 1.9 * quantiser.levels, np.random.SFC64(count)
        clipped = native.rounder().quantise(values, 0.7, scale, draws, group, found)
        generator, beyond = np.random.Generator(np.random.SFC64(count)), 0
        for part, block, some in quantiser.blocks(values, 1.9, generator):
            expected[part] = group.of_integers(block)
            beyond += some
        assert np.array_equal(found, expected)
        assert clipped == beyond


@kernel
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_kernel_refuses_values_that_are_not_finite(value, dtype):
    values = np.zeros(700, dtype)
    values[[0, 600]] = 5, value
    found, draws = np.empty(700, FQ.dtype), np.random.SFC64(1)
    assert native.rounder().quantise(values, 1.0, 10.0, draws, FQ, found) is None
    protocol = SecAgg(Parameters(3, 700))
    with pytest.raises(RefusedError, match="a value that is not a finite number"):
        protocol.elements(values, slice(None), 1, 0)


@deriver
@pytest.mark.parametrize("size", [16, 22, 32, 64, 100])
def test_the_kernel_derives_keys_as_cryptography_does(size, monkeypatch):
    """With contexts of all lengths around the bounds of blocks, and for any number of keys."""
    draw = np.random.default_rng(size)
    secrets = [draw.bytes(size) for _ in range(200)]
    contexts = [draw.bytes(length) for length in range(200)]
    for length in (1, 16, 32, 64):
        for count in (0, 1, keys.FEWEST - 1, keys.FEWEST, 200):
            chosen = secrets[:count], contexts[-count:][:count], length
            found = keys.derive_each(*chosen)
            with monkeypatch.context() as without:
                without.setattr(native, "deriver", lambda: None)
                assert found == keys.derive_each(*chosen)
            assert [length] * count == [len(key) for key in found]


@library
def test_the_library_agrees_as_cryptography_does_on_ten_thousand_keys():
    draw = np.random.default_rng(1)
    for _ in range(100):
        private = draw.bytes(32)
        # Any 32 bytes are a u-coordinate, on the curve or on its twist, canonical or not.
        public = [draw.bytes(32) for _ in range(100)]
        key = X25519PrivateKey.from_private_bytes(private)
        expected = [key.exchange(X25519PublicKey.from_public_bytes(one)) for one in public]
        assert expected == keys.agree(private, public)


@library
@pytest.mark.parametrize("place", [0, 2])
def test_a_key_of_low_order_is_refused(place):
    public = [keys.KeyPair.generate(os.urandom).public for _ in range(3)]
    public[place] = (1).to_bytes(32, "little")
    with pytest.raises(ValueError, match="low order"):
        keys.agree(os.urandom(32), public)


def test_what_fails_a_known_answer_is_not_used(monkeypatch):
    wrong = SimpleNamespace(name="wrong", multiply=lambda scalar, points: bytes(len(points)))
    monkeypatch.setattr(native, "Lib25519", lambda: wrong)
    assert native.lib25519.__wrapped__() is None

    for told in (0, 1):  # nothing is computed
        library = SimpleNamespace(
            hpcfl_mask=lambda *arguments, told=told: told,
            hpcfl_masks=lambda *arguments: arguments[-1],
            hpcfl_derive=lambda *arguments, told=told: told,
            hpcfl_multiply=lambda *arguments: None,
        )
        monkeypatch.setattr(native, "_kernel", lambda library=library: library)
        assert native.masker.__wrapped__() is None
        assert native.deriver.__wrapped__() is None
        assert ringlwe._compiled.__wrapped__() is None
    monkeypatch.setattr(native, "_kernel", lambda: None)
    assert native.masker.__wrapped__() is None is native.deriver.__wrapped__()
    assert ringlwe._compiled.__wrapped__() is None


@kernel
@deriver
@pytest.mark.parametrize(
    "call",
    [
        lambda: FQ.mask(np.zeros(9, np.uint32), [bytes(15)], [1]),
        lambda: FQ.mask(np.zeros(9, np.int64), [bytes(16)], [1]),
        lambda: FQ.mask(np.zeros(18, np.uint32)[::2], [bytes(16)], [1]),
        lambda: FQ.mask(np.frombuffer(bytes(36), np.uint32), [bytes(16)], [1]),
        lambda: keys.derive_each([bytes(32)] * 9, [b""] * 8),
        lambda: keys.agree(b"", [bytes(32)]),
    ],
)
def test_compiled_code_reads_and_writes_only_what_it_is_given(call):
    with pytest.raises(ValueError, match=r"."):
        call()


@kernel
def test_a_keystream_that_is_wrong_is_not_used(monkeypatch):
    monkeypatch.setattr(keystream, "counter", lambda block: (1 + block).to_bytes(16, "big"))
    assert native.masker.__wrapped__() is None


@kernel
def test_masks_are_added_by_the_kernel_where_hashlib_has_no_openssl(monkeypatch):
    monkeypatch.setattr(native, "_openssl", lambda *names: [getattr(os, name) for name in names])
    monkeypatch.setattr(native, "masker", native.masker.__wrapped__)
    assert native.masker().aes is None
    assert (
        FQ.add_masks(np.zeros(9, np.uint32), [bytes(16)], [1]).tolist()
        == FQ.elements([bytes(16)], [9]).tolist()
    )


def test_nothing_compiled_is_used_if_the_environment_says_so():
    code = "from hpcfl.crypto import native; print(*native.facts().values(), sep=', ')"
    told = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"HPCFL_NATIVE": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.endswith(", NumPy, cryptography, cryptography\n")


def test_what_is_used_is_recorded_and_tells_runs_apart():
    facts = native.facts()
    assert facts.keys() <= {*MACHINE}
    assert facts.items() <= environment.capture_local().items()
    assert facts["keys_agreed_by"] in doctor.check_compiled().found


def test_the_keystream_is_the_same_in_either_mode(monkeypatch):
    """In counter mode, as part of AES-GCM, and in one call."""
    key, size = fixed_keys(1)[0], 3 * keystream.BLOCK_BYTES + 5
    found = []
    for faster in (False, True):
        monkeypatch.setattr(keystream, "gcm_is_faster", lambda faster=faster: faster)
        for count in (100, 5000, keystream.ZEROS.size, size):
            out = keystream.read([key], [count])
            found.append(out.tobytes() == keystream.read([key], [size])[:count].tobytes())
        found.append(keystream.open_stream(key, 3).update(bytes(100)))
    assert found[:4] == found[5:9] == [True] * 4
    assert found[4] == found[9]
