"""Rounds of `secagg`, `sparse` and `common` over shaped links: measured, and as the model has it.

Linux, as root; takes about two minutes on two cores that have nothing else to do. Every device
has a link of its own in a network namespace (docs/clusters.md). Printed are the measured seconds of
each phase and of the round beside the modelled ones: by the link model, in which every device has
a processor of its own, and with the computing of all devices shared out over this machine's cores.
Then how many times as long as the others `secagg` takes: the upload, the round, and the round less
the way of the model down, which is as dense for `sparse`. `common` sends two bytes a value, and of
the model what has changed, as a device that took part in the last round needs no more.

What the many small exchanges of a round take among so many ranks on few cores is in no link model.
It is measured first, in the same lab: by how much rounds of `cohort` with vectors of 64 coordinates
take longer than modelled, phase by phase. Added to the model of the others, it gives the last
column.

    python benchmarks/netlab.py
    python benchmarks/netlab.py --hosts 25 --rate 100mbit --downlink-rate 1gbit --rounds 20
"""

from __future__ import annotations

import argparse
import dataclasses
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcfl.netlab.links import parse_rate, parse_seconds
from hpcfl.results import load
from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.reader import Run
from hpcfl.system import disturbances

BASELINE = "secagg"
OTHERS = {"sparse": (), "common": ("--bits", 16)}
# Whose rounds of tiny vectors show what exchanges take.
CALIBRATION, TINY_DIM = "cohort", 64
WHOLE = ("round", "round less model")
LIMIT_SECONDS = 1800


def measure(
    protocol: str, dim: int, asked: argparse.Namespace, folder: Path, options: Sequence[object] = ()
) -> Run:
    """Return a run of a protocol in a lab of its own."""
    path = folder / f"{protocol}.h5"
    lab = ["--hosts", asked.hosts, "--rate", asked.rate, "--latency", asked.latency]
    if asked.downlink_rate:
        lab += ["--downlink-rate", asked.downlink_rate]
    bench = [protocol, "--dim", dim, "--rounds", asked.rounds, "--output", path, *options]
    command = [sys.executable, "-m", "hpcfl", "netlab", *lab, "--", "bench", *bench]
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=LIMIT_SECONDS
    )
    if done.returncode:
        sys.exit(f"{protocol} failed with status {done.returncode}:\n{done.stderr}")
    return load(path)


@dataclass(frozen=True)
class Costs:
    """Median seconds of a run: of every phase, of the round, and of the round less `model`.

    Attributes
    ----------
    measured : ndarray, shape (P + 2,)
        The slowest rank's.
    modelled : ndarray, shape (P + 2,)
        By the link model, as if every device had a processor of its own.
    shared : ndarray, shape (P + 2,)
        The same with all devices' computing shared out over this machine's cores.
    expected : ndarray, shape (P + 2,)
        The same with what exchanges take, of a calibration.
    """

    measured: NDArray[np.float64]
    modelled: NDArray[np.float64]
    shared: NDArray[np.float64]
    expected: NDArray[np.float64]


def costs(run: Run, link: LinkModel, exchanges: NDArray[np.float64] | None = None) -> Costs:
    """Return what a run cost, and what it was expected to with so many seconds of exchanges."""
    kept, model = run.measured, run.phases.index("model")
    wall, cpu = run.wall_seconds[kept].max(axis=-1), run.cpu_seconds[kept]
    together = cpu.copy()
    share = cpu[..., :-1].sum(axis=-1, keepdims=True) / run.environment["cores_usable"]
    together[..., :-1] = np.maximum(cpu[..., :-1], share)

    def modelled(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        return link.phase_seconds(
            run.bytes_up[kept],
            run.bytes_down[kept],
            run.messages_up[kept],
            run.messages_down[kept],
            seconds,
        )

    def medians(phases: NDArray[np.float64], whole: NDArray[np.float64]) -> NDArray[np.float64]:
        every = np.column_stack([phases, whole, whole - phases[:, model]])
        return np.asarray(np.median(every, axis=0))

    alone, shared = modelled(cpu), modelled(together)
    fitting = medians(shared, shared.sum(axis=1))
    return Costs(
        medians(wall, run.round_seconds[kept]),
        medians(alone, alone.sum(axis=1)),
        fitting,
        fitting if exchanges is None else fitting + exchanges,
    )


def print_costs(run: Run, cost: Costs) -> None:
    """Print a run's phases and round, measured and modelled."""
    print(
        f"\n{run.protocol:<18} measured ms  modelled ms   error   on these cores ms   error"
        "   with exchanges ms   error"
    )
    rows = zip([*run.phases, *WHOLE], *dataclasses.astuple(cost), strict=True)
    for name, measured, modelled, shared, expected in rows:
        print(
            f"{name:<18} {1e3 * measured:11.1f}  {1e3 * modelled:11.1f} "
            f"{100 * (modelled / measured - 1):+6.0f} %  {1e3 * shared:18.1f} "
            f"{100 * (shared / measured - 1):+6.0f} %  {1e3 * expected:18.1f} "
            f"{100 * (expected / measured - 1):+6.0f} %"
        )
    for warning in disturbances.warnings(run.environment):
        print(f"warning: {warning}")


def print_ratios(run: Run, base: Costs, cost: Costs) -> None:
    """Print how many times as long as a run the baseline takes."""
    print(
        f"\n{BASELINE + ' over ' + run.protocol:<18}   measured   modelled   on these cores", end=""
    )
    print("   with exchanges")
    names = [*run.phases, *WHOLE]
    for row in (names.index("masked_input"), -2, -1):
        ratios = [
            getattr(base, field.name)[row] / getattr(cost, field.name)[row]
            for field in dataclasses.fields(Costs)
        ]
        print("{:<18} {:10.2f} {:10.2f} {:16.2f} {:16.2f}".format(names[row], *ratios))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, default=25)
    parser.add_argument("--dim", type=int, default=165_000)
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--downlink-rate")
    parser.add_argument("--latency", default="0")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--output", type=Path, help="keep the results files in this folder")
    asked = parser.parse_args()
    link = LinkModel(
        uplink_mbps=parse_rate(asked.rate, "--rate") / 1e6,
        downlink_mbps=parse_rate(asked.downlink_rate or asked.rate, "--downlink-rate") / 1e6,
        latency_ms=1e3 * parse_seconds(asked.latency, "--latency"),
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.output or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        tiny = costs(measure(CALIBRATION, TINY_DIM, asked, folder), link)
        runs = {
            name: measure(name, asked.dim, asked, folder, options)
            for name, options in {BASELINE: (), **OTHERS}.items()
        }
    exchanges = tiny.measured - tiny.shared
    print(f"exchanges of a round take {1e3 * exchanges[-2]:.1f} ms")
    cost = {name: costs(run, link, exchanges) for name, run in runs.items()}
    for name, run in runs.items():
        print_costs(run, cost[name])

    for other in OTHERS:
        print_ratios(runs[other], cost[BASELINE], cost[other])
    for name, run in runs.items():
        kept = run.measured
        up = run.bytes_up[kept].sum(axis=1).max(axis=1)
        seconds = 8e-6 * float(np.median(up)) / link.uplink_mbps
        print(f"{name}: the largest upload alone takes {1e3 * seconds:.1f} ms of a link")


if __name__ == "__main__":
    main()
