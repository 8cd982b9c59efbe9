"""Uploads reveal nothing about the vector: these tests detect broken masks, but nothing else.

The keys come from the operating system, so these tests can raise a false alarm. The probability of
a false alarm in all tests together is at most `FALSE_ALARM`, one run of this file in a million. It
is divided equally among the `CONFIGURATIONS`, and within each among its p-values.

No test of this size can detect masks that are reduced modulo q = 2^32 - 5 instead of rejected: five
values would be twice as likely, which needs some 10^10 elements to notice. The rejection of words
is tested directly with small primes (tests/crypto/test_crypto_groups.py). Nor can a test detect
that one of two masks is missing, because each of them hides an upload by itself; the need for both
shows only when devices drop out. Also, the sum of many poor masks is a good mask: of masks of 31
bits, the sum of 4 is detected and that of 8 is not. Uploads of ckks are not tested: they are values
of polynomials, which look uniform with any error as a mask.

A masked upload must look like uniform elements of the group, independent of other uploads and of
the vector. Under that hypothesis every p-value here is a bound that holds for any number of
elements, not an approximation for large numbers:

- binomial tails are exact, and doubled for two sides; the smallest of k tails is multiplied by k
  (Bonferroni);
- byte frequencies use the likelihood-ratio form of the chi-square test, n times the relative
  entropy D of the frequencies: P(n D > x) <= exp(-x) (e x / (k - 1))^(k - 1) for x > k - 1 and k
  bins (Agrawal 2020, "Finite-sample concentration of the multinomial in relative entropy",
  Theorem 1.2);
- of all strings of n bytes, fewer than 256^(m + 1) / 255 are compressed to at most m bytes.

Words of F_q with q = 2^32 - 5 are not uniform 32-bit words: n of them have at most (2^32 / q)^n
times the likelihood. `inspect` multiplies by this factor (1.001 for a million words).
"""

import math
import os
import secrets
import zlib
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from protocol_rounds import Source, enrolled, play
from scipy.stats import binom

from hpcfl.algorithms import locations
from hpcfl.algorithms.aggregation import find, sparse
from hpcfl.algorithms.aggregation.base import AggregationProtocol
from hpcfl.algorithms.aggregation.pine import GROUP, RELAYED
from hpcfl.algorithms.parameters import Parameters
from hpcfl.crypto import groups, keystream
from hpcfl.crypto.groups import GROUPS
from hpcfl.crypto.keys import insecure_secrets

# Each protocol that masks, and its options; lightsecagg's vectors are only elements of fields, and
# pine's of one field.
PROTOCOLS = {
    "secagg": {},
    "secagg-graph": {"degree": 4},
    "cohort": {"alpha": 0.5, "degree": 8},
    "common": {"alpha": 0.6},
    "assisted": {"helpers": 2},
    "lightsecagg": {},
    "opa": {"dropout": 0.1, "gamma": 0.0},
    "pine": {},
    "prf": {"dropout": 0.0},
    "sparse": {"alpha": 0.6},
}

FALSE_ALARM = 1e-6
LOOKED_AT = ("fq", "ring32", "ring12")
MASKED = [
    (name, group)
    for name, group in product(PROTOCOLS, LOOKED_AT)
    if group == "fq" or name not in ("lightsecagg", "pine")
]
CONFIGURATIONS = len(MASKED) + 1
LEVEL = FALSE_ALARM / CONFIGURATIONS

DEVICES, ROUNDS = 8, 16
WORD = 2**32
# Number of compared values of an upload. In sparse and cohort, an upload is about half a vector.
DIM = 1024
SHORT = {"sparse": 256, "cohort": 512, "common": 512}


# Uploads as the server receives them


def system(round_index, device):
    """Return the operating system's generator as the source of a device's secrets in a round."""
    return os.urandom


def make(name, group, dim, devices=DEVICES, **options):
    """Return a protocol whose groups have room for vectors up to 1 in magnitude."""
    return find(name)(Parameters(devices, dim, group=group, **PROTOCOLS[name] | options))


