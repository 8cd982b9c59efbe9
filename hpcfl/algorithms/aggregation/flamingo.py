"""One message per device and round, and decryptors with a shared key (Ma et al., IEEE S&P 2023).

Once, before the first round, all pairs of devices agree on secrets, and L of the devices, the
*decryptors*, make an ElGamal key (joint Feldman); any t of them decrypt, t - 1 learn nothing. In a
round public randomness links pairs of devices, so many that all honest survivors are connected. A
device masks its vector with every neighbour, and with a mask of its own. It encrypts the seeds of
the first for the decryptors, and deals them shares of the seed of its own. Of each device they then
tell one: its own seed if its vector is in the sum, and otherwise its neighbours' seeds with it.

This is Flamingo against curious parties, on edwards25519. The authors' code cuts seeds of pairs to
16 bits, checks no signatures and drops the tags of AES-GCM; this one does neither. Each maker of
the key proves that it knows its part (as in FROST, SAC 2020), so none can subtract the others'.

A malformed seed ends the round: a device's own seed has a tag, and the scalar w that encrypts a
pair's seed follows from it (Fujisaki and Okamoto, CRYPTO 1999). All decryptors that are there
answer once. The first t multiply their points by Lagrange factors, so the server only adds t points
per pair. If one of these vanishes or answers falsely, the server itself multiplies the answers of t
others. Not promised: decryptors do not know whose point they multiply, so a server that cheats can
have any encrypted seed of this or an earlier round decrypted in place of another, and read a
vector. Proofs against that would take 64 bytes a neighbour.

Messages, after the envelope (all numbers little-endian; "bits" are a bitmap, the first bit of a
byte being its most significant; n devices; a "pair" links a survivor with a missing device):

==============  =============  ====================================================================
phase           direction      payload
==============  =============  ====================================================================
advertise_keys  to the server  public key (32 bytes); once
advertise_keys  to devices     the n devices' keys, zeros for a missing key; once
make_key        maker to       t points, a proof (64), a sealed scalar (32 + 16) for each maker;
                server         once
make_key        to makers      the same of all makers; once
make_key        maker to       bits of the makers whose scalars are right; once
                server
make_key        to devices     bits of the decryptors (n), their public key (32); once
model           to devices     d float32
masked_input    to the server  for each neighbour w B and the masked seed (32 + 16), for each
                               decryptor a sealed share (32 + 16), then d group elements
unmask          to decryptors  bits of the survivors (n), a point (32) of each pair, a sealed share
                               (32 + 16) of each survivor
unmask          decryptor to   a point of each pair, a share (32) of each survivor, all ones if it
                server         does not open
==============  =============  ====================================================================
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation import messages, promises, sealed
from hpcfl.algorithms.aggregation.base import DIRECTORY, MODEL, Enrolment
from hpcfl.algorithms.aggregation.committee import choose_code
from hpcfl.algorithms.aggregation.enrolment import PHASE, STEPS, Directory, Enrolled
from hpcfl.algorithms.aggregation.messages import bits, from_server, parse_vector, split_bits
from hpcfl.algorithms.aggregation.promises import Outcome, Promise
from hpcfl.algorithms.aggregation.quantised import (
    DeviceState,
    QuantisedDevice,
    QuantisedProtocol,
    SumServer,
    until,
)
from hpcfl.algorithms.aggregation.secagg import pair_sign
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.phases import BROADCAST, GATHER, LOCAL, SCATTER, Method, Payload, Role, Step
from hpcfl.crypto import edwards, keys
from hpcfl.crypto.groups import FQ
from hpcfl.crypto.keystream import KEY_BYTES as SEED_BYTES
from hpcfl.crypto.sampling import subset
from hpcfl.errors import BelowThresholdError, MessageError, RefusedError, UsageError
from hpcfl.options.protocols import MaskingOptions, ThreadOptions, ThreatOptions
from hpcfl.privacy.distributions import log_binomial
from hpcfl.privacy.masking import OnlySummed
from hpcfl.privacy.ring import log2
from hpcfl.privacy.threat import Threat
from hpcfl.values import dataclass, field

MAKING = "make_key"
POINT, ENCRYPTED = edwards.BYTES, edwards.BYTES + SEED_BYTES
SHARE = edwards.BYTES + sealed.TAG_BYTES
PROOF, CHECK_BYTES = 64, 15
SURE = 2**32  # a probability of 1; probabilities of links are in units of 2**-32
HEAD = "hpcfl/1 flamingo key"  # what contexts of the enrolment begin with
ABSENT = b"\xff" * edwards.BYTES
Near = Callable[[int], Sequence[int]]  # returns the neighbours of a device


def linked(seed: bytes, id: int, devices: int, chance: int) -> NDArray[np.int64]:
    """Return the neighbours of a device, int64, increasing, for a public seed of 16 bytes.

    Each pair has its own block of AES, and is linked if the first word is below `chance`.
    """
    others = np.delete(np.arange(devices), id)
    pairs = np.stack([np.minimum(others, id), np.maximum(others, id)], axis=1).astype("<u8")
    # For different blocks, ECB is a random function of each.
    cipher = Cipher(algorithms.AES128(seed), modes.ECB()).encryptor()
    return others[np.frombuffer(cipher.update(pairs.tobytes()), "<u4")[::4] < chance]


def connected(near: Near, ids: Iterable[int]) -> bool:
    """Return whether links among them connect all devices `ids`, of which there is one at least."""
    left = {*ids}
    reached = [left.pop()]
    while reached:
        found = left.intersection(near(reached.pop()))
        left -= found
        reached += found
    return not left


@lru_cache(maxsize=4096)
def split(honest: int, chance: int) -> float:
    """Bound the probability that random links do not connect all honest survivors.

    The bound is the expected number of sets of at most half of them without a link to the others.
    """
    if chance == SURE:
        return 0.0
    size = np.arange(1, honest // 2 + 1)
    alone = log_binomial(honest, size) + size * (honest - size) * math.log1p(-chance / SURE)
    return min(1.0, float(np.exp(np.minimum(alone, 0)).sum()))


@lru_cache(maxsize=256)
def choose_chance(threat: Threat, failure: float) -> int:
    """Return the least probability of a link with which the planned survivors split so seldom.

    All pairs are linked if a device would else be without less than one other on average.
    """
    honest = max(2, threat.devices - threat.colluding - threat.dropped)
    low, high = 0, SURE
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (low, middle) if split(honest, middle) <= failure else (middle, high)
    return SURE if (SURE - high) * (threat.devices - 1) < SURE else high


def pair_contexts(head: str, id: int, peers: Iterable[int], use: str) -> list[bytes]:
    """Return the contexts of keys of a device with each peer, the same for both."""
    return [f"{head} pair {min(id, peer)} {max(id, peer)} {use}".encode() for peer in peers]


def scalar_of(seed: bytes, context: bytes) -> int:
    """Return the scalar w that encrypts a seed of 16 bytes."""
    return edwards.scalars(hashlib.sha256(context + b" scalar" + seed).digest())[0]


def encrypted(
    public: bytes, seeds: Sequence[bytes], contexts: Sequence[bytes], scalars: Sequence[int]
) -> bytes:
    """Return the seeds encrypted under the key PK, end to end: w B, seed xor KDF(w PK)."""
    pads = keys.derive_each([edwards.multiply(scalar, public) for scalar in scalars], contexts)
    each = zip(scalars, map(xor, seeds, pads), strict=True)
    return b"".join(edwards.base(scalar) + masked for scalar, masked in each)


def xor(one: bytes, other: bytes) -> bytes:
    """Return the bitwise exclusive or of two seeds."""
    return (int.from_bytes(one) ^ int.from_bytes(other)).to_bytes(SEED_BYTES)


def tagged(seed: bytes, context: bytes) -> bytes:
    """Return a seed of 16 bytes and its tag as a scalar: below 2**248, 32 bytes."""
    return seed + hashlib.sha256(context + b" tag" + seed).digest()[:CHECK_BYTES] + bytes(1)


class Known:
    """What every party knows from the enrolment."""

    digest = public = b""  # of all public keys; the key to encrypt under
    makers: Sequence[int] = ()  # of the key, increasing
    decryptors: Sequence[int] = ()  # the makers whose parts are in the key

    def __init__(self, setting: tuple[int, int]) -> None:
        self.count, self.threshold = self.setting = setting  # L, t
        self.there: messages.Flags = np.zeros(0, np.bool_)  # who has enrolled, shape (n,)

    def learn(self, listed: Payload) -> None:
        """Draw the makers by the keys of all devices; whoever sends the last could try several."""
        self.digest = hashlib.sha256(HEAD.encode() + listed.tobytes()).digest()
        self.there = listed.reshape(-1, keys.KEY_BYTES).max(axis=1) > 0
        self.makers = subset(self.digest, len(self.there), self.count)

    @property
    def dealing_bytes(self) -> int:
        """Size of what a maker sends."""
        return POINT * self.threshold + PROOF + SHARE * self.count

    def places(self, ids: Iterable[int]) -> tuple[int, ...]:
        """Return the places of makers, from 1 on: the points of their shares."""
        return tuple(self.makers.index(id) + 1 for id in ids)


class Member(Enrolled, Known):
    """An enrolled device: its secrets, and the last round that it masked a vector for."""

    entered = "masked a vector for"
    kept = (
        *(*Enrolled.kept, "digest", "public", "makers", "decryptors", "there"),
        *("_parts", "_share", "_has_dealt"),
    )
    _has_dealt = False

    def __init__(
        self, id: int, devices: int, setting: tuple[int, int], secrets: keys.SecretSource
    ) -> None:
        Enrolled.__init__(self, id, devices, secrets)
        Known.__init__(self, setting)
        # By place of the maker: its part of the public key, and a share of the private one; or b"".
        self._parts: list[bytes] = []
        self._share = b""

    @property
    def in_committee(self) -> bool:
        """Whether this device is a maker."""
        return self.id in self.makers

    def receive_advertise_keys(self, payload: Payload) -> None:
        """Agree on a secret with every device, itself included."""
        sent = enumerate(self._listed(payload, keys.KEY_BYTES, self.devices))
        listed = {id: key for id, key in sent if any(key)}
        if listed.get(self.id) != self._pair.public:
            raise from_server(PHASE, "this device's own key is not as it sent it")
        messages.check_public_keys(b"".join(listed.values()), [*listed])
        contexts = dict(zip(listed, pair_contexts(HEAD, self.id, listed, "secret"), strict=True))
        agreed = keys.agreed(self._pair.private, listed, contexts.__getitem__, keys.KEY_BYTES)
        # A secret that nobody has stands for that with a missing device.
        found = (agreed.get(id) or self._random(keys.KEY_BYTES) for id in range(self.devices))
        self._keep([*found])
        self.learn(payload)

    def keys_with(self, head: str, ids: Sequence[int], use: str) -> list[bytes]:
        """Return a key of 16 bytes with each of the devices `ids`."""
        contexts = pair_contexts(head, self.id, ids, use)
        return keys.derive_each([self._secret(id) for id in ids], contexts)

    def sealed_for(self, head: str, ids: Sequence[int], shares: Iterable[int]) -> Payload:
        """Return shares, each sealed for one of the devices `ids`."""
        rows = np.empty((len(ids), SHARE), np.uint8)
        seals = sealed.seals(self.keys_with(head, ids, "share"), head, ((self.id, k) for k in ids))
        sealed.seal(seals, map(edwards.packed, shares), rows)
        return rows.reshape(-1)

    def opened(self, head: str, ids: Sequence[int], rows: Payload) -> list[bytes]:
        """Return the shares that devices have sealed for this one; `ABSENT` if one is not open."""
        contents = np.empty((len(ids), edwards.BYTES), np.uint8)
        # Seals name sender and round, so a server cannot swap them.
        seals = sealed.seals(self.keys_with(head, ids, "share"), head, ((k, self.id) for k in ids))
        contents[sealed.unseal(seals, rows.reshape(-1, SHARE), contents)] = 255
        return keys.cut(contents.tobytes(), edwards.BYTES)

    def send_dealing(self) -> Payload:
        """Return commitments to a random polynomial, a proof, and its sealed values; once."""
        if self._has_dealt:  # the seals of a second dealing would have the same nonces
            raise RefusedError(f"{self.name} refuses to deal parts of a key twice")
        self._has_dealt = True
        drawn = edwards.scalars(self._random(edwards.BYTES * (self.threshold + 1)))
        points = b"".join(map(edwards.base, drawn[1:]))
        challenge = self._challenge(self.id, points, edwards.base(drawn[0]))
        proof = edwards.packed(challenge) + edwards.packed(drawn[0] + challenge * drawn[1])
        shares = self.sealed_for(HEAD, self.makers, edwards.share(drawn[1:], self.count))
        return np.concatenate([np.frombuffer(points + proof, np.uint8), shares])

    def _challenge(self, maker: int, points: bytes, commitment: bytes) -> int:
        proven = f"{HEAD} proof {maker}".encode() + self.digest + points + commitment
        return edwards.scalars(hashlib.sha256(proven).digest())[0]

    def receive_dealings(self, payload: Payload) -> None:
        """Check and keep what all makers have dealt; refuse a second time."""
        if self._parts or self.public:
            raise RefusedError(f"{self.name} refuses to make a second key")
        width = self.dealing_bytes
        rows = parse_vector(payload, "u1", self.count * width, MAKING).reshape(-1, width)
        heads, tails = np.split(rows, [width - SHARE * self.count], axis=1)
        place = SHARE * self.makers.index(self.id)
        shares = self.opened(HEAD, self.makers, tails[:, place : place + SHARE])
        for maker, head, share in zip(self.makers, heads, shares, strict=True):
            points = keys.cut(head.tobytes(), POINT)
            self._parts.append(points[0] + share if self._is_right(maker, points, share) else b"")

    def _is_right(self, maker: int, points: list[bytes], share: bytes) -> bool:
        """Return whether a share fits the points (Feldman), and the proof the first of them."""
        *points, first, second = points
        challenge, response = edwards.scalars(first + second)
        (place,) = self.places([self.id])
        try:
            if share == ABSENT or not all(map(edwards.is_point, points)):
                return False
            total = points[-1]
            for point in points[-2::-1]:
                total = edwards.combine((place, 1), (total, point))
            both = edwards.base(response), points[0]
            commitment = edwards.combine((1, edwards.ORDER - challenge), both)
            right = total == edwards.base(*edwards.scalars(share))
        except (RuntimeError, ValueError):  # a zero somewhere, never of an honest maker
            return False
        return right and challenge == self._challenge(maker, b"".join(points), commitment)

    def send_held(self) -> Payload:
        """Return which makers' shares are right."""
        return bits([k for k, part in enumerate(self._parts) if part], self.count)

    def receive_public_key(self, payload: Payload) -> None:
        """Keep the public key and, as a decryptor, the share of the private one."""
        decryptors, rest = split_bits(payload, self.devices, MAKING)
        public = parse_vector(rest, "u1", POINT, MAKING).tobytes()
        places = [k for k, maker in enumerate(self.makers) if maker in decryptors]
        parts = [self._parts[k] for k in places if self._parts]
        # Of t parts an honest device has made one, which the others do not know.
        right = len(places) == len(decryptors) >= self.threshold and edwards.is_point(public)
        if right and self.id in decryptors:
            right = (
                bool(parts)
                and all(parts)
                and public == edwards.combine([1] * len(parts), [part[:POINT] for part in parts])
            )
            shares = edwards.scalars(b"".join(part[POINT:] for part in parts))
            self._share = edwards.packed(sum(shares))
        if self.public or not right:
            raise from_server(MAKING, "the public key is not the sum of the decryptors' parts")
        self.decryptors, self.public, self._parts = decryptors, public, []

    def enter(self, round_index: int) -> None:
        if not self.public:
            raise RefusedError(f"{self.name} refuses round {round_index}: it has not enrolled")
        super().enter(round_index)

    def decrypt(self, factor: int, points: Sequence[bytes]) -> bytes:
        """Return points times a factor and the share of the key; zeros for what is no point."""
        (share,), found = edwards.scalars(self._share), []
        for point in points:
            try:
                found.append(edwards.multiply(share * factor, point))
            except ValueError:
                found.append(bytes(POINT))
        return b"".join(found)


