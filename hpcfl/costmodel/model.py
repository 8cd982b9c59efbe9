"""Predicts a round: bytes by formula, and CPU seconds by what was learned of small real rounds.

Two times are predicted. *Modelled* is that of a round on devices and links of their own, as
:mod:`hpcfl.results.linkmodel` defines it for measured rounds: every phase lasts until its slowest
device has computed and sent, and the server has then done its work. *Measured* is what one process
on this machine would show, or, with a network, the ranks of a cluster with a core each: the devices
of a rank one after the other, then the messages, then the server.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from hpcfl.algorithms.aggregation import work
from hpcfl.algorithms.aggregation.base import AggregationProtocol
from hpcfl.algorithms.aggregation.costs import PhaseCosts, exchanged
from hpcfl.algorithms.aggregation.quantised import QuantisedProtocol
from hpcfl.algorithms.aggregation.work import Terms, far
from hpcfl.costmodel.calibration import Calibration
from hpcfl.costmodel.network import Network
from hpcfl.errors import UsageError
from hpcfl.options.protocols import ProtocolOptions
from hpcfl.results.linkmodel import LinkModel

# In nine of ten rounds, of 40 sizes that nothing was fitted to, what was measured lay between so
# many times what was predicted (benchmarks/advice.py): a device's CPU time, and all of the
# computing that a modelled round waits for.
DEVICE_WITHIN, COMPUTING_WITHIN = (0.75, 1.25), (0.8, 1.6)
# The largest rounds of benchmarks/prediction.py.
CHECKED_DEVICES, CHECKED_DIM = 100, 2_000_000
EXTRAPOLATED = (
    f"extrapolated: the model was checked for N up to {CHECKED_DEVICES} and d up to {CHECKED_DIM:,}"
)


def check_modelled(options: ProtocolOptions) -> None:
    """Refuse, by UsageError, rounds of another kind than the model's."""
    if options.dropout_model != "exact" or options.dropout_phase is not None:
        raise UsageError(
            "the model is of devices that drop out before their upload, as many as --dropout says: "
            "leave out --dropout-model and --dropout-phase"
        )


def beyond_checked(devices: int, dim: int) -> bool:
    """Return whether a round is so much larger than those that the model was checked with."""
    return devices > CHECKED_DEVICES or dim > CHECKED_DIM


def terms_of(protocol: AggregationProtocol) -> dict[str, Terms]:
    """Return what the work of each party, and what is around it, grows with.

    Around it is what carries messages from party to party in one process.
    """
    if isinstance(protocol, QuantisedProtocol) and protocol.noise is not None:
        raise UsageError("the model is of protocols alone, without the noise of devices")
    terms = work.terms(protocol)
    phases, devices = [*exchanged(protocol).values()], protocol.parameters.devices
    upload = protocol.upload_phase()
    routed = devices * sum(phase.routed for phase in phases)
    to_members = sum(phase.members * (phase.member_up + phase.member_down) for phase in phases)
    rows = sum(phase.messages_up for phase in phases if phase.routed)
    around = {"devices": devices, "rows": devices * rows, "helpers": protocol.helpers}
    # What those take that drop out is nobody's work who is in the sum.
    dropped = devices - max(phase.senders for phase in phases if phase.name == upload)
    around |= {"dropped": dropped, "rows of dropped": dropped * rows}
    around |= far("values", devices * protocol.parameters.dim)
    around |= far("routed bytes", (routed + to_members) / 8)
    return terms | {"around": around}


@dataclass(frozen=True)
class PhasePrediction:
    """What a phase moves: bytes of a device which is in it, and seconds on its link."""

    name: str
    bytes_up: float
    bytes_down: float
    link_seconds: float


