import math

import numpy as np
import pytest
from small_data import CLASSES, SHAPE, data, softmax_gradient

from hpcfl.errors import UsageError
from hpcfl.learning import models
from hpcfl.learning.training import Trainer, choose_device
from hpcfl.options.training import LocalOptions

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("one_thread")


def trainer(name="softmax", **options):
    """Return a trainer and its model's initial weights."""
    model = models.build(name, SHAPE, CLASSES, seed=3)
    return Trainer(model, LocalOptions(**options)), models.get_flat(model)


def seed(number=0):
    return np.random.SeedSequence(number)


def count_batches(monkeypatch):
    """Return a list that gets the inputs of every step of training from now on."""
    seen = []
    step = Trainer._step

    def recorded(self, inputs, labels, learning_rate):
        seen.append(inputs.numpy().reshape(len(inputs), -1)[:, 0].copy())
        step(self, inputs, labels, learning_rate)

    monkeypatch.setattr(Trainer, "_step", recorded)
    return seen


@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 0.0), (0.5, 0.1)])
def test_softmax_regression_moves_as_gradient_descent_written_out_does(momentum, weight_decay):
    inputs, labels = data(40)
    one, start = trainer(
        epochs=None, steps=6, batch_size=0, learning_rate=0.3, momentum=momentum,
        weight_decay=weight_decay, decay=0.5,
    )  # fmt: skip
    update = one.local_update(start, inputs, labels, seed(), round_index=2)

    weights = start.astype(np.float64)
    velocity = np.zeros_like(weights)
    for _ in range(6):
        gradient, _ = softmax_gradient(weights, inputs, labels)
        velocity = momentum * velocity + gradient + weight_decay * weights
        weights = weights - 0.3 * 0.5**2 * velocity
    # float32 against float64: relative steps of 6e-8, a few hundred of them in sums.
    assert np.abs(start - weights).max() > 0.01
    np.testing.assert_allclose(update, start - weights, rtol=0, atol=2e-6)


def test_dropout_follows_the_seed_and_torchs_generator_is_left_alone():
    from torch import nn

    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, CLASSES))
    one = Trainer(model, LocalOptions(epochs=None, steps=1, batch_size=0))
    start, (inputs, labels) = models.get_flat(model), data(30)
    first = one.local_update(start, inputs, labels, seed(0), round_index=0)
    # Neither the state of torch's generator nor an evaluation in between may show.
    before = torch.get_rng_state()
    one.evaluate(start, inputs, labels)
    again = one.local_update(start, inputs, labels, seed(0), round_index=0)
    other = one.local_update(start, inputs, labels, seed(1), round_index=0)

    assert torch.equal(before, torch.get_rng_state())
    assert np.array_equal(first, again)
    # All data in one step: without dropout the seed would change rounding only.
    assert np.abs(first - other).max() > 1e-3


def test_epochs_visit_every_sample_once_in_a_new_order_and_steps_go_on_likewise(monkeypatch):
    seen = count_batches(monkeypatch)
    inputs, labels = data(31)
    one, start = trainer(epochs=3, batch_size=10)
    one.local_update(start, inputs, labels, seed(), round_index=0)
    passes = [np.concatenate(seen[first : first + 4]) for first in (0, 4, 8)]

    assert [len(batch) for batch in seen] == [10, 10, 10, 1] * 3
    assert all(np.array_equal(np.sort(one), np.sort(inputs[:, 0, 0, 0])) for one in passes)
    assert not np.array_equal(passes[0], passes[1])
    assert not np.array_equal(passes[1], passes[2])
    # Steps are those of as many epochs as it takes.
    by_steps, _ = trainer(epochs=None, steps=6, batch_size=10)
    by_steps.local_update(start, inputs, labels, seed(), round_index=0)
    assert [batch.tolist() for batch in seen[12:]] == [batch.tolist() for batch in seen[:6]]


def test_evaluation_is_accuracy_and_mean_loss_over_all_samples():
    inputs, labels = data(103)
    one, start = trainer()
    accuracy, loss = one.evaluate(start, inputs, labels, batch=10)
    _, expected = softmax_gradient(start.astype(np.float64), inputs, labels)
    logits = inputs.reshape(103, -1) @ start.reshape(CLASSES, -1).T

    assert accuracy == (logits.argmax(axis=1) == labels).mean()
    assert loss == pytest.approx(expected, rel=1e-6)
    assert all(math.isnan(value) for value in one.evaluate(start, *data(0)))


def test_ranks_share_the_gpus_of_their_node(monkeypatch):
    for gpus, wanted, local_rank, device in (
        (0, "auto", 3, "cpu"),
        (2, "auto", 0, "cuda:0"),
        (2, "cuda", 3, "cuda:1"),
        (2, "cpu", 0, "cpu"),
    ):
        monkeypatch.setattr(torch.cuda, "is_available", lambda gpus=gpus: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        assert device == choose_device(wanted, local_rank)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="no GPU"):
        choose_device("cuda", 0)


def test_what_cannot_be_trained_is_refused():
    one, start = trainer()
    assert not one.local_update(start, *data(0), seed(), round_index=0).any()
    for options in ({"steps": 3}, {"epochs": None}):
        with pytest.raises(UsageError, match="either --epochs or --steps"):
            LocalOptions(**options)
