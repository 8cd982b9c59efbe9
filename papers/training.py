"""Trains as the papers do: with several seeds for means, or up to a target accuracy."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import hpcfl


def train(algorithm: str | type, data_dir: Path | None, **options: Any) -> hpcfl.Run | None:
    """Train once, without keeping a file; every rank calls this, and rank 0 receives the run."""
    with tempfile.TemporaryDirectory() as folder:
        return hpcfl.train(algorithm, data_dir=data_dir, output=folder, **options)


def over_seeds(
    algorithm: str | type,
    data_dir: Path | None,
    seeds: Iterable[int],
    *,
    in_training: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Train with every seed; every rank calls this.

    Return, on rank 0 (an empty dict elsewhere): the accuracy and loss on held-out data after each
    round, as means over the seeds; the last values of every seed; with `in_training`, the last
    model's loss and gradient norm on all training data; the bytes sent by all devices; both
    epsilons. Values that are not finite are None.
    """
    runs = []
    at_end: dict[str, list[float | None]] = {"training_loss": [], "gradient_norm": []}
    for seed in seeds:
        run = train(algorithm, data_dir, seed=seed, **options)
        if run is None:
            continue
        runs.append(run.training)
        if in_training:
            for name, value in zip(at_end, _on_training_data(run, data_dir), strict=True):
                at_end[name].append(_short(value))
    if not runs:
        return {}
    found: dict[str, Any] = {}
    for name in ("accuracy", "loss"):
        curves = np.array([one[name] for one in runs])
        means = np.round(curves.mean(axis=0), 4).tolist()
        found[name] = [one if math.isfinite(one) else None for one in means]
        found[f"last_{name}"] = [_short(value) for value in curves[:, -1]]
    found |= at_end if in_training else {}
    found["bytes_up"] = float(np.mean([one["bytes_up_total"][-1] for one in runs]))
    for side in ("paper", "proven"):
        epsilon = float(runs[0][f"epsilon_{side}"][-1])
        found[f"epsilon_{side}"] = epsilon if math.isfinite(epsilon) else None
    return found


def _short(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _on_training_data(run: hpcfl.Run, data_dir: Path | None) -> tuple[float, float]:
    """Return a model's mean loss and the l2 norm of its gradient, on all training data."""
    import torch
    from torch.nn.functional import cross_entropy

    from hpcfl.learning import datasets, models

    seed = run.config["seed"]
    data = datasets.load(run.config["dataset"], data_dir, seed)
    model = models.build(run.config["model"], data.shape, data.classes, seed)
    assert run.weights is not None
    torch.nn.utils.vector_to_parameters(torch.tensor(run.weights), model.parameters())
    inputs, labels = torch.from_numpy(data.train_inputs), torch.from_numpy(data.train_labels)
    loss = cross_entropy(model(inputs), labels)
    gradients = torch.autograd.grad(loss, models.trained_parameters(model))
    norm = math.sqrt(sum(float(part.square().sum()) for part in gradients))
    return float(loss.detach()), norm


def to_target(
    algorithm: str, data_dir: Path | None, target: float | None = None, **options: Any
) -> dict[str, Any]:
    """Train once, up to the target accuracy or the last round; every rank calls this.

    Return, on rank 0 (an empty dict elsewhere): accuracy and overlap after each round, whether the
    target was reached, the bytes sent by all devices, modelled seconds in all and for training.
    """
    run = train(algorithm, data_dir, target_accuracy=target, **options)
    if run is None:
        return {}
    training = run.training
    found: dict[str, Any] = {
        "rounds": len(training["accuracy"]),
        "reached": target is None or bool(training["accuracy"][-1] >= target),
        "accuracy": np.round(training["accuracy"], 4).tolist(),
        "bytes_up_total": int(training["bytes_up_total"][-1]),
        "modelled_seconds": round(float(training["modelled_seconds"].sum()), 2),
        "modelled_seconds_of_training": round(float(training["train_cpu_seconds"].sum()), 2),
    }
    if np.isfinite(training["overlap"][0]):
        found["overlap"] = np.round(training["overlap"], 4).tolist()
    return found


def without_training(found: Mapping[str, Any]) -> float:
    """Return the modelled seconds of a run without the devices' training."""
    return float(found["modelled_seconds"] - found["modelled_seconds_of_training"])
