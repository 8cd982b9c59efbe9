import sys
from dataclasses import replace

import numpy as np
import pytest

from hpcfl.algorithms.aggregation import find
from hpcfl.benchmark import session
from hpcfl.comm.world import World
from hpcfl.options.bench import BenchOptions
from hpcfl.plots import tradeoff
from hpcfl.plots.exposure import draw, exposed_alone, lacking
from hpcfl.privacy.exposure import exposure
from hpcfl.privacy.population import Population
from hpcfl.results import load


def run_of(folder, protocol, **options):
    found = []
    asked = BenchOptions(protocol, dim=200, rounds=2, warmup=0, **options)
    session.run(World(None), asked, [20], folder, found.append)
    return load(found[0])


@pytest.mark.parametrize(
    ("protocol", "options", "known"),
    [
        *(("fedavg", {}, {}), ("secagg", {}, {})),
        ("secagg", {"degree": 14, "dropout": 0.1}, {"degree": 14}),
        ("prf", {"dropout": 0.0}, {}),
        ("sparse", {"alpha": 0.2, "dropout": 0.1}, {"alpha": 0.2}),
        ("sparse", {"alpha": 0.2, "degree": 10}, {"alpha": 0.2, "degree": 10}),
        ("cohort", {"alpha": 0.3, "degree": 14}, {"alpha": 0.3, "degree": 14}),
        ("secagg-graph", {"degree": 14, "dropout": 0.1}, {"degree": 14}),
    ],
)
def test_what_is_exposed_follows_from_the_options_of_the_run(tmp_path, protocol, options, known):
    run = run_of(tmp_path, protocol, **options)
    population = Population(20, 6, options.get("dropout", 0.3))

    masking = find(protocol).masking(20, known.get("alpha", 0.1), known.get("degree"))
    expected = exposure(protocol, masking, population, samples=10).alone_of_sent

    assert lacking(run) is None
    assert exposed_alone(run) == expected.value


def test_a_point_lies_where_bytes_and_exposure_say(tmp_path):
    runs = [run_of(tmp_path, "fedavg"), run_of(tmp_path, "secagg")]
    axes = draw(runs).axes[0]

    lines = [line for line in axes.get_lines() if len(line.get_xdata())]
    points = [(line.get_xdata()[0], line.get_ydata()[0]) for line in lines]
    sent = [run.bytes_up.sum(axis=1)[run.survived].mean() / 1e3 for run in runs]
    assert axes.get_xlabel().endswith("kB")
    assert [x for x, _ in points] == pytest.approx(sent)
    assert [y for _, y in points] == [100, 0]


def test_a_file_does_not_choose_which_code_is_loaded(tmp_path):
    run = replace(run_of(tmp_path, "fedavg"), protocol="antigravity:Flight")

    assert "name its class with --protocol" in (lacking(run) or "")
    assert "antigravity" not in sys.modules


def test_a_point_of_the_tradeoff_lies_where_bytes_and_cpu_of_each_party_say(tmp_path):
    runs = [run_of(tmp_path, name, dropout=0.1) for name in ("secagg", "assisted", "committee")]
    (axes,) = tradeoff.draw(runs).axes
    points = {
        (line.get_xdata()[0], line.get_ydata()[0]): line.get_markerfacecolor()
        for line in axes.get_lines()
        if len(line.get_xdata()) == 1
    }
    expected = {}
    for run in runs:
        sent, spent = run.bytes_up.sum(axis=1), run.cpu_seconds[..., :-1].sum(axis=1)
        member = np.zeros_like(run.survived) if run.in_committee is None else run.in_committee
        device, other = run.survived & ~member, run.survived & member
        expected[(sent[device].mean() / 1e3, 1e3 * spent[device].mean())] = True
        if other.any():
            expected[(sent[other].mean() / 1e3, 1e3 * spent[other].mean())] = False
    helped = runs[1]
    place = helped.helper_bytes_up.sum(axis=1).mean() / 1e3
    expected[(place, 1e3 * helped.helper_cpu_seconds.sum(axis=1).mean())] = False
    for point, filled in expected.items():
        (colour,) = [found for place, found in points.items() if place == pytest.approx(point)]
        assert (colour != "white") == filled
    assert len(points) == len(expected)
    names = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert names == ["secagg", "assisted", "committee"]
