from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from hpcfl.errors import UsageError
from hpcfl.privacy.accounting import locks, sampling, zcdp
from hpcfl.privacy.accounting.guarantee import ADD_USER, REPLACE_USER, Guarantee
from hpcfl.privacy.accounting.locks import Settings


def run(**more: Any) -> Settings:
    """Return 100 rounds of 30 and then 20 out of 100 users, unless settings say otherwise."""
    usual = {"sigma": 1.32, "rounds": 100, "devices": 100, "first_stage": 30, "per_round": 20}
    return Settings(**{**usual, **more})


def proven(settings: Settings) -> Guarantee:
    (bound,) = locks.bounds(settings)
    return bound


# --- The paper's value ---


def test_the_paper_adds_up_the_costs_of_different_users() -> None:
    # T (m / (2 z_s**2) + b / (2 z_0**2))
    by_hand = 100 * (30 / (2 * 2.0**2) + 20 / (2 * 1.32**2))
    settings = run(sigma_norms=2.0)

    assert locks.paper_rho(settings) == pytest.approx(by_hand)
    assert locks.paper(settings).epsilon == pytest.approx(zcdp.rdp_epsilon(by_hand, 1e-5))
    assert locks.tight(settings).epsilon == pytest.approx(zcdp.exact_epsilon(by_hand, 1e-5))
    assert locks.tight(settings).epsilon < locks.paper(settings).epsilon


def test_noise_on_norms_is_that_on_updates_unless_it_is_given() -> None:
    assert run().multipliers == (1.32, 1.32)
    assert run(clip=2.0, sigma_norms=3.0).multipliers == (1.5, 0.66)


# --- Everyone's own noise ---


def test_worked_number_of_twenty_participations() -> None:
    # Norms not released, z = 1.32: rho = 2 * 20 / 1.32**2 = 23, epsilon 55 or exactly 51.
    settings = run(variant="local", sigma_norms=math.inf, first_stages=20)
    rho = locks.local_rho(settings)

    assert rho == pytest.approx(2 * 20 / 1.32**2) == pytest.approx(22.96, abs=0.01)
    assert zcdp.bun_steinke_epsilon(rho, 1e-5) == pytest.approx(55.5, abs=0.1)
    assert proven(settings).epsilon == pytest.approx(51, abs=0.5)
    assert proven(settings).epsilon == pytest.approx(zcdp.exact_epsilon(rho, 1e-5))
    assert proven(settings).adjacency == REPLACE_USER


def test_local_costs_by_hand() -> None:
    settings = run(variant="local", sigma=3.0, sigma_norms=2.0, first_stages=10, replies=4)

    assert locks.local_rho(settings) == pytest.approx(10 / (2 * 2**2) + 2 * 4 / 3**2)
    # Stage 2 follows stage 1: as often at the most; and in no more than all rounds.
    assert locks.local_rho(run(variant="local", first_stages=10)) == pytest.approx(
        10 * 2.5 / 1.32**2
    )
    assert locks.local_rho(run(variant="local", first_stages=500, replies=500)) == pytest.approx(
        100 * 2.5 / 1.32**2
    )
    assert locks.local_rho(run(variant="local", replies=7)) == pytest.approx(
        (100 * 0.5 + 7 * 2) / 1.32**2
    )


def test_one_local_round_is_the_worst_pair_of_users_exactly() -> None:
    """Replace a norm of 0 by C and an update of C by -C: two independent Gaussians."""
    settings = run(
        variant="local", rounds=1, clip=2.0, sigma=3.0, sigma_norms=2.5, delta=1e-2, replies=1
    )
    epsilon = proven(settings).epsilon

    x, y = np.linspace(-30, 32, 1500), np.linspace(-38, 38, 1500)
    area = (x[1] - x[0]) * (y[1] - y[0])
    p = np.outer(norm.pdf(x, 2, 2.5), norm.pdf(y, 2, 3))
    q = np.outer(norm.pdf(x, 0, 2.5), norm.pdf(y, -2, 3))
    delta = np.clip(p - math.exp(epsilon) * q, 0, None).sum() * area

    assert delta == pytest.approx(1e-2, rel=1e-3)


