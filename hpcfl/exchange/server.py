"""The server's side of a round as a sequence of exchanges.

A framework sends each request of an exchange to its client, and returns the replies. The round
itself is that of :mod:`hpcfl.rounds.driver`: it plays its steps over a transport whose messages
wait until a step needs replies, and then leave together, one request to each client.
"""

from __future__ import annotations

import queue
import secrets
import threading
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.aggregation.base import Aggregate, AggregationProtocol
from hpcfl.algorithms.aggregation.quantised import QuantisedProtocol
from hpcfl.comm import envelope
from hpcfl.comm import rows as rows_of
from hpcfl.comm.loopback import Loopback
from hpcfl.comm.phases import Payload, Role, Rows, Step, ends_with_messages, phase_names
from hpcfl.comm.placement import Placement
from hpcfl.comm.rows import Received
from hpcfl.comm.transport import Produce
from hpcfl.crypto.keys import SecretSource, system_secrets
from hpcfl.errors import HpcflError
from hpcfl.exchange.request import Offer, Request
from hpcfl.options.definition import asked_for, make
from hpcfl.options.protocols import ProtocolOptions, QuantisedOptions, refuse, unused
from hpcfl.rounds.build import build, without_dropouts
from hpcfl.rounds.driver import Round, RoundConfig
from hpcfl.rounds.enrolment import NO_ROUND
from hpcfl.rounds.ledger import Ledger
from hpcfl.values import dataclass, replace

Replies = Mapping[int, bytes]
Requests = Mapping[int, bytes]
Ask = Callable[[Requests], Replies]


@dataclass(frozen=True)
class Exchange:
    """Requests to clients, by id, which each answer with one reply."""

    name: str  # of the step that they answer
    upload: bool  # whether the replies hold the devices' vectors
    requests: Mapping[int, bytes]


class _Abandoned(Exception):
    """Nobody will answer any more."""


