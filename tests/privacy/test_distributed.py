from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from tiers import examples

from hpcfl.privacy.accounting import distributed, zcdp
from hpcfl.privacy.distributions import Floats

# Far enough for the orders and shifts below, for every sum below.
REACH = 120
INTEGERS: Floats = np.arange(-REACH, REACH + 1.0)


def log_gaussian(x, sigma):
    """Return the log-probabilities of the discrete Gaussian at integers x."""
    wide = np.arange(-2000, 2001)
    return -(x**2) / (2 * sigma**2) - logsumexp(-(wide**2) / (2 * sigma**2))


@lru_cache
def log_sum(summands, sigma):
    """Return the log-probabilities of a sum of discrete Gaussians at :data:`INTEGERS`.

    In logarithms, as high orders ask for tails that no float can hold.
    """
    found = log_gaussian(INTEGERS, sigma)
    step = log_gaussian(INTEGERS[:, None] - INTEGERS[None, :], sigma)
    for _ in range(summands - 1):
        found = logsumexp(step + found[None, :], axis=1)
    return found


@pytest.mark.parametrize("summands", [1, 2, 3, 1000, 1001, 1002, 5000])
@pytest.mark.parametrize("sigma", [0.5, 1.7])
def test_divergence_is_the_sum_of_its_terms(summands, sigma):
    terms = [10 * math.exp(-2 * math.pi**2 * sigma**2 * k / (k + 1)) for k in range(1, summands)]
    found = distributed.divergence(summands, sigma)

    assert found >= math.fsum(terms) * (1 - 1e-12)
    # A thousand terms are added up, and those behind them bounded by the first of these.
    more = 0 if summands <= 1001 else 2 * math.pi**2 * sigma**2 / 1000
    assert found == pytest.approx(math.fsum(terms), rel=1e-12 + more)


@pytest.mark.parametrize("summands", [2, 4])
@pytest.mark.parametrize("sigma", [0.5, 1.0, 1.4])
def test_divergence_bounds_every_ratio_of_probabilities(summands, sigma):
    # Of the sum to one discrete Gaussian of the same width.
    one = log_gaussian(INTEGERS, math.sqrt(summands) * sigma)
    inner = np.abs(INTEGERS) < REACH // 2
    apart = np.abs(log_sum(summands, sigma) - one)[inner].max()
    bound = distributed.divergence(summands, sigma)

    assert apart <= bound + 1e-11
    if summands == 2 and sigma <= 1:
        assert apart > bound / 6  # neither is it far off


def rounded_gaussian(mean, variance, width):
    """Return the chances of integers when N(mean, variance) is rounded, by integration."""
    y = np.linspace(-12 * math.sqrt(variance), 12 * math.sqrt(variance), 4001) + mean
    near = np.arange(math.floor(y[0]) - 12, math.ceil(y[-1]) + 13)
    chances = np.exp(-0.5 * ((near[:, None] - y) / width) ** 2)
    chances /= chances.sum(axis=0)
    density = np.exp(-0.5 * (y - mean) ** 2 / variance)
    return dict(zip(near, chances @ (density / density.sum()), strict=True))


@pytest.mark.parametrize(("width", "mean"), [(0.4, 0), (0.5, 3), (2.0, 3)])
def test_a_rounded_gaussian_is_all_but_a_discrete_one(width, mean, monkeypatch):
    monkeypatch.setattr(distributed, "_SMOOTHING", width)
    sigma = 3.0
    variance = distributed.gaussian_variance(sigma)
    rounded = rounded_gaussian(mean, variance, width)
    discrete = log_gaussian(INTEGERS - mean, sigma)
    apart = max(
        abs(math.log(rounded[k]) - discrete[INTEGERS == k][0]) for k in range(mean - 10, mean + 11)
    )

    assert variance == pytest.approx(9 - width**2)
    assert apart <= distributed.smoothing_divergence() + 1e-9
    if width < 0.5:
        assert apart > 1e-3  # so that something is needed


def test_what_is_near_a_gaussian_costs_little_more():
    # P and Q are Gaussians, P raised by exp(t) where it is larger and Q lowered there, and scaled.
    x = np.linspace(-12, 13, 100_001)
    p, q = (np.exp(-0.5 * (x - m) ** 2) for m in (1, 0))
    sign = np.where(x > 2, 1.0, -1.0)
    p, q = p * np.exp(0.01 * sign), q * np.exp(-0.01 * sign)
    p, q = p / p.sum(), q / q.sum()
    apart = 0.02  # the scales are within another 0.01
    found = distributed.nearly_gaussian_epsilon(0.5, apart, 1e-3)

    assert np.clip(p - math.exp(found) * q, 0, None).sum() <= 1e-3
    less = zcdp.exact_epsilon(0.5, 1e-3)
    assert np.clip(p - math.exp(less) * q, 0, None).sum() > 1e-3
    assert distributed.nearly_gaussian_epsilon(0.5, 1.0, 1e-3) == math.inf
    assert distributed.nearly_gaussian_epsilon(0.5, 0.0, 1e-3) == less


