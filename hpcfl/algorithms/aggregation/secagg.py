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
share_keys      device to peer   AES-GCM ciphertext of 10 + 6 limbs: shares of the mask key's
                                 private half and of the private-mask seed, a check behind each
share_keys      to devices       the challenge (16 bytes)
share_keys      to the server    2 limbs for each member of U2 whose shares the device should have:
                                 the answers to the challenge; all ones without a share
share_keys      to devices       only if somebody is expelled from U2: who (see the module
                                 `topology`)
masked_input    to the server    d group elements
unmask          to devices       U3, and U2 without U3 (see the module `topology`)
unmask          to the server    shares: 6 limbs for each member of U3, 10 for each of U2 without
                                 U3, of those whose shares the device holds; all ones for a share
                                 that it was not sent
unmask          to devices       only if a mask key cannot be reconstructed: whose (`topology`)
unmask          to the server    then: the secret (16 bytes) from which masks with each of them
                                 follow
==============  ===============  =================================================================

**Devices that do what they like cost the round themselves alone**, where no more of them than that
deal and answer falsely:

* A malformed message is an error of its sender, of which nothing is used. U2 are the devices that
  sent rows, as the relay tells everybody, so that all mask with all of them, whatever is in a row.
* Shares that do not belong together are found before anything is unmasked. A device shares two
  uniform limbs more, its checks, and holders answer a challenge, which is drawn after all has been
  dealt, with the check plus a random combination of their share's limbs (see `sharing`). The
  answers of a right dealer lie on one polynomial of degree t - 1; they say nothing about the
  secret, as the check is uniform. Of n answers, up to (n - t) / 2 false ones are found. A dealer
  of whom more holders have no right share than that, counted with the n that are left after the
  planned dropouts, is expelled before anybody masks with it. Fewer may have answered falsely: they
  are not believed, and not needed.
* A holder that later sends another share than it answered for is found out by the same equation.
* The mask key of a dropped device that t right shares do not give is asked for differently: every
  survivor tells the secret that masks with that device follow from, which is what its mask key
  would tell. Its private-mask seed is never asked for, so that both are never known of a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation import sealed, secagg_costs, sharing
from hpcfl.algorithms.aggregation import terms as of
from hpcfl.algorithms.aggregation.base import (
    MODEL,
    ModelSender,
    QuantisedDevice,
    QuantisedProtocol,
    Where,
    check_finite,
)
from hpcfl.algorithms.aggregation.costs import Crowd, Phases, add, masked_upload, masks, reduced
from hpcfl.algorithms.aggregation.curious import Seen
from hpcfl.algorithms.aggregation.messages import (
    check_public_keys,
    from_server,
    parse_vector,
    to_flags,
)
from hpcfl.algorithms.aggregation.promises import Outcome, Promise, objection
from hpcfl.algorithms.aggregation.ranges import Dealt, RangeSum, mask_rows
from hpcfl.algorithms.aggregation.reconstruction import ABSENT, Flags, Shares
from hpcfl.algorithms.aggregation.sharing import (
    CHALLENGE_BYTES,
    KEY_SHARE,
    SEED_SHARE,
    SHARE_BYTES,
    Dealings,
)
from hpcfl.algorithms.aggregation.terms import Terms
from hpcfl.algorithms.aggregation.topology import (
    ADVERTISED_BYTES,
    NONCE_BYTES,
    Complete,
    Request,
    Topology,
    ring_of,
)
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.phases import Ids, Pattern, Payload, Rows, Step
from hpcfl.crypto import keys, shamir
from hpcfl.crypto.groups import FQ, Elements
from hpcfl.crypto.keystream import KEY_BYTES as SEED_BYTES
from hpcfl.crypto.keystream import KEY_BYTES as TRANSPORT_KEY_BYTES
from hpcfl.errors import BelowThresholdError, MessageError, PromiseError, RefusedError
from hpcfl.options.shared import RoundOptions
from hpcfl.privacy.masking import InCohorts, Masking, ring_degree
from hpcfl.privacy.population import Population
from hpcfl.privacy.threat import LIARS, SPARE

# Devices, each with what its masks with another one follow from.
Known = list[tuple[int, bytes]]


def pair_sign(i: int, j: int) -> int:
    """Return the sign with which device `i` adds the mask it has in common with `j` (eq. 18)."""
    return 1 if i < j else -1


