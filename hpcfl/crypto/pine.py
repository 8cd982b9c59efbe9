"""PINE: shares of an integer vector, with a proof that its Euclidean norm is at most a bound.

After draft-chen-cfrg-vdaf-pine at commit 4d11ac8 (version 1, XofHmacSha256Aes128) and arXiv
2311.10237, for two servers: the leader, number 0, and the helper, number 1. A proof shows the
square of the norm modulo q. Against vectors whose square is short only modulo q there are *tests*:
products of the vector with random vectors over {-1, 0, 1}, known once its shares are fixed.

The largest bound follows the draft's older rule, q > 81 w**2, where a test's product must be below
w. The rule since its commit c12e02a accepts vectors of 1.77 times the bound.
"""

from __future__ import annotations

import hmac
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hpcfl.crypto import keystream, matrices
from hpcfl.crypto.keys import cut
from hpcfl.crypto.proofs import F32, F40, F64, Circuit, Elements, Gadget, PrimeField, Read
from hpcfl.errors import UsageError

VERSION, LEADER, HELPER = 1, 0, 1
NONCE_BYTES, SEED_BYTES, ZERO = 16, 32, bytes(32)
# Each field's number in the domain separation, and its proofs of the second circuit.
SUITES = {F32: (0xFFFF1005, 5), F40: (0xFFFF1006, 4), F64: (0xFFFF1004, 2)}
# What seeds are expanded for, from 1 on.
VECTOR, PROOFS, JOINT, PROVER, QUERY, JOINT_SEED, JOINT_PART, SIGNS, TESTS_SEED, TESTS_PART = (
    *range(1, 11),
)
# A product is larger than this many norms of the vector with a probability below 2**-100.
ALPHA, TESTS = 8.7, 100
# The four numbers that a byte of a test's stream stands for, and the bytes at a time.
TABLE = np.take([-1.0, 0.0, 0.0, 1.0], np.arange(256)[:, None] >> np.arange(0, 8, 2) & 3)
BLOCK = 512


class NotShort(ValueError):
    """A report is refused: the vector is longer than the bound, or the report is inconsistent."""


class Report(NamedTuple):
    """What a device sends: a part for both servers, and a share for each."""

    public: bytes
    leader: bytes
    helper: bytes


class Prepared(NamedTuple):
    """A server's part of the check of a report, and what it keeps until the decision."""

    verifier: bytes  # for the other server
    output: Elements  # share of the vector, uint64, shape (d,)
    seeds: bytes  # of the joint randomness, as far as this server knows


