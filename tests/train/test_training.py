from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpcfl.bench.experiment import Options
from hpcfl.comm.world import World
from hpcfl.errors import UsageError
from hpcfl.results import load
from hpcfl.train import checkpoint, session
from hpcfl.train.experiment import TrainOptions
from hpcfl.train.session import Trained

pytest.importorskip("torch")

from hpcfl.learning.training import LocalOptions

PROTOCOL = set(Options.__dataclass_fields__)


def train(
    folder: Path, aggregate: str = "fedavg", devices: int = 6, epochs: int = 1, **options: Any
) -> Trained:
    """Train softmax regression on the bundled digits in one process."""
    options = {"rounds": 3, "dropout": 0.0} | options
    protocol = {name: options.pop(name) for name in list(options) if name in PROTOCOL}
    asked = TrainOptions(
        "fedavg",
        Options(aggregate, warmup=0, **protocol),
        LocalOptions(epochs=epochs, batch_size=20, learning_rate=0.1),
        **options,
    )
    trained = session.run(World(None), asked, devices, folder)
    assert trained is not None
    return trained


@pytest.mark.parametrize("aggregate", ["secagg", "sparse"])
def test_training_through_a_protocol_learns_and_is_validated(
    tmp_path: Path, aggregate: str
) -> None:
    trained = train(tmp_path, aggregate, rounds=12, dropout=0.2, alpha=1.0)
    run = load(trained.path)

    assert trained.results[-1].figures["accuracy"] > 0.85
    assert run.status == "complete"
    assert run.validated.all()
    assert run.training["accuracy"].tolist() == [r.figures["accuracy"] for r in trained.results]
    assert (np.diff(run.training["bytes_up_total"]) > 0).all()
    assert run.training["bytes_up_total"][-1] == run.bytes_up.sum()


def test_secagg_gives_fedavgs_model_up_to_quantisation(tmp_path: Path) -> None:
    # Each of N devices rounds by less than one level; after the first round the models differ, so
    # the bound is for one round: N / levels a coordinate, and float32 of both models and updates.
    levels, devices = 2**20, 6
    plain = train(tmp_path, "fedavg", devices, rounds=1)
    secure = train(tmp_path, "secagg", devices, rounds=1, levels=levels)

    np.testing.assert_allclose(secure.weights, plain.weights, rtol=0, atol=devices / levels + 1e-6)
    assert not np.array_equal(secure.weights, plain.weights)


def test_rounding_and_clipping_are_reported(tmp_path: Path) -> None:
    plain = train(tmp_path, "fedavg", rounds=1).results[0].figures
    fine = train(tmp_path, "secagg", rounds=1, levels=2**20).results[0].figures
    coarse = train(tmp_path, "secagg", rounds=1, levels=2**10).results[0].figures
    narrow = train(tmp_path, "sparse", rounds=1, alpha=1.0, clip=1e-3).results[0].figures

    assert np.isnan([plain["quantisation_error"], plain["clipped_fraction"]]).all()
    # Six devices round by less than a level each; the error of one is uniform at most.
    assert 0 < fine["quantisation_error"] < 6 / 2**20
    assert 0 < coarse["quantisation_error"] < 6 / 2**10
    assert coarse["quantisation_error"] > 100 * fine["quantisation_error"]
    assert fine["clipped_fraction"] == 0
    assert 0.5 < narrow["clipped_fraction"] < 1
    assert narrow["quantisation_error"] > 100 * fine["quantisation_error"]


def test_the_same_seed_gives_the_same_model(tmp_path: Path) -> None:
    one, two, other = (train(tmp_path, "secagg", seed=seed) for seed in (1, 1, 2))

    np.testing.assert_array_equal(one.weights, two.weights)
    assert not np.array_equal(one.weights, other.weights)


def test_training_stops_at_the_target_and_keeps_its_rounds(tmp_path: Path) -> None:
    trained = train(tmp_path, rounds=50, target_accuracy=0.7)
    run = load(trained.path)

    accuracies = run.training["accuracy"]
    assert run.rounds == len(trained.results) < 50
    assert accuracies[-1] >= 0.7
    assert (accuracies[:-1] < 0.7).all()
    assert run.status == "complete"


