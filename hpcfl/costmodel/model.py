"""Predicts a round: counts of operations and bytes, times what each was measured to cost.

Two times are predicted. *Modelled* is that of a round on devices and links of their own, as
:mod:`hpcfl.results.linkmodel` defines it for measured rounds: every phase lasts until its slowest
device has computed and sent, and the server has then done its work. *Measured* is what this machine
would show: all devices' work shared out over the ranks, one after the other within a rank, then the
messages, then the server's work.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from hpcfl.algorithms.aggregation.base import AggregationProtocol
from hpcfl.algorithms.aggregation.costs import PhaseCosts, add, along
from hpcfl.costmodel.calibration import Calibration
from hpcfl.costmodel.overheads import overhead_of
from hpcfl.errors import UsageError
from hpcfl.results.linkmodel import LinkModel

# Groups of operations, for the share that each has in the whole; what is left is "vectors".
GROUPS = {
    "keys": ("key_pair", "agreement", "derivation", "holder", "listed", "ordered"),
    "sharing": (
        *("share_product", "sealed_share", "opened_share", "weight", "weight_pair"),
        *("ring_weight", "ring_inverse", "ring_reply", "asked", "reply_holder", "secret"),
        *("answered", "booked", "settled", "verified", "verified_share"),
    ),
    "masks": (
        *("mask_key", "mask_block", "mask_word", "element_key", "element"),
        *("stream_key", "streamed"),
    ),
    "selection": (
        *("gap_key", "gap_1e2", "gap_1e3", "gap_1e4", "gap_1e5", "folded", "scanned"),
        *("located", "unlocated", "unlocated_dim", "picked", "scatter_added"),
        *("near", "dealt", "dealt_back"),
    ),
}
_GROUP_OF = {name: group for group, names in GROUPS.items() for name in names}


@dataclass(frozen=True)
class PhasePrediction:
    """What a phase takes.

    Attributes
    ----------
    name : str
        The phase.
    bytes_up, bytes_down : float
        Of a device which is in the phase.
    device_cpu_seconds, server_cpu_seconds : float
        CPU time of such a device, and of the server.
    modelled_seconds : float
        On links and devices of their own.
    measured_seconds : float or None
        On this machine; None where its ranks were not calibrated.
    """

    name: str
    bytes_up: float
    bytes_down: float
    device_cpu_seconds: float
    server_cpu_seconds: float
    modelled_seconds: float
    measured_seconds: float | None


@dataclass(frozen=True)
class Prediction:
    """What a round takes.

    Attributes
    ----------
    protocol : str
        The protocol.
    devices, dim : int
        N and d.
    ranks : int
        Ranks of the measured seconds.
    phases : tuple of PhasePrediction
        In order.
    shares : dict of str to float
        Part of each kind of work, and of the links, in the modelled seconds; they add up to 1.
    notes : tuple of str
        What to beware of.
    """

    protocol: str
    devices: int
    dim: int
    ranks: int
    phases: tuple[PhasePrediction, ...]
    shares: dict[str, float]
    notes: tuple[str, ...]

    def total(self, name: str) -> float:
        """Return the sum of a phase's figure over all phases."""
        return sum(getattr(phase, name) for phase in self.phases)

    @property
    def measured_seconds(self) -> float | None:
        """Seconds of a round on this machine; None where its ranks were not calibrated."""
        found = [phase.measured_seconds for phase in self.phases]
        known = [seconds for seconds in found if seconds is not None]
        return sum(known) if len(known) == len(found) else None

    def as_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        summed = ("bytes_up", "bytes_down", "device_cpu_seconds", "server_cpu_seconds")
        return asdict(self) | {
            "total": {name: self.total(name) for name in (*summed, "modelled_seconds")}
            | {"measured_seconds": self.measured_seconds}
        }