def received(protocol, vector, rounds, secrets):
    """Yield the uploads of all devices in rounds with fresh keys and the same vector for all."""
    count, phase = protocol.parameters.devices, protocol.upload_phase()
    if protocol.name in ("assisted", "opa", "pine", "prf"):
        members = enrolled(protocol.name, count, None, "passive", protocol.helpers)
        protocol.join(members, range(count), count)
    steps = [step.name for step in protocol.steps]
    for index in range(rounds):
        sources = {id: Source(secrets(index, id)) for id in range(count)}
        before = steps[steps.index(phase) + 1]
        yield play(
            protocol, np.tile(vector, (count, 1)), index=index, sources=sources, before=before
        ).sent(phase)


def values(protocol, vector, rounds, length, secrets):
    """Return the first `length` words of every upload, ordered by device.

    The last device is left out: in prf the sum of a round's uploads is known, so only all but one
    of them are independent.
    """
    sent = [*received(protocol, vector, rounds, secrets)]
    rows = []
    for id in range(protocol.parameters.devices - 1):
        for uploads in sent:
            upload = np.frombuffer(uploads[id], np.uint8)
            if protocol.name == "sparse":
                upload = upload[locations.decode(upload, protocol.parameters.dim)[1] :]
            if protocol.name == "pine":  # of every value, the lowest 32 of 40 bits
                shares = upload[RELAYED : RELAYED + 5 * length].reshape(-1, 5)
                upload = np.ascontiguousarray(shares[:, :4]).reshape(-1)
            rows.append(upload[: 4 * length].view("<u4"))
    return np.array(rows)


def sent_coordinates(protocol, vector, rounds):
    """Return which coordinates the first device sends in each round, shape (rounds, d)."""
    sent = np.zeros((rounds, protocol.parameters.dim), np.bool_)
    for row, uploads in zip(sent, received(protocol, vector, rounds, system), strict=True):
        row[locations.decode(np.frombuffer(uploads[0], np.uint8), row.size)[0]] = True
    return sent


# The tests


def inspect(first, second, modulus, excess=None):
    """Return a bound of the p-value of every test of uploads of two inputs.

    Both have shape (n, length), n even. Neighbouring rows are uploads of one device in consecutive
    rounds. `modulus` is the number of group elements; some word is likelier than in uniform ones,
    by a factor of at most 1 + `excess`.
    """
    looked_at = {
        "first": first,
        "second": second,
        "pairs of the first": differences(first[0::2], first[1::2], modulus),
        "pairs of the second": differences(second[0::2], second[1::2], modulus),
        "pairs of both": differences(first, second, modulus),
    }
    found = {
        f"{name}, {what}": test(rows) for what, rows in looked_at.items() for name, test in TESTS
    }
    words = 2 * first.size * (WORD / modulus - 1 if excess is None else excess)
    return {name: min(1.0, p * math.exp(words)) for name, p in found.items()}


def alarms(found, false_alarm):
    """Return the tests that raise an alarm, with a joint false-alarm rate of `false_alarm`."""
    return {name for name, p in found.items() if p <= false_alarm / len(found)}


def differences(one, other, modulus):
    """Return the differences modulo `modulus`; masks that are used twice cancel in them."""
    return ((one.astype(np.int64) - other) % modulus).astype(np.uint32)


def byte_frequency(rows):
    """Test the frequencies of bytes at each of the four places of a word."""
    return 4 * min(likelihood_ratio(place) for place in rows.view(np.uint8).reshape(-1, 4).T)


def value_frequency(rows):
    """Test the frequencies of values in 16 parts of the group; few bins show a small slope.

    Also test 16 uploads at a time, because opposite slopes of different devices would cancel.
    """
    leading = (rows >> np.uint32(28)).astype(np.uint8)
    parts = [leading, *(leading[start : start + 16] for start in range(0, len(rows), 16))]
    return len(parts) * min(likelihood_ratio(part.reshape(-1), 16) for part in parts)


