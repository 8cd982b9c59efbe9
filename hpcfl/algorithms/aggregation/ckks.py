"""Homomorphic encryption: devices share a key, and the server adds ciphertexts (CKKS).

NVFlare and FedML-HE offer this scheme. Once, before the first round, one device makes the key and
sends it to all others, sealed for each. In a round devices encrypt their weighted vectors, the
server adds the ciphertexts, and all survivors decrypt the sum. Two of them, the *reporters*, send
the sum to the server; the suite treats these two as a committee, with figures of their own.

All devices have the key, so a single device that gives it to the server reveals every vector. The
scheme is approximate, and the errors of decrypted values would reveal the key to the server.
Devices therefore round both uploads and reported sums to multiples of a step: sums are exact and
depend on the vectors alone (see `hpcfl.crypto.ckks`).

Messages, after the envelope (all numbers little-endian; "ciphertexts" as in the module
`hpcfl.crypto.ckks`, "bits" a bitmap of the N devices, the first bit of a byte being its most
significant):

===============  =============  ===================================================================
phase            direction      payload
===============  =============  ===================================================================
advertise_keys   to the server  public key (32 bytes); once
advertise_keys   to devices     the n devices' keys, zeros for a missing key; once
advertise_keys   maker to       the sealed key, and its sealing secret, sealed for each of the n
                 server         devices (32 bytes); once
advertise_keys   to devices     the same; once
model            to devices     d float32
encrypted_input  to the server  ciphertexts
decrypt          to devices     bits of the survivors, ciphertexts of the sum
decrypt          reporter to    d int64: the sum, in steps
                 server
===============  =============  ===================================================================
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.base import (
    MODEL,
    AggregationProtocol,
    Enrolment,
    ModelReceiver,
    RoundServer,
    check_finite,
)
from hpcfl.algorithms.aggregation.enrolment import PHASE, STEPS, Directory, Enrolled
from hpcfl.algorithms.aggregation.messages import (
    check_public_keys,
    from_server,
    parse_vector,
    split_bits,
)
from hpcfl.algorithms.aggregation.promises import Certain, Outcome, Promise, objection
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.phases import BROADCAST, GATHER, LOCAL, Method, Payload, Role, Step
from hpcfl.crypto import ckks, keys
from hpcfl.crypto.keystream import KEY_BYTES as SEALING_BYTES
from hpcfl.errors import BelowThresholdError, MessageError, RefusedError, UsageError
from hpcfl.options.protocols import MaskingOptions
from hpcfl.privacy.masking import UnderOneKey

WRAPPED_BYTES = SEALING_BYTES + 16
# Number of devices that report the sum to the server; one of them is enough.
REPORTERS = 2
# A constant nonce is safe: each key seals one message, the shared key or its sealing secret.
_NONCE = bytes(12)
_KEY, _WRAP = b"hpcfl/1 ckks shared key", b"hpcfl/1 ckks wrapped"


def pair_context(maker: int, device: int) -> bytes:
    """Return the context that derives the wrapping key of the maker and a device."""
    return f"hpcfl/1 ckks maker {maker} device {device} wrapping".encode()


class KeyHolder(Enrolled):
    """An enrolled device: the shared key, and the last round in which it decrypted a sum."""

    entered = "decrypted a sum of"
    kept = (*Enrolled.kept, "_public", "_maker", "in_committee")

    def __init__(self, id: int, devices: int, secrets: keys.SecretSource) -> None:
        super().__init__(id, devices, secrets)
        self._source = secrets
        self._public: dict[int, bytes] = {}
        self._maker = -1
        # Whether this device makes the key, as the first device whose public key was received.
        self.in_committee = False

    def receive_advertise_keys(self, payload: Payload) -> None:
        """Record the enrolled devices, and which of them makes the key."""
        listed = dict(enumerate(self._listed(payload, keys.KEY_BYTES, self.devices)))
        self._public = {id: key for id, key in listed.items() if any(key)}
        if self._public.get(self.id) != self._pair.public:
            raise RefusedError(f"device {self.id} is told that its public key was not received")
        check_public_keys(b"".join(self._public.values()), [*self._public])
        self._maker = min(self._public)
        self.in_committee = self.id == self._maker

    def send_shared_key(self) -> Payload:
        """Make the shared key, and return it sealed for every device."""
        secret = ckks.Context().written()
        sealing = self._source(SEALING_BYTES)
        sealed = AESGCM(sealing).encrypt(_NONCE, secret, _KEY)
        others = {id: key for id, key in self._public.items() if id != self.id}
        wrapped = dict.fromkeys(range(self.devices), bytes(WRAPPED_BYTES))
        agreed = keys.agreed(self._pair.private, others, partial(pair_context, self.id))
        for id, wrapping in agreed.items():
            wrapped[id] = AESGCM(wrapping).encrypt(_NONCE, sealing, _WRAP)
        self._keep([secret])
        return np.frombuffer(sealed + b"".join(wrapped.values()), np.uint8)

    def receive_shared_key(self, payload: Payload) -> None:
        """Decrypt and keep the shared key."""
        if self.in_committee:
            return
        cut = payload.size - WRAPPED_BYTES * self.devices
        if cut < 0:
            raise from_server(PHASE, f"{payload.size} bytes hold no key")
        start = cut + WRAPPED_BYTES * self.id
        (shared,) = keys.agree(self._pair.private, [self._public[self._maker]])
        wrapping = keys.derive(shared, pair_context(self._maker, self.id))
        try:
            wrapped = payload[start : start + WRAPPED_BYTES].tobytes()
            sealing = AESGCM(wrapping).decrypt(_NONCE, wrapped, _WRAP)
            secret = AESGCM(sealing).decrypt(_NONCE, payload[:cut].tobytes(), _KEY)
            ckks.Context(secret)
        except (InvalidTag, ValueError):
            raise from_server(PHASE, "the key that devices share does not open") from None
        self._keep([secret])

    def context(self, round_index: int) -> ckks.Context:
        """Return the CKKS context of the shared key."""
        if not self._secrets:
            raise RefusedError(f"{self.name} refuses round {round_index}: it has not enrolled")
        return ckks.Context(self._secrets)


class KeyRelay(Directory):
    """The server's side of the enrolment: it relays sealed keys."""

    def __init__(self, devices: int) -> None:
        super().__init__(devices)
        self._sealed: Payload | None = None

    @property
    def committee(self) -> list[int]:
        """The device that makes the key: the first one that advertised its own."""
        return sorted(self._sent)[:1]

    def receive_shared_key(self, sender: int, payload: Payload) -> None:
        """Keep the sealed key."""
        if payload.size <= WRAPPED_BYTES * self._devices or [sender] != self.committee:
            reason = "it holds no key, or another device is to make it"
            raise MessageError(PHASE, f"device {sender}", reason)
        # A copy, because the transport reuses its memory.
        self._sealed = payload.copy()

    def send_shared_key(self) -> Payload:
        """Return the sealed key."""
        if self._sealed is None:
            raise BelowThresholdError(
                "the enrolment cannot end: the device that was to make the shared key sent none"
            )
        return self._sealed


