"""One message per device: masks that add up, whose keys are shared with a committee.

As in OPA (arXiv:2410.22303) and Willow, a device masks its vector by ring-LWE
(:mod:`hpcfl.crypto.ringlwe`) under a key of 2,048 small numbers, which is fresh in every round. It
shares the key with a committee, as `committee` does with whole vectors. The members add up the
shares of the survivors; the sum of the keys, and nothing else, removes the masks from the sum of
the uploads. OPA and Willow hand keys to their committees in other ways.

A device sends its shares and its upload together, and nothing after that unless it is a member. A
missing device costs nothing. The public polynomials of a round follow from its number and the
model, so vectors of devices that were sent different models add up to noise. (In exchanges, where
the framework sends the model, they follow from the offer.)

Devices register a key once for the encryption of shares. A nonce of the server draws the committee
of a round from all its devices after they have registered, so no device can choose a key that suits
a committee.

Messages, after the envelope (all numbers little-endian; "bits" are a bitmap, the first bit of a
byte being its most significant; n devices enrolled, and N of them are in a round):

==============  ===============  =================================================================
phase           direction        payload
==============  ===============  =================================================================
advertise_keys  to the server    public key (32 bytes); once, before the first round
advertise_keys  to devices       the public keys of all n devices, zeros for a missing one; once
model           to devices       d float32, nonce (16 bytes), bits of the round's devices (n)
share_key       device to        AES-GCM ciphertext of a share: ceil(2048 / l) elements
                member
share_key       member to        bits of the devices whose shares it holds, itself included (N)
                server
masked_input    to the server    P polynomials of 2,048 words of W bits
sum_shares      to members       bits of the devices whose shares are to be added up (N)
sum_shares      member to        the sum of their shares: ceil(2048 / l) elements
                server
==============  ===============  =================================================================

Misbehaving devices have the same effects as in `committee`: a device whose shares too many members
lack is left out.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.base import MODEL, Enrolment, ModelSender
from hpcfl.algorithms.aggregation.committee import (
    NONCE_BYTES,
    Committee,
    CommitteeDevice,
    CommitteeServer,
)
from hpcfl.algorithms.aggregation.committee import DeviceState as CommitteeState
from hpcfl.algorithms.aggregation.enrolment import PHASE, STEPS, Directory, TransportKeys
from hpcfl.algorithms.aggregation.messages import from_server, parse_vector, read_bits
from hpcfl.algorithms.aggregation.promises import Certain, Promise
from hpcfl.algorithms.aggregation.quantised import QuantisedProtocol, SumServer, until
from hpcfl.comm.phases import (
    GATHER,
    ROUTE,
    Ids,
    Method,
    Payload,
    Role,
    Rows,
    Step,
    room,
)
from hpcfl.crypto import keys, keystream
from hpcfl.crypto.groups import FIELDS, FQ, Field
from hpcfl.crypto.keystream import KEY_BYTES as SEED_BYTES
from hpcfl.crypto.ringlwe import LARGEST, MOST_BITS, RING_DIM, SIGMA, Packing, mask, masks, small
from hpcfl.errors import MessageError, RefusedError
from hpcfl.options.protocols import CommitteeOptions, ThreatOptions
from hpcfl.values import dataclass


class Member(TransportKeys):
    """An enrolled device: its key pair, and the public keys of all devices."""

    kept = (*TransportKeys.kept, "listed")
    entered = "shared a key in"
    listed = b""  # public keys by enrolment id, zeros for a device without one

    def send_advertise_keys(self) -> Payload:
        """Return the public key."""
        return np.frombuffer(self.pair.public, np.uint8)

    def receive_advertise_keys(self, payload: Payload) -> None:
        """Keep the public keys of all devices."""
        if self.listed:
            raise RefusedError(f"{self.name} refuses to enrol twice")
        listed = parse_vector(payload, "u1", self._public.size, PHASE).tobytes()
        if keys.cut(listed)[self.id] != self.pair.public:
            raise from_server(PHASE, "this device's own key is not as it sent it")
        self.listed = listed

    def enter(self, round_index: int) -> None:
        if not self.listed:
            raise RefusedError(f"{self.name} refuses round {round_index}: it has not enrolled")
        super().enter(round_index)


@dataclass
class DeviceState(CommitteeState):
    """What a device keeps between the steps of a round."""

    key_seed: bytes = until("masked_input", bytes)
    public_seed: bytes = b""


class OpaDevice(CommitteeDevice):
    """A device's side of one round; keys, errors and shares come from `secrets`."""

    _protocol: Opa
    _member: Member
    state: DeviceState
    state_class = DeviceState

    def receive_model(self, payload: Payload) -> None:
        """Keep the model, and agree on keys with the committee that the nonce draws."""
        protocol, state = self._protocol, self.state
        cut = 4 * protocol.model_dim
        super().receive_model(payload[:cut])
        nonce, rest = payload[cut : cut + NONCE_BYTES].tobytes(), payload[cut + NONCE_BYTES :]
        # In exchanges, the policy of a device was asked about the members of the offer.
        if read_bits(rest, protocol.population, "model") != [*protocol.members]:
            raise self.refusal("a round of others than it was offered")
        state.pair = self._member.pair
        state.public_seed = protocol.public_seed(self._round, payload[:cut])
        state.members = protocol.drawn(nonce, self._round)
        state.present = [id for id in state.members if any(self._key_of(id))]
        needed = protocol.code.needed
        if len(state.present) < needed:
            raise self.refusal(
                f"to share its key with {len(state.present)} members: {needed} are needed to add "
                "it up"
            )
        self._agree_with([id for id in state.present if id != self.id])

    def _key_of(self, id: int) -> bytes:
        first = keys.KEY_BYTES * self._protocol.members[id]
        return self._member.listed[first : first + keys.KEY_BYTES]

    def _agree_with(self, ids: list[int]) -> None:
        self._agree(ids, b"".join(map(self._key_of, ids)))

    def send_share_key(self) -> tuple[Ids, Rows]:
        """Return a sealed share of a fresh key for every member."""
        # Rows of two keys would be sealed under one nonce.
        self._member.enter(self._round)
        state, field = self.state, self._protocol.field
        state.key_seed = self._secrets(SEED_BYTES)
        key = small(keystream.open_stream(state.key_seed), RING_DIM)
        return self._dealt(field.reduce(key))

    def receive_share_key(self, senders: Ids, rows: Rows) -> None:
        """Keep the shares of the others' keys."""
        listed = [id for id in senders.tolist() if any(self._key_of(id))]
        self._agree_with(listed)
        self._keep("share_key", senders, rows)

    def send_masked_input(self, vector: NDArray[np.floating]) -> Payload:
        """Return the quantised vector, masked under the key."""
        # Two vectors under the same key would reveal their difference.
        self._once("upload")
        protocol, state = self._protocol, self.state
        if not state.key_seed:
            raise self.refusal("to upload: it has shared no key")
        where = self.sent()
        if protocol.noise is None:
            elements = protocol.elements(vector, where, self.id, self._round)
            values = protocol.summed_in.signed(elements)
        else:
            # Not reduced: a sum of reduced values could carry into the next value of its word.
            values = protocol.quantise(vector[where], self.id, self._round)
        secret = keystream.open_stream(state.key_seed)
        key, payload = small(secret, RING_DIM), room(protocol.largest_message)
        public = keystream.open_stream(state.public_seed)
        mask(protocol.packing, values, public, secret, key, payload)
        state.key_seed = b""
        return payload


