"""Trains with several seeds, for the means that papers show."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.comm.world import World
from hpcfl.learning import datasets
from hpcfl.options.training import TrainOptions
from hpcfl.reproduce.artefact import Context
from hpcfl.results.schema import Metric
from hpcfl.training import session
from hpcfl.training.session import Trained


def over_seeds(
    context: Context,
    devices: int,
    seeds: Iterable[int],
    *,
    in_training: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Train with every seed and no dropouts; every rank calls this.

    Returns, on rank 0 (elsewhere nothing): accuracy and loss on held-out data, means over seeds,
    round by round; the last ones of every seed, and with `in_training` the last model's loss and
    the norm of its gradient on all training data; bytes that all devices sent; both epsilons, None
    for infinity.
    """
    curves = []
    at_end: dict[str, list[float]] = {"training_loss": [], "gradient_norm": []}
    with tempfile.TemporaryDirectory() as folder, datasets.read_once():
        for seed in seeds:
            asked = TrainOptions(seed=seed, dropout=0.0, data_dir=context.data_dir, **options)
            trained = session.run(context.world, asked, devices, Path(folder))
            if trained is not None:
                curves.append([result.figures for result in trained.results])
                if in_training:
                    for name, value in zip(at_end, on_training_data(trained, asked), strict=True):
                        at_end[name].append(float(f"{value:.6g}"))
    if not curves:
        return {}
    found: dict[str, Any] = {}
    for name in ("accuracy", "loss"):
        values = np.array([[figures[name] for figures in curve] for curve in curves])
        found[name] = np.round(values.mean(axis=0), 4).tolist()
        found[f"last_{name}"] = [float(f"{value:.6g}") for value in values[:, -1]]
    found |= {name: values for name, values in at_end.items() if in_training}
    last = curves[0][-1]
    found["bytes_up"] = float(np.mean([curve[-1][Metric.BYTES_UP_TOTAL] for curve in curves]))
    for side in ("paper", "proven"):
        epsilon = last[f"epsilon_{side}"]
        found[f"epsilon_{side}"] = epsilon if np.isfinite(epsilon) else None
    return found


def on_training_data(trained: Trained, asked: TrainOptions) -> tuple[float, float]:
    """Return a model's mean loss and the l2 norm of that loss's gradient, on all training data."""
    import torch
    from torch.nn.functional import cross_entropy

    from hpcfl.learning import models

    data = datasets.load(asked.dataset, asked.data_dir, asked.seed)
    model = models.build(trained.model, data.shape, data.classes, asked.seed)
    models.set_flat(model, trained.weights)
    inputs, labels = torch.from_numpy(data.train_inputs), torch.from_numpy(data.train_labels)
    loss = cross_entropy(model(inputs), labels)
    gradients = torch.autograd.grad(loss, models.trained_parameters(model))
    norm = math.sqrt(sum(float(part.square().sum()) for part in gradients))
    return float(loss.detach()), norm


def to_target(world: World, asked: TrainOptions, devices: int) -> dict[str, Any]:
    """Train once, to the target accuracy or the last round; every rank calls this.

    Returns, on rank 0 (elsewhere nothing): accuracy and overlap round by round, whether the target
    was reached, bytes that all devices sent, modelled seconds and how many of them are training.
    """
    with tempfile.TemporaryDirectory() as folder:
        trained = session.run(world, asked, devices, Path(folder))
    if trained is None:
        return {}
    figures = [result.figures for result in trained.results]
    target = asked.target_accuracy
    found: dict[str, Any] = {
        "dim": int(trained.weights.size),
        "rounds": len(figures),
        "reached": target is None or figures[-1][Metric.ACCURACY] >= target,
        "accuracy": [round(one[Metric.ACCURACY], 4) for one in figures],
        "bytes_up_total": int(figures[-1][Metric.BYTES_UP_TOTAL]),
        "modelled_seconds": round(sum(one[Metric.MODELLED_SECONDS] for one in figures), 2),
        "modelled_seconds_of_training": round(
            sum(one[Metric.TRAIN_CPU_SECONDS] for one in figures), 2
        ),
    }
    if np.isfinite(figures[0][Metric.OVERLAP]):
        found["overlap"] = [round(one[Metric.OVERLAP], 4) for one in figures]
    return found


def without_training(found: Mapping[str, Any]) -> float:
    """Return the modelled time of a run less a device's training, in seconds."""
    return float(found["modelled_seconds"] - found["modelled_seconds_of_training"])
