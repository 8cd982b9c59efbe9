"""All promises of an accepted round hold, whatever the attack.

Each certain event is tested once: attacks that succeed without a defence, and numbers compared with
the true ones. Rounds of the campaign are played as well. All secrets are derived from seeds, so
that these tests are reproducible.
"""

from dataclasses import replace

import numpy as np
import promise_campaign as campaign
import pytest
from hostile_rounds import (
    ANSWERS,
    CHECKS,
    Plan,
    make,
    missing_honest,
    order_of,
    play,
    violations,
)
from promise_campaign import (
    CASES,
    STRATEGIES,
    made,
    with_noise,
)
from scipy import stats

from hpcfl.algorithms.aggregation.promises import Outcome, objection
from hpcfl.errors import BelowThresholdError, UsageError


def routed(*quick):
    """Return all cases; those not in `quick`, which add no code, belong to the full tier."""
    return [pytest.param(case, marks=() if case in quick else pytest.mark.full) for case in CASES]


RINGS = ["secagg-graph", "cohort"]
# The number of rounds per strategy in the suite, if it is not 8; the script plays 10,000.
ROUNDS = {
    "one_hostile_device": 40,
    "few_noises": 16,
    **dict.fromkeys(("early_leavers", "chosen_departures"), 4),
}
# Strategies that exceed the limits of the promises, so that some rounds must end.
SOME_END = {"early_leavers", "chosen_departures", "few_noises"}


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.__name__)
@pytest.mark.full
def test_a_round_that_is_accepted_keeps_its_promises(strategy):
    generator = np.random.default_rng(7)
    findings = [strategy(generator, seed) for seed in range(ROUNDS.get(strategy.__name__, 8))]
    assert [] == [one for one in findings if one.broken]
    assert any(one.accepted for one in findings), "nothing was tried"
    ended = any(not one.accepted for one in findings)
    assert ended == (strategy.__name__ in SOME_END)


# One malicious device


def costs_itself_alone(outcome):
    assert outcome.error is None
    assert [] == missing_honest(outcome)
    assert [] == violations(outcome)


EVERYBODY = tuple(range(14))
CHEATS = {
    "contradict": {"contradict": True},
    "other": {"other": True},
    "lie": {"lie": True},
    "complain": {"complain": True},
    "misdeal": {"misdealt": (1,)},
    "misdeal to some": {"misdealt": (1, 4, 5)},
    "misdeal and answer": {"misdealt": (1,), "answer": "uniform", "about": (2, 4)},
    **{f"answer {name} of all": {"answer": name, "about": EVERYBODY} for name in ANSWERS},
    "answer of one": {"answer": "uniform", "about": (6,)},
}


# If devices with false or missing secrets drop out before their upload, the server asks for their
# mask keys.
VANISHING = [("contradict", "masked_input"), ("other", "masked_input"), ("misdeal", "masked_input")]
VANISHING += [("lie", "unmask"), ("complain", "unmask")]


@pytest.mark.parametrize(("cheat", "vanish"), [*((cheat, "") for cheat in CHEATS), *VANISHING])
@pytest.mark.parametrize("case", routed("cohort", "secagg --security active"))
def test_a_device_that_cheats_with_shares_costs_itself_alone(case, cheat, vanish):
    plan = Plan(hostile=(3,), vanish=vanish, seed=4, **CHEATS[cheat])
    outcome = play(made(case, 10), plan)
    costs_itself_alone(outcome)
    if cheat == "contradict":
        assert 3 not in outcome.survivors, "nobody could take its private mask off"
    if cheat == "lie" and not vanish:
        assert "not what it answered for" in str(outcome.kept_out[3])


@pytest.mark.parametrize("name", RINGS)
def test_false_answers_cost_a_device_itself_alone_with_the_degree_that_is_chosen(name):
    devices = 24
    protocol = make(name, devices, gamma=0.1, dropout=0.3, alpha=0.5)
    everybody = tuple(range(devices))
    for seed in range(2):
        ids = np.random.default_rng(seed).permutation(devices).tolist()
        plan = Plan(hostile=(ids[0],), answer="uniform", about=everybody, seed=seed)
        gone = ids[1 : 1 + campaign.part_of(0.3, devices)]
        costs_itself_alone(play(protocol, plan, dropouts=dict.fromkeys(gone, "share_keys")))


