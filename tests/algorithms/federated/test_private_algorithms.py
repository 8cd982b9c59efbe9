"""The noise that private algorithms add: how much, where, and what of a device it must hide."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from hpcfl.algorithms import federated
from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.aggregation.base import QuantisedProtocol
from hpcfl.algorithms.federated.base import Federation
from hpcfl.algorithms.federated.participation import Participation
from hpcfl.algorithms.federated.private import PrivacyOptions, PrivateAlgorithm
from hpcfl.algorithms.noise import IntegerNoise, shorten
from hpcfl.algorithms.parameters import Parameters
from hpcfl.crypto.keys import insecure_secrets
from hpcfl.errors import HpcflError, UsageError
from hpcfl.privacy.accounting import distributed, systems, zcdp

# Seeds are fixed; with others, a test fails with this probability although all is right.
FALSE_ALARM = 1e-6


@dataclass(frozen=True)
class Local:
    steps: int | None = 1
    batch_size: int = 8
    momentum: float = 0.0
    learning_rate: float = 0.5
    weight_decay: float = 0.0

    def rate(self, round_index: int) -> float:
        return self.learning_rate / (round_index + 1)


def federation(
    protocol: str = "fedavg",
    devices: int = 12,
    per_round: int | None = None,
    dim: int = 400,
    mode: str = "balanced",
    invited: int | None = None,
    local: Local = Local(),
    sizes: NDArray[np.int64] | None = None,
    rounds: int = 6,
    **parameters: Any,
) -> Federation:
    per_round = per_round or devices
    given = {"dropout": 0.0, "gamma": 0.0, "levels": 2**20} | parameters
    return Federation(
        sizes=np.full(devices, 64) if sizes is None else sizes,
        participation=Participation(devices, invited or per_round, mode, 3),
        rounds=rounds,
        seed=3,
        protocol=find(protocol)(Parameters(per_round, dim, **given)),
        local=local,
    )


def algorithm(name: str, where: Federation, **privacy: Any) -> Any:
    options = PrivacyOptions(**privacy)
    kind = federated.find(name)
    kind.check(where, options)
    assert issubclass(kind, PrivateAlgorithm)
    return kind(where, options, insecure_secrets(4, 0, 0))


def assert_std(noise: NDArray[Any], std: float) -> None:
    """Check the standard deviation of Gaussian noise of mean 0 by a chi-squared test."""
    total = float((noise**2).sum()) / std**2
    assert FALSE_ALARM < stats.chi2.cdf(total, noise.size) < 1 - FALSE_ALARM


class Learner:
    """Stands for training: returns an update, and keeps the noise that it was given."""

    def __init__(self, update: NDArray[Any], steps: int = 0) -> None:
        self.update = update.astype(np.float32)
        self.steps = steps
        self.noise: list[NDArray[Any]] = []
        self.participation: Any = None

    def __call__(self, noise: Any = None, participation: Any = None) -> NDArray[np.float32]:
        self.participation = participation
        self.noise = [noise(self.update.size) for _ in range(self.steps)]
        return self.update


NOTHING = np.empty(0, np.float32)


# cdp, dp-dsgd, fedsgd-dpc: noise in every step


def test_every_step_has_its_own_gaussian_noise() -> None:
    cdp = algorithm("cdp", federation(dim=20_000, local=Local(steps=4)), sigma=0.3)
    learn = Learner(np.zeros(20_000), steps=4)
    cdp.contribution(5, 2, NOTHING, learn)

    for noise in learn.noise:
        assert_std(noise, 0.3)
    assert not np.isin(learn.noise[0], np.concatenate(learn.noise[1:])).any()


def test_a_device_is_told_how_often_it_has_taken_part() -> None:
    where = federation(devices=12, per_round=5)
    cdp = algorithm("cdp", where, sigma=0.3)
    for index in range(8):
        for device in where.participation.draw(index):
            learn = Learner(np.zeros(3), steps=1)
            cdp.contribution(device, index, NOTHING, learn)
            drawn = [where.participation.draw(earlier) for earlier in range(index)]
            assert sum(device in ids for ids in drawn) == learn.participation


def test_where_integers_are_summed_the_last_steps_noise_is_discrete() -> None:
    """The unit is that of a device's integers; the noise of one step is eta sigma."""
    where = federation("secagg", devices=10, dim=5000, local=Local(steps=3))
    cdp = algorithm("cdp", where, sigma=0.3)
    learn = Learner(np.zeros(5000), steps=3)
    cdp.contribution(1, 1, NOTHING, learn)
    assert_std(learn.noise[0], 0.3)
    assert_std(learn.noise[1], 0.3)
    assert not learn.noise[2].any()

    noise = cdp.integer_noise(where.protocol, 1)
    expected = 2**20 / 10 * (0.5 / 2) * 0.3
    assert expected <= noise.sigma < expected + 1
    assert noise.norm is None


