import itertools
import math

import numpy as np
import pytest

from hpcfl.algorithms.federated.queries import Constants
from hpcfl.comm.world import World
from hpcfl.errors import HpcflError
from hpcfl.optimize import estimate
from hpcfl.optimize.estimate import FIGURES, combine, explore
from hpcfl.options.optimize import OptimizeOptions

pytest.importorskip("torch")

from hpcfl.learning import datasets, models, partition


def test_a_quadratic_is_explored_as_by_hand():
    """F = (4 (x - 1)**2 + (y + 1)**2) / 2: lambda and mu are the curvatures along the axes."""
    curvature, least = np.array([4.0, 1.0]), np.array([1.0, -1.0])

    def gradients(weights):
        apart = weights - least
        return float(curvature @ apart**2 / 2), (curvature * apart).astype(np.float32)

    start = np.array([3.0, -1.0], np.float32)  # moves along x alone
    other = np.array([1.0, 9.0], np.float32)  # moves along y alone
    found = dict(zip(FIGURES, explore(gradients, start, other, 6, 0.1), strict=True))

    x, y, seen = 3.0, 9.0, []
    for step in range(6):
        seen.append((4 * (x - 1), 0.0))
        x -= 0.1 / math.sqrt(step + 1) * 4 * (x - 1)
    for step in range(3):
        seen.append((0.0, y + 1))
        y -= 0.1 / math.sqrt(step + 1) * (y + 1)
    assert found == pytest.approx(
        {
            "distance": (3 - x) ** 2,
            "loss": 2 * (x - 1) ** 2,
            "smoothness": 4.0,
            "convexity": 1.0,
            "gradient_norm": 10.0,
            "l1_norm": 10.0,
            "variance": np.var(seen, axis=0).sum() / 9,
        },
        rel=1e-5,
    )