def likelihood_ratio(values, bins=256):
    """Return Agrawal's bound for the frequencies of uniform values below `bins`."""
    counts = np.bincount(values, minlength=bins)
    parts = counts[counts > 0] / values.size
    x = float(values.size * (parts * np.log(parts * bins)).sum())
    free = bins - 1
    if x <= free:
        return 1.0
    return math.exp(-x + free * (1 + math.log(x / free)))


def coordinates(rows):
    """Test the count of every bit of every coordinate over the uploads."""
    return smallest(bits_of(rows).sum(axis=0, dtype=np.uint16).astype(np.int64), len(rows))


def compression(rows):
    """Test compression with zlib, upload by upload, coordinate by coordinate, and byte by byte."""
    forms = rows, rows.T, rows.view(np.uint8).reshape(-1, 4).T
    found = []
    for form in forms:
        raw = np.ascontiguousarray(form).tobytes()
        saved = len(raw) - len(zlib.compress(raw, 6))
        found.append(256.0 ** (1 - min(saved, 100)) / 255 if saved > 0 else 1.0)
    return len(found) * min(found)


def bits_of(rows):
    """Return the bits, shape (n, length, 32)."""
    raw = rows.view(np.uint8).reshape(*rows.shape, 4)
    return np.unpackbits(raw, axis=2)


def smallest(ones, coins, part=0.5):
    """Return the smallest two-sided tail of many binomial counts, times their number."""
    low, high = int(ones.min()), int(ones.max())
    tail = min(binom.cdf(low, coins, part), binom.sf(high - 1, coins, part))
    return 2 * ones.size * float(tail)


TESTS = (
    ("byte frequency", byte_frequency),
    ("value frequency", value_frequency),
    ("coordinates", coordinates),
    ("compression", compression),
)


def inspect_locations(first, second, part):
    """Return a bound of the p-value of every test of the locations in uploads of two inputs.

    Both are flags of shape (n, d), of independent rounds. Under the hypothesis every coordinate is
    sent independently with the probability `part`, whatever the vector.
    """
    found = {}
    for what, sent in (("first", first), ("second", second)):
        found |= {
            f"coordinates, {what}": smallest(sent.sum(axis=0), len(sent), part),
            f"uploads, {what}": smallest(sent.sum(axis=1), sent.shape[1], part),
            f"all, {what}": smallest(sent.sum(keepdims=True), sent.size, part),
        }
    return found


# The results of the tests


