"""FedSGD-DPC on MNIST: the loss after T queries of b replies, at the optimum and elsewhere.

    HPCFL_DATA=... python benchmarks/queries_figures.py --output results/queries.json

10 devices with two digits each, softmax regression, ten seeds, gradients clipped to 300 in l1
(Laplace) or 10 in l2 (Gaussian, Poisson batches of 1 %, delta = 1e-5), learning rate
0.05 / sqrt(t + 1). The optima are those of the paper's Table I: b = 1 with T = 22, 121, 244 for
epsilon 1, 5, 10 (Laplace); T = 500 and b = N (Gaussian). The noise of every setting is what its
proven epsilon takes.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from hpcfl.algorithms.federated.private import PrivacyOptions
from hpcfl.bench.experiment import Options
from hpcfl.learning.training import LocalOptions
from hpcfl.train.experiment import TrainOptions
from seeds import over_seeds

SEEDS = range(10)
OPTIMA = {1.0: 22, 5.0: 121, 10.0: 244}
OTHERS = [(queries, 1) for queries in (10, 50, 100, 250, 500)]
OTHERS += [(50, 5), (10, 10), (50, 10), (100, 10)]
GAUSSIAN = (0.1, 0.5, 1.0)


def run(mechanism: str, epsilon: float, queries: int, replies: int) -> dict[str, Any]:
    """Train with T queries and b replies."""
    laplace = mechanism == "laplace"

    def asked(seed: int) -> TrainOptions:
        return TrainOptions(
            "fedsgd-dpc",
            Options("fedavg", warmup=0, rounds=queries, dropout=0.0, seed=seed),
            LocalOptions(
                epochs=None,
                steps=1,
                batch_size=0 if laplace else 60,
                learning_rate=0.05,
                momentum=0.0,
                weight_decay=1e-4,
                schedule="sqrt",
            ),
            dataset="mnist",
            model="softmax",
            partition="two-digit",
            per_round=replies,
            sampling="balanced",
            privacy=PrivacyOptions(
                epsilon=epsilon,
                mechanism=mechanism,
                clip_norm=300.0 if laplace else 10.0,
                shuffle="continuing" if laplace else "poisson",
            ),
        )

    start = time.perf_counter()
    found = over_seeds(asked, 10, SEEDS)
    setting = {"mechanism": mechanism, "epsilon": epsilon, "T": queries, "b": replies}
    print(f"{setting}: {found['loss'][-1]}, {time.perf_counter() - start:.0f} s", flush=True)
    return setting | found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    output = parser.parse_args().output
    laplace = [
        ("laplace", epsilon, queries, replies)
        for epsilon, best in OPTIMA.items()
        for queries, replies in [(best, 1), *OTHERS]
    ]
    gaussian = [
        ("gaussian", epsilon, 500, replies) for epsilon in GAUSSIAN for replies in (1, 5, 10)
    ]
    runs = []
    for setting in laplace + gaussian:
        runs.append(run(*setting))
        output.write_text(json.dumps({"what": __doc__.splitlines()[0], "runs": runs}) + "\n")


if __name__ == "__main__":
    main()
