"""The noise that private algorithms add: how much, where, and what of a device it must hide."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation
from dp_accounting.pld import PLDAccountant
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hpcfl.algorithms import federated
from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.aggregation.base import Aggregate
from hpcfl.algorithms.aggregation.promises import Outcome, failure_of
from hpcfl.algorithms.federated import find_private
from hpcfl.algorithms.federated.base import Federation
from hpcfl.algorithms.federated.locks import NormsDevice, NormsServer
from hpcfl.algorithms.federated.participation import Participation
from hpcfl.algorithms.noise import IntegerNoise, insecure_noise, system_noise
from hpcfl.algorithms.parameters import Parameters
from hpcfl.errors import MessageError, RefusedError, UsageError
from hpcfl.options.privacy import PrivacyOptions
from hpcfl.options.training import LocalOptions
from hpcfl.privacy.accounting import zcdp

# Seeds are fixed; with others, a test fails with this probability although all is right.
FALSE_ALARM = 1e-6


def training(**changes):
    """Return local training of one step, whose learning rate halves from round to round."""
    chosen = {"epochs": None, "steps": 1, "batch_size": 8, "momentum": 0.0, "learning_rate": 0.5}
    return LocalOptions(**chosen | {"decay": 0.5} | changes)


def federation(
    protocol="fedavg",
    devices=12,
    per_round=None,
    dim=400,
    mode="balanced",
    invited=None,
    local=None,
    sizes=None,
    rounds=6,
    **parameters,
):
    per_round = per_round or devices
    given = {"dropout": 0.0, "gamma": 0.0, "levels": 2**20, "population": devices} | parameters
    return Federation(
        sizes=np.full(devices, 64) if sizes is None else sizes,
        participation=Participation(devices, invited or per_round, mode, 3),
        rounds=rounds,
        seed=3,
        protocol=find(protocol)(Parameters(per_round, dim, **given)),
        local=local or training(),
    )


def algorithm(name, where, **privacy):
    options = PrivacyOptions(**privacy)
    kind = federated.find(name)
    kind.check(where, options)
    return kind(where, options, insecure_noise(4))


def assert_std(noise, std):
    """Check the standard deviation of Gaussian noise of mean 0 by a chi-squared test."""
    total = float((noise**2).sum()) / std**2
    assert FALSE_ALARM < stats.chi2.cdf(total, noise.size) < 1 - FALSE_ALARM


class Learner:
    """Stands for training: returns an update, and keeps the noise that it was given."""

    def __init__(self, update, steps=0):
        self.update = update.astype(np.float32)
        self.steps = steps
        self.noise, self.participation = [], None

    def __call__(self, noise=None, participation=None):
        self.participation = participation
        self.noise = [noise(self.update.size) for _ in range(self.steps)]
        return self.update


# cdp, dp-dsgd, fedsgd-dpc: noise in every step


@pytest.mark.parametrize(
    ("name", "where", "privacy", "scales"),
    [
        ("cdp", {}, {"sigma": 0.3}, [0.3] * 4),
        # Of means over all samples, those of fewer have more noise.
        ("fedsgd-dpc", {}, {"sigma": 0.8, "mechanism": "laplace"}, [0.4]),
        ("fedsgd-dpc", {}, {"sigma": 0.8, "shuffle": "poisson"}, [0.4]),
        # Where integers are summed, the last step's noise is a part of them.
        ("cdp", {"protocol": "secagg"}, {"sigma": 0.3}, [0.3, 0.3, 0.3, 0.0]),
    ],
)
def test_every_step_has_its_own_noise(name, where, privacy, scales):
    batch = {"batch_size": 0} if name == "fedsgd-dpc" else {}
    local = training(steps=len(scales), **batch)
    sizes = np.array([10, 20, 40, 80])
    given = {"dim": 20_000, "devices": 4, "local": local, "sizes": sizes} | where
    private = algorithm(name, federation(**given), **privacy)
    learn = Learner(np.zeros(20_000), steps=len(scales))
    private.contribution(1, 1, learn)

    law = "laplace" if "mechanism" in privacy else "norm"
    for noise, scale in zip(learn.noise, scales, strict=True):
        if scale:
            assert stats.kstest(noise, law, args=(0, scale)).pvalue > FALSE_ALARM
        else:
            assert not noise.any()
    if len(scales) > 1:
        assert not np.isin(learn.noise[0], np.concatenate(learn.noise[1:])).any()
    if where:
        # The unit is that of a device's integers; the noise of one step is eta sigma.
        found = private.integer_noise(private.federation.protocol, 1)
        expected = 2**20 / 4 * (0.5 / 2) * 0.3
        assert expected <= found.sigma < expected + 1


def test_a_device_is_told_how_often_it_has_taken_part():
    where = federation(devices=12, per_round=5)
    cdp, counts = algorithm("cdp", where, sigma=0.3), np.zeros(12, int)
    for index in range(8):
        for device in where.participation.draw(index):
            learn = Learner(np.zeros(3), steps=1)
            cdp.contribution(device, index, learn)
            assert counts[device] == learn.participation
            counts[device] += 1


def test_rounding_to_integers_is_paid_for():
    """With few levels, rounding may move as much as a record does, and proven epsilon rises."""
    plain = {"local": training(steps=1), "devices": 10, "dim": 100}
    coarse, fine = (
        algorithm("cdp", federation("secagg", levels=levels, **plain), sigma=2.0, delta=1e-4)
        for levels in (2**10, 2**24)
    )
    account = find_private("cdp").account.of(**fine.account_settings(6, 2.0))

    assert coarse.spent(6).paper == fine.spent(6).paper == account.paper().epsilon
    assert coarse.spent(6).proven > 1.2 * fine.spent(6).proven
    # With many levels hardly anything differs.
    assert account.proven().epsilon < fine.spent(6).proven < 1.2 * account.proven().epsilon
    # Noise that is too small for the integers proves nothing.
    where = federation("secagg", devices=10, levels=2**6)
    assert math.isinf(algorithm("cdp", where, sigma=0.5).spent(1).proven)


def test_dropouts_and_colluders_take_their_noise_with_them():
    # One may vanish besides the planned ones.
    for gamma, dropout, hidden in ((0.0, 0.0, 9), (0.2, 0.0, 7), (0.2, 0.3, 4)):
        where = federation("secagg", devices=10, gamma=gamma, dropout=dropout)
        settings = algorithm("cdp", where, sigma=1.0).account_settings(3, 1.0)
        assert hidden == settings["per_round"] - settings["colluding"]


@pytest.mark.parametrize(
    ("name", "moved", "accesses"),
    # A record is replaced in all three steps of both rounds, or in both, or added in both.
    [("cdp", 2 / 28, 6), ("dp-dsgd", 2 / 28, 2), ("fedsgd-dpc", 1 / 28, 2)],
)
@pytest.mark.parametrize("fewest", [1, 14, 28])
def test_a_device_is_charged_by_what_its_steps_divide_by(name, moved, accesses, fewest):
    """However few samples there are, a sum of gradients is divided by the batch size, 28 here."""
    local = training(steps=accesses // 2, batch_size=28)
    sizes = np.array([fewest, *[90] * 19])
    where = federation(devices=20, per_round=5, sizes=sizes, local=local, rounds=8)
    shuffle = "poisson" if name == "fedsgd-dpc" else "continuing"
    spent = algorithm(name, where, sigma=0.2, shuffle=shuffle).spent(8)

    event = GaussianDpEvent(0.2 / moved)  # of a sensitivity of one
    pld = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
    assert spent.proven == pytest.approx(pld.compose(event, accesses).get_epsilon(1e-5), rel=1e-3)
    assert name != "cdp" or spent.proven == pytest.approx(3.752, abs=5e-4)


POISSON = {"mode": "poisson", "per_round": 6}
CHANCE = POISSON | {"dropout": 0.3, "dropout_model": "bernoulli"}


@pytest.mark.parametrize(
    ("name", "where", "privacy", "sentence"),
    [
        ("cdp", {}, {"sigma": None}, "give --sigma, --noise-multiplier, or --epsilon"),
        ("cdp", {"local": training(epochs=1, steps=None)}, {}, "counts local steps"),
        ("cdp", {"local": training(momentum=0.5)}, {}, "give --momentum 0"),
        ("cdp", {"protocol": "cohort", "alpha": 0.5}, {}, "sends parts of them"),
        ("cdp", {"protocol": "pine"}, {}, "or limits them"),
        ("cdp", POISSON | {"protocol": "secagg"}, {}, "known number of"),
        ("dp-dsgd", {"local": training(steps=2)}, {}, "give --steps 1"),
        ("fedsgd-dpc", {}, {"mechanism": "laplace"}, "give --batch-size 0"),
        ("fedsgd-dpc", {}, {"shuffle": "fresh"}, "give --shuffle poisson"),
        ("dp-fedavg", POISSON | {"protocol": "cohort", "alpha": 0.5}, {}, "depend on who else is"),
        ("dp-fedavg", {}, {"noise": "distributed"}, "not the integers that distributed"),
        ("dp-fedavg", {"protocol": "sparse"}, {"noise": "distributed"}, "use --aggregate cohort"),
        ("dp-fedavg", {"protocol": "pine"}, {"noise": "distributed"}, "no sum of pine holds"),
        ("dp-fedavg", POISSON | {"protocol": "secagg"}, {"noise": "distributed"}, "known number"),
        ("dp-fedavg", {"per_round": 6}, {}, "drawn anew in every round"),
        ("dp-fedavg", POISSON | {"protocol": "secagg"}, {}, "stay secret"),
        ("dp-fedavg", CHANCE, {}, "stay secret"),
        ("locks", CHANCE, {"variant": "trusted"}, "stay secret"),
        ("locks", {}, {}, "give --sampling poisson"),
        ("locks", {"protocol": "secagg", "mode": "poisson"}, {}, "use --aggregate fedavg"),
    ],
)
def test_what_does_not_go_together_is_refused(name, where, privacy, sentence):
    with pytest.raises(UsageError, match=sentence):
        algorithm(name, federation(**where), **{"sigma": 1.0, **privacy})


# dp-fedavg: noise on the sum


def whole(total):
    """Return what a round gives in which nobody dropped out."""
    return Aggregate(np.asarray(total), 1.0, 1.0)


@pytest.mark.parametrize(
    ("where", "mean", "there", "update", "std"),
    [
        # On the sum of the updates of five, of whom there are eight on average.
        ({"devices": 40, "per_round": 8, "mode": "poisson"}, 0.25, 5, 0.25 * 5 / 8, 1 / 8),
        # Seven of ten survive; by the paper's scaling their sum is 1 / 0.7 of itself.
        ({"devices": 10, "dropout": 0.3}, 0.7, 10, 1, 1 / 0.7 / 10),
        ({"devices": 10, "dropout": 0.3, "scaling": "paper"}, 1.0, 10, 1, 1 / 0.7 / 10),
        # For the rounding of integers it pays: their unit is 2**12 / 10.
        (
            {"protocol": "secagg", "devices": 10, "levels": 2**12},
            0.0,
            10,
            0,
            (1 + math.sqrt(20_000) / (2**12 / 10)) / 10,
        ),
    ],
)
def test_a_trusted_servers_noise_is_sigma_on_the_sum_of_those_that_survive(
    where, mean, there, update, std
):
    dp = algorithm("dp-fedavg", federation(dim=20_000, **where), noise_multiplier=1.5)
    assert dp.sigma == 1.5
    found = dp.update(whole(np.full(20_000, mean)), list(range(there)), 0)
    assert_std(found - update, 1.5 * std)
    divided = dp.federation.participation.per_round * dp._surviving
    assert dp.noise_in_sum / divided == pytest.approx(1.5 * std)


@pytest.mark.parametrize("name", ["secagg", "secagg-graph", "cohort", "common", "prf"])
def test_the_honest_survivors_noise_is_enough_by_itself(name):
    """Their sum has at least the multiplier times the most that a user's integers can be."""
    dropout = 0.0 if name == "prf" else 0.2
    where = federation(name, devices=40, dim=1000, dropout=dropout, gamma=0.1, alpha=0.5)
    dp = algorithm("dp-fedavg", where, noise="distributed", noise_multiplier=0.7)
    protocol = where.protocol
    noise = dp.integer_noise(protocol, 0)
    # Parts are rounded to whole coordinates.
    size = 501 if protocol.sparse_upload else 1000
    unit = 2**20 * protocol.scale(0)
    largest = held_to(unit * noise.norm, size)
    honest = protocol.honest_in_sum()

    if name != "cohort":
        assert (36 if name == "prf" else 27) == honest
    assert noise.sigma * math.sqrt(honest) >= 0.7 * largest * (1 - 1e-12)
    assert (noise.sigma - 1) * math.sqrt(honest) < 0.7 * largest
    assert noise.rounded_norm == pytest.approx(largest, rel=1e-9)
    # What all survivors of a sum draw, as the server decodes it: 4,000 numbers are within 10 %.
    in_sum = int({"cohort": 20}.get(name, 40) * (1 - dropout))
    total = sum(noise.draw(4000, device, 0) for device in range(in_sum))
    std = np.std(protocol.decode(total)) * 40
    assert dp.noise_in_sum == pytest.approx(std / dp.privacy.clip_norm, rel=0.1)
    rho = zcdp.gaussian_rho(noise.sigma * math.sqrt(honest) / largest)
    assert dp.spent(6).proven == pytest.approx(zcdp.exact_epsilon(6 * rho, 1e-5), rel=1e-4)


