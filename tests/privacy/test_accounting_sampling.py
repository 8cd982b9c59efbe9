from __future__ import annotations

import builtins
import itertools
import math
from typing import Any

import numpy as np
import pytest
from absl import logging
from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NeighboringRelation,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
)
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import norm

from hpcfl.errors import HpcflError, UsageError
from hpcfl.privacy.accounting import pld, rdp, sampling, zcdp

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = NeighboringRelation.REPLACE_ONE


def by(accountant: Any, relation: NeighboringRelation, event: DpEvent, delta: float) -> float:
    return float(accountant(neighboring_relation=relation).compose(event).get_epsilon(delta))


# --- dp-accounting's traps: what it does, and what the wrapper does instead ---


def test_trap_replace_one_doubles_the_sensitivity_in_a_pld_but_not_in_rdp() -> None:
    z = zcdp.gaussian_multiplier(zcdp.bun_steinke_rho(10, 1e-4))
    event = GaussianDpEvent(z)

    assert by(PLDAccountant, REPLACE, event, 1e-4) == pytest.approx(20.76, abs=0.01)
    assert by(PLDAccountant, REPLACE, event, 1e-4) == pytest.approx(
        zcdp.exact_epsilon(zcdp.gaussian_rho(z / 2), 1e-4), abs=1e-3
    )
    assert by(RdpAccountant, REPLACE, event, 1e-4) == pytest.approx(9.09, abs=0.01)
    # Ours: one multiplier, over the sensitivity, for every adjacency.
    assert sampling.poisson_gaussian_pld(1, z, 1, 1e-4) == pytest.approx(8.357, abs=1e-3)
    assert sampling.fixed_size_gaussian(10, 10, z, 1, 1e-4)[0] == pytest.approx(8.357, abs=1e-3)


def test_trap_an_int_multiplier_is_taken_for_that_of_the_whole_composition() -> None:
    def composed(first: float) -> float:
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


def test_trap_which_sampling_goes_with_which_adjacency() -> None:
    fixed = SampledWithoutReplacementDpEvent(100, 10, GaussianDpEvent(1.0))
    poisson = PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0))

    supported = {
        (accountant.__name__, relation.name, type(event).__name__)
        for accountant in (PLDAccountant, RdpAccountant)
        for relation in (ADD, REPLACE)
        for event in (fixed, poisson)
        if accountant(neighboring_relation=relation).supports(event)
    }

    assert supported == {
        ("PLDAccountant", "ADD_OR_REMOVE_ONE", "PoissonSampledDpEvent"),
        # It is taken, but with twice the sensitivity: see the test above.
        ("PLDAccountant", "REPLACE_ONE", "PoissonSampledDpEvent"),
        ("RdpAccountant", "ADD_OR_REMOVE_ONE", "PoissonSampledDpEvent"),
        ("RdpAccountant", "REPLACE_ONE", "SampledWithoutReplacementDpEvent"),
    }
    assert sampling.fixed_size_gaussian(100, 10, 1.0, 5, 1e-5)[0] < math.inf
    assert sampling.poisson_gaussian(0.1, 1.0, 5, 1e-5)[0] < math.inf


def test_trap_sampling_without_replacement_can_look_worse_than_no_sampling() -> None:
    z, rounds = 0.05, 3
    unsampled = zcdp.exact_epsilon(rounds * zcdp.gaussian_rho(z), 1e-5)

    sampled = SampledWithoutReplacementDpEvent(100, 90, GaussianDpEvent(z))
    by_rdp = by(RdpAccountant, REPLACE, ComposedDpEvent([sampled] * rounds), 1e-5)
    assert by_rdp > 1.01 * unsampled
    assert sampling.fixed_size_gaussian(100, 90, z, rounds, 1e-5)[0] <= unsampled
    assert sampling.fixed_size_gaussian(100, 100, z, rounds, 1e-5) == (
        unsampled,
        "exact Gaussian, without amplification",
    )


# --- Against integrals and against each other ---


