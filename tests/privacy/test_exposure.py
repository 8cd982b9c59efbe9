from __future__ import annotations

import json
import math
from itertools import combinations, permutations, product

import numpy as np
import pytest
from graphs import Sums, components, harary, honest_survivors, subsets

from hpcfl.algorithms.aggregation import find
from hpcfl.errors import UsageError
from hpcfl.privacy import exposure as exposures
from hpcfl.privacy.population import Population

NAMES = (
    "contributors",
    "sole",
    "sole_of_dim",
    "split",
    "sent",
    "alone_of_sent",
    "alone_of_dim",
    "alone_at_coordinate",
    "mean_set",
)
MODELS = [("exact", 0.0), ("exact", 0.4), ("bernoulli", 0.3), ("targeted", 0.2)]


def exposure(protocol, population, alpha=0.1, degree=None, **options):
    masking = find(protocol).masking(population.devices, alpha, degree)
    return exposures.exposure(protocol, masking, population, **options)


def formulas(found):
    known = {name: getattr(found, name).formula for name in NAMES}
    return {name: value for name, value in known.items() if value is not None}


def assert_formulas_are(found, sums):
    expected = sums.expected()
    for name, value in formulas(found).items():
        assert value == pytest.approx(expected[name], rel=1e-10, abs=1e-14), name
    for size, figure in found.sizes.items():
        if figure.formula is not None:
            assert figure.formula == pytest.approx(sums.sizes().get(size, 0.0), rel=1e-10)


def sparse_case_by_case(devices, colluding, dropout, model, probability):
    pairs = list(combinations(range(devices), 2))
    sums = Sums()
    for selecting in subsets(range(len(pairs))):
        chosen = [pairs[index] for index in selecting]
        weight = probability ** len(chosen) * (1 - probability) ** (len(pairs) - len(chosen))
        senders = {device for pair in chosen for device in pair}
        for honest, likely in honest_survivors(devices, colluding, dropout, model).items():
            sums.add(weight * likely, len(honest), components(honest & senders, chosen))
    return sums


@pytest.mark.parametrize(("model", "dropout"), MODELS)
@pytest.mark.parametrize(("colluding", "alpha"), [(0, 0.4), (2, 1.0)])
def test_sparse_formulas_agree_with_all_cases(model, dropout, colluding, alpha):
    found = exposure("sparse", Population(5, colluding, dropout, model), alpha=alpha, samples=10)

    assert set(formulas(found)) == set(NAMES)
    assert_formulas_are(
        found, sparse_case_by_case(5, colluding, dropout, model, probability=alpha / 4)
    )


def cohort_case_by_case(population, cohort, degree):
    """Draw each cohort in each order, as the order decides who is a neighbour."""
    edges = set(combinations(range(cohort), 2)) if degree is None else harary(cohort, degree)
    orders = list(permutations(range(population.devices), cohort))
    sums = Sums()
    cases = honest_survivors(
        population.devices, population.colluding, population.dropout, population.model
    )
    for honest, likely in cases.items():
        for order in orders:
            places = [place for place, device in enumerate(order) if device in honest]
            sums.add(likely / len(orders), len(honest), components(places, edges))
    return sums


@pytest.mark.parametrize(("model", "dropout"), MODELS)
@pytest.mark.parametrize("degree", [None, 2])
def test_cohort_formulas_agree_with_all_cases(model, dropout, degree):
    population = Population(6, 2, dropout, model)
    found = exposure("cohort", population, alpha=0.65, degree=degree, samples=10)

    assert found.cohort == 4
    assert len(formulas(found)) == len(NAMES) - (degree is not None)
    assert_formulas_are(found, cohort_case_by_case(population, 4, degree))


@pytest.mark.parametrize(("model", "dropout"), MODELS)
@pytest.mark.parametrize("degree", [None, 2, 4])
def test_secagg_formulas_agree_with_all_cases(model, dropout, degree):
    population = Population(6, 1, dropout, model)
    protocol = "secagg" if degree is None else "secagg-graph"
    found = exposure(protocol, population, degree=degree, samples=10)

    assert_formulas_are(found, cohort_case_by_case(population, 6, degree))


