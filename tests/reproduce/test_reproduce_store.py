import json
import math

import pytest

from hpcfl.comm.world import connect
from hpcfl.errors import HpcflError, UsageError
from hpcfl.reproduce import session
from hpcfl.reproduce.artefact import Artefact, Scale, key
from hpcfl.reproduce.store import Store

SETTINGS = [{"devices": 5}, {"devices": 7}, {"devices": 9}]


class Counted:
    """Runs settings, notes which, and fails where it is told to."""

    def __init__(self):
        self.ran, self.failing = [], None

    def __call__(self, setting, context):
        if setting["devices"] == self.failing:
            raise HpcflError("the machine is on fire")
        self.ran.append(setting["devices"])
        return {"double": 2 * setting["devices"]}


def artefact(run):
    scales = {"paper": Scale("all", SETTINGS, 1), "small": Scale("one", SETTINGS[:1], 0.1)}
    return Artefact("some/table", "Doubles", scales, run)


def play(run, folder, scale="paper", again=False):
    session.run(connect(), artefact(run), scale, folder, None, again=again)


def test_a_run_that_failed_goes_on_with_the_setting_that_failed(tmp_path):
    run = Counted()
    run.failing = 7
    with pytest.raises(HpcflError, match="on fire"):
        play(run, tmp_path)
    assert run.ran == [5]

    run.failing = None
    play(run, tmp_path)

    assert run.ran == [5, 7, 9]
    scale, results = Store(tmp_path, "some").results(artefact(run))
    assert scale == "paper"
    assert [result.found["double"] for result in results] == [10, 14, 18]


def test_what_was_run_is_run_again_only_if_asked_for(tmp_path):
    run = Counted()
    play(run, tmp_path)
    play(run, tmp_path)
    assert run.ran == [5, 7, 9]

    play(run, tmp_path, again=True)

    assert run.ran == [5, 7, 9, 5, 7, 9]


def test_a_setting_of_two_scales_is_run_once(tmp_path):
    run = Counted()
    play(run, tmp_path, "small")
    store = Store(tmp_path, "some")
    assert store.results(artefact(run))[0] == "small"
    assert store.finished(artefact(run)) == {"paper": 1, "small": 1}

    play(run, tmp_path)

    assert run.ran == [5, 7, 9]


def test_what_is_kept_says_when_and_on_what_it_was_run(tmp_path):
    play(Counted(), tmp_path, "small")

    (entry,) = json.loads((tmp_path / "some.json").read_text())["results"]

    assert {"setting", "found", "seconds", "finished", "hpcfl_version", "ranks"} <= entry.keys()


def test_numbers_that_are_none_become_null(tmp_path):
    store = Store(tmp_path, "some")
    store.add({"a": 1}, {"curve": [1.0, math.nan], "deep": {"x": math.inf}}, {})

    (entry,) = json.loads(store.path.read_text())["results"]

    assert entry["found"] == {"curve": [1.0, None], "deep": {"x": None}}


def test_settings_are_the_same_whatever_the_order_of_their_names():
    assert key({"a": 1, "b": 2.0}) == key({"b": 2.0, "a": 1})
    assert key({"a": 1}) != key({"a": 2})


@pytest.mark.parametrize("text", ["", "[]", '{"results": [{}]}', '{"results": 3}', "\x00"])
def test_a_damaged_file_is_refused_with_its_name(tmp_path, text):
    (tmp_path / "some.json").write_text(text)

    with pytest.raises(HpcflError, match=r"some\.json cannot be read"):
        Store(tmp_path, "some")


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(UsageError, match="cannot write"):
        Store(tmp_path / "file" / "folder", "some").add({"a": 1}, {}, {})
