"""Predicts a round: counts of operations and bytes, times what each was measured to cost.

Two times are predicted. *Modelled* is that of a round on devices and links of their own, as
:mod:`hpcfl.results.linkmodel` defines it for measured rounds: every phase lasts until its slowest
device has computed and sent, and the server has then done its work. *Measured* is what this machine
would show: all devices' work shared out over the ranks, one after the other within a rank, then the
messages, then the server's work. So is what is around the work: there for each device, it is shared
out with the devices, but for what the server's rank does of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from hpcfl.algorithms.aggregation.base import AggregationProtocol
from hpcfl.algorithms.aggregation.costs import ON_VALUES, OPERATIONS, PhaseCosts, add
from hpcfl.costmodel.calibration import Calibration
from hpcfl.costmodel.network import Network
from hpcfl.costmodel.overheads import (
    AROUND_AT_SERVER,
    grows_with,
    once_in_a_round,
    overhead,
    overhead_of,
)
from hpcfl.errors import UsageError
from hpcfl.options.shared import RoundOptions
from hpcfl.report.formats import counted
from hpcfl.results.linkmodel import LinkModel
from hpcfl.rounds.memory import Memory, predict_memory

# Figures of a phase that add up to those of a round.
SUMMED = (
    *("bytes_up", "bytes_down", "device_cpu_seconds", "server_cpu_seconds"),
    *("member_cpu_seconds", "mean_cpu_seconds", "helper_cpu_seconds", "modelled_seconds"),
)
# In nine of ten rounds, of 40 sizes that nothing was fitted to, what was measured lay between so
# many times what was predicted (docs/prediction.md): a device's CPU time, and all of
# the computing that a modelled round waits for.
DEVICE_WITHIN, COMPUTING_WITHIN = (0.75, 1.25), (0.8, 1.6)

# The largest rounds of benchmarks/prediction.py.
CHECKED_DEVICES, CHECKED_DIM = 100, 2_000_000
EXTRAPOLATED = (
    f"extrapolated: the model was checked for N up to {CHECKED_DEVICES} and d up to {CHECKED_DIM:,}"
)


def check_modelled(options: RoundOptions) -> None:
    """Refuse, by UsageError, rounds of another kind than the model's."""
    if options.dropout_model != "exact" or options.dropout_phase is not None:
        raise UsageError(
            "the model is of devices that drop out before their upload, as many as --dropout says: "
            "leave out --dropout-model and --dropout-phase"
        )
    if options.upload != "gather":
        raise UsageError("the model is of gathered uploads: leave out --upload")


def beyond_checked(devices: int, dim: int) -> bool:
    """Return whether a round is so much larger than those that the model was checked with."""
    return devices > CHECKED_DEVICES or dim > CHECKED_DIM


@dataclass(frozen=True)
class PhasePrediction:
    """What a phase takes: bytes and CPU seconds of a device which is in it, and of the server."""

    name: str
    bytes_up: float
    bytes_down: float
    device_cpu_seconds: float
    server_cpu_seconds: float
    member_cpu_seconds: float  # of a member of the committee, as a device and beyond; 0 without
    mean_cpu_seconds: float  # of all devices, members and others
    helper_cpu_seconds: float  # of each helper; 0 without
    modelled_seconds: float  # on links and devices of their own
    # On this machine; None where its ranks were not calibrated. With a network on that cluster.
    measured_seconds: float | None


@dataclass(frozen=True)
class Prediction:
    """What a round takes."""

    protocol: str
    devices: int
    dim: int
    ranks: int
    servers: int  # of the ranks
    phases: tuple[PhasePrediction, ...]
    shares: dict[str, float]  # of each kind of work, and of the links, in the modelled seconds
    server_peak_bytes: float  # memory of the server's rank; in one process that of all
    device_peak_bytes: float | None  # of a rank with devices
    notes: tuple[str, ...]  # what to beware of
    network: str | None = None  # of the cluster, where that is what is modelled

    def total(self, name: str) -> float:
        """Return the sum of a phase's figure over all phases."""
        return sum(getattr(phase, name) for phase in self.phases)

    @property
    def modelled_within(self) -> tuple[float, float]:
        """The range in which nine of ten modelled rounds lie, in seconds: bytes are exact."""
        seconds = self.total("modelled_seconds")
        computing = seconds * (1 - self.shares["links"])
        least, most = (seconds + computing * (factor - 1) for factor in COMPUTING_WITHIN)
        return least, most

    @property
    def measured_seconds(self) -> float | None:
        """Seconds of a round on this machine; None where its ranks were not calibrated."""
        found = [phase.measured_seconds for phase in self.phases]
        known = [seconds for seconds in found if seconds is not None]
        return sum(known) if len(known) == len(found) else None

    def as_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        total = {name: self.total(name) for name in SUMMED}
        return asdict(self) | {"total": total | {"measured_seconds": self.measured_seconds}}