class OpaServer(CommitteeServer, SumServer):
    """The server's side of one round."""

    _protocol: Opa
    dealing = "share_key"

    def send_model(self) -> Payload:
        """Return the model, the nonce that draws the committee, and the devices of the round."""
        nonce = self._secrets(NONCE_BYTES)
        self.committee = self._protocol.drawn(nonce, self.round_index)
        self._words = np.zeros(self._protocol.words, np.uint64)
        chosen = np.zeros(self._population, np.bool_)
        chosen[list(self._members)] = True
        drawn = np.frombuffer(nonce, np.uint8)
        return np.concatenate([super().send_model(), drawn, np.packbits(chosen)])

    def receive_share_key(self, ids: Ids) -> None:
        """Record the devices that shared their keys."""
        self.state.dealers = {*ids.tolist()}
        self._enough(len(ids), "shared their keys")

    def finish_held(self) -> None:
        """Leave out the devices whose keys the members could not add up."""
        self._enough_holders(len(self.state.held), "hold shares")
        self._leave_out_unheld(self.dealing)

    def _check_sender(self, sender: int) -> None:
        if sender not in self.state.dealers:
            raise MessageError("masked_input", f"device {sender}", "it has shared no key")
        super()._check_sender(sender)

    def _add_upload(self, sender: int, payload: Payload) -> None:
        size = self._protocol.largest_message
        packed = parse_vector(payload, "u1", size, "masked_input", f"device {sender}")
        self._protocol.packing.add(packed, self._words)

    def finish_sum_shares(self) -> None:
        """Decode the sum of the keys, and remove the sum of the masks."""
        protocol, number_of = self._protocol, {id: k for k, id in enumerate(self.committee)}
        key = protocol.field.decode(self._decoded("sum_shares", number_of))
        seed = protocol.public_seed(self.round_index, self.model.view(np.uint8))
        public, packing, dim = keystream.open_stream(seed), protocol.packing, self._dim
        for part, words in masks(public, key, packing.polynomials(dim)):
            self._words[part] -= words
        self.unmasked = protocol.summed_in.reduce(packing.collect(self._words, dim))
        self._words = self._words[:0]