def structured(dim):
    """Return a vector of extreme values: two constants, alternating ones, a slope."""
    quarter = dim // 4
    parts = [np.ones(quarter), -np.ones(quarter), np.tile([1.0, -1.0], quarter // 2)]
    return np.concatenate([*parts, np.linspace(-1, 1, dim - 3 * quarter)])


def look(name, group, source=system, devices=DEVICES):
    """Return the battery's p-values for a protocol's uploads of zeros and of `structured`."""
    arithmetic = GROUPS[group]
    protocol = make(name, group, DIM, devices, levels=arithmetic.modulus // 32)
    # Values of fewer bits are tested as the 32-bit words in which they are sent.
    length = SHORT.get(name, DIM) * arithmetic.bits // 32
    first, second = (
        values(protocol, vector, ROUNDS, length, source)
        for vector in (np.zeros(DIM), structured(DIM))
    )
    assert first.shape == second.shape == ((devices - 1) * ROUNDS, length)
    if name == "pine":
        return inspect(first, second, WORD, 2**40 / GROUP.modulus - 1)
    return inspect(first, second, arithmetic.modulus if group == "fq" else WORD)


# The configurations of the quick tier: each kind of masks once.
QUICK = {("secagg", "fq"), ("sparse", "fq"), ("prf", "ring32")}


def each(*choices):
    return [pytest.param(*c, marks=() if c in QUICK else pytest.mark.full) for c in choices]


@pytest.mark.parametrize(("name", "group"), each(*MASKED))
def test_uploads_of_two_vectors_cannot_be_told_apart(name, group):
    found = look(name, group)
    assert set() == alarms(found, LEVEL), found


def test_locations_say_nothing_about_the_vector():
    found = look_at_locations()
    assert set() == alarms(found, LEVEL), found


def look_at_locations():
    """Return the battery's p-values for the locations of three devices' uploads."""
    protocol = make("sparse", "fq", 256, devices=3)
    first, second = (
        sent_coordinates(protocol, vector, 60) for vector in (np.zeros(256), structured(256))
    )
    return inspect_locations(first, second, protocol.inclusion)


def broken(change):
    """Return a keystream for masks with changed words; coordinates are selected as usual."""

    def filler(out):
        write = keystream.filler(out)

        def fill(stream):
            write(stream)
            change(out.view("<u4"))

        return fill

    def read(keys, sizes):
        parts = [keystream.read([key], [size]) for key, size in zip(keys, sizes, strict=True)]
        for part in parts:
            change(part.view("<u4"))
        return np.concatenate([*parts, np.empty(0, np.uint8)])

    def no(size):
        return False

    changed = {"filler": filler, "read": read, "at_once": no, "counts": no}
    return SimpleNamespace(**vars(keystream) | changed)


def of_31_bits(words):
    words &= np.uint32(2**31 - 1)


def half_of_the_coordinates(words):
    words[words.size // 2 :] = 0


def one_coordinate_in_the_clear(words):
    words[words.size // 2] = 0


def with_a_period(words):
    words[:] = np.resize(words[:100].copy(), words.size)


BREAKAGES = {
    of_31_bits: {"value frequency"},
    half_of_the_coordinates: {"byte frequency", "coordinates", "compression"},
    one_coordinate_in_the_clear: {"coordinates"},
    with_a_period: {"compression"},
}


def kinds(found):
    """Return the names of the tests without their inputs."""
    return {name.partition(",")[0] for name in found}


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda change: change.__name__)
def test_a_broken_mask_is_seen(breakage, monkeypatch):
    monkeypatch.setattr(groups, "keystream", broken(breakage))
    found = alarms(look("secagg", "fq", devices=4), LEVEL)

    assert BREAKAGES[breakage] <= kinds(found)


@pytest.mark.parametrize("name", ["sparse", "cohort", "prf"])
def test_a_keystream_that_masks_two_uploads_is_seen(name, monkeypatch):
    """Each upload by itself is uniform: only the difference of two shows the fault."""
    context = AggregationProtocol.context
    monkeypatch.setattr(
        AggregationProtocol, "context", lambda self, index: context(self, index // 2)
    )
    seed = secrets.randbits(32)

    def seeded(index, id):
        return insecure_secrets(seed, index, id)

    found = alarms(look(name, "fq", twice(seeded), devices=4), LEVEL)

    assert {"compression, pairs of the first", "byte frequency, pairs of the second"} <= found
    assert "byte frequency, first" not in found


def twice(function):
    """Let the function return the same for rounds 0 and 1, and so on."""
    return lambda index, *rest: function(index // 2, *rest)


def test_locations_that_leave_out_zeros_are_seen(monkeypatch):
    send = sparse.SparseDevice.send_masked_input
    monkeypatch.setattr(
        sparse.SparseDevice,
        "send_masked_input",
        lambda device, vector: without_zeros(send(device, vector), vector),
    )
    found = alarms(look_at_locations(), LEVEL)

    assert "all, first" in found


def without_zeros(payload, vector):
    """Return an upload without a third of the zeros, as if they were not needed."""
    where, used = locations.decode(payload, vector.size)
    kept = (vector[where] != 0) | (where % 3 > 0)
    coded = locations.encode(where[kept], vector.size, "auto")
    return np.concatenate([coded, payload[used:].view("<u4")[kept].view(np.uint8)])
