"""Rounds of secret samples must not end early: how likely that is, and what is refused for it."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from hpcfl.algorithms import federated
from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.federated.base import Federation
from hpcfl.algorithms.federated.draws import early_end
from hpcfl.algorithms.federated.participation import Participation
from hpcfl.algorithms.noise import insecure_noise
from hpcfl.algorithms.parameters import Parameters
from hpcfl.errors import UsageError
from hpcfl.options.privacy import PrivacyOptions
from hpcfl.options.training import TrainOptions

DEVICES = 12


def protocol(name, devices=DEVICES, per_round=6, **parameters):
    given = {"dropout": 0.0, "gamma": 0.0, "levels": 2**10, "population": devices} | parameters
    return find(name)(Parameters(per_round, 10, **given))


def federation(name, devices=DEVICES, per_round=6, rounds=3, mode="poisson", **parameters):
    return Federation(
        sizes=np.full(devices, 64),
        participation=Participation(devices, per_round, mode, 3),
        rounds=rounds,
        seed=3,
        protocol=protocol(name, devices, per_round, **parameters),
        local=None,
    )


def check(where, options=None):
    federated.find("dp-fedavg").check(where, options or PrivacyOptions(sigma=1.0))


def hits(trials, rate, count):
    """Return the exact probability of so many hits."""
    return math.comb(trials, count) * rate**count * (1 - rate) ** (trials - count)


@pytest.mark.parametrize("model", ["exact", "bernoulli"])
@pytest.mark.parametrize(
    ("name", "least", "needed"),
    [
        ("fedavg", 1, lambda count: 1),
        ("secagg", 2, lambda count: count // 2 + 1),
        ("assisted", 2, lambda count: count // 2 + 1),
        ("ckks", 2, lambda count: count // 2 + 1),
    ],
)
def test_how_likely_a_round_ends_early_is_found_exactly(name, least, needed, model):
    """Those drawn are too few to play, or those of them that stay are too few to be summed."""
    join, leave = Fraction(1, 4), Fraction(2, 5)
    one = protocol(name, dropout=0.4, dropout_model=model)
    expected = Fraction(0)
    for count in range(1, DEVICES + 1):
        spare = count - needed(count)
        if count < least:
            ends = Fraction(1)
        elif model == "exact":
            ends = Fraction(int(leave * count) > spare)
        else:
            ends = sum(hits(count, leave, gone) for gone in range(spare + 1, count + 1))
        expected += hits(DEVICES, join, count) * ends
    assert early_end(one, DEVICES, 0.25).chance == pytest.approx(float(expected), abs=2.0**-40)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("secagg", {}, r"of 1 device \(secagg needs at least 2"),
        ("prf", {}, r"of 1 device \(prf needs at least 2"),
        # Enough devices for the protocol, but too few for those that collude.
        (
            "lightsecagg",
            {"gamma": 0.1, "devices": 20},
            "lightsecagg needs more of these than of those",
        ),
        ("committee", {"gamma": 0.1, "devices": 20}, "more may collude than are sure to stay"),
        # Enough, and too many of them may leave.
        ("secagg", {"dropout": 0.3, "devices": 200, "per_round": 100}, "must stay.*-model exact"),
        ("fedavg", {"dropout": 0.3}, "at least 1 of them must stay.*--dropout-model exact"),
    ],
)
def test_what_may_end_early_is_refused_whatever_chance_draws(name, options, words):
    with pytest.raises(UsageError, match=f"must stay secret: {name} ends a round early.*{words}"):
        check(federation(name, dropout_model="bernoulli", **options))


@pytest.mark.parametrize("model", ["exact", "bernoulli"])
@pytest.mark.parametrize(
    ("name", "few"), [("secagg-graph", {}), ("secagg-graph", {"degree": 6}), ("committee", {})]
)
def test_rounds_that_chance_may_leave_stuck_count_as_ended_early(name, few, model):
    """Enough devices stay, but not with each other, or not on the committee."""
    size = {"devices": 600, "per_round": 300, "dropout": 0.2, "dropout_model": model}
    with pytest.raises(UsageError, match=r"with too few others: let more devices take part"):
        check(federation(name, **size, **few))
    check(federation(name, **size, correctness_bits=50))


def test_locks_of_a_trusted_server_has_no_round_in_which_all_may_drop_out():
    kind = federated.find("locks")
    for model, variant in itertools.product(("exact", "bernoulli"), ("trusted", "local")):
        where = federation("fedavg", 50, 20, dropout=0.4, dropout_model=model)
        options = PrivacyOptions(sigma=1.0, variant=variant)
        if (model, variant) == ("bernoulli", "trusted"):
            with pytest.raises(UsageError, match="who takes part must stay secret"):
                kind.check(where, options)
        else:
            kind.check(where, options)
    many = federation("fedavg", 400, 60, dropout=0.4, dropout_model="bernoulli")
    kind.check(many, PrivacyOptions(sigma=1.0, variant="trusted"))


@pytest.mark.parametrize("name", ["lightsecagg", "committee"])
def test_rounds_that_would_be_refused_in_the_run_are_found_beforehand(name):
    """The numbers of devices that are drawn, at one seed: some of them make no round."""
    where = federation(name, 20, 6, gamma=0.1)
    refused = 0
    for index in range(20):
        count = len(where.participation.draw(index))
        try:
            protocol(name, 20, count or 6, gamma=0.1)
        except UsageError:
            refused += 1
    assert refused
    assert early_end(where.protocol, 20, 0.3).chance > 0.05
    with pytest.raises(UsageError, match="tells that they were few"):
        check(where)


def test_a_number_of_levels_without_room_for_the_largest_round_is_refused():
    """The most that 200 devices have room for are too many for the rounds that chance enlarges."""
    where = federation("secagg", 400, 200, dropout=0.0)
    levels = protocol("secagg", 400, 200).largest_levels()
    check(where, TrainOptions("dp-fedavg", sigma=1.0, levels=levels // 2))
    with pytest.raises(UsageError, match="must stay secret"):
        check(where, TrainOptions("dp-fedavg", sigma=1.0, levels=levels))


@pytest.mark.parametrize(
    ("name", "where", "failure"),
    [
        ("fedavg", {}, 0.0),
        ("fedavg", {"dropout": 0.3, "dropout_model": "exact"}, 0.0),
        ("secagg", {"mode": "exact"}, 0.0),
        ("secagg", {"per_round": DEVICES}, 0.0),
        ("prf", {"mode": "exact", "per_round": 2}, 0.0),
        ("secagg", {"devices": 120, "per_round": 60}, 2.0**-40),
        ("lightsecagg", {"devices": 120, "per_round": 60, "gamma": 0.1}, 2.0**-40),
        ("committee", {"devices": 120, "per_round": 60, "gamma": 0.1}, 2.0**-40),
        ("secagg-graph", {"devices": 120, "per_round": 60, "dropout": 0.1}, 2.0**-40),
        (
            "fedavg",
            {"devices": 120, "per_round": 60, "dropout": 0.1, "dropout_model": "bernoulli"},
            2.0**-40,
        ),
    ],
)
def test_what_is_let_pass_is_told_to_the_account(name, where, failure):
    federation_ = federation(name, **where)
    check(federation_)
    kind = federated.find("dp-fedavg")
    one = kind(federation_, PrivacyOptions(sigma=1.0), insecure_noise(4))
    assert failure == one.account_settings(3, 1.0)["failure"]
    if federation_.participation.mode == "poisson" and failure:
        rate = federation_.participation.per_round / federation_.devices
        assert early_end(federation_.protocol, federation_.devices, rate).chance <= failure