class SecAggDevice(QuantisedDevice):
    """A device's side of one round; keys and seeds come from `secrets`."""

    _protocol: SecAgg

    def __init__(
        self, protocol: SecAgg, id: int, round_index: int, secrets: keys.SecretSource
    ) -> None:
        super().__init__(protocol, id, round_index)
        self._secrets = secrets
        self._seed = b""
        # The keys that shares travel under, by holder, end to end, until all shares were opened.
        self._transport_keys = b""
        self._own_share = np.full(KEY_SHARE + SEED_SHARE, ABSENT, np.uint32)
        # By holder: whether it is in U2, and its shares.
        self._have = np.zeros(0, np.bool_)
        self._shares = np.zeros((0, KEY_SHARE + SEED_SHARE), np.uint32)
        # What was wrong with rows that this device could do without.
        self.ignored: list[MessageError] = []
        self._challenge: sharing.Challenge | None = None
        self._checked = False
        # How many devices were expelled, linked with this one or not.
        self._expelled: int | None = None
        self._uploaded = False
        self._request: Request | None = None
        self._wanted: Sequence[int] | None = None

    # advertise_keys

    def send_advertise_keys(self) -> Payload:
        """Return this device's two public keys, made for this round only."""
        self._transport_pair = keys.KeyPair.generate(self._secrets)
        self._mask_pair = keys.KeyPair.generate(self._secrets)
        public = self._transport_pair.public + self._mask_pair.public
        return np.frombuffer(public, np.uint8)

    def receive_advertise_keys(self, payload: Payload) -> None:
        """Take the keys of those this device is linked with, its own as it sent them."""
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
        derived.insert(holders.index(self.id), bytes(TRANSPORT_KEY_BYTES))
        self._transport_keys = b"".join(derived)
        self._have = np.zeros(len(holders), np.bool_)

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
        shares = sharing.deal(
            self._mask_pair.private,
            self._seed,
            self._protocol.topology.threshold,
            self._links.numbers,
            self._secrets,
        )
        holders = self._links.holders
        rows = np.empty((len(holders), SHARE_BYTES), np.uint8)
        for k, (id, share) in enumerate(zip(holders, shares.astype("<u4"), strict=True)):
            if id == self.id:
                self._have[k], self._own_share = True, share.copy()
                continue
            labels = self._share_labels(self.id, id)
            rows[k] = sealed.seal(self._transport_key(k), labels, share.tobytes())
        own = holders.index(self.id)
        return np.delete(np.array(holders, np.int64), own), np.delete(rows, own, axis=0)

    def receive_share_keys(self, senders: Ids, rows: Rows) -> None:
        """Decrypt the shares of the peers in U2, which must be at least t - 1.

        U2 are those who took part, and the masks of the pairs with them must be added. Of a row
        that holds no share this device cannot answer for its sender, and says so; others can.
        """
        index = {id: k for k, id in enumerate(self._links.holders)}
        self._shares = np.full((len(index), KEY_SHARE + SEED_SHARE), ABSENT, np.uint32)
        self._shares[index[self.id]] = self._own_share
        for sender, row in zip(senders.tolist(), rows, strict=True):
            place = index[sender]
            self._have[place] = True
            try:
                self._shares[place] = self._open_share(sender, row, self._transport_key(place))
            except MessageError as error:
                self.ignored.append(error)
        self._transport_keys = b""
        self._require_members()

    def _transport_key(self, place: int) -> bytes:
        start = TRANSPORT_KEY_BYTES * place
        return self._transport_keys[start : start + TRANSPORT_KEY_BYTES]

    def _require_members(self) -> None:
        count, threshold = int(self._have.sum()), self._protocol.topology.threshold
        if count < threshold:
            raise RefusedError(
                f"device {self.id} refuses to go on with {count} devices: "
                f"the threshold is {threshold}"
            )

    def _open_share(self, sender: int, row: Payload, key: bytes) -> Elements:
        phase, name = "share_keys", f"device {sender}"
        opened = sealed.unseal(key, self._share_labels(sender, self.id), row, phase, sender)
        limbs = parse_vector(opened, "<u4", KEY_SHARE + SEED_SHARE, phase, name)
        if (limbs >= FQ.modulus).any():
            raise MessageError(phase, name, "a share is not a field element")
        return limbs

    def _members(self) -> list[int]:
        """Return the holders in U2, this device included."""
        return [id for id, have in zip(self._links.holders, self._have, strict=True) if have]

    def _share_labels(self, sender: int, receiver: int) -> sealed.Labels:
        return sealed.labels(self._protocol.name, self._round, sender, receiver)

    def receive_challenge(self, payload: Payload) -> None:
        """Take the challenge that follows what was dealt, one in a round."""
        if self._challenge is not None:
            raise RefusedError(f"device {self.id} refuses a second challenge")
        parse_vector(payload, "u1", CHALLENGE_BYTES, "share_keys", "the server")
        self._challenge = sharing.Challenge.of(payload.tobytes())

    def send_checks(self) -> Payload:
        """Return the answers to the challenge, for every member of U2 among the holders."""
        if self._challenge is None or self._checked:
            raise RefusedError(
                f"device {self.id} refuses to answer a challenge that it has not got"
            )
        self._checked = True
        answers = self._challenge.answers(self._shares[self._have])
        return answers.astype("<u4", copy=False).view(np.uint8)

    def receive_expelled(self, payload: Payload) -> None:
        """Take devices out of U2 whose shares do not belong together; mask with none of them."""
        if not self._checked or self._expelled is not None or self._uploaded:
            raise RefusedError(f"device {self.id} refuses to expel devices at this point")
        expelled, self._expelled = self._protocol.topology.read_expelled(payload, self._links)
        if self.id in expelled:
            raise RefusedError(
                f"device {self.id} is told that the shares of its secrets do not belong together"
            )
        self._have &= ~np.isin(self._links.holders, expelled)
        self._require_members()

    # masked_input

    def send_masked_input(self, vector: NDArray[np.floating]) -> Payload:
        """Return the quantised vector plus the private mask plus the pairwise masks."""
        self._upload_once(vector)
        group = self._parameters.arithmetic
        elements = self._elements(vector, self.sent())
        peers, mask_keys = self._mask_secrets(self._members())
        private = self._protocol.private_mask_key(self._round, self.id, self._seed)
        signs = [pair_sign(self.id, peer) for peer in peers]
        threads = self._parameters.threads
        group.mask(elements, [private, *mask_keys], [1, *signs], threads)
        return group.pack(elements)

    def _upload_once(self, vector: NDArray[np.floating]) -> None:
        """Refuse to mask a second vector: the difference of two would be in the clear."""
        check_finite(self.id, vector)
        if self._uploaded:
            raise RefusedError(f"device {self.id} refuses to upload twice in a round")
        self._uploaded = True

    def _mask_secrets(self, ids: Sequence[int]) -> tuple[list[int], list[bytes]]:
        """Return some holders, without this one, and what masks with each of them follow from."""
        index = {id: k for k, id in enumerate(self._links.holders)}
        peers = [id for id in ids if id != self.id]
        public = [self._links.mask_key(index[id]) for id in peers]
        secrets = self._agree(self._mask_pair.private, public)
        return peers, self._protocol.mask_secrets(self._round, self.id, peers, secrets)

    def _agree(self, private: bytes, public: list[bytes]) -> list[bytes]:
        try:
            return keys.agree(private, public)
        except ValueError:
            raise from_server("advertise_keys", "a public key has low order") from None

    def sent(self) -> Where:
        return self._protocol.sent_in(self._round)

    # unmask

    def receive_unmask(self, payload: Payload) -> None:
        """Check the server's request: answering a wrong one could reveal this or another vector."""
        topology = self._protocol.topology
        request = topology.read_request(payload, self._links)
        survivors, dropped = request.survivors, request.dropped
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
        if sorted([*survivors, *dropped]) != sorted(self._members()):
            raise RefusedError(
                f"device {self.id} refuses to unmask: the request does not name exactly the "
                "devices that shared keys with it"
            )
        if self.id not in survivors:
            raise RefusedError(f"device {self.id} refuses to unmask: it is named as dropped")
        broken = objection(self._protocol.promises(), self._outcome(request))
        if broken is not None:
            raise RefusedError(f"device {self.id} refuses to unmask: {broken}")
        self._request = request

    def _outcome(self, request: Request) -> Outcome:
        """Return what the round has come to, as far as this device is told."""
        return Outcome(self._parameters.devices, request.total, expelled=self._expelled or 0)

    def send_unmask(self) -> Payload:
        """Return the shares of the survivors' seeds and of the dropped devices' mask keys.

        Shares that this device was not sent are all ones.
        """
        if self._request is None:
            raise RefusedError(f"device {self.id} was not asked to unmask")
        index = {id: k for k, id in enumerate(self._links.holders)}
        seeds = self._shares[[index[id] for id in self._request.survivors], KEY_SHARE:]
        mask_keys = self._shares[[index[id] for id in self._request.dropped], :KEY_SHARE]
        parts = np.concatenate([seeds.reshape(-1), mask_keys.reshape(-1)])
        return parts.astype("<u4", copy=False).view(np.uint8)

    def receive_pairs(self, payload: Payload) -> None:
        """Check for whom the server cannot reconstruct a mask key: for dropped devices only."""
        wanted = self._protocol.topology.read_wanted(payload, self._links)
        if self._request is None or self._wanted is not None:
            raise RefusedError(
                f"device {self.id} refuses to tell what it has in common with others: it has not "
                "unmasked, or has told already"
            )
        if not {*wanted} <= {*self._request.dropped}:
            raise RefusedError(
                f"device {self.id} refuses to tell what it has in common with others than the "
                "dropped devices"
            )
        self._wanted = wanted

    def send_pairs(self) -> Payload:
        """Return what masks with those that were asked for follow from."""
        if self._wanted is None:
            raise RefusedError(f"device {self.id} was not asked for secrets of pairs")
        _, secrets = self._mask_secrets(self._wanted)
        return np.frombuffer(b"".join(secrets), np.uint8)