def predict(
    protocol: AggregationProtocol,
    calibration: Calibration,
    link: LinkModel | None = None,
    ranks: int = 1,
    network: Network | None = None,
    servers: int = 1,
) -> Prediction:
    """Return what a round takes, and what it would take here with so many ranks (1: one process).

    The first `servers` of them are the server's. With a network, it is on a cluster that has it,
    and as many cores as ranks. A UsageError says that the protocol does not declare it for its
    parameters.
    """
    _check_ranks(protocol, ranks, servers)
    link = link or LinkModel()
    played, upload = protocol.costs(), protocol.upload_phase()
    by_all_servers = {upload, *(step.phase for step in protocol.steps if step.by_all_ranks)}
    devices = protocol.parameters.devices
    # They are devices in all phases, also in those in which they do nothing besides.
    has_members = any(phase.members for phase in played)
    spent = dict.fromkeys((*OPERATIONS.values(), "links"), 0.0)
    phases = []
    for phase in played:
        if phase.name == upload:
            # Python's own work.
            known = overhead_of(protocol, calibration.samples)
            there = {
                "device": phase.device,
                "server": phase.server,
                "around": phase.around,
                **({"helper": phase.helper} if protocol.helpers else {}),
                **({"member": phase.member} if phase.members else {}),
            }
            for party, work in there.items():
                add(work, overhead(party, known, grows_with(party, protocol)))
        device = calibration.seconds(phase.device)
        server = calibration.seconds(phase.server)
        helper = calibration.seconds(phase.helper)
        member = calibration.seconds(phase.member)
        shared = 0.0
        if phase.name in by_all_servers:
            on_values = {name: n for name, n in phase.server.items() if name in ON_VALUES}
            shared = calibration.seconds(on_values) * (1 - 1 / servers)
        # Members are the slowest devices, as they do and move more than the others.
        up, down = phase.up + phase.member_up, phase.down + phase.member_down
        transfer = link.transfer_seconds(up, down) + link.latency_seconds(up, down)
        transfer += link.helper_transfer_seconds(phase.helper_up, phase.helper_down)
        transfer += link.latency_seconds(phase.helper_up, phase.helper_down)
        for work in (phase.device, phase.member, phase.server, phase.helper):
            for name, count in work.items():
                # Python's own work goes with the vectors'.
                spent[OPERATIONS.get(name, "vectors")] += calibration.cost(name) * count
        spent["links"] += transfer
        phases.append(
            PhasePrediction(
                phase.name,
                phase.up,
                phase.down,
                device,
                server,
                device + member if has_members else 0.0,
                device + member * phase.members / devices,
                helper,
                device + member + transfer + helper + server,
                _measured(
                    phase,
                    protocol,
                    (device, member, helper, server - shared),
                    calibration,
                    ranks,
                    network,
                    servers,
                ),
            )
        )
    whole = sum(spent.values())
    memory = predict_memory(protocol, ranks, servers)
    return Prediction(
        protocol.name,
        devices,
        protocol.parameters.dim,
        ranks,
        servers,
        tuple(phases),
        {name: seconds / whole for name, seconds in spent.items()},
        memory.server,
        memory.device,
        (
            *_notes(protocol, calibration, ranks, network),
            # Each node of a cluster has a memory of its own.
            *(_beyond(memory) if network is None else ()),
        ),
        None if network is None else str(network),
    )


def _check_ranks(protocol: AggregationProtocol, ranks: int, servers: int) -> None:
    """Refuse numbers of ranks with which the protocol cannot be played, by UsageError."""
    if ranks < 1:
        raise UsageError(f"--ranks is {ranks}; it must be at least 1")
    if servers > 1:
        protocol.dealt_out(servers)
    elif ranks == 1:
        return
    least = servers + protocol.helpers + 1
    if ranks < least:
        helpers = f"{counted(protocol.helpers, 'helper')}, " * (protocol.helpers > 0)
        raise UsageError(
            f"--ranks is {ranks}; {protocol.name} needs at least {least}: {servers} of the server, "
            f"{helpers}1 of devices{', or one process for all' * (servers == 1)}"
        )


