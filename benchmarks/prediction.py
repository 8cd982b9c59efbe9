"""Predicted against measured rounds, at sizes that no calibration measures.

    python benchmarks/prediction.py [--rounds K] [--passes P] [PROTOCOL ...]

A pass calibrates, plays every configuration in its own launch, and compares: the bytes and CPU
seconds of a surviving device outside the committee, the CPU seconds of members or helpers and of
the server, and the seconds of the round in one process. The median over the passes counts. The
largest difference between passes is printed too: no prediction can be better than that. Run it on
an idle machine, because other programs change even CPU seconds.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median

import numpy as np

import hpcfl
from hpcfl.algorithms.aggregation import find
from hpcfl.costmodel.calibration import load
from hpcfl.costmodel.model import Prediction, predict
from hpcfl.options.bench import BenchOptions
from hpcfl.results.reader import Run
from hpcfl.rounds.build import build

PROTOCOLS = ("secagg", "sparse", "cohort", "lightsecagg", "committee", "assisted")
SIZES = ((10, 10_000), (20, 2_000_000), (30, 165_000), (60, 50_000), (100, 20_000), (100, 165_000))
WITHIN = 0.15
# The factor for the number of rounds if they take only milliseconds.
TINY = 20
FIGURES = ("bytes", "device", "other", "server", "round")


def command(*arguments: object) -> None:
    subprocess.run(
        [sys.executable, "-m", "hpcfl", *map(str, arguments)], check=True, capture_output=True
    )


def measured(run: Run) -> dict[str, float]:
    """Return the bytes that a survivor sent and each party's CPU seconds in a round."""
    kept = run.measured
    sent = run.bytes_up[kept].sum(axis=1)
    survived = run.survived[kept]
    committee = run.in_committee[kept]
    spent = run.cpu_seconds[kept][:, :, :-1].sum(axis=1)
    found = {
        "bytes": float(sent[survived & ~committee].mean()),
        "device": float(spent[survived & ~committee].mean()),
        "server": float(np.median(run.cpu_seconds[kept][:, :, -1].sum(axis=1))),
        "round": float(np.median(run.round_seconds[kept])),
    }
    if committee.any():
        found["other"] = float(spent[survived & committee].mean())
    elif run.helpers:
        found["other"] = float(run.helper_cpu_seconds[kept].sum(axis=1).mean())
    return found


def expected(found: Prediction) -> dict[str, float]:
    return {
        "bytes": found.bytes_up,
        "device": found.device_cpu_seconds,
        "other": found.member_cpu_seconds or found.helper_cpu_seconds,
        "server": found.server_cpu_seconds,
        "round": found.measured_seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("protocols", nargs="*", metavar="PROTOCOL", default=PROTOCOLS)
    parser.add_argument("--rounds", type=int, default=5, help="more where they are short")
    parser.add_argument("--passes", type=int, default=2)
    given = parser.parse_args()
    errors, seconds = defaultdict(list), defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        path, file = Path(folder) / "calibration.json", Path(folder) / "run.h5"
        for _ in range(given.passes):
            command("calibrate", *given.protocols, "--output", path)
            calibration = load(path)
            for protocol, (devices, dim) in itertools.product(given.protocols, SIZES):
                alpha = 0.2 if devices == 10 else 0.1
                built, _ = build(protocol, BenchOptions(protocol, alpha=alpha), devices, dim)
                rounds = given.rounds * (TINY if devices * dim < 10**6 else 1)
                options = [f"--devices={devices}", f"--dim={dim}", f"--rounds={rounds}"]
                if find(protocol).sparse_upload:
                    options.append(f"--alpha={alpha}")
                file.unlink(missing_ok=True)
                command("bench", protocol, *options, "--warmup=1", "--output", file)
                there, wanted = measured(hpcfl.load(file)), expected(predict(built, calibration))
                for name, real in there.items():
                    errors[protocol, devices, dim, name].append(wanted[name] / real - 1)
                    seconds[protocol, devices, dim, name].append(real)
    print(f"error of the prediction, median of {given.passes} passes\n")
    print(f"{'':11} {'N':>4} {'d':>8}", *(f"{name:>8}" for name in FIGURES), f"{'apart':>8}")
    for cell in dict.fromkeys(key[:3] for key in errors):
        shown = [errors.get((*cell, name)) for name in FIGURES]
        cells = [f"{median(one):+8.1%}" if one else f"{'-':>8}" for one in shown]
        values = [seconds[*cell, name] for name in FIGURES[1:] if (*cell, name) in seconds]
        apart = max((max(one) - min(one)) / median(one) for one in values)
        print(f"{cell[0]:11} {cell[1]:4} {cell[2]:8}", *cells, f"{apart:8.1%}")
    for name in FIGURES:
        found = [median(value) for key, value in errors.items() if key[3] == name]
        within = sum(abs(error) <= WITHIN for error in found)
        print(
            f"{name}: median {median(map(abs, found)):.1%}, largest {max(found, key=abs):+.1%}, "
            f"within {WITHIN:.0%} in {within} of {len(found)}"
        )


if __name__ == "__main__":
    main()
