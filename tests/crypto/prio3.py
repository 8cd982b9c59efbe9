"""Prio3 of draft-irtf-cfrg-vdaf (draft 20) on hpcfl's proof system, for its published vectors.

Slow and plain: the field of 2**128 - 7 * 2**66 + 1 elements has arrays of Python's integers.
"""

import hmac

import numpy as np
from Cryptodome.Hash import TurboSHAKE128

from hpcfl.crypto.proofs import F64, Gadget, PrimeField

VECTOR, PROOFS, JOINT, PROVER, QUERY, JOINT_SEED, JOINT_PART = range(1, 8)
SEED = 32


class LongField(PrimeField):
    dtype = np.dtype(object)

    def subtract(self, left, right):
        return (left - right) % self.modulus

    def add(self, left, right):
        return (left + right) % self.modulus

    def multiply(self, left, right):
        return left * right % self.modulus

    def sum(self, elements, axis):
        return elements.sum(axis) % self.modulus

    def product(self, left, right):
        return left @ right % self.modulus

    def inverse(self, integer):
        return pow(integer, -1, self.modulus)

    def encode(self, elements):
        return b"".join(int(each).to_bytes(16, "little") for each in elements.reshape(-1))

    def words(self, payload):
        cuts = [payload[start : start + 16] for start in range(0, len(payload), 16)]
        return np.array([int.from_bytes(each, "little") for each in cuts], object)


_P = 2**128 - 7 * 2**66 + 1
F128 = LongField(_P, pow(7, 4611686018427387897, _P), 66)


def stream(seed, tag, binder):
    """Return XofTurboShake128."""
    head = len(tag).to_bytes(2, "little") + tag + bytes([len(seed)]) + seed
    return TurboSHAKE128.new(domain=1, data=head + binder).read


class Count:
    """One bit b: b * b - b is zero."""

    elements, identifier, field = 1, 1, F64
    joint = outputs = 0

    def __init__(self, **_):
        self.gadget = Gadget(self.field, 1, 1, values=True)

    def encode(self, measurement):
        return [measurement]

    def circuit(self, share, joint, query, part):
        inputs = np.array([share[0], share[0]], share.dtype).reshape(1, 1, 2)
        minus = self.field.subtract(np.zeros_like(share), share)
        return inputs, np.ones((1, 1), share.dtype), minus

    def truncate(self, share):
        return share


