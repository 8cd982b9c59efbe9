"""Bytes of a round by formula, phase by phase and role by role.

They follow from the sizes of a protocol's messages (`AggregationProtocol.sizes`) and from its
steps, which define senders and receivers. Random quantities (the number of selected coordinates,
which neighbours drop out) enter with their expected values. Exactly floor(theta N) devices drop
out, all of them before the upload.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpcfl.algorithms.aggregation.base import AggregationProtocol, ModelSender
from hpcfl.comm.phases import ENVELOPE_BYTES, Pattern, Role
from hpcfl.errors import UsageError
from hpcfl.values import dataclass


@dataclass
class PhaseCosts:
    """Bytes and messages of a phase, or of one step."""

    name: str
    # Bytes, envelopes included, and messages of one device that sends and receives in the phase.
    up: float = 0.0
    down: float = 0.0
    messages_up: float = 0.0
    messages_down: float = 0.0
    routed: float = 0.0  # bytes in rows of a route: those sent, and as many received
    senders: int = 0
    receivers: int = 0
    helper_up: float = 0.0  # bytes of each helper
    helper_down: float = 0.0
    # Bytes of a committee member in addition to those of a device, and the number of members.
    member_up: float = 0.0
    member_down: float = 0.0
    members: int = 0

    def sends(self, size: float, senders: int, messages: float = 1) -> None:
        """Add `messages` from each sender, `size` bytes in total without envelopes."""
        self.up += size + ENVELOPE_BYTES * messages
        self.messages_up += messages
        self.senders = senders

    def receives(self, size: float, receivers: int, messages: float = 1) -> None:
        """Add `messages` to each receiver, `size` bytes in total without envelopes."""
        self.down += size + ENVELOPE_BYTES * messages
        self.messages_down += messages
        self.receivers = receivers


Phases = Mapping[str, PhaseCosts]


def exchanged(protocol: AggregationProtocol) -> Phases:
    """Return the phases of a round with the bytes of each.

    Raise UsageError if the protocol does not give the size of a message.
    """
    phases = {name: PhaseCosts(name) for name in protocol.phases()}
    _enter(protocol, [phases[step.phase] for step in protocol.steps])
    return phases


def of_steps(protocol: AggregationProtocol) -> list[PhaseCosts]:
    """Return the bytes of each step, as `exchanged` does those of phases."""
    steps = [PhaseCosts(step.phase) for step in protocol.steps]
    _enter(protocol, steps)
    return steps


def _enter(protocol: AggregationProtocol, places: Sequence[PhaseCosts]) -> None:
    """Add the bytes of each step to its place."""
    sizes = {ModelSender.send_model: 4.0 * protocol.parameters.dim} | protocol.sizes()
    plan, members = protocol.parameters, protocol.members_in_round
    before = True
    for step, phase in zip(protocol.steps, places, strict=True):
        # Devices drop out before the phase of the upload.
        before = before and step.phase != protocol.upload_phase()
        there = plan.devices - (0 if before else plan.planned_dropouts)
        if step.pattern is Pattern.LOCAL or step.wants is not None:
            continue
        if step.send not in sizes:
            raise UsageError(
                f"there is no cost model of {protocol.name!r}: its method sizes does not say how "
                f"long messages of the phase {step.phase} are; measure it with hpcfl bench"
            )
        size, gathers = sizes[step.send], step.pattern is Pattern.GATHER
        message = size + ENVELOPE_BYTES
        if step.pattern is Pattern.ROUTE and step.to is Role.COMMITTEE:
            phase.members = members
            phase.sends(size * members, there, members)
            phase.routed += phase.up
            # A member keeps its own share.
            phase.member_down += message * (there - 1)
            phase.member_up -= message
        elif step.pattern is Pattern.ROUTE:
            rows = protocol.rows_of_device
            phase.sends(size * rows, there, rows)
            phase.receives(size * rows, there, rows)
            phase.routed += message * rows
        elif step.role is Role.DEVICE and gathers:
            phase.sends(size, there)
        elif step.role is Role.DEVICE:
            phase.receives(size, there)
        else:
            of = "helper" if step.role is Role.HELPER else "member"
            way = f"{of}_{'up' if gathers else 'down'}"
            setattr(phase, way, getattr(phase, way) + message)
            phase.members = members if of == "member" else 0
