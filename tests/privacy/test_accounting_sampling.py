import builtins
import math

import numpy as np
import pytest
from absl import logging
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    NeighboringRelation,
    PoissonSampledDpEvent,
)
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import binom, norm

from hpcfl.algorithms.federated import find_private
from hpcfl.errors import HpcflError, UsageError
from hpcfl.privacy.accounting import sampling, zcdp

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE


# --- dp-accounting's traps: what it does, and what the wrapper does instead ---


def test_trap_an_int_multiplier_is_taken_for_that_of_the_whole_composition():
    def composed(first):
        both = ComposedDpEvent([GaussianDpEvent(first), GaussianDpEvent(1.32)])
        accountant = RdpAccountant(neighboring_relation=ADD)
        return float(accountant.compose(PoissonSampledDpEvent(0.3, both), 100).get_epsilon(1e-5))

    z = zcdp.combined_multiplier(5, 1.32)
    ours = sampling.poisson_gaussian_rdp(0.3, z, 100, 1e-5)

    assert composed(5) < 0.25 * composed(5.0)
    assert ours == pytest.approx(composed(5.0), rel=1e-6)
    assert sampling.poisson_gaussian_rdp(0.3, 2, 100, 1e-5) == pytest.approx(
        sampling.poisson_gaussian_rdp(0.3, 2.0, 100, 1e-5)
    )


# --- Against integrals and against each other ---


@pytest.mark.parametrize(("rate", "z"), [(0.01, 5.0), (0.2, 30.0), (0.9, 2.0), (1.0, 3.0)])
def test_curve_of_large_orders_is_dp_accountings(rate, z):
    orders = (2.0, 17.0, 181.0, 1024.0)
    accountant = RdpAccountant(orders, ADD)
    accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(z)))

    found = sampling.poisson_gaussian_curve(rate, z, orders)
    assert found == pytest.approx(np.array(accountant._rdp), rel=1e-6)


def test_without_replacement_is_no_less_than_what_a_dataset_shows():
    # One record +1 or -1 among zeros, a sum over half of them: the sensitivity is 2.
    z, delta, rate = 1.0, 1e-3, 0.5
    std = 2 * z
    x = np.linspace(-30, 30, 200_001)
    p, q = ((1 - rate) * norm.pdf(x / std) + rate * norm.pdf((x - s) / std) for s in (1, -1))
    found, _ = sampling.fixed_size_gaussian(100, 50, z, 1, delta)

    excess = np.clip(p - math.exp(found) * q, 0, None).sum() * (x[1] - x[0]) / std
    assert excess <= delta


def test_small_epsilons_have_orders():
    # 2 ln(1 / delta) / epsilon = 4605: beyond the 1024 that used to be the last.
    found = sampling.poisson_gaussian_rdp(1, 1e4, 200, 1e-10)

    assert found == pytest.approx(zcdp.rdp_epsilon(200 * zcdp.gaussian_rho(1e4), 1e-10), rel=0.02)
    assert 0.005 < found < 0.012


def test_a_delta_too_small_for_few_laplace_releases_buys_nothing():
    # The losses are all the largest with the probability 1 / 8, so that delta is at least
    # (1 - exp(epsilon - 3 / z)) / 8.
    pure, _ = sampling.laplace(300, 3, 0)

    assert sampling.laplace(300, 3, 1e-10) == (pure, "pure, by adding up")
    assert -math.expm1(0.999 * pure - pure) / 8 > 1e-10
    assert sampling.laplace(300, 3, 1e-4)[0] < 0.999 * pure


@given(
    rate=st.floats(0.01, 0.9), z=st.floats(0.4, 8), rounds=st.integers(1, 50), more=st.floats(1, 2)
)
def test_sampling_never_costs_and_noise_never_hurts(rate, z, rounds, more):
    epsilon, _ = sampling.fixed_size_gaussian(1000, math.ceil(1000 * rate), z, rounds, 1e-5)

    assert epsilon <= zcdp.exact_epsilon(rounds * zcdp.gaussian_rho(z), 1e-5)
    # The library leaves out the orders whose series do not converge, with more noise at times the
    # best one: the bound holds, and was up to 1.05 % higher.
    assert sampling.poisson_gaussian_rdp(rate, z * more, rounds, 1e-5) <= (
        sampling.poisson_gaussian_rdp(rate, z, rounds, 1e-5) * 1.05
    )


# --- No cliffs: whatever a total without sampling would be, sampling is counted ---


def poisson(rate, z, rounds, delta):
    return sampling.poisson_gaussian(rate, z, rounds, delta)[0]


def fixed(rate, z, rounds, delta):
    members = 10**9
    return sampling.fixed_size_gaussian(members, round(rate * members), z, rounds, delta)[0]


