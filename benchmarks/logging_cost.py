"""What writing a round to the results file costs, against the round: N = 100, one process.

python benchmarks/logging_cost.py
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

from harness import figure
from hpcfl.benchmark.experiment import Experiment
from hpcfl.comm.loopback import Loopback
from hpcfl.options.bench import BenchOptions
from hpcfl.results.writer import ResultsWriter
from hpcfl.rounds.observer import RoundObserver
from hpcfl.rounds.timed import Played

DEVICES, ROUNDS = 100, 6


def share(protocol: str, dim: int) -> float:
    """Return the median seconds of writing a round over those of playing it."""
    options = BenchOptions(protocol, dim=dim, rounds=ROUNDS, warmup=1)
    experiment = Experiment.prepare(options, DEVICES)
    ratios = []
    with (
        tempfile.TemporaryDirectory() as folder,
        ResultsWriter(
            Path(folder) / "run.h5",
            protocol=protocol,
            command="",
            config=experiment.config(),
            environment={},
            phases=experiment.protocol.phases(),
            devices=DEVICES,
            rounds=ROUNDS + 1,
        ) as writer,
    ):

        class Timing(RoundObserver):
            def finished(self, index: int, result: Played) -> None:
                start = time.perf_counter()
                writer.append(result.record)
                ratios.append((time.perf_counter() - start) / result.record.round_seconds)

        experiment.run(Loopback(DEVICES), Timing())
    return median(ratios)


def main() -> None:
    for protocol, dim in (("secagg", 165_000), ("sparse", 165_000), ("cohort", 165_000)):
        figure(f"{protocol}, N = 100, d = {dim}: writing / round", share(protocol, dim), 0.01)


if __name__ == "__main__":
    main()
