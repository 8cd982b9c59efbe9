"""PINE: the published vectors, and what is accepted and refused, also from hostile provers."""

import hashlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcfl.crypto import pine
from hpcfl.crypto.pine import NotShort, Pine, Report, largest_bound
from hpcfl.crypto.proofs import F32, F40, F64
from hpcfl.errors import UsageError

VECTORS = json.loads((Path(__file__).parent / "vectors/pine.json").read_text())
FIELDS = {"32": F32, "40": F40, "64": F64}
KEY, NONCE = bytes(range(32)), bytes(range(16))
RAND = bytes(range(224))


def told(value):
    """Return bytes as the vectors tell them: long ones by their SHA-256."""
    return value.hex() if len(value) <= 128 else "sha256:" + hashlib.sha256(value).hexdigest()


def play(parties, report, nonce=NONCE, verifiers=lambda both: both):
    """Return the servers' shares of the vector, or raise what a server raises."""
    shares = enumerate(report[1:])
    both = [parties.prepare(number, KEY, nonce, report.public, each) for number, each in shares]
    seeds = parties.decide(*verifiers([each.verifier for each in both]))
    return [parties.finish(each, seeds) for each in both]


def revealed(parties, report):
    """Return the vector that the two shares add up to."""
    modulus = parties.field.modulus
    summed = parties.field.add(*play(parties, report)).astype(object)
    return np.where(summed > modulus // 2, summed - modulus, summed).tolist()


@pytest.mark.parametrize("name", [name for name in VECTORS if name != "source"])
def test_the_published_vectors(name):
    vector = VECTORS[name]
    field, bound = FIELDS[name[4:6]], vector["bound"]
    chunks, proofs = tuple(vector["chunks"]), tuple(vector["proofs"])
    parties = Pine(vector["dimension"], bound, field=field, chunks=chunks, proofs=proofs)
    key, total = bytes.fromhex(vector["verify_key"]), np.zeros((2, parties.dim), np.uint64)
    for case in vector["reports"]:
        nonce, rand = bytes.fromhex(case["nonce"]), bytes.fromhex(case["rand"])
        report = parties.shard(np.array(case["measurement"]), nonce, rand)
        assert case["public_share"] == report.public.hex()
        assert case["input_shares"] == [told(report.leader), told(report.helper)]
        shares = enumerate(report[1:])
        both = [parties.prepare(number, key, nonce, report.public, each) for number, each in shares]
        assert case["prep_shares"] == [told(each.verifier) for each in both]
        seeds = parties.decide(*(each.verifier for each in both))
        assert case["prep_message"] == seeds.hex()
        outputs = np.stack([parties.finish(each, seeds) for each in both])
        assert case["out_shares"] == [told(field.encode(each)) for each in outputs]
        total = field.add(total, outputs)
    assert vector["agg_shares"] == [told(field.encode(each)) for each in total]
    assert vector["agg_result"] == field.add(*total).tolist()


def test_sizes_of_the_messages():
    parties = Pine(165_000, 7_500)
    assert (parties.leader_bytes, parties.verifier_bytes) == (849_734, 7_884)
    report = (small := Pine(10, 100)).shard(np.arange(10), NONCE, RAND)
    sizes = small.public_bytes, small.leader_bytes, small.helper_bytes
    assert sizes == tuple(map(len, report))
    prepared = small.prepare(1, KEY, NONCE, report.public, report.helper)
    assert (small.verifier_bytes, small.seeds_bytes) == (
        len(prepared.verifier),
        len(prepared.seeds),
    )


def of_norm(draw, dim, norm):
    """Return a random integer vector of at most a norm, and hardly less."""
    vector = draw.standard_normal(dim)
    return np.trunc(vector * (norm / np.linalg.norm(vector))).astype(np.int64)


@given(
    st.sampled_from([F32, F40, F64]), st.integers(1, 40), st.integers(0, 99), st.floats(0.001, 1)
)
def test_vectors_up_to_the_bound_are_accepted_and_recovered(field, dim, seed, part):
    draw = np.random.default_rng(seed)
    parties = Pine(dim, int(max(1, part * largest_bound(field))), field=field)
    vector = of_norm(draw, dim, parties.norm_bound)
    assert revealed(parties, parties.shard(vector, NONCE, draw.bytes(224))) == vector.tolist()
    vector[:] = 0
    vector[-1] = parties.norm_bound * draw.choice([-1, 1])
    assert revealed(parties, parties.shard(vector, NONCE, draw.bytes(224))) == vector.tolist()


@pytest.mark.parametrize("field", FIELDS.values())
def test_products_of_tests_are_exact(field):
    """Over the bounds of blocks, for vectors and shares; by the definition, bit by bit."""
    dim = 4 * pine.BLOCK + 7
    parties, seed = Pine(dim, 400, field=field), bytes(range(32))
    share = np.random.default_rng(1).integers(0, field.modulus, dim, np.uint64)
    share[:2000] = field.modulus - 1
    drawn = bytes(parties._stream(seed, pine.SIGNS)(pine.TESTS * -(-dim // 4)))
    expected = []
    for test in range(pine.TESTS):
        row = drawn[test * -(-dim // 4) :]
        signs = [{0: -1, 3: 1}.get(row[k // 4] >> 2 * (k % 4) & 3, 0) for k in range(dim)]
        expected.append(
            sum(sign * number for sign, number in zip(signs, share.tolist(), strict=True))
        )
    found = parties._products(share, seed).tolist()
    assert found == [number % field.modulus for number in expected]


def forged(parties, vector, claims, seed=1):
    """Return the report of a prover who does not check the vector, with its claims of norms."""
    norms = claims
    if len(claims) == 2:
        norms = pine._bits([claim % 2**64 for claim in claims], parties.norm_bits)
    return parties._shard(vector, norms, NONCE, np.random.default_rng(seed).bytes(224))


@pytest.mark.parametrize("field", FIELDS.values())
@pytest.mark.parametrize("factor", [1.01, 1.77, 10])
def test_longer_vectors_are_refused(field, factor):
    draw = np.random.default_rng(1)
    parties = Pine(60, largest_bound(field), field=field)
    vector = of_norm(draw, 60, factor * parties.norm_bound)
    norm, most = sum(number**2 for number in vector.tolist()), parties.norm_bound**2
    assert norm > most
    with pytest.raises(ValueError, match="above the bound"):
        parties.shard(vector, NONCE, RAND)
    rest = most - norm
    for claims in [(norm, rest), (most, 0), (norm, 0), (0, most), (norm % parties.field.modulus,
                   rest % parties.field.modulus)]:  # fmt: skip
        with pytest.raises(NotShort, match="longer"):
            play(parties, forged(parties, vector, claims))


def wrapping(draw, parties):
    """Return a long vector whose square is short modulo q, and this square."""
    q = parties.field.modulus
    vector = of_norm(draw, parties.dim, 0.9 * math.sqrt(q))
    vector[:8] = 0
    for place in range(8):
        left = q + parties.norm_bound**2 // 2 - sum(number**2 for number in vector.tolist())
        vector[place] = math.isqrt(max(0, left))
    norm = sum(number**2 for number in vector.tolist())
    assert 0 <= norm - q <= parties.norm_bound**2
    return vector, norm - q


@pytest.mark.parametrize("field", [F32, F40])
def test_vectors_whose_square_is_short_modulo_q_are_refused(field):
    parties = Pine(1000, largest_bound(field), field=field)
    for seed in range(3):
        vector, square = wrapping(np.random.default_rng(seed), parties)
        claims = square, parties.norm_bound**2 - square
        with pytest.raises(NotShort, match="longer"):
            play(parties, forged(parties, vector, claims, seed))


def test_parameters_for_which_such_vectors_would_be_accepted_are_refused(monkeypatch):
    """The draft's rule since April 2024 allows them; the attack of these tests then succeeds."""
    with pytest.raises(UsageError, match="from 1 to 470"):
        Pine(1000, 37_000, field=F32)
    monkeypatch.setattr(pine, "largest_bound", lambda field: 37_000)
    parties = Pine(1000, 37_000, field=F32)
    vector, square = wrapping(np.random.default_rng(1), parties)
    assert np.linalg.norm(vector) > 1.77 * parties.norm_bound
    report = forged(parties, vector, (square, parties.norm_bound**2 - square))
    assert revealed(parties, report) == vector.tolist()


@pytest.mark.parametrize(("field", "most"), [(F32, 470), (F40, 7_532), (F64, 30_854_650)])
def test_the_largest_bound_is_the_one_of_the_older_rule(field, most):
    def allowed(bound):
        wrap = 1
        while wrap < math.ceil(8.7 * bound) + 1:
            wrap *= 2
        return field.modulus > 81 * wrap**2

    assert allowed(most)
    assert not allowed(most + 1)
    assert Pine(3, most, field=field).wrap == 1 << math.ceil(8.7 * most).bit_length()
    for bound in (0, -1, most + 1):
        with pytest.raises(UsageError, match=f"from 1 to {most}"):
            Pine(3, bound, field=field)


def test_claims_that_are_no_bits_are_refused():
    parties = Pine(4, 100)
    vector = np.array([40, 50, 60, 1])
    norm = int(vector @ vector)
    for wrong in (2, F40.modulus - 1, F40.modulus - 2):
        norms = pine._bits([norm, 100**2 - norm], parties.norm_bits)
        assert norms[0]
        # The same two numbers, of which one has a lowest bit that is not 0 or 1.
        norms[0] = wrong
        less = (norm - wrong) % F40.modulus
        powers = [pow(2, place, F40.modulus) for place in range(parties.norm_bits)]
        norms[1] = less * pow(powers[1], -1, F40.modulus) % F40.modulus
        norms[2 : parties.norm_bits] = 0
        with pytest.raises(NotShort, match="wrong"):
            play(parties, forged(parties, vector, norms))


def test_each_condition_of_the_circuits_counts():
    """All values are zero for what an honest device encodes, and none for anything else."""
    parties, field = Pine(9, 200), F40
    vector = np.arange(-4, 5)
    norm, most = int(vector @ vector), 200**2
    share = np.append(field.reduce(vector), pine._bits([norm, most - norm], parties.norm_bits))
    products = parties._products(share[:9], KEY)
    size = parties.wrap.bit_length()
    shifted = field.add(products, np.uint64(parties.wrap - 1))
    answers = pine._bits(shifted, size).reshape(pine.TESTS, size)
    encoded = np.append(share, np.hstack([answers, np.ones((pine.TESTS, 1), np.uint64)]))

    def values(encoded, products):
        inputs, weights, rest = parties._second(encoded, products, KEY, 1)
        outputs = field.multiply(parties.products.output(inputs), weights)
        return field.add(rest, field.sum(outputs, 0))

    assert not values(encoded, products).any()
    first = share.size
    for place in (9, 9 + parties.norm_bits, first, first + size, encoded.size - 1):
        for wrong in (1 - encoded[place], np.uint64(2), np.uint64(field.modulus - 1)):
            changed = encoded.copy()
            changed[place] = wrong % np.uint64(field.modulus)
            assert values(changed, products).all()
    for test in (0, pine.TESTS - 1):
        changed = products.copy()
        changed[test] += 1
        assert values(encoded, changed).all()
    # A failed test, declared as one, and another that counts twice.
    changed = encoded.copy()
    changed[[first + size, first + 2 * size + 1]] = 0, 2
    assert values(changed, products).all()

    inputs, minus, rest = parties._first(share)
    squares = field.multiply(field.sum(parties.squares.output(inputs), 0), minus[0])
    assert not field.add(rest, squares).any()


SMALL = Pine(9, 200, chunks=(4, 8))
VECTOR = np.arange(9) * np.array([1, -1, 2] * 3)
HONEST = SMALL.shard(VECTOR, NONCE, RAND)


def test_the_honest_report_of_the_next_tests_is_accepted():
    assert revealed(SMALL, HONEST) == VECTOR.tolist()


def refuses(place, change):
    """Check that a report and nonce, end to end, are refused with one byte changed."""
    parts = [bytearray(part) for part in (*HONEST, NONCE)]
    for part in parts:
        if place < len(part):
            part[place] ^= change
            break
        place -= len(part)
    *report, nonce = map(bytes, parts)
    with pytest.raises(ValueError, match=r"longer|different|not an element"):
        play(SMALL, Report(*report), nonce)


@given(st.integers(0, sum(map(len, HONEST)) + 15), st.integers(1, 255))
def test_a_changed_byte_anywhere_is_refused(place, change):
    refuses(place, change)


def test_a_changed_byte_in_each_part_of_a_report_is_refused():
    z, leader = SMALL.element_bytes, len(HONEST.public)
    bits = leader + z * SMALL.dim
    end, tests = sum(map(len, HONEST)), 2 * SMALL.norm_bits
    # A coordinate; bits of the norm, of its distance from the most, and of a test; its success.
    places = [leader, *(bits + z * k for k in (0, SMALL.norm_bits, tests))]
    places.append(bits + z * (tests + SMALL.wrap.bit_length()))
    proofs = leader + z * SMALL.elements
    places += range(proofs, proofs + z * SMALL.proof_elements, 50 * z)
    # Parts of the joint randomness; the leader's blinds, and the helper's seeds and blinds; nonce.
    places += [*range(0, leader, 32), *range(leader + SMALL.leader_bytes - 64, end, 32), end]
    for place in places:
        refuses(place, 1)


@given(st.integers(0, 1), st.integers(0, SMALL.verifier_bytes - 1), st.integers(1, 255))
def test_a_changed_byte_of_a_verifier_is_refused(number, place, change):
    def changed(both):
        both[number] = bytearray(both[number])
        both[number][place] ^= change
        return map(bytes, both)

    with pytest.raises(ValueError, match=r"longer|different|not an element"):
        play(SMALL, HONEST, verifiers=changed)


def test_servers_with_different_keys_refuse():
    leader = SMALL.prepare(0, KEY, NONCE, HONEST.public, HONEST.leader)
    helper = SMALL.prepare(1, KEY[::-1], NONCE, HONEST.public, HONEST.helper)
    with pytest.raises(NotShort, match="longer"):
        SMALL.decide(leader.verifier, helper.verifier)


def test_shares_of_two_reports_do_not_mix():
    other = SMALL.shard(VECTOR, NONCE, RAND[::-1])
    for report in (
        Report(HONEST.public, HONEST.leader, other.helper),
        Report(HONEST.public, other.leader, HONEST.helper),
        Report(other.public, *HONEST[1:]),
    ):
        with pytest.raises(NotShort, match=r"longer|different"):
            play(SMALL, report)


def test_malformed_payloads_are_refused():
    public, leader, helper = HONEST
    for number, whole in [(0, leader), (1, helper)]:
        for share, both, nonce in [
            (whole[:-1], public, NONCE),
            (whole + b"\0", public, NONCE),
            (whole, public[:-1], NONCE),
            (whole, public, NONCE[:-1]),
            (b"", public, NONCE),
        ]:
            with pytest.raises(ValueError, match="bytes"):
                SMALL.prepare(number, KEY, nonce, both, share)
    too_large = F40.modulus.to_bytes(5, "little")
    with pytest.raises(ValueError, match="not an element"):
        SMALL.prepare(0, KEY, NONCE, public, too_large + leader[5:])
    verifier = SMALL.prepare(0, KEY, NONCE, public, leader).verifier
    with pytest.raises(ValueError, match="not an element"):
        SMALL.decide(verifier, too_large + verifier[5:])
    with pytest.raises(ValueError, match="bytes"):
        SMALL.decide(verifier, verifier[1:])


def test_arguments_of_the_wrong_size_are_refused():
    for vector, nonce, rand in [
        (VECTOR[1:], NONCE, RAND),
        (VECTOR, NONCE[1:], RAND),
        (VECTOR, NONCE, RAND[1:]),
    ]:
        with pytest.raises(ValueError, match="wrong size"):
            SMALL.shard(vector, nonce, rand)
