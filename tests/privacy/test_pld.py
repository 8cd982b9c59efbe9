"""Privacy loss distributions against integrals, enumeration, closed forms and dp-accounting."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from hpcfl.privacy.accounting import pld, sampling, zcdp


def by_dp_accounting(rate, z, count, delta, width, up):
    one = privacy_loss_distribution.from_gaussian_mechanism(
        z, pessimistic_estimate=up, value_discretization_interval=width, sampling_prob=rate,
        use_connect_dots=up,
    )  # fmt: skip
    return float(one.self_compose(count).get_epsilon_for_delta(delta))


def poisson(rate, z, count, delta):
    pairs = (pld.removal(rate, z), pld.addition(rate, z))
    return max(pld.epsilon(pair, count, delta) for pair in pairs)


@pytest.mark.parametrize(
    ("rate", "z", "count", "delta"),
    [
        (0.2, 1.32, 100, 1e-5),
        (0.01, 0.5, 50, 1e-6),
        (0.5, 10.0, 7, 1e-3),
        (1.0, 3.0, 20, 1e-5),
        (0.05, 0.02, 10, 1e-5),  # hardly any noise
    ],
)
def test_poisson_samples_are_dp_accountings(rate, z, count, delta):
    found = poisson(rate, z, count, delta)
    width = found * 2e-4
    upper = by_dp_accounting(rate, z, count, delta, width, up=True)
    lower = by_dp_accounting(rate, z, count, delta, width / 2, up=False)

    assert lower <= found <= upper * (1 + 5e-4)


@pytest.mark.parametrize("count", [1, 10**6])
@pytest.mark.parametrize("delta", [0.3, 1e-5, 1e-40])
def test_gaussians_are_exact_at_any_delta(count, delta):
    z = 2.5 * math.sqrt(count)
    exact = zcdp.exact_epsilon(count * zcdp.gaussian_rho(z), delta)

    assert exact <= pld.epsilon(pld.removal(1.0, z), count, delta) <= exact * (1 + 4e-4) + 1e-12
    assert pld.epsilon(pld.removal(1.0, z), count, delta) == pytest.approx(
        pld.epsilon(pld.addition(1.0, z), count, delta), rel=1e-4
    )


def profile(pair, epsilons):
    """Return the hockey-stick divergences of a pair from its masses."""
    p, q = pair.masses(np.concatenate([[-np.inf], epsilons, [np.inf]]))
    above_p, above_q = (np.cumsum(one[::-1])[::-1][1:] for one in (p, q))
    return above_p - np.exp(epsilons) * above_q


@pytest.mark.parametrize(("rate", "z"), [(0.2, 0.66), (0.7, 1.2)])
def test_profile_of_a_replacement_is_the_theorems_and_a_pairs(rate, z):
    def gaussians(epsilon):
        return norm.cdf(1 / (2 * z) - z * epsilon) - np.exp(epsilon) * norm.cdf(
            -1 / (2 * z) - z * epsilon
        )

    epsilons = np.linspace(-4, 4, 801)
    found = profile(pld.replacement(rate, z), epsilons)

    def above(epsilon):
        return rate * gaussians(np.log1p(np.expm1(epsilon) / rate))

    inner = np.where(epsilons >= 0, epsilons, -epsilons)
    expected = np.where(
        epsilons >= 0, above(inner), -np.expm1(epsilons) + np.exp(epsilons) * above(inner)
    )
    assert found == pytest.approx(expected, abs=1e-12)
    # Of some pair: convex and not increasing in exp(epsilon), and from 1 - exp(epsilon) to 1.
    slopes = np.diff(found) / np.diff(np.exp(epsilons))
    assert (np.diff(slopes) > -1e-9).all()
    assert (slopes <= 1e-12).all()
    assert (found >= np.maximum(0, -np.expm1(epsilons)) - 1e-12).all()
    assert (found <= 1).all()
    p, q = pld.replacement(rate, z).masses(np.array([-np.inf, np.inf]))
    assert (p[0], q[0]) == pytest.approx((1, 1), abs=1e-12)


@pytest.mark.parametrize(("z", "count", "delta"), [(20.0, 100, 1e-5), (0.5, 3, 1e-3), (2, 2, 0.01)])
def test_laplace_is_dp_accountings(z, count, delta):
    found = pld.epsilon(pld.laplace(z), count, delta)
    one = privacy_loss_distribution.from_laplace_mechanism(z, value_discretization_interval=1e-4)

    assert found == pytest.approx(one.self_compose(count).get_epsilon_for_delta(delta), rel=1e-4)
    assert pld.epsilon(pld.laplace(z), 1, 1e-3) == pytest.approx(
        max(0.0, 1 / z + 2 * math.log1p(-1e-3)), rel=1e-6
    )


@pytest.mark.parametrize(
    "pair", [pld.removal(0.2, 1.32), pld.addition(0.2, 1.32), pld.replacement(0.2, 0.66)]
)
def test_coarse_grids_err_upwards(pair):
    low, high = pair.span(1e-20)
    found = [
        grid.epsilon(10, 1e-5, grid.best_tilt(10, 1e-5))
        for grid in (pld.Grid.of(pair, low, high, width) for width in (0.3, 0.1, 0.03, 0.003))
    ]

    assert found == sorted(found, reverse=True)
    assert found[2] < 1.05 * found[3]


def test_every_tilt_gives_the_same_and_losses_beyond_the_grid_count_as_infinite():
    pair = pld.removal(0.2, 1.32)
    cut = pld.Grid.of(pair, *pair.span(2e-7), 0.003)  # 2e-7, ten times, of a delta of 1e-5
    whole = pld.Grid.of(pair, *pair.span(1e-20), 0.003)
    tilt = whole.best_tilt(10, 1e-5)
    right = whole.epsilon(10, 1e-5, tilt)

    for factor in (0.8, 1.3):
        assert whole.epsilon(10, 1e-5, factor * tilt) == pytest.approx(right, rel=1e-4)
    assert 0 < cut.beyond < 2.1e-7
    assert cut.epsilon(10, 1e-5, tilt) > right
    assert cut.epsilon(10, 9 * cut.beyond, tilt) == math.inf


@pytest.mark.parametrize("make", [pld.removal, pld.addition, pld.replacement])
@pytest.mark.parametrize(("rate", "z"), [(0.3, 0.02), (1e-6, 1.0), (0.999, 1e5)])
def test_masses_add_up_and_losses_are_ratios(make, rate, z):
    pair = make(rate, z)
    low, high = pair.span(1e-12)
    pad = 1e-9 + 1e-6 * (high - low)  # a largest or smallest loss may have most of the mass
    edges = np.linspace(low - pad, high + pad, 50)
    p, q = pair.masses(np.concatenate([[-np.inf], edges, [np.inf]]))

    assert p.sum() == pytest.approx(1, abs=1e-9)
    assert q.sum() == pytest.approx(1, abs=1e-9)
    assert p[0] <= 1.1e-12
    assert p[-1] <= 1.1e-12
    # Between two losses the ratio of the masses is between their exponentials.
    inner_p, inner_q = p[1:-1], q[1:-1]
    seen = (inner_p > 1e-6) & (inner_q > 1e-290)
    ratio = np.log(inner_p[seen]) - np.log(inner_q[seen])
    slack = 1e-8 * max(1.0, abs(low), abs(high))
    assert (ratio >= edges[:-1][seen] - slack).all()
    assert (ratio <= edges[1:][seen] + slack).all()


# --- Sampled mechanisms ---


@given(rate=st.floats(0.01, 0.9), z=st.floats(0.4, 8), rounds=st.integers(1, 50))
def test_sampling_never_costs(rate, z, rounds):
    plain = zcdp.exact_epsilon(rounds * zcdp.gaussian_rho(z), 1e-5)
    for account in (sampling.fixed_size_gaussian, sampling.poisson_gaussian):
        assert account(rate, z, rounds, 1e-5)[0] <= plain
        assert account(1.0, z, rounds, 1e-5)[0] == plain
        assert account(rate, z, 0, 1e-5)[0] == 0


def test_laplace_releases_cost_no_more_than_their_sum():
    pure, method = sampling.laplace(300, 3, 0)
    assert (pure, method) == (0.01, "pure, by adding up")
    # The losses are all the largest with the probability 1 / 8, so that delta is at least
    # (1 - exp(epsilon - 3 / z)) / 8.
    assert sampling.laplace(300, 3, 1e-10) == (pure, method)
    # The losses of 1e9 releases are nearly Gaussian: mu = sqrt(rounds) / z.
    nearly = zcdp.exact_epsilon(1e9 / 999**2 / 2, 1e-5)
    assert 0.999 * nearly < sampling.laplace(999, 10**9, 1e-5)[0] < 1.04 * nearly
