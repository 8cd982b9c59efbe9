"""Training to an accuracy: what the rounds of every protocol come to.

SecAgg sends whole vectors; all others that do so train as it does, their sums being the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any, NamedTuple

from hpcfl.options.training import TrainOptions
from hpcfl.reproduce import seeds
from hpcfl.reproduce.artefact import Context, Setting

SEEDS = range(5)
DEVICES = 25
# The ways in which a device's update differs: whole, or a tenth of its coordinates.
WAYS = ("secagg", "sparse", "cohort", "common")


class Task(NamedTuple):
    """What is trained, for how long at most, and to which accuracy."""

    title: str
    model: str
    partition: str
    target: float
    most_rounds: int
    data_fraction: float = 1.0  # that every device uses of its data


# Accuracies are those of SparseSecAgg's Figures 5 and 6. A round of the CNN with all data takes
# minutes of two cores; with a tenth of them it learns less, so that it has a target of its own.
TASKS = (
    Task("2NN, IID", "2nn", "iid", 0.97, 60),
    Task("2NN, 300 shards", "2nn", "shards", 0.94, 120),
    Task("CNN, IID, a tenth of the data", "mnist-cnn", "iid", 0.95, 40, 0.1),
    Task("CNN, 300 shards, a tenth of the data", "mnist-cnn", "shards", 0.90, 80, 0.1),
)


def settings(task: Task) -> list[Setting]:
    """Return the runs of a task, those of one seed after another."""
    named = task._asdict()
    del named["title"]
    return [{"protocol": way, **named, "seed": seed} for seed, way in product(SEEDS, WAYS)]


def run(setting: Setting, context: Context) -> Mapping[str, Any]:
    """Train once, as SparseSecAgg's paper does: N = 25, 30 % drop out; every rank calls this."""
    asked = TrainOptions(
        "fedavg",
        aggregate=setting["protocol"],
        rounds=setting["most_rounds"],
        dataset="mnist",
        data_dir=context.data_dir,
        data_fraction=setting["data_fraction"],
        partition=setting["partition"],
        model=setting["model"],
        target_accuracy=setting["target"],
        seed=setting["seed"],
    )
    return seeds.to_target(context.world, asked, DEVICES)
