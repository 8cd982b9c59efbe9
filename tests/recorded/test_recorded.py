"""What is rebuilt moves the same bytes and writes the same files as before."""

import json

import epsilons
import pytest
import recording

from hpcfl.algorithms.aggregation import PROTOCOLS

RECORDED = json.loads(recording.FILE.read_text())
EPSILONS = json.loads(epsilons.FILE.read_text())


def test_everything_that_is_run_was_recorded():
    assert [*recording.RUNS] == [*RECORDED["wire"]]
    assert [*recording.FILES] == [*RECORDED["file"]]


def test_every_protocol_is_recorded_whose_bytes_follow_from_the_seed():
    recorded = {options["protocol"] for options in recording.RUNS.values()}

    assert {*PROTOCOLS} == recorded - {"dp-fedavg"} | recording.NOT_RECORDED


@pytest.mark.parametrize("name", recording.RUNS)
def test_a_seeded_run_moves_the_bytes_that_were_recorded(name):
    assert RECORDED["wire"][name] == recording.wire(recording.RUNS[name])


@pytest.mark.parametrize("name", recording.FILES)
def test_a_seeded_run_writes_the_file_that_was_recorded(name, tmp_path):
    assert RECORDED["file"][name] == recording.file(recording.RUNS[name], tmp_path)


def test_every_setting_has_the_epsilons_that_were_recorded():
    assert {setting: epsilons.printed(setting) for setting in epsilons.SETTINGS} == EPSILONS