def _measured(
    phase: PhaseCosts,
    protocol: AggregationProtocol,
    cpu_seconds: tuple[float, float, float, float],
    calibration: Calibration,
    ranks: int,
    network: Network | None,
    servers: int,
) -> float | None:
    """Return the elapsed seconds of a phase on this machine, or on a cluster with a network.

    `cpu_seconds` are those of a device, what a member of the committee adds to them, those of a
    helper and of the rank of the server that has most to do.
    """
    device, member, helper, server = cpu_seconds
    devices, working = protocol.parameters.devices, max(phase.senders, phase.receivers)
    around = calibration.seconds(phase.around)
    if ranks == 1:
        by_devices = working * device + phase.members * member
        if phase.routed and "route" in calibration.links:
            # That there is a route is a part of the overhead.
            route = calibration.links["route"]
            around += route.seconds(phase.routed * working) - route.alpha_seconds
        return by_devices + protocol.helpers_in_round * helper + server + around
    if network is None and calibration.ranks != ranks:
        return None
    workers = ranks - servers - protocol.helpers
    most = math.ceil(devices / workers)
    on_a_rank = most * working / devices
    by_devices = on_a_rank * device + most * phase.members / devices * member
    # What is there once is a rank's as much as one process's. The rest is the devices'; where a
    # line through few and many devices gives less than nothing for none, all of it is.
    once = min(around, calibration.seconds(once_in_a_round(phase.around)))
    each = around - once
    by_devices += (1 - AROUND_AT_SERVER) * each * most / devices
    around = once + AROUND_AT_SERVER * each
    if network is not None:
        # Every rank has a core of its own.
        seconds = by_devices + helper + server + around
        # Each rank of the server has a link of its own, for its range of every upload.
        links = servers if phase.name == protocol.upload_phase() else 1
        for name, size in _moved(phase, on_a_rank):
            size /= links if name == "gather" else 1
            seconds += network.seconds(name, size, ranks, min(workers, devices))
        return seconds
    seconds = by_devices * calibration.devices_slowdown
    seconds += (helper + server + around) * calibration.server_slowdown
    for name, size in _moved(phase, on_a_rank):
        seconds += calibration.links[name].seconds(size)
    return seconds


def _moved(phase: PhaseCosts, on_a_rank: float) -> list[tuple[str, float]]:
    """Return the patterns of a phase, and the bytes of a rank's messages in each."""
    moved = []
    down, up = phase.down - phase.routed, phase.up - phase.routed
    if phase.routed:
        moved.append(("route", phase.routed * on_a_rank))
    if down and phase.scattered:
        # A gather the other way round.
        moved.append(("gather", down * on_a_rank))
    elif down:
        # One broadcast reaches all devices of a rank.
        moved.append(("broadcast", down))
    if up:
        moved.append(("gather", up * on_a_rank))
    # Each helper is on a rank of its own.
    if phase.helper_down:
        moved.append(("broadcast", phase.helper_down))
    if phase.helper_up:
        moved.append(("gather", phase.helper_up))
    return moved


def _beyond(memory: Memory) -> Iterator[str]:
    """Yield a warning if ranks take more memory than this machine has."""
    import psutil

    there = psutil.virtual_memory().total
    if there is not None and memory.together > there:
        yield (
            f"such a round takes about {memory.together / 1e9:.1f} GB of memory, and this machine "
            f"has {there / 1e9:.1f} GB"
        )


def _notes(
    protocol: AggregationProtocol, calibration: Calibration, ranks: int, network: Network | None
) -> tuple[str, ...]:
    parameters = protocol.parameters
    notes = [*filter(None, [protocol.not_played]), *protocol.cost_notes()]
    known = overhead_of(protocol, calibration.samples)
    if known != protocol.name:
        notes.append(f"Python's own work of {protocol.name} is taken to be that of {known}")
    if beyond_checked(parameters.devices, parameters.dim):
        notes.append(EXTRAPOLATED)
    if parameters.threads > 1:
        notes.append("elapsed seconds are those of ranks with one thread each")
    if ranks > 1 and network is None and calibration.ranks != ranks:
        notes.append(
            f"measured seconds of {ranks} ranks need a calibration with as many: mpirun -n {ranks} "
            "hpcfl calibrate"
        )
    return tuple(notes)