class KeyMaking(Directory, Known):
    """The server's side of the enrolment; rounds find in it who the decryptors are."""

    def __init__(self, devices: int, setting: tuple[int, int]) -> None:
        Directory.__init__(self, devices)
        Known.__init__(self, setting)
        self._dealt: dict[int, bytes] = {}
        self._held: dict[int, list[int]] = {}

    @property
    def committee(self) -> Sequence[int]:
        """The makers."""
        return self.makers

    def send_advertise_keys(self) -> Payload:
        listed = super().send_advertise_keys()
        self.learn(listed)
        return listed

    def receive_dealing(self, sender: int, payload: Payload) -> None:
        """Keep what a maker deals."""
        name = self._maker(sender, self._dealt)
        size = self.dealing_bytes
        self._dealt[sender] = parse_vector(payload, "u1", size, MAKING, name).tobytes()

    def _maker(self, sender: int, received: Mapping[int, Any]) -> str:
        if sender not in self.makers or sender in received:
            raise MessageError(MAKING, f"device {sender}", "it is no maker, or was received twice")
        return f"device {sender}"

    def send_dealings(self) -> Payload:
        """Return what all makers have dealt, with zeros for a missing one."""
        nothing = bytes(self.dealing_bytes)
        dealt = b"".join(self._dealt.get(id, nothing) for id in self.makers)
        return np.frombuffer(dealt, np.uint8)

    def receive_held(self, sender: int, payload: Payload) -> None:
        """Record whose shares a maker has."""
        name = self._maker(sender, self._held)
        self._held[sender] = messages.read_bits(payload, self.count, MAKING, name)

    def finish_held(self) -> None:
        """Leave out every maker that has told nothing, or whose shares another one rejects."""
        accepted = set.intersection({*range(self.count)}, *map(set, self._held.values()))
        found = enumerate(self.makers)
        self.decryptors = [id for k, id in found if k in accepted and id in self._held]
        if len(self.decryptors) < self.threshold:
            raise BelowThresholdError(
                f"the enrolment cannot end: {len(self.decryptors)} of {self.count} devices have "
                f"right shares of each other's parts of the key, {self.threshold} are needed"
            )
        firsts = [self._dealt[id][:POINT] for id in self.decryptors]
        self.public = edwards.combine([1] * len(firsts), firsts)

    def send_public_key(self) -> Payload:
        """Return the decryptors and their public key."""
        named = bits(self.decryptors, self._devices)
        return np.concatenate([named, np.frombuffer(self.public, np.uint8)])