def by_saddlepoint(rate, z, rounds, delta, replaced):
    """Return the epsilon by the first term of the saddle-point approximation of delta.

    The loss of one release is integrated as it is: no grid of losses, and no transform.
    """
    x = np.linspace(-14 * z, 1 + 14 * z, 100_001)
    plain = norm.logpdf(x, 0, z)
    mixed = np.logaddexp(math.log1p(-rate) + plain, math.log(rate) + norm.logpdf(x, 1, z))
    log_mass, loss = mixed, mixed - plain
    if replaced:  # where the loss is below 0, that of an addition; what is left is at 0
        up, down = loss >= 0, loss > 0
        log_mass, loss = np.append(mixed[up], plain[down]), np.append(loss[up], -loss[down])
    mass = np.exp(log_mass) * (x[1] - x[0])

    def at(tilt):
        """Return the tilted mean of all releases, and ln delta there."""
        raised = mass * np.exp(tilt * loss)
        total = 1 + float((mass * np.expm1(tilt * loss)).sum())
        mean = float((raised * loss).sum()) / total
        variance = float((raised * loss**2).sum()) / total - mean**2
        exponent = rounds * (math.log(total) - tilt * mean)
        spread = tilt * (1 + tilt) * math.sqrt(2 * math.pi * rounds * variance)
        return mean * rounds, exponent - math.log(spread)

    most = math.log(min(200.0, 600 / float(loss.max())))
    found = brentq(lambda u: at(math.exp(u))[1] - math.log(delta), math.log(1e-3), most)
    return at(math.exp(found))[0]


def by_participations(rate, z, rounds, delta):
    """Return the epsilon of a removal where hardly any noise hides who is in a sample.

    Then the loss is 1 / (2 z**2) + ln(rate) for each round with the member in it, normal with a
    variance of 1 / z**2, and ln(1 - rate) for every other.
    """
    count = np.arange(1, rounds + 1)
    chance = binom.pmf(count, rounds, rate)
    mean = count * (0.5 / z**2 + math.log(rate)) + (rounds - count) * math.log1p(-rate)
    spread = np.sqrt(count) / z

    def excess(epsilon):
        upper = (mean - epsilon) / spread
        # E[(1 - exp(epsilon - L))+] of a normal L.
        log_second = epsilon - mean + spread**2 / 2 + norm.logcdf(upper - spread)
        return float(chance @ (norm.cdf(upper) - np.exp(log_second))) - delta

    return float(brentq(excess, 0, float(mean[-1] + 10 * spread[-1])))


@pytest.mark.parametrize("z", [0.6, 0.7, 0.72])
def test_a_million_rounds_cost_what_others_find(z):
    """Without sampling 0.6 and 0.7 cost more than a million, and 0.72 less."""
    rate, rounds, delta = 1e-3, 10**6, 1e-5
    one = privacy_loss_distribution.from_gaussian_mechanism(
        z, sampling_prob=rate, value_discretization_interval=1e-4
    )
    upper = one.self_compose(rounds).get_epsilon_for_delta(delta)
    found = poisson(rate, z, rounds, delta)

    assert found == pytest.approx(upper, rel=1e-3)
    assert found == pytest.approx(by_saddlepoint(rate, z, rounds, delta, False), rel=1e-2)
    assert found < sampling.poisson_gaussian_rdp(rate, z, rounds, delta)
    replaced = by_saddlepoint(rate, z, rounds, delta, True)
    assert fixed(rate, z, rounds, delta) == pytest.approx(replaced, rel=1e-2)


@pytest.mark.parametrize(
    ("rate", "z", "rounds", "delta"),
    [(1e-4, 0.02, 1000, 1e-6), (0.2, 0.002, 100, 1e-5), (0.01, 1e-6, 10**4, 1e-5)],
)
def test_without_noise_the_rounds_with_a_member_count(rate, z, rounds, delta):
    expected = by_participations(rate, z, rounds, delta)

    assert poisson(rate, z, rounds, delta) == pytest.approx(expected, rel=5e-3)
    assert fixed(rate, z, rounds, delta) == pytest.approx(expected, rel=5e-3)
    assert zcdp.exact_epsilon(rounds * zcdp.gaussian_rho(z), delta) > 2 * expected


@pytest.mark.parametrize("account", [poisson, fixed])
@pytest.mark.parametrize(
    ("rate", "rounds", "delta", "steepest"),
    [
        pytest.param(1e-3, 10**6, 1e-5, 8, marks=pytest.mark.full),
        (1e-4, 1000, 1e-6, 12),
        (0.2, 100, 1e-5, 3),
        pytest.param(1e-9, 10**9, 1e-5, 60, marks=pytest.mark.full),
    ],
)
def test_no_cliff_in_the_noise(account, rate, rounds, delta, steepest):
    noise = np.geomspace(1e-5, 3, 20)
    found = np.array([account(rate, z, rounds, delta) for z in noise.tolist()])

    assert (found[1:] <= found[:-1]).all()
    known = found[1:] > 1e-3
    slopes = np.diff(np.log(found[:-1][known])) / np.diff(np.log(noise[:-1][known]))
    assert (-slopes <= steepest).all()