def exact_poisson(rate: float, z: float, delta: float) -> float:
    """Return the epsilon of one Poisson-sampled release, by integrating both directions."""

    def mixture(x: float) -> float:
        return float((1 - rate) * norm.pdf(x / z) + rate * norm.pdf((x - 1) / z)) / z

    def plain(x: float) -> float:
        return float(norm.pdf(x / z)) / z

    def worst(epsilon: float) -> float:
        def excess(x: float, p: Any, q: Any) -> float:
            return max(0.0, p(x) - math.exp(epsilon) * q(x))

        points = np.linspace(-12 * z, 1 + 12 * z, 60)
        return max(
            sum(quad(excess, a, b, (p, q), limit=100)[0] for a, b in itertools.pairwise(points))
            for p, q in ((mixture, plain), (plain, mixture))
        )

    return float(brentq(lambda epsilon: worst(epsilon) - delta, 0, 20, xtol=1e-4))


def test_one_poisson_release_by_integration() -> None:
    exact = exact_poisson(0.3, 1.1, 1e-3)

    pld = sampling.poisson_gaussian_pld(0.3, 1.1, 1, 1e-3)
    assert exact - 2e-4 <= pld <= exact + 1e-3
    assert exact <= sampling.poisson_gaussian_rdp(0.3, 1.1, 1, 1e-3)


def test_without_replacement_is_no_less_than_what_a_dataset_shows() -> None:
    # One record +1 or -1 among zeros, a sum over half of them: the sensitivity is 2.
    z, delta, rate = 1.0, 1e-3, 0.5
    std = 2 * z
    x = np.linspace(-30, 30, 200_001)
    p, q = ((1 - rate) * norm.pdf(x / std) + rate * norm.pdf((x - s) / std) for s in (1, -1))
    found, _ = sampling.fixed_size_gaussian(100, 50, z, 1, delta)

    excess = np.clip(p - math.exp(found) * q, 0, None).sum() * (x[1] - x[0]) / std
    assert excess <= delta


@pytest.mark.parametrize("rounds", [1, 10, 200])
def test_unsampled_composition_by_pld_is_the_exact_one(rounds: int) -> None:
    z = 2.0 * math.sqrt(rounds)
    exact = zcdp.exact_epsilon(rounds * zcdp.gaussian_rho(z), 1e-5)

    pld = sampling.poisson_gaussian_pld(1, z, rounds, 1e-5)
    assert exact - 1e-6 <= pld == pytest.approx(exact, abs=2e-3)


@pytest.mark.parametrize(("rate", "z"), [(0.01, 5.0), (0.2, 30.0), (0.9, 2.0), (1.0, 3.0)])
def test_curve_of_large_orders_is_dp_accountings(rate: float, z: float) -> None:
    orders = (2.0, 17.0, 181.0, 1024.0)
    accountant = RdpAccountant(orders, ADD)
    accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(z)))

    found = rdp.poisson_gaussian_curve(rate, z, orders)
    assert found == pytest.approx(np.array(accountant._rdp), rel=1e-6)


def test_small_epsilons_have_orders() -> None:
    # 2 ln(1 / delta) / epsilon = 4605: beyond the 1024 that used to be the last.
    found = sampling.poisson_gaussian_rdp(1, 1e4, 200, 1e-10)

    assert found == pytest.approx(zcdp.rdp_epsilon(200 * zcdp.gaussian_rho(1e4), 1e-10), rel=0.02)
    assert 0.005 < found < 0.012


def test_unsampled_rdp_is_that_of_the_curve() -> None:
    found = sampling.poisson_gaussian_rdp(1, 4.0, 20, 1e-5)

    assert found == pytest.approx(rdp.curve_epsilon(20 * rdp.gaussian_curve(4.0), 1e-5), rel=1e-9)


