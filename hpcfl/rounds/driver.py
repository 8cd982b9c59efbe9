"""One round of a protocol: plays its steps over a transport and records their costs.

If a device sends a malformed message, the server ignores it and all later messages of that device
in the round. The round continues as long as enough devices are left. A device that receives a
malformed message, or that refuses to answer, leaves the round. Instead of its next message it sends
the reason to the server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hpcfl.comm import envelope
from hpcfl.comm.phases import Ids, Method, Pattern, Payload, Role, Rows, Step, call
from hpcfl.comm.transport import Cuts, Part, Transport
from hpcfl.crypto.groups import Elements, Group
from hpcfl.errors import BelowThresholdError, HpcflError, MessageError, RefusedError, UsageError
from hpcfl.report.formats import counted
from hpcfl.rounds.ledger import Ledger
from hpcfl.rounds.observer import NOBODY, RoundObserver
from hpcfl.system.plugins import blamed
from hpcfl.values import dataclass, field

if TYPE_CHECKING:
    from hpcfl.algorithms.aggregation.ranges import Dealt, RangeSum
    from hpcfl.rounds.eventclock import RoundClock

T = TypeVar("T")

Inputs = Callable[[int], NDArray[np.floating]]
# Takes this rank's live devices; may return the CPU seconds that each spent.
Prepare = Callable[[Mapping[int, Any]], Mapping[int, float] | None]
# The moments of a phase on a rank: before any work; when the rank's own messages have been made or
# the server's message has arrived; after all work.
BEFORE, DURING, AFTER = MOMENTS = ("before", "during", "after")
NOTHING = np.empty(0, np.uint8)


@dataclass(frozen=True, kw_only=True)
class RoundConfig:
    """The settings of a round besides its steps and parties; the same on every rank."""

    index: int  # of the round, part of every envelope
    dim: int
    largest_message: int  # most bytes of a device's message to the server, without the envelope
    largest_reply: int | None = None  # the same for messages other than the upload, if they differ
    # The phase before which each device or helper that drops out does so.
    dropouts: Mapping[int, str] = field(default_factory=dict)
    in_parts: bool = False  # whether the server takes long uploads in parts if it can
    dealt: Dealt | None = None  # how uploads are split among several ranks of the server
    called: str = "a round"  # the round's name in errors of a user's code
    reduce_group: Group | None = None  # sum the uploads within the transport in this group


@dataclass(frozen=True)
class Stretch:
    """The times of a step on one rank, by the rank's own clock, and the numbers of its calls."""

    phase: int  # index of the phase
    begin: float
    end: float
    calls: range