def test_rounding_to_integers_is_paid_for() -> None:
    """With few levels, rounding may move as much as a record does, and proven epsilon rises."""
    plain: dict[str, Any] = {"local": Local(steps=1), "devices": 10, "dim": 100}
    coarse, fine = (
        algorithm("cdp", federation("secagg", levels=levels, **plain), sigma=2.0, delta=1e-4)
        for levels in (2**10, 2**24)
    )
    account = systems.account("cdp", sigma=2.0, **fine.account_settings(6))

    assert coarse.spent(6).paper == fine.spent(6).paper == account.paper.epsilon
    assert coarse.spent(6).proven > 1.2 * fine.spent(6).proven
    # With many levels only the conversion differs: that for any zCDP, not that for Gaussians.
    assert account.proven.epsilon < fine.spent(6).proven < 1.2 * account.proven.epsilon


def test_noise_too_small_for_the_integers_proves_nothing() -> None:
    where = federation("secagg", devices=10, levels=2**6)
    assert math.isinf(algorithm("cdp", where, sigma=0.5).spent(1).proven)


def test_dropouts_and_colluders_take_their_noise_with_them() -> None:
    for gamma, dropout, hidden in ((0.0, 0.0, 10), (0.2, 0.0, 8), (0.2, 0.3, 5)):
        where = federation("secagg", devices=10, gamma=gamma, dropout=dropout)
        settings = algorithm("cdp", where, sigma=1.0).account_settings(3)
        assert hidden == settings["per_round"] - settings["colluding"]


@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
def test_of_means_over_all_samples_those_of_fewer_have_more_noise(mechanism: str) -> None:
    sizes = np.array([10, 20, 40, 80])
    where = federation(
        devices=4, dim=20_000, sizes=sizes, local=Local(steps=1, batch_size=0), per_round=2
    )
    shuffle = {"laplace": "continuing", "gaussian": "poisson"}[mechanism]
    dpc = algorithm("fedsgd-dpc", where, sigma=0.8, mechanism=mechanism, shuffle=shuffle)
    for device, expected in enumerate([0.8, 0.4, 0.2, 0.1]):
        learn = Learner(np.zeros(20_000), steps=1)
        dpc.contribution(device, 0, NOTHING, learn)
        (noise,) = learn.noise
        kind, scale = ("laplace", expected) if mechanism == "laplace" else ("norm", expected)
        assert stats.kstest(noise, kind, args=(0, scale)).pvalue > FALSE_ALARM


def test_batches_of_the_same_size_have_the_same_noise_whatever_there_is() -> None:
    sizes = np.array([10, 20, 40, 80])
    where = federation(devices=4, dim=20_000, sizes=sizes, local=Local(steps=1, batch_size=5))
    dpc = algorithm("fedsgd-dpc", where, sigma=0.8, shuffle="poisson")
    for device in range(4):
        learn = Learner(np.zeros(20_000), steps=1)
        dpc.contribution(device, 0, NOTHING, learn)
        assert_std(learn.noise[0], 0.8)


