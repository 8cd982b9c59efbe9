"""The number of parameters of a model, which is the length of vectors in `hpcfl bench --model`."""

import subprocess
import sys

import pytest

from hpcfl.errors import UsageError
from hpcfl.learning import datasets, models, sizes
from hpcfl.learning.sizes import parameters
from hpcfl.options.names import DATASETS, MODELS

OWN = """
import numpy as np

def number():
    return 17

def array():
    return np.zeros((3, 4))

def arrays():
    return {"weight": np.zeros((3, 4)), "more": [np.zeros(5), {"bias": np.zeros(())}]}

def sized(input_shape, classes):
    return int(np.prod(input_shape)) * classes

def module():
    from torch import nn
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2).requires_grad_(False))

def state():
    return module().state_dict()

def network(input_shape, classes):
    from torch import nn
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(5), nn.Linear(5, classes))

def lazy():
    from torch import nn
    return nn.LazyLinear(5)

def nothing():
    return None

def empty():
    return []

def negative():
    return -3

def flag():
    return True

def texts():
    return ["a"]

def numbers():
    return [1, 2]

def three(a, b, c):
    return 1

def broken():
    raise KeyError("two\\nlines")

def narrow(input_shape, classes):
    from torch import nn
    return nn.Linear(3, classes)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "sized.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    parameters.cache_clear()
    yield
    sys.modules.pop("sized", None)


def fits(name, data):
    try:
        models.layers(name, DATASETS[data].shape, DATASETS[data].classes)
    except UsageError:
        return False
    return True


@pytest.mark.parametrize("name", models.NAMES)
def test_a_named_model_has_as_many_as_torch_counts(name):
    pytest.importorskip("torch")
    for data in {MODELS[name], *(data for data in DATASETS if fits(name, data))}:
        kind = DATASETS[data]
        built = models.build(name, kind.shape, kind.classes, seed=0)
        assert parameters(f"{name}@{data}") == models.parameter_count(built)
    assert parameters(name) == parameters(f"{name}@{MODELS[name]}")


@pytest.mark.parametrize("name", DATASETS)
def test_samples_of_every_data_set_have_the_shape_that_is_said(name):
    pytest.importorskip("sklearn")
    try:
        found = datasets.load(name)
    except UsageError as error:
        pytest.skip(str(error))
    assert (DATASETS[name].shape, DATASETS[name].classes) == (found.shape, found.classes)


def test_every_model_is_for_a_data_set_and_every_data_set_has_a_model():
    assert (*MODELS,) == models.NAMES
    assert {*MODELS.values()} | {sizes._FOR_OWN} <= {*DATASETS}
    assert {kind.model for kind in DATASETS.values()} <= {*MODELS}
    assert {kind.folder for kind in DATASETS.values()} - {None} <= {*DATASETS}


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("number", 17),
        ("array", 12),
        ("arrays", 18),
        ("sized", 640),
        ("sized@cifar10", 30_720),
        ("module", 16),
        ("state", 16 + 10),
        ("network", 64 * 5 + 5 + 60),
        ("network@mnist", 784 * 5 + 5 + 60),
    ],
)
def test_what_a_function_returns_is_counted(name, count):
    if name.partition("@")[0] in ("module", "state", "network"):
        pytest.importorskip("torch")

    assert parameters(f"sized:{name}") == count


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("resnet", "no model 'resnet'; choose one of softmax, 2nn"),
        ("2nn@imagenet", "no data set 'imagenet'; there are digits"),
        ("mnist-cnn@adult", "needs images"),
        ("sized:nothing", "must return a torch.nn.Module, arrays .* not NoneType"),
        ("sized:empty", "at least 1, not 0"),
        ("sized:negative", "at least 1, not -3"),
        ("sized:flag", "not bool"),
        ("sized:texts", "not list"),
        ("sized:numbers", "not list"),
        ("sized:lazy", "at least 1, not 0"),
        ("sized:three", "cannot load the model sized:three: TypeError"),
        ("sized:broken", "cannot load the model sized:broken: KeyError: 'two"),
        ("sized:missing", "cannot load the model sized:missing: AttributeError"),
        ("sized:narrow", "fails on inputs of shape 1 x 8 x 8"),
        ("absent:f", "cannot load the model absent:f: ModuleNotFoundError"),
    ],
)
def test_what_has_no_parameters_is_refused_in_a_sentence(name, sentence):
    if name in ("sized:lazy", "sized:narrow"):
        pytest.importorskip("torch")
    with pytest.raises(UsageError, match=sentence) as caught:
        parameters(name)
    assert "\n" not in str(caught.value)


def test_a_named_model_is_counted_without_torch():
    code = "import sys; from hpcfl.learning.sizes import parameters; print(parameters('2nn'))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print('torch' in sys.modules)"],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.stdout.split() == ["199210", "False"], done.stderr