_MAKER = Role.COMMITTEE
ENROLMENT = (
    *STEPS,
    Step(MAKING, GATHER, Member.send_dealing, KeyMaking.receive_dealing, _MAKER),
    Step(MAKING, BROADCAST, KeyMaking.send_dealings, Member.receive_dealings, _MAKER),
    Step(
        *(MAKING, GATHER, Member.send_held, KeyMaking.receive_held, _MAKER),
        finish=KeyMaking.finish_held,
    ),
    Step(MAKING, BROADCAST, KeyMaking.send_public_key, Member.receive_public_key),
)


@dataclass
class FlamingoState(DeviceState):
    """What a device keeps between the steps of a round."""

    answer: bytes = until("unmask", bytes)


class FlamingoDevice(QuantisedDevice):
    """A device's side of one round; `_member` is its state for all rounds."""

    _protocol: Flamingo
    _member: Member
    state: FlamingoState
    state_class = FlamingoState

    @property
    def in_committee(self) -> bool:
        """Whether this device is a decryptor."""
        return self.id in self._member.decryptors

    def send_masked_input(self, vector: NDArray[np.floating]) -> Payload:
        """Return encrypted seeds, sealed shares of a seed, and the masked vector."""
        self._once("upload")
        member, head = self._member, self._protocol.context(self._round)
        member.enter(self._round)
        if member.setting != self._protocol.setting:
            raise self.refusal("a round for which other numbers of devices may collude")
        peers = self._protocol.near(member, self._round)(self.id)
        contexts = pair_contexts(head, self.id, peers, "seed")
        seeds = member.keys_with(head, peers, "seed")
        sent = encrypted(member.public, seeds, contexts, [*map(scalar_of, seeds, contexts)])
        own = self._secrets(SEED_BYTES)
        drawn = tagged(own, f"{head} seed of {self.id}".encode())
        drawn += self._secrets(edwards.BYTES * (member.threshold - 1))
        dealt = edwards.share(edwards.scalars(drawn), member.count)
        chosen = (dealt[member.makers.index(id)] for id in member.decryptors)
        shares = member.sealed_for(head, member.decryptors, chosen)
        signs = [1, *(pair_sign(self.id, peer) for peer in peers)]
        masked = self._masked(vector, [own, *seeds], signs)
        return np.concatenate([np.frombuffer(sent, np.uint8), shares, masked])

    def receive_unmask(self, payload: Payload) -> None:
        """Answer, as a decryptor, for one of each device's secrets; refuse what reveals more."""
        member, protocol, devices = self._member, self._protocol, self._parameters.devices
        survivors, rest = split_bits(payload, devices, "unmask")
        near = protocol.near(member, self._round)
        cut = POINT * len(pairs_cut(member, near, survivors))
        parse_vector(rest, "u1", cut + SHARE * len(survivors), "unmask")
        # A device that has not uploaded in this round may have answered in it before.
        if "upload" not in self.state.done or self.id not in survivors:
            raise self.refusal("to unmask a sum without its own vector")
        self._once("unmask")
        there = [id for id in member.decryptors if id in survivors]
        broken = promises.objection(protocol.promises(), Outcome(devices, len(survivors)))
        if broken is None and len(there) < member.threshold:
            broken = f"there are {len(there)} decryptors, and {member.threshold} are needed"
        if broken is None and not connected(near, survivors):
            broken = "masks do not connect all devices in the sum"
        if broken is not None:
            raise self.refusal(f"to unmask: {broken}")
        first = member.places(there[: member.threshold])
        factors = dict(zip(first, edwards.weights(first), strict=True))
        (own,) = member.places([self.id])
        points = member.decrypt(factors.get(own, 1), keys.cut(rest[:cut].tobytes(), POINT))
        shares = member.opened(protocol.context(self._round), survivors, rest[cut:])
        self.state.answer = points + b"".join(shares)

    def send_unmask(self) -> Payload:
        """Return the answers, once."""
        answer, self.state.answer = self.state.answer, b""
        if not answer:
            raise self.refusal("to unmask: it was not asked, or has answered")
        return np.frombuffer(answer, np.uint8)


