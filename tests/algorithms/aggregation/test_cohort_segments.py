"""Who sends which coordinates in a cohort, against runs that are written out and searched."""

from __future__ import annotations

import itertools
from fractions import Fraction
from math import comb, gcd

import numpy as np
import pytest
import slow_ring
from hypothesis import given
from hypothesis import strategies as st
from protocol_rounds import make, play

from hpcfl.algorithms.aggregation.cohort import Floor, Segments, golden_step
from hpcfl.algorithms.aggregation.promises import Outcome
from hpcfl.errors import PromiseError, UsageError

# Fewer coordinates than segments, as many, multiples, and what does not divide.
DIMS = (1, 2, 5, 7, 12, 19)
SHAPES = [(dim, ring, m) for dim in DIMS for ring in (1, 2, 6, 7) for m in range(1, ring + 1)]


def test_what_two_devices_have_in_common_is_the_intersection_of_their_runs():
    """Each coordinate once, and both sides have the same coordinates in the same order."""
    for dim, ring, size in SHAPES:
        segments = Segments(dim, ring, size)
        runs = [slow_ring.run(dim, ring, size, position) for position in range(ring)]
        assert runs == [segments.coordinates(position).tolist() for position in range(ring)]
        assert [len(one) for one in runs] == [segments.length(position) for position in range(ring)]
        # Every coordinate is sent by exactly m devices.
        assert [at for at in range(dim) for _ in range(size)] == sorted(itertools.chain(*runs))
        for one in range(ring):
            assert [] == list(segments.common(one, one))
            for other in range(one):
                mine, theirs = segments.common(one, other), segments.common(other, one)
                parts = {first: runs[one][start:stop] for first, start, stop in mine}
                mirrored = {not first: runs[other][start:stop] for first, start, stop in theirs}
                assert parts == mirrored
                both = [at for part in parts.values() for at in part]
                assert len({*both}) == len(both)
                assert {*runs[one]} & {*runs[other]} == {*both}
                for first, part in parts.items():
                    leads = [slow_ring.leads(dim, ring, at, one, other) for at in part]
                    assert [first] * len(part) == leads


