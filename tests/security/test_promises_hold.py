"""Whatever was promised of a round that was accepted holds of it, whoever attacked it."""

from __future__ import annotations

from typing import Any

import hostile_rounds
import numpy as np
import promise_campaign
import pytest
from hostile_rounds import Plan, missing_honest, play, violations
from promise_campaign import CASES, STRATEGIES, broken, too_many

ROUTED = sorted(CASES)
# How many rounds of each strategy the suite plays; the script plays 10,000.
ROUNDS = {
    "one_hostile_device": 30,
    "removed_devices": 6,
    "early_leavers": 2,
    "chosen_departures": 8,
    "ground_keys": 2,
    "few_noises": 8,
    "drawn_from_many": 8,
    "replays": 8,
    "bad_values": 8,
}


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_a_round_that_is_accepted_keeps_its_promises(strategy: str) -> None:
    generator = np.random.default_rng(7)
    findings = [STRATEGIES[strategy](generator, seed) for seed in range(ROUNDS[strategy])]
    assert [] == broken(findings)
    assert any(one.accepted for one in findings), "nothing was tried"


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("spoil", sorted(hostile_rounds.SPOILS))
@pytest.mark.parametrize("case", ROUTED)
def test_rows_of_one_device_make_no_other_leave(case: str, spoil: str, many: bool) -> None:
    devices, me = 10, 3
    victims = tuple(id for id in range(devices) if id != me) if many else (1,)
    outcome = play(
        promise_campaign._made(case, devices),
        Plan(hostile=(me,), victims=victims, spoil=spoil, vanish="unmask", seed=2),
    )
    assert outcome.error is None
    assert [] == missing_honest(outcome)
    assert [] == violations(outcome)


@pytest.mark.parametrize("vanish", ["", "masked_input", "unmask"])
@pytest.mark.parametrize("trick", ["contradict", "other", "lie", "complain"])
@pytest.mark.parametrize("case", ROUTED)
def test_a_device_that_cheats_with_shares_costs_itself_alone(
    case: str, trick: str, vanish: str
) -> None:
    tricks: dict[str, Any] = {trick: True}
    outcome = play(
        promise_campaign._made(case, 10), Plan(hostile=(3,), vanish=vanish, seed=4, **tricks)
    )
    assert outcome.error is None
    assert [] == missing_honest(outcome)
    assert [] == violations(outcome)
    if trick == "contradict":
        assert 3 not in outcome.survivors, "nobody could take its private mask off"
    if trick == "lie" and not vanish:
        assert "not what it answered for" in str(outcome.refused[3])


# What the campaign counts, it can find


def test_a_wrong_sum_is_found() -> None:
    outcome = play(promise_campaign._made("secagg", 10), Plan(seed=1))
    assert [] == violations(outcome)
    outcome.server.total[5] += 1
    assert ["the sum is wrong"] == violations(outcome)


def test_devices_that_were_made_to_leave_are_found() -> None:
    outcome = play(promise_campaign._made("secagg", 10), Plan(seed=1))
    outcome.server.survivors.remove(4)
    assert [4] == missing_honest(outcome)


def test_colluders_that_open_a_secret_or_split_the_honest_are_found() -> None:
    outcome = play(promise_campaign._made("secagg-graph", 12), Plan(seed=1))
    order = outcome.server._links.order.tolist()
    outcome.plan.hostile = tuple(order[:4])
    assert "open both secrets" in " ".join(violations(outcome))
    # Degree 8: four in a row between two honest parts, on either side.
    outcome.plan.hostile = (*order[:4], *order[6:10])
    assert "fall into 2 parts" in " ".join(violations(outcome))


def test_a_cohort_that_is_left_with_one_is_found() -> None:
    protocol = hostile_rounds.make("cohort", 12, alpha=0.25, dropout=0.0, gamma=0.0, min_cohort=2)
    outcome = play(protocol, Plan(seed=1))
    assert [] == violations(outcome)
    outcome.plan.hostile = tuple(outcome.server._links.order[:2].tolist())
    assert ["a cohort is left with 1 honest survivors"] == violations(outcome)


def test_failures_count_as_too_many_where_chance_does_not_explain_them() -> None:
    assert too_many(1, [0.0] * 100)
    assert not too_many(0, [0.0] * 100)
    assert not too_many(2, [2.0**-10] * 1000)
    assert too_many(30, [2.0**-10] * 1000)


def test_the_campaigns_own_bounds_are_exact() -> None:
    """Counted out over all subsets of a ring of eight, three of which collude."""
    from fractions import Fraction
    from itertools import combinations

    ring, colluding, degree, threshold = 8, 3, 4, 3
    subsets = list(combinations(range(1, ring), colluding))
    near = {ring - 2, ring - 1, 1, 2}
    opened = Fraction(sum(len(near & {*one}) >= threshold for one in subsets), len(subsets))
    everywhere = list(combinations(range(ring), colluding + 1))
    gone = Fraction(sum({0, 1} <= {*one} for one in everywhere), len(everywhere))
    expected = (ring - colluding) * opened + ring * gone
    assert min(Fraction(1), expected) == promise_campaign.ring_bound(
        ring, colluding, 1, degree, threshold
    )
