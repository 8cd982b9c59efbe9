"""The secure protocols again: plain integers, from the papers' equations and the wire format.

Nothing here calls the protocols' code. Keys come from the secrets that the devices drew; X25519 and
AES are the `cryptography` package's, everything else is Python integers.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import math
from dataclasses import dataclass
from fractions import Fraction

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from protocol_rounds import Played
from slow_ring import cohort_size, holders, leads, run, slots

Q = 2**32 - 5
LIMB_BITS = 31
MASK_KEY_LIMBS, SEED_LIMBS = 9, 5
# A share has a value more, the check of its secret.
KEY_SHARE, SEED_SHARE = MASK_KEY_LIMBS + 1, SEED_LIMBS + 1


def hkdf(secret, context):
    """Return the first 16 bytes of HKDF-SHA256 without salt (RFC 5869)."""
    key = hmac.digest(bytes(32), secret, hashlib.sha256)
    return hmac.digest(key, context.encode() + b"\x01", hashlib.sha256)[:16]


def stream(key, length, number=0):
    """Return the first bytes of a numbered AES-128-CTR keystream."""
    counter = number.to_bytes(12, "big") + (2).to_bytes(4, "big")
    return Cipher(algorithms.AES128(key), modes.CTR(counter)).encryptor().update(bytes(length))


def words(key, count, size, number=0):
    content = stream(key, size * count, number)
    return [int.from_bytes(content[k : k + size], "little") for k in range(0, len(content), size)]


def modulus_of(group):
    """Return the number of elements of a group."""
    return Q if group == "fq" else 2 ** int(group.removeprefix("ring"))


def bits_of(modulus):
    """Return the bits of an element on the wire."""
    return (modulus - 1).bit_length()


def packed(values, modulus):
    """Return elements as they are sent: the digits of one number, the first the lowest."""
    bits = bits_of(modulus)
    number = sum(value << bits * k for k, value in enumerate(values))
    return number.to_bytes(-(-bits * len(values) // 8), "little")


def unpacked(content, count, modulus):
    """Return the `count` elements that are at the end of a message."""
    bits = bits_of(modulus)
    number = int.from_bytes(content[len(content) - -(-bits * count // 8) :], "little")
    return [number >> bits * k & (2**bits - 1) for k in range(count)]


def elements(key, count, modulus):
    """Return uniform group elements: of a ring, the lowest bits of words of 8, 16 or 32.

    A word that is no field element is replaced from the next stream.
    """
    if modulus != Q:
        size = next(size for size in (1, 2, 4) if modulus <= 256**size)
        return [word % modulus for word in words(key, count, size)]
    found = words(key, count, 4)
    for k in range(count):
        for number in itertools.count(1):
            if found[k] < modulus:
                break
            found[k] = words(key, k + 1, 4, number)[k]
    return found


def gap_pattern(key, dim, probability):
    """Return the coordinates between which lie geometric gaps, one 64-bit word each."""
    tails = [math.floor(2**64 * (1 - probability) ** gap) for gap in range(1, dim + 1)]
    selected: set[int] = set()
    position = -1
    for word in words(key, dim + 1, 8):
        position += 1 + sum(1 for tail in tails if word < tail)
        if position >= dim:
            break
        selected.add(position)
    return selected


def limbs(secret):
    """Return 31-bit limbs, least significant first."""
    number = int.from_bytes(secret, "little")
    count = -(-8 * len(secret) // LIMB_BITS)
    return [number >> LIMB_BITS * k & (2**LIMB_BITS - 1) for k in range(count)]


def lagrange(points, at):
    """Return the value at a point of the polynomial through the points, over F_q."""
    known = list(points)
    total = 0
    for x, y in known:
        numerator = denominator = 1
        for other, _ in known:
            if other != x:
                numerator = numerator * (at - other) % Q
                denominator = denominator * (x - other) % Q
        total += y * numerator * pow(denominator, -1, Q)
    return total % Q


@dataclass
class SlowRound:
    """The keys, masks and patterns of a round that was played."""

    played: Played
    # From the round, for shares that do not belong together.
    expelled: tuple[int, ...] = ()

    def __post_init__(self):
        parameters = self.played.parameters
        self.devices, self.dim = parameters.devices, parameters.dim
        self.modulus = modulus_of(parameters.group)
        self.members = self.played.taking_part("advertise_keys")
        # Who shared keys; those of them with whom everybody masks; those of them that uploaded.
        self.dealers = self.played.taking_part("share_keys")
        self.sharers = [id for id in self.dealers if id not in self.expelled]
        self.survivors = [
            id for id in self.played.taking_part("masked_input") if id in self.sharers
        ]
        self.dropped = [id for id in self.sharers if id not in self.survivors]
        self.on_ring = parameters.degree is not None
        if self.on_ring:
            self.degree = min(parameters.degree, self.devices - 1)
            public = {id: self.advertised(id) for id in self.members}
            self.order = self.played.order(public)
        self._secrets: dict[tuple[str, int, int], bytes] = {}
        self._patterns: dict[tuple[int, int], set[int]] = {}
        self._masks: dict[tuple[int, int], list[int]] = {}
        self._runs: dict[int, list[int]] = {}

    # keys

    def drawn(self, device, what):
        """Return one of the secrets that a device drew, in the order of the protocol."""
        position = ("transport key", "mask key", "seed", "coefficients").index(what)
        return self.played.sources[device].drawn[position]

    def public(self, device, what):
        private = X25519PrivateKey.from_private_bytes(self.drawn(device, what))
        return private.public_key().public_bytes_raw()

    def advertised(self, device):
        """Return the two public keys that a device sends."""
        return self.public(device, "transport key") + self.public(device, "mask key")

    def agreed(self, i, j, what):
        """Return what two devices' transport keys, or mask keys, agree on (X25519)."""
        low, high = min(i, j), max(i, j)
        if (what, low, high) not in self._secrets:
            private = X25519PrivateKey.from_private_bytes(self.drawn(low, what))
            other = X25519PrivateKey.from_private_bytes(self.drawn(high, what))
            self._secrets[what, low, high] = private.exchange(other.public_key())
        return self._secrets[what, low, high]

    def mask_secret(self, i, j):
        """Return what all masks of a pair follow from, and what is told of a pair.

        It holds for these two ids alone, whichever keys they have.
        """
        return self._of_pair(self.agreed(i, j, "mask key"), i, j, "additive mask")

    def pair_key(self, i, j, use):
        """Return the key of a pair of devices for one use.

        Shares travel under one that is derived from what transport keys agree on. SecAgg has one
        mask, whose key is the pair's secret; others derive the keys of all uses from that secret.
        """
        if use == "share transport":
            return self._of_pair(self.agreed(i, j, "transport key"), i, j, use)
        secret = self.mask_secret(i, j)
        if self.played.protocol.name in ("sparse", "cohort"):
            return self._of_pair(secret, i, j, use)
        assert use == "additive mask"
        return secret

    def _of_pair(self, secret, i, j, use):
        low, high = min(i, j), max(i, j)
        return hkdf(secret, f"hpcfl/1 {self.played.label} pair {low} {high} {use}")

    # shares

    @property
    def threshold(self):
        return self.played.protocol.topology.threshold if self.on_ring else self.devices // 2 + 1

    def holders(self, device):
        """Return who is given shares of a device's secrets, in their order in messages."""
        if self.on_ring:
            return holders(self.order, device, self.degree, self.members)
        return self.members

    def point(self, owner, holder):
        """Return the point at which a holder's shares are: its slot, or its id, plus 1."""
        if self.on_ring:
            return 1 + slots(self.order, owner, self.degree).index(holder)
        return 1 + holder

    def secret_values(self, device):
        """Return what a device shares: the limbs of both its secrets, a check behind each."""
        count = 2 + (self.threshold - 1) * (KEY_SHARE + SEED_SHARE)
        checks = elements(self.drawn(device, "coefficients"), count, Q)[:2]
        key, seed = limbs(self.drawn(device, "mask key")), limbs(self.drawn(device, "seed"))
        return [*key, checks[0], *seed, checks[1]]

    def shares_of(self, device):
        """Return each holder's share of every value that a device shares."""
        degree = self.threshold - 1
        values = self.secret_values(device)
        width = len(values)
        uniform = elements(self.drawn(device, "coefficients"), 2 + degree * width, Q)[2:]
        shares = {}
        for holder in self.holders(device):
            x = self.point(device, holder)
            shares[holder] = [
                (value + sum(uniform[p * width + k] * x ** (p + 1) for p in range(degree))) % Q
                for k, value in enumerate(values)
            ]
        return shares

    # the challenge

    @property
    def challenge(self):
        """Return a coefficient for each of the limbs, those of the mask key first."""
        drawn = self.played.servers.drawn[1]
        return elements(drawn, MASK_KEY_LIMBS + SEED_LIMBS, Q)

    def answer(self, share):
        """Return the answers for both secrets: the check plus the combination of the limbs."""
        key, seed = share[:KEY_SHARE], share[KEY_SHARE:]
        coefficients = self.challenge
        return [
            (part[-1] + sum(c * value for c, value in zip(chosen, part, strict=False))) % Q
            for part, chosen in (
                (key, coefficients[:MASK_KEY_LIMBS]),
                (seed, coefficients[MASK_KEY_LIMBS:]),
            )
        ]

    def checks(self, holder):
        """Return what a holder answers to the challenge, for those who shared with it."""
        owners = [i for i in self.holders(holder) if i in self.dealers]
        return [value for i in owners for value in self.answer(self.shares_of(i)[holder])]

    def reply(self, holder):
        """Return what a holder answers to the unmasking request, share by share."""
        owners = self.holders(holder)
        seeds = [i for i in owners if i in self.survivors]
        private = [i for i in owners if i in self.dropped]
        return [share for i in seeds for share in self.shares_of(i)[holder][KEY_SHARE:]] + [
            share for i in private for share in self.shares_of(i)[holder][:KEY_SHARE]
        ]

    def decrypt(self, i, j, ciphertext):
        """Return the limbs' shares within a row from device i to j, as its receiver reads them."""
        nonce = i.to_bytes(4, "little") + j.to_bytes(4, "little") + bytes(4)
        bound_to = f"hpcfl/1 {self.played.label} from {i} to {j}".encode()
        content = AESGCM(self.pair_key(i, j, "share transport")).decrypt(
            nonce, ciphertext, bound_to
        )
        return [int.from_bytes(content[k : k + 4], "little") for k in range(0, len(content), 4)]

    # masks

    def private_mask(self, i):
        """Return the elements of r_i (eq. 12) in the order in which they are used."""
        key = hkdf(self.drawn(i, "seed"), f"hpcfl/1 {self.played.label} device {i} private mask")
        return elements(key, self.dim, self.modulus)

    def run(self, i):
        """Return the coordinates that a device of a cohort sends, in their order."""
        if i not in self._runs:
            size = cohort_size(self.devices, self.played.parameters.alpha)
            self._runs[i] = run(self.dim, self.devices, size, self.order.index(i))
        return self._runs[i]

    def b(self, i, j):
        """Return the coordinates l with b_ij(l) = 1 (eq. 13): those that a pair masks."""
        pair = (min(i, j), max(i, j))
        if pair not in self._patterns:
            parameters = self.played.parameters
            if self.played.protocol.name == "sparse":
                peers = self.degree if self.on_ring else self.devices - 1
                key = self.pair_key(i, j, "multiplicative mask")
                rate = Fraction(parameters.alpha) / peers
                self._patterns[pair] = gap_pattern(key, self.dim, rate)
            elif self.played.protocol.name == "cohort":
                self._patterns[pair] = {*self.run(i)} & {*self.run(j)}
            else:
                self._patterns[pair] = set(range(self.dim))
        return self._patterns[pair]

    def r(self, i, j, position):
        """Return r_ij(l) (eq. 11).

        The pair's stream is used from its beginning for the coordinates that it selected. The
        paper's mask has elements at the other coordinates as well; nothing on the wire depends on
        them, so they are taken from the rest of the stream.
        """
        pair = (min(i, j), max(i, j))
        if pair not in self._masks:
            if self.played.protocol.name == "cohort":
                self._masks[pair] = self._cohort_mask(*pair)
            else:
                key = self.pair_key(i, j, "additive mask")
                selected = sorted(self.b(i, j))
                rest = [k for k in range(self.dim) if k not in self.b(i, j)]
                in_order = elements(key, self.dim, self.modulus)
                mask = [0] * self.dim
                for coordinate, element in zip(selected + rest, in_order, strict=True):
                    mask[coordinate] = element
                self._masks[pair] = mask
        return self._masks[pair][position]

    def _cohort_mask(self, i, j):
        """Return the mask that two devices of cohorts have in common.

        What both send are up to two runs, each with a stream of its own. Of the two devices, the
        one whose run began earlier names the stream; it is used from where the other's run begins.
        """
        mask = [0] * self.dim
        runs = {one: {at: k for k, at in enumerate(self.run(one))} for one in (i, j)}
        for leader, follower in ((i, j), (j, i)):
            key = self.pair_key(i, j, f"additive mask of the run of {leader}")
            stream = elements(key, self.dim, self.modulus)
            places = self.order.index(leader), self.order.index(follower)
            for coordinate in self.b(i, j):
                if leads(self.dim, len(self.order), coordinate, *places):
                    mask[coordinate] = stream[runs[follower][coordinate]]
        return mask

    def u(self, i):
        """Return U_i (eq. 19), what device i sends: for sparse, where some pair selected."""
        if self.played.protocol.name == "cohort":
            return self.run(i)
        if self.played.protocol.name != "sparse":
            return list(range(self.dim))
        return sorted(set().union(*(self.b(i, j) for j in self.peers(i))))

    def peers(self, i):
        """Return those with which device i has masks: who shared keys rightly, and is linked."""
        return [j for j in self.sharers if j != i and j in self.holders(i)]

    def pairwise(self, i, position):
        """Return what the pairs of device i add at a coordinate: the last two sums of eq. 18."""
        added = [
            self.r(i, j, position) for j in self.peers(i) if i < j and position in self.b(i, j)
        ]
        taken = [
            self.r(i, j, position) for j in self.peers(i) if i > j and position in self.b(i, j)
        ]
        return sum(added) - sum(taken)

    def upload(self, i, quantised):
        """Return x_i (eq. 18) from the device's quantised vector, at the coordinates it sends."""
        private = dict(zip(self.u(i), self.private_mask(i), strict=False))
        return {
            k: (quantised[k] + private[k] + self.pairwise(i, k)) % self.modulus for k in self.u(i)
        }

    def unmask(self, x):
        """Return eq. 21 of the server's sum x, corrected.

        The paper adds with both signs swapped, and where the dropped device would have sent
        something (1{l in U_i}) instead of where the pair selected something (b_ij(l)).
        """
        result = list(x)
        for i in self.survivors:
            for k, mask in zip(self.u(i), self.private_mask(i), strict=False):
                result[k] -= mask
        for i in self.dropped:
            for j in {*self.survivors} & {*self.peers(i)}:
                for k in self.b(i, j):
                    result[k] += (1 if j > i else -1) * self.r(i, j, k)
        return [value % self.modulus for value in result]

    def signed(self, element):
        """Return phi^-1."""
        return element if element <= (self.modulus - 1) // 2 else element - self.modulus