class SumVec:
    """A vector of numbers up to a limit, all by bits whose weights are powers of 2 but the last."""

    identifier, field, outputs = 3, F128, 0

    def __init__(self, length, chunk_length, max_measurement=1, **_):
        bits = max_measurement.bit_length()
        last = max_measurement - (2 ** (bits - 1) - 1)
        self.weights = [1 << place for place in range(bits - 1)] + [last]
        self.elements = length * bits
        self.joint = -(-self.elements // chunk_length)
        self.gadget = Gadget(self.field, chunk_length, self.joint, values=True)

    def encode(self, measurement):
        encoded = []
        for number in measurement:
            top = number > 2 ** (len(self.weights) - 1) - 1
            rest = number - self.weights[-1] * top
            encoded += [rest >> place & 1 for place in range(len(self.weights) - 1)] + [int(top)]
        return encoded

    def circuit(self, share, joint, query, part):
        field, chunk = self.field, self.gadget.terms
        bits = np.zeros((self.joint * chunk), field.dtype)
        bits[: self.elements] = share
        bits = bits.reshape(self.joint, chunk)
        powers = field.powers(joint, chunk + 1)[1:].T
        less = field.subtract(bits, np.array([part], field.dtype))
        pairs = np.stack([field.multiply(powers, bits), less], axis=-1)
        inputs = pairs.reshape(self.joint, 1, 2 * chunk)
        return inputs, np.ones((1, 1), field.dtype), np.zeros(1, field.dtype)

    def truncate(self, share):
        weights = np.array(self.weights, self.field.dtype)
        bits = share.reshape(-1, weights.size)
        return self.field.sum(self.field.multiply(bits, weights), 1)


class ShortSumVec(SumVec):
    identifier, field = 0xFFFFFFFF, F64


class Histogram(SumVec):
    """A vector of bits of which one is set. Its circuit has two values, which `query` weighs."""

    identifier, outputs = 4, 2

    def encode(self, measurement):
        return [int(place == measurement) for place in range(self.elements)]

    def circuit(self, share, joint, query, part):
        field = self.field
        inputs, _, _ = super().circuit(share, joint, query, part)
        rest = field.subtract(field.sum(share[None], 1), np.array([part], field.dtype))
        return inputs, query[:1].reshape(1, 1), field.multiply(query[1:2], rest)


class Prio3:
    def __init__(self, kind, context, shares=2, proofs=1):
        self.kind, self.context, self.shares, self.proofs = kind, context, shares, proofs
        self.field, self.gadget = kind.field, kind.gadget

    def stream(self, seed, usage, binder):
        tag = bytes([18, 0]) + self.kind.identifier.to_bytes(4, "big") + usage.to_bytes(2, "big")
        return stream(seed, tag + self.context, binder)

    def draw(self, seed, usage, binder, count):
        return self.field.draw(self.stream(seed, usage, binder), count)

    def expand(self, number, seed):
        """Return the shares of elements and proofs of an aggregator other than the leader."""
        elements = self.draw(seed, VECTOR, bytes([number]), self.kind.elements)
        count = self.proofs * self.gadget.proof_elements
        return elements, self.draw(seed, PROOFS, bytes([self.proofs, number]), count)

    def part(self, number, blind, nonce, share):
        binder = bytes([number]) + nonce + self.field.encode(share)
        return self.stream(blind, JOINT_PART, binder)(SEED)

    def joint(self, parts):
        """Return the seed of the joint randomness, and this randomness for each proof."""
        seed = self.stream(bytes(SEED), JOINT_SEED, b"".join(parts))(SEED)
        count = self.kind.joint * self.proofs
        drawn = self.draw(seed, JOINT, bytes([self.proofs]), count)
        return seed, drawn.reshape(self.proofs, -1)

    def shard(self, measurement, nonce, rand):
        """Return the public share and the input shares."""
        field, kind = self.field, self.kind
        cuts = [rand[start : start + SEED] for start in range(0, len(rand), SEED)]
        step = 2 if kind.joint else 1
        helpers, blinds = cuts[: step * (self.shares - 1) : step], []
        encoded = np.array(kind.encode(measurement), field.dtype)
        expanded = [self.expand(number, seed) for number, seed in enumerate(helpers, 1)]
        mine = encoded
        for elements, _ in expanded:
            mine = field.subtract(mine, elements)
        parts, joint = [], np.zeros((self.proofs, 0), field.dtype)
        if kind.joint:
            blinds = [cuts[-2], *cuts[1 : 2 * (self.shares - 1) : 2]]
            shares = [mine, *(elements for elements, _ in expanded)]
            numbered = enumerate(zip(blinds, shares, strict=True))
            parts = [self.part(number, blind, nonce, share) for number, (blind, share) in numbered]
            _, joint = self.joint(parts)
        arity = self.gadget.arity
        seeds = self.draw(cuts[-1], PROVER, bytes([self.proofs]), arity * self.proofs)
        query = np.zeros(2, field.dtype)
        proofs = np.concatenate([
            self.gadget.prove(kind.circuit(encoded, some, query, 1)[0], seed[None]).reshape(-1)
            for some, seed in zip(joint, seeds.reshape(self.proofs, -1), strict=True)
        ])  # fmt: skip
        for _, theirs in expanded:
            proofs = field.subtract(proofs, theirs)
        shares = [field.encode(mine) + field.encode(proofs), *helpers]
        if kind.joint:
            shares = [share + blind for share, blind in zip(shares, blinds, strict=True)]
        return b"".join(parts), shares

    def prepare(self, number, verify_key, nonce, public, share):
        """Return an output share, the seed of the joint randomness, and a verifier's share."""
        field, kind = self.field, self.kind
        seed = None
        if number:
            elements, proofs = self.expand(number, share[:SEED])
        else:
            held = field.decode(share[:-SEED] if kind.joint else share)
            elements, proofs = held[: kind.elements], held[kind.elements :]
        part, joint = b"", np.zeros((self.proofs, 0), field.dtype)
        if kind.joint:
            parts = [public[start : start + SEED] for start in range(0, len(public), SEED)]
            part = parts[number] = self.part(number, share[-SEED:], nonce, elements)
            seed, joint = self.joint(parts)
        count = (kind.outputs + 1) * self.proofs
        query = self.draw(verify_key, QUERY, bytes([self.proofs]) + nonce, count)
        verifier = b""
        given = joint, proofs.reshape(self.proofs, -1), query.reshape(self.proofs, -1)
        for some, proof, random in zip(*given, strict=True):
            fraction = pow(self.shares, -1, field.modulus)
            circuit = kind.circuit(elements, some, random, fraction)
            verifier += field.encode(self.gadget.query(proof[None], random[-1:], circuit)[0])
        return kind.truncate(elements), seed, verifier + part

    def decide(self, verifiers):
        """Return the seed of the joint randomness, or b"" without any; raise ValueError."""
        cuts = [
            (each[:-SEED], each[-SEED:]) if self.kind.joint else (each, b"") for each in verifiers
        ]
        total = self.field.decode(cuts[0][0])
        for words, _ in cuts[1:]:
            total = self.field.add(total, self.field.decode(words))
        if not self.gadget.accepts(total.reshape(self.proofs, -1)):
            raise ValueError("a proof is wrong")
        return self.joint([part for _, part in cuts])[0] if self.kind.joint else b""

    def finish(self, seed, message):
        if not hmac.compare_digest(seed or b"", message):
            raise ValueError("the joint randomness differs")
