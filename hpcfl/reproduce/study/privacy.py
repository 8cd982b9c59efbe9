"""Differential privacy inside each protocol: what a round costs, and what accuracy is left.

Adult's logistic regression through 100 devices stands for training: it is small enough for five
seeds at every epsilon. The noise is on the sum, so that it does not matter which protocol forms a
sum of whole vectors.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from hpcfl.algorithms.aggregation import PROTOCOLS
from hpcfl.algorithms.federated.private import PrivateAlgorithm
from hpcfl.options.bench import DP_FEDAVG
from hpcfl.options.training import TrainOptions
from hpcfl.reproduce import seeds
from hpcfl.reproduce.artefact import Context, Setting
from hpcfl.reproduce.study import costs
from hpcfl.training.build import planned_algorithm

SEEDS = range(5)
EPSILONS = (1.0, 2.0, 4.0, 8.0)
NOISE_MULTIPLIERS = (1.0,)


class Way(NamedTuple):
    """Who adds the noise, and how the sum is formed."""

    title: str
    aggregate: str
    noise: str
    # Somebody may be there or not: in a sum whose terms the server knows, and before it.
    sampling: str


WAYS = (
    Way("a trusted server", "fedavg", "central", "poisson"),
    Way("all devices, whole vectors", "secagg", "distributed", "exact"),
    Way("all devices, a tenth of the coordinates", "common", "distributed", "exact"),
)


def cost_settings() -> list[Setting]:
    """Return rounds without and with noise, of every protocol in which noises add up."""
    able = [*filter(costs.carries_noise, PROTOCOLS)]
    plain = costs.settings_of(costs.BASE, among=able)
    noisy = (
        {**one, "noise_multiplier": z}
        for z, one in product(NOISE_MULTIPLIERS, costs.settings_of(costs.BASE, among=able))
    )
    return [*plain, *noisy]


def epsilon_settings() -> list[Setting]:
    """Return rounds with the noise for each epsilon, of a trusted server and of devices."""
    able = ["fedavg", *filter(costs.carries_noise, PROTOCOLS)]
    settings = costs.settings_of(costs.BASE, among=able)
    return [{**one, "epsilon": epsilon} for one, epsilon in product(settings, EPSILONS)]


def central_settings() -> list[Setting]:
    """Return rounds of a trusted server, over the length of vectors."""
    return [
        {"noise": "central", **costs.BASE, "devices": costs.DIMS_DEVICES, "dim": dim}
        for dim in costs.DIMS
    ]


def central_noise(setting: Setting, context: Context) -> Mapping[str, Any]:
    """Measure what a trusted server's noise takes, and its round without; every rank calls this.

    How much noise it is makes no difference.
    """
    sizes = {name: setting[name] for name in costs.BASE}
    found = costs.run({"protocol": "fedavg", **sizes}, context)
    if not found:
        return {}
    asked = TrainOptions(DP_FEDAVG, aggregate="fedavg", noise="central", noise_multiplier=1.0)
    algorithm = planned_algorithm(asked, sizes["devices"], sizes["dim"])
    assert isinstance(algorithm, PrivateAlgorithm)
    seconds = []
    for index in range(1 + costs.ROUNDS):
        start = time.thread_time()
        algorithm.noise(index, sizes["devices"]).gaussian(sizes["dim"], algorithm.sigma)
        seconds.append(time.thread_time() - start)
    return {
        "noise_cpu_seconds": costs.spread_of(np.array(seconds[1:])),
        "server_cpu_seconds": found["server_cpu_seconds"],
    }


def training_settings() -> list[Setting]:
    """Return the training with every way and epsilon."""
    return [
        {"aggregate": way.aggregate, "noise": way.noise, "epsilon": epsilon}
        for way, epsilon in product(WAYS, EPSILONS)
    ]


def train(setting: Setting, context: Context) -> Mapping[str, Any]:
    """Train Adult's logistic regression with all seeds; every rank calls this."""
    way = next(one for one in WAYS if one.aggregate == setting["aggregate"])
    return seeds.over_seeds(
        context,
        100,
        SEEDS,
        algorithm=DP_FEDAVG,
        aggregate=way.aggregate,
        noise=way.noise,
        sampling=way.sampling,
        per_round=100,
        epsilon=setting["epsilon"],
        clip_norm=0.5,
        rounds=20,
        epochs=1,
        learning_rate=0.1,
        momentum=0.0,
        dataset="adult",
        model="adult-lr",
    )
