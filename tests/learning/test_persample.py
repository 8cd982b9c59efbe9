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
CLIPS = {"l1": 40.0, "l2": 2.0}
MODELS = ["softmax", "adult-lr", "2nn", "adult-nn", "femnist-cnn", "cifar-cnn"]


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


def wrapped(model):
    """Return the same model in a form that is not known to be a stack of dense layers."""
    return torch.nn.Sequential(model)


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


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("name", MODELS)
def test_the_sum_is_that_of_a_loop_over_the_samples(name, norm):
    model = build(name)
    inputs, labels = data(20)
    lengths = [length(row, norm) for row in gradients(model, inputs, labels)]
    clip = float(np.median(lengths))
    expected, clipped = loop(model, inputs, labels, clip, norm)
    for one in (model, wrapped(model)):
        total, count = ClippedGradients(one, clip, norm)(inputs, labels)
        # Sums of float32: relative errors of 6e-8, a few hundred of them.
        np.testing.assert_allclose(total.double(), expected, rtol=0, atol=5e-6 * max(lengths))
        assert int(count) == clipped == 10
    assert total.dtype == torch.float32


@pytest.mark.parametrize("name", ["softmax", "2nn"])
def test_dense_stacks_take_the_short_way_and_other_models_do_not(monkeypatch, name):
    model = build(name)

    def refuse(*_, **__):
        raise AssertionError("per-sample gradients were computed")

    monkeypatch.setattr(torch.func, "vmap", refuse)
    ClippedGradients(model, 1.0)(*data(3))
    with pytest.raises(AssertionError, match="were computed"):
        ClippedGradients(wrapped(model), 1.0)(*data(3))


def dense_with(**changes):
    """Return a model that looks like a dense stack at first sight."""
    from torch import nn

    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, CLASSES)
    )
    if "frozen" in changes:
        model[1].weight.requires_grad_(False)
    if "frozen_layer" in changes:
        model[1].requires_grad_(False)
    if "shared" in changes:
        model[2] = nn.Linear(16, 16)
        model[3].weight = model[2].weight
    if "twice" in changes:
        model.insert(4, model[3])
    if "unflattened" in changes:
        model = nn.Sequential(nn.Flatten(2), nn.Linear(64, 1), nn.Flatten(), nn.Linear(1, CLASSES))
    if "one_relu" in changes:
        model = nn.Sequential(*model[:4], model[2], model[4])
    if "activation" in changes:
        model[2] = nn.Softmax(dim=1)
    return model


@pytest.mark.parametrize(
    "change",
    ["", "frozen", "frozen_layer", "shared", "twice", "unflattened", "one_relu", "activation"],
)
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_unusual_stacks_are_no_exception(change, norm):
    model = dense_with(**{change: True})
    inputs, labels = data(9)
    clip = length(gradients(model, inputs, labels)[4], norm)
    expected, _ = loop(model, inputs, labels, clip, norm)
    total, _ = ClippedGradients(model, clip, norm)(inputs, labels)

    np.testing.assert_allclose(total.double(), expected, rtol=0, atol=2e-5 * clip)


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("generic", [False, True])
@settings(max_examples=examples(40))
@given(
    seed=st.integers(0, 2**32 - 1),
    clip=st.floats(1e-6, 1e6),
    scale=st.sampled_from([0.0, 1e-12, 1e-3, 1.0, 1e3, 1e8, 1e18, 1e25, 1e38]),
    names=st.sampled_from(["softmax", "2nn"]),
)
def test_no_sample_contributes_more_than_the_clip(generic, norm, seed, clip, scale, names):
    model = build(names)
    sums = ClippedGradients(wrapped(model) if generic else model, clip, norm)
    total, count = sums(*data(1, seed, scale))

    assert length(total, norm) <= clip * (1 + 5e-6)
    assert int(count) in (0, 1)
    if int(count) == 1 and length(total, norm) > 0:
        assert length(total, norm) == pytest.approx(clip, rel=1e-5)


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("name", ["2nn", "femnist-cnn"])
def test_a_replaced_record_changes_the_sum_by_at_most_twice_the_clip(name, norm):
    sums = ClippedGradients(build(name), CLIPS[norm], norm)
    inputs, labels = data(8)
    other_inputs, other_labels = inputs.clone(), labels.clone()
    changes = []
    for kind in range(4):
        other_inputs[3] = (-inputs[3], 50 * inputs[3], 0 * inputs[3], inputs[4])[kind]
        other_labels[3] = (labels[3] + 1 + kind) % CLASSES
        difference = sums(inputs, labels)[0] - sums(other_inputs, other_labels)[0]
        changes.append(length(difference, norm))

    assert max(changes) <= 2 * CLIPS[norm] * (1 + 1e-5)
    assert max(changes) > CLIPS[norm]  # so that the bound is put to the test


