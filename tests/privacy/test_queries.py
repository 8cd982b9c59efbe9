"""The best numbers of queries and replies, against the paper's table, its theorem and a search."""

import json
import math

import numpy as np
import pytest
from commandline import invoke
from hypothesis import given
from hypothesis import strategies as st

from hpcfl.errors import UsageError
from hpcfl.privacy.queries import Bound, Constants

ANY = {
    "devices": 10,
    "dim": 7840,
    "samples": 60000,
    "gradient_norm": 3.0,
    "smoothness": 2.0,
    "convexity": 0.7,
    "heterogeneity": 0.4,
    "distance": 5.0,
    "clip_norm": 300.0,
}


def table_1(name):
    """Return constants with the paper's a', b' and gamma, which its Table I goes back to.

    a' = G**2 d**2 / (4 p xi1**2); b' = (8 lambda Gamma + mu**2 gamma Y0) d**2 / (32 p xi1**2).
    """
    gamma, a, b, dim, samples = {
        "mnist": (2.1, 412, 197, 7840, 60000),
        "femnist": (4.25, 96.5, 127.8, 110526, 70037),
    }[name]
    unit, mu, heterogeneity = dim * 300**2 / samples**2, 0.3, 0.001
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
        clip_norm=300.0,
    )


def best_per_round(bound, rounds):
    """Return b*(T) = sqrt(C1 / C2) / T, where U is least over 1 <= b <= N for a fixed T."""
    c1, c2, _ = bound.coefficients
    return float(np.clip(math.sqrt(c1 / c2) / rounds, 1, bound.constants.devices))


@pytest.mark.parametrize(
    ("name", "entries"),
    [
        ("mnist", [[5, 32, 67], [2, 20, 42], [1, 3, 5], [22, 121, 244]]),
        ("femnist", [[2, 22, 48], [1, 14, 31], [1, 2, 3], [11, 70, 145]]),
    ],
)
def test_all_entries_of_table_1(name, entries):
    """T* for b = 5 and b = 10, b* for T = 50, T* of the joint optimum; epsilon 1, 5 and 10."""
    bounds = [Bound(table_1(name), epsilon) for epsilon in (1, 5, 10)]

    assert [math.floor(bound.best_rounds(5)) for bound in bounds] == entries[0]
    assert [math.floor(bound.best_rounds(10)) for bound in bounds] == entries[1]
    assert [math.ceil(best_per_round(bound, 50)) for bound in bounds] == entries[2]
    joint = [bound.joint() for bound in bounds]
    assert [math.floor(one.rounds) for one in joint] == entries[3]
    assert [one.per_round for one in joint] == [1, 1, 1]


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
        clip_norm=draw(positive),
    )


@given(some_constants(), st.floats(0.1, 20), st.integers(1, 12), st.integers(0, 400))
def test_u_is_theorem_3_written_out(found, epsilon, b, T):
    N, b = found.devices, min(b, found.devices)
    gamma, mu = 2 * found.smoothness / found.convexity, found.convexity
    spread = 2 * found.gradient_norm**2 / (N - 1) if N > 1 else 0.0
    c1 = 4 / mu**2 * N * spread
    c2 = 4 / mu**2 * 8 * found.dim * found.clip_norm**2 / (found.samples**2 * epsilon**2)
    rest = 2 * found.smoothness * found.heterogeneity - spread
    c3 = gamma * found.distance + 4 / mu**2 * rest
    bound = Bound(found, epsilon)

    assert bound.coefficients == pytest.approx((c1, c2, c3), rel=1e-9)
    assert bound.value(T, b) == pytest.approx((c1 / b + c2 * b * T**2 + c3) / (T + gamma))
    replies = -(-T * b // N)
    whole = bound.value(T, b) + 4 / mu**2 * (
        bound.noise(b, replies) - bound.noise(b, T * b / N)
    ) / (T + gamma)
    assert bound.value(T, b, whole=True) == pytest.approx(float(whole), rel=1e-9)


@given(some_constants(), st.floats(0.1, 20))
def test_optima_are_below_every_t_and_b(found, epsilon):
    bound = Bound(found, epsilon)
    per_round = np.linspace(1, found.devices, 60)
    rounds = np.concatenate([[0.0], np.geomspace(0.01, 1e5, 400)])
    values = bound.value(rounds[:, None], per_round)
    assert bound.joint().bound <= min(values.min(), found.distance) * (1 + 1e-12)
    for b in per_round[::20]:
        least = float(bound.value(bound.best_rounds(b), b))
        assert least <= bound.value(rounds, b).min() * (1 + 1e-12)
    for T in (0.5, 40.0):
        least = float(bound.value(T, best_per_round(bound, T)))
        assert least <= bound.value(T, per_round).min() * (1 + 1e-12)
    # Among whole numbers, and whole replies.
    most = 4 * math.ceil(bound.best_rounds(1)) + 4 * found.devices
    if most < 10**4:
        tried = bound.value(
            np.arange(1, most)[:, None], np.arange(1, found.devices + 1), whole=True
        )
        best = bound.best_whole()
        assert best.bound == pytest.approx(min(tried.min(), found.distance), rel=1e-12)


def test_the_command_finds_them(tmp_path):
    path = tmp_path / "mnist.json"
    path.write_text(json.dumps(ANY | {"heterogeneity": 0.0, "distance": 500.0}))
    ran = invoke("optimize", "fedsgd-dpc", path, "--epsilon", 5, "--json")
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout)["whole_replies"]
    best = Bound(Constants.read(path), 5).best_whole()
    assert found["rounds"] == best.rounds
    replies = math.ceil(best.rounds * best.per_round / 10)
    assert found["noise"] == pytest.approx(2 * 300 / 6000 * replies / 5)
    path.write_text(json.dumps(ANY | {"heterogeneity": 1e4}))
    assert "no training has a smaller bound" in invoke("optimize", "fedsgd-dpc", path).stdout
    for changes, sentence in (
        ({"devices": 0}, "devices is 0; it must be a number above 0"),
        ({"convexity": 3.0}, "lambda is never below mu"),
        ({"mass": 3.0}, "unexpected keyword argument 'mass'"),
    ):
        path.write_text(json.dumps(ANY | changes))
        with pytest.raises(UsageError, match=sentence):
            Constants.read(path)
