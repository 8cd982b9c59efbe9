"""Estimates of the constants of FedSGD-DPC's bound, from the devices' data.

Every device trains alone for some full-batch steps from the common start, and for half as many from
a random start of its own; the server puts the devices' figures together. The distance and Gamma are
those of the queries-and-replies paper, section V-B; the other figures are extremes over all steps
of both runs, as in the methods that it cites (Wang et al. 2019, "Adaptive federated learning in
resource constrained edge computing systems"). None of them is private.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.federated.queries import Constants
from hpcfl.benchmark.session import default_devices
from hpcfl.comm.placement import Placement
from hpcfl.comm.world import World
from hpcfl.errors import HpcflError, UsageError
from hpcfl.options.training import LocalOptions
from hpcfl.training import clients

if TYPE_CHECKING:
    import torch
    from torch import nn

WARNING = (
    "Warning: these constants are estimated from the devices' data without noise, so they are not "
    "differentially private, and no epsilon counts them: estimate on public data of the same kind."
)

FIGURES = (
    *("distance", "loss", "smoothness", "convexity"),
    *("gradient_norm", "l1_norm", "variance"),
)
"""What a device reports: squared distance from the start to its own optimum, its loss there, the
largest and the least ratio of gradient change to step, the largest l2 and l1 norm of its gradient,
and the variance of it over the steps."""

_ESTIMATE = 20  # what random starts are drawn from
_CHUNK = 2000  # samples at a time, for memory


@dataclass(frozen=True)
class EstimateOptions:
    """From what constants are estimated.

    Attributes
    ----------
    dataset, partition, model, data_dir, seed
        As of `hpcfl.training.experiment.TrainOptions`.
    steps : int
        Full-batch steps T_e of every device from the common start, at least 2.
    learning_rate : float
        Of the first step; it falls with the root of their number.
    l1_clip, l2_clip : float or None
        Norms to which a run will clip: xi is at most that.
    torch_device : str
        ``"auto"``, ``"cpu"`` or ``"cuda"``.

    Raises
    ------
    UsageError
        If a value cannot be meant.
    """

    dataset: str = "digits"
    partition: str = "iid"
    model: str | None = None
    data_dir: Path | None = None
    seed: int = 0
    steps: int = 200
    learning_rate: float = 0.05
    l1_clip: float | None = None
    l2_clip: float | None = None
    torch_device: str = "auto"

    def __post_init__(self) -> None:
        if self.steps < 2:
            raise UsageError(
                f"an estimate takes at least 2 steps of every device, not {self.steps}"
            )
        _ = self.local

    @property
    def local(self) -> LocalOptions:
        """How devices train."""
        return LocalOptions(
            epochs=None,
            steps=self.steps,
            batch_size=0,
            learning_rate=self.learning_rate,
            momentum=0.0,
            schedule="sqrt",
        )


@dataclass(frozen=True)
class Estimate:
    """What the server made of the devices' figures.

    Attributes
    ----------
    constants : Constants
        Of the bound.
    sizes : ndarray of int64, shape (N,)
        Number of samples of every device.
    figures : dict of str to ndarray of float64, shape (N,)
        What every device reported: the names of `FIGURES`.
    """

    constants: Constants
    sizes: NDArray[np.int64]
    figures: dict[str, NDArray[np.float64]]

    def as_dict(self) -> dict[str, Any]:
        """Return what the devices reported, for JSON."""
        return {
            "private": False,
            "sizes": self.sizes.tolist(),
            "devices": {name: values.tolist() for name, values in self.figures.items()},
        }


def run(world: World, options: EstimateOptions, devices: int | None = None) -> Estimate | None:
    """Estimate the constants; every rank calls this.

    Parameters
    ----------
    world : World
        The processes at hand.
    options : EstimateOptions
        From what.
    devices : int or None
        Number N of devices; by default one on every rank but the server's.

    Returns
    -------
    Estimate or None
        On rank 0.

    Raises
    ------
    HpcflError
        On every rank, if the data or the model cannot be had, or nothing can be made of the
        devices' figures.
    """
    from hpcfl.learning import models
    from hpcfl.learning.training import choose_device, single_thread

    neighbour = world.rank_on_host()
    count = devices or default_devices(world)
    mine = clients.load(
        world,
        Placement.even(count, min(world.size, count + 1)),
        options.dataset,
        options.data_dir,
        options.partition,
        options.seed,
    )
    transport = world.transport(count)
    if transport is None:
        world.settle(None)
        return None

    single_thread()
    name = options.model or models.DEFAULT_MODELS[options.dataset]
    model = models.build(name, mine.input_shape, mine.classes, options.seed)
    start = models.get_flat(model)
    where = choose_device(options.torch_device, neighbour)
    # One column for every device; the others are on other ranks.
    table = np.zeros((len(FIGURES), count))
    for id in transport.local_devices:
        seeds = np.random.SeedSequence(options.seed, spawn_key=(_ESTIMATE, id))
        again = models.build(name, mine.input_shape, mine.classes, int(seeds.generate_state(1)[0]))
        gradients = _Gradients(model, *mine.samples(id), where)
        table[:, id] = explore(gradients, start, models.get_flat(again), options.local)
    summed = transport.sum_to_server(table)
    estimate, error = None, None
    if summed is not None:
        try:
            estimate = combine(summed, mine.sizes, start.size, options.l1_clip, options.l2_clip)
        except HpcflError as problem:
            error = problem
    world.settle(error)
    return estimate


def explore(
    gradients: _Gradients,
    start: NDArray[np.float32],
    random_start: NDArray[np.float32],
    local: LocalOptions,
) -> NDArray[np.float64]:
    """Let a device train alone, and return its `FIGURES`.

    Parameters
    ----------
    gradients : callable
        From weights to the loss on all of the device's data, and its gradient there.
    start, random_start : ndarray of float32, shape (d,)
        Weights that training starts from: those of all devices, and this device's own.
    local : LocalOptions
        Number of steps, halved from the second start, and learning rate.
    """
    steps = local.steps or 0
    seen = _Extremes(start.size)
    found = _descend(gradients, start, steps, local, seen)
    distance = float(np.square((found - start).astype(np.float64)).sum())
    loss, _ = gradients(found)
    # Two steps at least: a change of the gradient is between two.
    _descend(gradients, random_start, max(2, steps // 2), local, seen)
    return np.array([distance, loss, *seen.figures()])


def combine(
    table: NDArray[np.float64],
    sizes: NDArray[np.int64],
    dim: int,
    l1_clip: float | None = None,
    l2_clip: float | None = None,
) -> Estimate:
    """Return the constants for the devices' figures.

    Y0 is the mean of the squared distances and Gamma the difference of the largest and the mean
    loss, both over samples: the worst of the devices' optima stands for F*. lambda, G and xi are
    the largest figures, mu the least.

    Parameters
    ----------
    table : ndarray of float64, shape (figures, N)
        The `FIGURES`, a column for every device.
    sizes : ndarray of int64, shape (N,)
        Number of samples of every device.
    dim : int
        Number of parameters.
    l1_clip, l2_clip : float, optional
        Norms to which a run will clip.

    Raises
    ------
    HpcflError
        If a device's training went astray, or its gradient never changed.
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
    gradients: _Gradients,
    start: NDArray[np.float32],
    steps: int,
    local: LocalOptions,
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
        weights = (weights - np.float32(local.rate(step)) * gradient).astype(np.float32)
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


