"""What the server sees of one vector is noise.

The keys are the operating system's, new in every run of these tests. Every statistic is a
chi-square test at the level 5e-9; there are 150 in this file, so that together they raise a
false alarm with a probability below 1e-6. The vectors are constant: nothing in them could make an
upload look random.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from numpy.typing import NDArray
from protocol_rounds import UPLOADING, Source, make, play
from scipy import stats
from slow_reference import SlowRound

LEVEL = 5e-9
DEVICES, DIM = 3, 24_000
GROUPS = ("fq", "ring32")
Values = NDArray[np.int64]


def assert_uniform(values, modulus):
    """Assert that group elements are uniform: each of their bytes, and their size.

    In F_q a byte is off from uniform by less than 5 / 2**32, which 24,000 values cannot show.
    """
    assert values.size > 15_000
    assert values.min() >= 0
    assert values.max() < modulus
    for shift in (0, 8, 16, 24):
        assert stats.chisquare(np.bincount(values >> shift & 255, minlength=256)).pvalue > LEVEL
    parts = values * 500 // modulus
    assert stats.chisquare(np.bincount(parts, minlength=500)).pvalue > LEVEL


def play_with_system_keys(name, group):
    protocol = make(name, DEVICES, DIM, alpha=1.0, group=group, sampler="dense")
    sources = {id: Source(os.urandom) for id in range(DEVICES)}
    played = play(protocol, np.ones((DEVICES, DIM)), sources=sources)
    return played, SlowRound(played)


def values_of(played, device):
    content = played.sent("masked_input")[device]
    if played.protocol.name == "sparse":
        sent = int.from_bytes(content[4:8], "little")
        content = content[len(content) - 4 * sent :]
    return np.frombuffer(content, "<u4").astype(np.int64)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("name", UPLOADING)
def test_an_upload_is_uniform_and_stays_so_when_either_of_its_masks_is_known(name, group):
    """Private masks are known to the server after the round, a late device's pairwise ones too."""
    played, slow = play_with_system_keys(name, group)
    values, where = values_of(played, 1), slow.u(1)
    private = np.array(slow.private_mask(1)[: len(where)], np.int64)
    pairwise = np.array([slow.pairwise(1, k) for k in where], np.int64)

    assert_uniform(values, slow.modulus)
    assert_uniform((values - private) % slow.modulus, slow.modulus)
    assert_uniform((values - pairwise) % slow.modulus, slow.modulus)
    # With both masks known the vector is there: nothing else hides it.
    plain = {
        slow.signed(value) for value in ((values - private - pairwise) % slow.modulus).tolist()
    }
    assert len(plain) <= 2


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("name", UPLOADING)
def test_two_uploads_of_the_same_vector_have_nothing_in_common(name, group):
    (one, slow), (other, _) = play_with_system_keys(name, group), play_with_system_keys(name, group)
    first, second = values_of(one, 1), values_of(other, 1)
    common = min(first.size, second.size)

    assert_uniform((first[:common] - second[:common]) % slow.modulus, slow.modulus)
    # A value appears at the same place in both with a probability of 24,000 / 2**32.
    assert np.count_nonzero(first[:common] == second[:common]) <= 2


@pytest.mark.parametrize("group", GROUPS)
def test_secagg_shows_no_sum_of_a_part_of_the_devices(group):
    """The server knows all private masks in the end; only all devices' sum may then be plain."""
    played, slow = play_with_system_keys("secagg", group)
    stripped = {
        id: (values_of(played, id) - np.array(slow.private_mask(id), np.int64)) % slow.modulus
        for id in range(DEVICES)
    }
    for left_out in range(DEVICES):
        part = sum(stripped[id] for id in range(DEVICES) if id != left_out)
        assert_uniform(part % slow.modulus, slow.modulus)
    total = sum(stripped.values()) % slow.modulus
    assert [slow.signed(value) for value in total.tolist()] == played.server.total.tolist()