@pytest.mark.parametrize("degree", [None, 2])
def test_of_common_coordinates_all_or_none_are_sent(degree):
    population = Population(6, 1, 0.3)
    found = exposure("common", population, alpha=0.3, degree=degree, samples=5000)
    secagg = formulas(exposure("secagg", population, degree=degree, samples=10))

    for name in ("contributors", "sole", "split", "sent", "alone_of_dim"):
        assert getattr(found, name).formula == pytest.approx(0.3 * secagg[name])
    assert found.alone_of_sent.formula == pytest.approx(secagg["alone_of_sent"])
    for name in NAMES:
        figure = getattr(found, name)
        if figure.formula is not None:
            assert abs(figure.difference) < 5 * figure.standard_error, name


@pytest.mark.parametrize(("model", "dropout"), MODELS)
def test_fedavg_hides_nothing(model, dropout):
    found = exposure("fedavg", Population(4, 1, dropout, model), samples=10)
    sums = Sums()
    for honest, likely in honest_survivors(4, 1, dropout, model).items():
        sums.add(likely, len(honest), components(honest, []))

    assert_formulas_are(found, sums)
    assert found.alone_of_sent.formula == found.alone_of_sent.simulation == 1


def test_simulation_agrees_with_the_formulas():
    for (protocol, devices, colluding, options), (model, dropout) in product(
        (
            ("fedavg", 10, 3, {}),
            ("secagg", 10, 3, {}),
            ("secagg-graph", 30, 10, {"degree": 4}),
            ("secagg-graph", 31, 10, {"degree": 8}),
            ("sparse", 30, 10, {"alpha": 0.1}),
            ("sparse", 30, 0, {"alpha": 1.0}),
            ("sparse", 100, 33, {"alpha": 0.1}),
            ("sparse", 30, 10, {"alpha": 0.5, "degree": 6}),
            ("sparse", 9, 2, {"alpha": 0.9, "degree": 2}),
            ("sparse", 2, 0, {"alpha": 1.0}),
            ("cohort", 30, 10, {"alpha": 0.2}),
            ("cohort", 40, 10, {"alpha": 0.5, "degree": 4}),
            ("cohort", 5, 1, {"alpha": 0.2}),
        ),
        MODELS,
    ):
        population = Population(devices, colluding, dropout, model)
        found = exposure(protocol, population, samples=10_000, floor=3, **options)
        figures = {name: getattr(found, name) for name in (*NAMES, "below_floor")}

        assert len(formulas(found)) >= 5
        # 4.5 standard errors: once in 150,000 figures by chance, and the seed is fixed.
        for name, figure in figures.items():
            if figure.formula is not None:
                assert abs(figure.difference) <= 4.5 * figure.standard_error + 1e-9, name
        values = found.samples * found.contributors.simulation
        for size, figure in found.sizes.items():
            if figure.formula is not None:
                rare = math.sqrt(figure.formula * size / values)
                assert abs(figure.difference) <= 4.5 * max(figure.standard_error, rare) + 1e-9, size


# --- Values known from elsewhere ---


