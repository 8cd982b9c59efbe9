"""LightSecAgg (So et al., MLSys 2022, arXiv:2109.14236): the sum of the masks, recovered in one go.

Every device draws one mask for its vector, cuts it into U - T pieces, adds T random ones, and
encodes the U pieces into N, as the values of a polynomial of degree U - 1 at N points: one for each
device (Lagrange coding). Any T of them say nothing about the mask. Devices that are still there at
the end add up the pieces that they hold of the survivors' masks; any U of these sums give the sum
of the masks, which the server takes off that of the uploads. So what the server does does not grow
with the number of devices that dropped out, and no secret of a single device is ever
reconstructed. The price is paid beforehand: encoding, and N / (U - T) vectors sent by each device.

U and T follow from the plan of the round: T devices may collude, and U are sure to answer in the
end, where besides the planned dropouts one device vanishes and another one answers falsely. Fewer
than the threshold t, a majority, are never enough.

Messages, after the envelope (all numbers little-endian; "bits" are a bitmap of the N devices, the
first bit of a byte being its most significant):

==============  ===============  =================================================================
phase           direction        payload
==============  ===============  =================================================================
model           to devices       d float32
advertise_keys  to the server    public key (32 bytes)
advertise_keys  to devices       bits of U1, who advertised keys, then their keys
share_masks     device to peer   AES-GCM ciphertext of a coded piece: ceil(d / (U - T)) elements
share_masks     to the server    bits of those whose pieces the device holds, itself among them
share_masks     to devices       bits of U2, whose masks can be taken off: the others leave
masked_input    to the server    d group elements
unmask          to devices       bits of U3, whose vectors are in the sum
unmask          to the server    the sum of their pieces: ceil(d / (U - T)) elements
==============  ===============  =================================================================

The phases before ``masked_input`` need no vector: the paper lets devices play them while they
train. Keys are made anew for each round.

The server is curious, and devices do what they are to do, as in the paper. What holds beyond it: a
malformed message costs its sender alone; a device of whose pieces two others hold none is left out,
and told so; of U + 2 sums or more, one wrong one is found and left out, of U + 1 it ends the round.
A device that deals pieces which do not belong together makes the sums of its peers wrong, with the
same effect: one is taken for a wrong sum, more end the round. Sums that are wrong together may look
right, as with exactly U sums any do: the devices that sent them change the sum as they could have
by sending other vectors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation import sealed
from hpcfl.algorithms.aggregation.base import (
    ModelSender,
    QuantisedDevice,
    QuantisedProtocol,
    check_finite,
)
from hpcfl.algorithms.aggregation.costs import Crowd, Phases, add, converted, masked_upload
from hpcfl.algorithms.aggregation.messages import (
    check_public_keys,
    from_bits,
    from_server,
    parse_vector,
    to_flags,
)
from hpcfl.algorithms.aggregation.promises import Outcome, Promise, objection
from hpcfl.algorithms.aggregation.reconstruction import Shares, reconcile
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.phases import Ids, Pattern, Payload, Rows, Step
from hpcfl.crypto import keys, matrices
from hpcfl.crypto.coding import INTERPOLATED_ROW, Code
from hpcfl.crypto.groups import FQ, Elements
from hpcfl.crypto.keystream import KEY_BYTES as SEED_BYTES
from hpcfl.errors import BelowThresholdError, MessageError, PromiseError, RefusedError, UsageError
from hpcfl.privacy.masking import OnlySummed

# Random combinations of the sums' elements by which wrong sums are found: one goes unnoticed with
# a probability of 1 / q for each.
CHECKS = 2
# So many devices may answer falsely without harm to the round.
LIARS = 1


@dataclass(frozen=True)
class Coded(Promise):
    """A mask is hidden from those who hold few of its pieces."""

    code: Code
    exceeded: float  # probability that more than T devices collude

    @property
    def claim(self) -> str:
        private = self.code.private
        several = private > 1
        collude = f"{private} devices that collude" if several else "one device that colludes"
        pieces = f"{private} pieces say" if several else "one piece says"
        found = (
            f"the server learns the sum of at least {self.code.needed} devices' vectors, with "
            f"{collude} that of the others: {pieces} nothing about a mask"
        )
        if not self.exceeded:
            return found
        return (
            f"{found}. More collude with a probability of at most 2^{math.log2(self.exceeded):.1f}"
        )

    @property
    def worst(self) -> float:
        return self.exceeded

    def broken(self, outcome: Outcome) -> str | None:
        if outcome.survivors >= self.code.needed:
            return None
        return f"a sum of {outcome.survivors} devices is not one of {self.code.needed}"


class LightSecAgg(QuantisedProtocol):
    """Secure aggregation with coded masks."""

    name = "lightsecagg"
    min_devices = 2
    rotates = True
    not_attacked = "no mask of a single device is ever reconstructed"
    not_active = "devices do not check what others deal, nor that all were asked for the same sum"
    steps: tuple[Step, ...] = (
        Step("model", Pattern.BROADCAST),
        Step("advertise_keys", Pattern.GATHER),
        Step("advertise_keys", Pattern.BROADCAST),
        Step("share_masks", Pattern.ROUTE),
        Step("share_masks", Pattern.GATHER, message="held"),
        Step("share_masks", Pattern.BROADCAST, message="dealers"),
        Step("masked_input", Pattern.GATHER, upload=True),
        Step("unmask", Pattern.BROADCAST),
        Step("unmask", Pattern.GATHER),
        Step("result", Pattern.LOCAL),
    )

    def __init__(self, parameters: Parameters) -> None:
        super().__init__(parameters)
        if parameters.degree is not None:
            raise UsageError(
                f"lightsecagg deals pieces to all devices, so --degree {parameters.degree} has no "
                "effect: leave it out"
            )
        if self.summed_in is not FQ:
            raise UsageError(
                f"lightsecagg codes masks in a field, and {self.summed_in.name} is none: leave out "
                "--group and --bits"
            )
        answering = parameters.devices - self.threat.dropped - LIARS
        needed = max(parameters.threshold, answering)
        private = max(1, self.colluding_in_sum)
        if private >= needed:
            raise UsageError(
                f"with --gamma {parameters.gamma} {private} of {parameters.devices} devices may "
                f"collude, and {needed} stay to the end: lightsecagg needs more of these than of "
                "those; lower --gamma or --dropout"
            )
        self.code = Code(parameters.devices, needed, private, parameters.dim)
        row_bytes = 4 * self.code.width + sealed.TAG_BYTES
        self.steps = tuple(
            replace(step, row_bytes=row_bytes) if step.pattern is Pattern.ROUTE else step
            for step in type(self).steps
        )

    @classmethod
    def masking(cls, devices: int, alpha: float, degree: int | None) -> OnlySummed:
        if degree not in (None, devices - 1):
            raise UsageError(f"{cls.name} deals pieces to all devices: leave the degree out")
        return OnlySummed(devices)

    def settings(self) -> dict[str, Any]:
        devices = self.parameters.devices
        return {"degree": devices - 1, "threshold": self.code.needed}

    def promises(self) -> list[Promise]:
        return [Coded(self.code, self.more_colluding), *super().promises()]

    @property
    def sum_bytes(self) -> int:
        # The sums of pieces, from which the masks are recovered, and with them what is recovered.
        pieces = 8 * self.code.devices * self.code.width
        return self.summed_in.adder_bytes * self.parameters.dim + pieces

    @property
    def rows_at_peak(self) -> float:
        # Devices keep the pieces that were in the rows until they know whose are to be added up.
        return 2.5

    @property
    def largest_reply(self) -> int:
        return max(4 * self.code.width, keys.KEY_BYTES, -(-self.code.devices // 8))

    def count(self, phases: Phases) -> None:
        code, crowd = self.code, Crowd.of(self.parameters)
        devices, peers, survivors = crowd.devices, crowd.devices - 1, crowd.survivors
        bits = -(-devices // 8)

        advertise = phases["advertise_keys"]
        advertise.sends(keys.KEY_BYTES, devices)
        advertise.receives(bits + keys.KEY_BYTES * devices, devices)
        # One of them to make the key pair.
        add(advertise.device, {"message": 2, "agreement": 1 + peers, "derivation": peers})
        add(advertise.server, {"message": devices})

        share, row = phases["share_masks"], 4 * code.width + sealed.TAG_BYTES
        share.routes(row * peers, devices, peers)
        share.sends(bits, devices)
        share.receives(bits, devices)
        words = code.dim + code.private * code.width
        add(
            share.device,
            {
                "message": 4,
                "keystream": 2,
                "mask_word": words,
                "product": code.products,
                "sealed": 2 * peers,
                "sealed_byte": 2 * row * peers,
            },
        )
        add(share.server, {"message": devices})

        masked_upload(phases["masked_input"], self.summed_in, code.dim, survivors, 1)

        unmask = phases["unmask"]
        unmask.receives(bits, survivors)
        unmask.sends(4 * code.width, survivors)
        add(unmask.device, {"message": 2, "summed": survivors * code.width})
        work = {
            "message": survivors,
            "product": code.pieces * code.needed * code.width,
            # Every sum is checked against the others.
            "summed": CHECKS * survivors * code.width,
            "interpolated": code.needed * (code.pieces + INTERPOLATED_ROW),
        }
        add(unmask.server, work | converted(code.dim, 2))

    def device(self, id: int, round_index: int, secrets: keys.SecretSource) -> LightSecAggDevice:
        return LightSecAggDevice(self, id, round_index, secrets)

    def server(
        self,
        round_index: int,
        model: NDArray[np.float32],
        secrets: keys.SecretSource = keys.system_secrets,
    ) -> LightSecAggServer:
        return LightSecAggServer(self, round_index, model, secrets)

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
        piece: Elements = parse_vector(payload, "<u4", self.code.width, phase, sender)
        if not FQ.holds(piece):
            raise MessageError(phase, sender, "a value is not a field element")
        return piece


class LightSecAggDevice(QuantisedDevice):
    """A device's side of one round; keys and masks come from `secrets`."""

    _protocol: LightSecAgg

    def __init__(
        self, protocol: LightSecAgg, id: int, round_index: int, secrets: keys.SecretSource
    ) -> None:
        super().__init__(protocol, id, round_index)
        self._secrets = secrets
        # From which the mask follows, and the random pieces that hide it.
        self._mask_key = b""
        self._transport_keys: dict[int, bytes] = {}
        # The pieces that this device holds, by their owners.
        self._pieces: dict[int, Elements] = {}
        # What was wrong with rows that this device could do without.
        self.ignored: list[MessageError] = []
        self._uploaded = False
        self._survivors: list[int] | None = None

    # advertise_keys

    def send_advertise_keys(self) -> Payload:
        """Return this device's public key, made for this round only."""
        self._pair = keys.KeyPair.generate(self._secrets)
        return np.frombuffer(self._pair.public, np.uint8)

    def receive_advertise_keys(self, payload: Payload) -> None:
        """Agree on a key with everybody else in U1."""
        phase, cut = "advertise_keys", -(-self._parameters.devices // 8)
        members = self._protocol.read_listed(payload[:cut], phase, "the server")
        size = keys.KEY_BYTES * len(members)
        listed = parse_vector(payload[cut:], "u1", size, phase, "the server").tobytes()
        public = {
            id: listed[keys.KEY_BYTES * k : keys.KEY_BYTES * (k + 1)]
            for k, id in enumerate(members)
        }
        if public.pop(self.id, None) != self._pair.public:
            raise from_server(phase, "this device's own key is not as it sent it")
        for id, key in public.items():
            check_public_keys(key, id)
        self._require(len(members), "deal pieces of its mask to")
        try:
            secrets = keys.agree(self._pair.private, [*public.values()])
        except ValueError:
            raise from_server(phase, "a public key has low order") from None
        self._transport_keys = {
            id: keys.derive(secret, pair_context(self._round, self.id, id))
            for id, secret in zip(public, secrets, strict=True)
        }

    # share_masks

    def send_share_masks(self) -> tuple[Ids, Rows]:
        """Return a sealed coded piece of the mask for every peer."""
        if self._mask_key:
            raise RefusedError(f"device {self.id} refuses to deal pieces twice in a round")
        code = self._protocol.code
        self._mask_key = self._secrets(SEED_BYTES)
        counts = [code.dim, code.private * code.width]
        drawn = FQ.elements([self._mask_key, self._secrets(SEED_BYTES)], counts)
        peers = [*self._transport_keys]
        mine, *coded = code.encode(drawn[: code.dim], drawn[code.dim :], [self.id, *peers])
        self._pieces[self.id] = mine
        rows = np.empty((len(peers), 4 * code.width + sealed.TAG_BYTES), np.uint8)
        for k, (peer, piece) in enumerate(zip(peers, coded, strict=True)):
            labels = sealed.labels(self._protocol.name, self._round, self.id, peer)
            content = piece.astype("<u4", copy=False).tobytes()
            rows[k] = sealed.seal(self._transport_keys[peer], labels, content)
        return np.array(peers, np.int64), rows

    def receive_share_masks(self, senders: Ids, rows: Rows) -> None:
        """Keep the pieces of the others' masks; what is none is missing to its sender."""
        phase = "share_masks"
        for sender, row in zip(senders.tolist(), rows, strict=True):
            labels = sealed.labels(self._protocol.name, self._round, sender, self.id)
            try:
                content = sealed.unseal(self._transport_keys[sender], labels, row, phase, sender)
                piece = self._protocol.read_piece(content, phase, f"device {sender}")
            except MessageError as error:
                self.ignored.append(error)
            else:
                self._pieces[sender] = piece
        self._transport_keys = {}
        self._require(len(self._pieces), "go on with")

    def send_held(self) -> Payload:
        """Return whose pieces this device holds."""
        return np.packbits(to_flags(self._pieces, self._parameters.devices))

    def receive_dealers(self, payload: Payload) -> None:
        """Go on if this device's mask can be taken off."""
        dealers = self._protocol.read_listed(payload, "share_masks", "the server")
        if self.id not in dealers:
            raise RefusedError(
                f"device {self.id} is told that two others hold no piece of its mask"
            )
        self._require(len(dealers), "upload among")

    # masked_input

    def send_masked_input(self, vector: NDArray[np.floating]) -> Payload:
        """Return the quantised vector plus the mask."""
        check_finite(self.id, vector)
        # The difference of two vectors under the same mask would be in the clear.
        if self._uploaded:
            raise RefusedError(f"device {self.id} refuses to upload twice in a round")
        self._uploaded = True
        group = self._parameters.arithmetic
        elements = self._elements(vector, self.sent())
        group.mask(elements, [self._mask_key], [1], self._parameters.threads)
        return group.pack(elements)

    # unmask

    def receive_unmask(self, payload: Payload) -> None:
        """Check whose masks are to be added up: too few could reveal a vector."""
        survivors = self._protocol.read_listed(payload, "unmask", "the server")
        if self._survivors is not None:
            raise RefusedError(
                f"device {self.id} refuses a second unmasking request: the difference of two sums "
                "would be what the server must not learn"
            )
        if self.id not in survivors:
            raise RefusedError(f"device {self.id} refuses to unmask: it is named as dropped")
        self._require(len(survivors), "unmask the sum of")
        outcome = Outcome(self._parameters.devices, len(survivors))
        broken = objection(self._protocol.promises(), outcome)
        if broken is not None:
            raise RefusedError(f"device {self.id} refuses to unmask: {broken}")
        missing = [id for id in survivors if id not in self._pieces]
        if missing:
            raise RefusedError(
                f"device {self.id} cannot unmask: it holds no piece of the mask of device "
                f"{missing[0]}"
            )
        self._survivors = survivors

    def send_unmask(self) -> Payload:
        """Return the sum of the pieces of the survivors' masks."""
        if self._survivors is None:
            raise RefusedError(f"device {self.id} was not asked to unmask")
        total = np.zeros(self._protocol.code.width, np.uint64)
        for id in self._survivors:
            total += self._pieces[id]
        self._pieces = {}
        return (total % np.uint64(FQ.modulus)).astype("<u4").view(np.uint8)

    def _require(self, count: int, what: str) -> None:
        needed = self._protocol.code.needed
        if count < needed:
            raise RefusedError(
                f"device {self.id} refuses to {what} {count} devices: {needed} are needed"
            )


def pair_context(round_index: int, i: int, j: int) -> bytes:
    """Return the context in which the secret of two devices gives the key of their rows."""
    low, high = min(i, j), max(i, j)
    return f"hpcfl/1 lightsecagg round {round_index} pair {low} {high} piece transport".encode()


class LightSecAggServer(ModelSender):
    """The server's side of one round."""

    def __init__(
        self,
        protocol: LightSecAgg,
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
        self._sharers: set[int] = set()
        # Who said whose pieces it holds, and how often each device was named.
        self._held: set[int] = set()
        self._holders = np.zeros(self._devices, np.int64)
        # Of whom something was found out only when all had answered.
        self.refused: dict[int, MessageError] = {}
        self._uploads = FQ.adder(protocol.parameters.dim)
        self._answers: dict[int, Elements] = {}
        self._unmasked: Elements = np.empty(0, np.uint32)
        self.survivors: list[int] = []
        self.total: NDArray[np.signedinteger[Any]] = np.empty(0, np.int64)

    def receive_advertise_keys(self, sender: int, payload: Payload) -> None:
        """Keep a device's public key, with which something can be agreed."""
        phase, name = "advertise_keys", f"device {sender}"
        public = parse_vector(payload, "u1", keys.KEY_BYTES, phase, name).tobytes()
        if sender in self._public:
            raise MessageError(phase, name, "it was received twice")
        check_public_keys(public, sender)
        self._public[sender] = public

    def finish_advertise_keys(self) -> None:
        self._require(len(self._public), "advertised keys")

    def send_advertise_keys(self) -> Payload:
        """Return who advertised keys, and the keys."""
        listed = b"".join(self._public[id] for id in sorted(self._public))
        return np.concatenate([self._bits(self._public), np.frombuffer(listed, np.uint8)])

    def receive_share_masks(self, ids: Ids) -> None:
        """Take note of who dealt pieces."""
        sharers = {*ids.tolist()}
        unknown = sharers - {*self._public}
        if unknown:
            raise MessageError("share_masks", f"device {min(unknown)}", "it advertised no key")
        self._sharers = sharers
        self._require(len(self._sharers), "dealt pieces of their masks")

    def receive_held(self, sender: int, payload: Payload) -> None:
        """Take note of whose pieces a device holds."""
        name = f"device {sender}"
        if sender not in self._sharers or sender in self._held:
            raise MessageError("share_masks", name, "it dealt no pieces, or was received twice")
        self._holders[self._protocol.read_listed(payload, "share_masks", name)] += 1
        self._held.add(sender)

    def finish_held(self) -> None:
        """Leave out those of whom two devices hold no piece: one alone may be the one that lies."""
        for id in sorted(self._sharers):
            if len(self._held) - self._holders[id] > LIARS:
                self._sharers.discard(id)
                reason = "two devices or more hold no piece of its mask: it is left out"
                self.refused[id] = MessageError("share_masks", f"device {id}", reason)
        self._require(len(self._sharers), "dealt pieces rightly")

    def send_dealers(self) -> Payload:
        """Return whose masks can be taken off the sum."""
        return self._bits(self._sharers)

    def receive_masked_input(self, sender: int, payload: Payload) -> None:
        """Add a device's masked vector to the sum."""
        self._check_senders([sender])
        dim = self._protocol.parameters.dim
        self._uploads.add(self._protocol.read_values(payload, dim, sender))
        self.survivors.append(sender)

    def receive_sum_masked_input(self, senders: list[int], total: Elements) -> None:
        """Take the sum of the masked vectors, formed on the way."""
        self._protocol.check_sum(total, self._protocol.parameters.dim)
        self._check_senders(senders)
        self._uploads.add(total)
        self.survivors += senders

    def _check_senders(self, senders: list[int]) -> None:
        for sender in senders:
            name = f"device {sender}"
            if sender not in self._sharers:
                raise MessageError("masked_input", name, "it dealt no pieces of its mask")
            if sender in self.survivors:
                raise MessageError("masked_input", name, "it was received twice")

    def finish_masked_input(self) -> None:
        """Settle whose sum it is, and check what it is promised to hide."""
        self.survivors.sort()
        self._require(len(self.survivors), "sent their masked vectors")
        broken = objection(self._protocol.promises(), self._protocol.outcome(self))
        if broken is not None:
            raise PromiseError(
                f"round {self.round_index} ends here, before anything is revealed: {broken}"
            )

    def send_unmask(self) -> Payload:
        """Return whose masks are to be added up."""
        return self._bits(self.survivors)

    def receive_unmask(self, sender: int, payload: Payload) -> None:
        """Keep the sum of the pieces that a survivor holds."""
        name = f"device {sender}"
        if sender not in self.survivors:
            raise MessageError("unmask", name, "it is not a survivor")
        if sender in self._answers:
            raise MessageError("unmask", name, "it was received twice")
        # A copy: the transport uses its memory again.
        self._answers[sender] = self._protocol.read_piece(payload, "unmask", name).copy()

    def finish_unmask(self) -> None:
        """Recover the sum of the masks, and take it off that of the uploads."""
        code, answered = self._protocol.code, np.array(sorted(self._answers), np.int64)
        self._require(answered.size, "added up the pieces that they hold")
        sums = np.stack([self._answers[id] for id in answered.tolist()])
        self._answers = {}
        right = self._fitting(sums, answered)
        for id in np.delete(answered, right).tolist():
            reason = "its sum of pieces, or a piece that it was dealt, contradicts all others"
            self.refused[id] = MessageError("unmask", f"device {id}", reason)
        used = right[: code.needed]
        masks = code.decode(sums[used], answered[used])
        self._unmasked = self._uploads.take()
        FQ.add_into(self._unmasked, np.uint32(FQ.modulus) - masks)

    def _fitting(self, sums: Elements, answered: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows that lie on one polynomial, at least U of them.

        All elements of a row are put into `CHECKS` random combinations of them.
        """
        code = self._protocol.code
        random = FQ.elements([self._secrets(SEED_BYTES)], [CHECKS * code.width])
        combined = matrices.product(sums, random.reshape(code.width, CHECKS))
        shares = Shares(
            owners=np.zeros(1, np.int64),
            holders=answered[None],
            numbers=answered,
            received=np.ones((1, answered.size), np.bool_),
            values=combined[None],
            holding=answered.size,
        )
        right = np.flatnonzero(reconcile(shares, code.needed).received[0])
        if not right.size:
            few = answered.size == code.needed + 1
            which = (
                "one more would tell which is wrong" if few else "more than one of them is wrong"
            )
            raise BelowThresholdError(
                f"round {self.round_index} cannot end: the sums of pieces that {answered.size} "
                f"devices sent contradict each other, and {which}, or somebody dealt pieces that "
                "do not belong together"
            )
        return right

    def finish_result(self) -> None:
        """Return to signed integers, and to the original coordinates."""
        self.total = FQ.signed(self._unmasked)
        self._unmasked = np.empty(0, np.uint32)
        self.turned_back = self._protocol.turned_back(self)

    def _bits(self, ids: Any) -> Payload:
        return np.packbits(to_flags(ids, self._devices))

    def _require(self, count: int, what: str) -> None:
        needed = self._protocol.code.needed
        if count < needed:
            raise BelowThresholdError(
                f"round {self.round_index} cannot end: {count} of {self._devices} devices {what}, "
                f"at least {needed} are needed"
            )
