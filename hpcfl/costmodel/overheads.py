"""What a round costs beyond its operations: Python's own work, measured on tiny real rounds.

A round of few devices with short vectors is played in one process. What it takes more than its
operations account for is an overhead of every device, whatever N and d are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median

import numpy as np

from hpcfl.algorithms.aggregation import PROTOCOLS, find
from hpcfl.algorithms.aggregation.base import AggregationProtocol
from hpcfl.benchmark.experiment import Experiment
from hpcfl.comm.loopback import Loopback
from hpcfl.errors import UsageError
from hpcfl.options.bench import BenchOptions
from hpcfl.rounds.observer import Results
from hpcfl.rounds.timed import Played

DEVICES, DIM, ROUNDS, WARMUP = 10, 64, 5, 2
# All protocols are played so often, one after the other: a moment in which the machine is slow then
# spoils a few of a protocol's samples, not all.
PASSES = 3
# The plainest protocol, which stands in for what no measured one is derived from.
PLAINEST = "fedavg"


def overheads(protocol: str) -> set[str]:
    """Return what a protocol's overheads are called."""
    return {f"{where}_{protocol}" for where in ("device", "server", "around")}


OVERHEADS = tuple(sorted(name for protocol in PROTOCOLS for name in overheads(protocol)))


def overhead_of(protocol: AggregationProtocol, measured: Iterable[str]) -> str:
    """Return the protocol that a protocol's overhead is taken from, of those that are measured.

    It is itself, or the nearest that its class is derived from.
    """
    names = [getattr(kind, "name", "") for kind in type(protocol).__mro__]
    known = {*measured}
    return next((name for name in names if overheads(name) <= known), PLAINEST)


def measure(samples: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """Return samples of each overhead, in seconds a device and round; not negative.

    `samples` are those of what each operation costs.
    """
    costs = {name: median(values) for name, values in samples.items()}
    found: dict[str, list[float]] = {name: [] for name in OVERHEADS}
    for protocol in [*PROTOCOLS] * PASSES:
        dropout = 0.3 if find(protocol).tolerates_dropouts else 0.0
        alpha = 0.3  # cohorts of three
        options = BenchOptions(
            protocol, dim=DIM, rounds=ROUNDS, warmup=WARMUP, dropout=dropout, alpha=alpha
        )
        try:
            experiment = Experiment.prepare(options, DEVICES)
        except UsageError:  # its library is not installed
            for name in overheads(protocol):
                found[name] = [0.0]
            continue
        rounds = Results[Played]()
        experiment.run(Loopback(DEVICES, experiment.protocol.helpers), rounds)
        known = {"device": 0.0, "server": 0.0}
        for phase in experiment.protocol.costs():
            for where, work in (("device", phase.device), ("server", phase.server)):
                known[where] += sum(costs[name] * count for name, count in work.items())
        kept = rounds.records[WARMUP:]
        devices = [float(one.cpu_seconds[:, :-1].sum(axis=0)[one.survived].mean()) for one in kept]
        servers = [float(one.cpu_seconds[:, -1].sum()) for one in kept]
        around = [
            one.round_seconds - float(np.sum(one.cpu_seconds) + np.sum(one.helper_cpu_seconds))
            for one in kept
        ]
        found[f"device_{protocol}"] += [max(0.0, one - known["device"]) for one in devices]
        found[f"server_{protocol}"] += [
            max(0.0, one - known["server"]) / DEVICES for one in servers
        ]
        found[f"around_{protocol}"] += [max(0.0, one) / DEVICES for one in around]
    return found
