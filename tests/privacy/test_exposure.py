"""Exposure by formula and by simulation, against every case of small populations."""

import json
from collections import Counter
from itertools import combinations, permutations
from math import comb

import pytest

from hpcfl.algorithms.aggregation import find
from hpcfl.errors import UsageError
from hpcfl.options.protocols import ProtocolOptions
from hpcfl.privacy import exposure as exposures
from hpcfl.privacy.exposure import FIGURES
from hpcfl.privacy.population import Population

MODELS = [("exact", 0.0), ("exact", 0.4), ("bernoulli", 0.3), ("targeted", 0.2)]


def exposure(protocol, population, alpha=0.1, degree=None, **options):
    masking = find(protocol).masking(
        population.devices, ProtocolOptions(alpha=alpha, degree=degree)
    )
    return exposures.exposure(protocol, masking, population, **options)


def assert_is(found, cases, formulas):
    """Compare formulas to ten digits, and all simulations within 4.5 standard errors."""
    right, known = expected(cases), 0
    for name in FIGURES:
        figure = found.figures[name]
        assert abs(figure.simulation - right[name]) <= 4.5 * figure.standard_error + 1e-9, name
        if figure.formula is not None:
            known += 1
            assert figure.formula == pytest.approx(right[name], rel=1e-10, abs=1e-14), name
    assert known >= formulas


def components(vertices, edges):
    """Return the connected components of a graph by search."""
    neighbours: dict[int, set[int]] = {vertex: set() for vertex in vertices}
    for left, right in edges:
        if left in neighbours and right in neighbours:
            neighbours[left].add(right)
            neighbours[right].add(left)
    found, left_over = [], set(neighbours)
    while left_over:
        todo, component = [left_over.pop()], set()
        while todo:
            vertex = todo.pop()
            component.add(vertex)
            todo += neighbours[vertex] & left_over
            left_over -= neighbours[vertex]
        found.append(component)
    return found


