"""What a round costs beyond its operations: Python's own work, measured on tiny real rounds.

Rounds with short vectors are played in one process, with few devices and with more. What they take
more than their operations account for is an overhead of every party, a part of it once in a round
and a part for each device, or each peer of a device, whatever d is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median

import numpy as np

from hpcfl.algorithms.aggregation import PROTOCOLS, find
from hpcfl.algorithms.aggregation.base import AggregationProtocol
from hpcfl.algorithms.aggregation.costs import Operations
from hpcfl.algorithms.aggregation.work import costs_of
from hpcfl.benchmark.experiment import Experiment
from hpcfl.comm.loopback import Loopback
from hpcfl.comm.phases import Pattern
from hpcfl.errors import UsageError
from hpcfl.options.bench import BenchOptions
from hpcfl.rounds.observer import Results
from hpcfl.rounds.timed import Played

FEW, MANY = 10, 40
DIM, ROUNDS, WARMUP = 64, 4, 1
# All protocols are played so often, one after the other: a moment in which the machine is slow then
# spoils a few of a protocol's samples, not all.
PASSES = 3
# The plainest protocol, which stands in for what no measured one is derived from.
PLAINEST = "fedavg"
# Whose work it is; "around" is nobody's.
PARTIES = ("device", "member", "server", "helper", "around")
# Of what is around the devices' work, what the server's rank does among several: it notes and looks
# at each of their messages, while their own ranks make, address and deliver them. Measured with 10
# to 160 devices: 15 % (secagg) to 24 % (fedavg).
AROUND_AT_SERVER = 0.2


def _once(party: str, protocol: str) -> str:
    return f"{party}_{protocol}"


def _each(party: str, protocol: str) -> str:
    return f"{party}_{protocol}_each"


def overhead(party: str, protocol: str, count: int) -> Operations:
    """Return what a party's overhead is made of, a part of it for each of so many."""
    return {_once(party, protocol): 1, _each(party, protocol): count}


def grows_with(party: str, protocol: AggregationProtocol) -> int:
    """Return how many there are of what a party's overhead grows with.

    That of a device does so with the peers to whom it sends rows, that of others with the devices.
    """
    if party != "device":
        return protocol.parameters.devices
    routes = any(step.pattern is Pattern.ROUTE for step in protocol.steps)
    return protocol.rows_of_device if routes else 0


def once_in_a_round(operations: Operations) -> Operations:
    """Return operations without the overheads that are there for each device."""
    each = {_each(party, protocol) for party in PARTIES for protocol in PROTOCOLS}
    return {name: count for name, count in operations.items() if name not in each}


def overheads(protocol: str) -> set[str]:
    """Return what a protocol's overheads are called."""
    return {name for party in PARTIES for name in overhead(party, protocol, 1)}


OVERHEADS = tuple(sorted(name for protocol in PROTOCOLS for name in overheads(protocol)))


def overhead_of(protocol: AggregationProtocol, measured: Iterable[str]) -> str:
    """Return the protocol that a protocol's overhead is taken from, of those that are measured.

    It is itself, or the nearest that its class is derived from.
    """
    names = [getattr(kind, "name", "") for kind in type(protocol).__mro__]
    known = {*measured}
    return next((name for name in names if overheads(name) <= known), PLAINEST)


def measure(samples: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """Return samples of each overhead in seconds.

    They are negative where operations account for more than a round takes: what costs more beside
    the work of most protocols costs less beside that of a plain one. `samples` are those of what
    each operation costs.
    """
    costs = {name: median(values) for name, values in samples.items()}
    few: dict[str, list[Operations]] = {protocol: [] for protocol in PROTOCOLS}
    many: dict[str, list[Operations]] = {protocol: [] for protocol in PROTOCOLS}
    for protocol in [*PROTOCOLS] * PASSES:
        few[protocol] += _left_over(protocol, FEW, costs)
        many[protocol] += _left_over(protocol, MANY, costs)
    found = {}
    for protocol in PROTOCOLS:
        played = [_experiment(protocol, devices) for devices in (FEW, MANY)]
        for party in PARTIES:
            least = [one[party] for one in few[protocol] if party in one] or [0.0]
            more = median([one[party] for one in many[protocol] if party in one] or [0.0])
            low, high = (grows_with(party, one.protocol) if one else 0 for one in played)
            each = (more - median(least)) / (high - low) if high > low else 0.0
            found[_each(party, protocol)] = [each]
            found[_once(party, protocol)] = [one - low * each for one in least]
    return found


def _experiment(protocol: str, devices: int) -> Experiment | None:
    """Return rounds to play; None where a library is not installed."""
    options = BenchOptions(
        protocol,
        dim=DIM,
        rounds=ROUNDS,
        warmup=WARMUP,
        dropout=0.3 if find(protocol).tolerates_dropouts else 0.0,
        alpha=0.3,  # cohorts of three, and of twelve
    )
    try:
        return Experiment.prepare(options, devices)
    except UsageError:
        return None


def _left_over(protocol: str, devices: int, costs: Operations) -> list[Operations]:
    """Play rounds; return the seconds of each that operations do not explain, by party.

    A party is missing where a round has none, and all are where a library is not installed.
    """
    experiment = _experiment(protocol, devices)
    if experiment is None:
        return []
    rounds = Results[Played]()
    helpers = experiment.protocol.helpers
    experiment.run(Loopback(devices, helpers), rounds)
    known = dict.fromkeys(PARTIES, 0.0)
    for phase in costs_of(experiment.protocol):
        for party in ("device", "member", "server", "helper"):
            work: Operations = getattr(phase, party)
            known[party] += sum(costs[name] * count for name, count in work.items())
    found = []
    for one in rounds.records[WARMUP:]:
        of_devices, of_server = (
            one.cpu_seconds[:, :-1].sum(axis=0),
            float(one.cpu_seconds[:, -1].sum()),
        )
        of_helpers = float(np.sum(one.helper_cpu_seconds))
        taken = {
            "server": of_server,
            "helper": of_helpers / max(1, helpers),
            "around": one.round_seconds - float(of_devices.sum()) - of_server - of_helpers,
        }
        in_committee = np.isin(np.arange(devices), np.flatnonzero(one.in_committee))
        ordinary, members = one.survived & ~in_committee, one.survived & in_committee
        if ordinary.any():
            taken["device"] = float(of_devices[ordinary].mean())
            if members.any():
                # What they do besides.
                taken["member"] = float(of_devices[members].mean()) - taken["device"]
        found.append({party: seconds - known[party] for party, seconds in taken.items()})
    return found