def held_to(norm, size):
    """Return the norm of integers: the mean square, and what Hoeffding's bound adds for 2^-40."""
    more = math.sqrt(80 * math.log(2)) * (norm + math.sqrt(size) / 2)
    return math.sqrt(norm**2 + size / 4 + more)


def hypergeometric_tail(total, marked, drawn, below):
    """Return the exact probability that fewer than so many of the drawn are marked."""
    hits = range(min(below, marked + 1))
    ways = sum(math.comb(marked, k) * math.comb(total - marked, drawn - k) for k in hits)
    return Fraction(ways, math.comb(total, drawn))


@pytest.mark.parametrize(("security_bits", "credited"), [(4, 4), (40, 3)])
@pytest.mark.parametrize(
    ("name", "privacy"),
    [("dp-fedavg", {"noise": "distributed", "noise_multiplier": 1.0}), ("cdp", {"sigma": 0.5})],
)
def test_an_account_that_counts_on_more_than_was_planned_pays_for_who_may_collude(
    name, privacy, security_bits, credited
):
    """The plan leaves one honest survivor of four devices; more are there, and are counted.

    One of the 100 colludes: it is one of a round's four with probability 0.04, which is not
    reckoned with where 2^-4 is let pass.
    """
    plan = {"gamma": 0.01, "dropout": 0.1, "dropout_model": "bernoulli"}
    where = federation(
        "secagg", devices=100, per_round=4, security_bits=security_bits, **plan, mode="balanced"
    )
    protocol, chance = where.protocol, Fraction(4, 100) if credited == 4 else 0
    assert 1 == protocol.honest_in_sum()
    assert credited == protocol.honest_among(4)

    one = algorithm(name, where, **privacy)
    for _ in range(3):
        one.observe(4)
    assert one.account_settings(3, one.sigma, [4] * 3)["failure"] == pytest.approx(float(chance))
    # Where more is charged than delta has, only what a device does by itself is left: nothing of
    # integers, and the account without sums of noisy steps.
    alone = one.proven(3, one.sigma, [1] * 3)
    assert one.spent(3).proven == alone if chance else one.spent(3).proven < alone
    protocol.add_noise(one.integer_noise(protocol, 0))
    failure = failure_of(protocol.promises(), Outcome(4, 4))
    assert failure >= chance
    assert bool(failure) == bool(chance)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40))
