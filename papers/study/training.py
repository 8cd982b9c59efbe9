"""Training in the study: to an accuracy, and with the noise of differential privacy.

SecAgg represents all protocols that send whole vectors, because their sums are the same. Training
with noise is represented by Adult's logistic regression on 100 devices, which is small enough for
five seeds at every epsilon.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from papers.artefact import Setting
from papers.training import over_seeds, to_target

SEEDS = range(5)
DEVICES = 25
# The ways to send an update: whole, or in three ways a tenth of its coordinates.
WAYS = ("secagg", "sparse", "cohort", "common")
EPSILONS = (1.0, 2.0, 4.0, 8.0)


class Task(NamedTuple):
    """A training with its target accuracy and its maximum number of rounds."""

    title: str
    model: str
    partition: str
    target: float
    most_rounds: int
    data_fraction: float = 1.0  # fraction of its data that every device uses

    @property
    def part(self) -> str:
        """The name of the task's part of the study."""
        return f"training-{self.model}-{self.partition}"


# Accuracies are those of SparseSecAgg's Figures 5 and 6. A round of the CNN with all data takes
# minutes on two cores. With a tenth of the data it learns less, so it has a different target.
TASKS = (
    Task("2NN, IID", "2nn", "iid", 0.97, 60),
    Task("2NN, 300 shards", "2nn", "shards", 0.94, 120),
    Task("CNN, IID, a tenth of the data", "mnist-cnn", "iid", 0.95, 40, 0.1),
    Task("CNN, 300 shards, a tenth of the data", "mnist-cnn", "shards", 0.90, 80, 0.1),
)


def settings(task: Task) -> list[Setting]:
    """Return the runs of a task, seed by seed."""
    named = task._asdict()
    del named["title"]
    return [{"protocol": way, **named, "seed": seed} for seed, way in product(SEEDS, WAYS)]


def run(setting: Setting, data_dir: Path | None) -> Mapping[str, Any]:
    """Train once, as SparseSecAgg's paper does: N = 25, 30 % drop out; every rank calls this."""
    given = dict(setting)
    target, rounds, protocol = (given.pop(name) for name in ("target", "most_rounds", "protocol"))
    return to_target(
        "fedavg",
        data_dir,
        target,
        aggregate=protocol,
        rounds=rounds,
        dataset="mnist",
        devices=DEVICES,
        **given,
    )


# For each aggregation: whether a trusted server ("central") or all devices add the noise, and how
# devices are sampled: at random for a trusted server, in fixed numbers if it knows a sum's devices.
NOISY = {
    "fedavg": ("central", "poisson"),
    "secagg": ("distributed", "exact"),
    "common": ("distributed", "exact"),
}


def noisy_settings() -> list[Setting]:
    """Return the settings of training with every aggregation and epsilon."""
    return [
        {"aggregate": aggregate, "noise": noise, "epsilon": epsilon}
        for (aggregate, (noise, _)), epsilon in product(NOISY.items(), EPSILONS)
    ]


def run_noisy(setting: Setting, data_dir: Path | None) -> Mapping[str, Any]:
    """Train Adult's logistic regression with all seeds; every rank calls this."""
    return over_seeds(
        "dp-fedavg",
        data_dir,
        SEEDS,
        devices=100,
        dropout=0.0,
        sampling=NOISY[setting["aggregate"]][1],
        per_round=100,
        clip_norm=0.5,
        rounds=20,
        epochs=1,
        learning_rate=0.1,
        momentum=0.0,
        dataset="adult",
        model="adult-lr",
        **setting,
    )
