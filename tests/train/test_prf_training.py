"""Training through masks from one enrolment, of which a part takes part in a round."""

import numpy as np
import pytest

from hpcfl.comm.world import World
from hpcfl.errors import HpcflError, UsageError
from hpcfl.options.training import TrainOptions
from hpcfl.results import load
from hpcfl.training import checkpoint, session

pytest.importorskip("torch")


DEVICES = 9


def train(folder, aggregate, *, rounds=4, dropout=0.0, **options):
    """Train softmax regression on the bundled digits in one process."""
    folder.mkdir(exist_ok=True)
    asked = TrainOptions(
        "fedavg",
        aggregate=aggregate,
        rounds=rounds,
        dropout=dropout,
        epochs=1,
        batch_size=20,
        learning_rate=0.1,
        **options,
    )
    trained = session.run(World(None), asked, DEVICES, folder)
    assert trained is not None
    return trained


@pytest.mark.parametrize("sampling", ["exact", "poisson"])
def test_the_selected_of_the_enrolled_devices_give_secaggs_model(tmp_path, sampling):
    """The same vectors, roundings and sums: only the masks differ, and they cancel."""
    options = {"per_round": 5, "sampling": sampling}
    masked = train(tmp_path, "prf", **options)
    shared = train(tmp_path, "secagg", **options)
    run, other = load(masked.path), load(shared.path)

    np.testing.assert_array_equal(masked.weights, shared.weights)
    assert run.validated.all()
    np.testing.assert_array_equal(run.survived, other.survived)
    assert (run.survived.sum(axis=1) == 5).all() == (sampling == "exact")
    # Not always the first of them.
    assert len({tuple(row) for row in run.survived.tolist()}) > 1


def test_all_devices_enrol_once_and_the_selected_send_a_vector(tmp_path):
    trained = train(tmp_path, "prf", per_round=4)
    run = load(trained.path)
    dim = trained.weights.size

    assert ["advertise_keys", "model", "masked_input", "result"] == list(run.phases)
    assert [[16 + 32] * DEVICES, *[[0] * DEVICES] * 3] == run.bytes_up[:, 0].tolist()
    assert [[16 + 32 * DEVICES] * DEVICES, *[[0] * DEVICES] * 3] == run.bytes_down[:, 0].tolist()
    selected = run.survived.astype(int)
    np.testing.assert_array_equal(run.bytes_down[:, 1], selected * (16 + 4 * dim + 2))
    np.testing.assert_array_equal(run.bytes_up[:, 2], selected * (16 + 4 * dim))
    np.testing.assert_array_equal(
        run.training["bytes_up_total"], np.cumsum(run.bytes_up.sum(axis=(1, 2)))
    )
    assert (run.cpu_seconds[0, 0] > 0).all()
    assert run.cpu_seconds[1:, 0].sum() == 0
    assert run.training["modelled_seconds"][0] > run.cpu_seconds[0, 0, :DEVICES].max()


def test_a_resumed_run_enrols_anew_and_goes_on_to_the_same_model(tmp_path):
    whole = train(tmp_path / "whole", "prf", rounds=4, per_round=3, checkpoint_every=2)
    first = train(tmp_path / "first", "prf", rounds=2, per_round=3, checkpoint_every=2)
    resumed = train(
        tmp_path / "resumed",
        "prf",
        rounds=4,
        per_round=3,
        checkpoint_every=2,
        resume=checkpoint.path_for(first.path),
    )
    run = load(resumed.path)

    np.testing.assert_array_equal(whole.weights, resumed.weights)
    # The first round of the new run, which is round 2.
    assert (run.bytes_up[0, 0] > 0).all()
    assert run.bytes_up[1:, 0].sum() == 0


def test_one_selected_device_alone_is_refused(tmp_path):
    with pytest.raises(UsageError, match="prf needs at least 2 devices, but there are 1"):
        train(tmp_path, "prf", per_round=1)


def test_a_round_for_which_chance_selects_one_device_is_refused(tmp_path):
    with pytest.raises(HpcflError, match="prf needs at least 2 devices, but there are 1"):
        train(tmp_path, "prf", per_round=3, sampling="poisson", rounds=200)
    (path,) = tmp_path.glob("*.h5")

    assert load(path).status == "failed"
    assert (load(path).survived.sum(axis=1) >= 2).all()


def test_dropouts_are_refused_before_anything_starts(tmp_path):
    with pytest.raises(UsageError, match="prf has no dropouts"):
        train(tmp_path, "prf", dropout=0.2)
    assert [] == list(tmp_path.iterdir())
