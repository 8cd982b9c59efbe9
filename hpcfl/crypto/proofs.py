"""Proofs on shared data: prime fields with roots of unity, and fully linear proofs of one gadget.

A prover convinces two or more verifiers, each of whom has one additive share of its inputs and of
the proof, that a circuit of these inputs gives zero (BBCGGI19, theorem 4.3, as in
draft-irtf-cfrg-vdaf and draft-chen-cfrg-vdaf-pine). All that is multiplied in the circuit goes
through calls of one *gadget*; everything else is linear, and verifiers compute it on their shares.

Arrays of field elements are uint64, shape (terms, proofs, ...) unless a docstring says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.values import dataclass

Elements = NDArray[Any]  # below the modulus: uint64 in all fields of this module
Operand = Elements | np.uint64
Read = Callable[[int], bytes]  # returns the next bytes of a stream

# Terms of a product of matrices at a time: with 20-bit parts, a sum of two is at most 2**53.
TERMS = 1 << 12


class PrimeField:
    """Integers modulo a prime with a root of unity of order ``2**order``.

    Parameters
    ----------
    modulus : int
        A prime below 2**40, or 2**64 - 2**32 + 1.
    root : int
        An element of order ``2**order``.
    """

    dtype: np.dtype[Any] = np.dtype(np.uint64)

    def __init__(self, modulus: int, root: int, order: int) -> None:
        self.modulus, self.root, self.order = modulus, root, order
        self.element_bytes = -(-modulus.bit_length() // 8)
        self.part_bits = 20 if modulus.bit_length() == 40 else 16
        self._modulus = np.uint64(modulus)
        self.roots = cache(self._roots)

    def of(self, integers: NDArray[np.integer[Any]]) -> Elements:
        """Return int64 or uint64 integers of magnitude below the modulus as elements."""
        elements = integers.astype(np.uint64)
        elements += (integers < 0) * self._modulus  # negative ones have wrapped around
        return elements

    def subtract(self, left: Elements, right: Operand) -> Elements:
        return self._wrapped(left - right, left < right)

    def add(self, left: Elements, right: Operand) -> Elements:
        return self.subtract(left, self._modulus - right)

    def _wrapped(self, words: Elements, less: NDArray[np.bool_]) -> Elements:
        words += less * self._modulus
        return words

    def reduce(self, words: Elements) -> Elements:
        """Return arbitrary words as elements."""
        # NumPy vectorises floor division by a scalar, but not the remainder.
        return words - words // self._modulus * self._modulus

    def multiply(self, left: Elements, right: Operand) -> Elements:
        if self.part_bits == 16:
            return self.reduce(left * right)
        high, low = right >> np.uint64(20), right & np.uint64(0xFFFFF)
        return self.reduce((self.reduce(left * high) << np.uint64(20)) + left * low)

    def sum(self, elements: Elements, axis: int) -> Elements:
        """Return the sums of at most 2**24 elements each."""
        return self.reduce(elements.sum(axis))

    def product(self, left: Elements, right: Elements) -> Elements:
        """Return ``left @ right``, shapes (m, k) and (k, n), by float64 products of parts."""
        rows, columns, bits = len(left), right.shape[1], self.part_bits
        total = np.zeros((rows, columns), self.dtype)
        for start in range(0, len(right), TERMS):
            parts = self._parts(left[:, start : start + TERMS])
            others = self._parts(right[start : start + TERMS])
            count = len(parts)
            products = np.vstack(parts) @ np.hstack(others)
            products = products.reshape(count, rows, count, columns)
            block = np.zeros_like(total)
            for place in reversed(range(2 * count - 1)):
                first = range(max(0, place - count + 1), min(place + 1, count))
                summed = sum(products[k, :, place - k] for k in first)
                shifted = self.multiply(block, np.uint64(1 << bits))
                block = self.add(shifted, self.reduce(summed.astype(np.uint64)))
            total = self.add(total, block)
        return total

    def _parts(self, matrix: Elements) -> list[NDArray[np.float64]]:
        bits = self.part_bits
        shifts = range(0, 8 * self.element_bytes, bits)
        low = np.uint64((1 << bits) - 1)
        return [(matrix >> np.uint64(shift) & low).astype(np.float64) for shift in shifts]

    def powers(self, bases: Elements, count: int) -> Elements:
        """Return powers 0 to `count` - 1 of n elements, shape (count, n)."""
        found = np.ones((1, len(bases)), self.dtype)
        step = bases
        while len(found) < count:
            found = np.concatenate([found, self.multiply(found, step)])
            step = self.multiply(step, step)
        return found[:count]

    def _roots(self, size: int, inverse: bool = False) -> Elements:
        """Return the `size` powers of the root of unity of that order, a power of 2."""
        root = pow(self.root, (1 << self.order) // size, self.modulus)
        root = pow(root, -1, self.modulus) if inverse else root
        return self.powers(np.array([root], self.dtype), size)[:, 0]

    def ntt(self, values: Elements, inverse: bool = False) -> Elements:
        """Return the values at the n-th roots of unity, in order, of polynomials.

        `values` are their coefficients, shape (n, ...), n a power of 2. `inverse` is the way back.
        """
        size = len(values)
        if 1 << self.order < size:
            raise ValueError(f"the field has no root of unity of order {size}")
        found: Elements = values
        half = size // 2
        while half:  # Stockham's order: no permutation of bits is needed
            twiddles = self.roots(2 * half, inverse)[:half, None, None]
            pairs = found.reshape(2, half, size // (2 * half), -1)
            sums = self.add(pairs[0], pairs[1])
            differences = self.multiply(self.subtract(pairs[0], pairs[1]), twiddles)
            found = np.stack([sums, differences], axis=1)
            half //= 2
        found = found.reshape(values.shape)
        if inverse:
            found = self.multiply(found, self.dtype.type(pow(size, -1, self.modulus)))
        return found

    def encode(self, elements: Elements) -> bytes:
        """Return elements, little-endian in `element_bytes` bytes each."""
        words = np.ascontiguousarray(elements, "<u8").view(np.uint8).reshape(-1, 8)
        return words[:, : self.element_bytes].tobytes()

    def words(self, payload: bytes) -> Elements:
        """Return little-endian words of `element_bytes` bytes, which need not be elements."""
        z = self.element_bytes
        words = np.zeros((len(payload) // z, 8), np.uint8)
        words[:, :z] = np.frombuffer(payload, np.uint8).reshape(-1, z)
        return words.view("<u8")[:, 0]

    def decode(self, payload: bytes) -> Elements:
        """Return the elements of a payload; raise ValueError if a word is no element."""
        elements = self.words(payload)
        if elements.size and int(elements.max()) >= self.modulus:
            raise ValueError("a number is not an element of the field")
        return elements

    def draw(self, read: Read, count: int) -> Elements:
        """Return `count` uniform elements: the words of a stream that are elements."""
        found = np.zeros(0, self.dtype)
        while missing := count - found.size:
            words = self.words(read(missing * self.element_bytes))
            found = np.concatenate([found, words[words < self.modulus]])
        return found


class _Goldilocks(PrimeField):
    """The field of 2**64 - 2**32 + 1 elements, in which 2**64 = 2**32 - 1 and 2**96 = -1."""

    def multiply(self, left: Elements, right: Operand) -> Elements:
        half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
        a, b, c, d = left >> half, left & low, right >> half, right & low
        bottom, first, second = b * d, a * d, b * c
        # None of these sums overflows.
        middle = (bottom >> half) + (first & low) + (second & low)
        top = a * c + (first >> half) + (second >> half) + (middle >> half)
        words = (bottom & low) | (middle << half)
        less = words < (top >> half)
        words = words - (top >> half)
        words -= less * low  # 2**64 modulo p
        added = (top & low) * low
        words = words + added
        words += (words < added) * low
        return self.reduce(words)

    def sum(self, elements: Elements, axis: int) -> Elements:
        half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
        upper = self.reduce((elements >> half).sum(axis))
        lower = self.reduce((elements & low).sum(axis))
        return self.add(self.multiply(upper, np.uint64(1 << 32)), lower)


F32 = PrimeField(2**32 - 2**20 + 1, 3925978153, 20)
F40 = PrimeField(2**20 * 1048555 + 1, pow(7, 1048555, 2**20 * 1048555 + 1), 20)
F64 = _Goldilocks(2**64 - 2**32 + 1, pow(7, 2**32 - 1, 2**64 - 2**32 + 1), 32)


@dataclass(frozen=True)
class Gadget:
    """Proofs about `calls` calls of a gadget: a sum of `terms` products, or of squares.

    The inputs of call k are the values of polynomials at the k-th power of the p-th root of unity,
    p > calls a power of 2; at 1 their values are random seeds. A proof holds the seeds, and the
    *gadget's polynomial*: the gadget of these polynomials, of degree 2 p - 2.

    Attributes
    ----------
    squares : bool
        Whether the terms are squares of one input each, or products of two that lie side by side.
    values : bool
        Whether a proof holds 2 p - 1 values of the polynomial at the powers of the 2 p-th root of
        unity (as in Prio3), or its coefficients (as in PINE).
    """

    field: PrimeField
    terms: int
    calls: int
    squares: bool = False
    values: bool = False

    @property
    def arity(self) -> int:
        """Number of inputs of a call."""
        return self.terms if self.squares else 2 * self.terms

    @property
    def points(self) -> int:
        return 1 << self.calls.bit_length()

    @property
    def proof_elements(self) -> int:
        return self.arity + 2 * self.points - 1

    @property
    def verifier_elements(self) -> int:
        """Elements of a verifier's share: the circuit's value, inputs and output at a point."""
        return self.arity + 2

    def output(self, inputs: Elements) -> Elements:
        """Return what the gadget gives for inputs along the last axis."""
        right = inputs if self.squares else inputs[..., 1::2]
        left = inputs if self.squares else inputs[..., ::2]
        return self.field.sum(self.field.multiply(left, right), -1)

    def prove(self, inputs: Elements, seeds: Elements) -> Elements:
        """Return proofs, shape (proofs, `proof_elements`).

        `inputs`, shape (calls, proofs or 1, arity), may be the same for all proofs; `seeds`, shape
        (proofs, arity), are uniform and secret.
        """
        field, count = self.field, self.points
        wires = np.zeros((count, len(seeds), self.arity), field.dtype)
        wires[0] = seeds
        wires[1 : self.calls + 1] = inputs
        even = self.output(wires)
        shifts = field.roots(2 * count)[:count, None, None]
        odd = self.output(field.ntt(field.multiply(field.ntt(wires, inverse=True), shifts)))
        found = np.stack([even, odd], axis=1).reshape(2 * count, -1)
        if not self.values:
            found = field.ntt(found, inverse=True)
        return np.hstack([seeds, found[:-1].T])

    def query(
        self, inputs: Elements, proofs: Elements, points: list[int]
    ) -> tuple[Elements, Elements]:
        """Return a share of what the gadget gives in each call, and of inputs and output at points.

        All is linear, so shares of `inputs` and `proofs`, as `prove` takes and returns them, give
        shares of the outputs, shape (calls, proofs), and of shape (proofs, arity + 1). Each proof
        has one of the `points`, which the prover must not know.
        """
        field, count = self.field, self.points
        seeds, tail = proofs[:, : self.arity], proofs[:, self.arity :].T
        at = np.array(points, field.dtype)
        if any(pow(point, count, field.modulus) == 1 for point in points):
            raise ValueError("a random point is a root of unity")
        if self.values:
            # With the value that is not sent, the coefficient of degree 2 p - 1 is zero.
            roots = field.roots(2 * count)
            others = field.sum(field.multiply(tail, roots[:-1, None]), 0)
            last = field.multiply(field.subtract(np.zeros_like(others), others), roots[1])
            tail = np.concatenate([tail, last[None]])
            outputs = tail[2 : 2 * self.calls + 2 : 2]
            weights = field.ntt(field.powers(at, 2 * count), inverse=True)
        else:
            folded = tail[:count].copy()
            folded[:-1] = field.add(folded[:-1], tail[count:])
            outputs = field.ntt(folded)[1 : self.calls + 1]
            weights = field.powers(at, 2 * count - 1)
        output = field.sum(field.multiply(tail, weights), 0)
        # The value at t of the polynomial with given values at the roots is linear in these.
        weights = field.ntt(field.powers(at, count), inverse=True)
        found = field.multiply(weights[0][:, None], seeds)
        weights = weights[1 : self.calls + 1]
        if inputs.shape[1] == 1:
            rest = field.product(weights.T, inputs[:, 0])
        else:
            each = [field.product(weights.T[k : k + 1], inputs[:, k]) for k in range(len(points))]
            rest = np.concatenate(each)
        return outputs, np.hstack([field.add(found, rest), output[:, None]])

    def accepts(self, verifiers: Elements) -> bool:
        """Return whether sums of all verifiers' shares, shape (proofs, arity + 2), prove zeros."""
        value, inputs, output = verifiers[:, 0], verifiers[:, 1:-1], verifiers[:, -1]
        return bool(not value.any() and (self.output(inputs) == output).all())
