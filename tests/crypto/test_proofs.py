"""Fields with roots of unity, and the proof system: properties, and the vectors of Prio3."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prio3 import F128, Count, Histogram, Prio3, ShortSumVec, SumVec, stream

from hpcfl.crypto import proofs
from hpcfl.crypto.proofs import F32, F40, F64, Gadget

FIELDS = [F32, F40, F64]
VECTORS = json.loads((Path(__file__).parent / "vectors/prio3.json").read_text())


def told(value):
    """Return bytes as the vectors tell them: long ones by their SHA-256."""
    return value.hex() if len(value) <= 128 else "sha256:" + hashlib.sha256(value).hexdigest()


def edges(field):
    """Return elements, of which those are frequent at which arithmetic may go wrong."""
    q = field.modulus
    special = [0, 1, 2, q - 1, q - 2, q // 2, q // 2 + 1, 2**20, 2**20 - 1, 2**31, 2**32 - 1]
    return st.sampled_from([each % q for each in special]) | st.integers(0, q - 1)


@st.composite
def operands(draw):
    field = draw(st.sampled_from(FIELDS))
    size = draw(st.integers(1, 20))
    left, right = (draw(st.lists(edges(field), min_size=size, max_size=size)) for _ in range(2))
    return field, left, right


@given(operands())
def test_arithmetic_is_that_of_python(given):
    field, left, right = given
    q, a, b = field.modulus, np.array(left, np.uint64), np.array(right, np.uint64)
    pairs = [*zip(left, right, strict=True)]
    assert [(one + other) % q for one, other in pairs] == field.add(a, b).tolist()
    assert [(one - other) % q for one, other in pairs] == field.subtract(a, b).tolist()
    assert [one * other % q for one, other in pairs] == field.multiply(a, b).tolist()
    assert [one * one % q for one in left] == field.multiply(a, a).tolist()
    assert [sum(left) % q] == field.sum(a[None], 1).tolist()
    signed = (a & np.uint64(2**31 - 1)).astype(np.int64) - 2**30
    assert [number % q for number in signed.tolist()] == field.reduce(signed).tolist()
    assert left == field.decode(field.encode(a)).tolist()


@pytest.mark.parametrize("field", FIELDS)
def test_long_arrays_are_handled_in_blocks_with_the_same_results(field):
    draw = np.random.default_rng(1)
    a = draw.integers(0, field.modulus, (3 * proofs.BLOCK + 5, 2), np.uint64)
    b = draw.integers(0, field.modulus, (1, 2), np.uint64)
    expected = (a.astype(object) * b.astype(object)) % field.modulus
    assert (field.multiply(a, b) == expected.astype(np.uint64)).all()
    assert (field.add(a, b) == ((a.astype(object) + b) % field.modulus).astype(np.uint64)).all()


def few(field, rows, columns):
    items = st.lists(edges(field), min_size=rows * columns, max_size=rows * columns)
    return items.map(lambda listed: np.array(listed, np.uint64).reshape(rows, columns))


@given(st.data(), st.sampled_from(FIELDS), *[st.integers(1, 5)] * 3)
def test_products_of_matrices_are_those_of_python(data, field, rows, terms, columns):
    left, right = data.draw(few(field, rows, terms)), data.draw(few(field, terms, columns))
    expected = left.astype(object) @ right.astype(object) % field.modulus
    assert expected.tolist() == field.product(left, right).tolist()


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(
    "shape", [(1, proofs.TERMS, 2), (1, 3 * proofs.TERMS // 2, 2), (2, 700, 90), (60, 9, 500)]
)
def test_products_are_exact_over_the_bounds_of_blocks_and_with_the_largest_numbers(field, shape):
    """Also with all bits of the parts set, where sums of products are largest."""
    rows, terms, columns = shape
    draw = np.random.default_rng(1)
    ones = (1 << field.modulus.bit_length() // proofs.PART * proofs.PART) - 1
    for number in (field.modulus - 1, field.modulus // 2, ones if field is F64 else ones >> 1):
        left, right = (
            np.array(number, object) - draw.integers(0, 2, size).astype(object)
            for size in ((rows, terms), (terms, columns))
        )
        found = field.product(left.astype(np.uint64), right.astype(np.uint64))
        assert (left @ right % field.modulus).tolist() == found.tolist()


@given(st.data(), st.sampled_from(FIELDS), st.sampled_from([1, 2, 4, 8]))
def test_transforms_evaluate_polynomials_at_the_roots_of_unity(data, field, size):
    coefficients = data.draw(few(field, size, 2))
    root = pow(field.root, 2**field.order // size, field.modulus)
    expected = [
        sum(c * pow(root, power * place, field.modulus) for power, c in enumerate(column))
        % field.modulus
        for place in range(size)
        for column in coefficients.T.tolist()
    ]
    values = field.ntt(coefficients)
    assert expected == values.reshape(-1).tolist()
    assert field.ntt(values, inverse=True).tolist() == coefficients.tolist()


@pytest.mark.parametrize("field", [*FIELDS, F128])
def test_roots_of_unity_have_their_order(field):
    assert pow(field.root, 2 ** (field.order - 1), field.modulus) == field.modulus - 1


@given(st.data(), st.sampled_from(FIELDS), st.booleans(), st.booleans(), st.integers(1, 9))
def test_honest_proofs_are_accepted_with_values_of_polynomials_at_the_point(
    data, field, squares, values, calls
):
    """A verifier's inputs are Lagrange's interpolation of seeds and inputs, then zeros."""
    gadget = Gadget(field, 2, calls, squares=squares, values=values)
    draw = np.random.default_rng(data.draw(st.integers(0, 99)))
    seeds = draw.integers(0, field.modulus, (3, gadget.arity), np.uint64)
    many = data.draw(st.sampled_from([1, 3]))
    inputs = draw.integers(0, field.modulus, (calls, many, gadget.arity), np.uint64)
    points = draw.integers(2, field.modulus, 3, np.uint64)
    weights = draw.integers(0, field.modulus, (calls, 3), np.uint64)
    outputs = gadget.output(inputs)
    less = field.sum(field.multiply(outputs, weights), 0)
    rest = field.subtract(np.zeros_like(less), less)
    proof = gadget.prove(inputs, seeds)
    found = gadget.query(proof, points, (inputs, weights, rest))
    assert gadget.accepts(found)

    q, root = field.modulus, pow(field.root, 2**field.order // gadget.points, field.modulus)
    for number, point in enumerate(points.tolist()):
        wires = [seeds[number], *inputs[:, number % many]]
        for place in range(gadget.arity):
            total = 0
            for k, wire in enumerate(wires):
                at = pow(root, k, q)
                # (t**p - 1) / p * at / (t - at)
                factor = (pow(point, gadget.points, q) - 1) * at
                total += int(wire[place]) * factor * pow(gadget.points * (point - at), -1, q)
            assert total % q == int(found[number, 1 + place])

    # The same from two shares; and no number of a proof can be changed.
    half = draw.integers(0, q, proof.shape, np.uint64)
    theirs = [draw.integers(0, q, each.shape, np.uint64) for each in (inputs, rest)]
    mine = [field.subtract(*both) for both in zip((inputs, rest), theirs, strict=True)]
    one = gadget.query(half, points, (theirs[0], weights, theirs[1]))
    other = gadget.query(field.subtract(proof, half), points, (mine[0], weights, mine[1]))
    assert field.add(one, other).tolist() == found.tolist()
    proof[draw.integers(3), draw.integers(gadget.proof_elements)] ^= np.uint64(1)
    proof %= np.uint64(q)
    assert not gadget.accepts(gadget.query(proof, points, (inputs, weights, rest)))


def test_a_point_at_which_a_verifier_would_learn_an_input_is_refused():
    gadget = Gadget(F40, 1, 1)
    proof = gadget.prove(np.ones((1, 1, 2), np.uint64), np.ones((1, 2), np.uint64))
    circuit = (np.ones((1, 1, 2), np.uint64), np.ones((1, 1), np.uint64), np.zeros(1, np.uint64))
    with pytest.raises(ValueError, match="root of unity"):
        gadget.query(proof, np.array([F40.modulus - 1], np.uint64), circuit)


@pytest.mark.parametrize("field", FIELDS)
def test_words_that_are_no_elements_are_skipped_or_refused(field):
    z = field.element_bytes
    words = [field.modulus, 5, 2 ** (8 * z) - 1, field.modulus - 1, 7, 8]
    listed = b"".join(word.to_bytes(z, "little") for word in words)
    place = 0

    def read(count):
        nonlocal place
        place += count
        return listed[place - count : place]

    assert field.draw(read, 4).tolist() == [5, field.modulus - 1, 7, 8]
    with pytest.raises(ValueError, match="not an element"):
        field.decode(listed)


def test_the_stream_of_the_published_vector():
    vector = VECTORS["XofTurboShake128"]
    seed, tag, binder = (bytes.fromhex(vector[name]) for name in ("seed", "dst", "binder"))
    assert vector["derived_seed"] == stream(seed, tag, binder)(32).hex()
    drawn = F128.draw(stream(seed, tag, binder), vector["length"])
    assert vector["expanded_vec_field128"] == told(F128.encode(drawn))


def prio3(name):
    """Return a vector, and the instance of Prio3 that it is about."""
    vector = VECTORS[name]
    kinds = {"Prio3SumVecWithMultiproof": ShortSumVec, "Prio3SumVec": SumVec, "Prio3Count": Count}
    kind = kinds.get(name.split("_")[0], Histogram)(**vector)
    many = 3 if kind.field is F64 and kind.joint else 1
    return vector, Prio3(kind, bytes.fromhex(vector["ctx"]), vector["shares"], many)


@pytest.mark.parametrize(
    "name", [name for name in VECTORS if name[-2:-1] == "_" and name.startswith("Prio3")]
)
def test_prio3_agrees_with_its_published_vectors(name):
    vector, parties = prio3(name)
    key, total = bytes.fromhex(vector["verify_key"]), [0] * parties.shares
    for report in vector["reports"]:
        nonce, rand = (bytes.fromhex(report[each]) for each in ("nonce", "rand"))
        public, shares = parties.shard(report["measurement"], nonce, rand)
        assert report["public_share"] == public.hex()
        assert report["input_shares"] == [*map(told, shares)]
        numbered = enumerate(shares)
        prepared = [
            parties.prepare(number, key, nonce, public, share) for number, share in numbered
        ]
        outputs, seeds, verifiers = zip(*prepared, strict=True)
        assert report["verifier_shares"] == [*map(told, verifiers)]
        message = parties.decide(verifiers)
        assert report["verifier_messages"] == message.hex()
        for number, (output, seed) in enumerate(zip(outputs, seeds, strict=True)):
            parties.finish(seed, message)
            assert report["out_shares"][number] == told(parties.field.encode(output))
            total[number] = parties.field.add(output, np.array([0], output.dtype) + total[number])
    assert vector["agg_shares"] == [told(parties.field.encode(each)) for each in total]
    summed = np.array(total, object).sum(0) % parties.field.modulus
    assert np.array(vector["agg_result"]).reshape(-1).tolist() == summed.tolist()


@pytest.mark.parametrize("name", [name for name in VECTORS if "_bad_" in name])
def test_prio3_refuses_its_published_forgeries(name):
    vector, parties = prio3(name)
    (report,) = vector["reports"]
    key, nonce, public, *shares = (
        bytes.fromhex(each)
        for each in (vector["verify_key"], report["nonce"], report["public_share"],
                     *report["input_shares"])
    )  # fmt: skip
    numbered = enumerate(shares)
    prepared = [parties.prepare(number, key, nonce, public, share) for number, share in numbered]
    told_shares = [told(verifier) for *_, verifier in prepared]
    assert report["verifier_shares"] == told_shares[: len(report["verifier_shares"])]
    if message := report["verifier_messages"]:
        with pytest.raises(ValueError, match="joint randomness"):
            parties.finish(prepared[0][1], bytes.fromhex(message))
    else:
        with pytest.raises(ValueError, match="proof is wrong"):
            parties.decide([verifier for *_, verifier in prepared])
