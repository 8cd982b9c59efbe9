import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_data import CLASSES, SHAPE
from tiers import examples

from hpcfl.errors import UsageError
from hpcfl.learning import models, persample
from hpcfl.learning.persample import ClippedGradients

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("one_thread")

ORDERS = {"l1": 1, "l2": 2}
MODELS = ["softmax", "adult-lr", "2nn", "femnist-cnn"]


def data(samples, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    inputs = rng.standard_normal((samples, *SHAPE))
    # Samples of different lengths have gradients of different lengths.
    inputs *= scale * rng.uniform(0.1, 2.0, size=(samples, 1, 1, 1))
    with np.errstate(over="ignore"):
        inputs = inputs.astype(np.float32)
    return torch.from_numpy(inputs), torch.from_numpy(rng.integers(CLASSES, size=samples))


def build(name):
    return models.build(name, SHAPE, CLASSES, seed=3)


def gradients(model, inputs, labels):
    """Return the gradient of every sample, one after the other, float64 of shape (batch, d)."""
    parameters = models.trained_parameters(model)
    rows = []
    for x, y in zip(inputs, labels, strict=True):
        loss = torch.nn.functional.cross_entropy(model(x[None]), y[None])
        parts = torch.autograd.grad(loss, parameters)
        rows.append(torch.cat([part.reshape(-1) for part in parts]).double())
    return torch.stack(rows)


def loop(model, inputs, labels, clip, norm):
    """Return the sum of clipped gradients as one writes it down, and how many were clipped."""
    total, clipped = 0.0, 0
    for gradient in gradients(model, inputs, labels):
        length = float(torch.linalg.vector_norm(gradient, ORDERS[norm]))
        total = total + gradient * min(1.0, clip / length)
        clipped += length > clip
    return total, clipped


def length(vector, norm):
    return float(torch.linalg.vector_norm(vector.double(), ORDERS[norm]))


def own(kind):
    """Return models with layers as users have them."""
    from torch import nn

    torch.manual_seed(5)
    if kind == "frozen":
        frozen = nn.Linear(64, 16).requires_grad_(False)
        return nn.Sequential(nn.Flatten(), frozen, nn.ReLU(), nn.Linear(16, CLASSES))
    if kind == "positions":
        return nn.Sequential(
            *(nn.Flatten(1, 2), nn.Linear(8, 3), nn.ReLU(inplace=True), nn.Flatten()),
            nn.Linear(24, CLASSES),
        )
    return nn.Sequential(
        nn.Conv2d(1, 4, (2, 3), stride=2, padding=1, padding_mode="reflect", bias=False),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 3, 2, padding="same", dilation=2),
        nn.Sequential(nn.Flatten(), nn.LazyLinear(CLASSES)),
    )


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("name", [*MODELS, "frozen", "positions", "convolutions"])
def test_the_sum_is_that_of_a_loop_over_the_samples(name, norm, monkeypatch):
    model = build(name) if name in MODELS else own(name)
    inputs, labels = data(20)
    model(inputs)  # which gives lazy layers their sizes
    lengths = [length(row, norm) for row in gradients(model, inputs, labels)]
    clip = float(np.median(lengths))
    expected, clipped = loop(model, inputs, labels, clip, norm)

    for chunk in (8192, 7):  # all at once, and some at a time
        monkeypatch.setattr(persample, "_DENSE_CHUNK", chunk)
        monkeypatch.setattr(persample, "_PATCHES_CHUNK", chunk)
        total, count = ClippedGradients(model, clip, norm)(inputs, labels)
        # Sums of float32: relative errors of 6e-8, a few hundred of them.
        np.testing.assert_allclose(total.double(), expected, rtol=0, atol=5e-6 * max(lengths))
        assert int(count) == clipped == 10
        assert total.dtype == torch.float32


def test_models_whose_gradients_would_be_wrong_are_refused():
    from torch import nn

    class Overwriting(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(64, 64), nn.Linear(64, CLASSES)

        def forward(self, images):
            x = images.flatten(1)
            first = self.first(x)
            x += 1
            return self.last(first)

    shared = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 5))
    shared[2].weight = shared[1].weight
    part = nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES))
    part[1].weight.requires_grad_(False)
    twice = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Linear(64, CLASSES))
    twice.insert(1, twice[1])
    unused = nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES))
    unused[1].more = nn.Linear(2, 2)
    grouped = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3, groups=2), nn.Flatten())
    normalised = nn.Sequential(nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, CLASSES))
    for model, what in (
        (Overwriting(), "overwrites what goes into a layer"),
        (shared, "shares parameters"),
        (part, "trains only some of a layer"),
        (twice, "calls a layer twice"),
        (unused, "does not call all"),
        (grouped, "has the layer Conv2d"),
        (normalised, "has the layer LayerNorm"),
        (nn.Sequential(nn.Flatten(), nn.ReLU()), "no parameters"),
    ):
        with pytest.raises(UsageError, match=what):
            ClippedGradients(model, 1.0)(*data(3))


@pytest.mark.parametrize("norm", ["l1", "l2"])
@settings(max_examples=examples(40))
@given(
    seed=st.integers(0, 2**32 - 1),
    clip=st.floats(1e-6, 1e6),
    scale=st.sampled_from([0.0, 1e-12, 1e-3, 1.0, 1e3, 1e8, 1e18, 1e25, 1e38]),
    name=st.sampled_from(["softmax", "2nn", "femnist-cnn"]),
)
def test_no_sample_contributes_more_than_the_clip(norm, seed, clip, scale, name):
    total, count = ClippedGradients(build(name), clip, norm)(*data(1, seed, scale))

    # Single samples of dense models stay below the clip itself, in spite of rounding.
    assert length(total, norm) <= clip * (1 if name == "softmax" else 1 + 5e-6)
    assert int(count) in (0, 1)
    if int(count) == 1 and length(total, norm) > 0:
        assert length(total, norm) == pytest.approx(clip, rel=1e-5)


@pytest.mark.parametrize("name", ["2nn", "femnist-cnn"])
@pytest.mark.parametrize("value", [math.inf, math.nan, 3e38])
def test_a_sample_without_a_finite_gradient_counts_as_nothing(name, value):
    sums = ClippedGradients(build(name), 1.0)
    inputs, labels = data(6)
    rest = torch.tensor([0, 1, 3, 4, 5])
    expected, clipped = sums(inputs[rest], labels[rest])
    inputs[2] = value
    total, count = sums(inputs, labels)

    np.testing.assert_allclose(total, expected, rtol=0, atol=1e-6)
    assert int(count) == int(clipped) + 1


@pytest.mark.parametrize("name", ["2nn", "femnist-cnn"])
def test_the_model_its_gradients_and_the_inputs_are_left_as_they_were(name):
    model = build(name)
    before = models.get_flat(model)
    inputs, labels = data(5)
    inputs[1] = math.inf
    kept = inputs.clone()
    sums = ClippedGradients(model, 1e-3)
    first, _ = sums(inputs, labels)
    memory = torch.full_like(first, math.nan)
    again, _ = sums(inputs, labels, out=memory)

    assert again.data_ptr() == memory.data_ptr()
    assert torch.equal(first, again)
    assert np.array_equal(before, models.get_flat(model))
    assert torch.equal(inputs, kept)
    # Its parameters are read anew at every call.
    longer = torch.from_numpy(before * np.float32(1.5))
    torch.nn.utils.vector_to_parameters(longer, models.trained_parameters(model))
    assert not torch.equal(first, sums(inputs, labels)[0])
    empty, count = sums(*data(0))
    assert (empty.abs().sum(), count) == (0, 0)
