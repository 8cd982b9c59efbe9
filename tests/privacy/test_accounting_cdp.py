from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from hpcfl.privacy.accounting import cdp, zcdp
from hpcfl.privacy.accounting.cdp import Settings
from hpcfl.privacy.accounting.guarantee import REPLACE_RECORD

RHO = 1.81739  # epsilon = 10 at delta = 1e-4, by Bun and Steinke


def adult(**more):
    """Return the paper's experiment: 10 of 16 devices with 2441 records each, G = 1, gamma = 32."""
    paper: dict[str, Any] = {
        "sigma": 0.01353,
        "rounds": 20,
        "devices": 16,
        "per_round": 10,
        "batch_size": 32,
        "samples": 2441,
        "steps": 10,
        "delta": 1e-4,
    }
    return Settings(**{**paper, **more})


def sigma_of_the_paper(rounds, steps):
    """Return sigma = G sqrt(2 C tau / (r m gamma rho)), for an epsilon of 10."""
    participations = math.ceil(rounds * 10 / 16)
    return math.sqrt(2 * participations * steps / (10 * 2441 * 32 * RHO))


def epsilons(settings):
    """Return the bounds by name: P1, P2, P3 or P4, with "SWOR" if they are amplified."""
    return {
        bound.method.split(",")[0] + (" SWOR" if "PLD, sampling" in bound.method else ""): (
            bound.epsilon
        )
        for bound in cdp.bounds(settings)
    }


# --- The worked numbers ---

CASES = [
    # rounds, steps, sigma, P1 and P2 of fresh shuffles, of continuing epochs, P2 with SWOR
    (20, 10, 0.01353, (199.7, 32.7), (44.8, 9.25), 6.94),
    (50, 5, 0.01501, (363.9, 54.6), (52.0, 10.5), 4.557),
    (20, 2, 0.00605, (830.7, 112), (90.9, 16.8), 17.17),
]


@pytest.mark.parametrize(("rounds", "steps", "sigma", "fresh", "continuing", "swor"), CASES)
def test_worked_numbers(rounds, steps, sigma, fresh, continuing, swor):
    exact = sigma_of_the_paper(rounds, steps)
    case = {"rounds": rounds, "steps": steps, "sigma": exact, "convex": True}
    secret = epsilons(adult(**case, secret_order=True))
    goes_on = epsilons(adult(**case, shuffle="continuing"))

    assert exact == pytest.approx(sigma, abs=6e-6)
    assert cdp.paper(adult(**case)).epsilon == pytest.approx(10, abs=1e-4)
    assert cdp.tight(adult(**case)).epsilon == pytest.approx(8.357, abs=1e-3)
    assert (secret["P1"], secret["P2"]) == pytest.approx(fresh, rel=4e-3)
    assert (goes_on["P1"], goes_on["P2"]) == pytest.approx(continuing, rel=4e-3)
    assert secret["P2 SWOR"] == pytest.approx(swor, rel=4e-3)


def test_a_network_has_none_of_the_credit_that_convexity_gives():
    network = adult(rounds=50, steps=5, sigma=sigma_of_the_paper(50, 5))

    assert set(epsilons(network)) == {"P1", "P3"}
    assert epsilons(network)["P3"] == epsilons(network)["P1"] == pytest.approx(363.9, rel=1e-3)


def test_the_baselines_paper_divides_by_all_devices():
    one = cdp.OneStep(**asdict(adult(steps=1, sigma=0.03)))

    assert one.paper_rho == pytest.approx(2 * 13 / (16 * (32 * 0.03) ** 2))
    assert cdp.paper(one).epsilon == zcdp.bun_steinke_epsilon(one.paper_rho, 1e-4)
    assert cdp.tight(one).method.startswith("Section VI-C, exact Gaussian")
    assert cdp.bounds(one) == cdp.bounds(adult(steps=1, sigma=0.03))


def test_without_secure_aggregation_the_paper_does_not_divide_by_r():
    alone, summed = adult(secagg=False), adult()

    assert alone.paper_rho == pytest.approx(10 * summed.paper_rho)
    assert set(epsilons(alone)) == {"P1"}


# --- The bounds ---


