"""Any t shares give the secret; a share is a value of a polynomial, so that fewer say nothing."""

import numpy as np
import pytest
from crypto_reference import fixed_keys
from hypothesis import example, given
from hypothesis import strategies as st

from hpcfl.crypto import shamir
from hpcfl.crypto.groups import FQ

Q = FQ.modulus
ELEMENT = st.integers(0, Q - 1) | st.sampled_from([0, 1, 2**16 - 1, 2**16, Q - 1])


def array(values):
    return np.array(values, np.uint32)


def random_coefficients(threshold, limbs, seed):
    count = (threshold - 1) * limbs
    return FQ.elements(fixed_keys(1, seed), [count]).reshape(threshold - 1, limbs)


def evaluate(polynomial, point):
    """Return the value of a polynomial, lowest coefficient first, by Horner's rule."""
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * point + coefficient) % Q
    return value


# Limbs


@given(secret=st.binary(max_size=64))
@example(secret=b"")
@example(secret=b"\x00\x00\x00\x80" + bytes(3))
@example(secret=b"\xff" * 32)
def test_a_secret_is_cut_into_31_bit_limbs_the_lowest_first(secret):
    limbs, number = shamir.to_limbs(secret), int.from_bytes(secret, "little")
    assert [number >> 31 * k & (2**31 - 1) for k in range(limbs.size)] == limbs.tolist()
    assert -(-8 * len(secret) // 31) == limbs.size == shamir.limb_count(len(secret))
    assert secret == shamir.from_limbs(limbs, len(secret))


def test_limbs_of_no_16_byte_secret_and_two_shares_of_one_holder_are_refused():
    # A limb of 32 bits, one of q - 1, and a secret of 129 bits.
    for limbs in ([2**31, 0, 0, 0, 0], [0, 0, Q - 1, 0, 0], [0, 0, 0, 0, 2**4]):
        with pytest.raises(ValueError, match="do not combine to a secret"):
            shamir.from_limbs(array(limbs), 16)
    with pytest.raises(ValueError, match="same holder"):
        shamir.combine(array([[1], [2], [3]]), (0, 5, 0))


# Splitting and combining


@given(data=st.data(), secret=st.binary(min_size=1, max_size=40))
def test_any_t_or_more_shares_give_the_secret(data, secret):
    recipients = data.draw(st.lists(st.integers(0, 2**31 - 2), min_size=1, max_size=9, unique=True))
    threshold = data.draw(st.integers(1, len(recipients)))
    limbs = shamir.to_limbs(secret)
    coefficients = random_coefficients(threshold, limbs.size, data.draw(st.integers(0, 99)))
    shares = shamir.split(limbs, coefficients, tuple(recipients))
    rows = data.draw(st.permutations(range(len(recipients))))
    rows = rows[: data.draw(st.integers(threshold, len(recipients)))]
    combined = shamir.combine(shares[rows], tuple(recipients[row] for row in rows))
    assert secret == shamir.from_limbs(combined, len(secret))


@given(data=st.data())
def test_a_share_is_the_polynomial_at_the_recipients_number_plus_1(data):
    terms, limbs = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 3))
    polynomials = [[data.draw(ELEMENT) for _ in range(terms)] for _ in range(limbs)]
    recipients = data.draw(st.lists(st.integers(0, 2**31 - 2), min_size=1, max_size=4))
    columns = array(polynomials).T
    expected = [[evaluate(one, number + 1) for one in polynomials] for number in recipients]
    assert expected == shamir.split(columns[0], columns[1:], tuple(recipients)).tolist()


@pytest.mark.parametrize("count", [2, 100, 400])
def test_the_largest_values_do_not_overflow_at_large_thresholds(count):
    holders = tuple(range(count))
    top = np.full((count, 1), Q - 1, np.uint32)
    shares = shamir.split(top[0], top[1:], holders)
    expected = [[evaluate([Q - 1] * count, number + 1)] for number in holders]
    assert expected == shares.tolist()
    secret = [Q - 1]
    assert secret == shamir.combine(shares, holders).tolist()
    for value in (Q - 1, 0xFFFEFFFF, 1):
        # A constant has equal shares; the slots begin anywhere, as they do where some stay away.
        equal, places = np.full((2, count, 3), value, np.uint32), np.arange(count)
        each = shamir.combine_each(equal, np.stack([places, 7 + places]))
        assert [[value] * 3] * 2 == each.tolist()
        assert [value] * 3 == shamir.combine(equal[0], holders).tolist()


# Many secrets, each with holders of its own


@given(data=st.data())
def test_secrets_combined_together_are_those_combined_one_by_one(data):
    secrets, threshold = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 8))
    limbs = data.draw(st.integers(1, 9))
    number = st.integers(0, 12) | st.integers(0, 2**31 - 2)
    row = st.lists(number, min_size=threshold, max_size=threshold, unique=True)
    holders = data.draw(st.lists(row, min_size=secrets, max_size=secrets))
    shares = random_coefficients(2, secrets * threshold * limbs, data.draw(st.integers(0, 99)))
    shares = shares.reshape(secrets, threshold, limbs)
    shares[0, 0] = data.draw(ELEMENT)
    expected = [
        shamir.combine(own, tuple(row)).tolist() for own, row in zip(shares, holders, strict=True)
    ]
    combined = shamir.combine_each(shares, np.array(holders, np.int64))
    assert expected == combined.tolist()
    assert np.uint32 == combined.dtype
    nobody = shamir.combine_each(np.zeros((0, 4, 9), np.uint32), np.zeros((0, 4), np.int64))
    assert (0, 9) == nobody.shape