def test_a_users_vector_is_never_longer_than_is_accounted_for(values):
    where = federation(dim=len(values), devices=5)
    dp = algorithm("dp-fedavg", where, noise_multiplier=1.0, clip_norm=2.0)
    sent = dp.contribution(0, 0, Learner(np.array(values)))

    assert np.linalg.norm(sent.astype(np.float64)) <= 2.0


@pytest.mark.parametrize(
    ("name", "changes", "privacy", "follow"),
    [
        ("dp-fedavg", {"mode": "poisson"}, {}, True),
        ("dp-fedavg", {"mode": "poisson", "per_round": 60, "devices": 120}, {}, True),
        ("dp-fedavg", {"mode": "poisson", "dropout": 0.0}, {}, False),
        ("dp-fedavg", {"mode": "exact"}, {}, False),
        ("dp-fedavg", {"protocol": "secagg"}, {"noise": "distributed"}, False),
        ("locks", {"mode": "poisson", "per_round": 60, "invited": 90, "devices": 120}, {}, True),
        ("locks", {"mode": "poisson", "per_round": 4, "invited": 8}, {"variant": "local"}, False),
    ],
)
def test_dropouts_that_follow_from_who_is_there_are_charged_and_told(
    name, changes, privacy, follow
):
    given = {"dropout": 0.25} | changes
    exact = algorithm(name, federation(**given), sigma=1.0, **privacy)
    chance = federation(**given, dropout_model="bernoulli")
    by_chance = algorithm(name, chance, sigma=1.0, **privacy)

    assert exact.exact_dropouts == follow
    assert not by_chance.exact_dropouts
    told = any("--dropout-model bernoulli" in promise for promise in exact.promises())
    assert told == follow
    if follow:
        assert exact.spent(3).proven > 1.5 * by_chance.spent(3).proven


