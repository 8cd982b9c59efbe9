"""What results look like at Python's prompt: a few lines of at most 100 letters."""

import dataclasses

import numpy as np
import pytest
from run_files import simple_record, write_run

import hpcfl
from hpcfl.results import ranktimes, reader
from hpcfl.results.pooling import Pool

LINES, WIDTH = 12, 100
LONG = "a_module_of_ones_own_with_a_long_name.in_a_package:AnAggregationProtocolWithALongName"


def assert_brief(shown, lines=LINES):
    assert 0 < len(shown.splitlines()) <= lines, shown
    assert max(map(len, shown.splitlines())) <= WIDTH, shown


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


def test_ranks_and_sums_are_brief():
    times = ranktimes.RankTimes(*[np.zeros((9, 5, 100))] * 5, *[np.zeros(9)] * 2)

    assert repr(times) == "<RankTimes: 9 rounds, 5 phases, 100 ranks>"
