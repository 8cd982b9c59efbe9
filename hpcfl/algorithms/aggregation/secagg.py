"""SecAgg: secure aggregation with double masking (Bonawitz et al., CCS 2017, Fig. 4).

The names of the sets are the paper's: U1 advertised keys, U2 shared them, U3 uploaded, U4 answered
the unmasking request. The server is honest but curious, and devices may vanish at any step.

Messages, after the envelope (all numbers little-endian):

==============  ===============  =================================================================
phase           direction        payload
==============  ===============  =================================================================
model           to devices       d float32
advertise_keys  to the server    share-transport key (32 bytes), mask key (32)
advertise_keys  to devices       the keys of those it is linked with (see the module `topology`)
share_keys      device to peer   AES-GCM ciphertext of 9 + 5 limbs: shares of the mask key's
                                 private half and of the private-mask seed
masked_input    to the server    d group elements
unmask          to devices       U3, and U2 without U3 (see the module `topology`)
unmask          to the server    shares: 5 limbs for each member of U3, 9 for each of U2 without
                                 U3, of those whose shares the device holds; all ones for a share
                                 that it was not sent
==============  ===============  =================================================================

A malformed message is an error of its sender, of which nothing is used: a server's method that
raises one leaves the round as it was. A share that a device was not sent as it should have been is
missing for the unmasking; the masks of the pair are added all the same. What no one can tell is a
wrong share among exactly t: more than t are checked against each other (see `reconstruction`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.base import (
    ModelReceiver,
    ModelSender,
    QuantisedProtocol,
    parse_vector,
)
from hpcfl.algorithms.aggregation.reconstruction import ABSENT, Right, check
from hpcfl.algorithms.aggregation.topology import (
    Complete,
    Topology,
    check_advertised,
    from_server,
    ring_of,
    to_flags,
)
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.phases import NOBODY, Ids, Pattern, Payload, Rows, Step
from hpcfl.crypto import keys, shamir
from hpcfl.crypto.groups import FQ, Elements
from hpcfl.crypto.keystream import KEY_BYTES as SEED_BYTES
from hpcfl.errors import BelowThresholdError, HpcflError, MessageError, RefusedError

MASK_KEY_LIMBS = shamir.limb_count(keys.KEY_BYTES)
SEED_LIMBS = shamir.limb_count(SEED_BYTES)
TAG_BYTES = 16
SHARE_BYTES = 4 * (MASK_KEY_LIMBS + SEED_LIMBS) + TAG_BYTES


class SecAgg(QuantisedProtocol):
    """Secure aggregation of whole vectors.

    Attributes
    ----------
    topology : Topology
        Who shares keys and masks with whom.
    """

    name = "secagg"
    min_devices = 2
    steps: tuple[Step, ...] = (
        Step("model", Pattern.BROADCAST),
        Step("advertise_keys", Pattern.GATHER),
        Step("advertise_keys", Pattern.BROADCAST),
        Step("share_keys", Pattern.ROUTE),
        Step("masked_input", Pattern.GATHER, upload=True),
        Step("unmask", Pattern.BROADCAST),
        Step("unmask", Pattern.GATHER),
        Step("result", Pattern.LOCAL),
    )

    def __init__(self, parameters: Parameters) -> None:
        super().__init__(parameters)
        self.topology = self._topology()
        self.steps = tuple(
            replace(step, pattern=self.topology.pattern)
            if step.phase != "model" and step.pattern is Pattern.BROADCAST
            else step
            for step in type(self).steps
        )

    def _topology(self) -> Topology:
        """Return SecAgg's complete graph, or the ring that is asked for."""
        parameters = self.parameters
        if parameters.degree is None:
            return Complete(parameters.devices, parameters.threshold)
        return ring_of(parameters)

    def settings(self) -> dict[str, Any]:
        return {"degree": self.topology.degree, "threshold": self.topology.threshold}

    def promises(self) -> list[str]:
        return [self.topology.promise(self.parameters)]

    @property
    def largest_upload(self) -> int:
        """An upper bound of the bytes of a masked vector."""
        return 4 * self.parameters.dim

    @property
    def largest_message(self) -> int:
        reply = 4 * MASK_KEY_LIMBS * (self.topology.degree + 1)
        return max(self.largest_upload, reply, 2 * keys.KEY_BYTES)

    def device(self, id: int, round_index: int, secrets: keys.SecretSource) -> SecAggDevice:
        return SecAggDevice(self, id, round_index, secrets)

    def server(self, round_index: int, model: NDArray[np.float32]) -> SecAggServer:
        return SecAggServer(self, round_index, model)

    def round_context(self, round_index: int) -> bytes:
        """Return the context in which a round's keys are linked."""
        return f"hpcfl/1 {self.name} round {round_index} links".encode()

    def pair_context(self, round_index: int, i: int, j: int, use: str) -> bytes:
        """Return the context in which the secret of a pair of devices gives a key for one use."""
        low, high = min(i, j), max(i, j)
        return f"hpcfl/1 {self.name} round {round_index} pair {low} {high} {use}".encode()

    def private_mask_key(self, round_index: int, device: int, seed: bytes) -> bytes:
        """Return the key of a device's private mask (eq. 12)."""
        context = f"hpcfl/1 {self.name} round {round_index} device {device} private mask"
        return keys.derive(seed, context.encode())

    def pair_keys(
        self, round_index: int, i: int, peers: Sequence[int], secrets: Sequence[bytes], use: str
    ) -> list[bytes]:
        """Return the key that device `i` has in common with each peer, for one use."""
        return [
            keys.derive(secret, self.pair_context(round_index, i, peer, use))
            for peer, secret in zip(peers, secrets, strict=True)
        ]


