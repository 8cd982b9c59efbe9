"""Predicted against measured rounds, on configurations that nothing was fitted to.

    python benchmarks/prediction.py [--ranks R] [--rounds K] [--launches L]

Calibrates first, among as many ranks, then plays every configuration in several launches and
compares: bytes and CPU seconds of a surviving device (means), CPU seconds of the server and seconds
of the round (medians; of several launches, their median). How far the launches' own medians of the
round's seconds lie apart is printed too: no prediction can be better than that. Takes five to ten
minutes on two cores; other programs disturb it.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import subprocess
import tempfile
from pathlib import Path
from statistics import median

import numpy as np

from hpcfl.costmodel.calibration import load
from hpcfl.costmodel.model import Prediction, predict
from hpcfl.options.bench import BenchOptions
from hpcfl.options.definition import part
from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.reader import Run
from hpcfl.results.reader import load as load_run
from hpcfl.rounds.build import build

PROTOCOLS = ("secagg", "sparse", "cohort")
SIZES = ((10, 10_000), (20, 2_000_000), (30, 165_000), (60, 50_000), (100, 20_000), (100, 165_000))
LIMITS = {"bytes": 0.01, "round": 0.15}


def hpcfl(ranks: int, *arguments: object) -> None:
    """Run a command among ranks, or in one process."""
    launcher = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
    command = shutil.which("hpcfl") or "hpcfl"
    subprocess.run([*launcher, command, *map(str, arguments)], check=True, capture_output=True)


def over(runs: list[Run]) -> dict[str, float]:
    """Return the median over launches of what each took, and the spread of the rounds' seconds."""
    each = [measured(run) for run in runs]
    found = {name: median(one[name] for one in each) for name in each[0]}
    seconds = [one["round"] for one in each]
    return found | {"spread": (max(seconds) - min(seconds)) / median(seconds)}


def measured(run: Run) -> dict[str, float]:
    """Return what a run took: bytes and CPU of a survivor, CPU of the server, seconds."""
    kept = run.measured
    survived = run.survived[kept]
    return {
        "bytes": float(run.bytes_up[kept].sum(axis=1)[survived].mean()),
        "device CPU": float(run.cpu_seconds[kept][:, :, :-1].sum(axis=1)[survived].mean()),
        "server CPU": float(np.median(run.cpu_seconds[kept][:, :, -1].sum(axis=1))),
        "round": float(np.median(run.round_seconds[kept])),
    }


def expected(found: Prediction) -> dict[str, float]:
    """Return the same of a prediction."""
    assert found.measured_seconds is not None
    return {
        "bytes": found.total("bytes_up"),
        "device CPU": found.total("device_cpu_seconds"),
        "server CPU": found.total("server_cpu_seconds"),
        "round": found.measured_seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5, help="more where they are short")
    parser.add_argument("--launches", type=int, default=3)
    given = parser.parse_args()
    errors: dict[str, list[float]] = {}
    print(
        f"{'':8} {'N':>4} {'d':>8}   "
        + "   ".join(
            f"{name:>28}" for name in ("bytes", "device CPU, ms", "server CPU, ms", "round, ms")
        )
        + "   launches"
    )
    spreads = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "calibration.json"
        hpcfl(given.ranks, "calibrate", "--output", path)
        calibration = load(path)
        for protocol, (devices, dim) in itertools.product(PROTOCOLS, SIZES):
            rounds = given.rounds * (4 if devices * dim < 10**6 else 1)
            options = ("--devices", devices, "--dim", dim, "--rounds", rounds, "--warmup", 1)
            alpha = ("--alpha", 0.2) if devices == 10 else ()
            files = [
                Path(folder) / f"{protocol}-{devices}-{dim}-{launch}.h5"
                for launch in range(given.launches)
            ]
            for file in files:
                hpcfl(given.ranks, "bench", protocol, *options, *alpha, "--output", file)
            asked = BenchOptions(protocol, alpha=0.2 if devices == 10 else 0.1)
            built, _ = build(protocol, asked, devices, dim)
            link = part(asked, LinkModel)
            found = expected(predict(built, calibration, link, given.ranks))
            real = over([load_run(file) for file in files])
            spreads.append(real["spread"])
            cells = []
            for name, value in found.items():
                error = value / real[name] - 1
                errors.setdefault(name, []).append(error)
                scale = 1 if name == "bytes" else 1e3
                cells.append(f"{scale * value:9.5g} {scale * real[name]:9.5g} {error:+8.1%}")
            cells.append(f"{spreads[-1]:8.1%}")
            print(f"{protocol:8} {devices:4} {dim:8}   " + "   ".join(cells), flush=True)
    print("\npredicted, measured, error of the prediction\n")
    for name, values in errors.items():
        largest = max(values, key=abs)
        line = f"{name:10}  median {median(map(abs, values)):.1%}, largest {largest:+.1%}"
        if name in LIMITS:
            met = abs(largest) <= LIMITS[name]
            line += f"   at most {LIMITS[name]:.0%}: {'met' if met else 'NOT MET'}"
        print(line)
    print(
        f"launches of one configuration lie apart: median {median(spreads):.1%}, largest "
        f"{max(spreads):.1%}"
    )


if __name__ == "__main__":
    main()