@pytest.mark.parametrize("name", ["dp-fedavg", "cdp"])
def test_the_account_of_distributed_noise_is_of_those_who_were_there(name):
    """By the sum of Gaussians of the noise that was there, integers being fine."""
    where = federation("secagg", devices=12, dim=10, dropout=0.25, levels=2**24)
    privacy = {"noise": "distributed"} if name == "dp-fedavg" else {}
    plan = algorithm(name, where, sigma=1.0, **privacy)
    there = [12, 10, 11]
    for count in there:
        plan.observe(count)
    fresh = algorithm(name, where, sigma=1.0, **privacy)

    # Nine are planned.
    for rounds, least in ((3, 10), (4, 9)):
        # A record of 64 in batches of 8 is used each round, replaced, at most once in eight.
        moved = 2 / 8 if name == "cdp" else 1.0
        accesses = 1 if name == "cdp" else rounds
        noise = math.sqrt(least) if name == "cdp" else math.sqrt(least / 9)
        at_most = zcdp.rdp_epsilon(accesses * moved**2 / noise**2 / 2, 1e-5)
        assert plan.spent(rounds).proven <= at_most * 1.02
    assert plan.spent(3).proven < fresh.spent(3).proven
    assert plan.spent(3).paper == fresh.spent(3).paper
    # Of rounds that were played in vain nobody knows who was there.
    plan.resume(there, 1)
    assert plan.spent(4).proven >= fresh.spent(1).proven