class WeightedVector:
    """What a device contributes: its vector times its weight, in steps."""

    def __init__(self, protocol: Ckks, id: int) -> None:
        self.id = id
        self._scale = protocol.parameters.weight(id) / protocol.divisor

    def contribution(self, vector: NDArray[np.floating]) -> tuple[slice, NDArray[np.float64]]:
        """Return the coordinates and values that the device added to the sum."""
        return slice(None), ckks.from_steps(ckks.in_steps(vector.astype(np.float64) * self._scale))


class CkksDevice(ModelReceiver, WeightedVector):
    """A device's side of one round; `holder` is its state for all rounds."""

    def __init__(self, protocol: Ckks, id: int, round_index: int, holder: KeyHolder) -> None:
        ModelReceiver.__init__(self, protocol.model_dim)
        WeightedVector.__init__(self, protocol, id)
        self._protocol = protocol
        self._round = round_index
        self._holder = holder
        self._decrypted: NDArray[np.int64] | None = None
        # Whether this device reports the sum to the server.
        self.in_committee = False

    def send_encrypted_input(self, vector: NDArray[np.floating]) -> Payload:
        """Return the weighted vector, encrypted."""
        check_finite(self.id, vector)
        # This bounds the vector before weighting, so the sum has the same bound.
        largest = ckks.LARGEST * self._protocol.divisor
        if np.abs(vector).max() > largest:
            raise RefusedError(
                f"device {self.id} refuses to upload its vector: it holds a value beyond "
                f"{largest:g}, the largest that {self._protocol.name} sums"
            )
        _, weighted = self.contribution(vector)
        encrypted = self._holder.context(self._round).encrypt(weighted)
        return np.frombuffer(encrypted, np.uint8)

    def receive_decrypt(self, payload: Payload) -> None:
        """Decrypt the sum if enough devices are in it."""
        devices = self._protocol.parameters.devices
        survivors, encrypted = split_bits(payload, devices, "decrypt")
        broken = objection(self._protocol.promises(), Outcome(devices, len(survivors)))
        if broken is not None:
            raise RefusedError(f"device {self.id} refuses to decrypt: {broken}")
        # Only once a round: a second request could be for another sum.
        self._holder.enter(self._round)
        context = self._holder.context(self._round)
        try:
            self._decrypted = context.decrypt(encrypted.tobytes(), self._protocol.parameters.dim)
        except ValueError as error:
            raise from_server("decrypt", str(error)) from None
        except OverflowError:
            raise RefusedError(
                f"device {self.id} cannot report the sum: a vector was encrypted under another "
                "key, or holds values that are too large, and nobody can tell whose"
            ) from None
        self.in_committee = self.id in survivors[:REPORTERS]

    def send_decrypt(self) -> Payload:
        """Return the decrypted sum."""
        if self._decrypted is None:
            raise RefusedError(f"device {self.id} was not given a sum to decrypt")
        return self._decrypted.astype("<i8", copy=False).view(np.uint8)