def test_training_stops_when_its_time_is_over(tmp_path: Path) -> None:
    assert len(train(tmp_path, rounds=50, max_seconds=0.0).results) == 1


def test_only_the_devices_drawn_send_anything(tmp_path: Path) -> None:
    run = load(train(tmp_path, "secagg", 9, per_round=4, rounds=4).path)
    senders = run.bytes_up.sum(axis=1) > 0

    assert senders.sum(axis=1).tolist() == [4] * 4
    assert (senders == run.survived).all()
    assert len({tuple(row) for row in senders.tolist()}) > 1
    assert run.training["participants"].tolist() == [4] * 4


def test_devices_weigh_as_much_as_their_data(tmp_path: Path) -> None:
    trained = train(tmp_path, "fedavg", 3, rounds=1, partition="dirichlet:0.3")
    with h5py.File(trained.path) as file:
        table = file["partition"][()]

    assert table.shape == (3, 10)
    assert len(set(table.sum(axis=1).tolist())) > 1


def test_a_server_of_momentum_moves_on_by_itself(tmp_path: Path) -> None:
    plain = train(tmp_path, rounds=2)
    momentum = train(tmp_path, rounds=2, server_momentum=0.9)
    first = train(tmp_path, rounds=1)

    # After one round the same; the second adds 0.9 of the first step.
    start_to_first = first.weights - train(tmp_path, rounds=1, server_learning_rate=1e-12).weights
    np.testing.assert_allclose(
        momentum.weights - plain.weights, 0.9 * start_to_first, rtol=0, atol=1e-6
    )


def test_a_resumed_run_ends_with_the_model_of_an_undisturbed_one(tmp_path: Path) -> None:
    options: dict[str, Any] = {"server_momentum": 0.5, "per_round": 4, "dropout": 0.2}
    whole = train(tmp_path, "secagg", rounds=6, **options)
    begun = train(tmp_path, "secagg", rounds=4, checkpoint_every=3, **options)
    saved = checkpoint.path_for(begun.path)
    resumed = train(tmp_path, "secagg", rounds=6, resume=saved, **options)

    assert len(resumed.results) == 3
    np.testing.assert_array_equal(resumed.weights, whole.weights)
    for name in ("accuracy", "loss", "bytes_up_total"):
        assert [r.figures[name] for r in whole.results[3:]] == [
            r.figures[name] for r in resumed.results
        ]


def test_a_checkpoint_of_other_options_is_refused(tmp_path: Path) -> None:
    begun = train(tmp_path, rounds=1, checkpoint_every=1)
    saved = checkpoint.path_for(begun.path)
    with pytest.raises(UsageError, match="is of a run with seed 0, not 1: resume with the same"):
        train(tmp_path, seed=1, resume=saved)


@pytest.mark.parametrize("content", [None, b"", b"junk", b"PK\x03\x04junk"])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "state.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match="cannot be read as a checkpoint"):
        train(tmp_path, resume=path)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"rounds": 0}, "--rounds is 0"),
        ({"aggregate": "sparse", "upload": "reduce"}, "sparse cannot use --upload reduce"),
        ({"aggregate": "secagg", "dropout_phase": "lunch"}, "has no phase 'lunch' to drop out"),
        ({"uplink_mbps": 0.0}, "--uplink-mbps must be a number above 0"),
        ({"target_accuracy": 1.5}, "--target-accuracy is 1.5"),
        ({"server_momentum": 1.0}, "the server's learning rate must be positive"),
        ({"partition": "nonsense"}, "nonsense"),
        ({"per_round": 9}, "9 devices a round are asked for; there are 6"),
        ({"aggregate": "nonsense"}, "there is no protocol 'nonsense'"),
        ({"model": "nonsense"}, "nonsense"),
    ],
)
def test_options_that_cannot_work_are_refused(
    tmp_path: Path, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        train(tmp_path, **options)


def test_an_unknown_algorithm_is_refused() -> None:
    with pytest.raises(UsageError, match="there is no algorithm 'nonsense'; choose one of fedavg"):
        TrainOptions("nonsense", Options("fedavg"), LocalOptions())
