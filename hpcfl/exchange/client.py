"""A client's side of a run: a request comes in, a reply goes out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.base import Enrolment
from hpcfl.comm import envelope, rows
from hpcfl.comm.phases import Pattern, Payload, Role, Step, call
from hpcfl.crypto.keys import SecretSource, system_secrets
from hpcfl.errors import MessageError, RefusedError, UsageError
from hpcfl.exchange import saved
from hpcfl.exchange.journal import Journal
from hpcfl.exchange.policy import Policy
from hpcfl.exchange.request import Offer, Request, address_of
from hpcfl.rounds.driver import sealed_rows, take_rows
from hpcfl.rounds.enrolment import NO_ROUND

DELIVERED = 255  # what a journal knows a request as that only delivers messages
# Returns the vector to upload, shape (d,), for what the server offers.
Vector = Callable[[Offer], NDArray[np.floating]]


class Client:
    """A device or helper in a run, which may consist of an enrolment and of many rounds.

    A host that ends the process between two requests saves the client after each reply and restores
    it for the next request; such a client needs a journal.
    """

    kept = ("_run", "_enrolled", "_terms", "_last")

    def __init__(
        self,
        policy: Policy,
        journal: Journal | None = None,
        secrets: SecretSource = system_secrets,
    ) -> None:
        self._policy = policy
        self._journal = journal
        self._source = secrets
        self._run = ""
        self._enrolled = -1  # its number among the devices, or devices and helpers, that enrolled
        self._terms: list[Any] = []  # of the enrolment
        self._member: Any = None  # its state for all rounds, if the protocol has an enrolment
        self._last = -1  # the last round
        self._round: ClientRound | None = None
        self._one = threading.Lock()  # a host may have threads
        self._saved: dict[str, Any] = {}  # what a restored client has not needed yet

    @property
    def run(self) -> str:
        """The run that the client takes part in; "" before its first request."""
        return self._run

    def handle(self, asked: bytes, vector: Vector) -> bytes:
        """Return the reply to a request of the server; `vector` makes what the device uploads.

        A client that refuses a request, or what the round asks of it, replies with the reason.
        Raise MessageError if the bytes are no request.
        """
        request = Request.read(asked)
        try:
            with self._one:
                replies = self._played(request).handle(request, vector)
        except (MessageError, RefusedError, UsageError) as error:
            replies = [request.refused(error)]
        packed: bytes = msgpack.packb(replies)
        return packed

    def _played(self, request: Request) -> ClientRound:
        """Return the round of a request, and claim its answer."""
        offer = request.offer
        if self._run not in ("", offer.run):
            raise RefusedError("the client takes part in another run, and refuses a second one")
        round_ = self._found(offer, request.id) or self._begun(offer, request.id)
        round_.check(request)
        number = -1 if offer.round == NO_ROUND else offer.round
        for step in request.asked or [DELIVERED]:
            if self._journal and not self._journal.claim(offer.run, number, step):
                raise RefusedError(f"the client has answered step {step} of the round before")
        self._run, self._round = offer.run, round_
        if offer.round != NO_ROUND:
            self._last = offer.round
        return round_

    def _found(self, offer: Offer, id: int) -> ClientRound | None:
        """Return the current round if it is the one of an offer."""
        kept = self._saved.get("round")
        if kept is not None and kept["digest"] == offer.digest:
            self._round = self._made(offer, kept["own"]["id"])
            saved.give_back(self._round, kept["own"])
            saved.give_back(self._round.party, kept["party"])
            del self._saved["round"]
        if self._round is None or self._round.offer.digest != offer.digest:
            return None
        if self._round.id != id:
            raise RefusedError(f"the client is number {self._round.id} in the round, and not {id}")
        return self._round

    def _begun(self, offer: Offer, id: int) -> ClientRound:
        """Return a new round."""
        self._policy.check(offer)  # first of all: it decides which code may be loaded
        if offer.round == NO_ROUND and (self._run or not offer.enrols):
            raise RefusedError("the client refuses to enrol twice in a run, or for nothing")
        if offer.round != NO_ROUND and offer.round <= self._last:
            raise RefusedError(
                f"the client refuses round {offer.round}: it has taken part in round {self._last}"
            )
        return self._made(offer, id)

    def _made(self, offer: Offer, id: int) -> ClientRound:
        """Return a round as it begins."""
        protocol, enrolment, helper = offer.protocol, offer.enrolment, id - offer.devices
        if helper >= protocol.helpers:
            raise MessageError("request", "the server", f"there is no client {id} in the round")
        if enrolment is not None:
            self._enrol(offer, enrolment, id)
            if offer.round == NO_ROUND:
                return ClientRound(enrolment.steps, self._member, offer, id)
            protocol.join({self._enrolled: self._member}, offer.members, offer.population)
        about = offer.round, self._source
        party = protocol.device(id, *about) if helper < 0 else protocol.helper(helper, *about)
        return ClientRound(protocol.steps, party, offer, id)

    def _enrol(self, offer: Offer, enrolment: Enrolment, id: int) -> None:
        """Make the state for all rounds; refuse a round that takes the client for another one."""
        helper, number = id - offer.devices, id
        if offer.round != NO_ROUND:
            listed = id < len(offer.members)
            number = offer.members[id] if listed else offer.population + helper
        if self._enrolled < 0 and (offer.round == NO_ROUND or not enrolment.steps):
            self._enrolled, self._terms = number, offer.terms
        if self._enrolled < 0:
            raise RefusedError("the client has not enrolled in the run")
        if self._terms != offer.terms:
            raise RefusedError("the client enrolled for another protocol, or among others")
        if number != self._enrolled or len(offer.members) not in (0, offer.devices):
            raise RefusedError(f"the client enrolled as {self._enrolled}, and not as {number}")
        if self._member is None:
            make = enrolment.device if helper < 0 else enrolment.helper
            assert make is not None
            self._member = make(number if helper < 0 else helper, self._source)
            saved.give_back(self._member, self._saved.pop("member", {}))

    def save(self, key: bytes) -> bytes:
        """Return the client's state, sealed under a key of 16 or 32 bytes of its node."""
        if self._journal is None:
            raise UsageError("a client that is saved needs a journal: its state may come back")
        state = {**self._saved, "client": saved.kept(self)}
        if self._member is not None:
            state["member"] = saved.kept(self._member)
        if self._round is not None:
            state["round"] = self._round.state()
        return saved.seal(state, key)

    @classmethod
    def restore(
        cls,
        sealed: bytes,
        key: bytes,
        policy: Policy,
        journal: Journal,
        secrets: SecretSource = system_secrets,
    ) -> Client:
        """Return the client whose state was saved; UsageError if it does not open."""
        self = cls(policy, journal, secrets)
        self._saved = saved.unseal(sealed, key)
        saved.give_back(self, self._saved.pop("client"))
        return self


