"""The accounts of all private algorithms: by hand, and by what they rest on."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from hpcfl.algorithms.federated import PRIVATE, find_private
from hpcfl.errors import UsageError
from hpcfl.privacy.accounting import sampling, zcdp
from hpcfl.privacy.accounting.account import (
    ADD_RECORD,
    ADD_USER,
    REPLACE_RECORD,
    REPLACE_USER,
    ZERO_USER,
)

USERS = {"sigma": 1.32, "rounds": 100, "devices": 100, "per_round": 20}
# The zCDP paper's experiment: 10 of 16 devices with 2441 records each, G = 1, gamma = 32.
ADULT = {"sigma": 0.01353, "rounds": 20, "devices": 16, "per_round": 10, "delta": 1e-4}
ADULT |= {"batch_size": 32, "samples": 2441}
SETTINGS: dict[str, dict[str, Any]] = {
    "cdp": ADULT | {"steps": 10},
    "dp-dsgd": ADULT,
    "dp-fedavg": USERS,
    "locks": USERS | {"first_stage": 30},
    "fedsgd-dpc": {"sigma": 0.05, "rounds": 50, "devices": 10, "per_round": 3, "samples": 6000},
}
INTEGERS = {"noise": "distributed", "honest": 9, "unit": 1e6, "dim": 50}


def account(name, **changes):
    return find_private(name).account.of(**{**SETTINGS[name], **changes})


def epsilons(found):
    """Return the bounds by the first word of how they were found: P1, P2 or P3."""
    return {bound.method.split(",")[0]: bound.epsilon for bound in found.bounds()}


def claims(found):
    return " / ".join(found.proven().assumptions)


def gaussian(rho, delta=1e-5):
    return pytest.approx(zcdp.exact_epsilon(rho, delta), rel=1e-6)


# --- All ---


@pytest.mark.parametrize("name", PRIVATE)
def test_noise_for_an_epsilon_is_enough_and_no_more(name):
    settings = {key: value for key, value in SETTINGS[name].items() if key != "sigma"}
    for by, found in find_private(name).account.with_epsilon(3.0, **settings).items():
        assert float(f"{found.sigma:.6g}") == found.sigma
        assert getattr(found, by)().epsilon <= 3.0
        assert getattr(replace(found, sigma=0.99 * found.sigma), by)().epsilon > 3.0


def test_no_noise_is_found_where_there_is_none():
    given = {key: value for key, value in USERS.items() if key != "sigma"}
    noise = find_private("dp-fedavg").account.with_epsilon
    with pytest.raises(UsageError, match="nothing is released"):
        noise(3.0, **given | {"rounds": 0})
    with pytest.raises(UsageError, match="epsilon is 0"):
        noise(0, **given)
    locks = find_private("locks").account.with_epsilon
    with pytest.raises(UsageError, match="other releases cost more"):
        locks(0.1, **given | {"first_stage": 30, "sigma_norms": 1e-3})


MORE = [
    *((name, {}) for name in PRIVATE),
    ("cdp", {"shuffle": "continuing"}),
    ("dp-fedavg", {"sampling": "exact"}),
    ("dp-fedavg", INTEGERS),
    ("locks", {"variant": "local"}),
    ("fedsgd-dpc", {"mechanism": "gaussian"}),
    ("fedsgd-dpc", {"delta": 1e-5}),
]


@pytest.mark.parametrize(("name", "more"), MORE)
def test_no_rounds_cost_nothing_and_failures_are_taken_off_delta(name, more):
    found = account(name, rounds=0, **more)
    assert {bound.epsilon for bound in (found.paper(), *found.bounds())} == {0}
    if name == "fedsgd-dpc":
        return
    # Of these bounds one rests on what may fail: of `cdp` that of sums, of integers that of all.
    which = 1 if name in ("cdp", "dp-dsgd") else 0
    delta = found.delta
    failing = account(name, **more, rounds=4, failure=delta / 5).bounds()[which]
    less = account(name, **more, rounds=4, delta=delta / 5).bounds()[which]
    assert failing.delta == delta
    assert failing.epsilon == pytest.approx(less.epsilon, rel=1e-6)
    assert "with a probability of at most" in " / ".join(failing.assumptions)
    assert account(name, **more, rounds=5, failure=delta / 5).bounds()[which].epsilon == math.inf


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("cdp", {"sigma": 0}, "--sigma is 0"),
    ("dp-dsgd", {"colluding": 16}, "16 of 16 devices collude"),
    ("cdp", {"per_round": 17}, "--per-round is 17; it must be at most --devices, 16"),
    ("cdp", {"strange": 1}, "no option 'strange'"),
    ("dp-dsgd", {"steps": 10}, "one step a round, not 10"),
    ("dp-fedavg", {"honest": 3}, "honest, unit, dim go with distributed noise"),
    (
        "dp-fedavg",
        {"noise": "distributed", "honest": 3, "dim": 1},
        "honest, unit, dim go with distributed noise",
    ),
    (
        "dp-fedavg",
        INTEGERS | {"honest": 21, "sampling": "exact"},
        "--honest is 21; it must be at most 20",
    ),
    ("dp-fedavg", INTEGERS | {"honest": 101}, "--honest is 101; it must be at most 100"),
    ("locks", {"first_stage": 19}, "--per-round is 20, --first-stage 19 and --devices 100"),
    ("locks", {"replies": 5}, "for --variant local"),
    ("fedsgd-dpc", {"delta": 0, "mechanism": "gaussian"}, "--delta is 0"),
    (
        "fedsgd-dpc",
        {"fraction": 1.1, "mechanism": "gaussian", "record_sampling": "fixed"},
        "a sample must have 1 to all records",
    ),
    ("fedsgd-dpc", {"fraction": 0.5}, "with Laplace noise it is 1"),
    ("fedsgd-dpc", {"fraction": 1e-5, "mechanism": "gaussian"}, "a sample must have 1 to all"),
]


@pytest.mark.parametrize(("name", "wrong", "words"), REFUSED)
def test_wrong_settings_are_refused(name, wrong, words):
    with pytest.raises(UsageError, match=words):
        account(name, **wrong)
    with pytest.raises(UsageError, match=r"sigma, rounds, devices, .* must be given"):
        find_private(name).account.of()


# --- cdp and dp-dsgd ---

CASES = [
    # rounds, steps, sigma, P1 and P2 of fresh shuffles, of continuing epochs
    (20, 10, 0.01353, (199.7, 32.7), (44.8, 9.25)),
    (50, 5, 0.01501, (363.9, 54.6), (52.0, 10.5)),
    (20, 2, 0.00605, (830.7, 112), (90.9, 16.8)),
]


@pytest.mark.parametrize(("rounds", "steps", "sigma", "fresh", "continuing"), CASES)
def test_worked_numbers_of_cdp(rounds, steps, sigma, fresh, continuing):
    # sigma = G sqrt(2 C tau / (r m gamma rho)), for an epsilon of 10.
    exact = math.sqrt(2 * math.ceil(rounds * 10 / 16) * steps / (10 * 2441 * 32 * 1.81739))
    case = {"rounds": rounds, "steps": steps, "sigma": exact, "convex": True}

    assert exact == pytest.approx(sigma, abs=6e-6)
    assert account("cdp", **case).paper().epsilon == pytest.approx(10, abs=1e-4)
    for shuffle, expected in (("fresh", fresh), ("continuing", continuing)):
        found = epsilons(account("cdp", **case, shuffle=shuffle))
        assert (found["P1"], found["P2"]) == pytest.approx(expected, rel=4e-3)
    network = epsilons(account("cdp", **case | {"convex": False}))
    assert set(network) == {"P1", "P3"}


def test_colluding_devices_take_their_noise_away_and_tiny_batches_have_p3():
    few = account("cdp", convex=True, colluding=6)
    assert (few.hidden, account("cdp", colluding=15).hidden) == (4, 1)
    assert epsilons(few)["P2"] == gaussian(13 * few.access_rho / 4, 1e-4)
    # (1 / gamma + tau - 1)**2 2 G**2 / (r_h sigma**2) = (1 + 1)**2 / 10 of an access.
    tiny = account("cdp", batch_size=1, steps=2, sigma=1.0)
    assert epsilons(tiny)["P3"] == gaussian(13 * 0.4 * tiny.access_rho, 1e-4)
    # A device with less than a batch has all its samples in every step.
    small = account("cdp", samples=16, steps=1, secagg=False)
    assert small.proven().epsilon == gaussian(13 * 2 / (32 * 0.01353) ** 2, 1e-4)
    assert small.proven().adjacency == REPLACE_RECORD


@given(
    factor=st.floats(0.2, 1.0),
    steps=st.integers(1, 8),
    devices=st.integers(1, 20),
    accesses=st.sets(st.integers(0, 7), min_size=1, max_size=4),
    convex=st.booleans(),
)
@settings(max_examples=examples(150))
def test_the_bounds_hold_for_linear_steps_exactly(factor, steps, devices, accesses, convex):
    """A step that multiplies by a factor: the sum's Gaussians and their rho are known exactly."""
    used = [step for step in accesses if step < steps]
    run = account(
        "cdp", sigma=0.7, batch_size=3, samples=3, steps=steps, devices=devices, per_round=devices,
        convex=convex,
    )  # fmt: skip
    powers = factor ** np.arange(steps - 1, -1, -1.0)
    moved = 2 / 3 * powers[used].sum()
    exact = moved**2 / (2 * devices * 0.7**2 * (powers**2).sum())
    for _, cost, _ in run.round_costs():
        assert not used or exact <= cost(len(used)) * (1 + 1e-9)