class _Gradients:
    """The loss on all data of a device, and its gradient, at given weights."""

    def __init__(
        self,
        model: nn.Module,
        inputs: NDArray[np.float32],
        labels: NDArray[np.int64],
        torch_device: str,
    ) -> None:
        self._model = model.to(torch_device).eval()
        self._inputs = _tensor(inputs, torch_device)
        self._labels = _tensor(labels, torch_device)

    def __call__(self, weights: NDArray[np.float32]) -> tuple[float, NDArray[np.float32]]:
        import torch
        from torch.nn.functional import cross_entropy

        from hpcfl.learning.models import set_flat, trained_parameters

        set_flat(self._model, weights)
        parameters = trained_parameters(self._model)
        total, samples = 0.0, len(self._labels)
        for parameter in parameters:
            parameter.grad = None
        for x, y in zip(self._inputs.split(_CHUNK), self._labels.split(_CHUNK), strict=True):
            loss = cross_entropy(self._model(x), y, reduction="sum") / samples
            loss.backward()
            total += float(loss.detach())
        flat = [
            (p.grad if p.grad is not None else torch.zeros_like(p)).reshape(-1) for p in parameters
        ]
        return total, torch.cat(flat).cpu().numpy()


def _tensor(array: NDArray[Any], torch_device: str) -> torch.Tensor:
    import torch

    return torch.tensor(array).to(torch_device)