def predict(
    protocol: AggregationProtocol,
    calibration: Calibration,
    link: LinkModel | None = None,
    ranks: int = 1,
) -> Prediction:
    """Return what a round takes.

    Parameters
    ----------
    protocol : AggregationProtocol
        The protocol, with its parameters.
    calibration : Calibration
        What operations and messages cost.
    link : LinkModel, optional
        A device's link; the default of `LinkModel` without it.
    ranks : int
        Ranks of the measured seconds: 1 for one process.

    Raises
    ------
    UsageError
        If the protocol does not declare what it takes with these parameters.
    """
    if ranks < 1:
        raise UsageError(f"--ranks is {ranks}; it must be at least 1")
    link = link or LinkModel()
    played, upload = protocol.costs(), protocol.upload_phase()
    devices = protocol.parameters.devices
    spent = dict.fromkeys((*GROUPS, "vectors", "links"), 0.0)
    phases = []
    for phase in played:
        if phase.name == upload:
            # Python's own work.
            known = overhead_of(protocol, calibration.samples)
            add(phase.device, {f"device_{known}": 1})
            add(phase.server, {f"server_{known}": devices})
            add(phase.around, {f"around_{known}": devices})
        device = calibration.seconds(phase.device)
        server = calibration.seconds(phase.server)
        transfer = 8e-6 * (phase.up / link.uplink_mbps + phase.down / link.downlink_mbps)
        directions = (phase.messages_up > 0) + (phase.messages_down > 0)
        transfer += 1e-3 * link.latency_ms * directions
        for work in (phase.device, phase.server):
            for name, count in work.items():
                group = _GROUP_OF.get(name.removesuffix("_far"), "vectors")
                spent[group] += calibration.cost(name) * count
        spent["links"] += transfer
        phases.append(
            PhasePrediction(
                phase.name,
                phase.up,
                phase.down,
                device,
                server,
                device + transfer + server,
                _measured(phase, protocol, device, server, calibration, ranks),
            )
        )
    whole = sum(spent.values())
    return Prediction(
        protocol.name,
        devices,
        protocol.parameters.dim,
        ranks,
        tuple(phases),
        {name: seconds / whole for name, seconds in spent.items()},
        _notes(protocol, calibration, ranks),
    )


def _measured(
    phase: PhaseCosts,
    protocol: AggregationProtocol,
    device: float,
    server: float,
    calibration: Calibration,
    ranks: int,
) -> float | None:
    """Return the elapsed seconds of a phase on this machine."""
    devices, working = protocol.parameters.devices, max(phase.senders, phase.receivers)
    # Vectors are drawn within the round, but are not part of its work.
    if phase.name == protocol.upload_phase():
        device += calibration.seconds(along(protocol.parameters.dim, ["drawn"]))
    around = calibration.seconds(phase.around)
    if ranks == 1:
        return working * device + server + around
    if calibration.ranks != ranks:
        return None
    on_a_rank = math.ceil(devices / (ranks - 1)) * working / devices
    seconds = on_a_rank * device * calibration.devices_slowdown
    seconds += (server + around) * calibration.server_slowdown
    for name, size in _moved(phase, ranks, on_a_rank):
        seconds += calibration.links[name].seconds(size)
    return seconds


def _moved(phase: PhaseCosts, ranks: int, on_a_rank: float) -> list[tuple[str, float]]:
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
    return moved


def _notes(protocol: AggregationProtocol, calibration: Calibration, ranks: int) -> tuple[str, ...]:
    notes, parameters, known = (
        protocol.cost_notes(),
        protocol.parameters,
        overhead_of(protocol, calibration.samples),
    )
    if known != protocol.name:
        notes.append(f"Python's own work of {protocol.name} is taken to be that of {known}")
    if parameters.devices > 1_000 or parameters.dim > 2_000_000:
        notes.append(
            "extrapolated: the model was checked for up to 100 devices and 2,000,000 parameters"
        )
    if ranks > 1 and calibration.ranks != ranks:
        notes.append(
            f"measured seconds of {ranks} ranks need a calibration with as many: mpirun -n {ranks} "
            "hpcfl calibrate"
        )
    return tuple(notes)