def pairs_cut(known: Known, near: Near, survivors: Sequence[int]) -> list[tuple[int, int]]:
    """Return each link of a survivor with an enrolled device that is missing."""
    there, gone = {*survivors}, known.there.copy()
    gone[survivors] = False
    return [
        (id, peer) for peer in np.flatnonzero(gone).tolist() for id in near(peer) if id in there
    ]


@dataclass
class FlamingoServerState:
    """What the server keeps between the steps of a round."""

    # What a device has sent besides its vector: encrypted seeds by neighbour, shares by decryptor.
    seeds: dict[int, dict[int, bytes]] = field(default_factory=dict, repr=False)
    shares: dict[int, dict[int, bytes]] = field(default_factory=dict, repr=False)
    pairs: list[tuple[int, int]] = field(default_factory=list)
    # By place of a decryptor: a point of each pair, then a scalar of each survivor.
    answers: dict[int, list[bytes]] = field(default_factory=dict, repr=False)
    left_out: int = 0  # the place of a decryptor whose answers do not fit


class FlamingoServer(SumServer):
    """The server's side of one round."""

    _protocol: Flamingo
    state: FlamingoServerState
    state_class = FlamingoServerState

    def __init__(self, protocol: Flamingo, round_index: int, *rest: Any) -> None:
        super().__init__(protocol, round_index, *rest)
        self._known: KeyMaking = protocol.enrolled[DIRECTORY]
        self._near = protocol.near(self._known, round_index)
        self._head = protocol.context(round_index)
        self.committee = self._known.decryptors

    def _check_sender(self, sender: int) -> None:
        if not self._known.there[sender]:  # nobody is linked with it
            raise MessageError("masked_input", f"device {sender}", "it has not enrolled")
        super()._check_sender(sender)

    def _add_upload(self, sender: int, payload: Payload) -> None:
        peers, decryptors = self._near(sender), self._known.decryptors
        cut = ENCRYPTED * len(peers)
        size = cut + SHARE * len(decryptors)
        super()._add_upload(sender, payload[size:])
        sent = payload[:size].tobytes()
        self.state.seeds[sender] = dict(zip(peers, keys.cut(sent[:cut], ENCRYPTED), strict=True))
        self.state.shares[sender] = dict(zip(decryptors, keys.cut(sent[cut:], SHARE), strict=True))

    def finish_masked_input(self) -> None:
        """Fix the devices in the sum, the decryptors, and the seeds to decrypt."""
        super().finish_masked_input()
        self.committee = [id for id in self._known.decryptors if id in self._admitted]
        self._enough_decryptors(len(self.committee), "sent their masked vectors")
        self.state.pairs = pairs_cut(self._known, self._near, self.survivors)

    def _enough_decryptors(self, count: int, what: str) -> None:
        known = self._known
        self._require(count, what, known.threshold, "decryptors", len(known.decryptors))

    @cached_property
    def _multiplied(self) -> tuple[int, ...]:
        return self._known.places(self.committee[: self._known.threshold])

    @cached_property
    def _asked(self) -> bytes:
        points = b"".join(self.state.seeds[id][peer][:POINT] for id, peer in self.state.pairs)
        return self._bits(self.survivors).tobytes() + points

    def send_unmask(self, receiver: int) -> Payload | None:
        """Return the devices in the sum, points to decrypt, and a decryptor's sealed shares."""
        if receiver not in self.committee:
            return None
        shares = b"".join(self.state.shares[id][receiver] for id in self.survivors)
        return np.frombuffer(self._asked + shares, np.uint8)

    def receive_unmask(self, sender: int, payload: Payload) -> None:
        """Keep a decryptor's answers."""
        if sender not in self.committee:
            raise MessageError("unmask", f"device {sender}", "it is no decryptor")
        (place,) = self._known.places([sender])
        name = self._first("unmask", sender, [sender] if place in self.state.answers else [])
        size = POINT * (len(self.state.pairs) + len(self.survivors))
        sent = parse_vector(payload, "u1", size, "unmask", name).tobytes()
        self.state.answers[place] = keys.cut(sent, POINT)

    def finish_unmask(self) -> None:
        """Find all seeds, and remove their masks from the sum."""
        self._enough_decryptors(len(self.state.answers), "answered")
        own = [(id, id) for id in self.survivors]
        others = enumerate(own, len(self.state.pairs))
        seeds = [*self._seeds_of_pairs(), *(self._seed(*one) for one in others)]
        signs = [*(-pair_sign(*pair) for pair in self.state.pairs), *[-1] * len(own)]
        self.unmasked = self._uploads.take()
        threads = self._parameters.threads
        self._protocol.summed_in.mask(self.unmasked, seeds, signs, threads)

    def _seeds_of_pairs(self) -> list[bytes]:
        """Return the seeds of all pairs; their keys are derived together, which is faster."""
        answers, pairs = self.state.answers, self.state.pairs
        among = tuple(sorted(answers)[: self._known.threshold])
        points = ([answers[place][number] for place in among] for number in range(len(pairs)))
        pads = keys.derive_each(
            [self._common(among, parts) for parts in points], [*map(self._context, pairs)]
        )
        each = enumerate(zip(pairs, pads, strict=True))
        return [self._fitting(*one) or self._seed(number, one[0]) for number, one in each]

    def _context(self, pair: tuple[int, int]) -> bytes:
        (context,) = pair_contexts(self._head, pair[0], [pair[1]], "seed")
        return context

    def _common(self, among: tuple[int, ...], parts: list[bytes]) -> bytes:
        """Return the sum of decryptors' points; zeros if there is none."""
        try:
            return edwards.combine(conversions(among, self._multiplied), parts)
        except ValueError:
            return bytes(POINT)

    def _fitting(self, pair: tuple[int, int], pad: bytes) -> bytes:
        """Return the seed of a pair; nothing if it would be encrypted otherwise."""
        sent = self.state.seeds[pair[0]][pair[1]]
        seed = xor(sent[POINT:], pad)
        right = edwards.base(scalar_of(seed, self._context(pair))) == sent[:POINT]
        return seed if right else b""

    def _seed(self, number: int, pair: tuple[int, int]) -> bytes:
        """Return a seed from t answers, without those of one decryptor that may answer falsely."""
        answers, threshold = self.state.answers, self._known.threshold
        opened = [place for place in sorted(answers) if answers[place][number] != ABSENT]
        for left_out in dict.fromkeys([self.state.left_out, *opened]):
            among = tuple([place for place in opened if place != left_out][:threshold])
            parts = [answers[place][number] for place in among]
            found = self._combined(pair, among, parts) if len(among) == threshold else b""
            if found:
                self.state.left_out = left_out
                return found
        raise BelowThresholdError(
            f"round {self.round_index} cannot end: the answers of {len(opened)} decryptors give "
            f"no seed of device {pair[0]}: it sent wrong ones, or decryptors did"
        )

    def _combined(self, pair: tuple[int, int], among: tuple[int, ...], parts: list[bytes]) -> bytes:
        """Return the seed of a pair, or a device's own; nothing if the parts do not fit."""
        id, peer = pair
        if id == peer:
            shares = zip(edwards.weights(among), edwards.scalars(b"".join(parts)), strict=True)
            whole = edwards.packed(sum(weight * share for weight, share in shares))
            seed = whole[:SEED_BYTES]
            return seed if whole == tagged(seed, f"{self._head} seed of {id}".encode()) else b""
        return self._fitting(pair, keys.derive(self._common(among, parts), self._context(pair)))