class ClientRound:
    """A device or helper in a round or an enrolment."""

    kept = ("id", "_position", "_ahead", "_linked", "_left")

    def __init__(self, steps: tuple[Step, ...], party: Any, offer: Offer, id: int) -> None:
        self.offer = offer
        self.id = id  # of a device, or N + k of a helper
        self._steps = steps
        self.party = party
        self._index = offer.round
        self._devices = offer.devices
        self._address = address_of(id, self._devices)
        # What the client does in the round, in order: steps, and whether it receives.
        self._events = [*_events(steps)]
        self._position = 0  # of the next of them
        self._ahead: list[int] = []  # steps answered before those of the committee in front of them
        self._linked: NDArray[np.int64] | None = None  # whom it sent rows to
        self._left = ""  # why it left the round

    def handle(self, request: Request, vector: Vector) -> list[bytes]:
        """Return the replies; if the client leaves the round, the last one says why."""
        replies: list[bytes] = []
        try:
            if self._left:
                raise RefusedError(self._left)
            for number, message in request.messages:
                self._advance(number, True)
                self._take(number, np.frombuffer(message, np.uint8))
            for number in request.asked:
                self._advance(number, False)
                replies.append(self._reply(number, vector).tobytes())
        except (MessageError, RefusedError) as error:
            self._left = str(error)
            replies.append(request.refused(error))
        return replies

    def check(self, request: Request) -> None:
        """Refuse, without leaving the round, a request for what lies behind."""
        named = [(number, True) for number, _ in request.messages]
        for number, receives in [*named, *((number, False) for number in request.asked)]:
            if self._place(number, receives) < self._position or number in self._ahead:
                raise RefusedError(f"the client is past step {number} of the round")

    def _place(self, number: int, receives: bool) -> int:
        try:
            return self._events.index((number, receives))
        except ValueError:
            what = "message" if receives else "answer"
            reason = f"step {number} has no {what}"
            raise MessageError("request", "the server", reason) from None

    def _advance(self, number: int, receives: bool) -> None:
        """Go on to a message or an answer; refuse to leave out what comes before it."""
        place = self._place(number, receives)
        if place < self._position or number in self._ahead:
            raise RefusedError(f"the client is past step {number} of the round")
        left_out = []
        for skipped, taken in self._events[self._position : place]:
            step = self._steps[skipped]
            role = step.to if taken and step.pattern is Pattern.ROUTE else step.role
            if step.wants is None and skipped not in self._ahead and self._plays(role):
                left_out.append((skipped, role))
        if not left_out:
            self._position = place + 1
        elif self._steps[number].early and all(role is Role.COMMITTEE for _, role in left_out):
            self._ahead.append(number)  # a member answers these later
        else:
            raise RefusedError(
                f"the client refuses to leave out step {left_out[0][0]} of the round"
            )

    def _plays(self, role: Role) -> bool:
        if (role is Role.HELPER) != (self.id >= self._devices):
            return False
        return role is not Role.COMMITTEE or bool(self.party.in_committee)

    def _take(self, number: int, message: Payload) -> None:
        step = self._steps[number]
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
            take_rows(step, number, self._index, self.party, self.id, senders, senders, sealed)
            self._linked = None
            return
        receiver = envelope.ALL if step.pattern is Pattern.BROADCAST else self._address
        payload = envelope.unseal(
            message, step.phase, number, self._index, envelope.SERVER, receiver
        )
        call(step.receive, self.party, payload)

    def _reply(self, number: int, vector: Vector) -> Payload:
        step = self._steps[number]
        arguments = [vector(self.offer)] if step.upload else []
        if step.pattern is Pattern.ROUTE:
            found, self._linked = sealed_rows(
                step, number, self._index, self.party, self.id, arguments
            )
            return found.reshape(-1)
        payload = call(step.send, self.party, *arguments)
        return envelope.seal(number, self._index, self._address, envelope.SERVER, payload)

    def state(self) -> saved.Plain:
        """Return what the client needs to go on in another process."""
        passed, ahead = self._events[: self._position], self._events[self._position :]
        behind = {self._steps[number].name for number in (*(n for n, _ in passed), *self._ahead)}
        behind -= {self._steps[n].name for n, _ in ahead if n not in self._ahead}
        # In an enrolment, the client keeps the party by itself.
        done = self._left or self._index == NO_ROUND
        party = {} if done else saved.kept(self.party, behind)
        return {"digest": self.offer.digest, "own": saved.kept(self), "party": party}


def _events(steps: tuple[Step, ...]) -> Iterator[tuple[int, bool]]:
    for number, step in enumerate(steps):
        if step.pattern in (Pattern.GATHER, Pattern.ROUTE):
            yield number, False
        if step.pattern in (Pattern.BROADCAST, Pattern.SCATTER, Pattern.ROUTE):
            yield number, True
