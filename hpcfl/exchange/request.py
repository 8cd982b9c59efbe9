"""What a request says: which round of which run it belongs to, messages, and the steps to answer.

A request is a list in MessagePack: the offer, the receiver's number, the steps to answer, and
messages, each behind its step. The message of a route is a list of sealed rows, each behind its
sender's id, four bytes. The offer comes with every request, because a framework's client may have
kept nothing but sealed bytes since the last one. A reply is a list of a message for each step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgpack

from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm import envelope
from hpcfl.errors import MessageError, UsageError
from hpcfl.options.definition import make, options_of
from hpcfl.options.protocols import ProtocolOptions, refuse, unused
from hpcfl.values import dataclass

LONGEST = 100  # name of a run, in characters

if TYPE_CHECKING:
    from hpcfl.algorithms.aggregation.base import AggregationProtocol, Enrolment

Messages = Sequence[tuple[int, bytes]]


@dataclass(frozen=True)
class Offer:
    """A round, or the enrolment before all rounds, as the server describes it to its clients."""

    run: str  # what tells the run from all others
    name: str  # of the protocol
    parameters: Mapping[str, Any]  # those that are not the default
    round: int  # `rounds.enrolment.NO_ROUND` for the enrolment
    # The enrolment ids of the devices 0 to N - 1; empty if the protocol has no enrolment.
    members: Sequence[int]
    population: int  # the number of devices that enrolled
    about: Mapping[str, Any]  # what the framework's code has to agree on

    @property
    def devices(self) -> int:
        """Number of devices in the round."""
        found: int = self.parameters["devices"]
        return found

    @cached_property
    def digest(self) -> bytes:
        """Digest of all values, 32 bytes."""
        return hashlib.sha256(msgpack.packb(self.plain())).digest()

    def plain(self) -> list[Any]:
        """Return all values, as a request carries them."""
        about = [self.run, self.name, dict(self.parameters)]
        return [*about, self.round, [*self.members], self.population, dict(self.about)]

    @property
    def enrols(self) -> bool:
        """Whether devices exchange messages before the first round."""
        return self.enrolment is not None and bool(self.enrolment.steps)

    @property
    def terms(self) -> list[Any]:
        """What an enrolment was for; the secrets that devices agreed on serve nothing else."""
        plan = self.protocol.parameters
        return [self.name, plan.transport_keys, self.population, self.protocol.helpers]

    @cached_property
    def protocol(self) -> AggregationProtocol:
        """The protocol, whose keys belong to this offer alone; UsageError if it cannot be.

        Its model is empty: a framework sends the model by itself.
        """
        # Weights, for instance, could leave one vector alone in a sum.
        if self.parameters.keys() - options_of(Parameters).keys():
            raise UsageError("a server offers options of the protocol, and no other parameters")
        kind = find(self.name)
        refuse(self.parameters, unused(ProtocolOptions, kind.options), self.name)
        parameters = make(Parameters, self.parameters)
        if parameters.security == "active":
            raise UsageError(
                "--security active needs public keys that do not come from the server, and "
                "frameworks have none: leave it out"
            )
        protocol = kind(parameters)
        protocol.model_dim, protocol.early_upload = 0, True
        protocol.run = f" run {self.run} offer {self.digest.hex()}"
        return protocol

    @cached_property
    def enrolment(self) -> Enrolment | None:
        """What devices do before all rounds, or None."""
        from hpcfl.algorithms.aggregation.enrolment import transport_keys

        protocol = self.protocol
        if protocol.parameters.transport_keys == "run":
            return transport_keys(self.population)
        return protocol.enrolment(self.population, protocol.helpers)


@dataclass(frozen=True)
class Request:
    """A request to one client, a device with an id below N or a helper with one from N on."""

    offer: Offer
    id: int
    asked: Sequence[int]  # the numbers of the steps to answer; none if it only delivers messages
    messages: Messages  # each with the number of its step

    @property
    def address(self) -> int:
        """The receiver's number in envelopes."""
        return address_of(self.id, self.offer.devices)

    def refused(self, error: Exception) -> bytes:
        """Return the message with which the receiver leaves the round."""
        return envelope.seal_refusal(str(error), self.offer.round, self.address).tobytes()

    def packed(self) -> bytes:
        """Return the bytes of the request."""
        packed: bytes = msgpack.packb(
            [self.offer.plain(), self.id, [*self.asked], [*self.messages]]
        )
        return packed

    @classmethod
    def read(cls, raw: bytes) -> Request:
        """Return the request of these bytes; MessageError if they hold none."""
        try:
            values, id, asked, messages = msgpack.unpackb(raw)
            offer = Offer(*values)
            numbers = [id, *asked, offer.devices, offer.round, offer.population, *offer.members]
            numbers += [step for step, _ in messages]
            if not (
                all(type(number) is int and 0 <= number < 2**32 for number in numbers)
                and all(type(message) is bytes for _, message in messages)
                and type(offer.run) is str
                and 0 < len(offer.run) <= LONGEST
                and [*offer.members] == sorted({*offer.members, -1})[1:]
                and max(offer.members, default=-1) < max(offer.population, 1)
            ):
                raise TypeError
        except (KeyError, TypeError, ValueError, msgpack.UnpackException):
            raise MessageError("request", "the server", "it is malformed") from None
        return cls(offer, id, asked, [(step, message) for step, message in messages])


def address_of(id: int, devices: int) -> int:
    """Return the number in envelopes of a device, or of a helper with an id from N on."""
    return id if id < devices else envelope.HELPERS + id - devices
