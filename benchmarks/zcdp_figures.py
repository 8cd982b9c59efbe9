"""Figures 3 to 8 of the zCDP paper (Hu, Guo and Gong 2021) on Adult, from runs of five seeds.

    HPCFL_DATA=... python benchmarks/zcdp_figures.py --output results/zcdp.json [--parts PART ...]

Parts that are not named stay in the file as they are.

16 devices, 10 a round in turn, delta = 1e-4. What the paper does not give: batches of 32 samples,
gradients clipped to 1, learning rates from a small grid, hidden layers as in `adult-nn`; the
partition is that of the publisher, 32,561 samples for training and 16,281 for testing. The best
learning rate is taken by the accuracy that is reported, for every method alike. A logistic
regression is declared convex where the learning rate is at most 2 over the smoothness of the
clipped loss, which is sqrt(2) times the largest norm of a sample (14.4): 0.098.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcfl.algorithms.federated.private import PrivacyOptions
from hpcfl.bench.experiment import Options
from hpcfl.learning.training import LocalOptions
from hpcfl.train.experiment import TrainOptions
from seeds import over_seeds

SEEDS = range(5)
CONVEX_RATE = 0.098
EPSILONS = (1, 2, 5, 10, 20)


@dataclass(frozen=True)
class Model:
    """A model and its settings in the paper."""

    name: str
    rates: tuple[float, ...]  # the first is that of the convergence figures
    sigmas: tuple[float, ...]
    taus: tuple[int, ...]
    utility: tuple[int, int]  # rounds and tau of Figures 5 and 6
    trade_off: tuple[int, int]  # of Figures 7 and 8


MODELS = {
    "lr": Model(
        "adult-lr",
        (0.09, 0.3, 1.0, 3.0),
        (1e-5, 1e-4, 5e-4, 1e-3),
        (1, 5, 10, 40),
        (20, 10),
        (20, 2),
    ),
    "nn": Model(
        "adult-nn", (0.1, 0.3, 1.0), (1e-4, 1e-3, 5e-3, 1e-2), (1, 5, 10, 20), (50, 5), (50, 5)
    ),
}


def run(model: Model, rate: float, rounds: int, tau: int, **options: Any) -> dict[str, Any]:
    """Train with every seed; return the means over the seeds, round by round."""
    algorithm = options.pop("algorithm", "cdp")
    aggregate = options.pop("aggregate", "prf")
    convex = model.name == "adult-lr" and rate <= CONVEX_RATE

    def asked(seed: int) -> TrainOptions:
        return TrainOptions(
            algorithm,
            Options(aggregate, warmup=0, rounds=rounds, dropout=0.0, gamma=0.0, seed=seed),
            LocalOptions(epochs=None, steps=tau, batch_size=32, learning_rate=rate, momentum=0.0),
            dataset="adult",
            model=model.name,
            per_round=10,
            sampling="balanced" if algorithm != "fedavg" else "exact",
            privacy=PrivacyOptions(delta=1e-4, convex=convex, **options),
        )

    setting = {"algorithm": algorithm, "aggregate": aggregate, "rate": rate, "tau": tau}
    return setting | {"rounds": rounds} | options | over_seeds(asked, 16, SEEDS)


def best(model: Model, *arguments: Any, **options: Any) -> dict[str, Any]:
    """Return the run with the learning rate that ends with the highest accuracy."""
    runs = [run(model, rate, *arguments, **options) for rate in model.rates]
    return max(runs, key=lambda one: one["accuracy"][-1])


def convergence(model: Model) -> list[dict[str, Any]]:
    """Return Figure 3 or 4: 100 rounds for all noises and numbers of steps."""
    grid = itertools.product(model.sigmas, model.taus)
    return [run(model, model.rates[0], 100, tau, sigma=sigma) for sigma, tau in grid]


def utility(model: Model) -> list[dict[str, Any]]:
    """Return Figure 5 or 6: `cdp` and `dp-dsgd` at epsilon 10, by the paper's count and ours."""
    rounds, tau = model.utility
    found = [best(model, rounds, tau, algorithm="fedavg", aggregate="fedavg")]
    for by, algorithm in itertools.product(("paper", "proven"), ("cdp", "dp-dsgd")):
        steps = tau if algorithm == "cdp" else 1
        privacy = {"epsilon": 10.0, "epsilon_by": by}
        found.append(best(model, rounds, steps, algorithm=algorithm, **privacy))
    return found


def trade_off(model: Model) -> list[dict[str, Any]]:
    """Return Figure 7 or 8: epsilon, with secure aggregation (prf) and without (fedavg).

    The learning rate is the middle one of the grid.
    """
    rounds, tau = model.trade_off
    rate = model.rates[1]
    return [
        run(model, rate, rounds, tau, aggregate=aggregate, epsilon=float(epsilon), epsilon_by=by)
        for by, aggregate, epsilon in itertools.product(
            ("paper", "proven"), ("prf", "fedavg"), EPSILONS
        )
    ]


PARTS = {
    f"{make.__name__}_{name}": (make, name)
    for make in (utility, trade_off, convergence)
    for name in MODELS
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    given = parser.parse_args()
    output: Path = given.output
    figures: dict[str, Any] = {"what": __doc__.splitlines()[0]}
    if output.exists():
        figures = json.loads(output.read_text())
    for part in given.parts:
        make, name = PARTS[part]
        start = time.perf_counter()
        figures[part] = make(MODELS[name])
        output.write_text(json.dumps(figures, indent=1) + "\n")
        print(f"{part}: {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