def pair_sign(i: int, j: int) -> int:
    """Return the sign with which device `i` adds the mask it has in common with `j` (eq. 18)."""
    return 1 if i < j else -1


class SecAggDevice(ModelReceiver):
    """A device's side of one round.

    Parameters
    ----------
    protocol : SecAgg
        Parameters and key derivations.
    id : int
        The device's id.
    round_index : int
        The round.
    secrets : callable
        Where keys and seeds come from.
    """

    def __init__(
        self, protocol: SecAgg, id: int, round_index: int, secrets: keys.SecretSource
    ) -> None:
        super().__init__(protocol.parameters.dim)
        self.id = id
        self._protocol = protocol
        self._parameters = protocol.parameters
        self._round = round_index
        self._secrets = secrets
        self._seed = b""
        # By holder: the keys that shares travel under, whether a row came, and the shares.
        self._transport_keys: list[bytes] = []
        self._have = np.zeros(0, np.bool_)
        self._shares = np.zeros((0, MASK_KEY_LIMBS + SEED_LIMBS), np.uint32)
        # What was wrong with rows that this device could do without.
        self.ignored: list[MessageError] = []
        self._uploaded = False
        # Whether the sum cannot be right, whatever the others do now.
        self.disowns_upload = False
        self._request: tuple[list[int], list[int]] | None = None

    # advertise_keys

    def send_advertise_keys(self) -> Payload:
        """Return this device's two public keys, made for this round only."""
        self._transport_pair = keys.KeyPair.generate(self._secrets)
        self._mask_pair = keys.KeyPair.generate(self._secrets)
        public = self._transport_pair.public + self._mask_pair.public
        return np.frombuffer(public, np.uint8)

    def receive_advertise_keys(self, payload: Payload) -> None:
        """Take the keys of those this device is linked with: no key twice, its own as it sent."""
        own = self._transport_pair.public + self._mask_pair.public
        topology = self._protocol.topology
        self._links = topology.read_key_list(payload, self.id, own)
        self._links.check_keys()
        holders = self._links.holders
        if len(holders) < topology.threshold:
            raise RefusedError(
                f"device {self.id} refuses to share keys with {len(holders)} devices: "
                f"the threshold is {topology.threshold}"
            )
        topology.check_place(self._links, self._protocol.round_context(self._round))
        peers = [k for k, id in enumerate(holders) if id != self.id]
        secrets = self._agree(
            self._transport_pair.private, [self._links.transport_key(k) for k in peers]
        )
        derived = self._seal_keys(peers, secrets)
        derived.insert(holders.index(self.id), b"")
        self._transport_keys = derived
        self._have = np.zeros(len(holders), np.bool_)
        self._shares = np.zeros((len(holders), MASK_KEY_LIMBS + SEED_LIMBS), np.uint32)

    def _seal_keys(self, peers: list[int], secrets: list[bytes]) -> list[bytes]:
        """Return the key that shares travel under to each of the holders with these indices."""
        ids = [self._links.holders[k] for k in peers]
        return self._protocol.pair_keys(self._round, self.id, ids, secrets, "share transport")

    # share_keys

    def send_share_keys(self) -> tuple[Ids, Rows]:
        """Return an encrypted share of the mask key and of the private-mask seed for every peer."""
        if self._seed:
            raise RefusedError(f"device {self.id} refuses to share keys twice in a round")
        self._seed = self._secrets(SEED_BYTES)
        limbs = np.concatenate(
            [shamir.to_limbs(self._mask_pair.private), shamir.to_limbs(self._seed)]
        )
        degree = self._protocol.topology.threshold - 1
        uniform = FQ.elements([self._secrets(SEED_BYTES)], [degree * limbs.size])
        shares = shamir.split(limbs, uniform.reshape(degree, -1), self._links.numbers)
        holders = self._links.holders
        rows = np.empty((len(holders), SHARE_BYTES), np.uint8)
        for k, (id, share) in enumerate(zip(holders, shares.astype("<u4"), strict=True)):
            if id == self.id:
                self._keep_share(k, share)
                continue
            nonce, associated = self._share_labels(self.id, id)
            cipher = AESGCM(self._transport_keys[k])
            rows[k] = np.frombuffer(cipher.encrypt(nonce, share.tobytes(), associated), np.uint8)
        own = holders.index(self.id)
        return np.delete(np.array(holders, np.int64), own), np.delete(rows, own, axis=0)

    def receive_share_keys(self, senders: Ids, rows: Rows) -> None:
        """Decrypt the shares of the peers in U2, which must be at least t - 1.

        U2 are the peers from whom a row came: they have this device in their U2, so the masks of
        the pair must be added. If the row holds no share, this device cannot answer for that peer,
        and says so when it is asked; others can. A row that no peer can have sent, or a second one
        of a peer, could be what became of the row of a peer from whom none came. Whether that peer
        is in U2 cannot be known then, and this device drops out, before it uploads.

        Raises
        ------
        RefusedError
            If too few rows came.
        MessageError
            If U2 cannot be known.
        """
        index = {id: k for k, id in enumerate(self._links.holders) if id != self.id}
        threshold = self._protocol.topology.threshold
        sharing = 1 + len({*senders.tolist()} & {*index})
        if sharing < threshold:
            raise RefusedError(
                f"device {self.id} refuses to go on with {sharing} devices: "
                f"the threshold is {threshold}"
            )
        opened = np.zeros(len(self._links.holders), np.bool_)
        strange: list[MessageError] = []
        for sender, row in zip(senders.tolist(), rows, strict=True):
            place, name = index.get(sender), f"device {sender}"
            if sender == NOBODY:
                reason = "its envelope is of another message"
                strange.append(MessageError("share_keys", "an unknown device", reason))
                continue
            if place is None:
                strange.append(MessageError("share_keys", name, "it advertised no keys"))
                continue
            if self._have[place]:
                strange.append(MessageError("share_keys", name, "it came twice"))
            if opened[place]:
                continue
            try:
                self._keep_share(place, self._open_share(sender, row, self._transport_keys[place]))
                opened[place] = True
            except MessageError as error:
                self.ignored.append(error)
                self._keep_share(place, ABSENT)
        self.ignored += strange
        if strange and len(self._members()) < len(self._links.holders):
            raise strange[0]

    def _open_share(self, sender: int, row: Payload, key: bytes) -> Elements:
        nonce, associated = self._share_labels(sender, self.id)
        try:
            share = AESGCM(key).decrypt(nonce, row.tobytes(), associated)
        except (InvalidTag, ValueError):
            raise self._unsealed(sender) from None
        limbs = parse_vector(
            np.frombuffer(share, np.uint8),
            "<u4",
            MASK_KEY_LIMBS + SEED_LIMBS,
            "share_keys",
            f"device {sender}",
        )
        if (limbs >= FQ.modulus).any():
            raise MessageError("share_keys", f"device {sender}", "a share is no field element")
        return limbs

    def _unsealed(self, sender: int) -> HpcflError:
        """Return the error for shares that do not decrypt."""
        return MessageError("share_keys", f"device {sender}", "it does not decrypt")

    def _keep_share(self, index: int, limbs: Elements | int) -> None:
        self._have[index] = True
        self._shares[index] = limbs

    def _members(self) -> list[int]:
        """Return the holders in U2, this device included."""
        return [id for id, came in zip(self._links.holders, self._have, strict=True) if came]

    def _share_labels(self, sender: int, receiver: int) -> tuple[bytes, bytes]:
        """Return the nonce and the associated data of a share; each key seals one a direction."""
        associated = (
            f"hpcfl/1 {self._protocol.name} round {self._round} from {sender} to {receiver}"
        )
        nonce = sender.to_bytes(4, "little") + receiver.to_bytes(4, "little") + bytes(4)
        return nonce, associated.encode()

    # masked_input

    def send_masked_input(self, vector: NDArray[np.floating]) -> Payload:
        """Return the quantised vector plus the private mask plus the pairwise masks."""
        self._upload_once()
        integers = self._quantise(vector)
        elements = self._parameters.arithmetic.reduce(integers)
        peers, secrets = self._mask_secrets()
        mask_keys = self._protocol.pair_keys(self._round, self.id, peers, secrets, "additive mask")
        private = self._protocol.private_mask_key(self._round, self.id, self._seed)
        signs = [pair_sign(self.id, peer) for peer in peers]
        masked = self._parameters.arithmetic.add_masks(elements, [private, *mask_keys], [1, *signs])
        return masked.astype("<u4", copy=False).view(np.uint8)

    def _upload_once(self) -> None:
        """Refuse to mask a second vector: the difference of two would be in the clear."""
        if self._uploaded:
            raise RefusedError(f"device {self.id} refuses to upload twice in a round")
        self._uploaded = True

    def _mask_secrets(self) -> tuple[list[int], list[bytes]]:
        """Return the peers in U2 and the secret that this device's mask key shares with each."""
        holders = self._links.holders
        peers = [k for k in np.flatnonzero(self._have).tolist() if holders[k] != self.id]
        public = [self._links.mask_key(k) for k in peers]
        return [holders[k] for k in peers], self._agree(self._mask_pair.private, public)

    def _agree(self, private: bytes, public: list[bytes]) -> list[bytes]:
        try:
            return keys.agree(private, public)
        except ValueError:
            raise from_server("advertise_keys", "a public key has low order") from None

    @property
    def _arrival(self) -> float:
        """Probability that a coordinate of this device reaches the round's sum."""
        return self._protocol.arrival

    def _quantise(self, values: NDArray[np.floating]) -> NDArray[np.int64]:
        return self._protocol.quantise(values, self.id, self._round, self._arrival)

    def sent(self) -> NDArray[np.int64] | slice:
        """Return the coordinates that the upload holds, in the order of its values."""
        return slice(None)

    def contribution(
        self, vector: NDArray[np.floating]
    ) -> tuple[NDArray[np.int64] | slice, NDArray[np.int64]]:
        where = self.sent()
        return where, self._quantise(vector[where])

    def unquantised(
        self, vector: NDArray[np.floating]
    ) -> tuple[NDArray[np.int64] | slice, NDArray[np.float64], int]:
        """Return the contribution before clipping and rounding, and how much was clipped."""
        where = self.sent()
        scaled = vector[where].astype(np.float64) * self._protocol.scale(self.id, self._arrival)
        clipped = int(np.count_nonzero(np.abs(vector[where]) > self._parameters.clip))
        return where, scaled, clipped

    # unmask

    def receive_unmask(self, payload: Payload) -> None:
        """Check the server's request: answering a wrong one could reveal this or another vector."""
        topology = self._protocol.topology
        survivors, dropped = topology.read_request(payload, self._links)
        both = sorted({*survivors} & {*dropped})
        if self._request is not None:
            raise RefusedError(f"device {self.id} refuses a second unmasking request")
        if both:
            raise RefusedError(
                f"device {self.id} refuses to reveal its shares of both secrets of device {both[0]}"
            )
        if len(survivors) < topology.threshold:
            raise RefusedError(
                f"device {self.id} refuses to unmask the sum of {len(survivors)} devices: "
                f"the threshold is {topology.threshold}"
            )
        if sorted(survivors + dropped) != sorted(self._members()):
            # It has masked with those, and what it has uploaded is part of the sum.
            self.disowns_upload = self._uploaded
            raise RefusedError(
                f"device {self.id} refuses to unmask: the request does not name exactly the "
                "devices that shared keys with it"
            )
        if self.id not in survivors:
            raise RefusedError(f"device {self.id} refuses to unmask: it is named as dropped")
        self._request = survivors, dropped

    def send_unmask(self) -> Payload:
        """Return the shares of the survivors' seeds and of the dropped devices' mask keys.

        Shares that this device was not sent are all ones.
        """
        if self._request is None:
            raise RefusedError(f"device {self.id} was not asked to unmask")
        survivors, dropped = self._request
        index = {id: k for k, id in enumerate(self._links.holders)}
        seeds = self._shares[[index[id] for id in survivors], MASK_KEY_LIMBS:]
        mask_keys = self._shares[[index[id] for id in dropped], :MASK_KEY_LIMBS]
        parts = np.concatenate([seeds.reshape(-1), mask_keys.reshape(-1)])
        return parts.astype("<u4", copy=False).view(np.uint8)