@lru_cache(maxsize=256)
def conversions(places: tuple[int, ...], first: tuple[int, ...]) -> list[int]:
    """Return the factors of some decryptors' points; the `first` have multiplied by theirs."""
    before = dict(zip(first, edwards.weights(first), strict=True))
    wanted = zip(places, edwards.weights(places), strict=True)
    return [w * pow(before.get(place, 1), -1, edwards.ORDER) % edwards.ORDER for place, w in wanted]


Device, Server = FlamingoDevice, FlamingoServer


class Flamingo(QuantisedProtocol):
    """Secure aggregation of whole vectors with one message per device and round."""

    name = "flamingo"
    options = (*QuantisedProtocol.options, ThreatOptions, ThreadOptions)
    min_devices = 2
    device_class = FlamingoDevice
    server_class = FlamingoServer
    steps = (
        MODEL,
        Step(
            *("masked_input", GATHER, Device.send_masked_input, Server.receive_masked_input),
            upload=True,
            finish=Server.finish_masked_input,
        ),
        Step("unmask", SCATTER, Server.send_unmask, Device.receive_unmask, Role.COMMITTEE),
        Step(
            *("unmask", GATHER, Device.send_unmask, Server.receive_unmask, Role.COMMITTEE),
            finish=Server.finish_unmask,
        ),
        Step("result", LOCAL, finish=Server.finish_result),
    )

    def __init__(self, parameters: Parameters) -> None:
        super().__init__(parameters)
        edwards.library()
        self._refuse_part_of(parameters.population or parameters.devices)
        self.setting = choose_setting(parameters)
        members, needed = self.setting
        self.exceeded = self.threat.more_colluding(members, needed - 1)
        # All promises together fail with the accepted probability.
        self.accepted = 2.0**-parameters.security_bits - self.exceeded
        self.chance = choose_chance(self.threat, self.accepted)
        # An enrolment for these parameters; of that of the class only the steps are of use.
        own = partial(type(self).enrolment, plan=parameters)
        self.enrolment = own  # type: ignore[method-assign]

    def _refuse_part_of(self, population: int) -> None:
        if population != self.parameters.devices:
            raise UsageError(
                f"rounds of {self.name} are of all {population} devices that enrol, and not of "
                f"{self.parameters.devices}, as decryptors must be there; use secagg"
            )

    @classmethod
    def enrolment(cls, devices: int, helpers: int = 0, plan: Parameters | None = None) -> Enrolment:
        """Return the enrolment, in which pairs agree on secrets and some devices make a key."""
        setting = (2, 2) if plan is None else choose_setting(plan)
        return Enrolment(
            ENROLMENT,
            Known(setting).dealing_bytes,
            server=lambda: KeyMaking(devices, setting),
            device=lambda id, secrets: Member(id, devices, setting, secrets),
        )

    def join(self, enrolled: Mapping[int, Any], members: Sequence[int], population: int) -> None:
        self._refuse_part_of(population)
        super().join(enrolled, members, population)

    @classmethod
    def masking(cls, devices: int, options: MaskingOptions) -> OnlySummed:
        return OnlySummed(devices)

    def near(self, known: Known, round_index: int) -> Near:
        """Return a function that gives a device's neighbours in a round, of those enrolled."""
        context = f"{self.context(round_index)} graph".encode()
        seed = hashlib.sha256(context + known.digest).digest()[:SEED_BYTES]

        def found(id: int) -> list[int]:
            near = linked(seed, id, self.parameters.devices, self.chance)
            return near[known.there[near]].tolist()

        return found

    def settings(self) -> dict[str, Any]:
        members, needed = self.setting
        threshold = self.parameters.threshold
        return {"committee": members, "members_needed": needed, "threshold": threshold}

    @property
    def needed_in_sum(self) -> int:
        # With fewer, the honest ones may not all be linked.
        least = 0 if self.chance == SURE else self.parameters.devices - self.threat.dropped
        return max(least, self.parameters.threshold)

    def promises(self) -> list[Promise]:
        (members, needed), threshold = self.setting, self.parameters.threshold
        more = promises.unless_more_collude(self.exceeded)
        hidden = (
            f"the server learns the sum of at least {threshold} devices' vectors, or, with "
            f"colluding devices, the sum of the others, as long as at most {needed - 1} of "
            f"{members} decryptors collude{more}. Secrets serve all rounds: whoever learns those "
            "of a device, or of enough decryptors, even later, learns vectors of all rounds"
        )
        split = 0.0 if self.chance == SURE else self.accepted
        linked = (
            f"a device masks with {self.degree:.3g} others on average, at random. If {self.threat} "
            f"collude and {self.needed_in_sum} devices are in the sum, the honest ones of them are "
            "all linked"
        )
        linked += f", except with probability {log2(split)}" if split else ""
        return [
            promises.Certain(hidden, threshold, self.exceeded),
            promises.Certain(linked, self.needed_in_sum, split),
            *super().promises(),
        ]

    @property
    def members_in_round(self) -> int:
        return self.setting[0]

    @property
    def degree(self) -> float:
        """Average number of neighbours of a device."""
        return self.chance / SURE * (self.parameters.devices - 1)

    def broken_links(self, dropped: int) -> float:
        """Return the expected number of links with so many missing devices."""
        return dropped * (self.parameters.devices - dropped) * self.chance / SURE

    def sizes(self) -> dict[Method, float]:
        devices, dropped = self.parameters.devices, self.parameters.planned_dropouts
        upload = self.largest_message - ENCRYPTED * (devices - 1 - self.degree)
        points, survivors = POINT * self.broken_links(dropped), devices - dropped
        return {
            Device.send_masked_input: upload,
            Server.send_unmask: -(-devices // 8) + points + SHARE * survivors,
            Device.send_unmask: points + POINT * survivors,
        }

    @property
    def largest_message(self) -> int:
        sent = ENCRYPTED * (self.parameters.devices - 1) + SHARE * self.setting[0]
        return sent + self.summed_in.wire_bytes(self.upload_dim)

    @property
    def largest_reply(self) -> int:
        devices = self.parameters.devices
        likely = self.broken_links(devices - self.needed_in_sum)
        # The number of links is random: ten standard deviations, and some.
        return POINT * (devices + math.ceil(likely + 10 * math.sqrt(likely) + 100))


@lru_cache(maxsize=256)
def choose_setting(plan: Parameters) -> tuple[int, int]:
    """Return the least number L of decryptors, and the number t that decrypts.

    At most t - 1 collude, and t remain if one more vanishes and one answers falsely.
    """
    threat, every = Threat.of(plan), range(2, plan.devices + 1)
    codes = (choose_code(plan, threat, members, plan.dim, FQ) for members in every)
    code = next(code for code in codes if code is not None)
    return code.devices, code.private + 1
