"""Uploads tell nothing about the vector: the same tests see nothing here, and every broken mask.

The keys are the operating system's, so these tests can alarm by chance. All that expect silence do
so wrongly with a probability of at most `FALSE_ALARM` together, one run of this file in a million:
each of the `CONFIGURATIONS` has an equal part, and so has each p-value within (see `battery`).

What no test of this size can see: masks that are reduced modulo q = 2^32 - 5 instead of rejected.
Five values would be twice as likely, which takes some 10^10 elements to notice; that words are
rejected is tested directly, with small primes (tests/crypto/test_crypto_groups.py). Nor can one
see that one of two masks is missing: either of them hides an upload by itself, and what both are
for shows only when devices vanish. And the sum of many poor masks is a good one: of masks of 31
bits, 4 are seen and 8 are not. Uploads of ckks are values of polynomials: with any
error for a mask they look uniform, and are not looked at.
"""

import secrets
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from battery import alarms, inspect, inspect_locations
from masked_uploads import DEVICES, IN_NO_RING, PROTOCOLS, make, sent_coordinates, values
from masked_uploads import system as system_secrets
from player import seeded

from hpcfl.algorithms import locations
from hpcfl.algorithms.aggregation import prf, sparse
from hpcfl.algorithms.aggregation.secagg import SecAgg
from hpcfl.crypto import groups, keystream
from hpcfl.crypto.groups import GROUPS

FALSE_ALARM = 1e-6
LOOKED_AT = ("fq", "ring32", "ring12")
MASKED = [
    (name, group)
    for name, group in product(PROTOCOLS, LOOKED_AT)
    if group == "fq" or name not in IN_NO_RING
]
CONFIGURATIONS = len(MASKED) + 1
LEVEL = FALSE_ALARM / CONFIGURATIONS

ROUNDS = 16
# Of sparse and cohort, an upload is about half a vector.
DIM = 1024
SHORT = {"sparse": 256, "cohort": 512, "common": 512}


def structured(dim):
    """Return a vector of extreme values: two constants, alternating ones, a slope."""
    quarter = dim // 4
    parts = [np.ones(quarter), -np.ones(quarter), np.tile([1.0, -1.0], quarter // 2)]
    return np.concatenate([*parts, np.linspace(-1, 1, dim - 3 * quarter)])


def look(name, group, source=system_secrets, devices=DEVICES):
    """Return what the battery makes of a protocol's uploads of zeros and of `structured`."""
    arithmetic = GROUPS[group]
    protocol = make(name, group, DIM, devices, levels=arithmetic.modulus // 32)
    # Values of fewer bits are looked at as the words of 32 bits that they are sent in.
    length = SHORT.get(name, DIM) * arithmetic.bits // 32
    first, second = (
        values(protocol, vector, ROUNDS, length, source)
        for vector in (np.zeros(DIM), structured(DIM))
    )
    assert first.shape == second.shape == ((devices - 1) * ROUNDS, length)
    return inspect(first, second, arithmetic.modulus if group == "fq" else 2**32)


# What the quick tier looks at: each kind of masks and each group once.
QUICK = {("secagg", "fq"), ("sparse", "fq"), ("prf", "ring32"), ("secagg", "ring12")}


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
    """Return what the battery makes of where three devices send zeros and `structured`."""
    protocol = make("sparse", "fq", 256, devices=3)
    first, second = (
        sent_coordinates(protocol, vector, 120) for vector in (np.zeros(256), structured(256))
    )
    return inspect_locations(first, second, protocol.inclusion)


def broken(change):
    """Return a keystream for masks whose words are changed; coordinates are selected as ever."""

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

    return SimpleNamespace(**vars(keystream) | {"filler": filler, "read": read})


def no_mask(words):
    words[:] = 0


def of_31_bits(words):
    words &= np.uint32(2**31 - 1)


def half_of_the_coordinates(words):
    words[words.size // 2 :] = 0


def one_coordinate_in_the_clear(words):
    words[words.size // 2] = 0


def with_a_period(words):
    words[:] = np.resize(words[:100].copy(), words.size)


BREAKAGES = {
    no_mask: {"byte frequency", "compression", "regression on bits"},
    of_31_bits: {"value frequency"},
    half_of_the_coordinates: {"byte frequency", "coordinates", "compression"},
    one_coordinate_in_the_clear: {"coordinates"},
    with_a_period: {"compression"},
}


def kinds(found):
    """Return the tests without what they looked at."""
    return {name.partition(",")[0] for name in found}


@pytest.mark.parametrize("group", ["fq", pytest.param("ring32", marks=pytest.mark.full)])
@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda change: change.__name__)
def test_a_broken_mask_is_seen(breakage, group, monkeypatch):
    monkeypatch.setattr(groups, "keystream", broken(breakage))
    found = alarms(look("secagg", group, devices=4), LEVEL)

    assert BREAKAGES[breakage] <= kinds(found)


@pytest.mark.parametrize("name", ["sparse", "cohort", "prf"])
def test_a_keystream_that_masks_two_uploads_is_seen(name, monkeypatch):
    """Each upload by itself is uniform: only the difference of two shows it."""
    for method in ("pair_context", "private_mask_key"):
        monkeypatch.setattr(SecAgg, method, without_round(getattr(SecAgg, method)))
    monkeypatch.setattr(prf, "round_context", twice(prf.round_context))
    found = alarms(look(name, "fq", twice(seeded(secrets.randbits(32))), devices=4), LEVEL)

    assert {"compression, pairs of the first", "byte frequency, pairs of the second"} <= found
    assert "byte frequency, first" not in found


def twice(function):
    """Let rounds 0 and 1 have the same, and so on."""
    return lambda index, *rest: function(index // 2, *rest)


def without_round(method):
    return lambda self, index, *rest: method(self, index // 2, *rest)


def test_locations_that_leave_out_zeros_are_seen(monkeypatch):
    send = sparse.SparseDevice.send_masked_input
    monkeypatch.setattr(
        sparse.SparseDevice,
        "send_masked_input",
        lambda device, vector: without_zeros(send(device, vector), vector),
    )
    found = alarms(look_at_locations("gaps"), LEVEL)

    assert {"all, first", "regression"} <= found


def without_zeros(payload, vector):
    """Return an upload that leaves out a third of the zeros: nobody needs them."""
    where, used = locations.decode(payload, vector.size)
    kept = (vector[where] != 0) | (where % 3 > 0)
    coded = locations.encode(where[kept], vector.size, "auto")
    return np.concatenate([coded, payload[used:].view("<u4")[kept].view(np.uint8)])
