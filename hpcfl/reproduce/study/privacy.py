"""Differential privacy inside each protocol: what a round costs, and what accuracy is left.

Adult's logistic regression through 100 devices stands for training: it is small enough for five
seeds at every epsilon. The noise is on the sum, so that it does not matter which protocol forms a
sum of whole vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any, NamedTuple

from hpcfl.algorithms.aggregation import PROTOCOLS
from hpcfl.options.bench import DP_FEDAVG
from hpcfl.reproduce import seeds
from hpcfl.reproduce.artefact import Context, Setting
from hpcfl.reproduce.study import costs

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