def test_a_dealer_that_deals_wrongly_to_t_plus_1_of_many_holders_does_not_end_the_round():
    """The case differs from one false answer among t + 1: all other holders agree."""
    protocol = make("secagg-graph", 60, degree=20, gamma=0.05, dropout=0.1)
    plan = Plan(hostile=(0,), seed=1)

    def choose(server):
        near = [id for id in server._links.holders(0).tolist() if id]
        plan.misdealt = tuple(near[: protocol.topology.threshold + 1])
        return {}

    costs_itself_alone(play(protocol, plan, choose=choose))


@pytest.mark.parametrize(("devices", "hostile"), [(6, 1), (41, 10)])
def test_t_answers_that_agree_save_no_dealer_whom_all_others_contradict(devices, hostile):
    """Any t answers lie on one polynomial; a dealer's complaint about itself is one of n."""
    liars = tuple(range(hostile))
    dealer = Plan(
        victims=tuple(range(hostile, 2 * hostile)),
        spoil="garbled",
        misdealt=(2 * hostile,),
        complain=True,
    )
    others = Plan(complain=True)
    plan = Plan(hostile=liars, seed=3, each=dict.fromkeys(liars, others) | {0: dealer})
    costs_itself_alone(play(make("secagg", devices, dropout=0.0), plan))


def test_as_many_liars_as_are_planned_for_expel_nobody():
    protocol = make("secagg", 41, dropout=0.0)
    plan = Plan(hostile=tuple(range(10)), answer="uniform", about=(20,), seed=1)
    assert protocol.most_at_fault == 10
    costs_itself_alone(play(protocol, plan))


def test_too_few_holders_that_tell_what_they_hold_end_the_round():
    protocol = make("lightsecagg", 12)
    server = protocol.server(0, np.zeros(protocol.parameters.dim, np.float32))
    with pytest.raises(BelowThresholdError, match="told whose pieces they hold"):
        server.finish_held()