class _Waiting(Loopback):
    """Messages that wait for the next exchange; the server is alone in its process.

    Clients are devices, with ids 0 to N - 1, and helpers, from N on. A client that does not answer
    an exchange, or refuses to, is asked no more.
    """

    name = "exchanges"

    def __init__(self, offer: Offer, steps: Sequence[Step], server: Any) -> None:
        helpers = offer.protocol.helpers
        super().__init__(offer.devices, helpers)
        # All clients are elsewhere.
        homes = np.ones(offer.devices + helpers, np.int64)
        self.placement = Placement(homes, ranks=2, helpers=helpers)
        self.local_devices, self.local_helpers = [], []
        self.asked: queue.SimpleQueue[Exchange | BaseException | None] = queue.SimpleQueue()
        self.answered: queue.SimpleQueue[Replies | None] = queue.SimpleQueue()
        self._offer, self._steps, self._server = offer, steps, server
        self._there = set(range(self.placement.parties))
        self._waiting: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
        # By step: messages that came together with those of an earlier one.
        self._early: dict[int, dict[int, Payload]] = {}
        # Refusals that came in place of rows; the server hears of them in the next gather.
        self._refusals: dict[int, Payload] = {}

    def _asked(self, role: Role) -> list[int]:
        devices = self.placement.devices
        if role is Role.HELPER:
            ids: Iterable[int] = range(devices, self.placement.parties)
        else:
            ids = self._server.committee if role is Role.COMMITTEE else range(devices)
        return [id for id in ids if id in self._there]

    def _exchange(self) -> Iterator[tuple[int, Payload]]:
        """Ask for the messages of a step, and return them by id."""
        if self.step in self._early:
            yield from self._early.pop(self.step).items()
            return
        step, asked = self._steps[self.step], [self.step]
        # Devices do not wait for steps that are optional, or only of the committee.
        following = [
            n
            for n, one in enumerate(self._steps)
            if n > self.step and one.wants is None and one.role is not Role.COMMITTEE
        ]
        if following and self._steps[following[0]].early and step.role is Role.DEVICE:
            asked.append(following[0])
        ids, last = self._asked(step.role), self._steps[asked[-1]]
        replies = self._answers(last.name, last.upload, ids, asked)
        self._there -= {*ids} - {*replies}
        found: dict[int, dict[int, Payload]] = {number: {} for number in asked}
        for id in sorted({*ids} & {*replies}):
            for number, message in zip(asked, _unpacked(replies[id]), strict=False):
                found[number][id] = reply = np.frombuffer(message, np.uint8)
                if reply[1:2].tolist() == [envelope.REFUSAL]:
                    self._there.discard(id)
        self._early |= {number: found[number] for number in asked[1:]}
        yield from found[self.step].items()

    def _answers(self, name: str, upload: bool, ids: list[int], asked: Sequence[int]) -> Replies:
        """Let clients have what waits for them; return their replies."""
        requests = {
            id: Request(self._offer, id, asked, self._waiting.pop(id, [])).packed() for id in ids
        }
        if not requests:
            return {}
        self.asked.put(Exchange(name, upload, requests))
        replies = self.answered.get()
        if replies is None:
            raise _Abandoned
        return replies

    def deliver(self) -> None:
        """Deliver the last messages of a round, if they go to clients."""
        if ends_with_messages(self._steps):
            self._answers("delivered", False, [*self._there & {*self._waiting}], ())

    def broadcast(self, message: Payload | None, error: HpcflError | None = None) -> Payload:
        self.raise_everywhere(error)
        assert message is not None
        waiting = self.step, message.tobytes()
        for id in self._asked(self._steps[self.step].role):
            self._waiting[id].append(waiting)
        return message

    def scatter(self, receivers: Sequence[int], produce: Produce) -> Iterator[tuple[int, Payload]]:
        for id in self._asked(Role.DEVICE):
            self._waiting[id].append((self.step, produce(id).tobytes()))
        return iter(())

    def gather(
        self, senders: Sequence[int], produce: Produce, largest: int
    ) -> Iterator[tuple[int, Payload]]:
        yield from self._refusals.items()
        self._refusals.clear()
        yield from self._exchange()

    def route(
        self, senders: Sequence[int], rows: Iterable[Rows], width: int
    ) -> tuple[Iterator[tuple[int, Received]], NDArray[np.bool_]]:
        step, devices = self._steps[self.step], self.placement.devices
        sealed: dict[int, Rows] = {}
        for id, reply in self._exchange():
            if reply[1:2].tolist() == [envelope.REFUSAL]:
                self._refusals[id] = reply
            elif id not in self._there:
                continue  # it refuses a later step, which hears of it
            elif reply.size and not reply.size % width:
                sealed[id] = reply.reshape(-1, width)
        took_part = np.zeros(self.placement.parties, np.bool_)
        took_part[[*sealed]] = True
        # By receiver and sender; the first row of a pair counts.
        found: dict[int, dict[int, bytes]] = defaultdict(dict)
        for batch in rows_of.label([*sealed], sealed.values(), width, devices):
            pairs = zip(rows_of.receivers_of(batch), rows_of.senders_of(batch), batch, strict=True)
            for receiver, sender, row in pairs:
                found[int(receiver)].setdefault(int(sender), row.tobytes())
        empty = bytes(width)
        for id in self._asked(step.to):
            # A device learns which of those that it sent rows to took part.
            addressed = [*sealed]
            if step.to is not Role.COMMITTEE:
                own = sealed.get(id, np.empty((0, width), np.uint8))
                addressed = sorted({*envelope.read_headers(own)["receiver"].tolist()} & {*sealed})
            mine = found[id]
            message = b"".join(
                mine.get(other, other.to_bytes(rows_of.LABEL_BYTES, "little") + empty)
                for other in addressed
                if other != id
            )
            self._waiting[id].append((self.step, message))
        return iter(()), took_part


def _unpacked(reply: bytes) -> list[bytes]:
    """Return the messages of a reply; one that is malformed stands for itself."""
    try:
        messages = msgpack.unpackb(reply)
        if isinstance(messages, list) and all(isinstance(one, bytes) for one in messages):
            return messages
    except (ValueError, msgpack.UnpackException):
        pass
    return [reply]