def test_an_access_by_hand():
    # Replacing a record moves the mean of 4 gradients of norm 3 by at most 6 / 4.
    one = adult(batch_size=4, clip_norm=3.0, sigma=0.5, samples=40)

    assert one.access_rho == pytest.approx((6 / 4) ** 2 / (2 * 0.5**2))
    assert epsilons(adult(rounds=1, steps=1, secagg=False))["P1"] == pytest.approx(
        zcdp.exact_epsilon(adult().access_rho, 1e-4)
    )


def test_colluding_devices_take_their_noise_away():
    few, none = adult(convex=True, colluding=6), adult(convex=True)

    assert (none.hidden, few.hidden, adult(colluding=15).hidden) == (10, 4, 1)
    assert epsilons(few)["P2"] == pytest.approx(zcdp.exact_epsilon(13 * few.access_rho / 4, 1e-4))
    assert epsilons(adult(convex=True, colluding=15))["P2"] == epsilons(none)["P1"]


def test_p3_beats_p1_for_tiny_batches_and_many_devices():
    # (1 / gamma + tau - 1)**2 2 G**2 / (r_h sigma**2) = (1 + 1)**2 / 10 of an access.
    found = adult(batch_size=1, steps=2, sigma=1.0)

    assert epsilons(found)["P3"] == pytest.approx(
        zcdp.exact_epsilon(13 * 0.4 * found.access_rho, 1e-4)
    )


def test_p4_grows_with_the_steps_lipschitz_constant():
    found = adult(lipschitz=1.1, steps=3)
    loose = adult(lipschitz=1e6, steps=300)

    assert epsilons(found)["P4"] == pytest.approx(
        zcdp.exact_epsilon(13 * found.access_rho * 1.1**4 / 10, 1e-4)
    )
    assert epsilons(loose)["P4"] == epsilons(loose)["P1"]
    assert "P4" not in epsilons(adult(lipschitz=1.1, steps=1))


@given(
    factor=st.floats(0.2, 1.5),
    steps=st.integers(1, 8),
    devices=st.integers(1, 20),
    accesses=st.sets(st.integers(0, 7), min_size=1, max_size=4),
)
@settings(max_examples=examples(150))
def test_the_bounds_hold_for_linear_steps_exactly(factor, steps, devices, accesses):
    """A step that multiplies by a factor: the sum's Gaussians and their rho are known exactly."""
    used = [step for step in accesses if step < steps]
    sigma, batch = 0.7, 3
    run = adult(
        sigma=sigma, batch_size=batch, samples=3, steps=steps, devices=devices, per_round=devices,
        convex=factor <= 1, lipschitz=max(1.0, factor),
    )  # fmt: skip
    powers = factor ** np.arange(steps - 1, -1, -1.0)
    moved = 2 / batch * powers[used].sum()
    exact = moved**2 / (2 * devices * sigma**2 * (powers**2).sum())

    for name, cost, _ in cdp._round_costs(run):
        if used and not (name == "P3" and factor > 1):  # P3's gradients are clipped, no such map's
            assert exact <= cost(len(used)) * (1 + 1e-9)


def test_discrete_noise_is_that_of_rounded_gaussians():
    plain = adult(convex=True, secret_order=True)
    rho = 13 * plain.access_rho / 10
    for sigma, wider in ((8.0, 64 / 60), (1e4, 1 + 4e-8)):
        found = epsilons(adult(convex=True, secret_order=True, discrete=True, integer_sigma=sigma))
        assert found["P2"] == pytest.approx(zcdp.exact_epsilon(rho * wider, 1e-4), rel=1e-9)
        growth = found["P2 SWOR"] / epsilons(plain)["P2 SWOR"]
        assert 1 - 1e-6 <= growth < wider**1.5 + 1e-6
    coarse = epsilons(adult(convex=True, discrete=True, integer_sigma=1.9))
    assert coarse["P2"] == pytest.approx(zcdp.rdp_epsilon(rho, 1e-4), rel=1e-9)
    assert epsilons(plain)["P2"] == pytest.approx(zcdp.exact_epsilon(rho, 1e-4))