@pytest.mark.parametrize("account", [poisson, fixed])
@pytest.mark.parametrize(
    ("rate", "z"),
    [
        pytest.param(1e-3, 0.7, marks=pytest.mark.full),
        (1e-4, 0.02),
        pytest.param(1e-9, 0.3, marks=pytest.mark.full),
    ],
)
def test_no_cliff_in_the_rounds(account, rate, z):
    rounds = [round(x) for x in np.geomspace(100, 1e10, 9)]
    found = np.array([account(rate, z, n, 1e-5) for n in rounds])

    assert (found[1:] >= found[:-1]).all()
    # So many times the rounds, hardly more than as many times the epsilon, once there is one.
    known = found[:-1] > 0.1
    assert (found[1:][known] / found[:-1][known] <= 1.2 * rounds[1] / rounds[0]).all()


@pytest.mark.full
def test_noise_for_an_epsilon_is_not_found_at_a_jump():
    found = find_private("dp-fedavg").accountant.noise(
        20, rounds=10**6, devices=10_000, per_round=10
    )
    (proven,) = (one for one in found if one.by == "proven")

    assert poisson(1e-3, proven.sigma, 10**6, 1e-5) == pytest.approx(20, rel=1e-4)
    assert 20 < poisson(1e-3, 0.999 * proven.sigma, 10**6, 1e-5) < 20.2


def test_more_rounds_than_a_transform_has_room_for():
    """So many small losses are nearly Gaussian: mu is the rate times sqrt(rounds) over z."""
    rate, z = 0.5, 3e4
    for rounds, limit in ((10**8, 1.005), (10**12, 1.08)):
        mu = rate * math.sqrt(rounds) / z
        exact = zcdp.exact_epsilon(mu * mu / 2, 1e-5)
        assert exact * (1 - 1e-4) < poisson(rate, z, rounds, 1e-5) < limit * exact


def test_many_laplace_releases_cost_less_than_their_sum():
    # The losses of 1e9 releases are nearly Gaussian: mu = sqrt(rounds) / z.
    nearly = zcdp.exact_epsilon(1e9 / 999**2 / 2, 1e-5)

    assert sampling.laplace(999, 10**9, 0)[0] > 1e6
    assert 0.999 * nearly < sampling.laplace(999, 10**9, 1e-5)[0] < 1.04 * nearly
    # A loss is 1 less than 1 / z on average: hardly more than nothing, on a coarse grid.
    for z in (2e-4, 3.5e-4, 1e-3):
        assert 10**6 * (1 / z - 1) < sampling.laplace(z, 10**6, 1e-5)[0] <= 10**6 / z


def test_warnings_of_orders_are_silent_and_others_are_not(capfd):
    before = logging.get_verbosity()
    sampling.poisson_gaussian_rdp(0.2, 1.32, 1, 1e-5)

    assert capfd.readouterr().err == ""
    assert logging.get_verbosity() == before


def test_a_missing_package_is_a_sentence(monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **options):
        if name == "dp_accounting":
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(HpcflError, match=r"pip install 'hpcfl\[dp\]'"):
        sampling.poisson_gaussian_rdp(0.1, 1, 1, 1e-6)
    assert sampling.laplace(20, 100, 0)[0] == 5  # adding up needs no package


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: sampling.poisson_gaussian(0, 1, 1, 0.1), "sampling rate is 0"),
        (lambda: sampling.poisson_gaussian(1.1, 1, 1, 0.1), "sampling rate is 1.1"),
        (lambda: sampling.poisson_gaussian(0.1, 0, 1, 0.1), "multiplier is 0"),
        (lambda: sampling.poisson_gaussian(0.1, 1, -1, 0.1), "rounds is -1"),
        (lambda: sampling.poisson_gaussian(0.1, 1, 1, 0), "delta is 0"),
        (lambda: sampling.fixed_size_gaussian(10, 11, 1, 1, 0.1), "11 members of 10"),
        (lambda: sampling.fixed_size_gaussian(10, 0, 1, 1, 0.1), "sample is 0"),
        (lambda: sampling.laplace(0, 1, 0.1), "multiplier is 0"),
        (lambda: sampling.laplace(1, 1, 1.0), "delta is 1"),
    ],
)
def test_wrong_values_are_refused(call, words):
    with pytest.raises(UsageError, match=words):
        call()