class SecAggServer(ModelSender):
    """The server's side of one round."""

    def __init__(
        self,
        protocol: SecAgg,
        round_index: int,
        model: NDArray[np.float32],
        secrets: keys.SecretSource,
    ) -> None:
        super().__init__(model)
        self._protocol = protocol
        self._secrets = secrets
        self._parameters = protocol.parameters
        self._group = protocol.parameters.arithmetic
        self.round_index = round_index
        self._public: dict[int, bytes] = {}
        # Whose answer turned out to be wrong only when the secrets were reconstructed.
        self.refused: dict[int, MessageError] = {}
        # By device: looked up once a message, where a list would be gone through.
        self._sharers = np.zeros(self._parameters.devices, np.bool_)
        self._admitted: set[int] = set()
        self._dealings: Dealings | None = None
        self._expelled = np.zeros(self._parameters.devices, np.bool_)
        self._seed_shares: dict[int, Elements] = {}
        self._mask_key_shares: dict[int, Elements] = {}
        self._seeds: list[bytes] = []
        # Of dropped devices: the mask keys, and instead the secrets that survivors told.
        self._private: dict[int, bytes] = {}
        self._told: dict[int, dict[int, bytes]] = {}
        self._wanted = np.zeros(self._parameters.devices, np.bool_)
        # The sum without masks; of all values, once the server's other ranks have told theirs.
        self.unmasked: Elements = np.empty(0, np.uint32)
        self.survivors: list[int] = []
        # Signed integers of as many bytes as an element has.
        self.total: NDArray[np.signedinteger[Any]] = np.empty(0, np.int64)

    @cached_property
    def _uploads(self) -> RangeSum:
        """The sum of the uploads; of a range of them, if this is the first of several ranks."""
        return self._protocol.sum_of(range(self._protocol.upload_dim))

    def take_range(self, values: range) -> None:
        """Leave all but a range of the uploads' values to other ranks of the server."""
        self._uploads = self._protocol.sum_of(values)

    @property
    def dropped(self) -> list[int]:
        """The devices that shared keys but sent no vector."""
        return np.flatnonzero(self._gone).tolist()

    def receive_advertise_keys(self, sender: int, payload: Payload) -> None:
        """Keep a device's public keys, with which something can be agreed."""
        phase, name = "advertise_keys", f"device {sender}"
        advertised = parse_vector(payload, "u1", ADVERTISED_BYTES, phase, name).tobytes()
        if sender in self._public:
            raise MessageError(phase, name, "it was received twice")
        check_public_keys(advertised, f"device {sender}")
        self._public[sender] = advertised

    def finish_advertise_keys(self) -> None:
        self._require(len(self._public), "advertised keys")
        # Drawn now that no key can be chosen any more: the order of a ring follows from it.
        self.nonce = self._secrets(NONCE_BYTES)
        context = self._protocol.round_context(self.round_index)
        self._links = self._protocol.topology.link(self._public, self.nonce, context)

    def send_advertise_keys(self, receiver: int | None = None) -> Payload | None:
        """Return the keys of those that a device is linked with."""
        return self._links.key_list(receiver)

    def receive_share_keys(self, ids: Ids) -> None:
        """Take note of who shared keys."""
        unknown = {*ids.tolist()} - {*self._public}
        if unknown:
            raise MessageError("share_keys", f"device {min(unknown)}", "it advertised no keys")
        self._take_sharers(to_flags(ids.tolist(), self._parameters.devices), "shared keys")

    def _has_shared(self, id: int) -> bool:
        return id < self._sharers.size and bool(self._sharers[id])

    def _take_sharers(self, flags: Flags, what: str) -> None:
        self._sharers = flags
        self._require(int(flags.sum()), what)

    def send_challenge(self) -> Payload:
        """Return the challenge, which nobody knew when secrets were shared."""
        challenge = self._secrets(CHALLENGE_BYTES)
        self._dealings = Dealings(sharing.Challenge.of(challenge))
        return np.frombuffer(challenge, np.uint8)

    def receive_checks(self, sender: int, payload: Payload) -> None:
        """Keep a holder's answers."""
        if not self._has_shared(sender):
            raise MessageError("share_keys", f"device {sender}", "it shared no keys")
        owners = self._links.asked_of(sender, self._sharers)
        self._checked.receive(sender, owners, payload)

    def finish_checks(self) -> None:
        """Find out whose shares belong together; expel the others."""
        self._require(self._checked.count, "answered the challenge")
        self._checked.settle(self._links, self._sharers, self._protocol.most_at_fault)
        expelled = self._checked.expelled
        reason = "too many holders have no right share of its secrets: it is expelled"
        for id in expelled:
            self.refused[id] = MessageError("share_keys", f"device {id}", reason)
        self._expelled = to_flags(expelled, self._parameters.devices)
        self._take_sharers(
            self._sharers & ~self._expelled,
            "shared keys rightly by what the holders of their shares answered",
        )

    def wants_expelled(self) -> bool:
        """Return whether somebody is to be expelled."""
        return bool(self._expelled.any())

    def send_expelled(self, receiver: int | None = None) -> Payload | None:
        """Return who is expelled."""
        return self._links.bits(receiver, self._expelled, counted=True)

    @property
    def _checked(self) -> Dealings:
        if self._dealings is None:
            raise BelowThresholdError(
                f"round {self.round_index} cannot go on: no secrets were shared"
            )
        return self._dealings

    def receive_masked_input(self, sender: int, payload: Payload) -> None:
        """Add a device's masked input to the sum (eq. 20)."""
        self._check_sender(sender)
        self._add_upload(sender, payload)
        self._admit(sender)

    def receive_part_masked_input(self, sender: int, part: Payload, start: int, size: int) -> None:
        """Add some of a device's masked input to the sum."""
        if not start:
            self._check_sender(sender)
        if self._uploads.add_part(sender, part, start, size):
            self._admit(sender)

    def _add_upload(self, sender: int, payload: Payload) -> None:
        """Add an upload to the sum, unless it is malformed."""
        values = self._protocol.read_values(payload, self._protocol.upload_dim, sender)
        self._uploads.add(values)

    def receive_sum_masked_input(self, senders: list[int], total: Elements) -> None:
        """Take the sum of the masked vectors, formed on the way."""
        self._protocol.check_sum(total, self._protocol.upload_dim)
        for sender in senders:
            self._check_sender(sender)
        for sender in senders:
            self._admit(sender)
        self._uploads.add(total)

    def finish_masked_input(self) -> None:
        """Settle whose sum it is, and check what it is promised to hide."""
        # Requests, seeds and shares go by id, in whatever order the uploads were received.
        self.survivors.sort()
        devices = self._parameters.devices
        self._survived = to_flags(self.survivors, devices)
        self._gone = self._sharers & ~self._survived
        self._require(len(self.survivors), "sent their masked vectors")
        broken = objection(self._protocol.promises(), self.outcome())
        if broken is not None:
            raise PromiseError(
                f"round {self.round_index} ends here, before anything is revealed: {broken}"
            )

    def outcome(self) -> Outcome:
        """Return what the round has come to: what promises are checked against."""
        expelled = int(self._expelled.sum())
        return Outcome(self._parameters.devices, len(self.survivors), expelled=expelled)

    def send_unmask(self, receiver: int | None = None) -> Payload | None:
        """Return the request: whose sum is to be unmasked, and who dropped out."""
        return self._links.request(receiver, self._survived, self._gone)

    def receive_unmask(self, sender: int, payload: Payload) -> None:
        """Keep a survivor's shares."""
        name = f"device {sender}"
        if sender not in self._admitted:
            raise MessageError("unmask", name, "it is not a survivor")
        if sender in self._seed_shares:
            raise MessageError("unmask", name, "it was received twice")
        survivors = self._links.asked_of(sender, self._survived)
        dropped = self._links.asked_of(sender, self._gone)
        cut = SEED_SHARE * survivors.size
        limbs = cut + KEY_SHARE * dropped.size
        shares = parse_vector(payload, "<u4", limbs, "unmask", name)
        of_seeds = shares[:cut].reshape(-1, SEED_SHARE)
        of_keys = shares[cut:].reshape(-1, KEY_SHARE)
        seeds = self._checked.verified(sender, survivors, of_seeds, seeds=True)
        self._mask_key_shares[sender] = self._checked.verified(
            sender, dropped, of_keys, seeds=False
        )
        self._seed_shares[sender] = seeds

    def finish_unmask(self) -> None:
        """Reconstruct the secrets.

        A share that is not the one that its holder answered the challenge for has been refused.
        Among exactly t holders any answers are consistent: a wrong dealer or holder among them is
        found by the mask key's public half, and of a seed only if it is too long.
        """
        self._require(len(self._seed_shares), "answered the unmasking request")
        self._seeds = self._reconstruct_seeds(
            self._links.collect(self._seed_shares, self._survived, SEED_SHARE)
        )
        self._private = self._reconstruct_mask_keys(
            self._links.collect(self._mask_key_shares, self._gone, KEY_SHARE)
        )
        self._wanted = self._gone.copy()
        self._wanted[list(self._private)] = False

    # Secrets of pairs, where a mask key cannot be reconstructed

    def wants_pairs(self) -> bool:
        """Return whether a dropped device's mask key could not be reconstructed."""
        return bool(self._wanted.any())

    def send_pairs(self, receiver: int | None = None) -> Payload | None:
        """Return whose mask keys could not be reconstructed."""
        return self._links.bits(receiver, self._wanted)

    def receive_pairs(self, sender: int, payload: Payload) -> None:
        """Keep the secrets that a survivor shares with them."""
        name = f"device {sender}"
        if sender not in self._seed_shares:
            raise MessageError("unmask", name, "it has not answered the unmasking request")
        asked = self._links.asked_of(sender, self._wanted).tolist()
        told = parse_vector(payload, "u1", SEED_BYTES * len(asked), "unmask", name)
        for id, secret in zip(asked, told.reshape(-1, SEED_BYTES), strict=True):
            self._told.setdefault(id, {})[sender] = secret.tobytes()

    def finish_pairs(self) -> None:
        """Check that all pairs with those devices are known."""
        for id in np.flatnonzero(self._wanted).tolist():
            silent = {*self._links.neighbours(id, self._survived)} - {*self._told.get(id, ())}
            if silent:
                raise BelowThresholdError(
                    f"round {self.round_index} cannot end: the mask key of device {id} cannot be "
                    f"reconstructed, and device {min(silent)} did not tell what they have in common"
                )

    # Masks

    def send_masks(self) -> Rows:
        """Return the keys of the masks that are taken off the sum, for other ranks of the server.

        Those of the survivors' private masks, and of the pairwise masks that nothing cancelled. A
        pair of two dropped devices added nothing, so it needs nothing.
        """
        return self._masks

    @cached_property
    def _masks(self) -> Rows:
        mask_keys = [
            self._protocol.private_mask_key(self.round_index, id, seed)
            for id, seed in zip(self.survivors, self._seeds, strict=True)
        ]
        signs = [-1] * len(mask_keys)
        for id in self.dropped:
            peers = self._links.neighbours(id, self._survived)
            mask_keys += self._secrets_with(id, peers)
            signs += [-pair_sign(survivor, id) for survivor in peers]
        return mask_rows(mask_keys, signs)

    def finish_masks(self) -> None:
        """Take the masks off the sum (eq. 21, corrected)."""
        self.unmasked = self._remove_masks()

    def _remove_masks(self) -> Elements:
        return self._uploads.unmask(self._masks)

    def received_from(self, id: int) -> Where:
        """Return the coordinates that a survivor sent, in the order of its upload."""
        return self._protocol.sent_in(self.round_index)

    def finish_result(self) -> None:
        """Return to signed integers, 0 where nobody sent, and to the original coordinates."""
        decoded = self._group.signed(self.unmasked)
        self.unmasked = self.unmasked[:0].copy()
        self.total = self._protocol.scattered(decoded, self.round_index)
        self.turned_back = self._protocol.turned_back(self)

    def _reconstruct_seeds(self, shares: Shares) -> list[bytes]:
        """Return the seeds of the survivors' private masks."""
        seeds = []
        limbs = shares.without_checks().combine(self._links.threshold)
        for id, one in zip(self.survivors, limbs, strict=True):
            try:
                seeds.append(shamir.from_limbs(one, SEED_BYTES))
            except ValueError as error:
                # It has shared, rightly, what is not a seed. Its upload is in the sum, under a mask
                # of its own making: as if it had uploaded another vector.
                self.refused.setdefault(id, MessageError("unmask", f"device {id}", str(error)))
                seeds.append(bytes(SEED_BYTES))
        return seeds

    def _reconstruct_mask_keys(self, shares: Shares) -> dict[int, bytes]:
        """Return the mask keys of the dropped devices, of those whose shares give the right one."""
        found = {}
        threshold = self._links.threshold
        shares = shares.without_checks().with_at_least(threshold)
        limbs = shares.combine(threshold)
        for id, one in zip(shares.owners.tolist(), limbs, strict=True):
            try:
                private = shamir.from_limbs(one, keys.KEY_BYTES)
            except ValueError:
                continue
            if keys.KeyPair.from_private(private).public == self._mask_public(id):
                found[id] = private
        return found

    def _secrets_with(self, id: int, peers: list[int]) -> list[bytes]:
        """Return what the masks of a dropped device with survivors follow from."""
        if id not in self._private:
            return [self._told[id][peer] for peer in peers]
        secrets = keys.agree(self._private[id], [self._mask_public(peer) for peer in peers])
        return self._protocol.mask_secrets(self.round_index, id, peers, secrets)

    def _mask_public(self, id: int) -> bytes:
        return self._public[id][keys.KEY_BYTES :]

    def _check_sender(self, sender: int) -> None:
        """Refuse an upload that is not from a device in U2, or not its first."""
        if not self._has_shared(sender):
            raise MessageError("masked_input", f"device {sender}", "it shared no keys")
        if sender in self._admitted:
            raise MessageError("masked_input", f"device {sender}", "it was received twice")

    def _admit(self, sender: int) -> None:
        self._check_sender(sender)
        self._admitted.add(sender)
        self.survivors.append(sender)

    def _require(self, count: int, what: str) -> None:
        if count < self._parameters.threshold:
            raise BelowThresholdError(
                f"round {self.round_index} cannot end: {count} of {self._parameters.devices} "
                f"devices {what}, at least {self._parameters.threshold} are needed"
            )


