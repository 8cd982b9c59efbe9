"""Models of the user's."""

import pytest
from runs import right
from runs import train_privately as train

pytest.importorskip("torch")

MODULE = """
import torch
from torch import nn

def layers(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, classes))

class Scaled(nn.Module):
    def __init__(self, *shape):
        super().__init__()
        self.layers, self.scale = layers(*shape), nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        return self.scale * self.layers(x)
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "models_of_ones_own.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)


def test_a_scalar_parameter_is_trained(tmp_path):
    options = {"steps": None, "epochs": 1, "devices": 7}
    trained = train(tmp_path, "fedavg", model="models_of_ones_own:Scaled", **options)
    assert right(trained)
    assert trained.weights.size == 64 * 8 + 8 + 8 * 10 + 10 + 1
    assert trained.results[-1].figures["loss"] < trained.results[0].figures["loss"]
