"""Common functions of the benchmark scripts: play rounds in one process, and print figures."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hpcfl.benchmark.experiment import Experiment
from hpcfl.comm.loopback import Loopback
from hpcfl.options.bench import BenchOptions
from hpcfl.results.record import RoundRecord
from hpcfl.rounds.observer import Results
from hpcfl.rounds.timed import Played


def run(protocol: str, devices: int, **options: Any) -> tuple[Experiment, list[RoundRecord]]:
    """Return an experiment and the records of its measured rounds, all validated."""
    experiment = Experiment.prepare(BenchOptions(protocol=protocol, **options), devices)
    rounds = Results[Played]()
    experiment.run(Loopback(devices, experiment.protocol.helpers), rounds)
    return experiment, [record for record in rounds.records if not record.warmup]


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds that this thread needs for some work."""
    start = time.thread_time()
    work()
    return time.thread_time() - start


def figure(name: str, value: float, limit: float, unit: str = "") -> None:
    """Print a figure beside its limit."""
    verdict = "met" if value <= limit else "NOT MET"
    print(f"{name:<72} {value:10.4f}{unit}   at most {limit:g}{unit}: {verdict}")
