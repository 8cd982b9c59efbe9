import subprocess
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
    model = models.build(name, shape, classes, seed=0)

    assert {name for name, *_ in PUBLISHED} == set(models.NAMES)
    assert models.find(name).parameters(shape, classes) == count
    assert models.parameter_count(model) == count
    assert models.get_flat(model).shape == (count,)
    assert list(model.buffers()) == []


@pytest.mark.parametrize("name", models.NAMES)
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 33, 29)])
def test_every_model_turns_images_of_any_size_into_logits(name, shape):
    model = models.build(name, shape, 7, seed=0)

    assert models.find(name).parameters(shape, 7) == models.parameter_count(model)
    assert model(torch.zeros(5, *shape)).shape == (5, 7)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("mnist-cnn", (784,)), ("mnist-cnn", (28, 28)), ("cifar-cnn", (3, 7, 32))],
)
def test_a_shape_that_does_not_fit_is_named_in_one_sentence(name, shape):
    with pytest.raises(UsageError, match=" x ".join(map(str, shape))):
        models.build(name, shape, 10, seed=0)


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(UsageError, match=r"no model 'resnet'.*softmax.*MODULE:FUNCTION"):
        models.build("resnet", (1, 28, 28), 10, seed=0)


@pytest.mark.parametrize("name", ["softmax", "2nn", "cifar-cnn"])
def test_the_seed_alone_decides_the_initial_parameters(name):
    first = models.get_flat(models.build(name, (3, 32, 32), 10, seed=5))
    torch.rand(3)
    before = torch.get_rng_state()
    again = models.get_flat(models.build(name, (3, 32, 32), 10, seed=5))
    assert torch.equal(before, torch.get_rng_state())
    other = models.get_flat(models.build(name, (3, 32, 32), 10, seed=6))

    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("name", ["softmax", "2nn"])
def test_the_flat_vector_is_a_copy_and_comes_back_unchanged(name):
    model = models.build(name, (1, 8, 8), 10, seed=0)
    wanted = np.random.default_rng(1).standard_normal(models.parameter_count(model))
    wanted = wanted.astype(np.float32)
    wanted.flags.writeable = False
    before = models.get_flat(model)
    kept = before.copy()
    models.set_flat(model, wanted)

    assert models.get_flat(model).dtype == np.float32
    assert np.array_equal(models.get_flat(model), wanted)
    assert np.array_equal(before, kept)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_the_flat_vector_holds_the_parameters_in_the_models_order():
    model = models.build("adult-lr", (3,), 2, seed=0)
    models.set_flat(model, np.arange(8, dtype=np.float32))
    weight, bias = model.parameters()

    assert weight.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert bias.tolist() == [6, 7]
    for shape in ((7,), (9,), (1,), (8, 1)):
        with pytest.raises(ValueError, match="8 parameters"):
            models.set_flat(model, np.zeros(shape, np.float32))


def test_a_users_model_is_found_in_the_current_folder_and_seeded(folder):
    own_module(folder, "own_found", "return nn.Sequential(nn.Flatten(), nn.Linear(16, classes))")
    first = models.build("own_found:make", (1, 4, 4), 3, seed=4)
    again = models.build("own_found:make", (1, 4, 4), 3, seed=4)

    assert models.parameter_count(first) == 16 * 3 + 3
    assert np.array_equal(models.get_flat(first), models.get_flat(again))
    assert first.training


def test_a_users_lazy_layers_get_their_sizes_and_frozen_ones_do_not_travel(folder):
    own_module(
        folder,
        "own_lazy",
        "return nn.Sequential(nn.Linear(4, 5).requires_grad_(False), nn.LazyLinear(classes))",
    )
    model = models.build("own_lazy:make", (4,), 3, seed=0)

    assert models.parameter_count(model) == 5 * 3 + 3


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("own_buffers", "return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))", "running_mean"),
        ("own_empty", "return nn.Identity()", "no parameters to train"),
        ("own_double", "return nn.Linear(4, 3).double()", "inputs of shape 4"),
        ("own_half", "m = nn.Linear(4, 3); m.spare = nn.Parameter(m.bias.half()); return m", "16"),
        ("own_number", "return 3", "must return a torch.nn.Module, not int"),
        ("own_width", "return nn.Linear(4, 9)", r"shape \(2, 3\), not \(2, 9\)"),
        ("own_tuple", "return nn.RNN(4, 3)", "inputs of shape 4"),
        ("own_inputs", "return nn.Linear(5, 3)", "inputs of shape 4"),
        ("own_error", "raise KeyError('two\\nlines')", "cannot load.*KeyError"),
        ("own_syntax", "return return", "cannot load.*SyntaxError"),
    ],
)
def test_a_users_model_that_cannot_be_trained_is_refused_in_one_sentence(
    folder, name, body, message
):
    own_module(folder, name, body)
    shape = (3,) if name == "own_empty" else (4,)

    with pytest.raises(UsageError, match=message) as caught:
        models.build(f"{name}:make", shape, 3, seed=0)
    assert "\n" not in str(caught.value)
    assert f"{name}:make" in str(caught.value)


@pytest.mark.parametrize("name", ["no_such_module:make", "math:no_such_function", ":make", "math:"])
def test_a_users_model_that_is_not_there_is_refused(folder, name):
    with pytest.raises(UsageError, match=f"cannot load the model {name}"):
        models.build(name, (4,), 3, seed=0)


def test_parameters_are_counted_for_a_data_set(folder):
    own_module(folder, "own_count", "return int(torch.tensor(input_shape).prod()) * classes")
    own_module(folder, "own_net", "return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))")
    own_module(folder, "own_none", "return 0")

    assert models.parameters("2nn") == models.parameters("2nn@mnist") == 199_210
    assert models.parameters("softmax@digits") == models.parameters("own_count:make") == 640
    assert models.parameters("own_net:make") == 650
    assert models.parameters("own_net:make@femnist") == 785 * 62
    for name, sentence in (("own_none:make", "at least 1"), ("2nn@minst", "no data set 'minst'")):
        with pytest.raises(UsageError, match=sentence):
            models.parameters(name)


def test_names_and_sizes_are_known_without_torch(monkeypatch):
    code = (
        "import sys; sys.modules['torch'] = None; from hpcfl.learning import models; "
        "from hpcfl.errors import UsageError; assert models.parameters('2nn') == 199210\n"
        "try: models.build('softmax', (4,), 3, seed=0)\n"
        "except UsageError as error: assert 'PyTorch' in str(error)\n"
        "else: raise AssertionError"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