@given(st.integers(1, 2**32 - 1), st.integers(1, 2**31), st.data())
def test_segments_are_of_equal_length_to_one_coordinate_at_any_size(dim, ring, data):
    size = data.draw(st.integers(1, ring))
    position = data.draw(st.integers(0, ring - 1))
    segments = Segments(dim, ring, size)

    assert 0 == segments.bound(0)
    assert dim == segments.bound(ring)
    lengths = {segments.bound(position + 1) - segments.bound(position)}
    lengths |= {segments.bound(1), dim - segments.bound(ring - 1)}
    assert lengths <= {dim // ring, -(-dim // ring)}
    # Around the ring and back, also before position 0.
    for turns in (-2, -1, 1, 2):
        moved = segments.bound(position + turns * ring)
        assert turns * dim == moved - segments.bound(position)
    assert abs(segments.length(position) - dim * size / ring) < 1
    assert dim == Segments(dim, ring, ring).length(position)


@pytest.mark.parametrize(
    ("devices", "alpha", "least"), [(10, 0.1, "0.2"), (10, 0.149, "0.2"), (100, 0.014, "0.02")]
)
def test_a_cohort_of_one_is_refused_with_the_least_alpha_that_is_not(devices, alpha, least):
    sentence = (
        f"a cohort of alpha N = {alpha:g} x {devices} devices hides nobody: raise alpha to at "
        f"least {least}"
    )
    with pytest.raises(UsageError) as caught:
        make("cohort", devices, 50, alpha=alpha)
    assert sentence == str(caught.value)
    assert 2 == make("cohort", devices, 50, alpha=float(least)).cohort_size


# 200 devices: 20 collude and 20 drop out, whoever they are. All are neighbours.
FLOOR = {"alpha": 0.3, "dropout": 0.1, "gamma": 0.1, "security_bits": 20}
N, COLLUDING, DROPPED = 200, 20, 20


def tail(special, size, numbers):
    """Return how likely it is that so many of a cohort's devices are among some, exactly."""
    ways = sum(comb(special, k) * comb(N - special, size - k) for k in numbers if k <= size)
    return Fraction(ways, comb(N, size))


def colluding_at_most(size, bits):
    """Return what no cohort of a round has more colluders than, by a union bound over all."""
    return next(
        most
        for most in range(size + 1)
        if N * tail(COLLUDING, size, range(most + 1, size + 1)) <= Fraction(1, 2**bits)
    )


def test_a_floor_reckons_with_the_worst_colluders_of_any_cohort():
    protocol = make("cohort", N, 5, min_cohort=10, **FLOOR)
    (floor,) = [one for one in protocol.promises() if isinstance(one, Floor)]
    most = colluding_at_most(60, 20)

    assert (most, 10 + most) == (floor.colluding, floor.least)
    chance = float(N * tail(COLLUDING, 60, range(most + 1, 61)))
    everybody = Outcome(N, N, np.full(N, 60))
    assert chance == pytest.approx(floor.failure(everybody))
    assert f"at least {10 + most} survive, or devices refuse to unmask" in floor.claim
    for fewest, kept in ((10 + most, True), (9 + most, False)):
        cohorts = np.full(N, 60)
        cohorts[77] = fewest
        assert kept == (floor.broken(Outcome(N, 180, cohorts)) is None)


def all_linked(order, size, neighbours):
    """Return whether any two devices of any stretch of a ring are neighbours, counting places."""
    ring = len(order)
    cohorts = [{order[(start + k) % ring] for k in range(size)} for start in range(ring)]
    assert all(len(cohort) == size for cohort in cohorts)
    return all(cohort - {id} <= neighbours[id] for cohort in cohorts for id in cohort)


@pytest.mark.parametrize(("devices", "size"), [(9, 3), (10, 6), (10, 10), (15, 8)])
def test_with_a_floor_all_of_a_cohort_are_neighbours_or_the_degree_is_refused(devices, size):
    """So that those who survive are linked, whoever they are; without a floor, nothing is said."""
    options = {"alpha": size / devices, "dropout": 0.0, "gamma": 0.0, "security_bits": 10}
    # All have no more than the other devices, and who asks gives an even number.
    enough = min(2 * (size - 1), devices // 2 * 2)
    for degree in range(2, devices + 3, 2):
        # Counted along the ring: everybody is where its number says.
        order = list(range(devices))
        neighbours = {id: {*slow_ring.slots(order, id, degree)} - {id} for id in order}
        linked = all_linked(order, size, neighbours)
        assert linked == (degree >= min(2 * (size - 1), devices - 1))
        make("cohort", devices, 40, degree=degree, **options)
        if not linked:
            words = f"all devices of a cohort are linked, .* give --degree {enough}, or leave it"
            with pytest.raises(UsageError, match=words):
                make("cohort", devices, 40, degree=degree, min_cohort=2, **options)
            # The degree that is named is accepted.
            degree = enough
        protocol = make("cohort", devices, 40, degree=degree, min_cohort=2, **options)
        assert protocol.topology.degree == min(degree, devices - 1)


# Of twelve devices one may collude and one is planned to drop out; of cohorts of eight, at least
# 5 + 1 must survive.
SMALL = {"alpha": 2 / 3, "dropout": 0.1, "gamma": 0.1, "min_cohort": 5, "security_bits": 10}


def neighbours_gone(count):
    """Return a protocol, and dropouts that are next to each other on its ring."""
    protocol = make("cohort", 12, 24, correctness_bits=3, **SMALL)
    order = play(protocol, before="share_keys").order()
    return protocol, dict.fromkeys(order[2 : 2 + count], "masked_input")


def test_a_round_with_too_few_survivors_of_a_cohort_ends_before_anything_is_revealed():
    protocol, dropouts = neighbours_gone(2)
    played = play(protocol, dropouts=dropouts)
    assert 6 == played.server.survivors_of_cohorts().min()
    played.goes_on()

    protocol, dropouts = neighbours_gone(3)
    with pytest.raises(PromiseError, match="a cohort of 8 devices has 5 survivors, of which 1 may"):
        play(protocol, dropouts=dropouts)


@given(st.integers(1, 2**32 - 1))
def test_coordinates_are_dealt_out_in_steps_that_reach_all_of_them(dim):
    step = golden_step(dim)

    assert 1 == gcd(step, dim)
    assert 1 <= step <= max(1, dim - 1)
    # Of 40 numbers in a row one has no divisor in common with a number of at most nine primes, and
    # the product of the first ten primes is above 2**32.
    assert abs(step - dim * (5**0.5 - 1) / 2) <= 21
    dealt = [int(Segments(dim, 1, 1).dealt(place, 1)[0]) for place in (0, 1, dim - 1)]
    assert [0, step % dim, (dim - 1) * step % dim] == dealt


@pytest.mark.parametrize("dim", [1, 2, 8191, 8192, 8193, 20_000])
def test_places_are_dealt_alike_within_a_block_and_beyond_it(dim):
    step = golden_step(dim)
    for start in (0, 1, dim - 1, dim, 2 * dim - 1):
        wanted = [place * step % dim for place in range(start, start + dim)]
        assert Segments(dim, 1, 1).dealt(start, dim).tolist() == wanted
    by_place = np.arange(dim)
    assert Segments(dim, 1, 1).in_coordinates(by_place)[wanted[:1]] == (2 * dim - 1) % dim


def test_the_server_agrees_only_for_pairs_that_share_coordinates():
    """Of all neighbours of a dropped device, few share coordinates; agreements are what costs."""
    protocol = make("cohort", 30, 60, alpha=0.1)
    server = play(protocol, np.zeros((30, 60)), dict.fromkeys(range(5), "masked_input")).server
    position = server._links.position.tolist()
    for dropped in range(5):
        near = [
            peer
            for peer in server.survivors
            if any(protocol.segments.common(position[dropped], position[peer]))
        ]
        assert len(near) <= 4 < len(server._links.neighbours(dropped, server.state.survived))
        assert server._masked_with(dropped) == near
