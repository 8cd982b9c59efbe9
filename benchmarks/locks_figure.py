"""The figure of the LOCKS paper on MNIST: uniform sampling against sampling by noisy norms.

    HPCFL_DATA=... python benchmarks/locks_figure.py --output results/locks.json

100 clients, 20 a round in expectation, of 30 that send norms for `locks`; 5 local epochs; five
seeds. Uniform sampling is `dp-fedavg` with Poisson rounds and a trusted server. The paper gives no
model, rounds, clip or learning rate: softmax regression, 50 rounds, clip 1, learning rate 0.01
here, two classes a client. Noise is chosen for a proven epsilon of 10 and 50 at delta = 1e-5, for
both alike; "no noise" is a multiplier of 1e-6.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any

from hpcfl.algorithms.federated.private import PrivacyOptions
from hpcfl.bench.experiment import Options
from hpcfl.learning.training import LocalOptions
from hpcfl.train.experiment import TrainOptions
from seeds import over_seeds

SEEDS = range(5)
ROUNDS = 50
EPSILONS = (None, 50.0, 10.0)


def run(algorithm: str, epsilon: float | None) -> dict[str, Any]:
    """Train one system at one epsilon, None for no noise to speak of."""
    noise: dict[str, Any] = {"epsilon": epsilon} if epsilon else {"noise_multiplier": 1e-6}

    def asked(seed: int) -> TrainOptions:
        return TrainOptions(
            algorithm,
            Options("fedavg", warmup=0, rounds=ROUNDS, dropout=0.0, seed=seed),
            LocalOptions(epochs=5, batch_size=28, learning_rate=0.01, momentum=0.5),
            dataset="mnist",
            model="softmax",
            partition="shards",
            per_round=20,
            sampling="poisson",
            privacy=PrivacyOptions(first_stage=30, **noise),
        )

    start = time.perf_counter()
    found = {"algorithm": algorithm, "epsilon": epsilon} | over_seeds(asked, 100, SEEDS)
    print(
        f"{algorithm} at {epsilon}: {found['accuracy'][-1]}, {time.perf_counter() - start:.0f} s",
        flush=True,
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    output = parser.parse_args().output
    runs = []
    for epsilon, algorithm in itertools.product(EPSILONS, ("dp-fedavg", "locks")):
        runs.append(run(algorithm, epsilon))
        output.write_text(json.dumps({"what": __doc__.splitlines()[0], "runs": runs}) + "\n")


if __name__ == "__main__":
    main()
