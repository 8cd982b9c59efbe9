"""SparseSecAgg and SecAgg again: plain integers, from the papers' equations and the wire format.

Nothing here calls the protocols' code. Keys come from the secrets that the devices drew; X25519 and
AES are the `cryptography` package's, everything else is Python integers.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from protocol_rounds import Played

Q = 2**32 - 5
MODULUS = {"fq": Q, "ring32": 2**32}
LIMB_BITS = 31
MASK_KEY_LIMBS, SEED_LIMBS = 9, 5


def hkdf(secret: bytes, context: str) -> bytes:
    """Return the first 16 bytes of HKDF-SHA256 without salt (RFC 5869)."""
    key = hmac.digest(bytes(32), secret, hashlib.sha256)
    return hmac.digest(key, context.encode() + b"\x01", hashlib.sha256)[:16]


def stream(key: bytes, length: int, number: int = 0) -> bytes:
    """Return the first bytes of a numbered AES-128-CTR keystream."""
    counter = number.to_bytes(8, "big") + bytes(8)
    return Cipher(algorithms.AES128(key), modes.CTR(counter)).encryptor().update(bytes(length))


def words(key: bytes, count: int, size: int, number: int = 0) -> list[int]:
    content = stream(key, size * count, number)
    return [int.from_bytes(content[k : k + size], "little") for k in range(0, len(content), size)]


def elements(key: bytes, count: int, modulus: int) -> list[int]:
    """Return uniform group elements; a word that is none is replaced from the next stream."""
    found = words(key, count, 4)
    for k in range(count):
        for number in itertools.count(1):
            if found[k] < modulus:
                break
            found[k] = words(key, k + 1, 4, number)[k]
    return found


def dense_pattern(key: bytes, dim: int, probability: Fraction) -> set[int]:
    """Return the coordinates whose field element lies in the first part of the field (eq. 13)."""
    below = math.floor(Q * probability)
    return {k for k, value in enumerate(elements(key, dim, Q)) if value < below}


def gap_pattern(key: bytes, dim: int, probability: Fraction) -> set[int]:
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


PATTERNS: dict[str, Callable[[bytes, int, Fraction], set[int]]] = {
    "dense": dense_pattern,
    "gaps": gap_pattern,
}


def limbs(secret: bytes) -> list[int]:
    """Return 31-bit limbs, least significant first."""
    number = int.from_bytes(secret, "little")
    count = -(-8 * len(secret) // LIMB_BITS)
    return [number >> LIMB_BITS * k & (2**LIMB_BITS - 1) for k in range(count)]


def lagrange(points: Iterable[tuple[int, int]], at: int) -> int:
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

    def __post_init__(self) -> None:
        parameters = self.played.parameters
        self.devices, self.dim = parameters.devices, parameters.dim
        self.modulus = MODULUS[parameters.group]
        self.sharers = self.played.taking_part("share_keys")
        self.survivors = self.played.taking_part("masked_input")
        self.dropped = [id for id in self.sharers if id not in self.survivors]
        self._secrets: dict[tuple[str, int, int], bytes] = {}
        self._patterns: dict[tuple[int, int], set[int]] = {}
        self._masks: dict[tuple[int, int], list[int]] = {}

    # keys

    def drawn(self, device: int, what: str) -> bytes:
        """Return one of the secrets that a device drew, in the order of the protocol."""
        position = ("transport key", "mask key", "seed", "coefficients").index(what)
        return self.played.sources[device].drawn[position]

    def public(self, device: int, what: str) -> bytes:
        private = X25519PrivateKey.from_private_bytes(self.drawn(device, what))
        return private.public_key().public_bytes_raw()

    def pair_key(self, i: int, j: int, use: str) -> bytes:
        """Return the key of a pair of devices for one use."""
        low, high = min(i, j), max(i, j)
        what = "transport key" if use == "share transport" else "mask key"
        if (what, low, high) not in self._secrets:
            private = X25519PrivateKey.from_private_bytes(self.drawn(low, what))
            other = X25519PrivateKey.from_private_bytes(self.drawn(high, what))
            self._secrets[what, low, high] = private.exchange(other.public_key())
        context = f"hpcfl/1 {self._label} pair {low} {high} {use}"
        return hkdf(self._secrets[what, low, high], context)

    @property
    def _label(self) -> str:
        return f"{self.played.protocol.name} round {self.played.index}"

    # shares

    def shares_of(self, device: int) -> list[list[int]]:
        """Return, for every limb of a device's secrets, its polynomial's values at the sharers."""
        degree = self.devices // 2
        secret = limbs(self.drawn(device, "mask key")) + limbs(self.drawn(device, "seed"))
        uniform = elements(self.drawn(device, "coefficients"), degree * len(secret), Q)
        return [
            [
                (
                    limb
                    + sum(uniform[p * len(secret) + k] * (x + 1) ** (p + 1) for p in range(degree))
                )
                % Q
                for x in self.sharers
            ]
            for k, limb in enumerate(secret)
        ]

    def decrypt(self, sender: int, receiver: int, ciphertext: bytes) -> list[int]:
        """Return the limbs' shares within a row, as its receiver reads them."""
        nonce = sender.to_bytes(4, "little") + receiver.to_bytes(4, "little") + bytes(4)
        associated = f"hpcfl/1 {self._label} from {sender} to {receiver}".encode()
        cipher = AESGCM(self.pair_key(sender, receiver, "share transport"))
        content = cipher.decrypt(nonce, ciphertext, associated)
        return [int.from_bytes(content[k : k + 4], "little") for k in range(0, len(content), 4)]

    # masks

    def private_mask(self, i: int) -> list[int]:
        """Return the elements of r_i (eq. 12) in the order in which they are used."""
        key = hkdf(self.drawn(i, "seed"), f"hpcfl/1 {self._label} device {i} private mask")
        return elements(key, self.dim, self.modulus)

    def b(self, i: int, j: int) -> set[int]:
        """Return the coordinates l with b_ij(l) = 1 (eq. 13); SecAgg's pairs mask all."""
        pair = (min(i, j), max(i, j))
        if pair not in self._patterns:
            parameters = self.played.parameters
            if self.played.protocol.name == "secagg":
                self._patterns[pair] = set(range(self.dim))
            else:
                probability = Fraction(parameters.alpha) / (self.devices - 1)
                key = self.pair_key(i, j, "multiplicative mask")
                pattern = PATTERNS[parameters.sampler]
                self._patterns[pair] = pattern(key, self.dim, probability)
        return self._patterns[pair]

    def r(self, i: int, j: int, position: int) -> int:
        """Return r_ij(l) (eq. 11).

        The pair's stream is used from its beginning for the coordinates that it selected. The
        paper's mask has elements at the other coordinates as well; nothing on the wire depends on
        them, so they are taken from the rest of the stream.
        """
        pair = (min(i, j), max(i, j))
        if pair not in self._masks:
            key = self.pair_key(i, j, "additive mask")
            selected = sorted(self.b(i, j))
            rest = [k for k in range(self.dim) if k not in self.b(i, j)]
            in_order = elements(key, self.dim, self.modulus)
            mask = [0] * self.dim
            for coordinate, element in zip(selected + rest, in_order, strict=True):
                mask[coordinate] = element
            self._masks[pair] = mask
        return self._masks[pair][position]

    def u(self, i: int) -> list[int]:
        """Return U_i (eq. 19): where some pair of device i selected something."""
        return sorted(set().union(*(self.b(i, j) for j in self.peers(i))))

    def peers(self, i: int) -> Iterator[int]:
        return (j for j in self.sharers if j != i)

    def pairwise(self, i: int, position: int) -> int:
        """Return what the pairs of device i add at a coordinate: the last two sums of eq. 18."""
        added = [
            self.r(i, j, position) for j in self.peers(i) if i < j and position in self.b(i, j)
        ]
        taken = [
            self.r(i, j, position) for j in self.peers(i) if i > j and position in self.b(i, j)
        ]
        return sum(added) - sum(taken)

    def upload(self, i: int, quantised: dict[int, int]) -> dict[int, int]:
        """Return x_i (eq. 18) from the device's quantised vector, at the coordinates it sends."""
        private = dict(zip(self.u(i), self.private_mask(i), strict=False))
        return {
            k: (quantised[k] + private[k] + self.pairwise(i, k)) % self.modulus for k in self.u(i)
        }

    def unmask(
        self, x: list[int], *, right_signs: bool = True, right_indicator: bool = True
    ) -> list[int]:
        """Return eq. 21 of the server's sum x: corrected, or with either mistake of the paper.

        The paper adds with both signs swapped, and where the dropped device would have sent
        something (1{l in U_i}) instead of where the pair selected something (b_ij(l)).
        """
        sign = 1 if right_signs else -1
        result = list(x)
        for i in self.survivors:
            for k, mask in zip(self.u(i), self.private_mask(i), strict=False):
                result[k] -= mask
        for i in self.dropped:
            for j in self.survivors:
                where = self.b(i, j) if right_indicator else self.u(i)
                for k in where:
                    result[k] += (sign if j > i else -sign) * self.r(i, j, k)
        return [value % self.modulus for value in result]

    def signed(self, element: int) -> int:
        """Return phi^-1."""
        return element if element <= (self.modulus - 1) // 2 else element - self.modulus
