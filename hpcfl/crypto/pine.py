"""PINE: additive shares of an integer vector, with a proof that its Euclidean norm is at most B.

After draft-chen-cfrg-vdaf-pine at commit 4d11ac8 (version 1, XofHmacSha256Aes128) and arXiv
2311.10237, for two servers: the leader (number 0), to whom a report travels, and the helper (1).
The *tests* are products of the vector with random vectors over {-1, 0, 1} that nobody knows before
the shares are fixed. A vector whose square is short only modulo q fails them.

Here the bound keeps the draft's older rule q > 81 w**2. The rule since its commit c12e02a does not
enforce B: vectors of norm 1.77 B, whose squares are short modulo q, pass.
"""

from __future__ import annotations

import hmac
import math

import numpy as np
from numpy.typing import NDArray

from hpcfl.crypto import keystream, matrices
from hpcfl.crypto.proofs import F32, F40, F64, Elements, Gadget, PrimeField, Read
from hpcfl.errors import UsageError
from hpcfl.values import dataclass

VERSION = 1
# Each field's number in the domain separation, and its proofs of the second circuit.
SUITES = {F32: (0xFFFF1005, 5), F40: (0xFFFF1006, 4), F64: (0xFFFF1004, 2)}
NONCE_BYTES, SEED_BYTES = 16, 32
# What seeds are for.
VECTOR, PROOFS, JOINT, PROVER, QUERY, JOINT_SEED, JOINT_PART, TESTS, TESTS_SEED, TESTS_PART = range(
    1, 11
)
LEADER, HELPER = 0, 1
# A test of an honest vector fails if it is more than this many norms: with probability 2**-100.
ALPHA = 8.7
# The four numbers of a test that a byte of its stream stands for, two bits each.
SIGNS = (
    (np.arange(256)[:, None] >> np.arange(0, 8, 2) & 3).choose([-1.0, 0.0, 0.0, 1.0]).view("V32")
)
SIGNS = SIGNS[:, 0]
# Bytes of each test at a time.
BLOCK = 256


class NotShort(ValueError):
    """A report is refused: its vector is too long, or it was made or changed against the rules."""


@dataclass(frozen=True)
class Report:
    """What a device sends: the `public` part to both servers, and one share to each."""

    public: bytes
    leader: bytes
    helper: bytes


@dataclass(frozen=True)
class Prepared:
    """What a server knows of a report before the decision.

    Attributes
    ----------
    verifier : bytes
        Goes to the other server.
    output : numpy.ndarray of uint64, shape (d,)
        The server's share of the vector.
    seeds : bytes
        The seeds of the joint randomness as this server knows them.
    """

    verifier: bytes
    output: Elements
    seeds: bytes


