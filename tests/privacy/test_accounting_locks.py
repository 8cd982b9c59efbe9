from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcfl.privacy.accounting import locks, sampling, zcdp
from hpcfl.privacy.accounting.guarantee import ADD_USER


def run(**changes):
    """Return the paper's experiment: 30 of 100 users, then 20."""
    values: dict[str, Any] = {"sigma": 1.32, "rounds": 100, "devices": 100}
    return locks.Settings(**{**values, "first_stage": 30, "per_round": 20, **changes})


def proven(settings):
    (found,) = locks.bounds(settings)
    return found


def test_the_papers_cost_adds_up_over_users():
    # Of eq. 92, with rho_s = C**2 / (2 sigma_s**2) and rho_0 = C**2 / (2 sigma_0**2).
    settings = run(sigma=6.0, sigma_norms=4.0, clip_norm=3.0, rounds=7)
    rho = 7 * (30 * 9 / (2 * 16) + 20 * 9 / (2 * 36))

    assert locks.paper_rho(settings) == pytest.approx(rho, rel=1e-12)
    assert locks.paper(settings).epsilon == pytest.approx(zcdp.rdp_epsilon(rho, 1e-5), rel=1e-12)
    assert locks.tight(settings).epsilon == pytest.approx(zcdp.exact_epsilon(rho, 1e-5), rel=1e-12)
    assert f"rho = {rho:.4g}" in locks.paper(settings).method
    assert "costs of different users add up" in locks.paper(settings).assumptions[0]


def test_norms_have_the_noise_of_updates_unless_told():
    assert locks.bounds(run(sigma_norms=1.32, rounds=2)) == locks.bounds(run(rounds=2))
    assert run(sigma=6.0, clip_norm=3.0).multipliers == pytest.approx((2, 2))
    assert run(sigma=6.0, clip_norm=3.0, sigma_norms=1.5).multipliers == pytest.approx((0.5, 2))


@given(
    first=st.integers(0, 100),
    second=st.integers(0, 100),
    norms=st.floats(0.5, 20),
    updates=st.floats(0.5, 20),
    clip=st.floats(0.1, 10),
)
def test_users_noise_against_the_distance_of_gaussians(first, second, norms, updates, clip):
    # Replacing a user's data moves its norm from a to b, and its update by a + b at the most: all
    # pairs in every round with a reply, (0, C) in every other one.
    settings = run(
        variant="local", sigma=updates, sigma_norms=norms, clip_norm=clip, first_stages=first,
        replies=second,
    )  # fmt: skip
    a, b = np.meshgrid(np.linspace(0, clip, 21), np.linspace(0, clip, 21))
    replied = (((a - b) / norms) ** 2 + ((a + b) / updates) ** 2).max()
    second = min(first, second)
    squared = second * replied + (first - second) * (clip / norms) ** 2

    assert locks.local_rho(settings) == pytest.approx(squared / 2, rel=1e-9)
    assert proven(settings).epsilon == pytest.approx(
        zcdp.exact_epsilon(squared / 2, 1e-5), rel=1e-9
    )


@pytest.mark.parametrize(
    ("caps", "first", "second"),
    [
        ({}, 100, 100),
        ({"first_stages": 40}, 40, 40),
        ({"first_stages": 400}, 100, 100),
        ({"replies": 30}, 100, 30),
        ({"first_stages": 40, "replies": 50}, 40, 40),
        ({"first_stages": 40, "replies": 0}, 40, 0),
    ],
)
def test_a_user_is_in_a_stage_as_often_as_capped(caps, first, second):
    settings = run(variant="local", sigma=1.0, sigma_norms=1.0, **caps)

    assert locks.local_rho(settings) == pytest.approx((first - second) / 2 + 2 * second)
    text = " / ".join(proven(settings).assumptions)
    for name, stage in (("first_stages", 1), ("replies", 2)):
        capped = f"a user is in stage {stage} at most {caps.get(name)} times"
        assert (capped in text) == (name in caps)


def test_a_trusted_aggregator_is_a_poisson_sample_of_both_releases():
    settings = run(sigma=2.0, sigma_norms=1.5, clip_norm=0.5, rounds=3)
    together = (3**-2 + 4**-2) ** -0.5

    assert proven(settings).epsilon == pytest.approx(
        sampling.poisson_gaussian(0.3, together, 3, 1e-5)[0], rel=1e-9
    )
    assert proven(settings).adjacency == ADD_USER
    assert "in stage 1 with probability 0.3," in " / ".join(proven(settings).assumptions)


def test_exact_dropouts_move_both_sums_twice():
    followed = run(rounds=3, exact_dropouts=True)
    half = run(rounds=3, sigma=0.66, sigma_norms=0.66)

    assert proven(followed).epsilon == pytest.approx(proven(half).epsilon, rel=1e-12)
    assert "an exact number drops out" in " / ".join(proven(followed).assumptions)
    assert locks.paper(followed) == locks.paper(run(rounds=3))
