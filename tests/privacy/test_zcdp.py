import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from hpcfl.privacy.accounting import zcdp

RHOS = st.floats(1e-4, 200)
DELTAS = st.floats(1e-12, 0.2)


def hockey_stick(epsilon, rho):
    """Integrate the positive part of p - exp(epsilon) q for p = N(mu, 1), q = N(0, 1)."""
    mu = math.sqrt(2 * rho)
    start = epsilon / mu + mu / 2  # where the densities' ratio is exp(epsilon)

    def excess(x):
        return float(norm.pdf(x - mu) - math.exp(epsilon + norm.logpdf(x)))

    return quad(excess, start, start + 40, epsabs=0, epsrel=1e-10, limit=200)[0]


@pytest.mark.parametrize(
    ("epsilon", "rdp_epsilon", "exact_epsilon"),
    [(1, 0.776, 0.694), (2, 1.640, 1.479), (5, 4.369, 3.982), (10, 9.092, 8.357)],
)
def test_conversions_at_delta_1e_4(epsilon, rdp_epsilon, exact_epsilon):
    rho = (math.sqrt(math.log(1e4) + epsilon) - math.sqrt(math.log(1e4))) ** 2

    assert zcdp.bun_steinke_epsilon(rho, 1e-4) == pytest.approx(epsilon, rel=1e-12)
    assert zcdp.rdp_epsilon(rho, 1e-4) == pytest.approx(rdp_epsilon, abs=6e-4)
    assert zcdp.exact_epsilon(rho, 1e-4) == pytest.approx(exact_epsilon, abs=6e-4)


@pytest.mark.parametrize("rho", [0.005, 1.8, 20])
def test_hockey_stick_is_the_integral(rho):
    for part in (0, 0.3, 1, 1.5):
        epsilon = part * zcdp.bun_steinke_epsilon(rho, 1e-4)
        expected = math.log(hockey_stick(epsilon, rho))
        assert zcdp.log_hockey_stick(epsilon, rho) == pytest.approx(expected, abs=1e-6)


def test_hockey_stick_is_smooth_where_its_formula_changes_and_keeps_digits():
    # Where exp(epsilon) does not overflow, against the textbook formula.
    for rho in (49.9, 50.1, 1e4):
        upper, lower = (half * math.sqrt(rho / 2) - 2 / math.sqrt(2 * rho) for half in (1, -1))
        textbook = norm.cdf(upper) - math.exp(2) * norm.cdf(lower)
        assert math.exp(zcdp.log_hockey_stick(2.0, rho)) == pytest.approx(textbook, rel=1e-9)
    # ln delta ~ -upper**2 / 2 far out; the naive formula is 0 - inf * 0 there.
    far = (5 - 500) ** 2 / 2
    assert -far - 20 < zcdp.log_hockey_stick(5000, 50) < -far


def test_exact_epsilon_is_zero_where_total_variation_is_below_delta():
    assert zcdp.exact_epsilon(1e-14, 1e-5) == 0
    assert zcdp.exact_epsilon(0, 1e-5) == zcdp.rdp_epsilon(0, 1e-5) == 0


@pytest.mark.parametrize(("rho", "delta"), [(1e8, 1e-5), (1e-3, 1e-300), (4, 1e-300), (1, 0.999)])
def test_extremes_are_ordered(rho, delta):
    exact, loose = zcdp.exact_epsilon(rho, delta), zcdp.bun_steinke_epsilon(rho, delta)

    assert 0 <= exact <= zcdp.rdp_epsilon(rho, delta) * (1 + 1e-12) <= loose * (1 + 1e-12)
    assert exact > 0.99 * rho or delta > 0.9


@given(rho=RHOS, delta=DELTAS)
def test_exact_epsilon_has_just_that_delta(rho, delta):
    epsilon = zcdp.exact_epsilon(rho, delta)
    assume(epsilon > 0)
    slope = 1e-9 * (1 + epsilon)

    assert zcdp.log_hockey_stick(epsilon, rho) <= math.log(delta)
    assert zcdp.log_hockey_stick(epsilon - slope, rho) >= math.log(delta) - 1e-9


def test_multipliers_combine():
    assert zcdp.combined_multiplier(3, 4) == pytest.approx(2.4)
    assert zcdp.combined_multiplier(1.5, math.inf) == pytest.approx(1.5)
