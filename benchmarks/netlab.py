"""Measured and modelled rounds of `secagg`, `sparse` and `common` over shaped links.

Needs Linux and root; takes about two minutes on two idle cores. Every device has its own link in a
network namespace (docs/clusters.md). The script prints the measured seconds of each phase and of
the round beside the modelled ones, where the computing of all devices is divided among this
machine's cores. Then it prints the upload and round times of `secagg` over those of the others.

A link model does not cover the time of many small exchanges among many ranks on few cores. So the
script measures it first in the same lab: the excess of measured over modelled time, phase by phase,
in rounds of `cohort` with vectors of 64 coordinates. The last column adds it to the model of the
other protocols.

With --alike no, ten devices have links of 10 to 100 Mbit/s, and the script compares rounds of all
protocols with those of the event clock, which plays them in one process (`--population`).

    python benchmarks/netlab.py
    python benchmarks/netlab.py --alike no
    python benchmarks/netlab.py --hosts 25 --uplink-mbps 5 --downlink-mbps 100 --rounds 20
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation import PROTOCOLS, find
from hpcfl.options.protocols import ThreatOptions
from hpcfl.results import load
from hpcfl.results.reader import Run

Floats = NDArray[np.float64]
BASELINE = "secagg"
OTHERS = {"sparse": (), "common": ("--bits", 16)}
# The protocol whose rounds with tiny vectors show the time of exchanges.
CALIBRATION, TINY_DIM = "cohort", 64
LIMIT_SECONDS = 1800


def measure(protocol: str, dim: int, asked: argparse.Namespace, folder: Path, *more: object) -> Run:
    """Return a run of a protocol in its own lab."""
    lab = ["--hosts", asked.hosts, "--uplink-mbps", asked.uplink_mbps]
    lab += ["--downlink-mbps", asked.downlink_mbps or asked.uplink_mbps]
    lab += ["--latency-ms", asked.latency_ms]
    return bench(["netlab", *lab, "--"], protocol, dim, asked.rounds, folder, *more)


def bench(
    first: list[object], protocol: str, dim: int, rounds: int, folder: Path, *more: object
) -> Run:
    """Return a run of `hpcfl bench`, where `first` says."""
    path = folder / f"{protocol}-{len(first)}.h5"
    options = [protocol, "--dim", dim, "--rounds", rounds, "--output", path, *more]
    command = [sys.executable, "-m", "hpcfl", *first, "bench", *options]
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=LIMIT_SECONDS
    )
    if done.returncode:
        sys.exit(f"{protocol} failed with status {done.returncode}:\n{done.stderr}")
    return load(path)


def beside_the_event_clock(asked: argparse.Namespace, folder: Path) -> None:
    """Print measured and modelled rounds of all protocols over links that differ.

    A helper's link has 1 Gbit/s. The processors are this machine's.
    """
    rates = np.geomspace(10, 100, 10)
    for helpers in (0, 1, 2):
        table = ["uplink_mbps,downlink_mbps,latency_ms,compute", *["1000,1000,0,1"] * helpers]
        table += [f"{rate:.1f},{rate:.1f},0,1" for rate in rates]
        (folder / f"{helpers}.csv").write_text("\n".join(table) + "\n")
    print("protocol        measured s   modelled s   error")
    for name in asked.protocols or PROTOCOLS:
        options: list[object] = ["--devices", 10, "--dropout", 0]
        options += ["--gamma", 0] if ThreatOptions in find(name).options else []
        options += ["--alpha", 0.3] if find(name).sparse_upload else []
        helpers = find(name).default_helpers
        lab = ["netlab", "--hosts", 10 + helpers, "--population", folder / f"{helpers}.csv", "--"]
        real = bench(lab, name, asked.dim, asked.rounds, folder, *options)
        clock = ["--population", folder / "0.csv", *options]
        model = bench([], name, asked.dim, asked.rounds, folder, *clock)
        measured = np.median(real.round_seconds[real.measured])
        modelled = np.median(model.event_seconds[model.measured].sum(axis=1))
        error = 100 * (modelled / measured - 1)
        print(f"{name:<14} {measured:11.3f} {modelled:12.3f} {error:+7.0f} %", flush=True)


def costs(run: Run) -> tuple[Floats, Floats]:
    """Return the median seconds of every phase and of the round, measured and modelled.

    The model has the lab's links, and divides the computing of all devices among the cores.
    """
    kept, cpu = run.measured, run.cpu_seconds.copy()
    share = cpu[..., :-1].sum(axis=-1, keepdims=True) / run.environment["cores_usable"]
    cpu[..., :-1] = np.maximum(cpu[..., :-1], share)
    modelled = replace(run, cpu_seconds=cpu).modelled_seconds(run.link())
    wall = run.wall_seconds[kept].max(axis=-1)
    rounds = run.round_seconds[kept], modelled.sum(axis=1)
    measured, expected = (
        np.median(np.column_stack([phases, whole]), axis=0)
        for phases, whole in zip((wall, modelled), rounds, strict=True)
    )
    return measured, expected


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, default=25)
    parser.add_argument("--dim", type=int, default=165_000)
    parser.add_argument("--uplink-mbps", type=float, default=100.0)
    parser.add_argument("--downlink-mbps", type=float)
    parser.add_argument("--latency-ms", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--alike", choices=("yes", "no"), default="yes")
    parser.add_argument("protocols", nargs="*", help="with --alike no: by default, all")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        if asked.alike == "no":
            beside_the_event_clock(asked, place)
            return
        tiny, modelled = costs(measure(CALIBRATION, TINY_DIM, asked, place))
        exchanges = tiny - modelled
        runs = {
            name: measure(name, asked.dim, asked, place, *options)
            for name, options in {BASELINE: (), **OTHERS}.items()
        }
    print(f"exchanges of a round take {1e3 * exchanges[-1]:.1f} ms")
    seconds = {}
    for name, run in runs.items():
        measured, modelled = costs(run)
        seconds[name] = measured, modelled + exchanges
        print(f"\n{name:<18} measured ms   modelled ms   error   with exchanges ms   error")
        rows = zip([*run.phases, "round"], measured, modelled, modelled + exchanges, strict=True)
        for phase, real, model, more in rows:
            print(
                f"{phase:<18} {1e3 * real:11.1f} {1e3 * model:13.1f} "
                f"{100 * (model / real - 1):+6.0f} % {1e3 * more:18.1f} "
                f"{100 * (more / real - 1):+6.0f} %"
            )
    print(f"\n{BASELINE} over the others: measured, modelled with exchanges")
    upload = runs[BASELINE].phases.index("masked_input")
    for other in OTHERS:
        for what, row in (("upload", upload), ("round", -1)):
            pairs = zip(seconds[BASELINE], seconds[other], strict=True)
            print(f"{other:<8} {what:<8}", *(f"{base[row] / one[row]:6.2f}" for base, one in pairs))


if __name__ == "__main__":
    main()