def test_who_takes_part_is_seen_so_nothing_amplifies() -> None:
    one, all_ = (proven(run(variant="local", first_stage=m, per_round=1)) for m in (1, 100))

    assert one.epsilon == all_.epsilon
    assert "the server sees who takes part" in " ".join(one.assumptions)


# --- A trusted aggregator ---


def test_trusted_is_a_poisson_sample_of_a_pair() -> None:
    z = (2.0**-2 + 1.32**-2) ** -0.5
    found = proven(run(sigma_norms=2.0, rounds=10))

    assert (found.epsilon, found.method) == sampling.poisson_gaussian(0.3, z, 10, 1e-5)
    assert found.adjacency == ADD_USER


def test_trusted_without_norms_is_the_uniform_baseline() -> None:
    # The experiment's z = 1.32 at the rate 0.2: 10.07 by RDP, 9.18 by PLD.
    found = proven(run(sigma_norms=math.inf, first_stage=20))

    assert found.epsilon == pytest.approx(9.18, rel=1e-3)
    assert found.method == "PLD, Poisson sampling"


def test_trap_whole_multipliers_are_combined_and_not_taken_for_the_pair() -> None:
    # dp-accounting, given an int 5 in a sampled composition, says 2.76 by RDP, and truly 16.73.
    pair = run(sigma_norms=5, sigma=1.32)
    z = zcdp.combined_multiplier(*pair.multipliers)

    assert sampling.poisson_gaussian_rdp(0.3, z, 100, 1e-5) == pytest.approx(16.73, abs=0.01)
    assert 14 < proven(pair).epsilon < 16.73
    assert proven(pair).epsilon > proven(run(sigma_norms=math.inf)).epsilon


def test_only_ratios_to_the_clipping_norm_matter() -> None:
    scaled = run(sigma=13.2, clip=10, rounds=3)
    local = {"variant": "local", "rounds": 3}

    assert proven(scaled).epsilon == pytest.approx(proven(run(rounds=3)).epsilon, rel=1e-9)
    assert locks.local_rho(run(sigma=13.2, clip=10, **local)) == pytest.approx(
        locks.local_rho(run(**local))
    )


def test_what_is_not_proven_is_not_below_for_few_users() -> None:
    # With m = b = 1 of 1 user the paper's sum is one user's; it takes C, not 2 C, for an update.
    alone = run(devices=1, first_stage=1, per_round=1, rounds=1, variant="local")

    assert proven(alone).epsilon > locks.tight(alone).epsilon


@pytest.mark.parametrize("variant", locks.VARIANTS)
def test_no_rounds_cost_nothing(variant: str) -> None:
    nothing = run(rounds=0, variant=variant)

    assert proven(nothing).epsilon == locks.paper(nothing).epsilon == 0


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"sigma": -1}, "sigma is -1"),
        ({"clip": 0}, "clip is 0"),
        ({"delta": 0}, "delta is 0"),
        ({"rounds": -1}, "rounds is -1"),
        ({"per_round": 31}, "stage 2 keeps 31 of the 30 users"),
        ({"first_stage": 101}, "must not increase"),
        ({"sigma_norms": 0}, "sigma norms is 0"),
        ({"sigma_norms": math.nan}, "sigma norms is nan"),
        ({"variant": "some"}, "choose one of trusted, local"),
        ({"replies": 3}, "for the variant local only"),
        ({"first_stages": 3}, "for the variant local only"),
        ({"variant": "local", "replies": -1}, "replies is -1"),
        ({"variant": "local", "first_stages": 1.5}, "first stages is 1.5"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        run(**wrong)
