"""Predicted against measured rounds, on configurations that nothing was fitted to.

    python benchmarks/prediction.py [--ranks R] [--rounds K]

Calibrates first, among as many ranks, then plays every configuration and compares: bytes and CPU
seconds of a surviving device (means), CPU seconds of the server and seconds of the round (medians).
Takes about five minutes on two cores; other programs disturb it.
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

from hpcfl.bench.experiment import Options
from hpcfl.prediction.calibration import load
from hpcfl.prediction.model import Prediction, predict
from hpcfl.results import Run
from hpcfl.results import load as load_run

PROTOCOLS = ("secagg", "sparse", "cohort")
SIZES = ((10, 10_000), (20, 2_000_000), (30, 165_000), (60, 50_000), (100, 20_000), (100, 165_000))
LIMITS = {"bytes": 0.01, "round": 0.15}


def hpcfl(ranks: int, *arguments: object) -> None:
    """Run a command among ranks, or in one process."""
    launcher = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
    command = shutil.which("hpcfl") or "hpcfl"
    subprocess.run([*launcher, command, *map(str, arguments)], check=True, capture_output=True)


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
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    errors: dict[str, list[float]] = {}
    print(
        f"{'':8} {'N':>4} {'d':>8}   "
        + "   ".join(
            f"{name:>28}" for name in ("bytes", "device CPU, ms", "server CPU, ms", "round, ms")
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "calibration.json"
        hpcfl(given.ranks, "calibrate", "--output", path)
        calibration = load(path)
        for protocol, (devices, dim) in itertools.product(PROTOCOLS, SIZES):
            file = Path(folder) / f"{protocol}-{devices}-{dim}.h5"
            options = ("--devices", devices, "--dim", dim, "--rounds", given.rounds, "--warmup", 1)
            alpha = ("--alpha", 0.2) if devices == 10 else ()
            hpcfl(given.ranks, "bench", protocol, *options, *alpha, "--output", file)
            asked = Options(protocol, alpha=0.2 if devices == 10 else 0.1)
            built, _ = asked.build(devices, dim)
            found = expected(
                predict(protocol, built.parameters, calibration, asked.link, given.ranks)
            )
            real = measured(load_run(file))
            cells = []
            for name, value in found.items():
                error = value / real[name] - 1
                errors.setdefault(name, []).append(error)
                scale = 1 if name == "bytes" else 1e3
                cells.append(f"{scale * value:9.5g} {scale * real[name]:9.5g} {error:+8.1%}")
            print(f"{protocol:8} {devices:4} {dim:8}   " + "   ".join(cells), flush=True)
    print("\npredicted, measured, error of the prediction\n")
    for name, values in errors.items():
        largest = max(values, key=abs)
        line = f"{name:10}  median {median(map(abs, values)):.1%}, largest {largest:+.1%}"
        if name in LIMITS:
            met = abs(largest) <= LIMITS[name]
            line += f"   at most {LIMITS[name]:.0%}: {'met' if met else 'NOT MET'}"
        print(line)


if __name__ == "__main__":
    main()
