"""What protocols have in common in which devices deal coded pieces, and others add these up.

A device cuts a vector, or its mask, into pieces, adds T random ones, and encodes them
(:class:`~hpcfl.crypto.coding.Code`) into one for each holder. The holders send the server sums of
the pieces that they hold; any U of these, for U pieces of the vector and random ones, give the sum
of the vectors.

A piece goes to its holder under a key of the pair. A dealer is left out if more holders have none
of it than the plan does without; of fewer, it may be the holder that lies. Of n sums, up to
(n - U) / 2 wrong ones are found and left out.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation import sealed
from hpcfl.algorithms.aggregation import terms as of
from hpcfl.algorithms.aggregation.base import ModelSender, QuantisedDevice, QuantisedProtocol
from hpcfl.algorithms.aggregation.costs import Operations, coded
from hpcfl.algorithms.aggregation.messages import (
    check_public_keys,
    from_bits,
    parse_vector,
    to_flags,
)
from hpcfl.algorithms.aggregation.promises import Outcome, objection
from hpcfl.algorithms.aggregation.reconstruction import Flags, Shares, reconcile, to_leave_out
from hpcfl.algorithms.aggregation.terms import Terms
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.phases import Ids, Pattern, Payload, Rows
from hpcfl.crypto import keys, matrices
from hpcfl.crypto.coding import INTERPOLATED_ROW, Code
from hpcfl.crypto.groups import PACKED_PAIRS, Elements, Field
from hpcfl.crypto.keystream import KEY_BYTES as SEED_BYTES
from hpcfl.errors import BelowThresholdError, MessageError, PromiseError, RefusedError, UsageError
from hpcfl.options.shared import RoundOptions
from hpcfl.privacy.masking import OnlySummed
from hpcfl.privacy.threat import LIARS


class CodedProtocol(QuantisedProtocol):
    """A protocol in which devices deal coded pieces.

    Attributes
    ----------
    code : Code
        How vectors or masks are cut up and encoded, once for all devices.
    """

    min_devices = 2
    rotates = True
    family = "field"
    deals_to: ClassVar[str]  # in words, who holds pieces

    @classmethod
    def uses(cls, options: RoundOptions) -> frozenset[str]:
        return super().uses(options) | {"degree", "gamma", "security_bits"}

    def __init__(self, parameters: Parameters) -> None:
        super().__init__(parameters)
        if parameters.degree is not None:
            raise UsageError(
                f"{self.name} deals pieces to {self.deals_to}, so --degree {parameters.degree} has "
                "no effect: leave it out"
            )
        # A field with room for the sum of N vectors has numbers for the code's N + U points.
        self.code = self.choose_code()
        self.steps = tuple(
            replace(step, row_bytes=self.row_bytes) if step.pattern is Pattern.ROUTE else step
            for step in type(self).steps
        )

    @property
    def field(self) -> Field:
        """Where vectors are summed, and coded."""
        assert isinstance(self.summed_in, Field)
        return self.summed_in

    @abstractmethod
    def choose_code(self) -> Code:
        """Return the code for the parameters; UsageError if none is both private and decodable."""

    @property
    def piece_bytes(self) -> int:
        """Size of a piece."""
        return self.field.wire_bytes(self.code.width)

    @property
    def row_bytes(self) -> int:
        """Size of a sealed piece."""
        return self.piece_bytes + sealed.TAG_BYTES

    def rows_at_once(self, count: int) -> Iterator[slice]:
        """Yield parts of so many pieces that are packed together, in cache."""
        step = max(1, 2 * PACKED_PAIRS // self.code.width)
        return (slice(start, start + step) for start in range(0, count, step))

    def recovery_terms(self, answers: float) -> Terms:
        """Return what recovering what was coded, from so many sums of pieces, grows with."""
        code = self.code
        return (
            {"values of answers": answers * code.width, "interpolated": code.needed * code.pieces}
            | of.coded(self.field, code.pieces, code.needed, code.width)
            | of.packed(self.field, answers * code.width)
        )

    def recovery(self, answers: float) -> Operations:
        """Return what it takes to recover what was coded from so many sums of pieces."""
        code = self.code
        return {
            "recovered": 1,
            "answered": answers * code.width,
            "interpolated": code.needed * (code.pieces + INTERPOLATED_ROW),
        } | coded(self.field, code.pieces, code.needed, code.width)

    # What pieces and their holders are called in messages.
    piece = "piece"

    @property
    def needed_in_sum(self) -> int:
        # Holders add pieces up for no fewer.
        return self.parameters.threshold

    @classmethod
    def masking(cls, devices: int, alpha: float, degree: int | None) -> OnlySummed:
        if degree not in (None, devices - 1):
            raise UsageError(f"{cls.name} deals pieces to {cls.deals_to}: leave the degree out")
        return OnlySummed(devices)

    def read_listed(self, bitmap: Payload, phase: str, sender: str) -> list[int]:
        """Return the devices whose bits are set; MessageError if there are none such."""
        devices = self.parameters.devices
        found = from_bits(parse_vector(bitmap, "u1", -(-devices // 8), phase, sender))
        if found and found[-1] >= devices:
            reason = f"it names a device beyond the last, {devices - 1}"
            raise MessageError(phase, sender, reason)
        return found

    def read_piece(self, payload: Payload, phase: str, sender: str) -> Elements:
        """Return a coded piece, or a sum of them; MessageError if it is none."""
        return self.read_elements(payload, self.code.width, phase, sender)

    def read_pieces(self, payloads: Sequence[Payload]) -> Elements | None:
        """Return coded pieces of the right size, shape (payloads, width); None if one is wrong."""
        try:
            pieces = self.field.unpack_rows(np.stack(payloads), self.code.width)
        except ValueError:
            return None
        return pieces if self.field.holds(pieces) else None

    def pair_context(self, round_index: int, i: int, j: int) -> bytes:
        """Return the context in which the secret of two devices gives the key of their rows."""
        low, high = min(i, j), max(i, j)
        return f"hpcfl/1 {self.name} round {round_index} pair {low} {high} piece transport".encode()


class CodedDevice(QuantisedDevice):
    """A device that deals pieces, and may hold some; keys and pieces come from `secrets`."""

    _protocol: CodedProtocol

    def __init__(
        self, protocol: CodedProtocol, id: int, round_index: int, secrets: keys.SecretSource
    ) -> None:
        super().__init__(protocol, id, round_index)
        self._secrets = secrets
        # With those to whom rows go, and from whom they come.
        self._transport_keys: dict[int, bytes] = {}
        # The pieces that this device holds, by their owners.
        self._pieces: dict[int, Elements] = {}
        # What was wrong with rows that this device could do without.
        self.ignored: list[MessageError] = []
        self._survivors: list[int] | None = None

    def send_advertise_keys(self) -> Payload:
        """Return this device's public key, made for this round only."""
        self._pair = keys.KeyPair.generate(self._secrets)
        return np.frombuffer(self._pair.public, np.uint8)

    def _agree(self, ids: Sequence[int], listed: bytes) -> None:
        """Agree on a key with others, whose public keys these are, end to end."""
        size = keys.KEY_BYTES
        public = {id: listed[size * k : size * (k + 1)] for k, id in enumerate(ids)}
        if public.pop(self.id, self._pair.public) != self._pair.public:
            raise MessageError(
                "advertise_keys", "the server", "this device's own key is not as it sent it"
            )
        for id, key in public.items():
            check_public_keys(key, f"device {id}")
        secrets = keys.agree(self._pair.private, [*public.values()])
        self._transport_keys = {
            id: keys.derive(secret, self._protocol.pair_context(self._round, self.id, id))
            for id, secret in zip(public, secrets, strict=True)
        }

    def _sealed(self, peers: Sequence[int], pieces: Elements) -> tuple[Ids, Rows]:
        """Return pieces, shape (peers, width), as they are sent, a row for each peer."""
        field = self._protocol.field
        rows = np.empty((len(peers), self._protocol.row_bytes), np.uint8)
        for some in self._protocol.rows_at_once(len(peers)):
            packed = field.pack_rows(pieces[some])
            for row, peer, content in zip(rows[some], peers[some], packed, strict=True):
                labels = sealed.labels(self._protocol.name, self._round, self.id, peer)
                row[:] = sealed.seal(self._transport_keys[peer], labels, content.tobytes())
        return np.array(peers, np.int64), rows

    def _keep(self, phase: str, senders: Ids, rows: Rows) -> None:
        """Keep the pieces of others; what is none is missing to its sender."""
        for some in self._protocol.rows_at_once(len(rows)):
            contents = {}
            for sender, row in zip(senders[some].tolist(), rows[some], strict=True):
                try:
                    contents[sender] = self._unsealed(phase, sender, row)
                except MessageError as error:
                    self.ignored.append(error)
            self._pieces |= self._read_pieces(phase, contents)
        self._transport_keys = {}

    def _unsealed(self, phase: str, sender: int, row: Payload) -> Payload:
        if sender not in self._transport_keys:
            raise MessageError(phase, f"device {sender}", "it advertised no key")
        labels = sealed.labels(self._protocol.name, self._round, sender, self.id)
        return sealed.unseal(self._transport_keys[sender], labels, row, phase, sender)

    def _read_pieces(self, phase: str, contents: Mapping[int, Payload]) -> dict[int, Elements]:
        """Return the pieces of some senders."""
        if len(contents) > 1:
            pieces = self._protocol.read_pieces([*contents.values()])
            if pieces is not None:
                return dict(zip(contents, pieces, strict=True))
        read = {}
        for sender, content in contents.items():
            try:
                read[sender] = self._protocol.read_piece(content, phase, f"device {sender}")
            except MessageError as error:
                self.ignored.append(error)
        return read

    def send_held(self) -> Payload:
        """Return whose pieces this device holds."""
        return np.packbits(to_flags(self._pieces, self._parameters.devices))

    def _asked(self, payload: Payload, phase: str, what: str) -> list[int]:
        """Return whose pieces are to be added up, if too few could not reveal a vector."""
        survivors = self._protocol.read_listed(payload, phase, "the server")
        if self._survivors is not None:
            raise RefusedError(
                f"device {self.id} refuses a second request to {what}: the difference of two sums "
                "would be what the server must not learn"
            )
        self._require(len(survivors), f"{what} of")
        outcome = Outcome(self._parameters.devices, len(survivors))
        broken = objection(self._protocol.promises(), outcome)
        if broken is not None:
            raise RefusedError(f"device {self.id} refuses to {what}: {broken}")
        missing = [id for id in survivors if id not in self._pieces]
        if missing:
            raise RefusedError(
                f"device {self.id} cannot {what}: it holds no {self._protocol.piece} of device "
                f"{missing[0]}"
            )
        return survivors

    def _sum_of_pieces(self) -> Payload:
        """Return the sum of the pieces that were asked for."""
        if self._survivors is None or not self._pieces:
            raise RefusedError(
                f"device {self.id} refuses to send a sum of pieces: it was not asked, or has told"
            )
        total = np.zeros(self._protocol.code.width, np.uint64)
        for id in self._survivors:
            total += self._pieces[id]
        self._pieces = {}
        field = self._protocol.field
        return field.pack(field.reduce(total))

    def _require(self, count: int, what: str) -> None:
        needed = self._protocol.needed_in_sum
        if count < needed:
            raise RefusedError(
                f"device {self.id} refuses to {what} {count} devices: {needed} are needed"
            )


