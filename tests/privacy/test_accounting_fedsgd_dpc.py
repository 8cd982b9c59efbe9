from __future__ import annotations

import math
from typing import Any

import pytest

from hpcfl.errors import UsageError
from hpcfl.privacy.accounting import fedsgd_dpc, sampling, systems
from hpcfl.privacy.accounting.fedsgd_dpc import Settings
from hpcfl.privacy.accounting.guarantee import ADD_RECORD, REPLACE_RECORD


def laplace(**more: Any) -> Settings:
    """Return 50 queries to 5 of 10 devices of 6000 records, in turn."""
    usual = {"sigma": 0.05, "rounds": 50, "devices": 10, "per_round": 5, "samples": 6000}
    return Settings(**{**usual, **more})


def gaussian(**more: Any) -> Settings:
    """Return the paper's 500 queries, of a part 0.01 of the records, clipped to 10."""
    usual = {"noise": "gaussian", "fraction": 0.01, "rounds": 500, "clip": 10.0}
    return laplace(**{**usual, **more})


# --- Laplace noise ---


@pytest.mark.parametrize("epsilon", [1.0, 5.0, 10.0])
@pytest.mark.parametrize("per_round", [1, 5, 10])
def test_theorem_1_and_its_inverse(epsilon: float, per_round: int) -> None:
    # s = Delta1 T1 / epsilon, Delta1 = 2 xi1 / d_i, T1 = T b / N.
    scale = 2 * 300 / 6000 * (50 * per_round / 10) / epsilon
    settings = laplace(sigma=scale, per_round=per_round, clip=300.0)

    assert fedsgd_dpc.paper(settings).epsilon == pytest.approx(epsilon)
    assert fedsgd_dpc.paper(settings).delta == 0
    (proven,) = fedsgd_dpc.bounds(settings)
    assert (proven.epsilon, proven.delta) == (pytest.approx(epsilon), 0)
    assert proven.adjacency == REPLACE_RECORD


def test_answers_are_whole_numbers() -> None:
    # T = 22, b = 1, N = 10: 2.2 answers by the paper, and 3 of some devices.
    settings = laplace(rounds=22, per_round=1)
    (proven,) = fedsgd_dpc.bounds(settings)

    assert settings.worst_replies == 3
    assert proven.epsilon / fedsgd_dpc.paper(settings).epsilon == pytest.approx(3 / 2.2)
    (counted,) = fedsgd_dpc.bounds(laplace(rounds=22, per_round=1, replies=9))
    assert counted.epsilon == pytest.approx(3 * proven.epsilon)


def test_delta_buys_something_for_many_answers() -> None:
    pure, approximate = fedsgd_dpc.bounds(laplace(per_round=10, delta=1e-5, sigma=0.01))

    assert (pure.delta, approximate.delta) == (0, 1e-5)
    assert pure.epsilon == pytest.approx(50 * (2 / 6000) / 0.01)
    assert approximate.epsilon < 0.9 * pure.epsilon
    z = 0.01 * 6000 / 2
    assert approximate.epsilon == sampling.laplace(z, 50, 1e-5)[0]


# --- Gaussian noise ---


@pytest.mark.parametrize(("per_round", "z"), [(1, 1.052), (5, 1.158), (10, 1.258)])
def test_multipliers_for_epsilon_1_by_rdp(per_round: int, z: float) -> None:
    def spent(sigma: float) -> float:
        found = gaussian(sigma=sigma, per_round=per_round)
        return sampling.poisson_gaussian_rdp(
            found.fraction, found.multiplier, found.worst_replies, found.actual_delta
        )

    # std = z xi2 / (q d_i), for adding or removing a record.
    sigma = systems.least_noise(spent, 1.0, 0.1)
    assert sigma == pytest.approx(z * 10 / (0.01 * 6000), rel=6e-4)


def test_what_is_proven_is_the_accountants_and_not_the_papers() -> None:
    # With c2 = 1 the paper's formula asks for 0.76 where 1.146 is needed (1.258 by RDP).
    unit = 10 / 60
    papers = gaussian(sigma=unit * 0.01 * math.sqrt(500 * math.log(1e5)), per_round=10)
    enough = gaussian(sigma=unit * 1.1462, per_round=10)

    assert papers.multiplier == pytest.approx(0.7587, abs=1e-4)
    assert fedsgd_dpc.paper(papers).epsilon == pytest.approx(1)
    assert fedsgd_dpc.bounds(papers)[0].epsilon > 2
    assert fedsgd_dpc.bounds(enough)[0].epsilon == pytest.approx(1, abs=1e-3)
    assert any("c1 q**2 T1 = 0.05 c1" in a for a in fedsgd_dpc.paper(papers).assumptions)


def test_neighbours_and_sensitivities() -> None:
    # Divided by the expected number in a sample; replacing moves twice as much.
    assert laplace(clip=300).sensitivity == pytest.approx(2 * 300 / 6000)
    assert gaussian().sensitivity == pytest.approx(10 / 60)
    assert gaussian(sampling="fixed").sensitivity == pytest.approx(2 * 10 / 60)
    assert gaussian().adjacency == ADD_RECORD
    assert gaussian(sampling="fixed").adjacency == laplace().adjacency == REPLACE_RECORD


def test_samples_of_a_fixed_size_are_whole() -> None:
    settings = gaussian(sampling="fixed", fraction=0.0151, rounds=4, samples=1000)
    (proven,) = fedsgd_dpc.bounds(settings)

    assert settings.batch == 15
    assert gaussian(fraction=0.29, samples=100, sampling="fixed").batch == 29  # 28.999...
    assert (proven.epsilon, proven.method) == sampling.fixed_size_gaussian(
        1000, 15, settings.multiplier, 2, 1e-5
    )


def test_poisson_bound_is_that_of_the_accountant() -> None:
    settings = gaussian(rounds=7, fraction=0.1)
    (proven,) = fedsgd_dpc.bounds(settings)

    assert (proven.epsilon, proven.method) == sampling.poisson_gaussian(
        0.1, settings.multiplier, 4, 1e-5
    )
    assert proven.adjacency == ADD_RECORD


def test_delta_left_out_is_the_noises() -> None:
    assert laplace().actual_delta == 0
    assert gaussian().actual_delta == 1e-5
    assert laplace(delta=0).actual_delta == 0
    assert gaussian(delta=1e-3).actual_delta == 1e-3


@pytest.mark.parametrize("make", [laplace, gaussian])
def test_nothing_asked_costs_nothing(make: Any) -> None:
    assert fedsgd_dpc.bounds(make(rounds=0))[0].epsilon == 0
    assert fedsgd_dpc.bounds(make(replies=0))[0].epsilon == 0


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"sigma": 0}, "sigma is 0"),
        ({"clip": math.nan}, "clip is nan"),
        ({"samples": 0}, "samples is 0"),
        ({"per_round": 11}, "11 of 10 devices"),
        ({"noise": "some"}, "choose one of laplace, gaussian"),
        ({"sampling": "some"}, "choose one of poisson, fixed"),
        ({"delta": -0.1}, "delta is -0.1"),
        ({"noise": "gaussian", "delta": 0}, "delta is 0"),
        ({"fraction": 0.5}, "with Laplace noise an answer uses all samples"),
        ({"noise": "gaussian", "fraction": 0}, "fraction is 0"),
        ({"noise": "gaussian", "fraction": math.nan}, "fraction is nan"),
        ({"noise": "gaussian", "fraction": 1e-5}, "less than one of them"),
        ({"replies": 51}, "in 51 of 50 rounds"),
        ({"replies": -1}, "replies is -1"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        laplace(**wrong)
