"""Rotations are Walsh-Hadamard transforms after random signs, and what they are for."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import hadamard

from hpcfl.algorithms import rotation
from hpcfl.algorithms.rotation import Rotation, butterflies


def rotate(dim, seed=1):
    return Rotation(dim, np.random.default_rng(seed))


class Drawn(np.random.Generator):
    """A generator all of whose bits are the same."""

    def __init__(self, byte):
        super().__init__(np.random.PCG64(0))
        self._byte = byte

    def bytes(self, length):
        return self._byte * length


@pytest.mark.parametrize("cached", [1, 8, 1 << 15])
@pytest.mark.parametrize("power", range(9))
def test_a_power_of_two_is_transformed_by_a_hadamard_matrix(power, cached, monkeypatch):
    monkeypatch.setattr(rotation, "CACHED", cached)
    dim = 1 << power
    vector = np.random.default_rng(power).normal(size=dim)
    expected = hadamard(dim) @ vector / math.sqrt(dim)

    for byte, sign in ((b"\x00", 1), (b"\xff", -1)):
        turned = Rotation(dim, Drawn(byte)).turn(vector)
        np.testing.assert_allclose(turned, sign * expected, atol=1e-12)


@pytest.mark.parametrize("dim", [3, 5, 6, 7, 9, 100, 1023, 1025])
def test_another_length_is_transformed_by_its_first_and_its_last_power_of_two(dim):
    size = 1 << int(math.log2(dim))
    vector = np.random.default_rng(dim).normal(size=dim)
    expected = vector.copy()
    expected[:size] = hadamard(size) @ expected[:size] / math.sqrt(size)
    expected[dim - size :] = hadamard(size) @ expected[dim - size :] / math.sqrt(size)

    np.testing.assert_allclose(Rotation(dim, Drawn(b"\x00")).turn(vector), expected, atol=1e-12)


@given(dim=st.integers(1, 300), seed=st.integers(0, 2**32), dtype=st.sampled_from(["f4", "f8"]))
def test_a_rotation_keeps_lengths_and_can_be_undone(dim, seed, dtype):
    vector = np.random.default_rng(seed).normal(size=dim).astype(dtype)
    before, turned = vector.copy(), rotate(dim, seed).turn(vector)
    close = 1e-5 if dtype == "f4" else 1e-12

    assert turned.dtype == vector.dtype
    assert np.array_equal(before, vector)
    assert np.linalg.norm(turned) == pytest.approx(np.linalg.norm(vector), rel=close)
    np.testing.assert_allclose(rotate(dim, seed).undo(turned), vector, atol=close)


@pytest.mark.parametrize("dim", [1, 2, 3, 1024, 1025, 165_000])
def test_additions_are_counted(dim, monkeypatch):
    added = []
    sum_up = rotation._sum_up

    def counted(rows):
        count, length = rows.shape
        added.append(count * length * (count.bit_length() - 1))
        sum_up(rows)

    monkeypatch.setattr(rotation, "_sum_up", counted)
    rotate(dim).turn(np.ones(dim, np.float32))
    assert butterflies(dim) == sum(added)