def test_on_a_ring_no_more_are_at_fault_than_chance_dropouts_leave_room_for():
    """The number of answers does not matter, because later dropouts are still to come."""
    protocol = make(
        "secagg-graph", 60, degree=20, gamma=0.05, dropout=0.1, dropout_model="bernoulli"
    )
    holders, failure = 21, 2.0**-protocol.parameters.correctness_bits
    gone = stats.binom.isf(failure, holders - 1, 0.1) + 1
    # One more device may drop out than are drawn, and `most_dropped` has counted it.
    left = holders + 1 - gone
    assert max(1, (left - protocol.topology.threshold) // 2) == protocol.most_at_fault


@pytest.mark.parametrize("me", [0, 9])
@pytest.mark.parametrize("copy", ["both", "transport", "mask", "of two"])
@pytest.mark.parametrize("case", routed("cohort"))
def test_a_copied_key_costs_its_owner_nothing(case, copy, me):
    plan = Plan(hostile=(me,), copy=copy, owners=(5, 6), seed=3)
    costs_itself_alone(play(made(case, 10), plan))


# More dropouts than a promise allows


def ends_with_a_promise(outcome, careless):
    """Assert that the server ends a round, or that all honest devices refuse if it is careless."""
    assert outcome.error is not None
    if careless:
        assert outcome.honest_survivors <= refusing(outcome)
    else:
        assert "before anything is revealed" in str(outcome.error)


def refusing(outcome):
    return {id for id, error in outcome.left.items() if "refuses to unmask" in str(error)}


@pytest.mark.parametrize("careless", [False, True])
@pytest.mark.parametrize("phase", ["advertise_keys", "share_keys", "masked_input"])
def test_a_ring_that_far_more_leave_than_are_planned_ends(phase, careless):
    protocol, colluding = campaign.ring_for_leavers()
    generator = np.random.default_rng(3)
    count = campaign.above_plan(protocol, colluding)
    outcome = campaign.leave(generator, protocol, colluding, count, phase, careless, 3)
    survivors = {*outcome.survivors}
    assert len(survivors) == protocol.parameters.devices - count
    held = [len(survivors & {*outcome.devices[id]._links.holders}) for id in survivors]
    assert min(held) >= protocol.topology.threshold, "it could not have ended in any case"
    ends_with_a_promise(outcome, careless)


def test_a_cohort_below_its_floor_ends_the_round_and_one_above_does_not():
    protocol = campaign.cohorts_of_all()
    floor, accepted = protocol.parameters.min_cohort, []
    for keep in range(floor - 1, protocol.cohort_size, 4):
        outcome = campaign.depart(np.random.default_rng(5), protocol, keep, False, 5)
        assert "" == campaign.floor_kept(outcome)
        accepted.append(outcome.accepted)
        if outcome.accepted:
            assert [] == violations(outcome)
        else:
            ends_with_a_promise(outcome, False)
    assert {False, True} == {*accepted}


def test_devices_of_a_cohort_below_its_floor_refuse_by_themselves():
    protocol = campaign.cohorts_of_all()
    floor = protocol.parameters.min_cohort
    outcome = campaign.depart(np.random.default_rng(5), protocol, floor - 1, True, 5)
    cohorts = campaign.cohorts_on(order_of(outcome.server), protocol.cohort_size)
    left = [{*one} & {*outcome.survivors} for one in cohorts]
    below = [one for one in left if len(one) < campaign.least_survivors(outcome)]
    assert below
    assert set().union(*below) & outcome.honest_survivors <= refusing(outcome)


@pytest.mark.parametrize("careless", [False, True])
@pytest.mark.parametrize("case", ["secagg", "cohort"])
def test_a_sum_with_less_noise_than_was_promised_is_not_unmasked(case, careless):
    accepted = []
    for gone in range(6):
        outcome = campaign.leave_noise(case, gone, careless, 5)
        accepted.append(outcome.accepted)
        if not outcome.accepted:
            ends_with_a_promise(outcome, careless)
            continue
        assert [] == violations(outcome)
    # The plan allows floor(0.2 * 12) dropouts and one more.
    assert [True] * 4 + [False] * 2 == accepted


@pytest.mark.parametrize("case", RINGS)
def test_an_account_is_charged_enough_for_a_round_with_one_that_is_expelled(case):
    """With this degree masks fail often enough to matter; all devices that may drop out do."""
    protocol = with_noise(make(case, 40, degree=14, dropout=0.1, gamma=0.1))
    charged = protocol.hidden_failure()
    gone = dict.fromkeys(range(10, 14), "masked_input")
    round_ = play(protocol, Plan(hostile=(5,), contradict=True, seed=2), dropouts=gone)
    outcome = protocol.outcome(round_.server)

    assert 5 == 40 - len(round_.survivors)
    assert 1 == outcome.expelled
    failure, if_dropped = (
        sum(promise.failure(one) for promise in protocol.promises())
        for one in (outcome, replace(outcome, expelled=0))
    )
    # An adversary chooses the place of an expelled device, unlike a random dropout.
    assert 1e-6 < if_dropped < failure <= charged < 1


def test_masks_that_fail_for_sure_are_nothing_that_an_account_can_rely_on():
    protocol = make("secagg-graph", 20, degree=4, dropout=0.3, gamma=0.1)
    with pytest.raises(UsageError, match="raise --degree, or leave it out"):
        protocol.hidden_failure()


@pytest.mark.parametrize("case", ["secagg", "secagg-graph", "lightsecagg", "committee", "opa"])
def test_the_fewest_survivors_of_a_round_are_those_with_which_it_ends(case):
    """The promises predict the result: one survivor less ends the round."""
    protocol = make(case, 20, dropout=0.2, gamma=0.1)
    numbers = range(protocol.needed_in_sum, 21)
    promises = protocol.promises()
    least = next(n for n in numbers if objection(promises, Outcome(20, n)) is None)
    for count, ends in ((least, True), (least - 1, False)):
        gone = dict.fromkeys(range(20 - count), protocol.upload_phase())
        outcome = play(protocol, Plan(seed=1), dropouts=gone)
        assert ends == (outcome.error is None), outcome.error


@pytest.mark.parametrize("case", ["secagg", "sparse"])
def test_a_false_dealer_that_does_not_answer_itself_is_expelled_by_t_plus_1_answers(case):
    """With seven devices and t = 4, no device that answers is lost, so the round continues."""
    protocol = make(case, 7, dropout=0.3, alpha=0.5)
    plan = Plan(hostile=(2,), contradict=True, vanish=CHECKS, seed=1)
    outcome = play(protocol, plan, dropouts={5: CHECKS})
    assert outcome.error is None
    assert [0, 1, 3, 4, 6] == outcome.survivors
    assert [] == violations(outcome)


@pytest.mark.parametrize("case", ["secagg", "cohort"])
def test_one_device_may_vanish_where_dropouts_are_drawn_and_next_to_none_are_expected(case):
    options = {"dropout": 1e-8, "dropout_model": "bernoulli", "gamma": 0.05, "alpha": 0.5}
    protocol = with_noise(make(case, 20, **options))
    for phase in (CHECKS, "masked_input", "unmask"):
        outcome = play(protocol, Plan(seed=1), dropouts={4: phase})
        assert outcome.error is None, phase
        assert 19 <= len(outcome.survivors)
