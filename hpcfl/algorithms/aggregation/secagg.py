"""SecAgg: secure aggregation with double masking (Bonawitz et al., CCS 2017, Fig. 4).

The sets of devices have the paper's names: U1 advertised keys, U2 shared them, U3 uploaded, and U4
answered the unmasking request. The server is honest but curious; devices may vanish at any step.

Messages, after the envelope (all numbers little-endian):

==============  ===============  =================================================================
phase           direction        payload
==============  ===============  =================================================================
model           to devices       d float32
advertise_keys  to the server    share-transport key (32 bytes), mask key (32)
advertise_keys  to devices       the keys of the receiver's links (see the module `topology`)
share_keys      device to peer   AES-GCM ciphertext of 10 + 6 limbs: shares of the mask key's
                                 private half and of the private-mask seed, each before its check
share_keys      to devices       the challenge (16 bytes)
share_keys      to the server    2 limbs for each member of U2 whose shares the device should have:
                                 the answers to the challenge; all ones without a share
share_keys      to devices       only if a device is expelled from U2: the expelled devices (see the
                                 module `topology`)
masked_input    to the server    d group elements
unmask          to devices       U3, and U2 without U3 (see the module `topology`)
unmask          to the server    shares that the device holds: 6 limbs for each member of U3, 10 for
                                 each of U2 without U3; all ones for a share that it did not
                                 receive
unmask          to devices       only if a mask key cannot be reconstructed: its owner (`topology`)
unmask          to the server    then: for each such owner, the secret (16 bytes) that gives the
                                 masks with it
==============  ===============  =================================================================

Devices that deal or answer falsely harm only themselves if they are few enough. A malformed message
excludes its sender. U2 are the devices that sent rows, whatever the rows contain; all devices learn
U2 from the relay. Holders answer a challenge about the shares that they received (see `sharing`). A
dealer is expelled, before any device masks with it, if too many holders have no valid share of its
secrets. A holder is detected if it later sends a share that does not fit its answer. If t valid
shares do not give the mask key of a dropped device, every survivor reveals the secret of its masks
with that device; that device's private-mask seed is never requested.

Where exchanges are dear (:mod:`hpcfl.exchange`), devices answer the challenge and upload at once.
Then all have masked with a dealer of wrong shares already. It is not expelled, but its upload is
ignored, and it counts as dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation import sealed, sharing
from hpcfl.algorithms.aggregation.base import MODEL
from hpcfl.algorithms.aggregation.messages import Flags, parse_vector, to_flags
from hpcfl.algorithms.aggregation.promises import Outcome, Promise, objection
from hpcfl.algorithms.aggregation.quantised import (
    Contributor,
    DeviceState,
    QuantisedDevice,
    QuantisedProtocol,
    SumServer,
    until,
)
from hpcfl.algorithms.aggregation.ranges import RangeSum, mask_rows
from hpcfl.algorithms.aggregation.reconstruction import ABSENT, Shares
from hpcfl.algorithms.aggregation.sharing import (
    ANSWERS,
    CHALLENGE_BYTES,
    KEY_SHARE,
    SEED_SHARE,
    SHARE_BYTES,
    Dealings,
)
from hpcfl.algorithms.aggregation.topology import (
    ADVERTISED_BYTES,
    MASKS,
    NONCE_BYTES,
    SHARES,
    Links,
    Neighbourhood,
    Request,
    Topology,
    ring_of,
)
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.phases import (
    BROADCAST,
    GATHER,
    LOCAL,
    ROUTE,
    Ids,
    Method,
    Payload,
    Rows,
    Step,
    Where,
)
from hpcfl.crypto import keys, shamir
from hpcfl.crypto.groups import FQ, Elements
from hpcfl.crypto.keystream import KEY_BYTES as SEED_BYTES
from hpcfl.crypto.keystream import KEY_BYTES as TRANSPORT_KEY_BYTES
from hpcfl.errors import BelowThresholdError, MessageError, RefusedError
from hpcfl.options.protocols import (
    GraphOptions,
    MaskingOptions,
    ThreadOptions,
    ThreatOptions,
    TransportOptions,
)
from hpcfl.privacy.masking import InCohorts, Masking, ring_degree
from hpcfl.privacy.threat import LIARS, SPARE
from hpcfl.values import dataclass, field, replace


def pair_sign(i: int, j: int) -> int:
    """Return the sign with which device `i` adds the mask that it shares with `j` (eq. 18)."""
    return 1 if i < j else -1


@dataclass
class SecAggState(DeviceState):
    """What a device keeps between the steps of a round."""

    transport: keys.KeyPair = until("advertise_keys", lambda: keys.KeyPair(b"", b""))
    masking: keys.KeyPair = until("unmask", lambda: keys.KeyPair(b"", b""))
    seed: bytes = until("masked_input", bytes)  # of the private mask
    # Concatenated keys that encrypt shares, by holder; kept until all shares are opened.
    transport_keys: bytes = field(default=b"", repr=False)
    links: Neighbourhood | None = None
    # By holder, this device included: whether it is in U2, and the shares from it.
    have: Flags = field(default_factory=lambda: np.zeros(0, np.bool_))
    shares: Elements = until("unmask", lambda: np.zeros((0, KEY_SHARE + SEED_SHARE), np.uint32))
    challenge: sharing.Challenge | None = until("checks", lambda: None)
    checked: bool = False
    expelled: int | None = None  # number of expelled devices, linked with this one or not
    request: Request | None = None
    pairs: dict[int, bytes] = until("pairs", dict)  # secrets of the masks with dropped devices
    wanted: Sequence[int] | None = None


class SecAggDevice(QuantisedDevice):
    """A device's side of one round; keys and seeds come from `secrets`."""

    _protocol: SecAgg
    state: SecAggState
    state_class: ClassVar[type[Any]] = SecAggState

    @property
    def _links(self) -> Neighbourhood:
        if self.state.links is None:
            raise self.refusal("to go on: it has received no keys")
        return self.state.links

    def _require(self, count: int, refuses: str) -> None:
        threshold = self._protocol.topology.threshold
        if count < threshold:
            raise self.refusal(f"to {refuses}: the threshold is {threshold}")

    # advertise_keys

    def send_advertise_keys(self) -> Payload:
        """Return this device's two public keys; the one for masks is made for this round only."""
        self.state.transport = self._transport_pair()
        self.state.masking = keys.KeyPair.generate(self._secrets)
        return np.frombuffer(self._advertised, np.uint8)

    @property
    def _advertised(self) -> bytes:
        return self.state.transport.public + self.state.masking.public

    def receive_advertise_keys(self, payload: Payload) -> None:
        """Keep the keys of linked devices; refuse a list that changes this device's own keys."""
        topology, state = self._protocol.topology, self.state
        links = topology.read_key_list(payload, self.id, self._advertised)
        links.check_keys()
        self._require(len(links.holders), f"share keys with {len(links.holders)} devices")
        topology.check_place(links, self._protocol.round_context(self._round))
        state.links = links
        peers = [k for k, id in enumerate(links.holders) if id != self.id]
        secrets = self._agree_on_transport(
            state.transport.private,
            [links.holders[k] for k in peers],
            links.public_keys(SHARES, peers),
        )
        derived = self._seal_keys(peers, secrets)
        derived.insert(links.holders.index(self.id), bytes(TRANSPORT_KEY_BYTES))
        state.transport_keys = b"".join(derived)
        state.links = links.without_shares_keys()
        state.have = np.zeros(len(links.holders), np.bool_)

    def _seal_keys(self, peers: list[int], secrets: list[bytes]) -> list[bytes]:
        """Return the keys that encrypt shares between this device and the holders `peers`."""
        ids = [self._links.holders[k] for k in peers]
        return self._protocol.pair_keys(self._round, self.id, ids, secrets, "share transport")

    # share_keys

    def send_share_keys(self) -> tuple[Ids, Rows]:
        """Return encrypted shares of the mask key and of the private-mask seed for each peer."""
        state, links = self.state, self._links
        self._once("share keys")
        state.seed = self._secrets(SEED_BYTES)
        threshold = self._protocol.topology.threshold
        shares = sharing.deal(
            state.masking.private, state.seed, threshold, links.numbers, self._secrets
        ).astype("<u4", copy=False)
        own = links.holders.index(self.id)
        state.have[own] = True
        state.shares = shares[[own]]
        peers = np.delete(np.arange(len(links.holders)), own)
        ids = np.array(links.holders, np.int64)[peers]
        rows = np.empty((peers.size, SHARE_BYTES), np.uint8)
        seals = self._seals(peers.tolist(), [(self.id, id) for id in ids.tolist()])
        sealed.seal(seals, shares.view(np.uint8)[peers], rows)
        return ids, rows

    def receive_share_keys(self, senders: Ids, rows: Rows) -> None:
        """Decrypt the shares of the peers in U2, which must be at least t - 1.

        U2 are the devices that shared keys; this device must add its masks with each of them. If a
        row holds no valid share, this device's answer marks the share as absent.
        """
        self._once("open its shares")  # their keys are used once
        state, index, ids = self.state, self._index, senders.tolist()
        places = [index[sender] for sender in ids]
        own, state.shares = (
            state.shares,
            np.full((len(index), KEY_SHARE + SEED_SHARE), ABSENT, np.uint32),
        )
        state.shares[state.have] = own
        state.have[places] = True
        seals = self._seals(places, [(sender, self.id) for sender in ids])
        contents = np.zeros((len(ids), SHARE_BYTES - sealed.TAG_BYTES), np.uint8)
        closed = sealed.unseal(seals, rows, contents)
        shares = contents.view("<u4")
        for k in np.flatnonzero(closed | (shares >= FQ.modulus).any(axis=1)).tolist():
            reason = sealed.CLOSED if closed[k] else "a share is not a field element"
            self.ignored.append(MessageError("share_keys", f"device {ids[k]}", reason))
            shares[k] = ABSENT
        state.shares[places] = shares
        state.transport_keys = b""
        self._require_members()

    @property
    def _index(self) -> dict[int, int]:
        return {id: k for k, id in enumerate(self._links.holders)}

    def _seals(self, places: list[int], pairs: list[tuple[int, int]]) -> Iterator[sealed.Seal]:
        """Return the seals of the rows between this device and the holders at some places."""
        derived = keys.cut(self.state.transport_keys, TRANSPORT_KEY_BYTES)
        chosen = [derived[place] for place in places]
        return sealed.seals(chosen, self._protocol.context(self._round), pairs)

    def _require_members(self) -> None:
        count = int(self.state.have.sum())
        self._require(count, f"go on with {count} devices")

    def _members(self) -> list[int]:
        """Return the holders in U2, this device included."""
        return [id for id, have in zip(self._links.holders, self.state.have, strict=True) if have]

    def receive_challenge(self, payload: Payload) -> None:
        """Keep the challenge, which the server draws after the dealing; refuse a second one."""
        if self.state.challenge is not None:
            raise self.refusal("a second challenge")
        parse_vector(payload, "u1", CHALLENGE_BYTES, "share_keys")
        self.state.challenge = sharing.Challenge.of(payload.tobytes())

    def send_checks(self) -> Payload:
        """Return the answers to the challenge for every holder in U2."""
        state = self.state
        if state.challenge is None or state.checked:
            raise self.refusal("to answer a challenge that it has not got")
        state.checked = True
        answers = state.challenge.answers(state.shares[state.have])
        return answers.astype("<u4", copy=False).view(np.uint8)

    def receive_expelled(self, payload: Payload) -> None:
        """Remove the expelled devices from U2, so that this device does not mask with them."""
        state = self.state
        if not state.checked or state.expelled is not None or "upload" in state.done:
            raise self.refusal("to expel devices at this point")
        expelled, state.expelled = self._protocol.topology.read_expelled(payload, self._links)
        if self.id in expelled:
            raise RefusedError(
                f"device {self.id} is told that the shares of its secrets do not belong together"
            )
        state.have &= ~np.isin(self._links.holders, expelled)
        self._require_members()

    # masked_input

    def send_masked_input(self, vector: NDArray[np.floating]) -> Payload:
        """Return the quantised vector plus the private mask plus the pairwise masks."""
        self._once("upload")  # the difference of two uploads would reveal that of the vectors
        peers, secrets = self._mask_secrets(self._members())
        private = self._protocol.private_mask_key(self._round, self.id, self.state.seed)
        signs = [pair_sign(self.id, peer) for peer in peers]
        return self._masked(vector, [private, *secrets], [1, *signs])

    def _mask_secrets(self, ids: Sequence[int]) -> tuple[list[int], list[bytes]]:
        """Return the holders `ids` without this device, and the secrets of the masks with them."""
        index = self._index
        peers = [id for id in ids if id != self.id]
        public = self._links.public_keys(MASKS, [index[id] for id in peers])
        secrets = keys.agree(self.state.masking.private, public)
        return peers, self._protocol.mask_secrets(self._round, self.id, peers, secrets)

    # unmask

    def receive_unmask(self, payload: Payload) -> None:
        """Check the server's request: the answer to a wrong one could reveal a vector."""
        request = self._protocol.topology.read_request(payload, self._links)
        survivors, dropped = request.survivors, request.dropped
        if self.state.request is not None:
            raise self.refusal("a second unmasking request")
        both = sorted({*survivors} & {*dropped})
        if both:
            raise self.refusal(f"to reveal its shares of both secrets of device {both[0]}")
        self._require(len(survivors), f"unmask the sum of {len(survivors)} devices")
        if sorted([*survivors, *dropped]) != sorted(self._members()):
            raise self.refusal(
                "to unmask: the request does not name exactly the devices that shared keys with it"
            )
        if self.id not in survivors:
            raise self.refusal("to unmask: it is named as dropped")
        broken = objection(self._protocol.promises(), self._outcome(request))
        if broken is not None:
            raise self.refusal(f"to unmask: {broken}")
        self.state.request = request

    def _outcome(self, request: Request) -> Outcome:
        """Return the outcome of the round as far as this device knows it."""
        devices, expelled = self._parameters.devices, self.state.expelled or 0
        if self._protocol.early_upload:  # it is not told: as many as the plan has room for
            expelled = min(SPARE, devices - request.total)
        return Outcome(devices, request.total, expelled=expelled)

    def send_unmask(self) -> Payload:
        """Return the shares of the survivors' seeds and of the dropped devices' mask keys.

        All ones stand for shares that this device did not receive.
        """
        request, shares, index = self.state.request, self.state.shares, self._index
        if request is None:
            raise RefusedError(f"device {self.id} was not asked to unmask")
        seeds = shares[[index[id] for id in request.survivors], KEY_SHARE:]
        mask_keys = shares[[index[id] for id in request.dropped], :KEY_SHARE]
        if self._protocol.early_upload:  # states are saved: without the key, for a rare step
            self.state.pairs = dict(zip(*self._mask_secrets(request.dropped), strict=True))
        parts = np.concatenate([seeds.reshape(-1), mask_keys.reshape(-1)])
        return parts.astype("<u4", copy=False).view(np.uint8)

    def receive_pairs(self, payload: Payload) -> None:
        """Check that the server asks for secrets of pairs with dropped devices only."""
        state, tell = self.state, "to tell what it has in common with others"
        wanted = self._protocol.topology.read_wanted(payload, self._links)
        if state.request is None or state.wanted is not None:
            raise self.refusal(f"{tell}: it has not unmasked, or has told already")
        if not {*wanted} <= {*state.request.dropped}:
            raise self.refusal(f"{tell} than the dropped devices")
        state.wanted = wanted

    def send_pairs(self) -> Payload:
        """Return the secrets of the masks with the devices that the server asked for."""
        if self.state.wanted is None:
            raise RefusedError(f"device {self.id} was not asked for secrets of pairs")
        _, secrets = (
            ((), [self.state.pairs[id] for id in self.state.wanted])
            if self.state.pairs
            else self._mask_secrets(self.state.wanted)
        )
        return np.frombuffer(b"".join(secrets), np.uint8)