@pytest.mark.parametrize(
    ("devices", "dropout", "theorem_2", "sole_percent", "count"),
    [
        (25, 0.0, 1.62, "18.5", 1800),
        (25, 0.3, 1.13, "26.3", 3644),
        (50, 0.0, 3.24, "11.8", 574),
        (50, 0.3, 2.26, "21.1", 1464),
        (75, 0.0, 4.76, "6.05", 200),
        (75, 0.3, 3.33, "13.3", 626),
        (100, 0.0, 6.38, "2.60", 64),
        (100, 0.3, 4.46, "7.17", 252),
    ],
)
def test_metric_of_the_papers_figures(devices, dropout, theorem_2, sole_percent, count):
    population = Population(devices, devices // 3, dropout, "bernoulli")
    found = exposure("sparse", population, alpha=0.1, samples=10)
    decimals = len(sole_percent.partition(".")[2])

    assert round(found.theorem_2, 2) == theorem_2
    assert f"{100 * found.sole.formula:.{decimals}f}" == sole_percent
    assert round(165_000 * found.sole_of_dim.formula) == count


# --- Large populations, tiny probabilities ---


def test_a_ring_of_a_thousand_falls_apart_as_rarely_as_enumeration_cannot_see():
    found = exposure("secagg-graph", Population(1000, 333, 0.3), degree=40, samples=10)
    denser = exposure("secagg-graph", Population(1000, 333, 0.3), degree=100, samples=10)
    # About h**2 / 2 pairs of gaps, each pair of 40 places without any of the 46.7 % survivors.
    rough = 467**2 / 2 * 0.533**40

    assert rough / 3 < found.split.formula < 3 * rough
    assert 0 < denser.split.formula < 1e-22


def test_what_was_never_met_is_not_given_as_certain():
    found = exposure("secagg-graph", Population(100, 0), degree=20, samples=500)

    assert found.split.simulation == 0
    assert found.split.standard_error == 1 / 500
    assert found.alone_of_sent.standard_error == 1 / (500 * 100)


def test_estimates_spread_as_their_standard_error_says():
    """Values at one coordinate depend on each other; the standard error must allow for that."""
    runs = [
        exposure("sparse", Population(60, 10, 0.2), alpha=0.8, samples=200, seed=seed)
        for seed in range(150)
    ]
    for name in ("contributors", "alone_of_sent", "mean_set"):
        figures = [getattr(run, name) for run in runs]
        spread = np.std([figure.simulation for figure in figures])
        claimed = np.mean([figure.standard_error for figure in figures])
        assert 0.8 < spread / claimed < 1.25, name


# --- What is returned ---


def test_complete_graphs_are_not_called_regular():
    population = Population(10, 3)

    assert exposure("secagg-graph", population, degree=9, samples=10).degree is None
    assert exposure("cohort", population, alpha=0.5, degree=4, samples=10).degree is None
    assert exposure("cohort", population, alpha=0.5, degree=2, samples=10).degree == 2


def test_ranges_of_sizes_hold_all_sizes():
    found = exposure("secagg", Population(60, 20, 0.3), samples=3000)
    ranges = found.size_ranges

    assert list(ranges) == [(17, 32), (33, 64)]
    for attribute in ("formula", "simulation"):
        for low, high in ranges:
            parts = [getattr(f, attribute) for s, f in found.sizes.items() if low <= s <= high]
            assert getattr(ranges[low, high], attribute) == pytest.approx(sum(parts), abs=1e-4)


def test_floor_of_a_cohort():
    population = Population(50, 10, 0.2)
    found = exposure("cohort", population, alpha=0.2, floor=4, samples=5000)
    without = exposure("cohort", population, alpha=0.2, samples=10)
    sizes = found.sizes

    assert found.below_floor.formula == pytest.approx(sum(sizes[s].formula for s in (1, 2, 3)))
    assert 0 < found.cohort_below_floor < found.round_below_floor
    # The union bound, for as many cohorts as there are devices.
    assert found.round_below_floor <= 50.001 * found.cohort_below_floor
    assert (without.cohort_below_floor, without.round_below_floor) == (None, None)


def test_nothing_to_estimate_from_is_none():
    found = exposure("sparse", Population(10, 3), alpha=1e-9, samples=10)

    assert found.alone_of_sent.simulation is None
    assert found.alone_of_sent.difference is None
    assert found.alone_of_sent.margin is None
    assert found.alone_of_sent.value == found.alone_of_sent.formula
    assert found.contributors.simulation == 0
    json.dumps(found.as_dict(), allow_nan=False)


def test_dictionary_has_counts_and_sizes():
    found = exposure("sparse", Population(20, 5, 0.2), dim=1000, samples=500)
    plain = found.as_dict()

    assert plain["devices"] == 20
    assert plain["honest"] == 15
    assert plain["alone_count"]["formula"] == 1000 * found.alone_of_dim.formula
    assert plain["sole_count"]["simulation"] == 1000 * found.sole_of_dim.simulation
    assert plain["sizes"][0]["size"] == 1
    assert plain["size_ranges"][0] | {"smallest": 1, "largest": 1} == plain["size_ranges"][0]
    assert plain["contributors"]["difference"] == found.contributors.difference
    assert json.loads(json.dumps(plain)) == plain


@pytest.mark.parametrize(
    ("protocol", "options", "words"),
    [
        ("top-k", {}, "choose one of fedavg"),
        ("sparse", {"alpha": 0.0}, "alpha is 0.0"),
        ("sparse", {"alpha": 1.1}, "alpha is 1.1"),
        ("sparse", {"alpha": math.nan}, "alpha is nan"),
        ("secagg-graph", {}, "give a degree"),
        ("secagg-graph", {"degree": 3}, "even number"),
        ("secagg-graph", {"degree": 0}, "even number"),
        ("fedavg", {"degree": 4}, "leave it out"),
        ("prf", {"degree": 4}, "leave the degree out"),
    ],
)
def test_impossible_parameters_are_refused(protocol, options, words):
    with pytest.raises(UsageError, match=words):
        exposure(protocol, Population(10, 3), **options)