def test_discrete_noise_is_that_of_rounded_gaussians():
    rho = 13 * account("cdp").access_rho / 10
    for sigma, wider in ((8.0, 64 / 60), (1e4, 1 + 4e-8)):
        found = epsilons(account("cdp", convex=True, discrete=True, integer_sigma=sigma))
        assert found["P2"] == gaussian(rho * wider, 1e-4)
    coarse = epsilons(account("cdp", convex=True, discrete=True, integer_sigma=1.9))
    assert coarse["P2"] == math.inf


def worst_by_trying(run, cost):
    """Try every step of every epoch in which a record can be used."""
    total = run.worst_participations * run.steps
    starts = range(0, total, run.epoch)
    epochs = [range(start, min(start + run.epoch, total)) for start in starts]
    used = (Counter(step // run.steps for step in chosen) for chosen in itertools.product(*epochs))
    return max(sum(cost(count) for count in one.values()) for one in used)


@pytest.mark.parametrize(
    ("rounds", "steps", "epoch"), [(3, 3, 2), (2, 5, 2), (3, 2, 1), (2, 4, 3), (4, 3, 2)]
)
@pytest.mark.parametrize("scale", [1, 2.5])
def test_worst_placement_of_a_records_accesses(rounds, steps, epoch, scale):
    run = account(
        "cdp", rounds=rounds, participations=rounds, steps=steps, batch_size=1, samples=epoch,
        shuffle="continuing",
    )  # fmt: skip

    def cost(count):
        return min(count, count**2 / scale)

    assert run.worst_rho(cost) == pytest.approx(worst_by_trying(run, cost))
    assert replace(run, shuffle="fresh").worst_rho(cost) == rounds * cost(-(-steps // epoch))
    # Where an epoch and a round begin together, all begins anew.
    period = replace(run, rounds=math.lcm(steps, epoch) // steps, participations=None, per_round=16)
    long = replace(period, rounds=10**6 * period.rounds)
    assert long.worst_rho(cost) == pytest.approx(10**6 * period.worst_rho(cost))


# --- dp-fedavg ---


def test_samples_of_a_fixed_size_are_accounted_for_replacing():
    found = account("dp-fedavg", sampling="exact", rounds=5)

    # Replacing moves a sum by up to 2 C: half the noise multiplier.
    expected = sampling.fixed_size_gaussian(0.2, 0.66, 5, 1e-5)[0]
    assert (found.proven().epsilon, found.proven().adjacency) == (expected, REPLACE_USER)
    rho = 4 * zcdp.gaussian_rho(1.32)
    everyone = account("dp-fedavg", per_round=100, rounds=4)
    assert everyone.proven().epsilon == gaussian(rho)
    assert replace(everyone, sampling="exact").proven().epsilon == gaussian(4 * rho)


def delta_of_exact_dropouts(epsilon, users, part):
    """Return the delta of one round of all users: one more, at +1, joins others at -1, in the sum.

    Of k users floor(part k) drop out, all as likely; every case is weighed.
    """
    x = np.linspace(-users - 12, users + 12, 200_001)

    def density(of, joins):
        gone = math.floor(part * of)
        in_sum = (of - gone) / of if joins else 0.0
        left = [(in_sum, 1 - (of - gone - 1)), (1 - in_sum, -(of - gone))]
        return sum(w * np.exp(-0.5 * (x - m) ** 2) for w, m in left if w)

    p, q = density(users + 1, True), density(users, False)
    scale = (x[1] - x[0]) / math.sqrt(2 * math.pi)
    excess = (np.clip(one - math.exp(epsilon) * other, 0, None) for one, other in ((p, q), (q, p)))
    return max(float(one.sum() * scale) for one in excess)


@pytest.mark.parametrize(("users", "part"), [(9, 0.1), (9, 0.3), (10, 0.3)])
def test_dropouts_that_follow_are_charged_and_those_that_do_not_are_not(users, part):
    """A round of all users: where one more makes one leave, the sum moves by twice the norm."""
    given = {"sigma": 1.0, "rounds": 1, "devices": users, "per_round": users}
    followed = account("dp-fedavg", **given, exact_dropouts=True)
    plain = account("dp-fedavg", **given).proven().epsilon

    assert delta_of_exact_dropouts(followed.proven().epsilon, users, part) <= 1e-5
    one_leaves = math.floor(part * (users + 1)) > math.floor(part * users)
    assert (delta_of_exact_dropouts(plain, users, part) > 1e-5) == one_leaves
    assert "an exact number drops out" in claims(followed)
    fixed = account("dp-fedavg", sampling="exact", rounds=5)
    assert replace(fixed, exact_dropouts=True).bounds() == fixed.bounds()


def held_to(norm, dim):
    """Return the norm of integers: the mean square, and what Hoeffding's bound adds for 2^-40."""
    more = math.sqrt(80 * math.log(2)) * (norm + math.sqrt(dim) / 2)
    return math.sqrt(norm**2 + dim / 4 + more)


def test_integers_are_those_of_the_clipped_vector_with_its_rounding():
    found = account("dp-fedavg", **INTEGERS | {"unit": 100.0}, clip_norm=2.0, sigma=3.0).integers()
    assert (found.norm, found.dim) == (pytest.approx(held_to(200, 50)), 50)
    assert found.sigma == math.ceil(1.5 * found.norm / 3)


def test_fine_integers_cost_what_gaussian_noise_without_sampling_does():
    found = account("dp-fedavg", **INTEGERS, participations=7)
    cost = zcdp.exact_epsilon(7 * zcdp.gaussian_rho(1.32), 1e-5)
    assert found.proven().epsilon == pytest.approx(cost, rel=1e-4)
    assert found.proven().adjacency == ZERO_USER
    assert "at most 7 of the 100 rounds" in claims(found)
    for other in ({"sampling": "exact"}, {"per_round": 90}, {"devices": 1000}):
        same = account("dp-fedavg", **INTEGERS, participations=7, **other)
        assert same.proven().epsilon == found.proven().epsilon


def test_rounds_are_charged_by_the_noise_that_was_there():
    # Of 9 planned, 3 to 9 came: the multiplier of a round is smaller by sqrt(came / 9).
    came = (9, 3, 9, 5, 7)
    found = account("dp-fedavg", **INTEGERS, rounds=5, honest_by_round=came)
    rho = sum(zcdp.gaussian_rho(1.32 * math.sqrt(one / 9)) for one in came)
    expected = zcdp.exact_epsilon(rho, 1e-5)
    assert found.proven().epsilon == pytest.approx(expected, rel=1e-3)
    assert "at least 3 honest users add" in claims(found)
    assert replace(found, participations=2).worst_rounds == (3, 5)
    # Without honest noise nothing is proven but by a user's own: each of 9 adds a third.
    none = account("dp-fedavg", **INTEGERS, rounds=2, honest_by_round=(9, 0))
    sums, own = none.bounds()
    assert sums.epsilon == math.inf
    expected = zcdp.exact_epsilon(2 * zcdp.gaussian_rho(1.32 / 3), 1e-5)
    assert own.epsilon == pytest.approx(expected, rel=1e-4)


def test_a_users_own_noise_holds_whatever_masks_do():
    given = INTEGERS | {"sigma": 3.3, "rounds": 7, "honest": 1, "participations": 1}
    sums, own = account("dp-fedavg", **given, failure=0.013).bounds()
    exact = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE).compose(GaussianDpEvent(3.3))

    assert sums.epsilon == math.inf
    assert own.epsilon == pytest.approx(exact.get_epsilon(1e-5), rel=1e-3)
    assert not any("probability" in clause for clause in own.assumptions)


# --- locks ---


@given(
    first=st.integers(0, 120),
    second=st.integers(0, 120),
    norms=st.floats(0.5, 20),
    updates=st.floats(0.5, 20),
    clip=st.floats(0.1, 10),
)
@settings(max_examples=examples(100))
def test_users_noise_against_the_distance_of_gaussians(first, second, norms, updates, clip):
    # Replacing a user's data moves its norm from a to b, and its update by a + b at the most: all
    # pairs in every round with a reply, (0, C) in every other one.
    found = account(
        "locks", variant="local", sigma=updates, sigma_norms=norms, clip_norm=clip,
        first_stages=first, replies=second,
    )  # fmt: skip
    a, b = np.meshgrid(np.linspace(0, clip, 21), np.linspace(0, clip, 21))
    replied = (((a - b) / norms) ** 2 + ((a + b) / updates) ** 2).max()
    first = min(first, 100)
    second = min(first, second)
    squared = second * replied + (first - second) * (clip / norms) ** 2

    assert found.proven().epsilon == gaussian(squared / 2)
    assert found.proven().adjacency == REPLACE_USER
    assert f"at most {first} times, and in stage 2 at most {second} times" in claims(found)


def test_a_trusted_aggregator_is_a_poisson_sample_of_both_releases():
    found = account("locks", sigma=2.0, sigma_norms=1.5, clip_norm=0.5, rounds=3)
    z = (3**-2 + 4**-2) ** -0.5
    for moved, one in ((1, found), (2, replace(found, exact_dropouts=True))):
        expected = sampling.poisson_gaussian(0.3, z / moved, 3, 1e-5)[0]
        assert one.proven().epsilon == pytest.approx(expected, rel=1e-9)
        assert one.proven().adjacency == ADD_USER


# --- fedsgd-dpc ---


@pytest.mark.parametrize(
    ("changes", "sensitivity", "adjacency"),
    [
        ({"fraction": 0.01}, 1 / 60, ADD_RECORD),
        ({"clip_norm": 10, "fraction": 0.5}, 10 / 3000, ADD_RECORD),
        ({"record_sampling": "fixed", "fraction": 0.01}, 2 / 60, REPLACE_RECORD),
        ({"record_sampling": "fixed", "fraction": 0.299, "samples": 100}, 2 / 29, REPLACE_RECORD),
        ({"fraction": 0.299, "samples": 100}, 1 / 29.9, ADD_RECORD),
        ({"fraction": 2.0}, 1 / 12_000, ADD_RECORD),
    ],
)
def test_sensitivity_of_a_mean_gradient(changes, sensitivity, adjacency):
    found = account("fedsgd-dpc", mechanism="gaussian", rounds=20, **changes)
    assert found.multiplier == pytest.approx(0.05 / sensitivity, rel=1e-12)
    assert (found.adjacency, found.actual_delta) == (adjacency, 1e-5)
    find = sampling.poisson_gaussian if adjacency == ADD_RECORD else sampling.fixed_size_gaussian
    rate = min(1, found.batch / found.samples)
    assert found.proven().epsilon == find(rate, found.multiplier, 6, 1e-5)[0]
