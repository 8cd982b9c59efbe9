"""A client's side of a round: a request comes in, a reply goes out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.comm import envelope, rows
from hpcfl.comm.phases import Pattern, Payload, Role, Step, call
from hpcfl.errors import HpcflError, MessageError, RefusedError
from hpcfl.exchange import request
from hpcfl.rounds.driver import sealed_rows, take_rows

Vector = Callable[[], NDArray[np.floating]]


class ClientRound:
    """A device or helper in a round; `id` counts helpers from N on, as `devices` does not."""

    def __init__(
        self, steps: tuple[Step, ...], party: Any, id: int, index: int, devices: int
    ) -> None:
        self._steps = steps
        self._party = party
        self._index = index
        self.id = id
        self._address = id if id < devices else envelope.HELPERS + id - devices
        self._devices = devices
        self._linked: NDArray[np.int64] | None = None  # whom it sent rows to
        self.left: HpcflError | None = None  # why it left the round

    def handle(self, asked: bytes, vector: Vector) -> bytes:
        """Return the reply to a request of the server; `vector` makes what the device uploads.

        If the device leaves the round, because of a malformed request or one that it refuses, the
        reply says why, as do those to all later requests.
        """
        try:
            if self.left is not None:
                raise self.left
            number, messages = request.unpack(asked)
            for step_number, message in messages:
                self._take(step_number, np.frombuffer(message, np.uint8))
            return b"" if number == request.NOTHING else self._reply(number, vector).tobytes()
        except (MessageError, RefusedError) as error:
            self.left = error
            return envelope.seal_refusal(str(error), self._index, self._address).tobytes()

    def _step(self, number: int) -> Step:
        if number >= len(self._steps):
            raise MessageError("request", "the server", f"there is no step {number}")
        return self._steps[number]

    def _take(self, number: int, message: Payload) -> None:
        step = self._step(number)
        if step.pattern is Pattern.ROUTE:
            width = rows.LABEL_BYTES + envelope.BYTES + step.row_bytes
            if message.size % width:
                raise MessageError(step.phase, "the server", "it sent a part of a row")
            labelled = message.reshape(-1, width)
            senders = rows.senders_of(labelled)
            committee = step.to is Role.COMMITTEE
            linked = np.delete(np.arange(self._devices), self.id) if committee else self._linked
            others = senders if linked is None else np.setdiff1d(senders, linked)
            if others.size or (np.diff(senders) <= 0).any():
                raise MessageError(step.phase, "the server", "it sent rows of unexpected devices")
            sealed = labelled[:, rows.LABEL_BYTES :]
            take_rows(step, number, self._index, self._party, self.id, senders, senders, sealed)
            return
        receiver = envelope.ALL if step.pattern is Pattern.BROADCAST else self._address
        payload = envelope.unseal(
            message, step.phase, number, self._index, envelope.SERVER, receiver
        )
        call(step.receive, self._party, payload)

    def _reply(self, number: int, vector: Vector) -> Payload:
        step = self._step(number)
        arguments = [vector()] if step.upload else []
        if step.pattern is Pattern.ROUTE:
            found, self._linked = sealed_rows(
                step, number, self._index, self._party, self.id, arguments
            )
            return found.reshape(-1)
        if step.pattern is not Pattern.GATHER:
            raise MessageError("request", "the server", f"step {number} has no reply")
        payload = call(step.send, self._party, *arguments)
        return envelope.seal(number, self._index, self._address, envelope.SERVER, payload)