@pytest.mark.parametrize(
    ("name", "where", "privacy", "sentence"),
    [
        ("cdp", {"local": Local(steps=None)}, {}, "counts local steps"),
        ("cdp", {"local": Local(momentum=0.5)}, {}, "give --momentum 0"),
        ("cdp", {"protocol": "cohort", "alpha": 0.5}, {}, "sends parts of them"),
        ("cdp", {"protocol": "sparse"}, {}, "sends parts of them"),
        ("dp-dsgd", {"local": Local(steps=2)}, {}, "give --steps 1"),
        ("fedsgd-dpc", {}, {"mechanism": "laplace"}, "give --batch-size 0"),
        ("fedsgd-dpc", {}, {"shuffle": "fresh"}, "give --shuffle poisson"),
        ("dp-fedavg", {}, {"noise": "distributed"}, "hides nobody"),
        ("dp-fedavg", {"protocol": "sparse"}, {"noise": "distributed"}, "use --aggregate cohort"),
        (
            "dp-fedavg",
            {"protocol": "secagg", "mode": "poisson", "per_round": 6},
            {"noise": "distributed"},
            "known number of devices",
        ),
        ("dp-fedavg", {"per_round": 6}, {}, "drawn anew in every round"),
        ("locks", {}, {}, "give --sampling poisson"),
        ("locks", {"protocol": "secagg", "mode": "poisson"}, {}, "use --aggregate fedavg"),
        (
            "locks",
            {"mode": "poisson", "per_round": 6, "invited": 5},
            {},
            "keeps 6 of 5 invited users",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(
    name: str, where: dict[str, Any], privacy: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        algorithm(name, federation(**where), sigma=1.0, **privacy)


# dp-fedavg: noise on the sum


def test_a_trusted_servers_noise_is_sigma_on_the_sum_of_updates() -> None:
    where = federation(devices=40, per_round=8, mode="poisson", dim=20_000)
    dp = algorithm("dp-fedavg", where, noise_multiplier=1.5, clip_norm=2.0)
    aggregate = np.full(20_000, 0.25)  # the mean of the five that take part
    update = dp.update(aggregate, NOTHING, [1, 2, 3, 4, 5], 0)

    assert dp.sigma == 3.0
    assert_std(update - 0.25 * 5 / 8, 3.0 / 8)


def test_a_trusted_servers_noise_grows_with_what_dropouts_make_of_vectors() -> None:
    where = federation(devices=10, dim=20_000, dropout=0.3)
    dp = algorithm("dp-fedavg", where, noise_multiplier=1.5)
    assert_std(dp.update(np.zeros(20_000), NOTHING, list(range(10)), 0), 1.5 / 0.7 / 10)


def test_a_trusted_server_that_sums_integers_pays_for_their_rounding() -> None:
    where = federation("secagg", devices=10, dim=20_000, levels=2**12)
    dp = algorithm("dp-fedavg", where, noise_multiplier=1.5)
    unit = 2**12 / 10
    sigma = 1.5 * (1 + math.sqrt(20_000) / unit)
    assert_std(dp.update(np.zeros(20_000), NOTHING, list(range(10)), 0), sigma / 10)


@pytest.mark.parametrize("name", ["secagg", "secagg-graph", "cohort", "prf"])
@pytest.mark.parametrize("quantile", [None, 0.5])
def test_the_honest_survivors_noise_is_enough_by_itself(name: str, quantile: Any) -> None:
    """Their sum has at least the multiplier times the most that a user's integers can be."""
    dropout = 0.0 if name == "prf" else 0.2
    where = federation(name, devices=40, dim=1000, dropout=dropout, gamma=0.1, alpha=0.5)
    dp = algorithm("dp-fedavg", where, noise="distributed", noise_multiplier=0.7, quantile=quantile)
    noise = dp.integer_noise(where.protocol, 0)
    protocol = where.protocol
    assert isinstance(protocol, QuantisedProtocol)
    # On a ring of another size, a cohort's part is rounded.
    part = 0.5 + 0.5 / protocol.parameters.threshold if name == "cohort" else 1.0
    size = math.ceil(part * (1000 + dp.first_state.size))
    unit = 2**20 * protocol.scale(0, protocol.smallest_arrival)
    largest = unit * noise.norm + math.sqrt(size)
    honest = protocol.honest_in_sum()

    if name != "cohort":
        assert (36 if name == "prf" else 28) == honest
    assert noise.sigma * math.sqrt(honest) >= dp.sigma / dp._norm * largest * (1 - 1e-12)
    assert (noise.sigma - 1) * math.sqrt(honest) < dp.sigma / dp._norm * largest
    rho = distributed.rho(honest, noise.sigma, size, largest)
    assert dp.spent(6).proven == pytest.approx(zcdp.rdp_epsilon(6 * rho, 1e-5))


def test_a_cohorts_floor_is_the_largest_that_all_cohorts_keep() -> None:
    from hpcfl.privacy.cohorts import below_floor_probability
    from hpcfl.privacy.population import Population

    where = federation("cohort", devices=200, dropout=0.1, gamma=0.1, alpha=0.3, degree=60)
    protocol = where.protocol
    assert isinstance(protocol, QuantisedProtocol)
    floor = protocol.honest_in_sum()
    population = Population(200, 20, 0.1)

    assert 10 < floor < 60
    assert below_floor_probability(population, 60, floor, blocks=200) <= 2.0**-40
    assert below_floor_probability(population, 60, floor + 1, blocks=200) > 2.0**-40


def test_if_devices_drop_out_by_chance_only_the_thresholds_noise_is_counted_on() -> None:
    where = federation("secagg", devices=40, dropout=0.2, gamma=0.1)
    protocol = where.protocol
    assert isinstance(protocol, QuantisedProtocol)
    assert (28, 21 - 4) == (protocol.honest_in_sum(), protocol.honest_in_sum(bernoulli=True))


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40),
    st.floats(1e-3, 1e3),
    st.booleans(),
)
def test_a_users_vector_is_never_longer_than_is_accounted_for(
    values: list[float], norm: float, adaptive: bool
) -> None:
    where = federation(dim=len(values), devices=5)
    privacy = {"quantile": 0.5} if adaptive else {}
    dp = algorithm("dp-fedavg", where, noise_multiplier=1.0, clip_norm=2.0, **privacy)
    state = np.array([norm], np.float32) if adaptive else NOTHING
    sent = dp.contribution(0, 0, state, Learner(np.array(values)))

    assert sent.size == len(values) + adaptive
    assert np.linalg.norm(sent[: len(values)].astype(np.float64)) <= 2.0
    assert np.linalg.norm(sent.astype(np.float64)) <= dp._norm * (1 + 1e-7)


def test_the_norm_adapts_to_the_quantile() -> None:
    """Of 100 updates with norms 1 to 100, three quarters should be within it in the end."""
    where = federation(devices=100, dim=4)
    dp = algorithm("dp-fedavg", where, noise_multiplier=1e-6, clip_norm=5.0, quantile=0.75)
    state = dp.first_state
    for index in range(150):
        sent = [
            dp.contribution(id, index, state, Learner(np.array([id + 1.0, 0, 0, 0])))
            for id in range(100)
        ]
        update = dp.update(np.mean(sent, axis=0), state, list(range(100)), index)
        state = state - update[4:].astype(np.float32)
    assert state[0] == pytest.approx(75, rel=0.03)
    # What is subtracted from the model is the mean of the shortened updates, in real units.
    shortened = np.minimum(np.arange(1, 101), state[0]).mean()
    assert update[0] == pytest.approx(shortened, rel=0.01)


def test_shortening_keeps_the_direction_and_refuses_what_is_not_finite() -> None:
    vector = np.array([3.0, 4.0], np.float32)
    assert np.array_equal(shorten(vector, 5.0), vector)
    assert [0.6, 0.8] == pytest.approx(shorten(vector, 1.0))
    for bad in (math.nan, math.inf):
        with pytest.raises(HpcflError, match="not finite"):
            shorten(np.array([1.0, bad]), 1.0)


# Noise within a protocol


def test_a_devices_integers_have_their_noise_and_the_same_when_asked_again() -> None:
    protocol = find("secagg")(Parameters(4, 20_000, dropout=0.0))
    assert isinstance(protocol, QuantisedProtocol)
    plain = protocol.quantise(np.zeros(20_000), 2, 7)
    protocol.add_noise(IntegerNoise(50, bytes(16)))
    noisy = protocol.quantise(np.zeros(20_000), 2, 7)

    assert_std(noisy - plain, 50.0)
    assert np.array_equal(noisy, protocol.quantise(np.zeros(20_000), 2, 7))
    for device, index in ((3, 7), (2, 8)):
        other = protocol.quantise(np.zeros(20_000), device, index) - protocol.quantise(
            np.zeros(20_000), device, index
        )
        assert not other.any()
        different = IntegerNoise(50, bytes(16)).draw(20_000, device, index)
        assert abs(np.corrcoef(different, noisy - plain)[0, 1]) < 5 / math.sqrt(20_000)


def test_noise_with_which_a_sum_may_wrap_around_is_refused() -> None:
    protocol = find("secagg")(Parameters(100, 1000, dropout=0.0, levels=2**20))
    assert isinstance(protocol, QuantisedProtocol)
    protocol.add_noise(IntegerNoise(2**22, bytes(16)))
    with pytest.raises(UsageError, match=r"with this noise is too large|and noise could overflow"):
        protocol.add_noise(IntegerNoise(2**25, bytes(16)))


def test_the_bound_of_a_sums_noise_holds_and_is_not_idle() -> None:
    noise = IntegerNoise(30, bytes(16))
    bound = noise.bound(devices=20, dim=500, failure=0.05)
    worst = [
        max(
            np.abs(np.sum([noise.draw(500, device, index) for device in range(20)], axis=0)).max()
            for _ in range(1)
        )
        for index in range(60)
    ]
    # 60 times a chance of at most 0.05: 13 or more happen once in 100,000.
    assert sum(value > bound for value in worst) < 13
    assert max(worst) > 0.75 * bound


def test_the_secret_of_noise_is_not_shown() -> None:
    assert "secret" not in repr(IntegerNoise(3, b"0123456789abcdef"))


# Options


@pytest.mark.parametrize("epsilon_by", ["paper", "proven"])
@pytest.mark.parametrize("name", ["cdp", "dp-fedavg", "fedsgd-dpc"])
def test_the_noise_for_an_epsilon_has_it_after_all_rounds(name: str, epsilon_by: str) -> None:
    mode = "exact" if name == "dp-fedavg" else "balanced"
    where = federation(devices=12, per_round=5, rounds=9, mode=mode)
    privacy = {"shuffle": "poisson" if name == "fedsgd-dpc" else "fresh"}
    found = algorithm(name, where, epsilon=4.0, epsilon_by=epsilon_by, delta=1e-4, **privacy)
    spent = getattr(found.spent(9), epsilon_by)

    assert spent == pytest.approx(4.0, rel=1e-3)
    assert spent <= 4.0 * (1 + 1e-9)
    assert getattr(found.spent(2), epsilon_by) < spent
    assert (0.0, 0.0) == (found.spent(0).paper, found.spent(0).proven)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"sigma": 0.0}, "--sigma is 0.0"),
        ({"sigma": 1.0, "noise_multiplier": 1.0}, "and not both"),
        ({"delta": 1.0}, "--delta is 1.0"),
        ({"quantile": 1.0}, "--quantile is 1.0"),
        ({"clip_norm": math.inf}, "--clip-norm is inf"),
    ],
)
def test_impossible_privacy_options_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        PrivacyOptions(**options)


