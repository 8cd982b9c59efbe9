"""Predicts a round: bytes by formula, and CPU seconds by costs learned from small real rounds.

Two times are predicted. *Modelled* is the time of a round in which each device has its own machine
and link, as :mod:`hpcfl.results.linkmodel` defines it for measured rounds: every phase lasts until
its slowest device has computed and sent and the server has then done its work. For populations see
:mod:`hpcfl.costmodel.events`. *Measured* is the time of one process on this machine.
"""

from __future__ import annotations

import copy
from typing import Any

from hpcfl.algorithms.aggregation import work
from hpcfl.algorithms.aggregation.base import AggregationProtocol
from hpcfl.algorithms.aggregation.costs import PhaseCosts, exchanged
from hpcfl.algorithms.aggregation.quantised import QuantisedProtocol
from hpcfl.algorithms.aggregation.work import Terms, far
from hpcfl.costmodel.calibration import Calibration
from hpcfl.costmodel.events import play
from hpcfl.errors import UsageError
from hpcfl.options.protocols import TransportOptions
from hpcfl.results.linkmodel import LinkModel
from hpcfl.rounds.eventclock import EventClock
from hpcfl.values import asdict, dataclass, replace

# Ratio of measured to predicted time in 90 % of rounds, of 40 sizes outside the calibration
# (benchmarks/advice.py): for a device's CPU time, and for all computing that a modelled round
# waits for.
DEVICE_WITHIN, COMPUTING_WITHIN = (0.75, 1.25), (0.8, 1.6)
# The largest rounds of benchmarks/prediction.py.
CHECKED_DEVICES, CHECKED_DIM = 100, 2_000_000
EXTRAPOLATED = (
    f"extrapolated: the model was checked for N up to {CHECKED_DEVICES} and d up to {CHECKED_DIM:,}"
)


def beyond_checked(devices: int, dim: int) -> bool:
    """Return whether a round is larger than all rounds that the model was checked with."""
    return devices > CHECKED_DEVICES or dim > CHECKED_DIM


def terms_of(protocol: AggregationProtocol) -> dict[str, Terms]:
    """Return the terms of each party's work, and of the work around it.

    The work around the parties carries messages between them in one process.
    """
    if isinstance(protocol, QuantisedProtocol) and protocol.noise is not None:
        raise UsageError(
            "predictions do not cover the noise of devices: predict the protocol without it"
        )
    terms = work.terms(protocol)
    phases, devices = [*exchanged(protocol).values()], protocol.parameters.devices
    upload = protocol.upload_phase()
    routed = devices * sum(phase.routed for phase in phases)
    to_members = sum(phase.members * (phase.member_up + phase.member_down) for phase in phases)
    rows = sum(phase.messages_up for phase in phases if phase.routed)
    around = {"devices": devices, "rows": devices * rows, "helpers": protocol.helpers}
    # The work of dropped devices is counted here, because other terms only cover survivors.
    dropped = devices - max(phase.senders for phase in phases if phase.name == upload)
    around |= {"dropped": dropped, "rows of dropped": dropped * rows}
    if TransportOptions in protocol.options and protocol.parameters.transport_keys == "round":
        agreed = {party: own["peers"] for party, own in terms.items() if "peers" in own}
        around["transport keys of dropped"] = dropped * agreed["device"]
        for party, peers in agreed.items():
            terms[party] = terms[party] | {"transport keys": peers}
    around |= far("values", devices * protocol.parameters.dim)
    around |= far("routed bytes", (routed + to_members) / 8)
    return terms | {"around": around}


@dataclass(frozen=True)
class PhasePrediction:
    """Traffic of a phase: bytes of a device that takes part, and seconds on the links."""

    name: str
    bytes_up: float
    bytes_down: float
    link_seconds: float


