import math

import numpy as np
import pytest
from scipy import stats

from hpcfl.crypto import keystream
from hpcfl.crypto.keys import insecure_secrets
from hpcfl.crypto.noise import (
    FastNoise,
    SecureNoise,
    gaussian_of,
    laplace_of,
)

# Seeds are fixed; with others, a test fails with this probability although all is right.
FALSE_ALARM = 1e-6
SIZE = 100_001  # odd, and not a whole number of blocks


def sources():
    return [
        SecureNoise(insecure_secrets(1, 2, 3)),
        FastNoise(np.random.SeedSequence(5)),
    ]


@pytest.mark.parametrize("source", sources(), ids=["secure", "fast"])
@pytest.mark.parametrize(
    ("kind", "law", "width", "far", "tail"),
    [
        ("gaussian", "norm", 0.25, 3, 2 * stats.norm.sf(3)),
        ("laplace", "laplace", 3.0, 8, math.exp(-8)),
    ],
)
def test_noise_has_its_law_and_width_and_is_new_at_every_call(source, kind, law, width, far, tail):
    draw = getattr(source, kind)
    noise = draw(SIZE, width)
    assert (SIZE,) == noise.shape
    assert stats.kstest(noise, law, args=(0, width)).pvalue > FALSE_ALARM
    beyond = int((np.abs(noise) > far * width).sum())
    assert stats.binomtest(beyond, SIZE, tail).pvalue > FALSE_ALARM
    assert not np.isin(draw(1000, width), noise).any()


def test_noise_follows_from_its_key_or_seed_alone():
    def secure(seed):
        return SecureNoise(insecure_secrets(seed, 0, 0)).gaussian(100, 1.0)

    def fast(seed):
        return FastNoise(np.random.SeedSequence(seed)).laplace(100, 2.0)

    for draw in (secure, fast):
        assert np.array_equal(draw(7), draw(7))
        assert not np.isin(draw(7), draw(8)).any()
    # The words are those of the keystream, block for block, and no two alike.
    noise = SecureNoise(lambda count: bytes(count)).laplace(20_001, 1.0)
    words = keystream.read([bytes(16)], [8 * 20_001]).view("<u8")
    assert np.array_equal(noise, laplace_of(words))


def test_no_word_gives_a_number_that_is_not_finite():
    extremes = np.array([0, 2**64 - 1, 2**63, 1], np.uint64)
    numbers = np.empty(4)
    for shift in range(4):
        gaussian_of(np.roll(extremes, shift), numbers)
        assert np.isfinite(numbers).all()
    assert np.isfinite(laplace_of(extremes)).all()


def test_gaussian_numbers_are_those_of_box_and_muller():
    # Words of all sizes, so that none of their 64 bits may be left out of the logarithm.
    powers = [2**bits - 1 for bits in range(64)]
    turns = [word * 0x9E3779B97F4A7C15 % 2**64 for word in range(64)]
    numbers = np.empty(128)
    gaussian_of(np.array(powers + turns, np.uint64), numbers)
    for k, (power, turn) in enumerate(zip(powers, turns, strict=True)):
        radius = math.sqrt(-2 * math.log((power + 1) / 2**64))
        angle = 2 * math.pi * turn / 2**64
        expected = [radius * math.cos(angle), radius * math.sin(angle)]
        assert expected == pytest.approx([numbers[k], numbers[64 + k]], abs=1e-13)


def test_laplace_numbers_are_the_inverse_of_their_distribution():
    for bits in range(1, 64):
        plus, minus = laplace_of(np.array([2**bits - 2, 2**bits - 1], np.uint64))
        assert (64 - bits) * math.log(2) == pytest.approx(plus)
        assert minus == -plus