class Round:
    """Plays one round on this rank.

    `inputs` returns a device's vector for the upload; its time is not counted as CPU time.
    `prepare` is called with this rank's live devices before the upload, outside all timed regions,
    to make vectors that take long. All ranks wait for each other afterwards.
    """

    def __init__(
        self,
        steps: tuple[Step, ...],
        transport: Transport,
        ledger: Ledger,
        config: RoundConfig,
        *,
        devices: Mapping[int, Any],  # this rank's, by id
        server: Any | None,  # None on other ranks
        inputs: Inputs,
        helpers: Mapping[int, Any] | None = None,  # this rank's, by id
        prepare: Prepare | None = None,
        range_sum: RangeSum | None = None,  # on ranks of the server other than the first
        observer: RoundObserver = NOBODY,
        clock: RoundClock | None = None,  # of a population: late devices leave the round
    ) -> None:
        self._clock = clock
        self._steps = steps
        self._transport = transport
        self._devices = transport.placement.devices
        self.ledger = ledger
        self._config = config
        self._index = config.index
        self._live = dict(devices)
        self._helpers = dict(helpers or {})
        self._server = server
        self._inputs = inputs
        self._prepare = prepare
        self.prepare_seconds = 0.0  # the wait for the other ranks included
        self.stretches: list[Stretch] = []  # of all steps that were played
        self._range_sum = range_sum
        self._observer = observer
        self._server_error: HpcflError | None = None
        # At the server: the devices that the server refused or that left, with the reasons, in the
        # order in which the server learned of them.
        self.refused: dict[int, HpcflError] = {}
        # The devices of this rank that refused to continue, with the reasons.
        self.left: dict[int, HpcflError] = {}
        # The reasons of devices that left but have not told the server yet.
        self._untold: dict[int, str] = {}

    def play(self) -> None:
        """Play all steps; raise the server's error on every rank if the server cannot continue."""
        play = {
            Pattern.BROADCAST: self._broadcast,
            Pattern.SCATTER: self._scatter,
            Pattern.GATHER: self._gather,
            Pattern.ROUTE: self._route,
            Pattern.LOCAL: self._local,
        }
        names = [step.phase for step in self._steps]
        for number, step in enumerate(self._steps):
            if step.phase not in names[:number]:
                self._at(BEFORE, step)
            self._drop_out(step.phase)
            if step.upload and self._prepare is not None:
                start = time.perf_counter()
                spent = self._prepare(self._live)
                if self._clock is not None:
                    self._clock.trained(spent or {})
                self._transport.wait_for_all()
                self.prepare_seconds = time.perf_counter() - start
            if step.upload:
                for device in self._live.values():
                    self._forget_model(device)
            self._transport.step = number
            first, begin = self._transport.calls.number, time.perf_counter()
            with self.ledger.phase(step.phase), self._blamed(step):
                if step.wants is None or self._wanted(step):
                    play[step.pattern](number, step)
                    if self._clock is not None:
                        self._clock.after(step.phase)
            end, calls = time.perf_counter(), range(first, self._transport.calls.number)
            self.stretches.append(Stretch(self.ledger.index(step.phase), begin, end, calls))
            if step.phase not in names[number + 1 :]:
                self._at(AFTER, step)
        self._transport.raise_everywhere(self._server_error)

    def _blamed(self, step: Step) -> AbstractContextManager[None]:
        return blamed(f"{self._config.called}, phase {step.phase}")

    def _drop_out(self, phase: str) -> None:
        self._drop([id for id, before in self._config.dropouts.items() if before == phase])

    def _drop(self, ids: Iterable[int]) -> None:
        for id in ids:
            self._helpers.pop(id, None)
            if id in self._live:
                self._forget_model(self._live.pop(id))

    def _in_time(self, number: int, step: Step, made: dict[int, T]) -> dict[int, T]:
        """Return what parties made for a step without that of late devices, which drop out."""
        if self._clock is not None:
            late = self._clock.answers(number, step.phase, step.role)
            self._drop(late)
            made = {id: message for id, message in made.items() if id not in late}
        return made

    @staticmethod
    def _forget_model(device: Any) -> None:
        """Let a device that is done with the model free it, if it can."""
        if hasattr(device, "forget_model"):
            device.forget_model()

    def _at(self, moment: str, step: Step) -> None:
        self._observer.at(self._index, moment, step.phase)

    def _wanted(self, step: Step) -> bool:
        """Return, on every rank, whether the server wants an optional step to be played."""
        wanted = self._server is not None and bool(self._serve(step, step.wants))
        return bool(self._transport.tell(int(wanted), self._server_error))

    def _broadcast(self, number: int, step: Step) -> None:
        message = None
        if self._server is not None:
            payload = self._serve(step, step.send)
            if self._server_error is None:
                _check_sent(payload, self._server, step)
                message = self._seal(number, envelope.SERVER, envelope.ALL, payload)
        message = self._transport.broadcast(message, self._server_error)
        self._at(DURING, step)
        for id, party in list(self._playing(step.role).items()):
            with self._work(step.phase, id):
                payload = envelope.unseal(
                    message, step.phase, number, self._index, envelope.SERVER, envelope.ALL
                )
                call(step.receive, party, payload)
            self.ledger.received(step.phase, id, message.size)

    def _scatter(self, number: int, step: Step) -> None:
        def produce(id: int) -> Payload:
            payload = self._serve(step, step.send, id)
            if payload is None:
                return np.empty(0, np.uint8)
            _check_sent(payload, self._server, step)
            return self._seal(number, envelope.SERVER, id, payload)

        self._transport.raise_everywhere(self._server_error)
        self._at(DURING, step)
        left_out = []
        for id, message in self._transport.scatter([*self._playing(step.role)], produce):
            if not message.size:
                left_out.append(id)
                continue
            with self._work(step.phase, id):
                payload = envelope.unseal(
                    message, step.phase, number, self._index, envelope.SERVER, id
                )
                call(step.receive, self._live[id], payload)
            self.ledger.received(step.phase, id, message.size)
        # The server's error comes first, because it is the reason for missing messages.
        self._transport.raise_everywhere(self._server_error)
        for id in left_out:
            self._leave(id, MessageError(step.phase, "the server", "none was received"))

    def _gather(self, number: int, step: Step) -> None:
        if step.upload and self._config.reduce_group is not None:
            self._reduce(step, self._config.reduce_group)
            return

        playing = self._playing(step.role)

        def produce(id: int) -> Payload:
            payload = self._produce(step, id) if id in playing else None
            with self.ledger.work(step.phase, id):
                if payload is None:
                    reason = self._untold.pop(id)
                    if self._clock is not None:
                        self._clock.refused(id)
                    message = envelope.seal_refusal(reason, self._index, self._address(id))
                else:
                    message = self._seal(number, self._address(id), envelope.SERVER, payload)
            self.ledger.sent(step.phase, id, message.size)
            self._at(DURING, step)
            return message

        senders = [*playing]
        if self._untold:
            helping = step.role is Role.HELPER
            untold = [id for id in self._untold if (id in self._transport.local_helpers) == helping]
            senders = sorted([*senders, *untold])
        if not senders:
            self._at(DURING, step)
        if self._clock is not None:
            held = self._in_time(number, step, {id: produce(id) for id in senders})
            senders = [*held]
        reply = self._config.largest_reply
        announced = self._config.largest_message if step.upload or reply is None else reply
        largest = envelope.BYTES + max(announced, envelope.REASON_BYTES)
        in_parts = self._config.in_parts and step.receive_part is not None
        gather = self._transport.gather_parts if in_parts else self._transport.gather
        if step.upload and self._config.dealt is not None:
            cuts = Cuts(self._config.dealt.cuts(envelope.BYTES, largest), self._counts)
            gather = partial(self._transport.gather_parts, cuts=cuts)
        make = produce if self._clock is None else held.pop
        for id, message in gather(senders, make, largest):
            if self._range_sum is not None and isinstance(message, Part):
                with self.ledger.work(step.phase, None):
                    start, size = message.start - envelope.BYTES, message.size - envelope.BYTES
                    self._range_sum.add_part(id, message.data, start, size)
            else:
                self._take(number, step, id, message)
            del message  # before the next one is made
        self._finish(step)

    def _counts(self, id: int) -> bool:
        """Return whether the server still uses messages of a party."""
        return self._server_error is None and id not in self.refused

    def _take(self, number: int, step: Step, id: int, message: Payload | Part) -> None:
        """Let the server use a device's message or a part of it, or refuse the device."""
        part = message if isinstance(message, Part) else None
        sealed = message.data if isinstance(message, Part) else message
        data, start = sealed, 0 if part is None else part.start
        # Some transports deliver an empty message for a device that sent nothing.
        if not data.size or not self._counts(id):
            return
        if not start:
            address = self._address(id)
            refusal = envelope.refusal_in(data, self._index, address)
            if refusal is not None:
                reason = f"{envelope.party(address)} left the round in {step.phase}: {refusal}"
                self.refused[id] = RefusedError(reason)
                return
            try:
                data = envelope.unseal(
                    data, step.phase, number, self._index, address, envelope.SERVER
                )
            except MessageError as error:
                self.refused[id] = error
                return
        which = id - self._devices if step.role is Role.HELPER else id
        if part is not None:
            place = max(0, start - envelope.BYTES), part.size - envelope.BYTES
            self._serve(step, step.receive_part, which, data, *place, sender=id)
            return
        self._serve(step, step.receive, which, data, sender=id)
        if self._counts(id):
            self._observer.heard(self._index, step.name, id, sealed)

    def _reduce(self, step: Step, group: Group) -> None:
        def produce(id: int) -> Payload:
            payload = self._produce(step, id)
            self._at(DURING, step)
            if payload is None:
                return NOTHING
            self.ledger.sent(step.phase, id, payload.nbytes)
            return payload

        if not self._live:
            self._at(DURING, step)

        def add_into(target: Elements, elements: Elements) -> None:
            with self.ledger.work_of_rank(step.phase, self._live):
                group.add_into(target, elements)

        zeros = np.zeros(self._config.dim, group.dtype)
        result = self._transport.reduce(list(self._live), produce, add_into, zeros)
        if result is not None:
            self._serve(step, step.receive_sum, *result)
        self._finish(step)

    def _route(self, number: int, step: Step) -> None:
        addressed = {}
        width = envelope.BYTES + step.row_bytes

        def rows() -> Iterator[Rows]:
            for id, device in list(self._live.items()):
                sealed = np.empty((0, width), np.uint8)
                arguments = [self._inputs(id)] if step.upload else []
                with self._work(step.phase, id):
                    sealed, addressed[id] = sealed_rows(
                        step, number, self._index, device, id, arguments
                    )
                    self.ledger.sent(step.phase, id, sealed.size, len(sealed))
                yield sealed
            self._at(DURING, step)

        sending, made = [*self._live], rows()
        if self._clock is not None:
            held = self._in_time(number, step, dict(zip(sending, made, strict=True)))
            sending, made = [*held], iter(held.values())
        received, took_part = self._transport.route(sending, made, width)
        if self._server is not None:
            self._take_part(step, np.flatnonzero(took_part).tolist())
        self._transport.raise_everywhere(self._server_error)
        receiving = self._playing(step.to)
        for id, mine in received:
            device = receiving.get(id)
            if device is None or id not in self._live:
                continue
            with self._work(step.phase, id):
                linked = addressed.pop(id)
                if step.to is Role.COMMITTEE:
                    linked = np.delete(np.arange(self._devices), id)
                senders = linked[took_part[linked]]
                missing = senders.size - int(np.isin(senders, mine.senders).sum())
                take_rows(step, number, self._index, device, id, senders, mine.senders, mine.rows)
            # For a sender without a row for this device, the relay passes on an empty envelope.
            size, count = mine.rows.size + missing * envelope.BYTES, len(mine.rows) + missing
            self.ledger.received(step.phase, id, size, count)

    def _take_part(self, step: Step, present: list[int]) -> None:
        """Tell the server which devices took part in a route, until it refuses no more of them."""
        while self._server_error is None:
            accepted = [id for id in present if id not in self.refused]
            known = len(self.refused)
            if step.relay is not None:
                self._serve(step, step.relay, np.array(accepted, np.int64))
            if len(self.refused) == known:
                return

    def _local(self, number: int, step: Step) -> None:
        self._at(DURING, step)
        if step.by_all_ranks and self._config.dealt is not None:
            self._unmask_ranges(step, self._config.dealt)
        else:
            self._finish(step)

    def _unmask_ranges(self, step: Step, dealt: Dealt) -> None:
        """Let each rank of the server unmask its range, and join the ranges at the first rank."""
        masks = None if self._server is None else self._serve(step, step.send)
        if masks is not None:
            masks = masks.reshape(-1)
        masks = self._transport.to_server_ranks(masks)
        unmasked = None
        if self._range_sum is not None and masks is not None and masks.size:
            with self.ledger.work(step.phase, None):
                unmasked = self._range_sum.unmask(masks)
        self._finish(step)
        if self._server is not None and masks is not None:
            unmasked = self._server.unmasked
        whole = self._transport.join(unmasked, dealt.ranges)
        if self._server is not None and whole is not None:
            self._server.unmasked = whole

    @contextmanager
    def _work(self, phase: str, id: int) -> Iterator[None]:
        """Record the time of a device's work; the device leaves the round if it refuses."""
        with self.ledger.work(phase, id):
            try:
                yield
            except (MessageError, RefusedError) as error:
                self._leave(id, error)

    def _address(self, id: int) -> int:
        """Return the number of a device or helper in envelopes."""
        return id if id < self._devices else envelope.HELPERS + id - self._devices

    def _playing(self, role: Role) -> dict[int, Any]:
        """Return the parties of this rank that have a role and have not left."""
        if role is Role.COMMITTEE:
            return {id: device for id, device in self._live.items() if device.in_committee}
        return self._helpers if role is Role.HELPER else self._live

    def _leave(self, id: int, error: HpcflError) -> None:
        if id in self._helpers:
            del self._helpers[id]
        else:
            self._forget_model(self._live.pop(id))
        self.left[id] = error
        self._untold[id] = str(error)

    def _produce(self, step: Step, id: int) -> Payload | None:
        """Return a device's payload as bytes, or None if it refuses to send.

        The device's time excludes the making of its vector.
        """
        arguments = [self._inputs(id)] if step.upload else []
        sender = self._helpers[id] if step.role is Role.HELPER else self._live[id]
        payload: Payload | None = None
        with self._work(step.phase, id):
            payload = call(step.send, sender, *arguments)
            _check_sent(payload, sender, step)
        return None if payload is None else payload.reshape(-1).view(np.uint8)

    def _seal(self, number: int, sender: int, receiver: int, payload: Payload) -> Payload:
        return envelope.seal(number, self._index, sender, receiver, payload)

    def _finish(self, step: Step) -> None:
        if self._server is not None and step.finish is not None:
            self._serve(step, step.finish)
            self._take_refused()

    def _take_refused(self) -> None:
        """Adopt the server's own refusals: some faults show only when all messages are there."""
        for id, error in getattr(self._server, "refused", {}).items():
            self.refused.setdefault(id, error)

    def _serve(
        self, step: Step, method: Method | None, *arguments: Any, sender: int | None = None
    ) -> Any:
        """Call a method of the server, and keep its error until the devices can be told.

        A MessageError only refuses the `sender`, or in a route the sender that the error names.
        """
        if self._server_error is not None:
            return None
        try:
            # A user's code is blamed here, before the error is told to all ranks.
            with self.ledger.work(step.phase, None), self._blamed(step):
                return call(method, self._server, *arguments)
        except HpcflError as error:
            if not isinstance(error, MessageError):
                sender = None
            elif step.pattern is Pattern.ROUTE:
                named = (id for id in arguments[0].tolist() if envelope.party(id) == error.sender)
                sender = next(named, None)
            if sender is None:
                self._server_error = self._explained(step, error)
            else:
                self.refused[sender] = error
            return None

    def _explained(self, step: Step, error: HpcflError) -> HpcflError:
        """Return an error of too few devices or helpers, with the known refusals added."""
        self._take_refused()
        # Between two gathers, only the device's own rank knows that the device left.
        known = self.refused | {k: e for k, e in self.left.items() if k not in self.refused}
        # Refusals of devices do not explain missing helpers, and vice versa.
        helping = step.role is Role.HELPER
        known = {id: e for id, e in known.items() if (id >= self._devices) == helping} or known
        if isinstance(error, BelowThresholdError) and self._clock is not None and self._clock.late:
            error = type(error)(f"{error}; {counted(len(self._clock.late), 'device')} late or away")
        if not isinstance(error, BelowThresholdError) or not known:
            return error
        first = next(iter(known.values()))
        others = f" (and {len(known) - 1} more)" if len(known) > 1 else ""
        return type(error)(f"{error}; refused: {first}{others}")


