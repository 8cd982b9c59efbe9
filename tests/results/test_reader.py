import h5py
import pytest
from run_files import assert_holds, random_record

from hpcfl.errors import HpcflError, UsageError
from hpcfl.results.reader import find, load


def test_rounds_that_are_not_marked_finished_are_left_out(make_run):
    path = make_run("run.h5", [random_record(seed) for seed in range(4)])
    with h5py.File(path, "r+") as file:
        file["rounds/finished"][2] = False

    # A mark after a gap vouches for nothing: rounds are written in order.
    assert_holds(load(path), [random_record(0), random_record(1)])


def one_sentence(path):
    with pytest.raises(HpcflError) as caught:
        load(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize("schema", ["hpcfl/2", "hpcfl/10"])
def test_another_major_version_is_refused(make_run, schema):
    path = make_run("run.h5", [random_record(1)])
    with h5py.File(path, "r+") as file:
        file.attrs["schema"] = schema

    assert f"schema {schema}" in one_sentence(path)


@pytest.mark.parametrize("name", ["phases", "config", "rounds/finished", "rounds/cpu_seconds"])
def test_a_missing_part_is_damage(make_run, name):
    path = make_run("run.h5", [random_record(1)])
    with h5py.File(path, "r+") as file:
        del file[name]

    assert "damaged" in one_sentence(path)


def test_a_folder_stands_for_its_files_sorted_by_name(make_run, tmp_path):
    (tmp_path / "runs.h5").mkdir()
    for name in ("runs.h5/b.h5", "runs.h5/a.h5", "z.h5"):
        make_run(name)
    (tmp_path / "runs.h5" / "notes.txt").write_text("")
    (tmp_path / "runs.h5" / "folder.h5").mkdir()
    folder, single = tmp_path / "runs.h5", tmp_path / "z.h5"

    assert find([single, folder]) == [single, folder / "a.h5", folder / "b.h5"]
    assert find([folder / "b.h5", folder]) == [folder / "b.h5", folder / "a.h5"]
    (tmp_path / "empty").mkdir()
    for name, sentence in (("empty", "no results"), ("absent", "no file or folder")):
        with pytest.raises(UsageError, match=sentence):
            find([tmp_path / name])
