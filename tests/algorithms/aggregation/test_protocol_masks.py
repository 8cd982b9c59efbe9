"""What the server sees of one vector is noise.

The keys are the operating system's, new in every run of these tests. Every statistic is a
chi-square test at the level 5e-9; there are 160 in this file, so that together they raise a
false alarm with a probability below 1e-6. The vectors are constant: nothing in them could make an
upload look random.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from protocol_rounds import UPLOADING, Source, make, play
from scipy import stats
from slow_reference import SlowRound, bits_of, unpacked

LEVEL = 5e-9
DEVICES, DIM = 3, 24_000


def assert_uniform(values, modulus):
    """Assert that group elements are uniform: each of their bytes, and their size.

    In F_q a byte is off from uniform by less than 5 / 2**32, which 24,000 values cannot show.
    """
    assert values.size > 15_000
    assert values.min() >= 0
    assert values.max() < modulus
    for shift in range(0, bits_of(modulus) - 7, 8):
        assert stats.chisquare(np.bincount(values >> shift & 255, minlength=256)).pvalue > LEVEL
    parts = values * 500 // modulus
    assert stats.chisquare(np.bincount(parts, minlength=500)).pvalue > LEVEL


def play_with_system_keys(name, group):
    options = {"alpha": 1.0, "group": group, "sampler": "dense", "levels": 2**13}
    protocol = make(name, DEVICES, DIM, **options)
    sources = {id: Source(os.urandom) for id in range(DEVICES)}
    return play(protocol, np.ones((DEVICES, DIM)), sources=sources)


def values_of(played, device, count):
    content = played.sent("masked_input")[device]
    return np.array(unpacked(content, count, played.protocol.summed_in.modulus))


@pytest.mark.parametrize("group", ["fq", "ring32", "ring16"])
@pytest.mark.parametrize("name", UPLOADING)
def test_an_upload_is_uniform_and_stays_so_when_either_of_its_masks_is_known(name, group):
    """Private masks are known to the server after the round, a late device's pairwise ones too.

    And so is its difference to that of another round with the same vector.
    """
    played, again = play_with_system_keys(name, group), play_with_system_keys(name, group)
    slow = SlowRound(played)
    where = slow.u(1)
    values, other = (
        values_of(played, 1, len(where)),
        values_of(again, 1, len(SlowRound(again).u(1))),
    )
    private = np.array(slow.private_mask(1)[: len(where)], np.int64)
    pairwise = np.array([slow.pairwise(1, k) for k in where], np.int64)
    common = min(values.size, other.size)

    assert_uniform((values - private) % slow.modulus, slow.modulus)
    assert_uniform((values - pairwise) % slow.modulus, slow.modulus)
    assert_uniform((values[:common] - other[:common]) % slow.modulus, slow.modulus)
    repeated = stats.poisson.isf(LEVEL, common / slow.modulus)
    assert np.count_nonzero(values[:common] == other[:common]) <= repeated
    # With both masks known the vector is there: nothing else hides it.
    bare = np.unique((values - private - pairwise) % slow.modulus)
    assert len({slow.signed(value) for value in bare.tolist()}) <= 2
