"""The common part of protocols in which devices deal coded pieces and holders add them up.

A device cuts a vector, or its mask, into pieces, adds T random ones, and encodes all U of them
(:class:`~hpcfl.crypto.coding.Code`) into one piece for each holder. The holders send the server
sums of the pieces that they hold; any U of these sums give the sum of the vectors.

A piece is encrypted for its holder under the pair's key. A dealer is left out if more holders lack
its piece than the plan tolerates; if fewer do, the holders may be lying. Up to (n - U) / 2 wrong
sums among n are found and left out.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation import sealed
from hpcfl.algorithms.aggregation.messages import (
    Flags,
    bits,
    check_public_keys,
    read_bits,
    to_flags,
)
from hpcfl.algorithms.aggregation.promises import Outcome, objection
from hpcfl.algorithms.aggregation.quantised import (
    DeviceState,
    QuantisedDevice,
    QuantisedProtocol,
    QuantisedServer,
    until,
)
from hpcfl.algorithms.aggregation.reconstruction import Shares, reconcile, to_leave_out
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.phases import ROUTE, Ids, Payload, Rows
from hpcfl.crypto import keys, matrices
from hpcfl.crypto.coding import Code
from hpcfl.crypto.groups import Elements, Field
from hpcfl.crypto.keystream import KEY_BYTES as SEED_BYTES
from hpcfl.errors import BelowThresholdError, MessageError, RefusedError
from hpcfl.options.protocols import MaskingOptions, ThreatOptions, TransportOptions
from hpcfl.privacy.masking import OnlySummed
from hpcfl.privacy.threat import LIARS
from hpcfl.values import dataclass, field, replace


class CodedProtocol(QuantisedProtocol):
    """A protocol in which devices deal coded pieces; all devices use the same `code`."""

    options = (*QuantisedProtocol.options, ThreatOptions, TransportOptions)
    min_devices = 2
    family = "field"
    piece: ClassVar[str] = "piece"  # name of a piece in errors

    def __init__(self, parameters: Parameters) -> None:
        super().__init__(parameters)
        # A field with room for the sum of N vectors has elements for the code's N + U points.
        self.code = self.choose_code()
        self.steps = tuple(
            replace(step, row_bytes=self.row_bytes) if step.pattern is ROUTE else step
            for step in type(self).steps
        )

    @property
    def field(self) -> Field:
        """The field in which vectors are summed and coded."""
        assert isinstance(self.summed_in, Field)
        return self.summed_in

    @abstractmethod
    def choose_code(self) -> Code:
        """Return the code for the parameters; UsageError if none is both private and decodable."""

    @property
    def piece_bytes(self) -> int:
        """Size of a piece in bytes."""
        return self.field.wire_bytes(self.code.width)

    @property
    def row_bytes(self) -> int:
        """Size of a sealed piece in bytes."""
        return self.piece_bytes + sealed.TAG_BYTES

    @property
    def needed_in_sum(self) -> int:
        # Holders refuse to add up the pieces of fewer devices.
        return self.parameters.threshold

    @classmethod
    def masking(cls, devices: int, options: MaskingOptions) -> OnlySummed:
        return OnlySummed(devices)

    def read_piece(self, payload: Payload, phase: str, sender: str) -> Elements:
        """Return a coded piece or a sum of pieces; MessageError if the payload holds neither."""
        return self.read_elements(payload, self.code.width, phase, sender, self.field)


@dataclass
class CodedState(DeviceState):
    """What a device keeps between the steps of a round."""

    pair: keys.KeyPair = until("advertise_keys", lambda: keys.KeyPair(b"", b""))
    # Keys shared with the senders and receivers of rows, by id.
    transport_keys: dict[int, bytes] = field(default_factory=dict, repr=False)
    # The pieces that this device holds, by owner.
    pieces: dict[int, Elements] = field(default_factory=dict, repr=False)
    survivors: list[int] | None = None  # the devices whose pieces are to be added up


class CodedDevice(QuantisedDevice):
    """A device that deals pieces and may hold some; keys and pieces come from `secrets`."""

    _protocol: CodedProtocol
    state: CodedState

    def send_advertise_keys(self) -> Payload:
        """Return this device's public key."""
        self.state.pair = self._transport_pair()
        return np.frombuffer(self.state.pair.public, np.uint8)

    def _agree(self, ids: Sequence[int], listed: bytes) -> None:
        """Agree on a key with each of the devices `ids`; `listed` are their public keys."""
        own, public = self.state.pair, dict(zip(ids, keys.cut(listed), strict=True))
        if public.pop(self.id, own.public) != own.public:
            raise MessageError(
                "advertise_keys", "the server", "this device's own key is not as it sent it"
            )
        check_public_keys(b"".join(public.values()), [*public])
        secrets = self._agree_on_transport(own.private, [*public], [*public.values()])
        head = f"{self._protocol.context(self._round)} pair"
        pairs = [(min(self.id, id), max(self.id, id)) for id in public]
        contexts = [f"{head} {low} {high} piece transport".encode() for low, high in pairs]
        derived = keys.derive_each(secrets, contexts)
        self.state.transport_keys = dict(zip(public, derived, strict=True))

    def _sealed(self, peers: Sequence[int], pieces: Elements) -> tuple[Ids, Rows]:
        """Return pieces, shape (peers, width), sealed in one row for each peer."""
        protocol, derived = self._protocol, self.state.transport_keys
        rows = np.empty((len(peers), protocol.row_bytes), np.uint8)
        pairs = ((self.id, peer) for peer in peers)
        head = protocol.context(self._round)
        seals = sealed.seals(map(derived.__getitem__, peers), head, pairs)
        sealed.seal(seals, protocol.field.pack_rows(pieces), rows)
        return np.array(peers, np.int64), rows

    def _keep(self, phase: str, senders: Ids, rows: Rows) -> None:
        """Decrypt and keep the pieces of others; ignore a row without a valid piece."""
        protocol, derived = self._protocol, self.state.transport_keys
        known = np.isin(senders, [*derived])
        for sender in senders[~known].tolist():
            self.ignored.append(MessageError(phase, f"device {sender}", "it advertised no key"))
        if not known.all():
            senders, rows = senders[known], rows[known]
        pairs = [(sender, self.id) for sender in senders.tolist()]
        chosen = [derived[sender] for sender, _ in pairs]
        contents = np.empty((len(pairs), protocol.piece_bytes), np.uint8)
        seals = sealed.seals(chosen, protocol.context(self._round), pairs)
        closed = sealed.unseal(seals, rows, contents).tolist()
        for (sender, _), failed, content in zip(pairs, closed, contents, strict=True):
            name = f"device {sender}"
            try:
                if failed:
                    raise MessageError(phase, name, sealed.CLOSED)
                self.state.pieces[sender] = protocol.read_piece(content, phase, name)
            except MessageError as error:
                self.ignored.append(error)
        self.state.transport_keys = {}

    def send_held(self) -> Payload:
        """Return the owners of the pieces that this device holds."""
        return bits(self.state.pieces, self._parameters.devices)

    def _asked(self, payload: Payload, phase: str, what: str) -> list[int]:
        """Return the devices whose pieces to add up; refuse a sum that could reveal a vector."""
        devices = self._parameters.devices
        survivors = read_bits(payload, devices, phase)
        if self.state.survivors is not None:
            raise self.refusal(
                f"a second request to {what}: the server would learn the difference between two "
                "sums"
            )
        self._require(len(survivors), f"{what} of")
        broken = objection(self._protocol.promises(), Outcome(devices, len(survivors)))
        if broken is not None:
            raise self.refusal(f"to {what}: {broken}")
        missing = [id for id in survivors if id not in self.state.pieces]
        if missing:
            raise RefusedError(
                f"device {self.id} cannot {what}: it holds no {self._protocol.piece} of device "
                f"{missing[0]}"
            )
        return survivors

    def _sum_of_pieces(self) -> Payload:
        """Return the sum of the requested pieces, once."""
        state, field = self.state, self._protocol.field
        if state.survivors is None or not state.pieces:
            raise self.refusal("to send a sum of pieces: it was not asked, or has told")
        total = np.zeros(self._protocol.code.width, np.uint64)
        for id in state.survivors:
            total += state.pieces[id]
        state.pieces = {}
        return field.pack(field.reduce(total))

    def _require(self, count: int, what: str) -> None:
        needed = self._protocol.needed_in_sum
        if count < needed:
            raise self.refusal(f"to {what} {count} devices: {needed} are needed")


