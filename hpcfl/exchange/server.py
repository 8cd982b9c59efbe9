"""The server's side of a round as a sequence of exchanges.

A framework sends each request of an exchange to its client, and returns the replies. The round
itself is that of :mod:`hpcfl.rounds.driver`: it plays its steps over a transport whose messages
wait until a step needs replies, and then leave together, one request to each client.
"""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.comm import envelope
from hpcfl.comm import rows as rows_of
from hpcfl.comm.loopback import Loopback
from hpcfl.comm.phases import Payload, Role, Rows, Step, ends_with_messages, phase_names
from hpcfl.comm.placement import Placement
from hpcfl.comm.rows import Received
from hpcfl.comm.transport import AddInto, Produce
from hpcfl.crypto.groups import Elements
from hpcfl.errors import HpcflError, UsageError
from hpcfl.exchange import request
from hpcfl.rounds.driver import Round, RoundConfig
from hpcfl.rounds.ledger import Ledger
from hpcfl.values import dataclass

Replies = Mapping[int, bytes]


@dataclass(frozen=True)
class Exchange:
    """Requests to clients, by id, which each answer with one reply."""

    name: str  # of the step that they answer
    role: Role
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

    def __init__(
        self,
        steps: Sequence[Step],
        placement: Placement,
        answers: Callable[[Exchange], Replies],
        members: Callable[[], Iterable[int]],  # of the committee
    ) -> None:
        super().__init__(placement.devices, placement.helpers)
        self.placement, self.local_devices, self.local_helpers = placement, [], []
        self._steps = steps
        self._answers = answers
        self._members = members
        self._there = set(range(placement.parties))
        self._waiting: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
        # Refusals that came in place of rows; the server hears of them in the next gather.
        self._refusals: dict[int, Payload] = {}

    def _asked(self, role: Role) -> list[int]:
        devices = self.placement.devices
        if role is Role.HELPER:
            ids: Iterable[int] = range(devices, self.placement.parties)
        else:
            ids = self._members() if role is Role.COMMITTEE else range(devices)
        return [id for id in ids if id in self._there]

    def _exchange(self) -> Iterator[tuple[int, Payload]]:
        """Ask for the replies of a step, and return them by id."""
        step = self._steps[self.step]
        ids = self._asked(step.role)
        requests = {id: request.pack(self.step, self._waiting.pop(id, [])) for id in ids}
        exchange = Exchange(step.name, step.role, step.upload, requests)
        replies = self._answers(exchange) if requests else {}
        self._there -= {*ids} - {*replies}
        for id in sorted({*ids} & {*replies}):
            reply = np.frombuffer(replies[id], np.uint8)
            if reply[1:2].tolist() == [envelope.REFUSAL]:
                self._there.discard(id)
            yield id, reply

    def deliver(self) -> None:
        """Deliver the last messages of a round, if they go to clients."""
        if not ends_with_messages(self._steps):
            return
        requests = {
            id: request.pack(request.NOTHING, messages)
            for id, messages in self._waiting.items()
            if id in self._there
        }
        if requests:
            self._answers(Exchange("delivered", Role.DEVICE, False, requests))

    def select(self, ids: Sequence[int]) -> _Waiting:
        return _Waiting(self._steps, self.placement.select(ids), self._answers, self._members)

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

    def reduce(
        self, senders: Sequence[int], produce: Produce, add_into: AddInto, zeros: Elements
    ) -> tuple[list[int], Elements]:
        raise UsageError("only MPI sums uploads on the way to the server")

    def route(
        self, senders: Sequence[int], rows: Iterable[Rows], width: int
    ) -> tuple[Iterator[tuple[int, Received]], NDArray[np.bool_]]:
        step, devices = self._steps[self.step], self.placement.devices
        sealed: dict[int, Rows] = {}
        for id, reply in self._exchange():
            if id not in self._there:
                self._refusals[id] = reply
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


class ServerRound:
    """The server's side of a round, or of an enrolment.

    `server` is the protocol's server of the round. Afterwards it has the sum, and `refused` the
    devices whose messages it refused or that left, with the reasons.
    """

    def __init__(
        self, steps: tuple[Step, ...], server: Any, config: RoundConfig, devices: int, helpers: int
    ) -> None:
        self._asked: queue.SimpleQueue[Exchange | BaseException | None] = queue.SimpleQueue()
        self._answered: queue.SimpleQueue[Replies | None] = queue.SimpleQueue()
        # All clients are elsewhere.
        placement = Placement(np.ones(devices + helpers, np.int64), ranks=2, helpers=helpers)
        self._transport = _Waiting(
            steps, placement, self._answers, lambda: getattr(server, "committee", ())
        )
        ledger = Ledger.of(phase_names(steps), self._transport)
        self._round = Round(
            *(steps, self._transport, ledger, config), devices={}, server=server, inputs=np.empty
        )

    @property
    def refused(self) -> Mapping[int, HpcflError]:
        """The refused devices, with the reasons."""
        return self._round.refused

    def exchanges(self) -> Generator[Exchange, Replies, None]:
        """Yield the exchanges of the round, in order; send the replies of each, by id.

        A client without a reply leaves the round. Raise HpcflError if the round cannot end. The
        steps are played in a thread, because they call for replies and the caller, too, wants to.
        """
        thread = threading.Thread(target=self._play, daemon=True)
        thread.start()
        try:
            while (exchange := self._asked.get()) is not None:
                if isinstance(exchange, BaseException):
                    raise exchange
                self._answered.put((yield exchange))
        finally:
            self._answered.put(None)
            thread.join()

    def _play(self) -> None:
        try:
            self._round.play()
            self._transport.deliver()
            self._asked.put(None)
        except BaseException as error:
            self._asked.put(error)

    def _answers(self, exchange: Exchange) -> Replies:
        self._asked.put(exchange)
        replies = self._answered.get()
        if replies is None:
            raise _Abandoned
        return replies