class Session:
    """The server's side of a run: its rounds, after an enrolment of all devices if there is one.

    `options` are those of the protocol, by the names of :class:`BenchOptions`. Without `levels`, a
    protocol that quantises takes the most with which no sum can wrap around. `about` holds what the
    makers of vectors have to agree on; clients with another one would mask otherwise.
    """

    def __init__(
        self,
        protocol: str,
        dim: int,
        run: str | None = None,
        about: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.run = run or secrets.token_hex(16)
        self.name, self.dim, self.about = protocol, dim, about or {}
        self._options = make(ProtocolOptions, without_dropouts(protocol, options))
        self._population = 0
        kind = find(protocol)
        # The rounds of exchanges have no MPI that could sum uploads.
        refuse(options, unused(ProtocolOptions, kind.options) | {"upload"}, protocol)
        self.helpers = kind.helpers_of(self._options.helpers)
        # Whether devices enrol before the first round.
        kept = self._options.transport_keys == "run"
        self.enrols = kept or kind.enrolment(2, kind.default_helpers) is not None

    def _protocol(self, devices: int) -> AggregationProtocol:
        """Return the protocol for a number of devices, with all its levels."""
        protocol, _ = build(self.name, self._options, devices, self.dim)
        if self._options.levels is None and QuantisedOptions in protocol.options:
            assert isinstance(protocol, QuantisedProtocol)
            parameters = replace(protocol.parameters, levels=protocol.largest_levels())
            protocol = type(protocol)(parameters)
        return protocol

    def _offer(self, round_index: int, devices: int, members: Sequence[int]) -> Offer:
        parameters = asked_for(self._protocol(devices).parameters)
        members, population = (members, self._population) if self.enrols else ((), 0)
        about = self.name, parameters, round_index, members, population, self.about
        return Offer(self.run, *about)

    def enrol(self, devices: int) -> ServerRound | None:
        """Return the enrolment of devices 0 to n - 1, and of the helpers; None if there is none."""
        self._population = devices
        offer = self._offer(NO_ROUND, devices, ())
        enrolment = offer.enrolment
        if enrolment is None or not enrolment.steps:
            return None
        return ServerRound(offer, enrolment.steps, enrolment.server(), enrolment.largest_message)

    def round(
        self, index: int, members: Sequence[int], source: SecretSource = system_secrets
    ) -> ServerRound:
        """Return a round of some devices, by their enrolment ids in increasing order.

        They are the devices 0 to N - 1 of the round. Raise UsageError if the protocol cannot be
        played by so many.
        """
        offer = self._offer(index, len(members), members)
        protocol = offer.protocol
        if self.enrols:
            protocol.join({}, members, self._population)
        server = protocol.server(index, np.empty(0, np.float32), source)
        return ServerRound(offer, protocol.steps, server, protocol.largest_message)


class ServerRound:
    """The server's side of a round, or of an enrolment."""

    def __init__(self, offer: Offer, steps: tuple[Step, ...], server: Any, largest: int) -> None:
        self.offer, self.server = offer, server
        self._transport = _Waiting(offer, steps, server)
        ledger = Ledger.of(phase_names(steps), self._transport)
        config = RoundConfig(index=offer.round, dim=0, largest_message=largest)
        self._round = Round(
            *(steps, self._transport, ledger, config), devices={}, server=server, inputs=np.empty
        )

    def aggregate(self) -> Aggregate:
        """Return the result of a round, after all its exchanges."""
        return self.offer.protocol.aggregate(self.server)

    @property
    def refused(self) -> Mapping[int, HpcflError]:
        """The devices whose messages were refused or that left, with the reasons."""
        return self._round.refused

    def up_to_upload(self, ask: Ask, replies: Replies | None = None) -> Requests:
        """Return the requests for uploads, after the exchanges before them; {} after the last one.

        `ask` plays an exchange: it returns the replies to requests. `replies` are those to the
        requests that this function returned before.
        """
        try:
            exchange = self._going_on.send(replies)
            while not exchange.upload:
                exchange = self._going_on.send(ask(exchange.requests))
        except StopIteration:
            return {}
        return exchange.requests

    def play(self, ask: Ask) -> None:
        """Play all exchanges; raise HpcflError if the round cannot end."""
        requests = self.up_to_upload(ask)
        while requests:
            requests = self.up_to_upload(ask, ask(requests))

    @cached_property
    def _going_on(self) -> Generator[Exchange, Replies | None, None]:
        return self.exchanges()

    def exchanges(self) -> Generator[Exchange, Replies | None, None]:
        """Yield the exchanges of the round, in order; send the replies of each, by id.

        A client without a reply leaves the round. Raise HpcflError if the round cannot end. The
        steps are played in a thread, because they call for replies and the caller, too, wants to.
        """
        thread, transport = threading.Thread(target=self._play, daemon=True), self._transport
        thread.start()
        try:
            while (exchange := transport.asked.get()) is not None:
                if isinstance(exchange, BaseException):
                    raise exchange
                transport.answered.put((yield exchange) or {})
        finally:
            transport.answered.put(None)
            thread.join()

    def _play(self) -> None:
        try:
            self._round.play()
            self._transport.deliver()
            self._transport.asked.put(None)
        except BaseException as error:
            self._transport.asked.put(error)
