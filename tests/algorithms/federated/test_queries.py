from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from hpcfl.algorithms.federated.queries import (
    Constants,
    GaussianBound,
    LaplaceBound,
    gaussian_noise,
    laplace_noise,
)
from hpcfl.errors import UsageError

ANY = {
    "devices": 10,
    "dim": 7840,
    "samples": 60000,
    "gradient_norm": 3.0,
    "smoothness": 2.0,
    "convexity": 0.7,
    "heterogeneity": 0.4,
    "distance": 5.0,
    "l1_clip": 300.0,
    "l2_clip": 10.0,
    "variance": 8.0,
}


def constants(**changes):
    return Constants.from_dict(ANY | changes)


def table_1(name, heterogeneity=0.0):
    """Return constants with the paper's a', b' and gamma, which its Table I goes back to.

    a' = G**2 d**2 / (4 p xi1**2); b' = (8 lambda Gamma + mu**2 gamma Y0) d**2 / (32 p xi1**2).
    """
    gamma, a, b, dim, samples = {
        "mnist": (2.1, 412, 197, 7840, 60000),
        "femnist": (4.25, 96.5, 127.8, 110526, 70037),
    }[name]
    unit = dim * 300**2 / samples**2
    mu = 0.3
    smoothness = gamma * mu / 2
    left = 32 * unit * b - 8 * smoothness * heterogeneity
    return Constants(
        devices=10,
        dim=dim,
        samples=samples,
        gradient_norm=2 * math.sqrt(unit * a),
        smoothness=smoothness,
        convexity=mu,
        heterogeneity=heterogeneity,
        distance=left / (gamma * mu**2),
        l1_clip=300.0,
    )


@pytest.mark.parametrize("heterogeneity", [0.0, 0.001])
@pytest.mark.parametrize(
    ("name", "entries"),
    [
        ("mnist", [[5, 32, 67], [2, 20, 42], [1, 3, 5], [22, 121, 244]]),
        ("femnist", [[2, 22, 48], [1, 14, 31], [1, 2, 3], [11, 70, 145]]),
    ],
)
def test_all_entries_of_table_1(name, entries, heterogeneity):
    """T* for b = 5 and b = 10, b* for T = 50, T* of the joint optimum; epsilon 1, 5 and 10."""
    bounds = [LaplaceBound(table_1(name, heterogeneity), epsilon) for epsilon in (1, 5, 10)]

    assert [math.floor(bound.best_rounds(5)) for bound in bounds] == entries[0]
    assert [math.floor(bound.best_rounds(10)) for bound in bounds] == entries[1]
    assert [math.ceil(bound.best_per_round(50)) for bound in bounds] == entries[2]
    joint = [bound.joint() for bound in bounds]
    assert [math.floor(one.rounds) for one in joint] == entries[3]
    assert [one.per_round for one in joint] == [1, 1, 1]
    # The best whole T is one of the two beside T*.
    for bound, one in zip(bounds, joint, strict=True):
        assert bound.integer().per_round == 1
        assert bound.integer().rounds in (math.floor(one.rounds), math.ceil(one.rounds))


positive = st.floats(0.05, 20)


@st.composite
def some_constants(draw):
    mu = draw(st.floats(0.01, 2))
    return Constants(
        devices=draw(st.integers(1, 12)),
        dim=draw(st.integers(1, 50)),
        samples=draw(st.integers(20, 2000)),
        gradient_norm=draw(positive),
        smoothness=mu * draw(st.floats(1, 20)),
        convexity=mu,
        heterogeneity=draw(st.floats(0, 5)),
        distance=draw(positive),
        l1_clip=draw(positive),
        l2_clip=draw(positive),
        variance=draw(st.floats(0, 20)),
    )


def both(found, epsilon, **options):
    return [LaplaceBound(found, epsilon), GaussianBound(found, epsilon, **options)]


