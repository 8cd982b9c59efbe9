"""Estimates of the constants of FedSGD-DPC's bound, from the devices' data.

Every device trains alone for some full-batch steps from the common start, and for half as many from
a random start of its own; the server puts the devices' figures together. The distance and Gamma are
those of the queries-and-replies paper, section V-B; the other figures are extremes over all steps
of both runs, as in the methods that it cites (Wang et al. 2019, "Adaptive federated learning in
resource constrained edge computing systems"). None of them is private.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.federated.queries import Constants
from hpcfl.benchmark.session import devices_on
from hpcfl.comm.placement import Placement
from hpcfl.comm.world import World
from hpcfl.errors import HpcflError
from hpcfl.options.names import DATASETS
from hpcfl.options.optimize import OptimizeOptions
from hpcfl.training import clients

if TYPE_CHECKING:
    from torch import nn

WARNING = (
    "warning: these constants are estimated from the devices' data without noise, so they are not "
    "differentially private, and no epsilon counts them: estimate on public data of the same kind."
)

# What a device reports: squared distance from the start to its own optimum, its loss there, the
# largest and the least ratio of gradient change to step, the largest l2 and l1 norm of its
# gradient, and the variance of it over the steps.
FIGURES = (
    *("distance", "loss", "smoothness", "convexity"),
    *("gradient_norm", "l1_norm", "variance"),
)

# From weights, float32 of shape (d,), to the loss on all of a device's data and its gradient there.
Gradients = Callable[[NDArray[np.float32]], tuple[float, NDArray[np.float32]]]

_ESTIMATE = 20  # what random starts are drawn from
_CHUNK = 2000  # samples at a time, for memory


@dataclass(frozen=True)
class Estimate:
    """What the server made of the devices' figures."""

    constants: Constants
    sizes: NDArray[np.int64]  # samples of every device
    figures: dict[str, NDArray[np.float64]]  # `FIGURES`, of every device

    def as_dict(self) -> dict[str, Any]:
        """Return what the devices reported, for JSON."""
        return {
            "private": False,
            "sizes": self.sizes.tolist(),
            "devices": {name: values.tolist() for name, values in self.figures.items()},
        }


def run(
    world: World,
    asked: OptimizeOptions,
    progress: Callable[[int, int], object] = lambda done, turns: None,
) -> Estimate | None:
    """Return an estimate of the constants on rank 0; every rank calls this.

    The ranks take their devices in turns, one each at a time; on rank 0, `progress` takes the
    number of turns that are done, and of all.
    """
    from hpcfl.learning import models
    from hpcfl.learning.training import choose_device, single_thread

    neighbour = world.rank_on_host()
    count = asked.devices or devices_on(world)
    placement = Placement.even(count, min(world.size, count + 1))
    dataset = asked.dataset or "digits"
    mine = clients.load(world, placement, dataset, asked.data_dir, asked.partition, asked.seed)
    transport = world.transport(count)
    if transport is None:
        world.settle(None)
        return None

    single_thread()
    name = asked.model or DATASETS[dataset].model
    model = models.build(name, mine.input_shape, mine.classes, asked.seed)
    start = models.get_flat(model)
    where = choose_device(asked.torch_device, neighbour)
    # One column for every device; the others are on other ranks.
    table = np.zeros((len(FIGURES), count))
    turns = int(np.bincount(placement.homes).max())
    for turn in range(turns):
        for id in transport.local_devices[turn : turn + 1]:
            seeds = np.random.SeedSequence(asked.seed, spawn_key=(_ESTIMATE, id))
            own = int(seeds.generate_state(1)[0])
            other = models.get_flat(models.build(name, mine.input_shape, mine.classes, own))
            gradients = _gradients(model, *mine.samples(id), where)
            table[:, id] = explore(
                gradients, start, other, asked.estimate_steps, asked.learning_rate
            )
        # So that rank 0, which has no device where there are several ranks, knows how far all are.
        transport.wait_for_all()
        progress(turn + 1, turns)
    clip = {} if asked.clip_norm is None else {asked.clip_name: asked.clip_norm}
    summed = transport.sum_to_server(table)
    estimate, error = None, None
    if summed is not None:
        try:
            estimate = combine(summed, mine.sizes, start.size, **clip)
        except HpcflError as problem:
            error = problem
    world.settle(error)
    return estimate