@dataclass(frozen=True)
class Prediction:
    """What a round takes."""

    protocol: str
    devices: int
    dim: int
    ranks: int
    phases: tuple[PhasePrediction, ...]
    device_cpu_seconds: float  # of a device that is in no committee
    member_cpu_seconds: float  # of a member of the committee, as a device and beyond; 0 without
    mean_cpu_seconds: float  # of all devices, members and others
    helper_cpu_seconds: float  # of each helper; 0 without
    server_cpu_seconds: float
    measured_seconds: float  # in one process of this machine; with a network on that cluster
    notes: tuple[str, ...]  # what to beware of
    network: str | None = None  # of the cluster, where that is what is modelled

    @property
    def bytes_up(self) -> float:
        return sum(phase.bytes_up for phase in self.phases)

    @property
    def bytes_down(self) -> float:
        return sum(phase.bytes_down for phase in self.phases)

    @property
    def link_seconds(self) -> float:
        """Seconds that a modelled round spends on links."""
        return sum(phase.link_seconds for phase in self.phases)

    @property
    def computing_seconds(self) -> float:
        """Seconds that a modelled round waits for computing: members are the slowest devices."""
        slowest = self.member_cpu_seconds or self.device_cpu_seconds
        return slowest + self.helper_cpu_seconds + self.server_cpu_seconds

    @property
    def modelled_seconds(self) -> float:
        return self.link_seconds + self.computing_seconds

    @property
    def modelled_within(self) -> tuple[float, float]:
        """The range in which nine of ten modelled rounds lie, in seconds: bytes are exact."""
        least, most = COMPUTING_WITHIN
        return (
            self.link_seconds + least * self.computing_seconds,
            self.link_seconds + most * self.computing_seconds,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        sums = ("bytes_up", "bytes_down", "link_seconds", "computing_seconds", "modelled_seconds")
        return asdict(self) | {name: getattr(self, name) for name in sums}


def predict(
    protocol: AggregationProtocol,
    calibration: Calibration,
    link: LinkModel | None = None,
    ranks: int = 1,
    network: Network | None = None,
) -> Prediction:
    """Return what a round takes, modelled on links, and in one process of this machine.

    With a network, the latter is for so many ranks of a cluster that has it, one of them the
    server's. A UsageError says that the protocol does not declare its terms, or that they were not
    calibrated.
    """
    parameters, link = protocol.parameters, link or LinkModel()
    least = protocol.helpers + 2
    if network is not None and ranks < least:
        raise UsageError(f"--ranks is {ranks}; {protocol.name} needs at least {least}")
    played, terms = [*exchanged(protocol).values()], terms_of(protocol)
    spent = {
        party: calibration.seconds(protocol, party, of_party) for party, of_party in terms.items()
    }
    members, devices = max(phase.members for phase in played), parameters.devices
    device, member = spent["device"], spent.get("member", 0.0)
    notes = work.notes(protocol)
    if beyond_checked(devices, parameters.dim):
        notes.append(EXTRAPOLATED)
    found = Prediction(
        protocol.name,
        devices,
        parameters.dim,
        ranks,
        tuple(
            PhasePrediction(phase.name, phase.up, phase.down, _link_seconds(phase, link))
            for phase in played
        ),
        device,
        member,
        device + (member - device) * members / devices if members else device,
        spent.get("helper", 0.0),
        spent["server"],
        0.0,
        tuple(notes),
        None if network is None else str(network),
    )
    seconds = _elapsed(found, played, protocol, spent["around"], ranks, network)
    return Prediction(**vars(found) | {"measured_seconds": seconds})


def _link_seconds(phase: PhaseCosts, link: LinkModel) -> float:
    """Return the seconds of a phase on the slowest device's link, and on that of helpers."""
    up, down = phase.up + phase.member_up, phase.down + phase.member_down
    seconds = link.transfer_seconds(up, down) + link.latency_seconds(up, down)
    seconds += link.helper_transfer_seconds(phase.helper_up, phase.helper_down)
    return seconds + link.latency_seconds(phase.helper_up, phase.helper_down)


def _elapsed(
    found: Prediction,
    played: list[PhaseCosts],
    protocol: AggregationProtocol,
    around: float,
    ranks: int,
    network: Network | None,
) -> float:
    """Return the elapsed seconds of a round in one process, or on a cluster with a network."""
    (survivors,) = (p.senders for p in played if p.name == protocol.upload_phase())
    of_devices = survivors * found.mean_cpu_seconds
    if network is None:
        helpers = protocol.helpers * found.helper_cpu_seconds
        return of_devices + helpers + found.server_cpu_seconds + around
    # Every rank has a core of its own; what is around devices' work is shared out with them.
    workers = ranks - 1 - protocol.helpers
    most = math.ceil(found.devices / workers) / found.devices
    seconds = most * (of_devices + around) + found.helper_cpu_seconds + found.server_cpu_seconds
    for phase in played:
        for pattern, size in _moved(phase, most * found.devices):
            seconds += network.seconds(pattern, size, ranks, min(workers, found.devices))
    return seconds


def _moved(phase: PhaseCosts, on_a_rank: float) -> list[tuple[str, float]]:
    """Return the patterns of a phase, and the bytes of a rank's messages in each."""
    down, up = phase.down - phase.routed, phase.up - phase.routed
    moved = [
        ("route", phase.routed * on_a_rank),
        # A scatter is a gather the other way round; a broadcast reaches all devices of a rank.
        ("gather", down * on_a_rank) if phase.scattered else ("broadcast", down),
        ("gather", up * on_a_rank),
        # Each helper is on a rank of its own.
        ("broadcast", phase.helper_down),
        ("gather", phase.helper_up),
    ]
    return [(pattern, size) for pattern, size in moved if size]