@dataclass(frozen=True)
class Prediction:
    """The predicted costs of a round."""

    protocol: str
    devices: int
    dim: int
    phases: tuple[PhasePrediction, ...]
    device_cpu_seconds: float  # of a device outside the committee
    member_cpu_seconds: float  # of a committee member, its device work included; 0 without one
    mean_cpu_seconds: float  # mean over all devices, members included
    helper_cpu_seconds: float  # of each helper; 0 without helpers
    server_cpu_seconds: float
    measured_seconds: float  # in one process on this machine
    notes: tuple[str, ...]  # caveats
    # With a population: by how much computing prolongs a modelled round, at least, as predicted and
    # at most. Its phases have the seconds of a round in which computing takes no time.
    prolonged_seconds: tuple[float, ...] | None = None

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
        if self.prolonged_seconds is not None:
            return self.prolonged_seconds[1]
        slowest = self.member_cpu_seconds or self.device_cpu_seconds
        return slowest + self.helper_cpu_seconds + self.server_cpu_seconds

    @property
    def modelled_seconds(self) -> float:
        return self.link_seconds + self.computing_seconds

    @property
    def modelled_within(self) -> tuple[float, float]:
        """The range of 90 % of modelled rounds, in seconds; only computing is uncertain."""
        least, most = (factor * self.computing_seconds for factor in COMPUTING_WITHIN)
        if self.prolonged_seconds is not None:
            least, _, most = self.prolonged_seconds
        return self.link_seconds + least, self.link_seconds + most

    def as_dict(self) -> dict[str, Any]:
        """Return all fields and sums, for JSON."""
        sums = ("bytes_up", "bytes_down", "link_seconds", "computing_seconds", "modelled_seconds")
        found = asdict(self) | {name: getattr(self, name) for name in sums}
        del found["prolonged_seconds"]  # the difference of other sums
        return found


def predict(
    protocol: AggregationProtocol,
    calibration: Calibration,
    link: LinkModel | None = None,
    clock: EventClock | None = None,
) -> Prediction:
    """Predict a round's modelled time on links and its measured time in one process here.

    With `clock`, the modelled time is that of its population. Raise UsageError if the protocol does
    not declare its terms, if they are not calibrated, or if too few devices are in time.
    """
    parameters, link = protocol.parameters, link or LinkModel()
    played, spent = [*exchanged(protocol).values()], _spent(protocol, calibration)
    (survivors,) = (phase.senders for phase in played if phase.name == protocol.upload_phase())
    on_links, prolonged = [_link_seconds(phase, link) for phase in played], None
    notes = work.notes(protocol)
    if clock is not None:
        _, linked, survivors = play(protocol, clock, spent)
        spent = _spent(_left(protocol, linked, survivors), calibration)
        factors = (0.0, COMPUTING_WITHIN[0], 1.0, COMPUTING_WITHIN[1])
        on_links, *others = (play(protocol, clock, spent, factor)[0] for factor in factors)
        prolonged = tuple(sum(seconds) - sum(on_links) for seconds in others)
        if survivors < parameters.devices:
            notes.append(f"{survivors} of {parameters.devices} devices are in the sum")
    members, devices = max(phase.members for phase in played), parameters.devices
    device, member, helper = spent["device"], spent.get("member", 0.0), spent.get("helper", 0.0)
    mean = device + (member - device) * members / devices if members else device
    one_process = survivors * mean + protocol.helpers * helper + spent["server"] + spent["around"]
    if beyond_checked(devices, parameters.dim):
        notes.append(EXTRAPOLATED)
    return Prediction(
        protocol.name,
        devices,
        parameters.dim,
        tuple(
            PhasePrediction(phase.name, phase.up, phase.down, seconds)
            for phase, seconds in zip(played, on_links, strict=True)
        ),
        device,
        member,
        mean,
        helper,
        spent["server"],
        one_process,
        tuple(notes),
        prolonged,
    )


def _spent(protocol: AggregationProtocol, calibration: Calibration) -> dict[str, float]:
    """Return the seconds of each party's work, and of the work around it."""
    terms = terms_of(protocol)
    return {party: calibration.seconds(protocol, party, own) for party, own in terms.items()}


def _left(protocol: AggregationProtocol, linked: int, in_sum: int) -> AggregationProtocol:
    """Return the planned protocol with the devices that were there, for the terms of its work.

    Only the masks of devices that leave once they are linked with others must be removed.
    """
    left, devices = copy.copy(protocol), min(linked, 2 * in_sum - 1)  # Plans keep more than half.
    # The quarter makes dropout * devices round down to the difference.
    dropout = (devices - in_sum + 0.25) / devices
    left.parameters = replace(protocol.parameters, devices=devices, dropout=dropout)
    return left


def _link_seconds(phase: PhaseCosts, link: LinkModel) -> float:
    """Return the seconds of a phase on the slowest device's link plus those on a helper's link."""
    up, down = phase.up + phase.member_up, phase.down + phase.member_down
    seconds = link.transfer_seconds(up, down) + link.latency_seconds(up, down)
    seconds += link.helper_transfer_seconds(phase.helper_up, phase.helper_down)
    return seconds + link.latency_seconds(phase.helper_up, phase.helper_down)
