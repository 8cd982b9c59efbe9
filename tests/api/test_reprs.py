"""What results look like at Python's prompt: a few lines of at most 100 letters."""

import pytest
from run_files import simple_record, write_run

import hpcfl
from hpcfl.results import reader

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


def test_what_is_made_of_runs_is_brief(runs):
    assert_brief(repr(runs[1].summary()))
    assert_brief(repr(hpcfl.compare(runs[0], runs[2])), lines=1)
