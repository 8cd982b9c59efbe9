import subprocess
import sys

import h5py
import numpy as np
import pytest
from run_files import CONFIG, PHASES, assert_holds, random_record, simple_record

import hpcfl.results
from hpcfl.errors import HpcflError, UsageError
from hpcfl.results.reader import find, load, load_many


def test_a_run_says_what_it_was(make_run):
    run = load(make_run("run.h5", [random_record(0), random_record(1)], protocol="cohort"))

    assert (run.protocol, run.command) == ("cohort", "hpcfl bench cohort")
    assert (run.devices, run.dim, run.rounds) == (4, 10, 2)
    assert run.phases == list(PHASES)
    assert run.config == CONFIG
    assert run.environment["hosts"] == ["a", "b"]
    assert run.measured.tolist() == [False, True]


def test_rounds_that_are_not_marked_finished_are_left_out(make_run):
    path = make_run("run.h5", [random_record(seed) for seed in range(4)])
    with h5py.File(path, "r+") as file:
        file["rounds/finished"][2] = False

    # A mark after a gap vouches for nothing: rounds are written in order.
    assert_holds(load(path), [random_record(0), random_record(1)])


def test_a_file_that_is_open_in_the_same_program_is_read(make_run):
    path = make_run("run.h5", [random_record(0)])
    with h5py.File(path, "r"):
        assert load(path).rounds == 1


def test_a_file_without_its_number_of_parameters_says_so(make_run):
    run = load(make_run("run.h5", dim=None))

    with pytest.raises(HpcflError, match=r"run\.h5 does not record the option dim"):
        _ = run.dim


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


def test_a_minor_version_is_read(make_run):
    path = make_run("run.h5", [random_record(1)])
    with h5py.File(path, "r+") as file:
        file.attrs["schema"] = "hpcfl/1.3"
        file["training/accuracy"] = np.zeros(1)

    assert_holds(load(path), [random_record(1)])


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
    assert find(str(folder)) == [folder / "a.h5", folder / "b.h5"]
    assert find([folder / "b.h5", folder]) == [folder / "b.h5", folder / "a.h5"]


def test_nothing_found_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="no results"):
        find([tmp_path])
    with pytest.raises(UsageError, match="no file or folder"):
        find([tmp_path, tmp_path / "absent"])


def test_a_table_has_a_row_for_each_run_round_phase_and_device(make_run):
    records = [random_record(0), random_record(1)]
    paths = [
        make_run("a.h5", [simple_record()], protocol="secagg"),
        make_run("b.h5", records, protocol="sparse", dim=99),
    ]
    make_run("c.h5", rounds=3, status="failed")  # no rounds, no rows
    table = load_many(paths[0].parent)

    assert list(table.columns) == [
        *("run_id", "protocol", "devices", "dim", "round", "warmup", "validated", "phase"),
        *("device", "role", "bytes_up", "bytes_down", "messages_up", "messages_down"),
        *("wall_seconds", "cpu_seconds"),
    ]
    assert len(table) == 3 * 3 * 5
    first = table[table.run_id == load(paths[0]).run_id].set_index(["round", "phase", "device"])
    cell = first.loc[(0, "masked_input", 2)]
    assert (cell.bytes_up, cell.messages_up, cell.cpu_seconds) == (300, 1, 0.001)
    assert (cell.protocol, cell.devices, cell.dim) == ("secagg", 4, 10)
    server = first.loc[(0, "unmask", -1)]
    assert np.isnan(server.bytes_up)
    assert np.isnan(server.messages_down)
    assert (server.wall_seconds, server.cpu_seconds) == (0.004, 0.03)
    assert {"device", "server"} == {*first.role}
    assert "server" == server.role
    second = table[table.protocol == "sparse"]
    assert second.dim.unique().tolist() == [99]
    assert second.cpu_seconds.tolist() == [x for r in records for x in r.cpu_seconds.ravel()]
    assert second[second.device >= 0].bytes_down.tolist() == [
        float(x) for r in records for x in r.bytes_down.ravel()
    ]
    assert second.groupby("round").warmup.all().tolist() == [True, False]
    assert second.groupby("round").validated.all().tolist() == [r.validated for r in records]


def test_a_table_without_pandas_says_what_to_install(make_run, monkeypatch):
    path = make_run("a.h5", [simple_record()])
    monkeypatch.setitem(sys.modules, "pandas", None)

    with pytest.raises(HpcflError, match=r"pip install 'hpcfl\[table\]'"):
        load_many([path])


def test_importing_the_package_imports_nothing_heavy():
    program = (
        "import sys, hpcfl.results, hpcfl.cli.report;"
        "print(sorted({'h5py', 'pandas', 'tabulate', 'numpy', 'mpi4py'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_the_package_offers_the_reader():
    assert (hpcfl.results.load, hpcfl.results.load_many) == (load, load_many)
    with pytest.raises(AttributeError, match="no attribute 'store'"):
        _ = hpcfl.results.store