def largest_bound(field: PrimeField = F40) -> int:
    """Return the largest norm bound that a field can enforce."""
    wrap = 1 << math.isqrt((field.modulus - 1) // 81).bit_length() - 1
    return math.floor((wrap - 1) / ALPHA)


def stream(seed: bytes, tag: bytes, binder: bytes) -> Read:
    """Return XofHmacSha256Aes128, a stream that HMAC-SHA256 opens and AES-128-CTR continues."""
    opened = hmac.digest(seed, bytes([len(tag)]) + tag + binder, "sha256")
    cipher = keystream.counting(opened[:16], opened[16:])

    def read(count: int) -> NDArray[np.uint8]:
        keystream.fill(cipher, out := np.empty(count, np.uint8))
        return out

    return read


class Pine:
    """The parameters of a sum of short vectors, and what devices and servers do for one report.

    Parameters
    ----------
    dim : int
        Number d of coordinates.
    norm_bound : int
        Largest Euclidean norm B: a UsageError says if it is above the field's `largest_bound`.
    field : PrimeField
        Of the shares: F32, F40 or F64. Sums of coordinates must stay below q / 2.
    chunks : tuple of int, optional
        Terms of a gadget call in the circuit of the norm, and in that of bits and tests. By
        default, proofs are nearly as short as possible.
    proofs : tuple of int, optional
        Number of proofs of each. With one, the norm's check in F40 errs with probability 2**-31.
    """

    public_bytes = helper_bytes = 4 * SEED_BYTES
    seeds_bytes, rand_bytes = 2 * SEED_BYTES, 7 * SEED_BYTES

    def __init__(
        self,
        dim: int,
        norm_bound: int,
        *,
        field: PrimeField = F40,
        chunks: tuple[int, int] | None = None,
        proofs: tuple[int, int] | None = None,
    ) -> None:
        most = largest_bound(field)
        if not 1 <= norm_bound <= most:
            raise UsageError(f"the norm bound is {norm_bound}: choose one from 1 to {most}")
        self.dim, self.norm_bound, self.field = dim, norm_bound, field
        self.identifier, usual = SUITES[field]
        self.wrap = 1 << math.ceil(ALPHA * norm_bound).bit_length()
        self.norm_bits = (norm_bound**2).bit_length()
        # A proof of terms in up to p - 1 calls has 2 p - 1 + terms elements.
        most_calls = max(1, (1 << math.isqrt(dim // 2).bit_length()) // 2 - 1)
        terms, chunk = chunks or (-(-dim // most_calls), 32)
        self.early = dim + 2 * self.norm_bits  # elements that are fixed before the tests
        bits = 2 * self.norm_bits + TESTS * (self.wrap.bit_length() + 1)
        self.elements, self.bit_calls = dim + bits, -(-bits // chunk)
        self.squares = Gadget(field, terms, -(-dim // terms), squares=True)
        self.products = Gadget(field, chunk, self.bit_calls + -(-TESTS // chunk))
        self.counts = proofs or (2, usual)
        sizes = [(each.proof_elements, each.arity) for each in (self.squares, self.products)]
        self.proof_elements, self.inputs = (self.counts @ np.array(sizes)).tolist()
        z = self.element_bytes = field.element_bytes
        self.leader_bytes = z * (self.elements + self.proof_elements) + 2 * SEED_BYTES
        self.verifier_bytes = z * (self.inputs + 2 * sum(self.counts)) + 2 * SEED_BYTES

    @property
    def forged(self) -> float:
        """Upper bound of the probability that a wrong proof of the norm passes, for one report."""
        points, modulus = self.squares.points, self.field.modulus
        return float(((2 * points - 2) / (modulus - points)) ** self.counts[0])

    def _stream(self, seed: bytes, usage: int, binder: bytes = b"") -> Read:
        tag = bytes([VERSION]) + self.identifier.to_bytes(4, "big") + usage.to_bytes(2, "big")
        return stream(seed, tag, binder)

    def _draw(self, seed: bytes, usage: int, binder: bytes, count: int) -> Elements:
        return self.field.draw(self._stream(seed, usage, binder), count)

    def _seed(self, seed: bytes, usage: int, binder: bytes) -> bytes:
        return bytes(self._stream(seed, usage, binder)(SEED_BYTES))

    def _split(self, elements: Elements, size: int) -> tuple[Elements, Elements]:
        """Return what belongs to the proofs of the two circuits; `size` to each of the first."""
        first, second = np.split(elements, [self.counts[0] * size])
        return first.reshape(self.counts[0], -1), second.reshape(self.counts[1], -1)

    def shard(self, vector: NDArray[np.int64], nonce: bytes, rand: bytes) -> Report:
        """Return the report of an int64 vector, shape (d,).

        `nonce` has 16 bytes and is used once, and `rand` has `rand_bytes` secret random bytes.
        Raise ValueError for a vector that is longer than the bound.
        """
        # Exact where it matters: below 2**53.
        norm, most = int(np.square(vector, dtype=np.float64).sum()), self.norm_bound**2
        if norm > most:
            raise ValueError(f"the norm of the vector is above the bound of {self.norm_bound}")
        return self._shard(vector, _bits([norm, most - norm], self.norm_bits), nonce, rand)

    def _shard(
        self, vector: NDArray[np.int64], norms: Elements, nonce: bytes, rand: bytes
    ) -> Report:
        """Return a report with these bits of the squared norm and of its distance to the most."""
        if vector.shape != (self.dim,) or (len(nonce), len(rand)) != (NONCE_BYTES, self.rand_bytes):
            raise ValueError("the vector, the nonce or the random bytes have the wrong size")
        field = self.field
        *seeds, their_tests, their_joint, my_tests, my_joint, prover = cut(rand)
        theirs, their_proofs = self._expanded(seeds)
        encoded = np.concatenate([field.reduce(vector), norms])
        mine = bytes([LEADER]) + nonce + field.encode(field.subtract(encoded, theirs[: self.early]))
        other = bytes([HELPER]) + nonce + field.encode(theirs[: self.early])
        public = self._seed(my_tests, TESTS_PART, mine)
        public += self._seed(their_tests, TESTS_PART, other)
        products = self._products(encoded[: self.dim], self._seed(ZERO, TESTS_SEED, public))
        answers = _bits(field.add(products, np.uint64(self.wrap - 1)), self.wrap.bit_length())
        answers = np.pad(answers.reshape(TESTS, -1), ((0, 0), (0, 1)), constant_values=1)
        encoded = np.concatenate([encoded, answers.reshape(-1)])
        mine += field.encode(field.subtract(encoded[self.early :], theirs[self.early :]))
        other += field.encode(theirs[self.early :])
        parts = self._seed(my_joint, JOINT_PART, mine) + self._seed(their_joint, JOINT_PART, other)
        joint = self._seed(ZERO, JOINT_SEED, parts)
        drawn = self._draw(prover, PROVER, bytes(self.counts), self.inputs)
        first, second = self._split(drawn, self.squares.arity)
        first = self.squares.prove(self._first(encoded)[0], first)
        second = self.products.prove(self._second(encoded, products, joint, 1)[0], second)
        proofs = field.subtract(np.append(first, second), their_proofs)
        leader = mine[1 + NONCE_BYTES :] + field.encode(proofs) + my_tests + my_joint
        return Report(public + parts, leader, b"".join([*seeds, their_tests, their_joint]))

    def _expanded(self, seeds: list[bytes]) -> tuple[Elements, Elements]:
        """Return the helper's shares of the elements and of the proofs."""
        binder = bytes([*self.counts, HELPER])
        elements = self._draw(seeds[0], VECTOR, binder[-1:], self.elements)
        return elements, self._draw(seeds[1], PROOFS, binder, self.proof_elements)

    def _products(self, share: Elements, seed: bytes) -> Elements:
        """Return the products of the tests with the vector, or with a share; shape (tests,)."""
        field, row = self.field, -(-self.dim // 4)
        drawn = np.reshape(self._stream(seed, SIGNS)(TESTS * row), (TESTS, row))
        # In float64, sums of so many numbers of 40 bits are exact.
        width = 32 if self.element_bytes == 8 else 40
        shifts = np.arange(0, 8 * self.element_bytes, width, dtype=np.uint64)
        numbers = np.zeros((4 * row, shifts.size))
        numbers[: self.dim] = share[:, None] >> shifts & np.uint64((1 << width) - 1)
        total = np.zeros((TESTS, shifts.size), np.uint64)
        table = TABLE.view("V32")[:, 0]
        held = np.empty(TESTS * BLOCK, table.dtype)
        with matrices.one_thread():
            for start in range(0, row, BLOCK):
                some = drawn[:, start : start + BLOCK]
                signs = held[: some.size].reshape(some.shape)
                table.take(some, out=signs, mode="clip")  # which needs no copy of the result
                found = signs.view(np.float64) @ numbers[4 * start : 4 * (start + BLOCK)]
                total = field.add(total, field.reduce(found.astype(np.int64)))
        return field.sum(field.multiply(total, 1 << shifts), 1)

    def _first(self, share: Elements) -> Circuit:
        """Return the circuit that gives the difference of the norm's bits and the squares."""
        calls, arity = self.squares.calls, self.squares.arity
        inputs = np.pad(share[: self.dim], (0, calls * arity - self.dim)).reshape(calls, 1, arity)
        norm = _numbers(self.field, share[None, self.dim : self.dim + self.norm_bits])
        return inputs, np.array([[self.field.modulus - 1]], np.uint64), norm

    def _second(self, share: Elements, products: Elements, seed: bytes, shares: int) -> Circuit:
        """Return the circuit for bits, bound and tests; random numbers weigh these conditions.

        All bits are bits, the squared norm and its distance from the most have the right sum, and
        all tests succeed, with the products that their bits say.
        """
        field, gadget, count = self.field, self.products, self.counts[1]
        drawn = self._draw(seed, JOINT, bytes([count]), 3 * count)
        for_bits, for_tests, final = drawn.reshape(count, 3).T
        part = pow(shares, -1, field.modulus)

        def less(values: Elements, constant: int) -> Elements:
            return field.subtract(values, np.uint64(constant * part % field.modulus))

        bits = share[self.dim :]
        answers = bits[2 * self.norm_bits :].reshape(TESTS, -1)
        claimed = less(_numbers(field, answers[:, :-1]), self.wrap - 1)
        norms = _numbers(field, bits[: 2 * self.norm_bits].reshape(2, 1, -1))
        inputs = np.zeros((gadget.calls * gadget.terms, count, 2), field.dtype)
        of_bits, of_tests = inputs[: bits.size], inputs[self.bit_calls * gadget.terms :][:TESTS]
        of_bits[..., 0] = field.multiply(field.powers(for_bits, bits.size), bits[:, None])
        of_bits[..., 1] = less(bits, 1)[:, None]
        wrong = field.subtract(products, claimed)[:, None]
        of_tests[..., 0] = field.multiply(field.powers(for_tests, TESTS), wrong)
        of_tests[..., 1] = answers[:, -1:]
        square = field.multiply(final, final)
        weights = np.ones((gadget.calls, count), field.dtype)
        weights[self.bit_calls :] = square
        rest = field.add(
            less(field.add(*norms), self.norm_bound**2),
            field.multiply(square, less(field.sum(answers[:, -1:], 0), TESTS)),
        )
        inputs = inputs.reshape(gadget.calls, -1, count, 2).swapaxes(1, 2)
        return inputs.reshape(gadget.calls, count, -1), weights, field.multiply(final, rest)

    def prepare(
        self, number: int, verify_key: bytes, nonce: bytes, public: bytes, share: bytes
    ) -> Prepared:
        """Return a server's part of the check of a report.

        `number` is 0 for the leader, 1 for the helper. `verify_key`, 32 bytes, is not known to
        devices. Raise ValueError for a malformed report.
        """
        field = self.field
        expected = self.helper_bytes if number else self.leader_bytes, self.public_bytes
        if (len(share), len(public)) != expected or len(nonce) != NONCE_BYTES:
            raise ValueError("a share has {} bytes, and a public share has {}".format(*expected))
        *seeds, for_tests, for_joint = cut(share[-4 * SEED_BYTES :])
        if number == LEADER:
            held = field.decode(share[: -2 * SEED_BYTES])
            mine, proofs = held[: self.elements], held[self.elements :]
            payload = share[: self.element_bytes * self.elements]
        else:
            mine, proofs = self._expanded(seeds)
            payload = field.encode(mine)
        # Its own parts replace those that the device has sent.
        parts, head = cut(public), bytes([number]) + nonce
        early = payload[: self.element_bytes * self.early]
        parts[number] = self._seed(for_tests, TESTS_PART, head + early)
        parts[2 + number] = self._seed(for_joint, JOINT_PART, head + payload)
        joint = self._joint(parts)
        products = self._products(mine[: self.dim], joint[:SEED_BYTES])
        points = self._draw(verify_key, QUERY, bytes(self.counts) + nonce, sum(self.counts))
        first, second = self._split(proofs, self.squares.proof_elements)
        first = self.squares.query(first, points[: len(first)], self._first(mine))
        circuit = self._second(mine, products, joint[SEED_BYTES:], 2)
        second = self.products.query(second, points[-len(second) :], circuit)
        verifier = field.encode(np.append(first, second))
        return Prepared(verifier + parts[number] + parts[2 + number], mine[: self.dim], joint)

    def output(self, number: int, share: bytes) -> Elements:
        """Return what `finish` does from a server's share of a report that has been checked.

        Until the decision, a share's bytes take less memory than its numbers.
        """
        if number == LEADER:
            return self.field.decode(share[: self.element_bytes * self.dim])
        return self._draw(share[:SEED_BYTES], VECTOR, bytes([HELPER]), self.dim)

    def decide(self, leader_verifier: bytes, helper_verifier: bytes, public: bytes = b"") -> bytes:
        """Return the seeds of the joint randomness, `seeds_bytes` long.

        Raise NotShort if a proof is wrong, and ValueError for a malformed message. With the
        `public` part of the report, raise NotShort also if one of the servers would in `finish`: it
        has checked with other randomness, which a device may choose such that its proof passes.
        """
        given = leader_verifier, helper_verifier
        if any(len(each) != self.verifier_bytes for each in given):
            raise ValueError(f"a verifier's share has {self.verifier_bytes} bytes")
        mine, theirs = (self.field.decode(each[: -2 * SEED_BYTES]) for each in given)
        first, second = self._split(self.field.add(mine, theirs), self.squares.arity + 2)
        if not (self.squares.accepts(first) and self.products.accepts(second)):
            raise NotShort("the vector is longer than the bound, or its proof is wrong")
        tails = [cut(each[-2 * SEED_BYTES :]) for each in given]
        parts = [tail[place] for place in (0, 1) for tail in tails]
        if public not in (b"", b"".join(parts)):
            raise NotShort("the report gives the servers different joint randomness")
        return self._joint(parts)

    def _joint(self, parts: list[bytes]) -> bytes:
        """Return the seeds of the tests and of the proofs' joint randomness from all parts."""
        tests, joint = cut(b"".join(parts), 2 * SEED_BYTES)
        return self._seed(ZERO, TESTS_SEED, tests) + self._seed(ZERO, JOINT_SEED, joint)

    def finish(self, prepared: Prepared, seeds: bytes) -> Elements:
        """Return a server's share of the vector, uint64, shape (d,).

        Raise NotShort if the servers' joint randomness differs.
        """
        if not hmac.compare_digest(prepared.seeds, seeds):
            raise NotShort("the report gives the servers different joint randomness")
        return prepared.output


def _bits(numbers: ArrayLike, width: int) -> Elements:
    """Return the lowest bits of numbers, lowest first, one number after the other."""
    shifts = np.arange(width, dtype=np.uint64)
    return (np.array(numbers, np.uint64)[:, None] >> shifts & np.uint64(1)).reshape(-1)


def _numbers(field: PrimeField, bits: Elements) -> Elements:
    """Return the numbers whose bits lie along the last axis."""
    powers = 1 << np.arange(bits.shape[-1], dtype=np.uint64)
    return field.sum(field.multiply(bits, powers), -1)