def harary(size, degree):
    """Return the edges between places on a ring and their degree / 2 next ones."""
    steps = range(1, degree // 2 + 1)
    return {(min(a, b), max(a, b)) for a in range(size) for b in ((a + k) % size for k in steps)}


def subsets(things):
    things = list(things)
    for size in range(len(things) + 1):
        yield from combinations(things, size)


def honest_survivors(devices, colluding, dropout, model):
    """Return each set of honest survivors and its probability; the first devices collude."""
    honest = range(colluding, devices)
    dropped = int(dropout * devices + 1e-9)
    found: Counter[frozenset[int]] = Counter()
    for gone in subsets(range(devices)):
        if model == "bernoulli":
            weight = dropout ** len(gone) * (1 - dropout) ** (devices - len(gone))
        elif model == "exact":
            weight = (len(gone) == dropped) / comb(devices, dropped)
        else:
            alike = len(gone) == dropped and all(device >= colluding for device in gone)
            weight = alike / comb(len(honest), dropped)
        if weight:
            found[frozenset(honest) - set(gone)] += weight
    return found


def expected(cases):
    """Return the figures of an exposure from (weight, honest survivors, components)."""
    survivors = sole = several = 0.0
    values: Counter[int] = Counter()
    for weight, count, found in cases:
        survivors += weight * count
        for component in found:
            values[len(component)] += weight * len(component)
        sole += weight * (sum(map(len, found)) == 1)
        several += weight * (len(found) > 1)
    sent = sum(values.values())
    return {
        "contributors": sent,
        "sole": sole,
        "split": several,
        "sent": sent / survivors,
        "alone_of_sent": values[1] / sent,
        "alone_of_dim": values[1] / survivors,
        "mean_set": sum(size * share for size, share in values.items()) / sent,
    }


def by_selection(who, pairs, probability):
    for selecting in subsets(range(len(pairs))):
        chosen = [pairs[index] for index in selecting]
        weight = probability ** len(chosen) * (1 - probability) ** (len(pairs) - len(chosen))
        senders = {device for pair in chosen for device in pair}
        for honest, likely in honest_survivors(*who).items():
            yield weight * likely, len(honest), components(honest & senders, chosen)


def by_cohorts(who, cohort, degree):
    """Draw each cohort in each order, as the order decides who is a neighbour."""
    edges = set(combinations(range(cohort), 2)) if degree is None else harary(cohort, degree)
    orders = list(permutations(range(who[0]), cohort))
    for honest, likely in honest_survivors(*who).items():
        for order in orders:
            places = [place for place, device in enumerate(order) if device in honest]
            yield likely / len(orders), len(honest), components(places, edges)


@pytest.mark.parametrize(("model", "dropout"), MODELS)
def test_formulas_and_simulation_agree_with_all_cases(model, dropout):
    for colluding, alpha in ((0, 0.4), (2, 1.0)):
        who = (5, colluding, dropout, model)
        found = exposure("sparse", Population(*who), alpha=alpha, samples=5000)
        pairs = list(combinations(range(5), 2))
        assert_is(found, by_selection(who, pairs, alpha / 4), 5)
    who = (6, 2, dropout, model)
    for degree in (None, 2):
        found = exposure("cohort", Population(*who), alpha=0.65, degree=degree, samples=5000)
        assert found.masking.cohort == 4
        assert_is(found, by_cohorts(who, 4, degree), 5)
    who = (6, 1, dropout, model)
    for protocol, degree in (("secagg", None), ("secagg-graph", 2), ("secagg-graph", 4)):
        found = exposure(protocol, Population(*who), degree=degree, samples=5000)
        assert_is(found, by_cohorts(who, 6, degree), 5)
    everybody = [(w, len(h), components(h, [])) for h, w in honest_survivors(*who).items()]
    assert_is(exposure("fedavg", Population(*who), samples=5000), everybody, 5)


@pytest.mark.parametrize("degree", [None, 2])
def test_of_common_coordinates_all_or_none_are_sent(degree):
    population = Population(6, 1, 0.3)
    found = exposure("common", population, alpha=0.3, degree=degree, samples=5000).figures
    secagg = exposure("secagg", population, degree=degree, samples=10).figures

    for name in ("contributors", "sole", "sent", "alone_of_dim"):
        assert found[name].formula == pytest.approx(0.3 * secagg[name].formula)
        apart = abs(found[name].formula - found[name].simulation)
        assert apart < 5 * found[name].standard_error, name
    assert found["alone_of_sent"].formula == pytest.approx(secagg["alone_of_sent"].formula)


def test_metric_of_the_papers_figures():
    for devices, dropout, percent in (
        (25, 0.0, "18.5"),
        (25, 0.3, "26.3"),
        (75, 0.3, "13.3"),
        (100, 0.0, "2.60"),
        (100, 0.3, "7.17"),
    ):
        population = Population(devices, devices // 3, dropout, "bernoulli")
        found = exposure("sparse", population, alpha=0.1, samples=10).figures["sole"].formula
        assert f"{100 * found:.{len(percent.partition('.')[2])}f}" == percent


def test_one_that_colludes_opens_what_is_under_one_key():
    assert exposure("prf", Population(10, 0), samples=10).figures["alone_of_sent"].formula == 0
    assert exposure("ckks", Population(10, 0), samples=10).figures["alone_of_sent"].formula == 0
    assert exposure("ckks", Population(10, 1), samples=10).figures["alone_of_sent"].formula == 1


def test_what_was_never_met_is_not_given_as_certain():
    found = exposure("secagg-graph", Population(100, 0), degree=20, samples=500)

    assert found.figures["split"].simulation == 0
    assert found.figures["split"].standard_error == 1 / 500
    assert found.figures["alone_of_sent"].standard_error == 1 / (500 * 100)


def test_nothing_to_estimate_from_is_none(monkeypatch):
    monkeypatch.setattr(exposures, "_AT_ONCE", 42)  # several samples at once, and a rest
    found = exposure("sparse", Population(10, 3), alpha=1e-9, samples=10)

    alone = found.figures["alone_of_sent"]
    assert (alone.simulation, alone.value) == (None, alone.formula)
    written = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert (written["colluding"], written["alpha"]) == (3, 1e-9)
    monkeypatch.undo()
    (low, high, few), (*ends, many) = exposure(
        "secagg", Population(60, 20, 0.3), samples=3000
    ).sizes
    assert (low, high, *ends) == (17, 32, 33, 64)
    assert few.simulation + many.simulation == pytest.approx(1)


@pytest.mark.parametrize(
    ("protocol", "degree", "arguments", "words"),
    [
        ("top-k", None, (10, 3), "choose one of fedavg"),
        ("secagg-graph", None, (10, 3), "give a degree"),
        ("secagg-graph", 3, (10, 3), "even number"),
        ("secagg-graph", 12, (10, 3), "at most 10"),
        ("secagg", None, (1, 0), "at least 2"),
        ("secagg", None, (10, 6), "6 of 10 devices"),
    ],
)
def test_what_is_impossible_is_refused(protocol, degree, arguments, words):
    with pytest.raises(UsageError, match=words):
        exposure(protocol, Population(*arguments), degree=degree)
