"""Training through sums that a server that cheats learns no more from."""

import numpy as np
import pytest

from hpcfl.comm.world import World
from hpcfl.options.training import TrainOptions
from hpcfl.results import load
from hpcfl.training import session

pytest.importorskip("torch")


def train(folder, security):
    """Train softmax regression on the bundled digits, 6 of 9 devices a round, in one process."""
    folder.mkdir()
    asked = TrainOptions(
        "fedavg",
        aggregate="secagg",
        rounds=3,
        dropout=0.2,
        security=security,
        epochs=1,
        batch_size=20,
        learning_rate=0.1,
        per_round=6,
    )
    trained = session.run(World(None), asked, 9, folder)
    assert trained is not None
    return trained


def test_it_comes_to_the_model_of_the_passive_variant(tmp_path):
    active, passive = (train(tmp_path / security, security) for security in ("active", "passive"))
    run = load(active.path)

    assert run.validated.all()
    np.testing.assert_array_equal(active.weights, passive.weights)
    assert "consistency_check" in run.phases
    # All nine enrol before the first round, in which six take part.
    advertised = run.bytes_up[:, list(run.phases).index("advertise_keys")]
    assert (advertised[0] >= 16 + 96).all()
    assert ((advertised[1:] > 0).sum(axis=1) == 6).all()
