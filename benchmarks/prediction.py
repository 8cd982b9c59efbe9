"""Predicted against measured rounds, on configurations that nothing was fitted to.

    python benchmarks/prediction.py [--ranks R] [--rounds K] [--passes P] [PROTOCOL ...]

A pass calibrates, among as many ranks, plays every configuration in a launch of its own and
compares: bytes and CPU seconds of a surviving device that is in no committee (means), CPU seconds
of the server, of the slowest member or helper, and seconds of the round (medians). The median over
the passes counts, so that neither a slow moment nor a machine that changes its speed decides. How
far the passes' rounds lie apart is printed too: no prediction can be better than that. A pass takes
two to three minutes on two cores; other programs disturb it.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from hpcfl.algorithms.aggregation import find
from hpcfl.costmodel.calibration import load
from hpcfl.costmodel.model import Prediction, predict
from hpcfl.options.bench import BenchOptions
from hpcfl.options.definition import part
from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.reader import Run
from hpcfl.results.reader import load as load_run
from hpcfl.rounds.build import build

PROTOCOLS = ("secagg", "sparse", "cohort", "lightsecagg", "committee", "assisted")
SIZES = ((10, 10_000), (20, 2_000_000), (30, 165_000), (60, 50_000), (100, 20_000), (100, 165_000))
LIMITS = {"bytes": 0.01, "round": 0.15}


class Compared(NamedTuple):
    """What one pass predicted and measured for a configuration: protocol, N and d."""

    configuration: tuple[str, int, int]
    predicted: dict[str, float]
    measured: dict[str, float]


def hpcfl(ranks: int, *arguments: object) -> None:
    """Run a command among ranks, or in one process."""
    launcher = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
    command = shutil.which("hpcfl") or "hpcfl"
    subprocess.run([*launcher, command, *map(str, arguments)], check=True, capture_output=True)


def measured(run: Run) -> dict[str, float]:
    """Return what a run took: bytes and CPU of a survivor, CPU of the server, seconds."""
    kept = run.measured
    survived = (run.survived & run.ordinary)[kept]
    others = [run.slowest_cpu_seconds(party)[:, -1] for party in ("member", "helper")]
    return {
        "bytes": float(run.bytes_up[kept].sum(axis=1)[survived].mean()),
        "device CPU": float(run.cpu_seconds[kept][:, :, :-1].sum(axis=1)[survived].mean()),
        "server CPU": float(np.median(run.cpu_seconds[kept][:, :, -1].sum(axis=1))),
        "other CPU": sum(float(np.median(one)) for one in others if not np.isnan(one).any()),
        "round": float(np.median(run.round_seconds[kept])),
    }


def expected(found: Prediction) -> dict[str, float]:
    """Return the same of a prediction."""
    assert found.measured_seconds is not None
    return {
        "bytes": found.total("bytes_up"),
        "device CPU": found.total("device_cpu_seconds"),
        "server CPU": found.total("server_cpu_seconds"),
        "other CPU": found.total("member_cpu_seconds") + found.total("helper_cpu_seconds"),
        "round": found.measured_seconds,
    }


def one_pass(folder: Path, protocols: Sequence[str], ranks: int, rounds: int) -> Iterator[Compared]:
    """Calibrate, play every configuration once, and yield what was predicted and measured."""
    path, file = folder / "calibration.json", folder / "run.h5"
    hpcfl(ranks, "calibrate", "--output", path)
    calibration = load(path)
    for protocol, (devices, dim) in itertools.product(protocols, SIZES):
        alpha = 0.2 if devices == 10 else 0.1
        asked = BenchOptions(protocol, alpha=alpha)
        built, _ = build(protocol, asked, devices, dim)
        found = expected(predict(built, calibration, part(asked, LinkModel), ranks))
        played = rounds * (4 if devices * dim < 10**6 else 1)
        options = ("--devices", devices, "--dim", dim, "--rounds", played, "--warmup", 1)
        sent = ("--alpha", alpha) if "alpha" in find(protocol).uses(asked) else ()
        hpcfl(ranks, "bench", protocol, *options, *sent, "--output", file)
        yield Compared((protocol, devices, dim), found, measured(load_run(file)))
        file.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("protocols", nargs="*", metavar="PROTOCOL", default=PROTOCOLS)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5, help="more where they are short")
    parser.add_argument("--passes", type=int, default=3)
    given = parser.parse_args()
    passes: dict[tuple[str, int, int], list[Compared]] = {}
    for number in range(given.passes):
        print(f"pass {number + 1} of {given.passes}", file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder:
            for one in one_pass(Path(folder), given.protocols, given.ranks, given.rounds):
                passes.setdefault(one.configuration, []).append(one)

    names = ("bytes", "device CPU", "server CPU", "other CPU", "round")
    print("predicted, measured (milliseconds), error: medians of the passes\n")
    print(f"{'':11} {'N':>4} {'d':>8}", *(f"{name:>28}" for name in names), "   apart", sep="   ")
    errors: dict[str, list[float]] = {name: [] for name in names}
    spreads = []
    for (protocol, devices, dim), compared in passes.items():
        cells = []
        for name in names:
            scale = 1 if name == "bytes" else 1e3
            predicted = median(one.predicted[name] for one in compared)
            real = median(one.measured[name] for one in compared)
            if not real:
                cells.append(f"{'-':>28}")
                continue
            error = median(one.predicted[name] / one.measured[name] - 1 for one in compared)
            errors[name].append(error)
            cells.append(f"{scale * predicted:9.5g} {scale * real:9.5g} {error:+8.1%}")
        seconds = [one.measured["round"] for one in compared]
        spreads.append((max(seconds) - min(seconds)) / median(seconds))
        print(f"{protocol:11} {devices:4} {dim:8}", *cells, f"{spreads[-1]:8.1%}", sep="   ")
    print()
    for name, values in errors.items():
        if not values:
            continue
        largest = max(values, key=abs)
        line = f"{name:10}  median {median(map(abs, values)):.1%}, largest {largest:+.1%}"
        if name in LIMITS:
            met = abs(largest) <= LIMITS[name]
            line += f"   at most {LIMITS[name]:.0%}: {'met' if met else 'NOT MET'}"
        print(line)
    print(
        f"rounds of one configuration lie apart: median {median(spreads):.1%}, largest "
        f"{max(spreads):.1%}"
    )


if __name__ == "__main__":
    main()
