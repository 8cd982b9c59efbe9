from fractions import Fraction
from math import comb, log

import numpy as np
import pytest
from graphs import components, harary, subsets
from hypothesis import given
from hypothesis import strategies as st

from hpcfl.privacy.distributions import binomial, hypergeometric, log_binomial
from hpcfl.privacy.formulas import SparseGraph, ring_alone, ring_split
from hpcfl.privacy.population import Population
from hpcfl.privacy.simulate import connected_components, ring, simulate

EDGES = st.integers(1, 12).flatmap(
    lambda size: st.tuples(
        st.just(size),
        st.lists(st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)), max_size=20),
    )
)


@given(EDGES)
def test_components_are_those_found_by_search(graph):
    size, edges = graph
    left, right = np.array(edges, np.int64).reshape(-1, 2).T
    expected = {vertex: min(found) for found in components(range(size), edges) for vertex in found}

    assert dict(enumerate(connected_components(size, left, right).tolist())) == expected


def test_log_binomials_are_those_of_exact_integers_on_both_sides_of_the_series():
    for n in (*range(80), 1000, 70_000):
        k = np.unique(np.minimum(n, [0, 1, 2, 31, 32, 33, n // 3, n // 2, n]))
        exact = [float(log(comb(n, int(some)))) for some in k]
        assert log_binomial(n, k) == pytest.approx(exact, rel=1e-13, abs=1e-15 * n * np.log(n + 2))


def test_log_binomials_are_exact_to_ten_digits_and_impossible_outside():
    assert np.exp(log_binomial(10_000, 4) - np.log(float(comb(10_000, 4)))) == pytest.approx(1)
    exact = Fraction(comb(10_000, 5000), 2**9900)
    assert np.exp(log_binomial(10_000, 5000) - 9900 * np.log(2)) == pytest.approx(
        float(exact), rel=1e-9
    )
    assert np.isneginf(log_binomial(np.array([3, 3, 0]), np.array([4, -1, 1]))).all()
    assert log_binomial(np.array([0, 7]), np.array([0, 7])) == pytest.approx([0, 0])


def test_probabilities_at_the_edges():
    assert binomial(5, 0.0, np.arange(6)).tolist() == [1, 0, 0, 0, 0, 0]
    assert binomial(5, 1.0, np.arange(6)).tolist() == [0, 0, 0, 0, 0, 1]
    assert binomial(3, 0.25, np.arange(4)) * 64 == pytest.approx([27, 27, 9, 1])
    assert hypergeometric(5, 2, 3, np.arange(4)) * 10 == pytest.approx([1, 6, 3, 0])


def connected_by_gilbert(size, probability):
    """Gilbert (1959): 1 minus the probability that vertex 1 is in a smaller component."""
    known = [Fraction(1), Fraction(1)]
    for s in range(2, size + 1):
        smaller = (
            comb(s - 1, k - 1) * known[k] * (1 - probability) ** (k * (s - k)) for k in range(1, s)
        )
        known.append(1 - sum(smaller))
    return known[size]


@pytest.mark.parametrize("size", [2, 3, 7, 30])
@pytest.mark.parametrize("devices", [31, 1000])
def test_component_of_everybody_is_a_connected_graph(size, devices):
    graph = SparseGraph(devices, 0.5)
    together = graph.component_sizes(np.array([size]))[0, size]
    exact = connected_by_gilbert(size, Fraction(graph.pair_probability))

    # With 30 of 1000 devices this is 1e-55: a sum with a minus sign would have no digit right.
    assert together == pytest.approx(float(exact), rel=1e-9, abs=0)


@given(st.integers(2, 300), st.floats(1e-6, 1), st.data())
def test_each_value_sent_is_in_one_component(devices, alpha, data):
    survivors = np.array([data.draw(st.integers(1, devices))])
    graph = SparseGraph(devices, alpha)

    assert graph.component_sizes(survivors).sum() == pytest.approx(graph.sent, rel=1e-9)


@pytest.mark.parametrize(
    ("places", "degree"), [(3, 2), (6, 2), (9, 4), (9, 6), (10, 2), (7, 6), (6, 5)]
)
def test_ring_formulas_agree_with_all_choices_of_survivors(places, degree):
    complete = degree == places - 1
    edges = harary(places, 2 * degree if complete else degree)
    for h in range(1, places + 1):
        split = alone = 0
        chosen = [survivors for survivors in subsets(range(places)) if len(survivors) == h]
        for survivors in chosen:
            found = components(survivors, edges)
            split += len(found) > 1
            alone += sum(len(component) == 1 for component in found)

        assert ring_split(places, degree, h) == pytest.approx(split / len(chosen), rel=1e-12)
        assert ring_alone(places, degree, np.array([h]))[0] == pytest.approx(
            alone / len(chosen) / h, rel=1e-12
        )


def test_ring_split_of_many_is_what_all_terms_add_up_to():
    for places, degree, h in [(400, 20, 200), (400, 4, 200), (300, 2, 10), (1000, 60, 467)]:
        reach, terms = degree // 2, []
        for j in range(2, h + 1):
            if places - 1 - reach * j >= h - 1:
                ways = comb(h, j) * comb(places - 1 - reach * j, h - 1)
                terms.append((-1) ** j * (j - 1) * Fraction(ways, comb(places - 1, h - 1)))
        assert ring_split(places, degree, h) == pytest.approx(float(sum(terms)), rel=1e-14, abs=0)


def test_observations_do_not_depend_on_where_they_are_cut(monkeypatch):
    def everybody_in_a_line(honest, generator):
        return ring(honest.shape[1], honest.shape[1], honest, generator)

    population = Population(6, 0)
    whole = simulate(population, everybody_in_a_line, 50, 0)
    monkeypatch.setattr("hpcfl.privacy.simulate._AT_ONCE", 42)  # 7 samples at once
    cut = simulate(population, everybody_in_a_line, 50, 0)

    for seen in (whole, cut):
        assert seen.survivors.tolist() == [6] * 50
        assert seen.sample.tolist() == list(range(50))
        assert seen.size.tolist() == [6] * 50
        assert seen.components.tolist() == [1] * 50
