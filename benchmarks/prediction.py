"""Predicted against measured rounds, on configurations that nothing was fitted to.

    python benchmarks/prediction.py [--ranks R] [--rounds K] [--passes P] [--tries T] [PROTOCOL ...]

A pass calibrates, among as many ranks, plays every configuration in a launch of its own and
compares: bytes and CPU seconds of a surviving device that is in no committee, CPU seconds of the
other devices, members, or of helpers (means), CPU seconds of the server, of the slowest member or
helper of a round, and seconds of the round (medians). The median over
the passes counts, so that neither a slow moment nor a machine that changes its speed decides. How
far the passes lie apart, in the figure in which they do most, is printed too: no prediction can be
better than that. A pass takes two to three minutes on two cores. Other programs change what work
takes, in CPU seconds too: what they disturb is measured again, a few times at most, and then marked
with a *.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
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
# So many times as many rounds where they take milliseconds.
TINY = 20
# Of a core, more than which other programs are not to take.
DISTURBED = 0.05


class Compared(NamedTuple):
    """What one pass predicted and measured for a configuration: protocol, N and d."""

    configuration: tuple[str, int, int]
    predicted: dict[str, float]
    measured: dict[str, float]
    undisturbed: bool


def hpcfl(ranks: int, *arguments: object) -> None:
    """Run a command among ranks, or in one process."""
    launcher = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
    command = shutil.which("hpcfl") or "hpcfl"
    subprocess.run([*launcher, command, *map(str, arguments)], check=True, capture_output=True)


def busy_seconds() -> float:
    """Return the CPU seconds of all other programs; those of programs that have ended count."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _, _, irq, softirq, *_ = map(int, file.readline().split()[1:])
    except OSError:
        return 0.0
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    everybody = (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
    return everybody - sum(one.ru_utime + one.ru_stime for one in own)


def quietly(tries: int, output: Path, ranks: int, *arguments: object) -> bool:
    """Run a command until no other program disturbs it, and return whether none did."""
    for _ in range(tries):
        output.unlink(missing_ok=True)
        start, busy = time.monotonic(), busy_seconds()
        hpcfl(ranks, *arguments, "--output", output)
        if busy_seconds() - busy <= DISTURBED * (time.monotonic() - start):
            return True
    return False


def measured(run: Run) -> dict[str, float]:
    """Return what a run took: bytes and CPU of a survivor, CPU of the server, seconds."""
    kept = run.measured
    survived = (run.survived & run.ordinary)[kept]
    slowest = [run.slowest_cpu_seconds(party)[:, -1] for party in ("member", "helper")]
    members = np.zeros_like(survived) if run.in_committee is None else run.in_committee[kept]
    members = members & run.survived[kept]
    of_devices = run.cpu_seconds[kept][:, :, :-1].sum(axis=1)
    others = [of_devices[members]]
    if run.helper_cpu_seconds is not None:
        others.append(run.helper_cpu_seconds[kept].sum(axis=1))
    return {
        "bytes": float(run.bytes_up[kept].sum(axis=1)[survived].mean()),
        "device CPU": float(of_devices[survived].mean()),
        "server CPU": float(np.median(run.cpu_seconds[kept][:, :, -1].sum(axis=1))),
        "other CPU": sum(float(one.mean()) for one in others if one.size),
        "slowest": sum(float(np.median(one)) for one in slowest if not np.isnan(one).any()),
        "round": float(np.median(run.round_seconds[kept])),
    }


def expected(found: Prediction) -> dict[str, float]:
    """Return the same of a prediction."""
    assert found.measured_seconds is not None
    others = found.total("member_cpu_seconds") + found.total("helper_cpu_seconds")
    return {
        "bytes": found.total("bytes_up"),
        "device CPU": found.total("device_cpu_seconds"),
        "server CPU": found.total("server_cpu_seconds"),
        "other CPU": others,
        "slowest": others,
        "round": found.measured_seconds,
    }


def one_pass(
    folder: Path, protocols: Sequence[str], ranks: int, rounds: int, tries: int
) -> Iterator[Compared]:
    """Calibrate, play every configuration once, and yield what was predicted and measured."""
    path, file = folder / "calibration.json", folder / "run.h5"
    calm = quietly(tries, path, ranks, "calibrate")
    calibration = load(path)
    for protocol, (devices, dim) in itertools.product(protocols, SIZES):
        alpha = 0.2 if devices == 10 else 0.1
        asked = BenchOptions(protocol, alpha=alpha)
        built, _ = build(protocol, asked, devices, dim)
        found = expected(predict(built, calibration, part(asked, LinkModel), ranks))
        played = rounds * (TINY if devices * dim < 10**6 else 1)
        options = ("--devices", devices, "--dim", dim, "--rounds", played, "--warmup", 1)
        sent = ("--alpha", alpha) if "alpha" in find(protocol).uses(asked) else ()
        undisturbed = quietly(tries, file, ranks, "bench", protocol, *options, *sent)
        there = measured(load_run(file))
        yield Compared((protocol, devices, dim), found, there, calm and undisturbed)


def apart(values: Sequence[float]) -> float:
    """Return how far values lie apart, as a part of their median; 0 if that is 0."""
    middle = median(values)
    return (max(values) - min(values)) / middle if middle else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("protocols", nargs="*", metavar="PROTOCOL", default=PROTOCOLS)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5, help="more where they are short")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--tries", type=int, default=3, help="of what other programs disturb")
    given = parser.parse_args()
    passes: dict[tuple[str, int, int], list[Compared]] = {}
    for number in range(given.passes):
        print(f"pass {number + 1} of {given.passes}", file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder:
            played = one_pass(Path(folder), given.protocols, given.ranks, given.rounds, given.tries)
            for one in played:
                passes.setdefault(one.configuration, []).append(one)

    names = ("bytes", "device CPU", "server CPU", "other CPU", "slowest", "round")
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
        spreads.append(max(apart([one.measured[name] for one in compared]) for name in names[1:]))
        mark = "" if all(one.undisturbed for one in compared) else " *"
        print(f"{protocol:11} {devices:4} {dim:8}", *cells, f"{spreads[-1]:8.1%}{mark}", sep="   ")
    print()
    for name, values in errors.items():
        if not values:
            continue
        largest = max(values, key=abs)
        within = sum(abs(value) <= 0.15 for value in values)
        line = f"{name:10}  median {median(map(abs, values)):.1%}, largest {largest:+.1%}"
        line += f", within 15 % {within} of {len(values)}"
        if name in LIMITS:
            met = abs(largest) <= LIMITS[name]
            line += f"   at most {LIMITS[name]:.0%}: {'met' if met else 'NOT MET'}"
        print(line)
    print(
        f"passes of one configuration lie apart: median {median(spreads):.1%}, largest "
        f"{max(spreads):.1%}"
    )


if __name__ == "__main__":
    main()