@dataclass
class ServerState:
    """What the server keeps between the steps of a round, besides the sum; sets are by device."""

    public: dict[int, bytes] = field(default_factory=dict)
    nonce: bytes = field(default=b"", repr=False)
    sharers: Flags = field(default_factory=lambda: np.zeros(0, np.bool_))  # U2
    dealings: Dealings | None = field(default=None, repr=False)
    survived: Flags = field(default_factory=lambda: np.zeros(0, np.bool_))  # U3
    gone: Flags = field(default_factory=lambda: np.zeros(0, np.bool_))  # U2 without U3
    seed_shares: dict[int, Elements] = field(default_factory=dict, repr=False)
    mask_key_shares: dict[int, Elements] = field(default_factory=dict, repr=False)
    seeds: list[bytes] = field(default_factory=list, repr=False)  # of the survivors, in order
    # For dropped devices: the mask keys or, without them, the secrets sent by survivors.
    private: dict[int, bytes] = field(default_factory=dict, repr=False)
    told: dict[int, dict[int, bytes]] = field(default_factory=dict, repr=False)
    wanted: Flags = field(default_factory=lambda: np.zeros(0, np.bool_))


class SecAggServer(SumServer):
    """The server's side of one round."""

    _protocol: SecAgg
    _links: Links
    state: ServerState
    state_class: ClassVar[type[Any]] = ServerState

    def take_range(self, values: range) -> None:
        """Sum only a range of the uploads' values; other ranks of the server sum the rest."""
        self._uploads = RangeSum.of(self._protocol, values)

    @property
    def dropped(self) -> list[int]:
        """The devices that shared keys but sent no vector."""
        return np.flatnonzero(self.state.gone).tolist()

    # advertise_keys

    def receive_advertise_keys(self, sender: int, payload: Payload) -> None:
        """Check and keep a device's public keys."""
        self._take_keys(self.state.public, sender, payload, ADVERTISED_BYTES)

    def finish_advertise_keys(self) -> None:
        state = self.state
        self._enough(len(state.public), "advertised keys")
        # Drawn after the last key, so no device can choose keys that give a certain ring order.
        state.nonce = self._secrets(NONCE_BYTES)
        context = self._protocol.round_context(self.round_index)
        self._links = self._protocol.topology.link(state.public, state.nonce, context)

    def send_advertise_keys(self, receiver: int | None = None) -> Payload | None:
        """Return the keys of the devices that a device is linked with."""
        return self._links.key_list(receiver)

    # share_keys

    def receive_share_keys(self, ids: Ids) -> None:
        """Record the devices that shared keys."""
        unknown = {*ids.tolist()} - {*self.state.public}
        if unknown:
            raise MessageError("share_keys", f"device {min(unknown)}", "it advertised no keys")
        self._take_sharers(to_flags(ids.tolist(), self._devices), "shared keys")

    def _has_shared(self, id: int) -> bool:
        return id < self.state.sharers.size and bool(self.state.sharers[id])

    def _take_sharers(self, flags: Flags, what: str) -> None:
        self.state.sharers = flags
        self._enough(int(flags.sum()), what)

    def send_challenge(self) -> Payload:
        """Draw and return the challenge, which no device knew when it shared its secrets."""
        challenge = self._secrets(CHALLENGE_BYTES)
        self.state.dealings = Dealings(sharing.Challenge.of(challenge))
        return np.frombuffer(challenge, np.uint8)

    @property
    def _dealings(self) -> Dealings:
        if self.state.dealings is None:
            raise BelowThresholdError(
                f"round {self.round_index} cannot go on: no secrets were shared"
            )
        return self.state.dealings

    def receive_checks(self, sender: int, payload: Payload) -> None:
        """Check and keep a holder's answers."""
        if not self._has_shared(sender):
            raise MessageError("share_keys", f"device {sender}", "it shared no keys")
        self._first("share_keys", sender, self._dealings.answers)
        owners = self._links.asked_of(sender, self.state.sharers)
        self._dealings.receive(sender, owners, payload)

    def finish_checks(self) -> None:
        """Expel the dealers whose shares are inconsistent for too many holders."""
        dealings, sharers = self._dealings, self.state.sharers
        self._enough(len(dealings.answers), "answered the challenge")
        dealings.settle(self._links, sharers, self._protocol.most_at_fault)
        for id in dealings.expelled:
            reason = "too many holders have no right share of its secrets: it is expelled"
            self._refuse("share_keys", id, reason)
        right = sharers & ~to_flags(dealings.expelled, self._devices)
        what = "shared keys rightly by what the holders of their shares answered"
        self._take_sharers(right, what)
        if self._protocol.early_upload:
            self.state.sharers = sharers

    @property
    def _expelled(self) -> Flags:
        dealings, early = self.state.dealings, self._protocol.early_upload
        return to_flags(() if early or not dealings else dealings.expelled, self._devices)

    def wants_expelled(self) -> bool:
        """Return whether any device is to be expelled."""
        return bool(self._expelled.any())

    def send_expelled(self, receiver: int | None = None) -> Payload | None:
        """Return the expelled devices."""
        return self._links.bits(receiver, self._expelled, counted=True)

    # masked_input

    def _check_sender(self, sender: int) -> None:
        if not self._has_shared(sender):
            raise MessageError("masked_input", f"device {sender}", "it shared no keys")
        super()._check_sender(sender)

    def finish_masked_input(self) -> None:
        self.state.survived = to_flags(self.survivors, self._devices)
        self.state.gone = self.state.sharers & ~self.state.survived
        super().finish_masked_input()

    def outcome(self) -> Outcome:
        """Return the outcome of the round, against which promises are checked."""
        dealings = self.state.dealings
        expelled = len(dealings.expelled) if dealings else 0
        return Outcome(self._devices, len(self.survivors), expelled=expelled)

    # unmask

    def send_unmask(self, receiver: int | None = None) -> Payload | None:
        """Return the request, which names the survivors and the dropped devices."""
        return self._links.bits(receiver, self.state.survived, self.state.gone, counted=True)

    def _check_survivor(self, phase: str, sender: int, answered: Container[int]) -> str:
        if sender not in self._admitted:
            raise MessageError(phase, f"device {sender}", "it is not a survivor")
        return self._first(phase, sender, answered)

    def receive_unmask(self, sender: int, payload: Payload) -> None:
        """Check and keep a survivor's shares."""
        state = self.state
        name = self._check_survivor("unmask", sender, state.seed_shares)
        survivors = self._links.asked_of(sender, state.survived)
        dropped = self._links.asked_of(sender, state.gone)
        cut = SEED_SHARE * survivors.size
        limbs = parse_vector(payload, "<u4", cut + KEY_SHARE * dropped.size, "unmask", name)
        of_seeds, of_keys = limbs[:cut].reshape(-1, SEED_SHARE), limbs[cut:].reshape(-1, KEY_SHARE)
        seeds = self._dealings.verified(sender, survivors, of_seeds, seeds=True)
        mask_keys = self._dealings.verified(sender, dropped, of_keys, seeds=False)
        state.seed_shares[sender], state.mask_key_shares[sender] = seeds, mask_keys

    def finish_unmask(self) -> None:
        """Reconstruct the secrets.

        Shares that do not fit their holder's answer to the challenge were refused before. Answers
        of exactly t holders are always consistent. A wrong dealer or holder among them is detected
        by the public half of a mask key; for a seed, only if the result is too long.
        """
        state, collect = self.state, self._links.collect
        self._enough(len(state.seed_shares), "answered the unmasking request")
        self._reconstruct_seeds(collect(state.seed_shares, state.survived, SEED_SHARE))
        self._reconstruct_mask_keys(collect(state.mask_key_shares, state.gone, KEY_SHARE))
        state.wanted = state.gone.copy()
        state.wanted[list(state.private)] = False

    def _reconstruct_seeds(self, shares: Shares) -> None:
        """Find the seeds of the survivors' private masks."""
        limbs = shares.without_checks().combine(self._links.threshold)
        for id, one in zip(self.survivors, limbs, strict=True):
            try:
                self.state.seeds.append(shamir.from_limbs(one, SEED_BYTES))
            except ValueError as error:
                # The device shared a value that is not a seed. Its upload stays in the sum under
                # a mask of its own choice, which is as if it had uploaded another vector.
                self._refuse("unmask", id, str(error))
                self.state.seeds.append(bytes(SEED_BYTES))

    def _reconstruct_mask_keys(self, shares: Shares) -> None:
        """Find the dropped devices' mask keys where the shares give the advertised key."""
        threshold = self._links.threshold
        shares = shares.without_checks().with_at_least(threshold)
        for id, one in zip(shares.owners.tolist(), shares.combine(threshold), strict=True):
            try:
                private = shamir.from_limbs(one, keys.KEY_BYTES)
            except ValueError:
                continue
            if keys.KeyPair.from_private(private).public == self._mask_public(id):
                self.state.private[id] = private

    # Secrets of pairs, if a mask key cannot be reconstructed

    def wants_pairs(self) -> bool:
        """Return whether a dropped device's mask key could not be reconstructed."""
        return bool(self.state.wanted.any())

    def send_pairs(self, receiver: int | None = None) -> Payload | None:
        """Return the devices whose mask keys could not be reconstructed."""
        return self._links.bits(receiver, self.state.wanted)

    def receive_pairs(self, sender: int, payload: Payload) -> None:
        """Keep the secrets that a survivor shares with these devices."""
        name = f"device {sender}"
        if sender not in self.state.seed_shares:
            raise MessageError("unmask", name, "it has not answered the unmasking request")
        asked = self._links.asked_of(sender, self.state.wanted).tolist()
        told = parse_vector(payload, "u1", SEED_BYTES * len(asked), "unmask", name)
        for id, secret in zip(asked, told.reshape(-1, SEED_BYTES), strict=True):
            self.state.told.setdefault(id, {})[sender] = secret.tobytes()

    def finish_pairs(self) -> None:
        """Check that the secrets of all pairs with these devices are known."""
        for id in np.flatnonzero(self.state.wanted).tolist():
            told = self.state.told.get(id, {})
            silent = {*self._links.neighbours(id, self.state.survived)} - {*told}
            if silent:
                raise BelowThresholdError(
                    f"round {self.round_index} cannot end: the mask key of device {id} cannot be "
                    f"reconstructed, and device {min(silent)} did not send the secret of this pair"
                )

    # Masks

    def private_mask_keys(self) -> list[bytes]:
        """Return the keys of the survivors' private masks, in the order of the survivors."""
        return [
            self._protocol.private_mask_key(self.round_index, id, seed)
            for id, seed in zip(self.survivors, self.state.seeds, strict=True)
        ]

    def send_masks(self) -> Rows:
        """Return the keys of the masks to subtract from the sum, for other ranks of the server.

        These are the survivors' private masks and the pairwise masks between a survivor and a
        dropped device. A pair of two dropped devices has no mask in the sum.
        """
        mask_keys = self.private_mask_keys()
        signs = [-1] * len(mask_keys)
        for id in self.dropped:
            peers, secrets = self._secrets_with(id)
            mask_keys += secrets
            signs += [-pair_sign(survivor, id) for survivor in peers]
        return mask_rows(mask_keys, signs)

    def finish_masks(self) -> None:
        """Subtract the masks from the sum (eq. 21, corrected)."""
        self.unmasked = self._remove_masks()

    def _remove_masks(self) -> Elements:
        return self._uploads.unmask(self.send_masks())

    def received_from(self, id: int) -> Where:
        """Return the coordinates that a survivor sent, in the order of its upload."""
        return self._protocol.sent_in(self.round_index)

    def _masked_with(self, id: int) -> list[int]:
        """Return the survivors that have a mask in common with a device."""
        return self._links.neighbours(id, self.state.survived)

    def _secrets_with(self, id: int) -> tuple[list[int], list[bytes]]:
        """Return a dropped device's surviving peers, and the secrets of its masks with them."""
        peers, state = self._masked_with(id), self.state
        if id not in state.private:
            return peers, [state.told[id][peer] for peer in peers]
        secrets = keys.agree(state.private[id], [self._mask_public(peer) for peer in peers])
        return peers, self._protocol.mask_secrets(self.round_index, id, peers, secrets)

    def _mask_public(self, id: int) -> bytes:
        return self.state.public[id][keys.KEY_BYTES :]


