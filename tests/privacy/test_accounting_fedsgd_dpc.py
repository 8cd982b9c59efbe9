from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from hpcfl.privacy.accounting import fedsgd_dpc, sampling, zcdp
from hpcfl.privacy.accounting.guarantee import ADD_RECORD, REPLACE_RECORD


def laplace(**changes):
    """Return 50 iterations of 3 out of 10 devices of 6000 samples each, with Laplace noise."""
    values: dict[str, Any] = {"sigma": 0.05, "rounds": 50, "devices": 10, "per_round": 3}
    return fedsgd_dpc.Settings(**{**values, "samples": 6000, **changes})


def gaussian(**changes):
    """Return the paper's 500 iterations on 1 % of a device's samples, with Gaussian noise."""
    values = {"mechanism": "gaussian", "rounds": 500, "per_round": 10, "fraction": 0.01}
    return laplace(**{**values, **changes})


def proven(settings):
    (found,) = fedsgd_dpc.bounds(settings)
    return found


# --- Laplace noise ---


@pytest.mark.parametrize("epsilon", [1, 5, 10])
def test_scale_of_theorem_1(epsilon):
    # s = Delta T1 / epsilon, Delta = 2 xi / d, on MNIST: xi = 300, 6000 samples, T1 = T b / N.
    scale = (2 * 300 / 6000) * (50 * 3 / 10) / epsilon
    settings = laplace(sigma=scale, clip_norm=300)

    assert fedsgd_dpc.paper(settings).epsilon == pytest.approx(epsilon, rel=1e-12)
    assert proven(settings).epsilon == pytest.approx(epsilon, rel=1e-12)  # 15, a whole number
    for value in (fedsgd_dpc.paper(settings), proven(settings)):
        assert (value.delta, value.adjacency) == (0, REPLACE_RECORD)


def test_replies_are_whole_numbers():
    # T = 22, b = 1: 2.2 replies by the paper's count, and three of some devices.
    settings = laplace(rounds=22, per_round=1, sigma=1 / 3000)

    assert fedsgd_dpc.paper(settings).epsilon == pytest.approx(2.2)
    assert proven(settings).epsilon == pytest.approx(3)
    assert "2.2 times, counted as a fraction" in fedsgd_dpc.paper(settings).assumptions[0]
    assert "at most 3 times" in " / ".join(proven(settings).assumptions)
    assert proven(laplace(rounds=22, per_round=1, sigma=1 / 3000, replies=2)).epsilon == (
        pytest.approx(2)
    )


def test_schedule_by_turns_has_that_many_replies():
    # b devices in turn, where b does not divide N: nobody is asked more than ceil(T b / N) times.
    for rounds in range(40):
        asked = np.bincount(np.arange(rounds * 3) % 10, minlength=10)
        settings = laplace(rounds=rounds)

        assert settings.worst_replies == asked.max()
        assert settings.paper_replies == pytest.approx(asked.mean())


def test_a_delta_lowers_the_epsilon_of_many_replies():
    settings = laplace(sigma=0.02, delta=1e-5)
    pure, approximate = fedsgd_dpc.bounds(settings)

    assert pure == proven(laplace(sigma=0.02))
    assert (pure.delta, approximate.delta) == (0, 1e-5)
    assert approximate.method == "PLD, Laplace"
    assert approximate.epsilon < pure.epsilon == pytest.approx(15 / 60)
    # The paper's claim is of pure differential privacy, whatever the delta.
    assert fedsgd_dpc.paper(settings) == fedsgd_dpc.paper(laplace(sigma=0.02))


# --- Gaussian noise ---


@pytest.mark.parametrize(("per_round", "z"), [(1, 1.052), (5, 1.158), (10, 1.258)])
def test_multipliers_of_epsilon_1(per_round, z):
    # An accountant's; by RDP they are 1.000 (the PLD proves less with the same noise).
    settings = gaussian(sigma=z / 60, per_round=per_round)
    by_rdp = sampling.poisson_gaussian_rdp(0.01, settings.multiplier, 50 * per_round, 1e-5)

    assert settings.multiplier == pytest.approx(z, rel=1e-12)
    assert settings.worst_replies == 50 * per_round
    assert by_rdp == pytest.approx(1, abs=1e-3)
    assert 0.4 < proven(settings).epsilon < by_rdp
    assert proven(settings).method == "PLD, Poisson sampling"


def test_theorem_2_claims_epsilon_1_for_too_little_noise():
    # c2 = 1: sigma = Delta q sqrt(T1 ln(1 / delta)) / epsilon, which is less than 1.258.
    z = 0.01 * math.sqrt(500 * math.log(1e5))
    settings = gaussian(sigma=z / 60)
    paper = fedsgd_dpc.paper(settings)

    assert z == pytest.approx(0.76, abs=2e-3)
    assert paper.epsilon == pytest.approx(1, rel=1e-9)
    assert "epsilon is below c1 q**2 T1 = 0.05 c1 for an unknown c1" in paper.assumptions
    assert proven(settings).epsilon > 2


def test_gaussian_noise_has_a_delta_unless_told():
    assert gaussian().actual_delta == proven(gaussian(rounds=1)).delta == 1e-5
    assert gaussian(delta=1e-3).actual_delta == 1e-3
    assert laplace().actual_delta == laplace(delta=0).actual_delta == 0


@pytest.mark.parametrize(
    ("changes", "sensitivity", "adjacency"),
    [
        ({}, 1 / 60, ADD_RECORD),
        ({"clip_norm": 10, "fraction": 0.5}, 10 / 3000, ADD_RECORD),
        ({"record_sampling": "fixed"}, 2 / 60, REPLACE_RECORD),
        ({"record_sampling": "fixed", "fraction": 0.29, "samples": 100}, 2 / 29, REPLACE_RECORD),
        ({"record_sampling": "fixed", "fraction": 0.299, "samples": 100}, 2 / 29, REPLACE_RECORD),
        ({"fraction": 0.299, "samples": 100}, 1 / 29.9, ADD_RECORD),
    ],
)
def test_sensitivity_of_a_mean_gradient(changes, sensitivity, adjacency):
    settings = gaussian(**changes)

    assert settings.sensitivity == pytest.approx(sensitivity, rel=1e-12)
    assert settings.adjacency == adjacency
    assert settings.multiplier == pytest.approx(0.05 / sensitivity, rel=1e-12)


def test_samples_of_a_fixed_size():
    settings = gaussian(record_sampling="fixed", rounds=20, sigma=0.05)
    found = proven(settings)

    assert found.epsilon == sampling.fixed_size_gaussian(6000, 60, 1.5, 20, 1e-5)[0]
    assert found.adjacency == REPLACE_RECORD
    assert "an answer uses 60 of 6000 samples" in " / ".join(found.assumptions)


def test_all_samples_are_the_plain_gaussian():
    settings = gaussian(record_sampling="fixed", fraction=1.0, rounds=20, sigma=3 / 6000)

    assert proven(settings).epsilon == pytest.approx(
        zcdp.exact_epsilon(20 * zcdp.gaussian_rho(1.5), 1e-5), rel=1e-9
    )
