from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation
from dp_accounting.pld import PLDAccountant

from hpcfl.errors import UsageError
from hpcfl.privacy.accounting import distributed, dp_fedavg, sampling, zcdp
from hpcfl.privacy.accounting.dp_fedavg import Settings
from hpcfl.privacy.accounting.guarantee import ADD_USER, REPLACE_USER, ZERO_USER


def run(**settings):
    """Return 100 rounds of 20 out of 100 users, unless settings say otherwise."""
    return Settings(**{"sigma": 1.32, "rounds": 100, "devices": 100, "per_round": 20, **settings})


def proven(settings):
    return min(dp_fedavg.bounds(settings), key=lambda bound: bound.epsilon)


def of_integers(**settings):
    return run(**{"noise": "distributed", "honest": 9, "unit": 1e6, "dim": 50, **settings})


# --- Central noise ---


@pytest.mark.parametrize(
    ("sigma", "rounds", "by_rdp", "by_pld"),
    [(1.32, 100, 10.07, 9.18), (0.5, 100, 79.8, 57.2), (0.5, 54, 49.92, None)],
)
def test_the_experiment_of_locks(sigma, rounds, by_rdp, by_pld):
    settings = run(sigma=sigma, rounds=rounds)

    assert dp_fedavg.paper(settings).epsilon == pytest.approx(by_rdp, rel=1e-3)
    if by_pld is not None:
        found = proven(settings)
        assert found.epsilon == pytest.approx(by_pld, rel=1e-3)
        assert (found.adjacency, found.method) == (ADD_USER, "PLD, Poisson sampling")


def test_samples_of_a_fixed_size_are_accounted_for_replacing():
    found = proven(run(sampling="exact", rounds=5))

    # Replacing moves a sum by up to 2 C: half the noise multiplier.
    assert found.epsilon == sampling.fixed_size_gaussian(100, 20, 0.66, 5, 1e-5)[0]
    assert found.adjacency == REPLACE_USER
    assert found.epsilon > proven(run(rounds=5)).epsilon


def test_all_users_in_every_round_is_the_plain_gaussian():
    everyone = run(per_round=100, rounds=4)
    rho = 4 * zcdp.gaussian_rho(1.32)

    assert proven(everyone).epsilon == pytest.approx(zcdp.exact_epsilon(rho, 1e-5), rel=1e-3)
    fixed = proven(run(per_round=100, rounds=4, sampling="exact"))
    assert fixed.epsilon == pytest.approx(zcdp.exact_epsilon(4 * rho, 1e-5), rel=1e-3)


def delta_of_exact_dropouts(epsilon, sigma, users, part):
    """Return the delta of one round of all users: one more, at +1, joins others at -1, in the sum.

    Of k users floor(part k) drop out, all as likely; every case is weighed.
    """
    x = np.linspace(-users - 12 * sigma, users + 12 * sigma, 200_001)

    def density(of, joins):
        gone = math.floor(part * of)
        in_sum = (of - gone) / of if joins else 0.0
        left = [(in_sum, 1 - (of - gone - 1)), (1 - in_sum, -(of - gone))]
        return sum(w * np.exp(-0.5 * ((x - m) / sigma) ** 2) for w, m in left if w)

    p, q = density(users + 1, True), density(users, False)
    scale = (x[1] - x[0]) / (sigma * math.sqrt(2 * math.pi))
    return max(
        float(np.clip(one - math.exp(epsilon) * other, 0, None).sum() * scale)
        for one, other in ((p, q), (q, p))
    )


@pytest.mark.parametrize(("users", "part"), [(9, 0.1), (9, 0.3), (4, 0.5), (10, 0.3)])
def test_dropouts_that_follow_are_charged_and_those_that_do_not_are_not(users, part):
    """A round of all users: where one more makes one leave, the sum moves by twice the norm."""
    given: dict[str, Any] = {"sigma": 1.0, "rounds": 1, "devices": users, "per_round": users}
    followed = proven(run(**given, exact_dropouts=True))
    plain = proven(run(**given))

    assert delta_of_exact_dropouts(followed.epsilon, 1.0, users, part) <= 1e-5
    one_leaves = math.floor(part * (users + 1)) > math.floor(part * users)
    assert (delta_of_exact_dropouts(plain.epsilon, 1.0, users, part) > 1e-5) == one_leaves
    assert plain.epsilon == pytest.approx(4.377, abs=1e-3)
    assert "an exact number drops out" in " / ".join(followed.assumptions)
    assert "does not depend on who else is in a round" in " / ".join(plain.assumptions)


def test_dropouts_of_a_fixed_size_do_not_depend_on_the_data():
    fixed = run(sampling="exact", rounds=5)

    assert proven(run(sampling="exact", rounds=5, exact_dropouts=True)) == proven(fixed)


def test_a_count_bit_moves_by_one_where_another_user_leaves():
    both = run(sigma=3.0, sigma_count=2.0, exact_dropouts=True, rounds=2)
    # 2 C of the sum and 1 of the count, where it is C and 1/2 otherwise.
    z = ((2 / 3) ** 2 + (1 / 2) ** 2) ** -0.5

    assert proven(both).epsilon == pytest.approx(
        sampling.poisson_gaussian(0.2, z, 2, 1e-5)[0], rel=1e-9
    )


def test_the_count_of_adaptive_clipping_costs_its_part():
    # A bit minus one half moves the count by 1/2: a multiplier of 2 sigma_count.
    both = run(sigma=3.0, clip_norm=1.0, sigma_count=2.0)

    assert both.multiplier == pytest.approx(2.4)
    assert run(sigma_count=1e9).multiplier == pytest.approx(1.32)