def test_what_may_fail_is_told_to_the_account():
    def failure(name, per_round):
        where = federation(
            name, devices=90, per_round=per_round, gamma=0.2, alpha=0.9, dropout=0.1, mode="exact"
        )
        dp = algorithm("dp-fedavg", where, sigma=1.0, noise="distributed")
        return dp.account_settings(5, 1.0)["failure"]

    assert 0 == failure("secagg", 90)
    # Of 45 drawn from 90, 18 of which collude, more than c do, or as many as open a secret.
    more = [1 - hypergeometric_tail(90, 18, 45, below=c + 1) for c in range(46)]
    reckoned = min(c for c in range(46) if more[c] <= Fraction(1, 2**40))
    expected = more[reckoned] + 1 - hypergeometric_tail(90, 18, 45, below=23)
    assert failure("secagg", 45) == pytest.approx(float(expected), rel=1e-6)
    assert 0 < failure("cohort", 90) <= 2 * 2.0**-40


@pytest.mark.parametrize(("devices", "per_round"), [(37, 3), (333, 10)])
def test_masks_that_fail_do_not_take_a_devices_own_noise(devices, per_round):
    """With 7 rounds in turn a device is in one, and one honest device is planned for in each."""
    where = federation(
        "secagg", devices=devices, per_round=per_round, gamma=0.1, rounds=7, levels=2**20
    )
    found = algorithm("dp-fedavg", where, noise="distributed", noise_multiplier=3.3)
    assert 7 * where.protocol.hidden_failure() > 1e-5
    assert found.spent(7).proven == pytest.approx(1.144, abs=5e-4)
    wanted = algorithm("dp-fedavg", where, noise="distributed", epsilon=2.0)
    assert wanted.spent(7).proven == pytest.approx(2.0, rel=1e-4)