@given(
    values=st.lists(st.floats(-1e4, 1e4), min_size=2, max_size=40),
    drawn=st.lists(st.floats(0, 1, exclude_max=True), min_size=20, max_size=20),
)
@settings(max_examples=examples(200))
def test_rounding_moves_two_vectors_apart_by_no_more(values, drawn):
    """With the same random numbers, as accounts of noisy steps have it."""
    one, other = np.array(values[: len(values) // 2 * 2]).reshape(2, -1)
    numbers = np.array(drawn[: one.size])
    apart = np.linalg.norm(np.floor(one + numbers) - np.floor(other + numbers))
    most = distributed.rounded_distance(float(np.linalg.norm(one - other)), one.size)

    assert apart <= most * (1 + 1e-12)


def test_no_vector_of_a_norm_has_a_larger_mean_square_when_it_is_rounded(monkeypatch):
    """Equal coordinates below 1/2, and halves, reach what is charged, without room for chance."""
    monkeypatch.setattr(distributed, "_TOO_LONG", 1.0)
    generator = np.random.default_rng(1)
    shares = []
    for norm in np.tile(np.geomspace(0.01, 100, 20), 100):
        power = generator.choice([0, 0.1, 1, 9])
        x = generator.exponential(size=generator.integers(1, 60)) ** power
        x[generator.integers(1, x.size + 1) :] = 0
        for vector in (x * norm / np.linalg.norm(x), np.floor(x * norm) + 0.5):
            below, part = np.floor(vector), vector % 1
            mean = float(((1 - part) * below**2 + part * (below + 1) ** 2).sum())
            most = distributed.rounded_norm(float(np.linalg.norm(vector)), vector.size) ** 2
            shares.append(mean / most)
    assert 1 - 1e-12 < max(shares) < 1 + 1e-12
    assert distributed.rounded_norm(15, 165_000) ** 2 == pytest.approx(math.sqrt(165_000) * 15)


def test_rounding_seldom_makes_a_vector_longer_than_the_norm_at_any_coordinate(monkeypatch):
    """With one in ten allowed: 10 % of 2,000 are exceeded by 300 with less than 1e-12."""
    monkeypatch.setattr(distributed, "_TOO_LONG", 0.1)
    generator = np.random.default_rng(1)
    halves, normal = np.full(400, 0.5), generator.normal(0, 3, 400)
    for vector in (np.full(400, 0.05), halves, normal, np.full(400, 20.5)):
        norm = float(np.linalg.norm(vector))
        room = distributed.rounded_norm(norm, vector.size) ** 2 - norm**2
        rounded = np.floor(vector + generator.random((2000, vector.size)))
        lengthened = np.cumsum(rounded**2 - vector**2, axis=1).max(axis=1)

        assert np.count_nonzero(lengthened > room) < 300
        # Not idle: it is exceeded by a little more.
        assert lengthened.max() > room / 2


@pytest.mark.parametrize("summands", [1, 3])
def test_an_epsilon_holds_for_the_sum_of_discrete_gaussians_and_hardly_more_is_charged(summands):
    """Two rounds, of the same integers moved by 1."""
    found, _ = distributed.epsilon([summands] * 2, 8.0, 1, 1.0, 1e-5)
    once = np.exp(log_sum(summands, 8.0))
    p, q = np.outer(once[:-1], once[:-1]), np.outer(once[1:], once[1:])

    def delta(epsilon):
        return float(np.clip(p - math.exp(epsilon) * q, 0, None).sum())

    assert delta(found) <= 1e-5 < delta(found / 1.1)
    assert distributed.epsilon([], 8.0, 1, 1.0, 1e-5)[0] == 0
    assert distributed.epsilon([summands, 0], 8.0, 1, 1.0, 1e-5)[0] == math.inf
    # Narrow noise of several proves nothing.
    assert distributed.gaussian_variance(0.49, 2) == 0
    assert (distributed.divergence(2, 0.49), distributed.divergence(1, 0.3)) == (math.inf, 0)
