"""Models of the user's: what works is trained, and what fails is refused before the first round."""

import pytest
from runs import right
from runs import train_privately as train

from hpcfl.errors import UsageError

pytest.importorskip("torch")

MODULE = """
import torch
from torch import nn

def layers(shape, classes, *between):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), *between, nn.Linear(8, classes))

def normalised(*shape):
    return layers(*shape, nn.BatchNorm1d(8, affine=False, track_running_stats=False))

class Scaled(nn.Module):
    def __init__(self, *shape):
        super().__init__()
        self.layers, self.scale = layers(*shape), nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        return self.scale * self.layers(x)
"""
PRIVATE = {
    "cdp": {"sigma": 0.01},
    "dp-dsgd": {"sigma": 0.01, "steps": 1},
    "fedsgd-dpc": {"sigma": 1e-4, "steps": 1, "batch_size": 0, "mechanism": "laplace"},
}
PLAIN = {"fedavg": {"steps": None, "epochs": 1, "devices": 7}}


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "models_of_ones_own.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)


def test_a_scalar_parameter_is_trained(tmp_path):
    trained = train(tmp_path, "fedavg", model="models_of_ones_own:Scaled", **PLAIN["fedavg"])
    assert right(trained)
    assert trained.weights.size == 64 * 8 + 8 + 8 * 10 + 10 + 1
    assert trained.results[-1].figures["loss"] < trained.results[0].figures["loss"]


# Of 1,433 samples, seven devices have 204 or 205 each.
@pytest.mark.parametrize(
    ("algorithm", "model", "options", "sentence"),
    [
        *((name, "Scaled", options, "of every sample") for name, options in PRIVATE.items()),
        *((name, "normalised", options, "of every sample") for name, options in PRIVATE.items()),
        ("fedavg", "normalised", PLAIN["fedavg"] | {"batch_size": 203}, "on a batch of 1 sample"),
        ("fedavg", "normalised", PLAIN["fedavg"] | {"batch_size": 41}, ""),
        ("fedavg", "normalised", {"steps": 1, "devices": 7, "batch_size": 203}, ""),
    ],
)
def test_a_model_that_fails_in_a_step_is_refused(tmp_path, algorithm, model, options, sentence):
    def play():
        return train(tmp_path, algorithm, model=f"models_of_ones_own:{model}", **options)

    if not sentence:
        assert right(play())
        return
    with pytest.raises(UsageError, match=f"^the model models_of_ones_own:{model} fails .*") as told:
        play()
    assert sentence in str(told.value)
    assert "\n" not in str(told.value)
    assert not [*tmp_path.glob("*.h5")]