# Noise within a protocol


def test_a_devices_integers_have_their_noise_and_the_same_when_asked_again():
    protocol = find("secagg")(Parameters(4, 20_000, dropout=0.0))
    plain = protocol.quantise(np.zeros(20_000), 2, 7)
    protocol.add_noise(IntegerNoise(50, bytes(16)))
    noisy = protocol.quantise(np.zeros(20_000), 2, 7)

    assert_std(noisy - plain, 50.0)
    assert np.array_equal(noisy, protocol.quantise(np.zeros(20_000), 2, 7))
    for device, index in ((3, 7), (2, 8)):
        different = IntegerNoise(50, bytes(16)).draw(20_000, device, index)
        assert abs(np.corrcoef(different, noisy - plain)[0, 1]) < 5 / math.sqrt(20_000)


@pytest.mark.parametrize("name", ["secagg", "common", "cohort"])
@pytest.mark.parametrize(("dim", "alpha"), [(7, 0.3), (30, 0.25), (165, 0.1)])
def test_no_device_sends_integers_that_are_longer_than_is_accounted_for(name, dim, alpha):
    where = federation(name, devices=20, dim=dim, dropout=0.0, gamma=0.0, alpha=alpha)
    dp = algorithm("dp-fedavg", where, noise="distributed", noise_multiplier=1.0)
    protocol = where.protocol
    protocol.add_noise(dp.integer_noise(protocol, 0))
    charged = dp.account_for(3, dp.sigma).integers()
    for device in range(5):
        sent = protocol.segments.coordinates(device) if name == "cohort" else protocol.sent_in(0)
        vector = np.zeros(dim)
        vector[sent] = np.random.default_rng(device).normal(0, 100, dim)[sent]
        integers = protocol.quantise(vector[sent], device, 0)
        noise = protocol.noise.draw(integers.size, device, 0)
        assert np.linalg.norm(integers - noise) <= charged.norm
        assert integers.size <= charged.dim


def test_a_vector_that_is_longer_than_is_accounted_for_is_not_sent():
    protocol = find("secagg")(Parameters(4, 100, dropout=0.0, levels=4000))
    protocol.add_noise(IntegerNoise(1, bytes(16), norm=1.0, rounded_norm=999.0))
    with pytest.raises(RefusedError, match="it is longer than the norm that was to be accounted"):
        protocol.quantise(np.ones(100), 2, 7)


def test_noise_with_which_a_sum_may_wrap_around_is_refused():
    protocol = find("secagg")(Parameters(100, 1000, dropout=0.0, levels=2**20))
    protocol.add_noise(IntegerNoise(2**22, bytes(16)))
    with pytest.raises(UsageError, match=r"with this noise is too large|and noise could overflow"):
        protocol.add_noise(IntegerNoise(2**25, bytes(16)))


def test_the_bound_of_a_sums_noise_holds_and_is_not_idle():
    noise = IntegerNoise(30, bytes(16))
    bound = noise.bound(devices=10, dim=500, failure=0.05)
    worst = [
        np.abs(np.sum([noise.draw(500, device, index) for device in range(10)], axis=0)).max()
        for index in range(10)
    ]
    # 10 times a chance of at most 0.05: 6 or more happen once in 360,000.
    assert sum(value > bound for value in worst) < 6
    assert max(worst) > 0.75 * bound


# locks: who goes on


def norm_message(value):
    return np.array([value], "<f8").view(np.uint8)