def explore(
    gradients: Gradients,
    start: NDArray[np.float32],
    random_start: NDArray[np.float32],
    steps: int,
    learning_rate: float,
) -> NDArray[np.float64]:
    """Let a device train alone, from the common start and its own, and return its `FIGURES`."""
    seen = _Extremes(start.size)
    found = _descend(gradients, start, steps, learning_rate, seen)
    distance = float(np.square((found - start).astype(np.float64)).sum())
    loss, _ = gradients(found)
    # Two steps at least: a change of the gradient is between two.
    _descend(gradients, random_start, max(2, steps // 2), learning_rate, seen)
    return np.array([distance, loss, *seen.figures()])


def combine(
    table: NDArray[np.float64],
    sizes: NDArray[np.int64],
    dim: int,
    l1_clip: float | None = None,
    l2_clip: float | None = None,
) -> Estimate:
    """Return the constants for the devices' `FIGURES`, of shape (figures, N), and their samples.

    Y0 is the mean of the squared distances and Gamma the difference of the largest and the mean
    loss, both over samples: the worst of the devices' optima stands for F*. lambda, G and xi are
    the largest figures, mu the least. xi is at most the norm to which a run will clip.
    """
    figures = dict(zip(FIGURES, table, strict=True))
    astray = np.flatnonzero(~np.isfinite(table).all(axis=0))
    if astray.size:
        raise HpcflError(
            f"the training of device {astray[0]} diverged: give a smaller --learning-rate"
        )
    still = np.flatnonzero((figures["convexity"] <= 0) | (figures["distance"] <= 0))
    if still.size:
        raise HpcflError(
            f"the gradient of device {still[0]} did not change in training, so that mu would be 0: "
            "give a greater --learning-rate, or other data"
        )
    weights = sizes / sizes.sum()
    l1, l2 = float(figures["l1_norm"].max()), float(figures["gradient_norm"].max())
    loss = figures["loss"]
    constants = Constants(
        devices=sizes.size,
        dim=dim,
        samples=int(sizes.sum()),
        gradient_norm=l2,
        smoothness=float(figures["smoothness"].max()),
        convexity=float(figures["convexity"].min()),
        # Never below 0 but by rounding, of equal losses.
        heterogeneity=max(0.0, float(loss.max() - weights @ loss)),
        distance=float(weights @ figures["distance"]),
        l1_clip=l1 if l1_clip is None else min(l1, l1_clip),
        l2_clip=l2 if l2_clip is None else min(l2, l2_clip),
        variance=float(figures["variance"].mean()),
    )
    return Estimate(constants, sizes, figures)


def _descend(
    gradients: Gradients,
    start: NDArray[np.float32],
    steps: int,
    learning_rate: float,
    seen: _Extremes,
) -> NDArray[np.float32]:
    """Take full-batch steps, show every gradient to `seen`, and return the last weights."""
    weights = start.copy()
    last: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None
    for step in range(steps):
        _, gradient = gradients(weights)
        seen.add(gradient)
        if last is not None:
            seen.add_change(weights - last[0], gradient - last[1])
        last = weights, gradient
        rate = np.float32(learning_rate / math.sqrt(step + 1))
        weights = (weights - rate * gradient).astype(np.float32)
    return weights


class _Extremes:
    """Extremes and the variance of the gradients of a device, over all its steps."""

    def __init__(self, dim: int) -> None:
        self._smoothness, self._convexity = 0.0, np.inf
        self._l2 = self._l1 = 0.0
        self._count = 0
        self._mean, self._squares = np.zeros(dim), np.zeros(dim)

    def add(self, gradient: NDArray[np.float32]) -> None:
        exact = gradient.astype(np.float64)
        self._l2 = float(np.maximum(self._l2, np.linalg.norm(exact)))  # NaN stays
        self._l1 = float(np.maximum(self._l1, np.abs(exact).sum()))
        self._count += 1
        apart = exact - self._mean
        self._mean += apart / self._count
        self._squares += apart * (exact - self._mean)

    def add_change(self, weights: NDArray[np.float32], gradient: NDArray[np.float32]) -> None:
        step = np.linalg.norm(weights.astype(np.float64))
        if step == 0:
            return
        ratio = float(np.linalg.norm(gradient.astype(np.float64)) / step)
        self._smoothness = float(np.maximum(self._smoothness, ratio))
        self._convexity = float(np.minimum(self._convexity, ratio))

    def figures(self) -> tuple[float, ...]:
        """Return lambda, mu, the norms l2 and l1, and the variance over the number of steps."""
        variance = float(self._squares.sum()) / self._count
        convexity = self._convexity if self._smoothness > 0 else 0.0
        return self._smoothness, convexity, self._l2, self._l1, variance / self._count


def _gradients(
    model: nn.Module, inputs: NDArray[np.float32], labels: NDArray[np.int64], torch_device: str
) -> Gradients:
    """Return the loss on all data of a device, and its gradient, as a function of weights."""
    import torch
    from torch.nn.functional import cross_entropy

    from hpcfl.learning.models import set_flat, trained_parameters

    model = model.to(torch_device).eval()
    parameters = trained_parameters(model)
    batches = [
        *zip(
            torch.tensor(inputs).to(torch_device).split(_CHUNK),
            torch.tensor(labels).to(torch_device).split(_CHUNK),
            strict=True,
        )
    ]

    def at(weights: NDArray[np.float32]) -> tuple[float, NDArray[np.float32]]:
        set_flat(model, weights)
        total = 0.0
        for parameter in parameters:
            parameter.grad = None
        for x, y in batches:
            loss = cross_entropy(model(x), y, reduction="sum") / len(labels)
            loss.backward()
            total += float(loss.detach())
        flat = [
            (p.grad if p.grad is not None else torch.zeros_like(p)).reshape(-1) for p in parameters
        ]
        return total, torch.cat(flat).cpu().numpy()

    return at