def test_laplace_adds_up_or_composes_by_pld() -> None:
    assert sampling.laplace(20, 100, 0) == (5.0, "pure, by adding up")
    epsilon, method = sampling.laplace(20, 100, 1e-5)
    by_rdp = rdp.curve_epsilon(100 * rdp.laplace_curve(20), 1e-5)

    assert method == "PLD, Laplace"
    assert 0.9 * by_rdp < epsilon < by_rdp
    assert epsilon == pytest.approx(
        by(PLDAccountant, ADD, ComposedDpEvent([LaplaceDpEvent(20.0)] * 100), 1e-5), rel=1e-3
    )


def test_a_delta_too_small_for_few_laplace_releases_buys_nothing() -> None:
    # The losses are all the largest with the probability 1 / 8, so that delta is at least
    # (1 - exp(epsilon - 3 / z)) / 8.
    pure, _ = sampling.laplace(300, 3, 0)

    assert sampling.laplace(300, 3, 1e-10) == (pure, "pure, by adding up")
    assert -math.expm1(0.999 * pure - pure) / 8 > 1e-10
    assert sampling.laplace(300, 3, 1e-4)[0] < 0.999 * pure


def test_one_laplace_release_is_pure() -> None:
    # One release: delta(eps) = 1 - exp((eps - 1/z) / 2).
    epsilon, _ = sampling.laplace(0.5, 1, 1e-3)

    assert epsilon == pytest.approx(2 + 2 * math.log1p(-1e-3), abs=2e-4)


@pytest.mark.parametrize(
    ("rate", "z", "rounds", "by_rdp", "by_pld"),
    [(0.2, 1.32, 100, 10.07, 9.18), (0.2, 1.326, 100, 10.0, 9.11), (0.2, 0.5, 100, 79.8, 57.2)],
)
def test_locks_experiment(rate: float, z: float, rounds: int, by_rdp: float, by_pld: float) -> None:
    assert sampling.poisson_gaussian_rdp(rate, z, rounds, 1e-5) == pytest.approx(by_rdp, rel=1e-3)
    assert sampling.poisson_gaussian(rate, z, rounds, 1e-5) == (
        pytest.approx(by_pld, rel=1e-3),
        "PLD, Poisson sampling",
    )


@given(
    rate=st.floats(0.01, 0.9), z=st.floats(0.4, 8), rounds=st.integers(1, 50), more=st.floats(1, 2)
)
@settings(max_examples=20, deadline=None)
def test_sampling_never_costs_and_noise_never_hurts(
    rate: float, z: float, rounds: int, more: float
) -> None:
    epsilon, _ = sampling.fixed_size_gaussian(1000, math.ceil(1000 * rate), z, rounds, 1e-5)

    assert epsilon <= zcdp.exact_epsilon(rounds * zcdp.gaussian_rho(z), 1e-5)
    assert sampling.poisson_gaussian_rdp(rate, z * more, rounds, 1e-5) <= (
        sampling.poisson_gaussian_rdp(rate, z, rounds, 1e-5) * (1 + 1e-9)
    )


def test_an_absurd_epsilon_takes_no_loss_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pld, "epsilon", lambda *_: pytest.fail("a PLD"))

    assert sampling.poisson_gaussian(0.2, 0.002, 100, 1e-5)[0] > 1e7
    assert sampling.fixed_size_gaussian(10, 2, 0.002, 100, 1e-5)[0] > 1e7
    assert sampling.laplace(1e-5, 100, 1e-5)[0] == pytest.approx(1e7)


def test_no_rounds_cost_nothing() -> None:
    assert sampling.poisson_gaussian(0.2, 1, 0, 1e-5)[0] == 0
    assert sampling.fixed_size_gaussian(10, 2, 1, 0, 1e-5)[0] == 0
    assert sampling.laplace(1, 0, 1e-5)[0] == 0


def test_warnings_of_orders_are_silent_and_others_are_not(capfd: pytest.CaptureFixture) -> None:
    before = logging.get_verbosity()
    sampling.poisson_gaussian_rdp(0.2, 1.32, 1, 1e-5)

    assert capfd.readouterr().err == ""
    assert logging.get_verbosity() == before


def test_a_missing_package_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
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
def test_wrong_values_are_refused(call: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        call()
