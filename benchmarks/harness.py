"""Common functions of the benchmark scripts: play rounds, and print figures."""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from hpcfl.benchmark.experiment import Experiment
from hpcfl.comm.loopback import Loopback
from hpcfl.options.bench import BenchOptions
from hpcfl.results.reader import Run, load
from hpcfl.results.record import RoundRecord
from hpcfl.rounds.observer import Results
from hpcfl.rounds.timed import Played
from hpcfl.system import allocator

allocator.keep_freed()  # as the command does


def run(protocol: str, devices: int, **options: Any) -> tuple[Experiment, list[RoundRecord]]:
    """Return an experiment and the records of its measured rounds, all validated."""
    experiment = Experiment.prepare(BenchOptions(protocol=protocol, **options), devices)
    rounds = Results[Played]()
    experiment.run(Loopback(devices, experiment.protocol.helpers), rounds)
    return experiment, [record for record in rounds.records if not record.warmup]


def launched(*command: object) -> Run:
    """Return the run of a command line of `hpcfl bench`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.h5"
        words = [*map(str, command), "--output", str(path)]
        subprocess.run(words, check=True, capture_output=True)
        return load(path)


def speed_up(
    document: str, of: str, wanted: float, seconds: Callable[[int, str, argparse.Namespace], float]
) -> None:
    """Print how much faster `unmask` is at the server with two of something than with one.

    `seconds` measures it once, with a number of them and a group.
    """
    parser = argparse.ArgumentParser(description=document.splitlines()[0])
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument("--dim", type=int, default=1_663_370)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    for group in ("fq", "ring32", "ring16"):
        # The two alternate, so that other load on the machine affects both alike.
        found = [[seconds(k, group, given) for k in (1, 2)] for _ in range(given.rounds)]
        one, two = (median(each) for each in zip(*found, strict=True))
        print(f"{group}: {one:.3f} s with one, {two:.3f} s with two {of}")
        figure(f"    unmask with two {of} / with one", two / one, 1 / wanted)


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds that this thread needs for some work."""
    start = time.thread_time()
    work()
    return time.thread_time() - start


def figure(name: str, value: float, limit: float, unit: str = "") -> None:
    """Print a figure beside its limit."""
    verdict = "met" if value <= limit else "NOT MET"
    print(f"{name:<72} {value:10.4f}{unit}   at most {limit:g}{unit}: {verdict}")