class SecAgg(QuantisedProtocol):
    """Secure aggregation of whole vectors."""

    name = "secagg"
    min_devices = 2
    not_attacked = ""
    rotates = True
    uploads_in_parts = True
    device_class: ClassVar[type[SecAggDevice]] = SecAggDevice
    server_class: ClassVar[type[SecAggServer]] = SecAggServer
    steps: tuple[Step, ...] = (
        MODEL,
        Step(
            "advertise_keys",
            Pattern.GATHER,
            SecAggDevice.send_advertise_keys,
            SecAggServer.receive_advertise_keys,
            finish=SecAggServer.finish_advertise_keys,
        ),
        Step(
            "advertise_keys",
            Pattern.BROADCAST,
            SecAggServer.send_advertise_keys,
            SecAggDevice.receive_advertise_keys,
        ),
        Step(
            "share_keys",
            Pattern.ROUTE,
            SecAggDevice.send_share_keys,
            SecAggDevice.receive_share_keys,
            relay=SecAggServer.receive_share_keys,
            row_bytes=SHARE_BYTES,
        ),
        Step(
            "share_keys",
            Pattern.BROADCAST,
            SecAggServer.send_challenge,
            SecAggDevice.receive_challenge,
        ),
        Step(
            "share_keys",
            Pattern.GATHER,
            SecAggDevice.send_checks,
            SecAggServer.receive_checks,
            finish=SecAggServer.finish_checks,
        ),
        Step(
            "share_keys",
            Pattern.BROADCAST,
            SecAggServer.send_expelled,
            SecAggDevice.receive_expelled,
            wants=SecAggServer.wants_expelled,
        ),
        Step(
            "masked_input",
            Pattern.GATHER,
            SecAggDevice.send_masked_input,
            SecAggServer.receive_masked_input,
            upload=True,
            receive_part=SecAggServer.receive_part_masked_input,
            receive_sum=SecAggServer.receive_sum_masked_input,
            finish=SecAggServer.finish_masked_input,
        ),
        Step("unmask", Pattern.BROADCAST, SecAggServer.send_unmask, SecAggDevice.receive_unmask),
        Step(
            "unmask",
            Pattern.GATHER,
            SecAggDevice.send_unmask,
            SecAggServer.receive_unmask,
            finish=SecAggServer.finish_unmask,
        ),
        Step(
            "unmask",
            Pattern.BROADCAST,
            SecAggServer.send_pairs,
            SecAggDevice.receive_pairs,
            wants=SecAggServer.wants_pairs,
        ),
        Step(
            "unmask",
            Pattern.GATHER,
            SecAggDevice.send_pairs,
            SecAggServer.receive_pairs,
            wants=SecAggServer.wants_pairs,
            finish=SecAggServer.finish_pairs,
        ),
        Step(
            "unmask",
            Pattern.LOCAL,
            SecAggServer.send_masks,
            finish=SecAggServer.finish_masks,
            by_all_ranks=True,
        ),
        Step("result", Pattern.LOCAL, finish=SecAggServer.finish_result),
    )

    @classmethod
    def uses(cls, options: RoundOptions) -> frozenset[str]:
        # A promise of a ring has its own chance of failing; one of the complete graph has none.
        ring = {"security_bits"} if options.degree is not None else set()
        return super().uses(options) | {"degree", "threads", "gamma"} | ring

    def __init__(self, parameters: Parameters) -> None:
        super().__init__(parameters)
        self.topology = self._topology()
        self.steps = tuple(
            replace(step, pattern=self.topology.pattern)
            if step.name in ("advertise_keys", "expelled", "unmask", "pairs")
            and step.pattern is Pattern.BROADCAST
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

    @property
    def needed_in_sum(self) -> int:
        return self.parameters.threshold

    @property
    def stuck(self) -> float:
        return self.topology.stuck(self.parameters)

    def promises(self) -> list[Promise]:
        return [self.topology.promise(self.parameters), *super().promises()]

    @property
    def sum_bytes(self) -> int:
        return self.summed_in.adder_bytes * self.upload_dim

    def dealt_out(self, ranks: int) -> Dealt:
        if not self.uploads_in_parts:
            return super().dealt_out(ranks)
        return Dealt.out(self.summed_in.bits, self.upload_dim, ranks)

    def sum_of(self, values: range) -> RangeSum:
        if not self.uploads_in_parts:
            return super().sum_of(values)
        return RangeSum(self, values, self.upload_dim)

    def where_sent(self, server: SecAggServer, id: int) -> Where:
        return server.received_from(id)

    @property
    def largest_upload(self) -> int:
        """An upper bound of the bytes of a masked vector."""
        return self.summed_in.wire_bytes(self.upload_dim)

    @property
    def largest_reply(self) -> int:
        return max(4 * KEY_SHARE * (self.topology.degree + 1), 2 * keys.KEY_BYTES)

    @property
    def largest_message(self) -> int:
        return max(self.largest_upload, self.largest_reply)

    @classmethod
    def masking(cls, devices: int, alpha: float, degree: int | None) -> Masking:
        return InCohorts(devices, ring_degree(degree, devices))

    @classmethod
    def active_variant(cls) -> type[QuantisedProtocol] | None:
        from hpcfl.algorithms.aggregation.active import ActiveSecAgg

        # A subclass is another protocol.
        return ActiveSecAgg if cls is SecAgg else None

    def terms(self) -> dict[str, Terms]:
        crowd = Crowd.of(self.parameters, self.topology.degree)
        device = {"peers": crowd.degree, "shares": crowd.degree * self.topology.threshold}
        server = {
            "devices": crowd.devices,
            "answers": crowd.devices * crowd.degree,
            "pairs": crowd.dropped * crowd.neighbours_among(crowd.survivors),
        }
        for_device, for_server = self.mask_terms(crowd)
        return {"device": device | for_device, "server": server | for_server}

    def mask_terms(self, crowd: Crowd) -> tuple[Terms, Terms]:
        """Return what masking a vector, and taking masks off the sum, grows with."""
        group, dim, survivors = self.summed_in, self.upload_dim, crowd.survivors
        pairs = crowd.dropped * crowd.neighbours_among(survivors)
        device = of.far("values", dim) | of.masked(group, (crowd.degree + 1) * dim)
        unmasked = of.masked(group, (survivors + pairs) * dim, "unmasked values")
        server = of.summed(group, survivors, dim) | unmasked | of.far("values", dim)
        return device | of.packed(group, dim), server

    def count(self, phases: Phases) -> None:
        crowd = Crowd.of(self.parameters, self.topology.degree)
        secagg_costs.count(phases, self.topology, crowd)
        self.count_masks(phases, crowd)

    def count_masks(self, phases: Phases, crowd: Crowd) -> None:
        """Enter the upload, and the masks that are taken off the sum."""
        upload, dim, survivors = phases["masked_input"], self.upload_dim, crowd.survivors
        group = self.summed_in
        masked_upload(upload, group, dim, survivors, crowd.degree + 1)
        add(upload.device, {"agreement": crowd.degree, "derivation": crowd.degree + 1})
        pairs = crowd.dropped * crowd.neighbours_among(survivors)
        unmask = phases["unmask"].server
        add(unmask, {"agreement": pairs, "derivation": pairs})
        add(unmask, masks(group, survivors + pairs, dim) | reduced(group, dim))

    @property
    def not_played(self) -> str:
        if self.topology.threshold <= shamir.MAX_TERMS:
            return ""
        return (
            f"{self.name} among more than {2 * (shamir.MAX_TERMS - 1)} devices cannot be run: "
            f"secret sharing takes thresholds up to {shamir.MAX_TERMS}; give --degree"
        )

    @property
    def most_at_fault(self) -> int:
        """How many holders of a secret may be at fault, and dealers as well.

        So many, who may vanish afterwards, and as many others whose shares are of no use, leave t
        shares after the planned dropouts, but for 2 to the minus correctness bits on a ring.
        """
        holders, failure = self.topology.degree + 1, 2.0**-self.parameters.correctness_bits
        left = holders + SPARE - self.threat.most_dropped(holders, failure)
        return max(LIARS, (left - self.topology.threshold) // 2)

    def outcome(self, server: SecAggServer) -> Outcome:
        return server.outcome()

    def device(self, id: int, round_index: int, secrets: keys.SecretSource) -> SecAggDevice:
        return self.device_class(self, id, round_index, secrets)

    def server(
        self,
        round_index: int,
        model: NDArray[np.float32],
        secrets: keys.SecretSource = keys.system_secrets,
    ) -> SecAggServer:
        return self.server_class(self, round_index, model, secrets)

    # What a curious server makes of a round

    def strip(
        self, seen: Seen, id: int, upload: Payload, key: bytes, known: Known
    ) -> tuple[NDArray[np.int64], Elements]:
        """Return which coordinates an honest survivor sent, and what is left of their values.

        `upload` is what it sent, `key` that of its private mask, which the server reconstructed,
        `known` the devices whose masks with it the server knows. MessageError if it is malformed.
        """
        where = np.arange(self.parameters.dim)[self.sent_in(seen.round_index)]
        values = self.read_values(upload, where.size, id)
        secrets = [secret for _, secret in known]
        signs = [-pair_sign(id, peer) for peer, _ in known]
        return where, self.summed_in.add_masks(values, [key, *secrets], [-1, *signs])

    def alone(self, seen: Seen) -> tuple[float, float]:
        """Return how many values of honest survivors are masked with no other one, and the error.

        A mean over what the server does not know; its standard error is 0 where nothing is random.
        """
        lonely = [id for id in seen.ids if not seen.honest_neighbours(id)]
        return float(self.upload_dim * len(lonely)), 0.0

    def alone_before(self, population: Population) -> float | None:
        """Return the part of what is sent that is alone, before a round is drawn; None: unknown."""
        parameters = self.parameters
        masking = self.masking(parameters.devices, parameters.alpha, self.topology.degree)
        return masking.alone_of_sent(population)

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

    def mask_secrets(
        self, round_index: int, i: int, peers: Sequence[int], secrets: Sequence[bytes]
    ) -> list[bytes]:
        """Return what the masks of device `i` and each peer follow from, of what their keys gave.

        It is bound to the two ids, so that telling it tells nothing of masks with anybody else,
        even one that has advertised the same key.
        """
        return self.pair_keys(round_index, i, peers, secrets, "additive mask")

    def pair_keys(
        self, round_index: int, i: int, peers: Sequence[int], secrets: Sequence[bytes], use: str
    ) -> list[bytes]:
        """Return the key that device `i` has in common with each peer, for one use."""
        return [
            keys.derive(secret, self.pair_context(round_index, i, peer, use))
            for peer, secret in zip(peers, secrets, strict=True)
        ]
