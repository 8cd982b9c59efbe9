"""Trains with several seeds in one process, for the figures of papers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.comm.world import connect
from hpcfl.train import session
from hpcfl.train.experiment import TrainOptions


def over_seeds(
    asked: Callable[[int], TrainOptions], devices: int, seeds: Iterable[int]
) -> dict[str, Any]:
    """Train once with every seed; return what came of it.

    Parameters
    ----------
    asked : callable
        Returns what to train with a seed.
    devices : int
        Number of devices.
    seeds : iterable of int
        The seeds.

    Returns
    -------
    dict
        Accuracy and loss, means over the seeds, round by round; the last ones of every seed; bytes
        sent up; both epsilons.
    """
    curves = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            trained = session.run(connect(), asked(seed), devices, Path(folder))
            assert trained is not None
            assert all(result.record.validated for result in trained.results)
            curves.append([result.figures for result in trained.results])
    found: dict[str, Any] = {}
    for name in ("accuracy", "loss"):
        values = np.array([[figures[name] for figures in curve] for curve in curves])
        found[name] = np.round(values.mean(axis=0), 4).tolist()
        found[f"last_{name}"] = np.round(values[:, -1], 4).tolist()
    last = curves[0][-1]
    found["bytes_up"] = float(np.mean([curve[-1]["bytes_up_total"] for curve in curves]))
    for side in ("paper", "proven"):
        epsilon = last[f"epsilon_{side}"]
        found[f"epsilon_{side}"] = epsilon if np.isfinite(epsilon) else None
    return found
