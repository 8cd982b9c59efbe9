import sys

import numpy as np
import pytest

from hpcfl.errors import UsageError
from hpcfl.learning import models

torch = pytest.importorskip("torch")

PUBLISHED = [
    ("softmax", (1, 28, 28), 10, 7_840),
    ("2nn", (1, 28, 28), 10, 199_210),
    ("mnist-cnn", (1, 28, 28), 10, 1_663_370),
    ("cifar-cnn", (3, 32, 32), 10, 165_005),
    ("femnist-cnn", (1, 28, 28), 62, 110_526),
    ("adult-lr", (104,), 2, 2 * 105),
    ("adult-nn", (104,), 2, 104 * 64 + 64 + 64 * 32 + 32 + 32 * 2 + 2),
]


def own_module(folder, name, body):
    """Write a user's module with a function `make` of the given body."""
    lines = ["import torch", "from torch import nn", "def make(input_shape, classes):"]
    (folder / f"{name}.py").write_text("\n".join([*lines, f"    {body}", ""]))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the current folder, which is empty and not on Python's path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    return tmp_path


@pytest.mark.parametrize(("name", "shape", "classes", "count"), PUBLISHED)
def test_the_papers_models_have_exactly_their_parameters_and_no_other_state(
    name, shape, classes, count
):
    assert {name for name, *_ in PUBLISHED} == set(models.NAMES)
    model = models.build(name, shape, classes, seed=0)
    assert models.find(name).parameters(shape, classes) == count
    assert models.parameter_count(model) == models.get_flat(model).size == count
    assert list(model.buffers()) == []
    for other in ((1, 8, 8), (3, 33, 29)):
        model = models.build(name, other, 7, seed=0)
        assert models.find(name).parameters(other, 7) == models.parameter_count(model)
        assert model(torch.zeros(5, *other)).shape == (5, 7)


def test_the_seed_alone_decides_the_initial_parameters():
    first = models.get_flat(models.build("2nn", (3, 32, 32), 10, seed=5))
    torch.rand(3)
    before = torch.get_rng_state()
    again = models.get_flat(models.build("2nn", (3, 32, 32), 10, seed=5))
    assert torch.equal(before, torch.get_rng_state())

    assert np.array_equal(first, again)
    assert not np.array_equal(first, models.get_flat(models.build("2nn", (3, 32, 32), 10, seed=6)))


def test_the_flat_vector_is_a_copy_of_the_parameters_in_the_models_order():
    model = models.build("adult-lr", (3,), 2, seed=0)
    before = models.get_flat(model)
    kept = before.copy()
    wanted = np.arange(8, dtype=np.float32)
    parameters = models.trained_parameters(model)
    torch.nn.utils.vector_to_parameters(torch.from_numpy(wanted), parameters)
    weight, bias = model.parameters()

    assert (weight.tolist(), bias.tolist()) == ([[0, 1, 2], [3, 4, 5]], [6, 7])
    assert models.get_flat(model).dtype == np.float32
    assert np.array_equal(models.get_flat(model), wanted)
    assert np.array_equal(before, kept)


def test_a_users_model_is_found_in_the_current_folder_and_seeded(folder):
    lazy = "nn.Sequential(nn.Linear(4, 5).requires_grad_(False), nn.LazyLinear(classes))"
    own_module(folder, "own_lazy", f"return {lazy}")
    first, again = (models.build("own_lazy:make", (4,), 3, seed=4) for _ in range(2))

    # Lazy layers get their sizes, and frozen ones do not travel.
    assert models.parameter_count(first) == 5 * 3 + 3
    assert np.array_equal(models.get_flat(first), models.get_flat(again))
    assert first.training


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("own_buffers", "return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))", "running_mean"),
        ("own_half", "m = nn.Linear(4, 3); m.spare = nn.Parameter(m.bias.half()); return m", "16"),
        ("own_number", "return 3", "must return a torch.nn.Module, not int"),
        ("own_width", "return nn.Linear(4, 9)", r"shape \(2, 3\), not \(2, 9\)"),
        ("own_inputs", "return nn.Linear(5, 3)", "inputs of shape 4"),
        ("own_error", "raise KeyError('two\\nlines')", "cannot load.*KeyError"),
    ],
)
def test_a_users_model_that_cannot_be_trained_is_refused_in_one_sentence(
    folder, name, body, message
):
    own_module(folder, name, body)

    with pytest.raises(UsageError, match=message) as caught:
        models.build(f"{name}:make", (4,), 3, seed=0)
    assert "\n" not in str(caught.value)
    assert f"{name}:make" in str(caught.value)


def test_parameters_are_counted_for_a_data_set(folder):
    own_module(folder, "own_count", "return int(torch.tensor(input_shape).prod()) * classes")
    own_module(folder, "own_net", "return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))")
    own_module(folder, "own_none", "return 0")

    assert models.parameters("2nn") == models.parameters("2nn@mnist") == 199_210
    assert models.parameters("softmax@digits") == models.parameters("own_count:make") == 640
    assert models.parameters("own_net:make") == 650
    assert models.parameters("own_net:make@femnist") == 785 * 62
    for name, sentence in (
        ("own_none:make", "at least 1"),
        ("2nn@minst", "no data set 'minst'"),
        ("no_such_module:make", "cannot load the model no_such_module:make"),
    ):
        with pytest.raises(UsageError, match=sentence):
            models.parameters(name)