class SecAggServer(ModelSender):
    """The server's side of one round."""

    def __init__(self, protocol: SecAgg, round_index: int, model: NDArray[np.float32]) -> None:
        super().__init__(model)
        self._protocol = protocol
        self._parameters = protocol.parameters
        self._group = protocol.parameters.arithmetic
        self._round = round_index
        self._public: dict[int, bytes] = {}
        # All keys that are taken, of both kinds.
        self._keys: set[bytes] = set()
        # Whose answer turned out to be wrong only when the secrets were reconstructed.
        self.refused: dict[int, MessageError] = {}
        self._sharers: list[int] = []
        # Looked up once a message, where a list would be gone through.
        self._shared: set[int] = set()
        self._admitted: set[int] = set()
        self._sum = np.zeros(self._parameters.dim, np.int64)
        self._seed_shares: dict[int, Elements] = {}
        self._mask_key_shares: dict[int, Elements] = {}
        self._unmasked = np.empty(0, np.uint32)
        self.survivors: list[int] = []
        self.total = np.empty(0, np.int64)

    @property
    def dropped(self) -> list[int]:
        """The devices that shared keys but sent no vector."""
        return np.flatnonzero(self._gone).tolist()

    def receive_advertise_keys(self, sender: int, payload: Payload) -> None:
        """Keep a device's public keys, with which something can be agreed and no other has."""
        phase, name, size = "advertise_keys", f"device {sender}", keys.KEY_BYTES
        advertised = parse_vector(payload, "u1", 2 * size, phase, name).tobytes()
        if sender in self._public:
            raise MessageError(phase, name, "it came twice")
        check_advertised(advertised, sender)
        # Devices would refuse a list with a key twice, all of them.
        both = {advertised[:size], advertised[size:]}
        if len(both) < 2 or both & self._keys:
            raise MessageError(phase, name, "a public key of it is taken already")
        self._keys |= both
        self._public[sender] = advertised

    def finish_advertise_keys(self) -> None:
        self._require(len(self._public), "advertised keys")
        topology = self._protocol.topology
        holders = min(len(self._public), topology.degree + 1)
        if holders < topology.threshold:
            # On a ring a secret may take more holders than half of the devices.
            raise BelowThresholdError(
                f"round {self._round} cannot go on: {len(self._public)} of "
                f"{self._parameters.devices} devices advertised keys, so that a secret would have "
                f"{holders} holders, and {topology.threshold} are needed to reconstruct it"
            )
        context = self._protocol.round_context(self._round)
        self._links = self._protocol.topology.link(self._public, context)

    def send_advertise_keys(self, receiver: int | None = None) -> Payload | None:
        """Return the keys of those that a device is linked with."""
        return self._links.key_list(receiver)

    def receive_share_keys(self, ids: Ids) -> None:
        """Take note of who shared keys."""
        unknown = {*ids.tolist()} - {*self._public}
        if unknown:
            raise MessageError("share_keys", f"device {min(unknown)}", "it advertised no keys")
        self._sharers = ids.tolist()
        self._shared = set(self._sharers)
        self._require(len(self._sharers), "shared keys")

    def receive_masked_input(self, sender: int, payload: Payload) -> None:
        """Add a device's masked vector to the sum (eq. 20)."""
        vector = parse_vector(
            payload, "<u4", self._parameters.dim, "masked_input", f"device {sender}"
        )
        self._check_elements(vector, f"device {sender}")
        self._admit(sender)
        self._sum += vector

    def receive_sum_masked_input(self, senders: list[int], total: Elements) -> None:
        """Take the sum of the masked vectors, formed on the way."""
        if total.shape != self._sum.shape:
            raise MessageError("masked_input", "the devices", f"a sum of shape {total.shape} came")
        self._check_elements(total, "the devices")
        for sender in senders:
            self._check_sharer(sender)
        for sender in senders:
            self._admit(sender)
        self._sum += total

    def finish_masked_input(self) -> None:
        # Requests, seeds and shares go by id, in whatever order the uploads came.
        self.survivors.sort()
        devices = self._parameters.devices
        self._survived = to_flags(self.survivors, devices)
        self._gone = to_flags(self._sharers, devices) & ~self._survived
        self._require(len(self.survivors), "sent their masked vectors")

    def send_unmask(self, receiver: int | None = None) -> Payload | None:
        """Return the request: whose sum is to be unmasked, and who dropped out."""
        return self._links.request(receiver, self._survived, self._gone)

    def receive_unmask(self, sender: int, payload: Payload) -> None:
        """Keep a survivor's shares."""
        if sender not in self._admitted:
            raise MessageError("unmask", f"device {sender}", "it is no survivor")
        cut = SEED_LIMBS * self._links.asked_of(sender, self._survived).size
        limbs = cut + MASK_KEY_LIMBS * self._links.asked_of(sender, self._gone).size
        shares = parse_vector(payload, "<u4", limbs, "unmask", f"device {sender}")
        seed_shares = shares[:cut].reshape(-1, SEED_LIMBS)
        mask_key_shares = shares[cut:].reshape(-1, MASK_KEY_LIMBS)
        for part in (seed_shares, mask_key_shares):
            beyond = part >= FQ.modulus
            if beyond.any() and (beyond.any(axis=1) & (part != ABSENT).any(axis=1)).any():
                raise MessageError("unmask", f"device {sender}", "a share is no field element")
        if sender in self._seed_shares:
            raise MessageError("unmask", f"device {sender}", "it came twice")
        self._seed_shares[sender] = seed_shares
        self._mask_key_shares[sender] = mask_key_shares

    def finish_unmask(self) -> None:
        """Reconstruct the secrets and take the masks off the sum (eq. 21, corrected).

        A wrong share is found where more than t came, t being the threshold, and left out where at
        least t + 2 came (t + 1 of a mask key) and it is the only wrong one of its secret. With
        exactly t shares a wrong one of a mask key is found, by the public key, and one of a seed is
        not, unless what it gives is too long for a seed: the sum is wrong then.
        """
        self._require(len(self._seed_shares), "answered the unmasking request")
        seeds = self._reconstruct(self._seed_shares, self._survived, SEED_BYTES)
        private = self._reconstruct(
            self._mask_key_shares, self._gone, keys.KEY_BYTES, self._is_mask_key
        )
        self._remove_masks(seeds, private)

    def finish_result(self) -> None:
        """Return to signed integers."""
        self.total = self._group.decode(self._unmasked)

    def _reconstruct(
        self,
        shares: dict[int, Elements],
        owners: NDArray[np.bool_],
        secret_bytes: int,
        right: Right | None = None,
    ) -> list[bytes]:
        """Return the owners' secrets; `right` says whether limbs are a device's, if it can."""
        threshold = self._links.threshold
        came = self._links.collect(shares, owners, shamir.limb_count(secret_bytes))
        came, wrong = check(came, threshold, right)
        for holder, owner in wrong.items():
            reason = f"its share of a secret of device {owner} contradicts all others"
            self.refused.setdefault(holder, MessageError("unmask", f"device {holder}", reason))
        secrets = []
        counts = came.came.sum(axis=1)
        limbs = came.combine(threshold)
        for owner, one, count in zip(came.owners.tolist(), limbs, counts, strict=True):
            # What more than t shares agree on is what was dealt.
            blamed = f"device {owner}" if count > threshold else "the survivors"
            try:
                secrets.append(shamir.from_limbs(one, secret_bytes))
            except ValueError as error:
                raise MessageError("unmask", blamed, str(error)) from None
            if right is not None and not right(owner, one):
                reason = f"the shares give a wrong mask key for device {owner}"
                raise MessageError("unmask", blamed, reason)
        return secrets

    def _is_mask_key(self, id: int, limbs: Elements) -> bool:
        try:
            private = shamir.from_limbs(limbs, keys.KEY_BYTES)
        except ValueError:
            return False
        return keys.KeyPair.from_private(private).public == self._mask_public(id)

    def _remove_masks(self, seeds: list[bytes], private: list[bytes]) -> None:
        """Subtract the survivors' private masks and the pairwise masks that nothing cancelled.

        A pair of two dropped devices added nothing, so it needs nothing.
        """
        mask_keys = [
            self._protocol.private_mask_key(self._round, id, seed)
            for id, seed in zip(self.survivors, seeds, strict=True)
        ]
        signs = [-1] * len(mask_keys)
        for id, key in zip(self.dropped, private, strict=True):
            peers = self._links.neighbours(id, self._survived)
            secrets = self._agree(key, peers)
            mask_keys += self._protocol.pair_keys(self._round, id, peers, secrets, "additive mask")
            signs += [-pair_sign(survivor, id) for survivor in peers]
        self._unmasked = self._group.add_masks(self._group.reduce(self._sum), mask_keys, signs)

    def _agree(self, private: bytes, peers: list[int]) -> list[bytes]:
        """Return the secrets that a dropped device's mask key shares with its peers."""
        return keys.agree(private, [self._mask_public(id) for id in peers])

    def _mask_public(self, id: int) -> bytes:
        return self._public[id][keys.KEY_BYTES :]

    def _check_sharer(self, sender: int) -> None:
        if sender not in self._shared:
            raise MessageError("masked_input", f"device {sender}", "it shared no keys")

    def _admit(self, sender: int) -> None:
        self._check_sharer(sender)
        if sender in self._admitted:
            raise MessageError("masked_input", f"device {sender}", "it came twice")
        self._admitted.add(sender)
        self.survivors.append(sender)

    def _check_elements(self, elements: Elements, sender: str) -> None:
        if elements.size and int(elements.max()) >= self._group.modulus:
            raise MessageError("masked_input", sender, "a value is no group element")

    def _require(self, count: int, what: str) -> None:
        if count < self._parameters.threshold:
            raise BelowThresholdError(
                f"round {self._round} cannot end: {count} of {self._parameters.devices} devices "
                f"{what}, at least {self._parameters.threshold} are needed"
            )
