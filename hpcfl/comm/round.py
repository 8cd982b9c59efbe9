"""One round of a protocol: plays its steps over a transport and enters what they cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.comm import envelope
from hpcfl.comm.ledger import Ledger
from hpcfl.comm.phases import Pattern, Payload, Step
from hpcfl.comm.transport import Transport
from hpcfl.crypto.groups import Group
from hpcfl.errors import HpcflError, MessageError

Inputs = Callable[[int], NDArray[np.floating]]
Prepare = Callable[[Mapping[int, Any]], None]
Listen = Callable[[str, int, Payload], None]


class Round:
    """Plays one round on this rank.

    Parameters
    ----------
    steps : tuple of Step
        The protocol.
    transport : Transport
        How messages move.
    ledger : Ledger
        Where costs are entered.
    index : int
        Number of the round, part of every envelope.
    devices : mapping of int to device
        The devices of this rank.
    server : server or None
        The server, on the rank that holds it.
    inputs : callable
        Returns a device's vector; called when the device uploads, and not entered as CPU time.
    prepare : callable, optional
        Called with the live devices of this rank before the upload, outside all timed regions: for
        vectors that take long to make. All ranks wait for each other afterwards.
    dropouts : mapping of int to str
        The phase before which a device disappears, for every device that does.
    dim : int
        Number d of coordinates of a vector.
    largest_message : int
        No device sends more than this to the server at once, in bytes, less envelope.
    reduce_group : Group or None
        Sum the uploads within the transport in this group instead of gathering them.
    listen : callable, optional
        Called at the server with phase, sender and sealed message of everything gathered, as it
        comes. It may keep the message.

    Attributes
    ----------
    prepare_seconds : float
        Elapsed time that `prepare` took, the wait for the other ranks included.
    """

    def __init__(
        self,
        steps: tuple[Step, ...],
        transport: Transport,
        ledger: Ledger,
        *,
        index: int,
        devices: Mapping[int, Any],
        server: Any | None,
        inputs: Inputs,
        prepare: Prepare | None = None,
        dropouts: Mapping[int, str],
        dim: int,
        largest_message: int,
        reduce_group: Group | None = None,
        listen: Listen | None = None,
    ) -> None:
        self._steps = steps
        self._transport = transport
        self._ledger = ledger
        self._index = index
        self._live = dict(devices)
        self._server = server
        self._inputs = inputs
        self._prepare = prepare
        self.prepare_seconds = 0.0
        self._dropouts = dropouts
        self._dim = dim
        self._largest_message = largest_message
        self._reduce_group = reduce_group
        self._listen = listen
        self._server_error: HpcflError | None = None

    def play(self) -> None:
        """Play all steps.

        Raises
        ------
        HpcflError
            On every rank, if the server cannot go on; on one rank, if one of its devices cannot.
        """
        play = {
            Pattern.BROADCAST: self._broadcast,
            Pattern.SCATTER: self._scatter,
            Pattern.GATHER: self._gather,
            Pattern.ROUTE: self._route,
            Pattern.LOCAL: self._local,
        }
        for number, step in enumerate(self._steps):
            for device in [id for id in self._live if self._dropouts.get(id) == step.phase]:
                del self._live[device]
            if step.upload and self._prepare is not None:
                start = time.perf_counter()
                self._prepare(self._live)
                self._transport.wait_for_all()
                self.prepare_seconds = time.perf_counter() - start
            with self._ledger.phase(step.phase):
                play[step.pattern](number, step)
        self._transport.agree(self._server_error)

    def _broadcast(self, number: int, step: Step) -> None:
        message = None
        if self._server is not None:
            payload = self._serve(step, "send")
            if payload is not None:
                message = self._seal(number, envelope.SERVER, envelope.ALL, payload)
        message = self._transport.broadcast(message, self._server_error)
        for id, device in self._live.items():
            with self._ledger.work(step.phase, id):
                payload = envelope.unseal(
                    message, step.phase, number, self._index, envelope.SERVER, envelope.ALL
                )
                getattr(device, f"receive_{step.phase}")(payload)
            self._ledger.received(step.phase, id, message.size)

    def _scatter(self, number: int, step: Step) -> None:
        def produce(id: int) -> Payload:
            payload = self._serve(step, "send", id)
            if payload is None:
                return np.empty(0, np.uint8)
            return self._seal(number, envelope.SERVER, id, payload)

        self._transport.agree(self._server_error)
        left_out = 0
        for id, message in self._transport.scatter(list(self._live), produce):
            if not message.size:
                left_out += 1
                continue
            with self._ledger.work(step.phase, id):
                payload = envelope.unseal(
                    message, step.phase, number, self._index, envelope.SERVER, id
                )
                getattr(self._live[id], f"receive_{step.phase}")(payload)
            self._ledger.received(step.phase, id, message.size)
        # An error of the server comes first: it is why messages are missing.
        self._transport.agree(self._server_error)
        if left_out:
            raise MessageError(step.phase, "the server", f"{left_out} devices got no message")

    def _gather(self, number: int, step: Step) -> None:
        if step.upload and self._reduce_group is not None:
            self._reduce(step, self._reduce_group)
            return

        def produce(id: int) -> Payload:
            payload = self._produce(step, id)
            with self._ledger.work(step.phase, id):
                message = self._seal(number, id, envelope.SERVER, payload)
            self._ledger.sent(step.phase, id, message.size)
            return message

        largest = envelope.BYTES + self._largest_message
        for id, message in self._transport.gather(list(self._live), produce, largest):
            if self._listen is not None:
                self._listen(step.phase, id, message)
            self._serve(step, "receive", id, message, number)
        self._finish(step)

    def _reduce(self, step: Step, group: Group) -> None:
        def produce(id: int) -> Payload:
            payload = self._produce(step, id)
            self._ledger.sent(step.phase, id, payload.nbytes)
            return payload

        result = self._transport.reduce(list(self._live), produce, group, self._dim)
        if result is not None:
            self._serve(step, "receive_sum", *result)
        self._finish(step)

    def _route(self, number: int, step: Step) -> None:
        rows = []
        for id in self._live:
            with self._ledger.work(step.phase, id):
                receivers, payloads = getattr(self._live[id], f"send_{step.phase}")()
                sealed = envelope.seal_rows(number, self._index, id, receivers, payloads)
            self._ledger.sent(step.phase, id, sealed.size, len(sealed))
            rows.append(sealed)
        present = self._transport.present(list(self._live))
        if present is not None:
            self._serve(step, "receive", present)
        self._transport.agree(self._server_error)
        received = self._transport.route(list(self._live), rows)
        nothing = np.empty((0, envelope.BYTES), np.uint8)
        for id, device in self._live.items():
            mine = received.get(id, nothing)
            with self._ledger.work(step.phase, id):
                senders, payloads = envelope.unseal_rows(mine, step.phase, number, self._index, id)
                getattr(device, f"receive_{step.phase}")(senders, payloads)
            self._ledger.received(step.phase, id, mine.size, len(mine))

    def _local(self, number: int, step: Step) -> None:
        self._finish(step)

    def _produce(self, step: Step, id: int) -> Payload:
        """Return what a device sends, as bytes; the device's vector is made outside its time."""
        arguments = [self._inputs(id)] if step.upload else []
        with self._ledger.work(step.phase, id):
            payload = getattr(self._live[id], f"send_{step.phase}")(*arguments)
        return payload.reshape(-1).view(np.uint8)

    def _seal(self, number: int, sender: int, receiver: int, payload: Payload) -> Payload:
        return envelope.seal(number, self._index, sender, receiver, payload)

    def _finish(self, step: Step) -> None:
        if self._server is not None and hasattr(self._server, f"finish_{step.phase}"):
            self._serve(step, "finish")

    def _serve(self, step: Step, action: str, *arguments: Any) -> Any:
        """Let the server act; keep its error until the devices can be told."""
        if self._server_error is not None:
            return None
        try:
            with self._ledger.work(step.phase, None):
                if action == "receive" and step.pattern is Pattern.GATHER:
                    id, message, number = arguments
                    payload = envelope.unseal(
                        message, step.phase, number, self._index, id, envelope.SERVER
                    )
                    arguments = (id, payload)
                return getattr(self._server, f"{action}_{step.phase}")(*arguments)
        except HpcflError as error:
            self._server_error = error
            return None