# --- Distributed noise ---


def held_to(norm, dim):
    """Return the norm of integers: the mean square, and what Hoeffding's bound adds for 2^-40."""
    more = math.sqrt(80 * math.log(2)) * (norm + math.sqrt(dim) / 2)
    return math.sqrt(norm**2 + dim / 4 + more)


def test_integers_are_those_of_the_clipped_vector_with_its_rounding():
    found = dp_fedavg.integers(of_integers(clip_norm=2.0, sigma=3.0, unit=100.0))

    assert found.norm == pytest.approx(held_to(200, 50))
    assert found.sigma == math.ceil(1.5 * found.norm / 3)
    assert found.dim == 50


def test_the_bit_is_one_more_coordinate():
    # sigma = 3, sigma_count = 2: the bit weighs 3 / 2, and moves its coordinate by half of that.
    found = dp_fedavg.integers(of_integers(sigma=3.0, sigma_count=2.0, unit=100.0))

    assert found.dim == 51
    assert found.norm == pytest.approx(held_to(100 * math.hypot(1, 0.75), 51))
    assert found.sigma == math.ceil(2.4 * found.norm / 3)


def test_fine_integers_cost_what_gaussian_noise_without_sampling_does():
    found = proven(of_integers(participations=7))

    assert found.epsilon == pytest.approx(
        zcdp.exact_epsilon(7 * zcdp.gaussian_rho(1.32), 1e-5), rel=1e-4
    )
    assert found.method.startswith("exact Gaussian, rounded to integers")
    assert found.adjacency == ZERO_USER
    assert "no amplification by sampling is claimed" in found.assumptions[0]
    assert "at most 7 of the 100 rounds" in found.assumptions[1]


def test_no_sampling_amplifies_distributed_noise():
    amplified, plain = run(per_round=1, rounds=10), of_integers(per_round=1, rounds=10, honest=1)

    assert proven(plain).epsilon > 2 * proven(amplified).epsilon
    for other in ({"sampling": "exact"}, {"per_round": 90}, {"devices": 1000}):
        assert proven(of_integers(rounds=10, honest=1, **other)).epsilon == proven(plain).epsilon


def test_fewer_honest_users_add_more_noise_each():
    few, many = (dp_fedavg.integers(of_integers(honest=honest)) for honest in (4, 16))

    assert few.sigma == pytest.approx(2 * many.sigma, rel=1e-5)
    costs = [
        distributed.rho(honest, found.sigma, found.dim, found.norm)
        for honest, found in ((4, few), (16, many))
    ]
    assert costs[0] == pytest.approx(costs[1], rel=1e-4)


def test_rounds_are_charged_by_the_noise_that_was_there():
    # Of 9 planned, 3 to 9 came: the multiplier of a round is smaller by sqrt(came / 9).
    came = (9, 3, 9, 5, 7)
    found = proven(of_integers(rounds=5, honest_by_round=came))
    rho = sum(zcdp.gaussian_rho(1.32 * math.sqrt(one / 9)) for one in came)

    assert found.epsilon == pytest.approx(zcdp.exact_epsilon(rho, 1e-5), rel=1e-3)
    assert "at least 3 honest users add" in " / ".join(found.assumptions)
    assert found.epsilon > 1.05 * proven(of_integers(rounds=5)).epsilon
    assert proven(of_integers(rounds=5, honest_by_round=(9,) * 5)).epsilon == pytest.approx(
        proven(of_integers(rounds=5)).epsilon, rel=1e-12
    )


def test_the_worst_user_was_in_the_rounds_with_the_least_noise():
    two = of_integers(rounds=5, honest_by_round=(9, 3, 9, 5, 7), participations=2)

    assert two.worst_rounds == (3, 5)
    assert proven(two).epsilon == pytest.approx(
        proven(of_integers(rounds=2, honest_by_round=(5, 3))).epsilon, rel=1e-12
    )


def test_a_round_without_honest_noise_proves_nothing_but_by_a_users_own():
    sums, own = dp_fedavg.bounds(of_integers(rounds=2, honest_by_round=(9, 0)))
    assert sums.epsilon == math.inf
    # Each of 9 adds a third.
    rho = 2 * zcdp.gaussian_rho(1.32 / 3)
    assert own.epsilon == pytest.approx(zcdp.exact_epsilon(rho, 1e-5), rel=1e-4)


def test_a_users_own_noise_holds_whatever_masks_do():
    """Each of 3 adds all noise, as one honest user is planned for: 1.144 for a round of 3.3."""
    few = of_integers(sigma=3.3, rounds=7, honest=1, participations=1, failure=0.013)
    sums, own = dp_fedavg.bounds(few)
    gaussian = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE).compose(GaussianDpEvent(3.3))

    assert sums.epsilon == math.inf
    assert own.epsilon == pytest.approx(gaussian.get_epsilon(1e-5), rel=1e-3)
    assert own.epsilon == pytest.approx(1.144, abs=5e-4)
    assert "a user adds" in own.assumptions[2]
    assert not any("probability" in clause for clause in own.assumptions)
    # With many honest users, and masks that hold, sums are far better.
    sums, own = dp_fedavg.bounds(of_integers(rounds=7))
    assert own.epsilon > 4 * sums.epsilon


# --- What is refused ---


def test_integers_that_no_float_can_count_are_refused():
    with pytest.raises(UsageError, match="too large"):
        dp_fedavg.integers(of_integers(unit=1e200))
