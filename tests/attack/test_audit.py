import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from hpcfl.algorithms.aggregation.base import TRAINING
from hpcfl.algorithms.noise import IntegerNoise
from hpcfl.audit.game import Game
from hpcfl.audit.instance import Instance, default
from hpcfl.audit.measure import audit, gaussian_bound, lower_bound
from hpcfl.crypto.noise import FastNoise
from hpcfl.errors import UsageError
from hpcfl.learning.batches import batches
from hpcfl.privacy.accounting import zcdp

CDP = default("cdp")
# Of every kind of algorithm and release one that the account is tight for, or nearly.
TIGHT = {
    "every model": Instance("cdp", sigma=1.5, rounds=2),
    "sums of models": Instance("cdp", 1.0, devices=2, per_round=2, aggregate="secagg"),
    "sums of gradients": Instance("dp-dsgd", 0.8, devices=2, per_round=2, aggregate="secagg"),
    "all samples": Instance(
        "fedsgd-dpc", 0.45, rounds=2, samples=2, batch_size=2, shuffle="poisson"
    ),
    "all users": Instance("dp-fedavg", 0.6, sampling="poisson", devices=2, per_round=2),
    "distributed": Instance("dp-fedavg", 0.4, devices=3, per_round=3, noise="distributed"),
    "Laplace": Instance("fedsgd-dpc", sigma=2.0, mechanism="laplace"),
    "Poisson users": Instance(
        "dp-fedavg", 0.7, devices=3, per_round=2, sampling="poisson", delta=0.05
    ),
    "Poisson samples": Instance(
        "fedsgd-dpc", 0.2, samples=5, batch_size=4, shuffle="poisson", delta=0.05
    ),
}
# These are measured by rates alone, which takes more runs.
BY_RATES = {"Laplace", "Poisson users", "Poisson samples"}
SLOW = {*BY_RATES, "all samples", "sums of gradients", "sums of models"}
NAMES = [pytest.param(name, marks=pytest.mark.full) if name in SLOW else name for name in TIGHT]


def runs_of(name):
    return 1000 if name in BY_RATES else 200


@cache
def correct(name):
    return audit(TIGHT[name], runs_of(name), seed=1)


def halve_noise(monkeypatch, factor=0.5):
    """Let devices and server add less noise than they say."""

    def less(draw):
        return lambda self, size, width: draw(self, size, width) * factor

    draw = IntegerNoise.draw
    monkeypatch.setattr(FastNoise, "gaussian", less(FastNoise.gaussian))
    monkeypatch.setattr(FastNoise, "laplace", less(FastNoise.laplace))
    monkeypatch.setattr(
        *(IntegerNoise, "draw"), lambda *asked: np.rint(draw(*asked) * factor).astype(np.int64)
    )


def test_rates_of_randomised_response_bound_its_epsilon():
    # The truth with probability e / (1 + e): epsilon is exactly 1, and no test does better.
    rng = np.random.default_rng(2)
    truth = math.e / (1 + math.e)
    found = []
    for _ in range(100):
        without = (rng.random(2000) > truth).astype(float)
        with_ = (rng.random(2000) < truth).astype(float)
        found.append(lower_bound(without, with_, 0.0, 0.9).epsilon)

    # Wrong in at most 10 % of all cases.
    assert np.mean(np.array(found) > 1) <= 0.1
    assert 0.75 < np.median(found) < 1


def test_mu_is_bounded_closely_and_converted_exactly():
    rng = np.random.default_rng(4)
    exact = zcdp.exact_epsilon(2.0**2 / 2, 1e-5)
    found = [
        gaussian_bound(rng.standard_normal(2000), rng.normal(2.0, 1, 2000), 1e-5, 0.9)
        for _ in range(60)
    ]
    mus = np.array([one.mu for one in found])

    assert np.mean(mus > 2) <= 0.1
    assert np.median(mus) > 1.7
    assert found[0].epsilon == zcdp.exact_epsilon(mus[0] ** 2 / 2, 1e-5)
    assert max(one.epsilon for one in found) < 1.2 * exact


@pytest.mark.parametrize("name", NAMES)
def test_correct_noise_agrees_with_its_proof(name):
    found = correct(name)

    assert found.agrees
    assert 0 < found.best <= found.proven
    # Not by far below: a test that finds nothing agrees with everything.
    assert found.best > 0.15 * found.proven


@pytest.mark.parametrize("name", NAMES)
def test_half_of_the_noise_is_detected(monkeypatch, name):
    halve_noise(monkeypatch)
    found = audit(TIGHT[name], runs_of(name), seed=1)

    assert found.proven == correct(name).proven
    assert not found.agrees
    assert "CONTRADICTS" in found.render()


@pytest.mark.parametrize("name", TIGHT)
def test_the_canary_is_as_long_as_clipping_allows(monkeypatch, name):
    # Without noise, the log-likelihood ratio is known.
    halve_noise(monkeypatch, 0.0)
    instance = TIGHT[name]
    game = Game(instance, 5)
    score, other = game.play(True, 0), game.play(False, 0)
    mean = 1 / instance.batch_size if instance.by_record else 1.0
    std = instance.sigma
    if instance.aggregate == "secagg":
        std *= math.sqrt(instance.per_round)

    if name in ("Poisson users", "Poisson samples"):
        assert score > 0 > other
        return
    if instance.mechanism == "laplace":
        # Replaced, both coordinates move by 1 / 2 + 1 / 2.
        want = 2 * instance.rounds / instance.sigma
    elif game.devices.replaced:
        want = instance.rounds * 2 * mean**2 / std**2
        assert other == pytest.approx(-want, rel=0.01)
    else:
        want = instance.rounds * mean**2 / std**2 / 2
    assert score == pytest.approx(want, rel=0.01)


def test_the_canary_is_the_record_that_is_used_most():
    instance = Instance(
        "cdp", 1.0, rounds=3, samples=6, batch_size=2, steps=2, shuffle="continuing"
    )
    game = Game(instance, 0)
    seeds = np.random.SeedSequence(game.devices.order, spawn_key=(TRAINING, 0))
    uses = tuple(
        sum(game.devices.position in batch for batch in batches("continuing", 6, 2, 2, turn, seeds))
        for turn in range(3)
    )

    # Six steps are two epochs, and a round has a record once.
    assert game.devices.accesses == uses
    assert sum(uses) == 2
    assert Game(replace(instance, shuffle="fresh"), 0).devices.accesses == (1, 1, 1)
    assert Game(CDP, 0).devices.accesses == (1, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "fedavg"}, "no private algorithm 'fedavg'"),
        ({"algorithm": "locks"}, "locks cannot be audited"),
        ({"sigma": -1.0}, "--sigma is -1.0"),
        ({"batch_size": 2}, "--batch-size is 2; --samples are only 1"),
        ({"sampling": "poisson"}, "participants are public"),
        ({"mechanism": "laplace"}, "--mechanism is for fedsgd-dpc"),
        ({"shuffle": "poisson"}, "holds for epochs"),
    ],
)
def test_what_cannot_be_audited_is_refused(options, message):
    with pytest.raises(UsageError, match=message):
        Game(Instance(**{"algorithm": "cdp", "sigma": 1.0, **options}), 0)