Device, Server = SecAggDevice, SecAggServer


class SecAgg(QuantisedProtocol):
    """Secure aggregation of whole vectors."""

    name = "secagg"
    options = (
        *QuantisedProtocol.options,
        *(GraphOptions, ThreatOptions, TransportOptions, ThreadOptions),
    )
    min_devices = 2
    device_class: ClassVar[Callable[..., Any]] = SecAggDevice
    server_class: ClassVar[Callable[..., Any]] = SecAggServer
    steps: tuple[Step, ...] = (
        MODEL,
        Step(
            "advertise_keys",
            GATHER,
            Device.send_advertise_keys,
            Server.receive_advertise_keys,
            finish=Server.finish_advertise_keys,
        ),
        Step(
            "advertise_keys", BROADCAST, Server.send_advertise_keys, Device.receive_advertise_keys
        ),
        Step(
            "share_keys",
            ROUTE,
            Device.send_share_keys,
            Device.receive_share_keys,
            relay=Server.receive_share_keys,
            row_bytes=SHARE_BYTES,
        ),
        Step("share_keys", BROADCAST, Server.send_challenge, Device.receive_challenge),
        Step(
            "share_keys",
            GATHER,
            Device.send_checks,
            Server.receive_checks,
            finish=Server.finish_checks,
        ),
        Step(
            "share_keys",
            BROADCAST,
            Server.send_expelled,
            Device.receive_expelled,
            wants=Server.wants_expelled,
        ),
        Step(
            "masked_input",
            GATHER,
            Device.send_masked_input,
            Server.receive_masked_input,
            upload=True,
            receive_part=Server.receive_part_masked_input,
            receive_sum=Server.receive_sum_masked_input,
            finish=Server.finish_masked_input,
            early=True,
        ),
        Step("unmask", BROADCAST, Server.send_unmask, Device.receive_unmask),
        Step(
            "unmask", GATHER, Device.send_unmask, Server.receive_unmask, finish=Server.finish_unmask
        ),
        Step(
            "unmask", BROADCAST, Server.send_pairs, Device.receive_pairs, wants=Server.wants_pairs
        ),
        Step(
            "unmask",
            GATHER,
            Device.send_pairs,
            Server.receive_pairs,
            wants=Server.wants_pairs,
            finish=Server.finish_pairs,
        ),
        Step("unmask", LOCAL, Server.send_masks, finish=Server.finish_masks, by_all_ranks=True),
        Step("result", LOCAL, finish=Server.finish_result),
    )

    def __init__(self, parameters: Parameters) -> None:
        super().__init__(parameters)
        self.topology = self._topology()
        # Lists and requests are broadcast on a complete graph, and per device on a ring.
        self.steps = tuple(
            replace(step, pattern=self.topology.pattern)
            if step.name in ("advertise_keys", "expelled", "unmask", "pairs")
            and step.pattern is BROADCAST
            else step
            for step in type(self).steps
        )

    def _topology(self) -> Topology:
        """Return SecAgg's complete graph, or the ring of the degree in the parameters."""
        plan = self.parameters
        if plan.degree is None:
            return Topology(plan.devices, plan.devices - 1, plan.threshold)
        return ring_of(plan)

    def outcome(self, server: SecAggServer) -> Outcome:
        return server.outcome()

    def stand_in(self, server: SecAggServer, id: int, round_index: int) -> Contributor:
        return Contributor(self, id, round_index, server.received_from(id))

    def settings(self) -> dict[str, Any]:
        return {"degree": self.topology.degree, "threshold": self.topology.threshold}

    def promises(self) -> list[Promise]:
        return [self.topology.promise(self.parameters), *super().promises()]

    @property
    def needed_in_sum(self) -> int:
        return self.parameters.threshold

    @property
    def most_at_fault(self) -> int:
        """Maximum number of a secret's holders that may be at fault; the same for dealers.

        If this many holders vanish later, and the shares of as many others are invalid, t shares
        remain after the planned dropouts; on a ring, except with 2 to the minus correctness bits.
        """
        holders, failure = self.topology.degree + 1, 2.0**-self.parameters.correctness_bits
        left = holders + SPARE - self.threat.most_dropped(holders, failure)
        return max(LIARS, (left - self.topology.threshold) // 2)

    @classmethod
    def masking(cls, devices: int, options: MaskingOptions) -> Masking:
        return InCohorts(devices, ring_degree(options.degree, devices))

    def sizes(self) -> dict[Method, float]:
        topology, plan = self.topology, self.parameters
        holders, gone = topology.degree + 1, plan.planned_dropouts
        each = topology.degree / max(1, plan.devices - 1)
        shares = SEED_SHARE * (1 + each * (plan.devices - gone - 1)) + KEY_SHARE * each * gone
        lists = 2 * -(-topology.slots // 8)
        return {
            Device.send_advertise_keys: ADVERTISED_BYTES,
            Server.send_advertise_keys: topology.list_bytes,
            Device.send_share_keys: SHARE_BYTES,
            Server.send_challenge: CHALLENGE_BYTES,
            Device.send_checks: 4 * ANSWERS * holders,
            Device.send_masked_input: self.summed_in.wire_bytes(self.upload_dim),
            Server.send_unmask: topology.count_bytes + lists,
            Device.send_unmask: 4 * shares,
            Device.send_pairs: SEED_BYTES * topology.degree,
        }

    @property
    def largest_reply(self) -> int:
        # One share of a mask key for every holder, if all other devices drop out.
        return max(4 * KEY_SHARE * (self.topology.degree + 1), ADVERTISED_BYTES)

    # Key derivation

    def round_context(self, round_index: int) -> bytes:
        """Return the hash context of a round's links."""
        return f"{self.context(round_index)} links".encode()

    def pair_contexts(
        self, round_index: int, i: int, peers: Sequence[int], use: str
    ) -> list[bytes]:
        """Return the contexts that derive keys for one use from the secrets of `i` and peers."""
        head = f"{self.context(round_index)} pair"
        pairs = [(i, j) if i < j else (j, i) for j in peers]
        return [f"{head} {low} {high} {use}".encode() for low, high in pairs]

    def private_mask_key(self, round_index: int, device: int, seed: bytes) -> bytes:
        """Return the key of a device's private mask (eq. 12)."""
        context = f"{self.context(round_index)} device {device} private mask"
        return keys.derive(seed, context.encode())

    def mask_secrets(
        self, round_index: int, i: int, peers: Sequence[int], secrets: Sequence[bytes]
    ) -> list[bytes]:
        """Return the secrets of the masks of device `i` and each peer, from their agreed secrets.

        Each is bound to the two ids. Revealing it reveals nothing about masks with other devices,
        even if one of them advertised the same key.
        """
        return self.pair_keys(round_index, i, peers, secrets, "additive mask")

    def pair_keys(
        self, round_index: int, i: int, peers: Sequence[int], secrets: Sequence[bytes], use: str
    ) -> list[bytes]:
        """Return the keys that device `i` shares with each peer, for one use."""
        return keys.derive_each(secrets, self.pair_contexts(round_index, i, peers, use))