@given(some_constants(), st.floats(0.1, 20), st.integers(1, 12), st.integers(0, 400))
def test_u_is_theorem_3_and_4_written_out(found, epsilon, b, T):
    N, p, d, G, lam, mu = (
        found.devices, found.dim, found.samples, found.gradient_norm, found.smoothness,
        found.convexity,
    )  # fmt: skip
    b = min(b, N)
    gamma, S = 2 * lam / mu, N / epsilon**2
    spread = 2 * G**2 / (N - 1) if N > 1 else 0.0
    common = 2 * lam * found.heterogeneity - spread
    c1 = 4 / mu**2 * N * spread
    c2 = 4 / mu**2 * 8 * p * found.l1_clip**2 * S / (N * d**2)
    c3 = gamma * found.distance + 4 / mu**2 * common
    laplace = LaplaceBound(found, epsilon)
    assert laplace.coefficients == pytest.approx((c1, c2, c3), rel=1e-9)
    assert laplace.value(T, b) == pytest.approx((c1 / b + c2 * b * T**2 + c3) / (T + gamma))

    delta, q, c = 1e-4, 0.25, 1.5
    V = 4 * p * c**2 * found.l2_clip**2 * math.log(1 / delta) / d**2 * S
    e3 = 4 * V / mu**2
    e2 = 4 / mu**2 * (common + found.variance / (q * d)) + gamma * found.distance - gamma * e3
    gaussian = GaussianBound(found, epsilon, delta, q, c)
    assert gaussian.coefficients == pytest.approx((c1, e2, e3), rel=1e-9, abs=1e-9)
    expected = c1 / (b * (T + gamma)) + e2 / (T + gamma) + e3
    assert gaussian.value(T, b) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    halved = GaussianBound(found, epsilon, delta, q, c, replace=False)
    assert halved.noise(b, T) == pytest.approx(gaussian.noise(b, T) / 4)


@given(some_constants(), st.floats(0.1, 20), st.integers(1, 12), st.floats(0.5, 500))
def test_t_star_and_b_star_are_where_u_is_least(found, epsilon, b, T):
    b = min(b, found.devices)
    for bound in both(found, epsilon):
        best = bound.best_rounds(b)
        if math.isfinite(best):
            top = 4 * best + 10
            numeric = minimize_scalar(
                lambda t, bound=bound: float(bound.value(t, b)),
                bounds=(0, top), method="bounded", options={"xatol": 1e-10},
            ).fun  # fmt: skip
            assert float(bound.value(best, b)) <= numeric * (1 + 1e-9)
        else:
            # Ever less, and at last no more above E3 than (E1 / b + E2) / T.
            values = bound.value(np.geomspace(0.1, 1e9, 100), b)
            assert np.all(np.diff(values) <= 1e-9 * values[:-1])
            e1, e2, e3 = bound.coefficients
            above = float(bound.value(1e12, b)) - e3
            assert abs(above) <= (e1 / b + e2) / 1e12 + 1e-9 * e3
        grid = np.linspace(1, found.devices, 2001)
        least = float(bound.value(T, bound.best_per_round(T)))
        assert 1 <= bound.best_per_round(T) <= found.devices
        assert least <= float(bound.value(T, grid).min()) * (1 + 1e-12)


@given(some_constants(), st.floats(0.1, 20))
def test_the_joint_optimum_is_below_every_t_and_b(found, epsilon):
    per_round = np.linspace(1, found.devices, 60)[:, None]
    for bound in both(found, epsilon):
        joint = bound.joint()
        rounds = np.concatenate([[0.0], np.geomspace(0.01, 1e5, 400)])
        values = bound.value(rounds, per_round)
        assert joint.bound <= min(values.min(), found.distance) * (1 + 1e-12)
        assert joint in bound.solutions().values()
        if joint.rounds == 0:
            assert (joint.per_round, joint.bound) == (0, found.distance)
        elif math.isfinite(joint.rounds):
            assert joint.bound == float(bound.value(joint.rounds, joint.per_round))
        else:
            assert joint.per_round == found.devices
            assert joint.bound == bound.coefficients[2]


@given(some_constants(), st.floats(0.1, 5), st.booleans(), st.integers(1, 300))
def test_whole_optima_are_those_of_trying_everything(found, epsilon, whole, most):
    devices = np.arange(1, found.devices + 1)[:, None]
    rounds = np.arange(1, most + 1)
    for bound in both(found, epsilon):
        values = bound.value(rounds, devices, whole=whole)
        best = bound.integer(most, whole=whole)
        assert best.bound == pytest.approx(min(values.min(), found.distance), rel=1e-12)
        if best.rounds:
            again = bound.value(best.rounds, best.per_round, whole=whole)
            assert float(again) == best.bound
            assert 1 <= best.rounds <= most
        for b in devices[:, 0].tolist():
            one = bound.best_whole_rounds(b, most, whole=whole)
            assert one.bound == pytest.approx(values[b - 1].min(), rel=1e-12)
    # Without a largest number of rounds as well.
    bound, b = LaplaceBound(found, epsilon), found.devices
    rounds = np.arange(1, 4 * math.ceil(bound.best_rounds(b)) + 4 * b)
    if rounds.size < 10**5:
        least = bound.value(rounds, b, whole=whole).min()
        assert bound.best_whole_rounds(b, whole=whole).bound == pytest.approx(least, rel=1e-12)


