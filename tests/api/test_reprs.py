"""What results look like at Python's prompt: a few lines of at most 100 letters."""

import dataclasses
import importlib
import pkgutil

import numpy as np
import pytest
from run_files import simple_record, write_run

import hpcfl
from hpcfl import results, rounds, training
from hpcfl.report import brief
from hpcfl.results import ranktimes, reader
from hpcfl.results.pooling import Pool
from hpcfl.rounds.observer import RoundObserver

LINES, WIDTH = 12, 100
LONG = "a_module_of_ones_own_with_a_long_name.in_a_package:AnAggregationProtocolWithALongName"


def assert_brief(shown, lines=LINES):
    assert 0 < len(shown.splitlines()) <= lines, shown
    assert max(map(len, shown.splitlines())) <= WIDTH, shown


def holding_arrays():
    """Return the dataclasses of results that hold arrays, or what holds arrays."""
    found = {}
    packages = [*results.__path__, *rounds.__path__, *training.__path__]
    names = [f"hpcfl.{package.rpartition('/')[2]}" for package in packages]
    modules = ["hpcfl.api", "hpcfl.algorithms.aggregation.base"]
    for name in names:
        package = importlib.import_module(name)
        modules += [f"{name}.{module.name}" for module in pkgutil.iter_modules(package.__path__)]
    for name in modules:
        for kind in vars(importlib.import_module(name)).values():
            here = getattr(kind, "__module__", "") == name
            if here and isinstance(kind, type) and dataclasses.is_dataclass(kind):
                found[kind.__qualname__] = kind
    holding: set[str] = set()
    while True:
        more = {
            name
            for name, kind in found.items()
            for field in dataclasses.fields(kind)
            if "NDArray" in str(field.type) or any(held == field.type for held in holding)
        }
        if more <= holding:
            return {name: found[name] for name in sorted(holding)}
        holding |= more


# What only the inside of a round or of a training sees.
INTERNAL = {"Checkpoint", "Clients", "Enrolled", "Invited", "Scene", "Work"}
PUBLIC = {
    name: kind
    for name, kind in holding_arrays().items()
    if name not in INTERNAL and not name.startswith("_")
}


@pytest.mark.parametrize("name", PUBLIC)
def test_no_result_shows_its_arrays(name):
    """The representation that a dataclass is given prints every array."""
    assert not hasattr(PUBLIC[name].__repr__, "__wrapped__")


def test_the_search_finds_what_is_known():
    assert {"Run", "RoundRecord", "RoundResult", "Played", "Trained", "RankTimes"} <= PUBLIC.keys()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    for number in range(30):
        records = [simple_record(1e6) for _ in range(20)]
        protocol = LONG if number % 2 else "secagg"
        path = folder / f"{'a_long_name' * 15}-{number:02}.h5"
        write_run(path, records, protocol=protocol, dim=10**9)
    return hpcfl.load_many(folder)


def test_runs_are_a_line_each_and_the_middle_is_left_out(runs):
    for run in (*runs, *(reader.load(run.path) for run in runs[:2])):
        assert_brief(repr(run), lines=1)
    assert_brief(repr(runs))
    assert "<Runs: 30>" in repr(runs)
    assert "... 23 more" in repr(runs)
    assert len(repr(hpcfl.Runs(runs[:8])).splitlines()) == 9
    assert repr(hpcfl.Runs()) == "<Runs: 0>"


def test_a_run_says_what_is_wrong_with_it(tmp_path):
    write_run(tmp_path / "a.h5", [simple_record(), simple_record(validated=False)], status="failed")
    write_run(tmp_path / "b.h5", [], rounds=3, status="interrupted")
    wrong, none = hpcfl.load_many(tmp_path)

    assert repr(wrong) == (
        "<Run: sparse, N=4, d=10, 2 rounds, median 0.100 s, 1 wrong, failed, a.h5>"
    )
    assert repr(none) == "<Run: sparse, N=4, d=10, 0 rounds, interrupted, b.h5>"


def test_what_is_made_of_runs_is_brief(runs):
    assert_brief(repr(runs[1].summary()), lines=1)
    assert_brief(repr(hpcfl.compare(runs[0], runs[2])), lines=1)
    assert_brief(repr(Pool(tuple(runs))))


def test_a_long_table_shows_its_ends_and_prints_all(runs, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    table = runs[0].rounds_table()
    shown = repr(table).splitlines()

    assert max(map(len, shown)) <= WIDTH
    assert len(shown) <= 25
    assert "left out in the middle: 8 rows; print(table) shows all" in repr(table)
    assert str(table) == table.text()
    assert len(str(table).splitlines()) > 20
    few = dataclasses.replace(table, rows=table.rows[:3])
    assert repr(few) == few.text()


def test_what_progress_is_told_is_brief(tmp_path):
    told = []
    hpcfl.bench(
        *("secagg",),
        devices=50,
        dim=100,
        rounds=1,
        output=tmp_path / "run.h5",
        progress=lambda index, played: told.append(played),
    )

    assert len(told) == 3
    for played in told:
        assert_brief(repr(played), lines=1)
        assert_brief(repr(played.record), lines=1)
        assert "validated" in repr(played)


def test_training_is_brief(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    from hpcfl.comm.world import World
    from hpcfl.training import session
    from hpcfl.training.defaults import asked

    seen = []

    class Watching(RoundObserver):
        def finished(self, index, result):
            seen.append(result)

    options = asked({"algorithm": "fedavg", "rounds": 2, "epochs": 1})
    trained = session.run(World(None), options, 4, tmp_path / "run.h5", Watching())

    assert_brief(repr(trained), lines=1)
    assert "650 parameters" in repr(trained) or "parameters, 2 rounds, accuracy" in repr(trained)
    assert len(seen) == 2
    for result in seen:
        assert_brief(repr(result), lines=1)
        assert repr(result).startswith("<RoundResult: accuracy 0.")
    run = hpcfl.load(tmp_path / "run.h5")
    assert repr(run).startswith("<Run: fedavg by fedavg, N=4, d=")
    assert "accuracy 0." in repr(run)


def test_ranks_and_sums_are_brief():
    times = ranktimes.RankTimes(*[np.zeros((9, 5, 100))] * 5, *[np.zeros(9)] * 2)

    assert repr(times) == "<RankTimes: 9 rounds, 5 phases, 100 ranks>"


@pytest.mark.parametrize("length", [1, 20, 90, 300])
def test_a_line_has_room_for_whatever_it_is_told(length):
    for parts, end in ((["x" * length], ""), (["x"], "y" * length), (["x" * length], "y" * 300)):
        assert len(brief.line("Kind", *parts, end=end)) <= brief.WIDTH


def test_a_line_does_not_steer_the_terminal():
    assert "\x1b" not in brief.line("Kind", "a\x1b[2J", end="b\x1b\n")


def test_a_file_does_not_write_the_notebooks_html(tmp_path):
    write_run(tmp_path / "a.h5", [simple_record()], protocol="<script>alert(1)</script>")
    write_run(tmp_path / "b.h5", [simple_record()], protocol="secagg")
    runs = hpcfl.load_many(tmp_path)

    for shown in (runs._repr_html_(), runs[0]._repr_html_(), runs[0].rounds_table()._repr_html_()):
        assert "<table>" in shown
        assert "<script>" not in shown
        assert "&lt;script&gt;" in shown
