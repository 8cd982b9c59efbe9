import numpy as np
import pytest
from scipy import stats

from hpcfl.crypto import discrete_gaussian as module
from hpcfl.crypto.discrete_gaussian import LARGEST_SIGMA, discrete_gaussian

# All seeds are fixed: a test either holds or does not. With another seed, each fails with this
# probability although all is right.
FALSE_ALARM = 1e-6
SIZE = 200_000


def probabilities(sigma):
    """Return integers and their probabilities, from the definition."""
    values = np.arange(-12 * sigma, 12 * sigma + 1)
    weights = np.exp(-(values.astype(float) ** 2) / (2 * sigma**2))
    return values, weights / weights.sum()


def binned(samples, sigma):
    """Return observed and expected numbers in bins of at least 20 expected samples."""
    values, probability = probabilities(sigma)
    observed = np.bincount(samples + 12 * sigma, minlength=values.size)
    width = max(1, sigma // 20)
    starts = np.arange(0, values.size, width)
    seen, expected = np.add.reduceat(observed, starts), np.add.reduceat(probability, starts)
    expected = expected * samples.size
    often = expected > 20
    return (
        np.append(seen[often], seen[~often].sum()),
        np.append(expected[often], expected[~often].sum()),
    )


@pytest.mark.parametrize("sigma", [1, 2, 97])
def test_samples_have_the_probabilities_of_the_definition(sigma):
    samples = discrete_gaussian(b"discrete gauss 1", SIZE, sigma)
    assert stats.chisquare(*binned(samples, sigma)).pvalue > FALSE_ALARM


@pytest.mark.parametrize("sigma", [10**5 + 3, LARGEST_SIGMA])
def test_wide_ones_are_gaussian_to_the_tails(sigma):
    samples = discrete_gaussian(b"discrete gauss 2", SIZE, sigma)
    assert stats.kstest(samples / sigma, "norm").pvalue > FALSE_ALARM
    for far in (3, 4):
        beyond = int((np.abs(samples) > far * sigma).sum())
        assert stats.binomtest(beyond, SIZE, 2 * stats.norm.sf(far)).pvalue > FALSE_ALARM
    # All residues come alike: no digit is lost.
    assert stats.chisquare(np.bincount(samples % 16)).pvalue > FALSE_ALARM


def test_samples_follow_from_the_seed_and_do_not_depend_on_each_other():
    first = discrete_gaussian(b"a" * 16, 50_000, 30)
    assert np.array_equal(first, discrete_gaussian(b"a" * 16, 50_000, np.int32(30)))
    assert abs(np.corrcoef(first, discrete_gaussian(b"b" * 16, 50_000, 30))[0, 1]) < 0.03
    samples = discrete_gaussian(b"discrete gauss 5", SIZE, 8).astype(float)
    for lag in (1, 2, 1 << 13):
        correlation = np.corrcoef(samples[:-lag], samples[lag:])[0, 1]
        assert abs(correlation) < 5 / np.sqrt(SIZE)


@pytest.mark.parametrize("sigma", [0, 2**27 + 1, 2.0])
def test_what_cannot_be_drawn_is_refused(sigma):
    with pytest.raises((TypeError, ValueError)):
        discrete_gaussian(bytes(16), 4, sigma)


def test_words_above_the_largest_multiple_are_replaced_until_none_is_left(monkeypatch):
    bound = 3 * 2**61
    largest = 2 * bound
    draws = [[largest, 5, largest - 1, 2**64 - 1], [largest, bound + 2], [7]]

    def words(stream, count):
        drawn = draws.pop(0)
        assert len(drawn) == count
        return np.array(drawn, np.uint64)

    monkeypatch.setattr(module, "uniform_words", words)
    assert module._Source(bytes(16)).below(bound, 4).tolist() == [7, 5, bound - 1, 2]
    assert not draws
