"""Proofs on shared data: prime fields with roots of unity, and fully linear proofs of one gadget.

A prover convinces two or more verifiers, each of whom has one additive share of its inputs and of
the proof, that a circuit of these inputs gives zero (BBCGGI19, theorem 4.3, as in
draft-irtf-cfrg-vdaf and draft-chen-cfrg-vdaf-pine). All that is multiplied in the circuit goes
through calls of one *gadget*; everything else is linear, and verifiers compute it on their shares.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.crypto import matrices

Elements = NDArray[Any]  # below the modulus: uint64 in all fields of this module
Operand = Elements | np.uint64
Read = Callable[[int], bytes | NDArray[np.uint8]]  # returns the next bytes of a stream
# The circuit's inputs of a gadget, shape (calls, proofs or 1, arity), weights of its outputs, shape
# (calls or 1, proofs or 1), and the rest, shape (proofs or 1,), which is added to these outputs.
Circuit = tuple[Elements, Elements, Elements]

# Elements at a time: temporary arrays stay in cache, and below the size from which malloc asks the
# system for pages, which takes longer than all arithmetic.
BLOCK = 1 << 13
# Bits of the parts in which float64 multiplies matrices, and the terms of a product. Of elements of
# 64 bits, three products are added up: below 2**53.
PART, TERMS = 20, 1 << 11
HALF, LOW = np.uint64(32), np.uint64(2**32 - 1)


def _in_blocks(work: Callable[..., Elements]) -> Callable[[Any, Elements, Operand], Elements]:
    """Return an operation on two arrays, of any shapes that NumPy broadcasts, in blocks of rows."""

    def each(self: PrimeField, left: Elements, right: Operand) -> Elements:
        if (both := np.broadcast(left, right)).size <= BLOCK:
            return work(self, left, right)
        found, arrays = np.empty(both.shape, self.dtype), np.broadcast_arrays(left, right)
        step = max(1, BLOCK * len(found) // found.size)
        for start in range(0, len(found), step):
            rows = slice(start, start + step)
            found[rows] = work(self, *(array[rows] for array in arrays))
        return found

    return each


class PrimeField:
    """Integers modulo a prime below 2**40 that has a root of unity of order ``2**order``."""

    dtype: np.dtype[Any] = np.dtype(np.uint64)

    def __init__(self, modulus: int, root: int, order: int) -> None:
        self.modulus, self.root, self.order = modulus, root, order
        self.element_bytes = -(-modulus.bit_length() // 8)
        self._modulus = self.dtype.type(modulus)
        self.roots = cache(self._roots)

    @_in_blocks
    def subtract(self, left: Elements, right: Operand) -> Elements:
        words = left - right  # one that is negative wraps around, and is larger than the element
        return np.minimum(words, words + self._modulus, out=words)

    @_in_blocks
    def add(self, left: Elements, right: Operand) -> Elements:
        return self.subtract(left, self._modulus - right)

    @_in_blocks
    def multiply(self, left: Elements, right: Operand) -> Elements:
        # The quotient, rounded down, or 1 more: errors of floats are below the 2**-50 added.
        quotient = left.astype(np.float64) * right.astype(np.float64)
        quotient *= (1 + 2**-50) / self.modulus
        words = left * right
        words -= quotient.astype(np.uint64) * self._modulus
        return np.minimum(words, words + self._modulus, out=words)

    def reduce(self, integers: NDArray[np.integer[Any]]) -> Elements:
        """Return int64 integers, or those of uint64, as elements."""
        # NumPy vectorises floor division by a scalar, but not the remainder.
        modulus = integers.dtype.type(self.modulus)
        return (integers - integers // modulus * modulus).astype(np.uint64)

    def sum(self, elements: Elements, axis: int) -> Elements:
        """Return sums of at most 2**24 elements each, but not of all elements of an array."""
        return self.reduce(elements.sum(axis))

    def product(self, left: Elements, right: Elements) -> Elements:
        """Return ``left @ right``, shapes (m, k) and (k, n)."""
        rows, terms = len(left), len(right)
        found = np.zeros((rows, right.shape[1]), self.dtype)
        step = max(1, 2 * BLOCK // max(rows, min(terms, TERMS)))
        # BLAS threads would use unmeasured CPU time, on cores that belong to other ranks.
        with matrices.one_thread():
            for start in range(0, terms, TERMS):
                some = slice(start, start + TERMS)
                ours = np.vstack(self._parts(left[:, some]))
                for first in range(0, right.shape[1], step):
                    place = slice(first, first + step)
                    theirs = np.hstack(self._parts(right[some, place]))
                    columns = found[:, place].shape[1]
                    products = (ours @ theirs).reshape(len(ours) // rows, rows, -1, columns)
                    found[:, place] = self.add(found[:, place], self._joined(products))
        return found

    def _joined(self, products: NDArray[np.float64]) -> Elements:
        """Return the sum of products of parts, shape (parts, rows, parts, columns)."""
        ours, rows, theirs, columns = products.shape
        sums = np.zeros((ours + theirs - 1, rows, columns))
        for place in range(ours):
            sums[place : place + theirs] += products[place].swapaxes(0, 1)
        total, *others = (self.reduce(part.astype(np.int64)) for part in sums[::-1])
        for part in others:
            total = self.add(self.multiply(total, np.uint64(1 << PART)), part)
        return total

    def _parts(self, matrix: Elements) -> list[NDArray[np.float64]]:
        """Return the lowest bits of the integers nearest to zero, the next, and so on: no zeros."""
        words = matrix - (matrix > np.uint64(self.modulus // 2)) * self._modulus
        integers = words.view(np.int64)
        most = max(int(integers.max()), -int(integers.min())).bit_length()
        *lower, top = range(0, max(most, 1), PART)
        parts = [integers >> shift & (1 << PART) - 1 for shift in lower]
        return [part.astype(np.float64) for part in (*parts, integers >> top)]

    def powers(self, bases: Elements, count: int) -> Elements:
        """Return powers 0 to `count` - 1 of n elements, shape (count, n)."""
        found, step = np.ones((1, len(bases)), self.dtype), bases
        while len(found) < count:
            found = np.concatenate([found, self.multiply(found, step)])
            step = self.multiply(step, step)
        return found[:count]

    def _roots(self, size: int, inverse: bool = False) -> Elements:
        """Return the `size` powers of the root of unity of that order, a power of 2."""
        step = (1 << self.order) // size
        root = pow(self.root, -step if inverse else step, self.modulus)
        return self.powers(np.array([root], self.dtype), size)[:, 0]

    def ntt(self, values: Elements, inverse: bool = False) -> Elements:
        """Return the values at the n-th roots of unity, in order, of polynomials.

        `values` are their coefficients, shape (n, ...), n a power of 2. `inverse` is the way back.
        """
        found: Elements = values
        half = len(values) // 2
        while half:  # Stockham's order: no permutation of bits is needed
            twiddles = self.roots(2 * half, inverse)[:half, None]
            left, right = found.reshape(2, half, -1)
            differences = self.multiply(self.subtract(left, right), twiddles)
            found = np.stack([self.add(left, right), differences], axis=1)
            half //= 2
        found = found.reshape(values.shape)
        return self.multiply(found, self.inverse(len(values))) if inverse else found

    def inverse(self, integer: int) -> Any:
        return self.dtype.type(pow(integer, -1, self.modulus))

    def encode(self, elements: Elements) -> bytes:
        """Return elements, little-endian in `element_bytes` bytes each."""
        return _columns(elements.astype("<u8"), self.element_bytes).tobytes()

    def words(self, payload: bytes | NDArray[np.uint8]) -> Elements:
        """Return little-endian words of `element_bytes` bytes, which need not be elements."""
        given = np.frombuffer(payload, np.uint8).reshape(-1, self.element_bytes)
        return _columns(given, 8).view("<u8")[:, 0]

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
            found = np.append(found, np.delete(words, np.flatnonzero(words >= self.modulus)))
        return found


def _columns(words: NDArray[Any], width: int) -> NDArray[np.uint8]:
    """Return the lowest bytes of words, shape (words, width), with zeros above the highest."""
    given = words.view(np.uint8).reshape(len(words), -1)
    found = np.zeros((len(words), width), np.uint8)
    # By columns, because NumPy copies short rows slowly.
    for column in range(min(width, given.shape[1])):
        found[:, column] = given[:, column]
    return found


class _Goldilocks(PrimeField):
    """The field of 2**64 - 2**32 + 1 elements, in which 2**64 = 2**32 - 1 and 2**96 = -1."""

    @_in_blocks
    def subtract(self, left: Elements, right: Operand) -> Elements:
        return left - right + (left < right) * self._modulus

    @_in_blocks
    def multiply(self, left: Elements, right: Operand) -> Elements:
        a, b, c, d = left >> HALF, left & LOW, right >> HALF, right & LOW
        bottom, first, second = b * d, a * d, b * c
        # None of these sums overflows.
        middle = (bottom >> HALF) + (first & LOW) + (second & LOW)
        top = a * c + (first >> HALF) + (second >> HALF) + (middle >> HALF)
        low, high = bottom & LOW | middle << HALF, top >> HALF
        words = low - high
        words -= (low < high) * LOW  # it has wrapped around: 2**64 too much
        more = (top & LOW) * LOW
        words += more
        words += (words < more) * LOW
        return self.subtract(words, (words >= self._modulus) * self._modulus)

    def reduce(self, integers: NDArray[np.integer[Any]]) -> Elements:
        return integers.astype(np.uint64) + (integers < 0) * self._modulus

    def sum(self, elements: Elements, axis: int) -> Elements:
        upper, lower = (elements >> HALF).sum(axis), (elements & LOW).sum(axis)
        return self.add(self.multiply(upper, np.uint64(1 << 32)), lower)


F32 = PrimeField(2**32 - 2**20 + 1, 3925978153, 20)
F40 = PrimeField(2**20 * 1048555 + 1, pow(7, 1048555, 2**20 * 1048555 + 1), 20)
F64 = _Goldilocks(2**64 - 2**32 + 1, pow(7, 2**32 - 1, 2**64 - 2**32 + 1), 32)


class Gadget:
    """Proofs about `calls` calls of a gadget: a sum of `terms` squares, or products of neighbours.

    The inputs of call k are the values of polynomials at the k-th power of the p-th root of unity,
    p > calls a power of 2; at 1 their values are random seeds. A proof holds the seeds, and the
    *gadget's polynomial*: the gadget of these polynomials, of degree 2 p - 2, by its coefficients
    (as in PINE), or by 2 p - 1 `values` at powers of the 2 p-th root of unity (as in Prio3).
    """

    def __init__(
        self, field: PrimeField, terms: int, calls: int, squares: bool = False, values: bool = False
    ) -> None:
        self.field, self.terms, self.calls = field, terms, calls
        self.squares, self.values = squares, values
        self.arity = terms if squares else 2 * terms  # inputs of a call
        self.points = 1 << calls.bit_length()
        self.proof_elements = self.arity + 2 * self.points - 1

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
        even = np.zeros((count, len(seeds)), field.dtype)
        even[0], even[1 : self.calls + 1] = self.output(seeds), self.output(inputs)
        # At odd powers of the 2 p-th root of unity, values are linear in those at even powers.
        at = field.multiply(field.ntt(field.roots(2 * count)[:count]), field.inverse(count))
        matrix = at[(np.arange(count)[:, None] - np.arange(self.calls + 1)) % count]
        rest = field.product(matrix[:, 1:], inputs.reshape(self.calls, -1))
        rest = rest.reshape(count, -1, self.arity)
        # Each is that of the inputs plus a factor times that of the seeds: a square of sums.
        swapped = seeds.reshape(len(seeds), -1, 1 if self.squares else 2)[:, :, ::-1]
        mixed = self._mixed(swapped.reshape(seeds.shape).T, rest.transpose(2, 1, 0)).T
        mixed = field.add(mixed, mixed) if self.squares else mixed
        factor = matrix[:, :1]
        odd = field.multiply(factor, field.add(mixed, field.multiply(factor, even[:1])))
        odd = field.add(odd, self.output(rest))
        found = np.stack([even, odd], axis=1).reshape(2 * count, -1)
        if not self.values:
            found = field.ntt(found, inverse=True)
        return np.hstack([seeds, found[:-1].T])

    def query(self, proofs: Elements, points: Elements, circuit: Circuit) -> Elements:
        """Return a verifier's share for each proof, shape (proofs, arity + 2).

        It holds the value of the circuit, and the gadget's inputs and output at a random point that
        the prover does not know. All is linear in shares of proofs and circuit.
        Raise ValueError if a point would reveal an input, which has a probability of p / q.
        """
        field, count, (inputs, weights, rest) = self.field, self.points, circuit
        seeds, tail = proofs[:, : self.arity], proofs[:, self.arity :].T
        if any(pow(point, count, field.modulus) == 1 for point in points.tolist()):
            raise ValueError("a random point is a root of unity")
        if self.values:
            # The last value is the one for which the coefficient of degree 2 p - 1 is zero.
            tail = field.ntt(np.concatenate([tail, np.zeros_like(tail[:1])]), inverse=True)
            shifted = np.roll(field.roots(2 * count), -1)[:-1, None]
            tail = field.subtract(tail[:-1], field.multiply(tail[-1:], shifted))
        folded = tail[:count].copy()
        folded[:-1] = field.add(folded[:-1], tail[count:])
        outputs, at_point = field.ntt(folded), field.powers(points, 2 * count - 1)
        output = field.sum(field.multiply(tail, at_point), 0)
        outputs = field.multiply(outputs[1 : self.calls + 1], weights)
        # A polynomial's value at the point is linear in its values at the roots.
        at_point = field.ntt(field.powers(points, count), inverse=True)
        found = field.multiply(at_point[0, :, None], seeds)
        found = field.add(found, self._mixed(at_point[1 : self.calls + 1], inputs))
        value = field.add(rest, field.sum(outputs, 0))
        return np.hstack([value[:, None], found, output[:, None]])

    def _mixed(self, weights: Elements, inputs: Elements) -> Elements:
        """Return the sum of ``weights[k, n] inputs[k, n or 0]`` over k, for all n."""
        if inputs.shape[1] == 1:
            return self.field.product(weights.T, inputs[:, 0])
        return self.field.sum(self.field.multiply(weights[:, :, None], inputs), 0)

    def accepts(self, verifiers: Elements) -> bool:
        """Return whether sums of all verifiers' shares, shape (proofs, arity + 2), prove zeros."""
        value, inputs, output = verifiers[:, 0], verifiers[:, 1:-1], verifiers[:, -1]
        return bool(not value.any() and (self.output(inputs) == output).all())