def largest_bound(field: PrimeField = F40, alpha: float = ALPHA) -> int:
    """Return the largest norm bound that a field can enforce."""
    most = 1 << (math.isqrt((field.modulus - 1) // 81).bit_length() - 1)
    return math.floor((most - 1) / alpha)


def stream(seed: bytes, tag: bytes, binder: bytes) -> Read:
    """Return XofHmacSha256Aes128, a stream that HMAC-SHA256 opens and AES-128-CTR continues."""
    opened = hmac.digest(seed, bytes([len(tag)]) + tag + binder, "sha256")
    cipher = keystream.counting(opened[:16], opened[16:])

    def read(count: int) -> memoryview:
        out = np.empty(count, np.uint8)
        keystream.fill(cipher, out)
        return out.data

    return read


class Pine:
    """The parameters of a sum of short vectors, and what devices and servers do for one report.

    Parameters
    ----------
    dim : int
        Number d of coordinates.
    norm_bound : int
        Largest Euclidean norm B, at least 1 and at most `largest_bound`.
    field : PrimeField
        Of the shares: F32, F40 or F64. Sums must stay below q / 2.
    chunk, square_chunk : int, optional
        Terms of a gadget call in the two circuits; by default nearly the shortest proofs.
    proofs, square_proofs : int, optional
        Number of proofs of each circuit. In F40, one of the first errs with probability 2**-31.
    tests : int
        Number of tests.
    """

    public_bytes = helper_bytes = 4 * SEED_BYTES
    seeds_bytes = 2 * SEED_BYTES
    rand_bytes = 7 * SEED_BYTES

    def __init__(
        self,
        dim: int,
        norm_bound: int,
        *,
        field: PrimeField = F40,
        chunk: int = 32,
        square_chunk: int | None = None,
        proofs: int | None = None,
        square_proofs: int = 2,
        tests: int = 100,
        alpha: float = ALPHA,
    ) -> None:
        most = largest_bound(field, alpha)
        if not 1 <= norm_bound <= most:
            raise UsageError(
                f"the norm bound is {norm_bound}: in this field, choose one from 1 to {most}"
            )
        self.dim, self.norm_bound, self.field, self.tests = dim, norm_bound, field, tests
        self.identifier, usual = SUITES[field]
        self.proofs, self.square_proofs = proofs or usual, square_proofs
        self.wrap = 1 << math.ceil(alpha * norm_bound).bit_length()
        self.norm_bits = (norm_bound**2).bit_length()
        self.test_bits = (2 * self.wrap - 1).bit_length()
        self.element_bytes = field.element_bytes
        if square_chunk is None:
            # Of 2 p - 1 + chunk elements: p - 1 calls.
            points = 1 << max(1, math.isqrt(dim // 2).bit_length() - 1)
            square_chunk = -(-dim // (points - 1))
        self.early = dim + 2 * self.norm_bits  # elements that are fixed before the tests
        bits = 2 * self.norm_bits + tests * (self.test_bits + 1)
        self.elements = dim + bits
        self.bit_calls = -(-bits // chunk)
        self.squares = Gadget(field, square_chunk, -(-dim // square_chunk), squares=True)
        self.products = Gadget(field, chunk, self.bit_calls + -(-tests // chunk))
        each = (self.square_proofs, self.squares), (self.proofs, self.products)
        self.proof_elements = sum(count * gadget.proof_elements for count, gadget in each)
        verifier_elements = sum(count * gadget.verifier_elements for count, gadget in each)
        self.leader_bytes = field.element_bytes * (self.elements + self.proof_elements)
        self.leader_bytes += 2 * SEED_BYTES
        self.verifier_bytes = field.element_bytes * verifier_elements + 2 * SEED_BYTES
        self._numbers = bytes([self.square_proofs, self.proofs])

    def _stream(self, seed: bytes, usage: int, binder: bytes = b"") -> Read:
        tag = bytes([VERSION]) + self.identifier.to_bytes(4, "big") + usage.to_bytes(2, "big")
        return stream(seed, tag, binder)

    def _draw(self, seed: bytes, usage: int, binder: bytes, count: int) -> Elements:
        return self.field.draw(self._stream(seed, usage, binder), count)

    def _part(self, usage: int, number: int, blind: bytes, nonce: bytes, share: bytes) -> bytes:
        return bytes(self._stream(blind, usage, bytes([number]) + nonce + share)(SEED_BYTES))

    def _seed(self, usage: int, parts: bytes) -> bytes:
        return bytes(self._stream(bytes(SEED_BYTES), usage, parts)(SEED_BYTES))

    def shard(self, vector: NDArray[np.int64], nonce: bytes, rand: bytes) -> Report:
        """Return the report of a vector of int64, shape (d,).

        `nonce` has 16 bytes and is used once, and `rand` has `rand_bytes` secret random bytes.
        Raise ValueError for a vector that is longer than the bound.
        """
        numbers = vector.astype(np.float64)
        norm = int(numbers @ numbers)  # exact below 2**53, which the largest bounds are far from
        if norm > self.norm_bound**2:
            raise ValueError(f"the vector's norm is above the bound of {self.norm_bound}")
        bits = _bits([norm, self.norm_bound**2 - norm], self.norm_bits)
        return self._shard(vector, bits, nonce, rand)

    def _shard(
        self, vector: NDArray[np.int64], norms: Elements, nonce: bytes, rand: bytes
    ) -> Report:
        """Return a report with the given bits of the squared norm and of what the bound leaves."""
        if len(nonce) != NONCE_BYTES or len(rand) != self.rand_bytes:
            raise ValueError("the nonce or the random bytes have the wrong length")
        field = self.field
        share_seed, proof_seed, *blinds, prover = (
            rand[start : start + SEED_BYTES] for start in range(0, len(rand), SEED_BYTES)
        )
        their_tests, their_joint, my_tests, my_joint = blinds
        theirs = self._draw(share_seed, VECTOR, bytes([HELPER]), self.elements)
        payload = field.encode(theirs)
        # The share is fixed before the tests, and the proofs after them.
        encoded = np.concatenate([field.reduce(vector), norms])
        mine = field.encode(field.subtract(encoded, theirs[: self.early]))
        early = payload[: self.element_bytes * self.early]
        public = self._part(TESTS_PART, LEADER, my_tests, nonce, mine)
        public += self._part(TESTS_PART, HELPER, their_tests, nonce, early)
        products = self._products(encoded[: self.dim], self._seed(TESTS_SEED, public))
        encoded = np.concatenate([encoded, self._answers(products)])
        late = slice(self.early, self.elements)
        mine += field.encode(field.subtract(encoded[late], theirs[late]))
        parts = self._part(JOINT_PART, LEADER, my_joint, nonce, mine)
        parts += self._part(JOINT_PART, HELPER, their_joint, nonce, payload)
        inputs, _, _ = self._circuit(encoded, products, self._seed(JOINT_SEED, parts), 1)
        arity, square_arity = self.products.arity, self.squares.arity
        cut = self.square_proofs * square_arity
        seeds = self._draw(prover, PROVER, self._numbers, cut + self.proofs * arity)
        proofs = np.concatenate(
            [
                self.squares.prove(
                    self._chunks(encoded[: self.dim], self.squares),
                    seeds[:cut].reshape(-1, square_arity),
                ).reshape(-1),
                self.products.prove(inputs, seeds[cut:].reshape(-1, arity)).reshape(-1),
            ]
        )
        binder = self._numbers + bytes([HELPER])
        proofs = field.subtract(proofs, self._draw(proof_seed, PROOFS, binder, self.proof_elements))
        return Report(
            public + parts,
            mine + field.encode(proofs) + my_tests + my_joint,
            share_seed + proof_seed + their_tests + their_joint,
        )

    def _chunks(self, inputs: Elements, gadget: Gadget) -> Elements:
        """Return inputs of one proof, padded with zeros, in calls; shape (calls, 1, arity)."""
        padded = np.zeros((gadget.calls, 1, gadget.arity), self.field.dtype)
        padded.reshape(-1)[: inputs.size] = inputs
        return padded

    def _answers(self, products: Elements) -> Elements:
        """Return what a prover claims of the tests: the bits of each product, and its success."""
        field = self.field
        shifted = field.add(products, np.uint64(self.wrap - 1))
        bits = _bits(shifted.tolist(), self.test_bits).reshape(self.tests, -1)
        return np.hstack([bits, np.ones((self.tests, 1), bits.dtype)]).reshape(-1)

    def _products(self, share: Elements, seed: bytes) -> Elements:
        """Return the products of the tests with the vector, or with a share; shape (tests,)."""
        field, row = self.field, -(-self.dim // 4)
        drawn = np.frombuffer(self._stream(seed, TESTS)(self.tests * row), np.uint8)
        drawn = drawn.reshape(self.tests, row)
        # Sums of numbers of 40 bits are exact in float64.
        width = 32 if field.element_bytes == 8 else 40
        shifts = np.arange(0, 8 * field.element_bytes, width, dtype=np.uint64)
        numbers = np.zeros((4 * row, shifts.size))
        numbers[: self.dim] = share[:, None] >> shifts & np.uint64((1 << width) - 1)
        total = np.zeros((self.tests, shifts.size), np.uint64)
        with matrices.one_thread():
            for start in range(0, row, BLOCK):
                signs = SIGNS.take(drawn[:, start : start + BLOCK]).view(np.float64)
                found = signs @ numbers[4 * start : 4 * (start + BLOCK)]
                total = field.add(total, field.reduce(found.astype(np.int64)))
        return field.sum(field.multiply(total, 1 << shifts), 1)

    def _circuit(
        self, share: Elements, products: Elements, seed: bytes, shares: int
    ) -> tuple[Elements, Elements, Elements]:
        """Return inputs of the second circuit's gadget, weights of its outputs, and the rest.

        Shapes (calls, proofs, arity), (calls, proofs), (proofs,). The circuit's value is the sum
        of weighted outputs, plus the rest.
        """
        field, tests, count = self.field, self.tests, self.proofs
        drawn = self._draw(seed, JOINT, bytes([count]), 3 * count).reshape(count, 3)
        for_bits, for_tests, final = drawn.T
        bits = share[self.dim :]
        norms, answers = bits[: 2 * self.norm_bits], bits[2 * self.norm_bits :].reshape(tests, -1)
        part = pow(shares, -1, field.modulus)

        def less(values: Elements, constant: int) -> Elements:
            """Return values minus a share of a constant."""
            return field.subtract(values, np.uint64(constant * part % field.modulus))

        inputs = np.zeros((self.products.calls * self.products.terms, count, 2), field.dtype)
        inputs[: bits.size, :, 0] = field.multiply(field.powers(for_bits, bits.size), bits[:, None])
        inputs[: bits.size, :, 1] = less(bits, 1)[:, None]
        start = self.bit_calls * self.products.terms
        claimed = less(self._number(answers[:, :-1]), self.wrap - 1)
        inputs[start : start + tests, :, 0] = field.multiply(
            field.powers(for_tests, tests), field.subtract(products, claimed)[:, None]
        )
        inputs[start : start + tests, :, 1] = answers[:, -1:]
        inputs = inputs.reshape(self.products.calls, -1, count, 2).swapaxes(1, 2)

        square = field.multiply(final, final)
        weights = np.ones((self.products.calls, count), field.dtype)
        weights[self.bit_calls :] = square
        both = self._number(norms.reshape(2, -1))
        range_check = less(field.add(both[:1], both[1:]), self.norm_bound**2)
        successes = less(field.sum(answers[:, -1:], 0), tests)
        rest = field.multiply(final, field.add(range_check, field.multiply(square, successes)))
        return inputs.reshape(self.products.calls, count, -1), weights, rest

    def _number(self, bits: Elements) -> Elements:
        """Return the numbers whose bits lie along the last axis, lowest first."""
        powers = 1 << np.arange(bits.shape[-1], dtype=np.uint64)
        return self.field.sum(self.field.multiply(bits, powers), -1)

    def prepare(
        self, number: int, verify_key: bytes, nonce: bytes, public: bytes, share: bytes
    ) -> Prepared:
        """Return a server's part of the check of a report.

        `number` is 0 for the leader and 1 for the helper; `verify_key`, 32 bytes, is secret from
        the devices. Raise ValueError for a malformed report.
        """
        field, z = self.field, self.element_bytes
        length = self.leader_bytes if number == LEADER else self.helper_bytes
        if len(share) != length or len(public) != self.public_bytes or len(nonce) != NONCE_BYTES:
            raise ValueError(f"the parts of a report have {length} and {self.public_bytes} bytes")
        if number == LEADER:
            held = field.decode(share[: -2 * SEED_BYTES])
            mine, proofs = held[: self.elements], held[self.elements :]
            payload = share[: z * self.elements]
        else:
            mine = self._draw(share[:SEED_BYTES], VECTOR, bytes([HELPER]), self.elements)
            binder = self._numbers + bytes([HELPER])
            seed = share[SEED_BYTES : 2 * SEED_BYTES]
            proofs = self._draw(seed, PROOFS, binder, self.proof_elements)
            payload = field.encode(mine)
        blinds = share[-2 * SEED_BYTES :]
        tests_part = self._part(
            TESTS_PART, number, blinds[:SEED_BYTES], nonce, payload[: z * self.early]
        )
        joint_part = self._part(JOINT_PART, number, blinds[SEED_BYTES:], nonce, payload)
        # This server's own part replaces the one that the device claims.
        parts = [public[start : start + SEED_BYTES] for start in range(0, len(public), SEED_BYTES)]
        parts[number], parts[2 + number] = tests_part, joint_part
        seeds = self._seeds(parts)
        products = self._products(mine[: self.dim], seeds[:SEED_BYTES])
        drawn = self._draw(
            verify_key, QUERY, self._numbers + nonce, self.square_proofs + self.proofs
        ).tolist()
        cut = self.square_proofs * self.squares.proof_elements
        outputs, first = self.squares.query(
            self._chunks(mine[: self.dim], self.squares),
            proofs[:cut].reshape(self.square_proofs, -1),
            drawn[: self.square_proofs],
        )
        norm = self._number(mine[None, self.dim : self.dim + self.norm_bits])
        value = field.subtract(norm, field.sum(outputs, 0))
        first = np.hstack([value[:, None], first])
        inputs, weights, rest = self._circuit(mine, products, seeds[SEED_BYTES:], 2)
        outputs, second = self.products.query(
            inputs, proofs[cut:].reshape(self.proofs, -1), drawn[self.square_proofs :]
        )
        value = field.add(rest, field.sum(field.multiply(weights, outputs), 0))
        second = np.hstack([value[:, None], second])
        verifier = field.encode(np.concatenate([first.reshape(-1), second.reshape(-1)]))
        return Prepared(verifier + tests_part + joint_part, mine[: self.dim], seeds)

    def output(self, number: int, share: bytes) -> Elements:
        """Return a server's share of the vector, as `finish` does, from its share of a report.

        Of the leader's share, the first ``element_bytes * d`` bytes are enough. So a server can
        keep bytes until the decision, which are fewer than the numbers.
        """
        if number == LEADER:
            return self.field.decode(share[: self.element_bytes * self.dim])
        return self._draw(share[:SEED_BYTES], VECTOR, bytes([HELPER]), self.dim)

    def _seeds(self, parts: list[bytes]) -> bytes:
        """Return the two seeds of joint randomness, from the parts for the tests and the proofs."""
        return self._seed(TESTS_SEED, parts[0] + parts[1]) + self._seed(
            JOINT_SEED, parts[2] + parts[3]
        )

    def decide(self, leader_verifier: bytes, helper_verifier: bytes, public: bytes = b"") -> bytes:
        """Return the seeds of the joint randomness, `seeds_bytes` long.

        Raise NotShort if the proofs are wrong, and ValueError for a malformed message. With the
        `public` part of the report, raise NotShort also where one of the servers would in `finish`:
        it has then checked with other randomness, which the device may have chosen.
        """
        field = self.field
        both = [leader_verifier, helper_verifier]
        if any(len(each) != self.verifier_bytes for each in both):
            raise ValueError(f"a verifier's message has {self.verifier_bytes} bytes")
        mine, theirs = (field.decode(each[: -2 * SEED_BYTES]) for each in both)
        summed = field.add(mine, theirs)
        cut = self.square_proofs * self.squares.verifier_elements
        if not self.squares.accepts(summed[:cut].reshape(self.square_proofs, -1)):
            raise NotShort("the square of the vector is not what its proof says")
        if not self.products.accepts(summed[cut:].reshape(self.proofs, -1)):
            raise NotShort("the vector is longer than the bound, or its proof is wrong")
        parts = [each[-2 * SEED_BYTES :] for each in both]
        tests = [each[:SEED_BYTES] for each in parts]
        joint = [each[SEED_BYTES:] for each in parts]
        if public and public != b"".join([*tests, *joint]):
            raise NotShort("the servers did not get the same joint randomness")
        return self._seeds([*tests, *joint])

    def finish(self, prepared: Prepared, seeds: bytes) -> Elements:
        """Return a server's share of the vector, uint64, shape (d,).

        Raise NotShort if the device gave the servers different parts of the joint randomness.
        """
        if not hmac.compare_digest(prepared.seeds, seeds):
            raise NotShort("the servers did not get the same joint randomness")
        return prepared.output


def _bits(numbers: list[int], width: int) -> Elements:
    """Return the lowest bits of numbers, lowest first, one after the other."""
    shifts = np.arange(width, dtype=np.uint64)
    return (np.array(numbers, np.uint64)[:, None] >> shifts & np.uint64(1)).reshape(-1)