def reference(name, spec, devices, steps, rate):
    """Return the figures of softmax regression, in double precision and without torch."""
    data = datasets.load(name, None, 5)
    parts = partition.make(spec, data, devices, 5)
    shape, classes = data.train_inputs.shape[1:], data.classes

    def start(seed):
        weights = models.get_flat(models.build("softmax", shape, classes, seed))
        return weights.astype(float).reshape(classes, -1)

    def descend(weights, x, y, count):
        visited = []
        for step in range(count + 1):
            logits = x @ weights.T
            logits -= logits.max(axis=1, keepdims=True)
            chance = np.exp(logits)
            chance /= chance.sum(axis=1, keepdims=True)
            loss = -np.log(chance[np.arange(len(y)), y]).mean()
            gradient = (chance - np.eye(classes)[y]).T @ x / len(y)
            visited.append((weights, gradient, loss))
            weights = weights - rate / math.sqrt(step + 1) * gradient
        return visited

    figures = {name: [] for name in FIGURES}
    for id, share in enumerate(parts):
        x = data.train_inputs[share].reshape(len(share), -1).astype(float)
        y = data.train_labels[share]
        seeds = np.random.SeedSequence(5, spawn_key=(20, id))
        first = descend(start(5), x, y, steps)
        second = descend(start(int(seeds.generate_state(1)[0])), x, y, max(2, steps // 2))
        figures["distance"].append(((first[-1][0] - first[0][0]) ** 2).sum())
        figures["loss"].append(first[-1][2])
        ratios, seen = [], []
        for visited in (first, second):
            visited = visited[:-1]
            seen += [gradient for _, gradient, _ in visited]
            for (a, g, _), (b, h, _) in itertools.pairwise(visited):
                ratios.append(np.linalg.norm(h - g) / np.linalg.norm(b - a))
        figures["smoothness"].append(max(ratios))
        figures["convexity"].append(min(ratios))
        figures["gradient_norm"].append(max(np.linalg.norm(g) for g in seen))
        figures["l1_norm"].append(max(np.abs(g).sum() for g in seen))
        figures["variance"].append(np.var(seen, axis=0).sum() / len(seen))
    return {
        "sizes": [len(share) for share in parts],
        "figures": {name: np.array(values) for name, values in figures.items()},
    }


@pytest.mark.parametrize(("spec", "steps"), [("iid", 7), ("dirichlet:0.5", 2)])
def test_estimates_are_those_of_a_reference_in_double_precision(spec, steps, monkeypatch):
    monkeypatch.setattr(estimate, "_CHUNK", 100)  # several pieces of a device's data
    options = OptimizeOptions(
        dataset="digits", devices=4, partition=spec, model="softmax", seed=5, clip_norm=2.0,
        estimate_steps=steps, learning_rate=0.3,
    )  # fmt: skip
    told = []
    found = estimate.run(World(None), options, lambda done, turns: told.append((done, turns)))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]  # a single rank takes all devices
    expected = reference("digits", spec, 4, steps, 0.3)

    assert found is not None
    assert found.sizes.tolist() == expected["sizes"]
    assert set(found.figures) == set(FIGURES)
    for name, values in expected["figures"].items():
        np.testing.assert_allclose(found.figures[name], values, rtol=2e-3, err_msg=name)
    weights = np.array(expected["sizes"]) / sum(expected["sizes"])
    figures = expected["figures"]
    constants = found.constants
    assert constants.devices == 4
    assert constants.dim == 640
    assert constants.samples == sum(expected["sizes"])
    assert constants.distance == pytest.approx(weights @ figures["distance"], rel=1e-3)
    assert constants.heterogeneity == pytest.approx(
        figures["loss"].max() - weights @ figures["loss"], rel=1e-3, abs=1e-6
    )
    assert constants.smoothness == pytest.approx(figures["smoothness"].max(), rel=2e-3)
    assert constants.convexity == pytest.approx(figures["convexity"].min(), rel=2e-3)
    assert constants.gradient_norm == pytest.approx(figures["gradient_norm"].max(), rel=1e-3)
    assert constants.l2_clip == pytest.approx(figures["gradient_norm"].max(), rel=1e-3)
    assert figures["l1_norm"].max() > 2.0
    assert constants.l1_clip == 2.0


TABLE = np.array(
    [[4.0, 1.0], [0.5, 0.1], [3.0, 5.0], [0.4, 0.2], [2.0, 1.0], [7.0, 9.0], [0.2, 0.4]]
)


def test_the_server_weighs_by_samples_and_takes_extremes():
    found = combine(TABLE, np.array([30, 10]), dim=12)

    assert found.constants == Constants(
        devices=2, dim=12, samples=40, gradient_norm=2.0, smoothness=5.0, convexity=0.2,
        heterogeneity=0.5 - (0.75 * 0.5 + 0.25 * 0.1), distance=0.75 * 4 + 0.25 * 1,
        l1_clip=9.0, l2_clip=2.0, variance=float(np.mean([0.2, 0.4])),
    )  # fmt: skip
    clipped = combine(TABLE, np.array([30, 10]), 12, l1_clip=8.0, l2_clip=3.0).constants
    assert (clipped.l1_clip, clipped.l2_clip) == (8.0, 2.0)
    clipped = combine(TABLE, np.array([30, 10]), 12, l1_clip=10.0, l2_clip=1.0).constants
    assert (clipped.l1_clip, clipped.l2_clip) == (9.0, 1.0)


@pytest.mark.parametrize(
    ("row", "value", "sentence"),
    [
        (1, math.nan, "the training of device 1 diverged"),
        (0, math.inf, "the training of device 1 diverged"),
        (3, 0.0, "the gradient of device 1 did not change"),
    ],
)
def test_devices_that_went_astray_are_named(row, value, sentence):
    table = TABLE.copy()
    table[row, 1] = value
    with pytest.raises(HpcflError, match=sentence):
        combine(table, np.array([30, 10]), 12)


def test_a_learning_rate_that_is_too_great_is_a_sentence():
    options = OptimizeOptions(
        dataset="digits", devices=2, model="2nn", estimate_steps=8, learning_rate=1e30
    )
    with pytest.raises(HpcflError, match="diverged: give a smaller --learning-rate"):
        estimate.run(World(None), options)