def test_larger_updates_are_kept_more_often_and_the_mean_stays_right():
    """Without noise, the mean over many rounds is that of all devices' clipped updates."""
    devices, draws = 10, 4000
    where = federation(devices=devices, dim=devices, per_round=4, invited=8, mode="poisson")
    locks = algorithm("locks", where, sigma=1e-9, fast_noise=True)
    norms = np.linspace(0.1, 1.0, devices)
    total, kept = np.zeros(devices), np.zeros(devices)
    for index in range(draws):
        server = locks.first_stage.server(index, np.zeros(devices, np.float32))
        invited = where.participation.draw(index)
        for slot, id in enumerate(invited):
            server.receive_norms(slot, norm_message(norms[id]))
        server.finish_norms()
        for slot, factor in server.factors.items():
            total[invited[slot]] += factor * norms[invited[slot]]
            kept[invited[slot]] += 1
            # All that is sent has the same norm, which the noise is for.
            assert factor * norms[invited[slot]] == pytest.approx(locks.scale)
    mean = total / draws / 8  # over the 8 that are invited in expectation

    assert np.corrcoef(kept, norms)[0, 1] > 0.99
    # Five standard errors of the mean of 4000 draws with a standard deviation below 2 norms.
    assert np.abs(mean * devices - norms).max() < 5 * 2 / np.sqrt(draws)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_norms_and_factors_that_are_not_numbers_are_refused(value):
    server, device = NormsServer(None, 0, np.zeros(1)), NormsDevice(None, 3, 0, 1)
    with pytest.raises(MessageError, match="its norm is not finite"):
        server.receive_norms(3, norm_message(value))
    for factor in (value, -1.0):
        with pytest.raises(MessageError, match="is not a factor of an update"):
            device.receive_norms(norm_message(factor))
    assert device.factor == 0


def test_a_norm_is_received_once():
    server = NormsServer(None, 0, np.zeros(1))
    server.receive_norms(3, norm_message(1.0))
    with pytest.raises(MessageError, match="it was received twice"):
        server.receive_norms(3, norm_message(2.0))


# Options


def test_a_slow_accountant_is_asked_seldom_and_never_for_fewer_rounds():
    where = federation(devices=40, per_round=8, mode="poisson", rounds=100)
    found, asked = algorithm("dp-fedavg", where, sigma=1.0), set()

    def record(rounds, sigma, survivors=()):
        asked.add(rounds)
        return float(rounds)

    found.paper = found.proven = record
    spent = [found.spent(rounds).proven for rounds in range(1, 104)]

    assert len(asked) < 30
    assert [1, 2, 3, 5, 5, 10] == spent[:6]
    assert all(rounds <= cost < rounds + 5 for rounds, cost in enumerate(spent, 1))
    assert 100 == spent[99]


@pytest.mark.parametrize("fast", [True, False])
def test_a_round_that_is_played_again_has_other_noise(fast):
    protocol = federation("secagg", devices=6).protocol
    found = algorithm("cdp", federation("secagg", devices=6), sigma=1.0, fast_noise=fast)
    before, integers = found.noise(3, 4).gaussian(50, 1.0), found.integer_noise(protocol, 3)
    found.resume([6, 6, 6], 2)
    again = found.integer_noise(protocol, 3)

    assert not np.isin(found.noise(3, 4).gaussian(50, 1.0), before).any()
    assert again.secret != integers.secret
    # But the learning rate is that of the round.
    assert again.sigma == integers.sigma


def test_with_an_insecure_seed_noise_is_the_same_on_every_rank_and_apart_for_every_owner():
    """Three ranks' noise adds up to that of three devices, not to three times that of one."""
    ranks = [algorithm("cdp", federation(), sigma=1.0) for _ in range(3)]
    apart = [rank.noise(0, id).gaussian(20_000, 1.0) for id, rank in enumerate(ranks)]
    assert_std(np.sum(apart, axis=0), math.sqrt(3))
    assert_std(apart[0] - apart[1], math.sqrt(2))
    for rank in ranks:
        assert np.array_equal(rank.noise(0, 1).gaussian(20_000, 1.0), apart[1])
    rounds = [ranks[0].noise(index, 0).gaussian(20_000, 1.0) for index in range(3)]
    assert_std(np.sum(rounds, axis=0), math.sqrt(3))


@pytest.mark.parametrize("fast", [True, False])
def test_fast_noise_repeats_itself_and_secure_noise_does_not(fast):
    kind, options = federated.find("cdp"), PrivacyOptions(sigma=1.0, fast_noise=fast)
    one, other = (kind(federation(), options, system_noise) for _ in range(2))
    drawn = one.noise(3, 4).gaussian(50, 1.0)
    assert np.array_equal(one.noise(3, 4).gaussian(50, 1.0), drawn) == fast
    assert np.array_equal(other.noise(3, 4).gaussian(50, 1.0), drawn) == fast
    assert not np.isin(one.noise(3, 5).gaussian(50, 1.0), drawn).any()