class CkksServer(RoundServer):
    """The server's side of one round."""

    def __init__(self, protocol: Ckks, round_index: int, model: NDArray[np.float32]) -> None:
        super().__init__(protocol, round_index, model)
        # The server's own key, which decrypts nothing.
        self._context = ckks.Context()
        self._sum: list[Any] = []
        self._told: dict[int, NDArray[np.int64]] = {}
        self.committee: list[int] = []
        self.total = np.empty(0)

    def receive_encrypted_input(self, sender: int, payload: Payload) -> None:
        """Add a device's encrypted vector to the sum."""
        name = self._first("encrypted_input", sender, self.survivors)
        try:
            self._sum = self._context.add(self._sum, payload.tobytes(), self._dim)
        except ValueError as error:
            raise MessageError("encrypted_input", name, str(error)) from None
        self.survivors.append(sender)

    def finish_encrypted_input(self) -> None:
        """Fix the devices in the sum and the reporters."""
        self._settle_survivors("sent their encrypted vectors")
        self.committee = self.survivors[:REPORTERS]

    def send_decrypt(self) -> Payload:
        """Return the devices in the sum, and the encrypted sum."""
        added, self._sum = ckks.Context.summed(self._sum), []
        return np.concatenate([self._bits(self.survivors), np.frombuffer(added, np.uint8)])

    def receive_decrypt(self, sender: int, payload: Payload) -> None:
        """Keep the sum that a reporter sends."""
        name = self._first("decrypt", sender, self._told)
        if sender not in self.committee:
            raise MessageError("decrypt", name, "it is no reporter")
        self._told[sender] = parse_vector(payload, "<i8", self._dim, "decrypt", name).copy()

    def finish_decrypt(self) -> None:
        """Take the sum if all reporters that answered agree on it."""
        if not self._told:
            raise BelowThresholdError(
                f"round {self.round_index} cannot end: no reporter sent the sum"
            )
        first, *others = self._told.values()
        if any(not np.array_equal(first, other) for other in others):
            raise BelowThresholdError(
                f"round {self.round_index} cannot end: two devices decrypted the sum differently"
            )
        self.total, self._told = ckks.from_steps(first), {}