def test_whole_replies_count_what_the_busiest_device_replies():
    bound = LaplaceBound(constants(), 1.0)
    # 22 rounds of one of ten devices: two devices reply three times.
    assert bound.value(22, 1, whole=True) == bound.with_noise(22, 1, bound.noise(1, 3))
    assert bound.value(22, 1) == pytest.approx(float(bound.with_noise(22, 1, bound.noise(1, 2.2))))
    # Nor is a whole number rounded up.
    for rounds in range(1, 200):
        seven = LaplaceBound(constants(devices=7), 1.0)
        exact = -(-rounds * 3 // 7)
        assert seven.value(rounds, 3, whole=True) == seven.with_noise(
            rounds, 3, seven.noise(3, exact)
        )


@pytest.mark.parametrize("b", [1, 3])
def test_noise_of_unequal_devices_is_that_of_propositions_1_and_2(b):
    rng = np.random.default_rng(1)
    devices, rounds, dim, c2, q, delta = 10, 40, 5, 1.3, 0.2, 1e-5
    sensitivities, epsilons = rng.uniform(0.01, 0.05, devices), rng.uniform(0.5, 5, devices)
    replies = rounds * b / devices
    squares = np.sum((sensitivities / epsilons) ** 2)

    found = laplace_noise(dim, sensitivities, epsilons, b, replies)
    assert found == pytest.approx(2 * dim * b * rounds**2 / devices**3 * squares)
    found = gaussian_noise(dim, sensitivities, epsilons, b, replies, delta=delta, fraction=q, c2=c2)
    closed = dim * c2**2 * q**2 * rounds * math.log(1 / delta) / devices**2 * squares
    assert found == pytest.approx(closed)


def test_gaussian_noise_takes_as_many_rounds_as_can_be():
    bound = GaussianBound(constants(l2_clip=0.01), 1.0, fraction=0.01)
    assert bound.joint().rounds == math.inf
    assert bound.joint().per_round == 10
    assert (bound.integer(500).rounds, bound.integer(500).per_round) == (500, 10)
    with pytest.raises(UsageError, match="give a largest number"):
        bound.integer()
    # With hardly any budget the start is kept.
    for found in both(constants(heterogeneity=50.0), 1e-6):
        assert (found.joint().rounds, found.joint().bound) == (0, 5.0)
        assert (found.integer(100).rounds, found.integer(100).bound) == (0, 5.0)


def test_unequal_budgets_count_by_the_mean_of_their_inverse_squares():
    epsilons = [1.0] * 5 + [5.0] * 5
    equal = 1 / math.sqrt(np.mean(np.array(epsilons) ** -2.0))
    for one, other in zip(both(constants(), epsilons), both(constants(), equal), strict=True):
        assert float(one.value(20, 3)) == pytest.approx(float(other.value(20, 3)))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"devices": 0}, "devices is 0; it must be a whole number from 1"),
        ({"dim": 1.5}, "dim is 1.5; it must be a whole number from 1"),
        ({"samples": -1}, "samples is -1; it must be above 0"),
        ({"gradient_norm": math.nan}, "gradient_norm is nan; it must be above 0"),
        ({"distance": "5"}, "distance is '5'; it must be above 0"),
        ({"l1_clip": 0}, "l1_clip is 0; it must be above 0"),
        ({"heterogeneity": -0.1}, "heterogeneity is -0.1; it must be 0 or more"),
        ({"convexity": 3.0}, "lambda is never below mu"),
        ({"mass": 3.0}, "there is no constant 'mass'"),
    ],
)
def test_constants_that_cannot_be_are_refused(changes, sentence):
    with pytest.raises(UsageError, match=sentence):
        constants(**changes)
    with pytest.raises(UsageError, match=r"the bound needs samples, .*, distance: give all"):
        Constants.from_dict({"devices": 1, "dim": 2})
    assert Constants.from_dict(constants().as_dict()) == constants()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: LaplaceBound(constants(), [1, 2]), "2 epsilons for 10 devices"),
        (lambda: LaplaceBound(constants(), 0), "every epsilon must be above 0"),
        (lambda: LaplaceBound(constants(), math.inf), "every epsilon must be above 0"),
        (lambda: LaplaceBound(constants(l1_clip=None), 1), "l1_clip"),
        (lambda: GaussianBound(constants(l2_clip=None), 1), "l2_clip"),
        (lambda: GaussianBound(constants(), 1, delta=0), "delta is 0"),
        (lambda: GaussianBound(constants(), 1, fraction=1.1), "fraction is 1.1"),
        (lambda: GaussianBound(constants(), 1, c2=0), "c2 is 0"),
    ],
)
def test_bounds_that_cannot_be_are_refused(call, sentence):
    with pytest.raises(UsageError, match=sentence):
        call()