def test_failures_count_for_the_bounds_that_rest_on_sums():
    failing = cdp.bounds(adult(convex=True, failure=4e-6))
    p1, p2 = cdp.bounds(adult(convex=True))
    less = cdp.bounds(adult(convex=True, delta=2e-5))[1]

    assert failing[0] == p1
    assert failing[1].epsilon == pytest.approx(less.epsilon, rel=1e-9)
    assert failing[1].epsilon > 1.02 * p2.epsilon
    assert failing[1].delta == 1e-4
    assert any("probability of at most 4e-06" in clause for clause in failing[1].assumptions)
    assert cdp.bounds(adult(convex=True, failure=5e-6))[1].epsilon == math.inf
    secret = epsilons(adult(convex=True, failure=5e-6, secret_order=True))
    assert "P2 SWOR" not in secret
    assert secret["P1 SWOR"] < secret["P1"]


def test_shuffles_of_more_than_an_epoch_are_not_amplified():
    assert "P2 SWOR" not in epsilons(
        adult(convex=True, secret_order=True, samples=319, batch_size=32, steps=10)
    )


def test_a_device_with_less_than_a_batch_has_all_its_samples_in_every_step():
    """Its steps are divided by the batch size, and nothing is secret of which samples they use."""
    few = adult(samples=16, steps=1, secret_order=True, secagg=False)
    all_of_it = zcdp.exact_epsilon(13 * 2 / (32 * 0.01353) ** 2, 1e-4)
    assert [one.epsilon for one in cdp.bounds(few)] == pytest.approx([all_of_it] * 2, rel=1e-9)
    assert cdp.tight(few).epsilon == pytest.approx(all_of_it, rel=1e-9)


# --- Accesses ---


