"""What each ablation of LOCKS changes, and that its noise is scaled to what is then sent."""

import numpy as np
import pytest

from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.aggregation.base import Aggregate
from hpcfl.algorithms.federated import find as find_algorithm
from hpcfl.algorithms.federated.base import Federation
from hpcfl.algorithms.federated.participation import Participation
from hpcfl.algorithms.noise import insecure_noise
from hpcfl.algorithms.parameters import Parameters
from hpcfl.options.privacy import PrivacyOptions
from hpcfl.privacy.accounting import sampling
from hpcfl.reproduce.locks import ABLATIONS, _noise_on_mean

NORMS = np.linspace(0.1, 1.0, 12)
KEPT, INVITED, DRAWS = 4, 8, 1500


def make(name, **privacy):
    where = Federation(
        sizes=np.ones(NORMS.size, np.int64),
        participation=Participation(NORMS.size, INVITED, "poisson", 5),
        rounds=10,
        seed=5,
        protocol=find("fedavg")(Parameters(KEPT, KEPT, dropout=0.0)),
        local=None,
    )
    kind = find_algorithm(ABLATIONS[name].home if name in ABLATIONS else name)
    given = {"sigma": 1e-9} | privacy
    return kind(where, PrivacyOptions(**given), insecure_noise(1))


def kept_shares(algorithm):
    """Return how often each device is kept of the times that it is invited."""
    invited, kept = np.zeros(NORMS.size), np.zeros(NORMS.size)
    for index in range(DRAWS):
        server = algorithm.first_stage.server(index, np.zeros(3, np.float32))
        ids = algorithm.federation.participation.draw(index)
        for slot, id in enumerate(ids):
            server.receive_norms(slot, np.array([NORMS[id]], "<f8").view(np.uint8))
        server.finish_norms()
        invited[ids] += 1
        for slot, factor in server.factors.items():
            kept[ids[slot]] += 1
            assert factor * NORMS[ids[slot]] <= algorithm.scale * (1 + 1e-9)
    return kept / invited


def test_even_chances_do_not_go_with_norms():
    shares = kept_shares(make("locks-even-chances"))

    assert shares.max() - shares.min() < 0.15
    assert abs(np.corrcoef(shares, NORMS)[0, 1]) < 0.7


@pytest.mark.parametrize("name", ["locks", "locks-unweighted", "locks-free-norms"])
def test_chances_go_with_norms(name):
    shares = kept_shares(make(name))

    assert np.corrcoef(shares, NORMS)[0, 1] > 0.95


def test_the_largest_are_preferred_more_than_by_their_norms():
    largest, by_norm = (kept_shares(make(name)) for name in ("locks-largest", "locks-unweighted"))

    assert largest[-3:].mean() > by_norm[-3:].mean() + 0.1
    assert largest[:3].mean() < by_norm[:3].mean()


def test_unweighted_updates_are_divided_by_those_kept():
    algorithm = make("locks-unweighted")
    server = algorithm.first_stage.server(0, np.zeros(3, np.float32))
    for slot in range(KEPT):
        server.receive_norms(slot, np.array([1.0], "<f8").view(np.uint8))
    server.finish_norms()

    moved = algorithm.update(Aggregate(np.ones(3), 1.0, 1.0), np.zeros(0), list(range(KEPT)), 0)

    assert set(server.factors.values()) <= {1.0}
    assert algorithm.scale == 1.0
    assert moved == pytest.approx(np.ones(3))


def test_free_norms_leave_the_whole_budget_to_the_updates():
    free = make("locks-free-norms", sigma=None, epsilon=10.0)
    paying = make("locks", sigma=None, epsilon=10.0)

    expected, _ = sampling.poisson_gaussian(INVITED / NORMS.size, free.sigma, 10, 1e-5)
    assert expected == pytest.approx(10, rel=1e-3)
    # Of two releases with equal noise, each has half the budget.
    assert paying.sigma == pytest.approx(np.sqrt(2) * free.sigma, rel=1e-3)


def test_the_noise_by_formula_is_that_of_a_round():
    """Of a round of users with full norms, the noise on the mean is what the formula says."""
    sigma, dim = 2.0, 20_000
    algorithm = make("locks", sigma=sigma, sigma_norms=1e-9)
    server = algorithm.first_stage.server(0, np.zeros(dim, np.float32))
    for slot in range(INVITED):
        server.receive_norms(slot, np.array([1.0], "<f8").view(np.uint8))
    server.finish_norms()

    nothing = Aggregate(np.zeros(dim), 1.0, 1.0)
    noise = algorithm.update(nothing, np.zeros(0), list(range(KEPT)), 0)

    # S = m z / b and the sum is divided by m, as in the paper's experiment with 30 and 20.
    assert noise.std() == pytest.approx(sigma * (INVITED / KEPT) / INVITED, rel=0.02)
    _, locks, free = _noise_on_mean({"of_20": 1.0, "of_30": sigma}, 1.0)
    assert free == pytest.approx(sigma * (30 / 20) / 30)
    assert locks == pytest.approx(np.sqrt(2) * free)
    # However small norms are, the sum of them counts as b C.
    assert _noise_on_mean({"of_20": 1.0, "of_30": sigma}, 0.0)[2] == pytest.approx(sigma / 30)