def sealed_rows(
    step: Step, number: int, round_index: int, device: Any, id: int, arguments: list[Any]
) -> tuple[Rows, Ids]:
    """Return the sealed rows that a device sends in a route, and whom it sends them to, sorted."""
    sent = call(step.send, device, *arguments)
    receivers, payloads = sent if isinstance(sent, tuple) else ((), sent)
    _check_sent(payloads, device, step, (np.size(receivers), step.row_bytes))
    sealed = envelope.seal_rows(number, round_index, id, receivers, payloads)
    return sealed, np.sort(receivers)


def take_rows(
    step: Step,
    number: int,
    round_index: int,
    device: Any,
    id: int,
    senders: Ids,
    sources: Ids,
    sealed: Rows,
) -> None:
    """Let a device take a row from each of the `senders`; `sealed` are rows from `sources`.

    The first row of a sender counts, and a missing one is zeros.
    """
    sources, first = np.unique(sources, return_index=True)
    expected = np.isin(sources, senders)
    sources, sealed = sources[expected], _chosen(sealed, first[expected])
    payloads = envelope.unseal_rows(sealed, number, round_index, sources, id)
    if sources.size < senders.size:
        there, payloads = payloads, np.zeros((senders.size, step.row_bytes), np.uint8)
        payloads[np.searchsorted(senders, sources)] = there
    call(step.receive, device, senders, payloads)


def _chosen(rows: Rows, which: NDArray[np.int64]) -> Rows:
    """Return the rows `which`; without a copy if that is all of them in order, as is usual."""
    return rows if np.array_equal(which, np.arange(len(rows))) else rows[which]


def _check_sent(sent: Any, party: Any, step: Step, shape: tuple[int, int] | None = None) -> None:
    """Raise UsageError if a user's party returned something else than a message or rows.

    For rows, `shape` is the expected shape; they come with the ids of their receivers.
    """
    if isinstance(sent, np.ndarray) and shape in (None, sent.shape):
        return
    asked = (
        "an array of bytes, uint8" if shape is None else f"ids, and rows of shape {shape}, uint8"
    )
    found = f" of shape {sent.shape}" if isinstance(sent, np.ndarray) else ""
    raise UsageError(
        f"{type(getattr(party, 'party', party)).__name__}.send_{step.name} must return {asked}; it "
        f"returned a {type(sent).__name__}{found}: see docs/own-protocol.md"
    )