def worst_by_trying(settings, cost, once_a_round=False):
    """Try every step of every epoch in which a record can be used."""
    total = settings.worst_participations * settings.steps
    epochs = [
        range(start, min(start + settings.epoch, total))
        for start in range(0, total, settings.epoch)
    ]
    worst = 0.0
    for chosen in itertools.product(*epochs):
        used = Counter(step // settings.steps for step in chosen)
        if once_a_round and max(used.values()) > 1:
            continue
        worst = max(worst, sum(cost(count) for count in used.values()))
    return worst


COSTS: list[Callable[[int], float]] = [
    lambda a: float(a),
    lambda a: min(a, a**2 / 2.5),
    lambda a: min(a, 0.3),
]


@pytest.mark.parametrize(
    ("rounds", "steps", "epoch"),
    [(4, 2, 3), (3, 3, 4), (5, 1, 2), (2, 5, 2), (2, 4, 5), (3, 2, 2), (2, 3, 7), (6, 1, 4)],
)
@pytest.mark.parametrize("cost", COSTS)
def test_worst_placement_of_a_records_accesses(rounds, steps, epoch, cost):
    common = {"rounds": rounds, "participations": rounds, "steps": steps, "batch_size": 1}
    for shuffle in ("straddling", "continuing"):
        run = adult(**common, samples=epoch, shuffle=shuffle)
        once = shuffle == "continuing" and steps <= epoch
        tried = worst_by_trying(run, cost, once_a_round=once)

        found = cdp.worst_rho(run, cost)
        assert found >= tried - 1e-12
        # Once a round at the most is counted, and not which placements allow it.
        assert found == pytest.approx(tried) or once


def test_split_accesses_of_many_rounds_are_those_of_a_period_again_and_again():
    def cost(accesses):
        return accesses**2

    run = {"per_round": 16, "batch_size": 7, "samples": 60, "steps": 6, "shuffle": "straddling"}
    for rounds in (1, 3, 4, 5, 17, 100):
        whole = cdp._worst_split(6 * rounds, 6, 8, cost)
        assert cdp.worst_rho(adult(rounds=rounds, **run), cost) == whole
    assert cdp.worst_rho(adult(rounds=10**9, **run), cost) > 10**8


def test_a_record_that_straddles_is_charged_for_both_accesses_at_once():
    # Last in one epoch and first in the next, in one round: 4 rho / r_h, and not 2.
    straddling = adult(shuffle="straddling", convex=True)
    costs = {name: cost for name, cost, _ in cdp._round_costs(straddling)}

    assert cdp.worst_rho(straddling, costs["P2"]) == pytest.approx(straddling.access_rho * 4 / 10)
    assert cdp.worst_rho(straddling, costs["P1"]) == pytest.approx(straddling.access_rho * 2)


@given(
    sigma=st.floats(1e-3, 10),
    more=st.floats(1.01, 3),
    steps=st.integers(1, 90),
    shuffle=st.sampled_from(list(cdp.SHUFFLES)),
    convex=st.booleans(),
)
def test_more_noise_is_more_private_and_no_credit_makes_it_worse(
    sigma, more, steps, shuffle, convex
):
    run = {"steps": steps, "shuffle": shuffle, "convex": convex, "lipschitz": 1.2}
    found, quieter = epsilons(adult(sigma=sigma, **run)), epsilons(adult(sigma=sigma * more, **run))

    assert all(quieter[name] <= found[name] for name in found)
    assert all(found[name] <= found["P1"] * (1 + 1e-12) for name in found)


def test_guarantees_say_what_they_rest_on():
    p1, p2 = cdp.bounds(adult(convex=True))

    assert p1.adjacency == p2.adjacency == REPLACE_RECORD
    assert p1.delta == 1e-4
    assert not any("expands distances" in clause for clause in p1.assumptions)
    assert any("expands distances" in clause for clause in p2.assumptions)
    assert not any("convex" in clause for clause in p2.assumptions)  # which is not enough
    assert any("13 of the 20 rounds" in clause for clause in p1.assumptions)
    assert cdp.SHUFFLES["fresh"] in p1.assumptions


def clipped_gradient(weights, x, label, clip):
    """Return the clipped gradient of a sample's loss in softmax regression, shape (classes, d)."""
    scores = weights @ x
    chances = np.exp(scores - scores.max())
    chances /= chances.sum()
    chances[label] -= 1
    gradient = np.outer(chances, x)
    return gradient * min(1.0, clip / np.linalg.norm(gradient))


def least_eigenvalue(weights, x, label, clip):
    """Return that of the symmetric part of the clipped gradient's Jacobian, and its direction."""
    columns, step = [], 1e-5
    for index in range(weights.size):
        moved = np.zeros(weights.size)
        moved[index] = step
        moved = moved.reshape(weights.shape)
        up, down = (clipped_gradient(weights + s * moved, x, label, clip) for s in (1, -1))
        columns.append((up - down).ravel() / (2 * step))
    jacobian = np.array(columns).T
    values, vectors = np.linalg.eigh((jacobian + jacobian.T) / 2)
    return float(values[0]), vectors[:, 0].reshape(weights.shape)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_clipped_steps_of_two_classes_never_expand_and_of_three_do(classes):
    """P2's condition: convexity is not enough, as clipping undoes it with three classes."""
    rng = np.random.default_rng(3)
    worst: tuple[float, Any] = (math.inf, None)
    for _ in range(400):
        x = rng.normal(size=2) * 3
        weights = rng.normal(size=(classes, 2))
        label = int(rng.integers(classes))
        value, direction = least_eigenvalue(weights, x, label, 1.0)
        if value < worst[0]:
            worst = value, (weights, x, label, direction)
    assert worst[0] > -1e-7 if classes == 2 else worst[0] < -0.005
    weights, x, label, direction = worst[1]
    for rate in (1e-3, 1e-1):
        apart = 1e-4 * direction
        steps = [clipped_gradient(weights + s * apart, x, label, 1.0) for s in (0.5, -0.5)]
        growth = np.linalg.norm(apart - rate * (steps[0] - steps[1])) / np.linalg.norm(apart)
        if classes == 2:
            assert growth <= 1 + 1e-9
        else:
            assert growth > 1 + 1e-3 * rate


def test_clipped_steps_of_two_classes_hold_far_apart_up_to_the_rate_that_is_promised():
    rng = np.random.default_rng(4)
    for _ in range(2000):
        x = rng.normal(size=3) * 10 ** rng.uniform(-1, 1)
        rate = 2 / (float(x @ x) / 2)  # of two classes, the loss is |x|**2 / 2 smooth
        first, second = rng.normal(size=(2, 2, 3)) * 3
        label = int(rng.integers(2))
        steps = [clipped_gradient(one, x, label, 1.0) for one in (first, second)]
        before = np.linalg.norm(first - second)
        assert np.linalg.norm(first - second - rate * (steps[0] - steps[1])) <= before * (1 + 1e-12)
