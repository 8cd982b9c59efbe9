"""Worked numbers of every account, found independently of the code."""

import math

import pytest
from scipy.optimize import brentq

from hpcfl.algorithms.federated import find_private
from hpcfl.errors import UsageError
from hpcfl.privacy.accounting import cdp, distributed, zcdp

ADULT = {"devices": 16, "per_round": 10, "batch": 32, "samples": 2441, "delta": 1e-4}


def bound(found, name):
    (one,) = (guarantee for guarantee in found if guarantee.method.startswith(name))
    return one.epsilon


@pytest.mark.parametrize(
    ("rounds", "steps", "sigma", "p1", "p2", "amplified"),
    [
        (20, 10, 0.01353, (199.7, 44.8), (32.7, 9.25), 6.94),
        (50, 5, 0.01501, (363.9, 52.0), (54.6, 10.5), 4.56),
        (20, 2, 0.00605, (830.7, 90.9), (112.0, 16.8), 17.2),
    ],
)
def test_cdp_where_the_paper_says_10(rounds, steps, sigma, p1, p2, amplified):
    given = ADULT | {"rounds": rounds, "steps": steps, "convex": True}
    for shuffle, first, second in zip(("fresh", "continuing"), p1, p2, strict=True):
        account = find_private("cdp").accountant.account(sigma=sigma, shuffle=shuffle, **given)
        assert account.paper.epsilon == pytest.approx(10, rel=2e-3)
        assert account.tight is not None
        assert account.tight.epsilon == pytest.approx(8.36, rel=2e-3)
        assert bound(account.bounds, "P1") == pytest.approx(first, rel=3e-3)
        assert bound(account.bounds, "P2") == pytest.approx(second, rel=5e-3)
        assert account.proven.epsilon == bound(account.bounds, "P2")
    secret = find_private("cdp").accountant.account(sigma=sigma, secret_shuffle=True, **given)
    found = min(one.epsilon for one in secret.bounds if "P2, PLD" in one.method)
    assert found == pytest.approx(amplified, rel=5e-3)


def test_a_network_has_no_credit_for_the_sum():
    account = find_private("cdp").accountant.account(
        sigma=0.01501, rounds=50, steps=5, shuffle="continuing", **ADULT
    )
    assert account.proven.epsilon == pytest.approx(52.0, rel=3e-3)
    assert account.proven.method.startswith("P1")


@pytest.mark.parametrize(("rounds", "sigma"), [(20, 0.0290), (50, 0.0458)])
def test_the_baselines_noise_where_the_paper_says_10(rounds, sigma):
    """With the fractions T r / n of rounds that a device is in: here the whole numbers above."""
    participations = rounds * 10 / 16
    expected = sigma * math.sqrt(math.ceil(participations) / participations)
    paper, _, _ = find_private("dp-dsgd").accountant.noise(10.0, rounds=rounds, **ADULT)
    assert paper.by == "paper"
    assert paper.sigma == pytest.approx(expected, rel=3e-3)


def test_sums_of_discrete_gaussians_lose_a_little_noise_and_no_more():
    given = ADULT | {"rounds": 20, "steps": 1, "sigma": 0.03, "shuffle": "continuing"}
    plain, discrete = (cdp.bounds(cdp.Settings(**given, discrete=kind)) for kind in (False, True))
    rho = brentq(lambda rho: zcdp.exact_epsilon(rho, 1e-4) - bound(plain, "P2"), 1e-6, 1e6)
    # Of a variance of at least 64 in integers, rounding takes 4.
    assert bound(discrete, "P2") == pytest.approx(zcdp.exact_epsilon(rho * 64 / 60, 1e-4), rel=1e-6)


def test_locks_adds_up_users_where_a_user_is_protected():
    given = {"rounds": 100, "devices": 100, "first_stage": 20, "per_round": 20, "delta": 1e-5}
    trusted = find_private("locks").accountant.account(sigma=1.32, sigma_norms=math.inf, **given)
    # RDP 10.07, PLD 9.18: uniform sampling of a fifth, a hundred times.
    assert trusted.proven.epsilon == pytest.approx(9.18, rel=5e-3)
    local = find_private("locks").accountant.account(
        sigma=1.32, sigma_norms=math.inf, variant="local", first_stages=20, **given
    )
    assert local.proven.epsilon == pytest.approx(51, rel=0.02)