def test_a_slow_accountant_is_asked_seldom_and_never_for_fewer_rounds() -> None:
    where = federation(devices=40, per_round=8, mode="poisson", rounds=100)
    found = algorithm("dp-fedavg", where, sigma=1.0)
    asked: list[int] = []

    def record(rounds: int, sigma: float) -> float:
        asked.append(rounds)
        return float(rounds)

    found.paper = found.proven = record
    spent = [found.spent(rounds).proven for rounds in range(1, 104)]

    assert len(set(asked)) < 30
    assert [1, 2, 3, 5, 5, 10] == spent[:6]
    assert all(rounds <= cost < rounds + 5 for rounds, cost in enumerate(spent, 1))
    assert 100 == spent[99]


def test_a_private_algorithm_without_noise_is_refused() -> None:
    with pytest.raises(UsageError, match="give --sigma, --noise-multiplier, or --epsilon"):
        algorithm("cdp", federation())


def test_fast_noise_repeats_itself_and_secure_noise_does_not() -> None:
    for fast in (True, False):
        found = [algorithm("cdp", federation(), sigma=1.0, fast_noise=fast) for _ in range(2)]
        draws = [one.noise(3, 4).gaussian(50, 1.0) for one in found]
        again = found[0].noise(3, 4).gaussian(50, 1.0)
        assert np.array_equal(again, draws[0]) == fast
        assert not np.isin(found[0].noise(3, 5).gaussian(50, 1.0), draws[0]).any()
        if fast:
            assert np.array_equal(draws[0], draws[1])