ENROLMENT = (
    *STEPS,
    Step(
        PHASE, GATHER, KeyHolder.send_shared_key, KeyRelay.receive_shared_key, role=Role.COMMITTEE
    ),
    Step(PHASE, BROADCAST, KeyRelay.send_shared_key, KeyHolder.receive_shared_key),
)


class Ckks(AggregationProtocol):
    """Sums of encrypted vectors."""

    name = "ckks"
    min_devices = 2
    devices_learn_sum = True
    steps = (
        MODEL,
        Step(
            "encrypted_input",
            GATHER,
            CkksDevice.send_encrypted_input,
            CkksServer.receive_encrypted_input,
            upload=True,
            finish=CkksServer.finish_encrypted_input,
        ),
        Step("decrypt", BROADCAST, CkksServer.send_decrypt, CkksDevice.receive_decrypt),
        Step(
            "decrypt",
            GATHER,
            CkksDevice.send_decrypt,
            CkksServer.receive_decrypt,
            role=Role.COMMITTEE,
            finish=CkksServer.finish_decrypt,
        ),
        Step("result", LOCAL),
    )

    def __init__(self, parameters: Parameters) -> None:
        super().__init__(parameters)
        ckks.library()
        if parameters.devices > ckks.MOST_VECTORS:
            raise UsageError(
                f"{self.name} adds up at most {ckks.MOST_VECTORS} vectors without an error, and "
                f"there are {parameters.devices} devices"
            )

    @classmethod
    def enrolment(cls, devices: int, helpers: int = 0) -> Enrolment:
        """Return the enrolment, in which one device makes a key for all others."""
        return Enrolment(
            ENROLMENT,
            ckks.LARGEST_KEY_BYTES + 16 + WRAPPED_BYTES * devices,
            server=lambda: KeyRelay(devices),
            device=lambda id, secrets: KeyHolder(id, devices, secrets),
        )

    @classmethod
    def masking(cls, devices: int, options: MaskingOptions) -> UnderOneKey:
        return UnderOneKey(devices)

    @property
    def needed_in_sum(self) -> int:
        return self.parameters.threshold

    def promises(self) -> list[Promise]:
        threshold = self.parameters.threshold
        kept = (
            "as long as no device gives the server the key that all share, the server learns the "
            f"sum of at least {threshold} devices' vectors, which two of them decrypt. One "
            "colluding device exposes every vector"
        )
        return [Certain(kept, threshold)]

    @property
    def largest_message(self) -> int:
        return ckks.blocks(self.parameters.dim) * (4 + ckks.LARGEST_BYTES)

    @property
    def members_in_round(self) -> int:
        return REPORTERS

    def sizes(self) -> dict[Method, float]:
        dim, named = self.parameters.dim, -(-self.parameters.devices // 8)
        encrypted = ckks.blocks(dim) * (4 + ckks.TYPICAL_BYTES)
        return {
            CkksDevice.send_encrypted_input: encrypted,
            CkksServer.send_decrypt: named + encrypted,
            CkksDevice.send_decrypt: 8 * dim,
        }

    def device(self, id: int, round_index: int, secrets: keys.SecretSource) -> CkksDevice:
        return CkksDevice(self, id, round_index, self.enrolled[self.members[id]])

    def server(
        self,
        round_index: int,
        model: NDArray[np.float32],
        secrets: keys.SecretSource = keys.system_secrets,
    ) -> CkksServer:
        return CkksServer(self, round_index, model)

    def stand_in(self, server: Any, id: int, round_index: int) -> WeightedVector:
        return WeightedVector(self, id)

    def decode(self, total: NDArray[Any]) -> NDArray[np.float64]:
        return total