@dataclass
class CodedServerState:
    """What the server keeps between the steps of a round."""

    public: dict[int, bytes] = field(default_factory=dict)
    dealers: set[int] = field(default_factory=set)
    # For each holder that reported it: the owners of its pieces, as flags by device.
    held: dict[int, Flags] = field(default_factory=dict)
    # Sums of pieces, by the device that added them up.
    answers: dict[int, Elements] = field(default_factory=dict, repr=False)


class CodedServer(QuantisedServer):
    """The server's side of one round."""

    _protocol: CodedProtocol
    state: CodedServerState
    state_class: ClassVar[type[Any]] = CodedServerState

    def _enough_holders(self, count: int, what: str) -> None:
        code = self._protocol.code
        who = "devices" if code.devices == self._devices else "members of the committee"
        self._require(count, what, code.needed, who, code.devices)

    def receive_advertise_keys(self, sender: int, payload: Payload) -> None:
        """Check and keep a device's public key."""
        self._take_keys(self.state.public, sender, payload, keys.KEY_BYTES)

    def finish_advertise_keys(self) -> None:
        self._enough(len(self.state.public), "advertised keys")

    def _keys_of(self, ids: Sequence[int]) -> bytes:
        return b"".join(self.state.public[id] for id in ids)

    def _take_dealers(self, phase: str, ids: Ids) -> None:
        """Record the devices that dealt pieces."""
        dealers = {*ids.tolist()}
        unknown = dealers - {*self.state.public}
        if unknown:
            raise MessageError(phase, f"device {min(unknown)}", "it advertised no key")
        self.state.dealers = dealers
        self._enough(len(dealers), "dealt pieces")

    def _take_held(self, phase: str, sender: int, payload: Payload) -> None:
        """Record whose pieces a holder has."""
        name = self._first(phase, sender, self.state.held)
        listed = read_bits(payload, self._devices, phase, name)
        self.state.held[sender] = to_flags(listed, self._devices)

    def _leave_out_unheld(self, phase: str) -> None:
        """Leave out dealers whose pieces are missing at more holders than the plan tolerates."""
        state = self.state
        dealers, holders = np.array(sorted(state.dealers)), np.array(sorted(state.held))
        held = np.stack([state.held[id][dealers] for id in holders.tolist()], axis=1)
        for id in dealers[to_leave_out(~held, holders, LIARS)].tolist():
            state.dealers.discard(id)
            reason = f"too many devices hold no {self._protocol.piece} of it: it is left out"
            self._refuse(phase, id, reason)
        self._enough(len(state.dealers), "dealt pieces rightly")

    def _take_answer(self, phase: str, sender: int, payload: Payload) -> None:
        """Keep a device's sum of pieces."""
        name = self._first(phase, sender, self.state.answers)
        # A copy, because the transport reuses its memory.
        self.state.answers[sender] = self._protocol.read_piece(payload, phase, name).copy()

    def _decoded(self, phase: str, number_of: dict[int, int]) -> Elements:
        """Return the sum of the survivors' coded vectors or masks, shape (d,).

        `number_of` maps a device to its number as a holder of pieces.
        """
        code, answers = self._protocol.code, self.state.answers
        answered = sorted(answers, key=number_of.__getitem__)
        self._enough_holders(len(answered), f"added up the {self._protocol.piece}s that they hold")
        numbers = np.array([number_of[id] for id in answered], np.int64)
        sums = np.stack([answers[id] for id in answered])
        self.state.answers = {}
        right = self._fitting(sums, numbers)
        for row in {*range(len(answered))} - {*right.tolist()}:
            reason = "its sum of pieces, or a piece that it was dealt, contradicts the others"
            self._refuse(phase, answered[row], reason)
        used = right[: code.needed]
        return code.decode(sums[used], numbers[used])

    def _fitting(self, sums: Elements, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices of the rows that lie on one polynomial; there are at least U.

        Random combinations of a row's elements are checked; their number depends on the field.
        """
        code, field = self._protocol.code, self._protocol.field
        random = field.elements([self._secrets(SEED_BYTES)], [field.checks * code.width])
        combined = matrices.product(sums, random.reshape(code.width, field.checks), field)
        shares = Shares(
            owners=np.zeros(1, np.int64),
            holders=numbers[None],
            numbers=numbers,
            received=np.ones((1, numbers.size), np.bool_),
            values=combined[None],
            holding=numbers.size,
            field=field,
        )
        right = np.flatnonzero(reconcile(shares, code.needed).received[0])
        if not right.size:
            least = (numbers.size - code.needed) // 2 + 1
            raise BelowThresholdError(
                f"round {self.round_index} cannot end: the sums of pieces that {numbers.size} "
                f"devices sent contradict each other: {least} or more are wrong, too many to tell "
                "which ones, or somebody dealt pieces that do not belong together"
            )
        return right