Device, Server = OpaDevice, OpaServer


class Opa(Committee):
    """Secure aggregation of whole vectors with ring-LWE masks."""

    name = "opa"
    options = (*QuantisedProtocol.options, ThreatOptions, CommitteeOptions)
    family = "ring"
    device_class = OpaDevice
    server_class = OpaServer
    dealt = "key"
    dealt_dim = RING_DIM
    keeps_transport_keys = True
    steps = (
        MODEL,
        Step(
            "share_key",
            ROUTE,
            Device.send_share_key,
            Device.receive_share_key,
            to=Role.COMMITTEE,
            relay=Server.receive_share_key,
        ),
        Step(
            "share_key",
            GATHER,
            Device.send_held,
            Server.receive_held,
            role=Role.COMMITTEE,
            finish=Server.finish_held,
        ),
        # It comes after the members' reports only so that the server need not keep each upload.
        Step(
            "masked_input",
            GATHER,
            Device.send_masked_input,
            Server.receive_masked_input,
            upload=True,
            early=True,
            finish=Server.finish_masked_input,
        ),
        *Committee.steps[-3:],  # to add up the shares, and the result
    )

    @property
    def field(self) -> Field:
        """The smallest field with room for the sum of all keys, in which they are shared."""
        largest = 2 * LARGEST * self.parameters.devices
        return next(one for one in (*FIELDS.values(), FQ) if one.modulus > largest + 1)

    @property
    def packing(self) -> Packing:
        """How values are placed in words."""
        return Packing.of(self.summed_in.bits, self.parameters.devices)

    @property
    def words(self) -> int:
        """Number of words of an upload."""
        return self.packing.polynomials(self.parameters.dim) * RING_DIM

    @property
    def largest_message(self) -> int:
        return self.packing.wire_bytes(self.words)

    @classmethod
    def enrolment(cls, devices: int, helpers: int = 0) -> Enrolment:
        """Return the enrolment, in which the server passes on the public keys of all devices."""
        return Enrolment(
            STEPS,
            keys.KEY_BYTES,
            server=lambda: Directory(devices),
            device=lambda id, secrets: Member(id, devices, secrets),
        )

    def public_seed(self, round_index: int, model: Payload) -> bytes:
        """Return the seed of a round's public polynomials, which depends on the model's bytes."""
        context = f"{self.context(round_index)} public polynomials".encode()
        return hashlib.sha256(context + hashlib.sha256(model.data).digest()).digest()[:SEED_BYTES]

    def settings(self) -> dict[str, Any]:
        packing = self.packing
        return super().settings() | {
            "values_per_word": packing.values,
            "word_bits": packing.word_bits,
            "error_bits": packing.error_bits,
        }

    def promises(self) -> list[Promise]:
        assumed = (
            f"masks hide vectors if ring-LWE is hard for n = {RING_DIM}, at most {MOST_BITS} bits "
            f"and binomial errors of deviation {SIGMA:.1f}, of which the server learns the sums "
            "over all devices: 128 bits by the Homomorphic Encryption Standard, a heuristic for "
            "such errors and hints"
        )
        return [*super().promises(), Certain(assumed)]

    def sizes(self) -> dict[Method, float]:
        plan = self.parameters
        named, enrolled = -(-plan.devices // 8), -(-(self.population or plan.devices) // 8)
        return {
            ModelSender.send_model: 4 * plan.dim + NONCE_BYTES + enrolled,
            Device.send_share_key: self.row_bytes,
            Device.send_held: named,
            Device.send_masked_input: self.largest_message,
            Server.send_sum_shares: named,
            Device.send_sum_shares: self.piece_bytes,
        }