@pytest.mark.parametrize("generic", [False, True])
@pytest.mark.parametrize("value", [math.inf, math.nan, 3e38])
def test_a_sample_without_a_finite_gradient_counts_as_nothing(generic, value):
    model = build("2nn")
    sums = ClippedGradients(wrapped(model) if generic else model, 1.0)
    inputs, labels = data(6)
    rest = torch.tensor([0, 1, 3, 4, 5])
    expected, clipped = sums(inputs[rest], labels[rest])
    expected = expected.clone()
    inputs[2] = value
    total, count = sums(inputs, labels)

    np.testing.assert_allclose(total, expected, rtol=0, atol=1e-6)
    assert int(count) == int(clipped) + 1


@pytest.mark.parametrize("generic", [False, True])
@pytest.mark.parametrize("budget", [1, 100_000])
def test_the_sum_does_not_depend_on_how_many_samples_are_computed_at_a_time(
    monkeypatch, generic, budget
):
    model = build("adult-nn")
    if generic:
        model = wrapped(model)
    inputs, labels = data(23)
    expected, clipped = ClippedGradients(model, 1.0)(inputs, labels)
    sizes = []
    monkeypatch.setattr(persample, "_CHUNK_BYTES", budget)
    sums = ClippedGradients(model, 1.0)
    add = "_add_any" if generic else "_add_dense"
    original = getattr(sums, add)

    def recorded(x, y, total):
        sizes.append(len(y))
        return original(x, y, total)

    monkeypatch.setattr(sums, add, recorded)
    total, count = sums(inputs, labels)

    # 6,437 parameters; 3 (64 + 64 + 64 + 32 + 32 + 5) values of a sample in the dense stack.
    most = max(1, budget // (4 * (6_437 if generic else 783)))
    assert max(sizes) == min(most, 23)
    assert sum(sizes) == 23
    np.testing.assert_allclose(total, expected, rtol=0, atol=1e-5)
    assert int(count) == int(clipped)


def test_given_memory_is_used_and_what_was_in_it_does_not_show():
    sums = ClippedGradients(build("2nn"), 1.0)
    inputs, labels = data(5)
    expected, _ = sums(inputs, labels)
    memory = torch.full_like(expected, math.nan)
    total, _ = sums(inputs, labels, out=memory)

    assert total.data_ptr() == memory.data_ptr()
    assert torch.equal(total, expected)


@pytest.mark.parametrize("name", ["2nn", "femnist-cnn"])
def test_the_model_its_gradients_and_the_inputs_are_left_as_they_were(name):
    model = build(name)
    before = models.get_flat(model)
    inputs, labels = data(5)
    inputs[1] = math.inf
    kept = inputs.clone()
    sums = ClippedGradients(model, 1e-3)
    first = sums(inputs, labels)[0].clone()

    assert np.array_equal(before, models.get_flat(model))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(inputs, kept)
    # Its parameters are read anew at every call.
    models.set_flat(model, before * np.float32(1.5))
    assert not torch.equal(first, sums(inputs, labels)[0])
    empty, count = sums(*data(0))
    assert empty.shape == before.shape
    assert not empty.any()
    assert int(count) == 0


def test_long_norms_are_as_exact_as_short_ones():
    sums = ClippedGradients(build("softmax"), 1.0, "l1")
    rows = torch.rand(2, 1_000_003, generator=torch.Generator().manual_seed(0))
    expected = rows.double().sum(dim=1)

    np.testing.assert_allclose(sums._norm(rows).double(), expected, rtol=2e-6)


def test_what_cannot_be_clipped_to_and_models_that_cannot_be_averaged_are_refused():
    from torch import nn

    for clip in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(UsageError, match="must be above 0 and finite"):
            ClippedGradients(build("softmax"), clip)
    with pytest.raises(UsageError, match="l1 or l2, not 'l3'"):
        ClippedGradients(build("softmax"), 1.0, "l3")
    with pytest.raises(UsageError, match="no parameters"):
        ClippedGradients(nn.Sequential(nn.Flatten(), nn.ReLU()), 1.0)