class CodedServer(ModelSender):
    """The server's side of one round."""

    def __init__(
        self,
        protocol: CodedProtocol,
        round_index: int,
        model: NDArray[np.float32],
        secrets: keys.SecretSource,
    ) -> None:
        super().__init__(model)
        self._protocol = protocol
        self._secrets = secrets
        self._devices = protocol.parameters.devices
        self.round_index = round_index
        self._public: dict[int, bytes] = {}
        self._dealers: set[int] = set()
        # Of those who said it, whose pieces they hold, by device.
        self._held: dict[int, Flags] = {}
        # Of whom something was found out only when all had answered.
        self.refused: dict[int, MessageError] = {}
        # Sums of pieces, by who added them up.
        self._answers: dict[int, Elements] = {}
        self.survivors: list[int] = []

    def receive_advertise_keys(self, sender: int, payload: Payload) -> None:
        """Keep a device's public key, with which something can be agreed."""
        phase, name = "advertise_keys", f"device {sender}"
        public = parse_vector(payload, "u1", keys.KEY_BYTES, phase, name).tobytes()
        if sender in self._public:
            raise MessageError(phase, name, "it was received twice")
        check_public_keys(public, f"device {sender}")
        self._public[sender] = public

    def finish_advertise_keys(self) -> None:
        self._require(len(self._public), "advertised keys")

    def _take_dealers(self, phase: str, ids: Ids) -> None:
        """Take note of who dealt pieces."""
        dealers = {*ids.tolist()}
        unknown = dealers - {*self._public}
        if unknown:
            raise MessageError(phase, f"device {min(unknown)}", "it advertised no key")
        self._dealers = dealers
        self._require(len(dealers), "dealt pieces")

    def _take_held(self, phase: str, sender: int, payload: Payload) -> None:
        """Take note of whose pieces a holder has."""
        name = f"device {sender}"
        if sender in self._held:
            raise MessageError(phase, name, "it was received twice")
        listed = self._protocol.read_listed(payload, phase, name)
        self._held[sender] = to_flags(listed, self._devices)

    def _leave_out_unheld(self, phase: str) -> None:
        """Leave out dealers of whom more holders have no piece than the plan does without."""
        dealers, holders = np.array(sorted(self._dealers)), np.array(sorted(self._held))
        held = np.stack([self._held[id][dealers] for id in holders.tolist()], axis=1)
        for id in dealers[to_leave_out(~held, holders, LIARS)].tolist():
            self._dealers.discard(id)
            reason = f"too many devices hold no {self._protocol.piece} of it: it is left out"
            self.refused[id] = MessageError(phase, f"device {id}", reason)
        self._require(len(self._dealers), "dealt pieces rightly")

    def _check_promises(self) -> None:
        broken = objection(self._protocol.promises(), self._protocol.outcome(self))
        if broken is not None:
            raise PromiseError(
                f"round {self.round_index} ends here, before anything is revealed: {broken}"
            )

    def _take_answer(self, phase: str, sender: int, payload: Payload) -> None:
        """Keep the sum of the pieces that a device holds."""
        name = f"device {sender}"
        if sender in self._answers:
            raise MessageError(phase, name, "it was received twice")
        # A copy: the transport uses its memory again.
        self._answers[sender] = self._protocol.read_piece(payload, phase, name).copy()

    def _decoded(self, phase: str, number_of: dict[int, int]) -> Elements:
        """Return the sum of what was coded, of the survivors, shape (d,).

        Devices have numbers as holders of pieces.
        """
        code = self._protocol.code
        answered = sorted(self._answers, key=number_of.__getitem__)
        what = f"added up the {self._protocol.piece}s that they hold"
        self._require(len(answered), what, code.needed, code.devices)
        numbers = np.array([number_of[id] for id in answered], np.int64)
        sums = np.stack([self._answers[id] for id in answered])
        self._answers = {}
        right = self._fitting(sums, numbers)
        for row in {*range(len(answered))} - {*right.tolist()}:
            reason = "its sum of pieces, or a piece that it was dealt, contradicts the others"
            self.refused[answered[row]] = MessageError(phase, f"device {answered[row]}", reason)
        used = right[: code.needed]
        return code.decode(sums[used], numbers[used])

    def _fitting(self, sums: Elements, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows that lie on one polynomial, at least U of them.

        All elements of a row are put into random combinations of them, as many as the field takes.
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

    def _bits(self, ids: Iterable[int]) -> Payload:
        return np.packbits(to_flags(ids, self._devices))

    def _require(
        self, count: int, what: str, needed: int | None = None, among: int | None = None
    ) -> None:
        """End the round with fewer devices than are needed, of so many; by default of all."""
        needed, among = needed or self._protocol.needed_in_sum, among or self._devices
        if count < needed:
            who = "devices" if among == self._devices else "members of the committee"
            raise BelowThresholdError(
                f"round {self.round_index} cannot end: {count} of {among} {who} {what}, at least "
                f"{needed} are needed"
            )