@pytest.mark.parametrize(("per_round", "sigma"), [(1, 1.052), (5, 1.158), (10, 1.258)])
def test_fedsgd_dpc_takes_the_accountants_noise(per_round, sigma):
    """The published noise multipliers for epsilon 1, T = 500 and 1 % of the samples."""
    unit = 1 / (0.01 * 6000)
    account = find_private("fedsgd-dpc").accountant.account(
        sigma=sigma * unit,
        rounds=500,
        devices=10,
        per_round=per_round,
        samples=6000,
        noise="gaussian",
        fraction=0.01,
        delta=1e-5,
    )
    # By RDP it is 1; the accountant here also asks for the privacy loss distribution.
    assert 0.3 < account.proven.epsilon <= 1.02
    assert account.paper.epsilon == pytest.approx(
        0.01 * math.sqrt(500 * per_round / 10 * math.log(1e5)) / sigma
    )


def test_laplace_noise_is_counted_by_whole_replies():
    account = find_private("fedsgd-dpc").accountant.account(
        sigma=0.1, rounds=22, devices=10, per_round=1, samples=6000, clip=300.0
    )
    sensitivity = 2 * 300 / 6000
    assert account.paper.epsilon == pytest.approx(2.2 * sensitivity / 0.1)
    assert account.proven.epsilon == pytest.approx(3 * sensitivity / 0.1)


def test_tau_of_distributed_noise_is_the_sum_of_its_terms():
    for summands, sigma in ((2, 0.5), (7, 0.6), (40, 0.9)):
        terms = [math.exp(-2 * math.pi**2 * sigma**2 * k / (k + 1)) for k in range(1, summands)]
        assert distributed.divergence(summands, sigma) == pytest.approx(10 * sum(terms))
    assert distributed.divergence(1, 0.3) == 0
    assert math.isinf(distributed.divergence(2, 0.4))


@pytest.mark.parametrize("sigma", [0.6, 1.0, 2.5])
@pytest.mark.parametrize("summands", [2, 5])
def test_distributed_noise_in_one_dimension_costs_no_more_than_its_rho(summands, sigma):
    """Against the Rényi divergences of the convolved distribution and its shifts."""
    import numpy as np

    reach = int(20 * sigma) + 20
    values = np.arange(-reach, reach + 1)
    one = np.exp(-(values.astype(float) ** 2) / (2 * sigma**2))
    one /= one.sum()
    density = one
    for _ in range(summands - 1):
        density = np.convolve(density, one)
    for shift in (1, 3):
        rho = distributed.rho(summands, sigma, 1, shift)
        p, q = density[shift:], density[:-shift]
        inside = (p > 1e-200) & (q > 1e-200)
        for alpha in (1.5, 2.0, 5.0, 20.0):
            logs = alpha * np.log(p[inside]) + (1 - alpha) * np.log(q[inside])
            exact = np.logaddexp.reduce(logs) / (alpha - 1)
            assert exact <= alpha * rho * (1 + 1e-9)
            if sigma > 2:
                assert exact > 0.99 * alpha * rho


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("cdp", ADULT | {"rounds": 20}),
        ("dp-fedavg", {"rounds": 5, "devices": 50, "per_round": 10}),
        ("locks", {"rounds": 5, "devices": 50, "first_stage": 15, "per_round": 10}),
        ("fedsgd-dpc", {"rounds": 20, "devices": 10, "per_round": 5, "samples": 600}),
    ],
)
def test_calibrated_noise_is_enough_and_no_more(name, settings):
    for found in find_private(name).accountant.noise(3.0, **settings):
        side = {"paper": "paper", "proven": "proven", "same-rho tight": "tight"}[found.by]
        assert getattr(found.account, side).epsilon <= 3.0
        less = find_private(name).accountant.account(sigma=found.sigma * 0.99, **settings)
        assert getattr(less, side).epsilon > 3.0


def test_what_has_no_account_or_lacks_a_setting_is_refused_in_a_sentence():
    with pytest.raises(UsageError, match="no account for 'fedavg'"):
        find_private("fedavg").accountant.account(sigma=1.0)
    with pytest.raises(UsageError, match="also needs"):
        find_private("cdp").accountant.account(sigma=1.0)
    with pytest.raises(UsageError, match="no setting"):
        find_private("locks").accountant.account(sigma=1.0, steps=3)
