"""Runs as tables for programs: records without a package, frames with pandas."""

import inspect
import subprocess
import sys

import numpy as np
import pytest
from commandline import hpcfl as command_line
from run_files import simple_record, write_run

import hpcfl
from hpcfl.options.bench import BenchOptions
from hpcfl.options.definition import options_of
from hpcfl.options.training import TrainOptions
from hpcfl.report.formats import has_value
from hpcfl.results.columns import COLUMNS, OPTIONS

GRID = {"protocol": ["secagg", "sparse"], "devices": [4, 5], "dim": 50, "rounds": 2, "warmup": 1}
TRAIN = {"algorithm": "fedavg", "devices": 4, "rounds": 4, "epochs": 1, "dropout": 0.0}
# What a researcher filters by, and in what column it is.
WANTED = {
    *("path", "protocol", "devices", "dim", "seed", "alpha", "dropout", "bits", "rounds"),
    *("round_seconds_median", "modelled_round_seconds_median", "device_cpu_seconds_median"),
    *("server_cpu_seconds_median", "bytes_up_mean", "bytes_down_mean", "server_peak_bytes"),
    *("device_peak_bytes", "validated", "accuracy", "accuracy_best", "epsilon_proven"),
    *("rounds_to_target",),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder of benchmarks."""
    folder = tmp_path_factory.mktemp("results") / "sweep"
    hpcfl.sweep(GRID | {"seed": [1, 2], "bits": "16"}, output=folder)
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a folder of trainings, one of which was resumed."""
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    folder = tmp_path_factory.mktemp("results") / "training"
    hpcfl.sweep(TRAIN | {"seed": [1, 2], "target-accuracy": 0.15}, output=folder)
    options = {"devices": 4, "epochs": 1, "dropout": 0.0, "seed": 3, "checkpoint_every": 1}
    hpcfl.train("fedavg", rounds=2, output=folder / "first.h5", **options)
    resume = folder / "first.checkpoint.npz"
    hpcfl.train("fedavg", rounds=3, resume=resume, output=folder / "second.h5", **options)
    return folder


def test_files_folders_and_patterns_are_read_each_once(folder, tmp_path):
    every = hpcfl.load_many(folder)
    some = hpcfl.load_many(str(folder / "secagg-4x*.h5"))
    several = hpcfl.load_many([some[0].path, folder], folder / "secagg-*.h5")

    assert len(every) == len(several) == 8
    assert {(run.protocol, run.devices) for run in some} == {("secagg", 4)}
    assert several[0].path == some[0].path
    with pytest.raises(hpcfl.UsageError, match=r"there is no file or folder .*nothing\*\.h5"):
        hpcfl.load_many(tmp_path / "nothing*.h5")
    # A file that is called like a pattern is itself.
    odd = tmp_path / "run[1].h5"
    odd.write_bytes(some[0].path.read_bytes())
    assert hpcfl.load_many(odd)[0].path == odd
    assert "secagg" in command_line("report", str(folder / "secagg-4*.h5")).stdout


def test_a_record_for_each_run_has_the_columns_of_the_report(folder):
    runs = hpcfl.load_many(folder)
    records = runs.records()

    assert WANTED <= records[0].keys()
    assert {name for name, choice in COLUMNS.items() if choice.alone} < records[0].keys()
    assert {*OPTIONS} < records[0].keys()
    for run, record in zip(runs, records, strict=True):
        assert record["path"] == str(run.path)
        assert (record["seed"], record["dropout"]) == (run.config["seed"], 0.3)
        assert (record["bits"], record["validated"], record["dim"]) == (16, True, 50)
        assert record["round_seconds_median"] == np.median(run.round_seconds[1:])
    # One place: what the command says of the same columns.
    names = "path,seed,bits,bytes_up_mean,modelled_round_seconds_median,validated"
    told = command_line(
        *("report", folder, "--no-pool", "--columns", names, "--format", "json")
    ).stdout
    import json

    of_command = {row["path"]: row for row in json.loads(told)}
    for record in runs.records(names.split(",")):
        assert of_command[record["path"]] == record


def test_every_column_can_be_asked_for(folder):
    names = {*COLUMNS, *options_of(BenchOptions), *options_of(TrainOptions)}
    records = hpcfl.load_many(folder).records([*names])

    assert {*records[0]} == names
    assert len(records) == 8


def test_options_in_which_runs_differ_have_columns(folder, tmp_path):
    hpcfl.bench("secagg", devices=4, dim=50, rounds=1, clip=2.0, output=tmp_path / "run.h5")
    before = hpcfl.load_many(folder).records()[0]
    after = hpcfl.load_many(folder, tmp_path).records()[-1]

    assert "clip" not in before
    assert after["clip"] == 2.0


def test_a_frame_has_a_row_for_each_run_and_numbers_where_numbers_are(folder, trained):
    pytest.importorskip("pandas")
    frame = hpcfl.load_many(folder, trained).to_frame(target=0.2, uplink_mbps=1.0)

    assert len(frame) == 8 + 3
    assert frame.groupby(["protocol", "devices"])["bytes_up_mean"].mean().notna().all()
    training = frame[frame.algorithm == "fedavg"]
    assert sorted(training.seed) == [1, 2, 3]
    assert (training.accuracy_best >= training.accuracy).all()
    assert set(training.target) == {0.2}
    benches = frame[frame.algorithm.isna()]
    assert set(benches.bits) == {16}
    slow = benches.modelled_round_seconds_median.sum()
    fast = hpcfl.load_many(folder).to_frame().modelled_round_seconds_median.sum()
    assert slow > fast
    for name in frame.columns:
        if "seconds" in name or "bytes" in name or "accuracy" in name:
            assert frame[name].dtype.kind in "fiu", name
    assert len(hpcfl.Runs().to_frame()) == 0


def test_a_frame_of_rounds_has_all_phases_and_what_training_reached(folder, trained):
    pytest.importorskip("pandas")
    runs = hpcfl.load_many(folder, trained)
    frame = runs.rounds_frame()

    # A row for each run and round; the resumed training is one run with rounds 0, 1 and 2.
    whole = frame[frame.path == str(trained / "first.h5")]
    assert whole["round"].tolist() == [0, 1, 2]
    assert whole.bytes_up.cumsum().tolist() == whole.bytes_up_total.tolist()
    assert whole.accuracy.notna().all()
    assert not (frame.path == str(trained / "second.h5")).any()
    (one,) = [run for run in runs if run.path == runs[0].path]
    rows = frame[frame.path == str(one.path)]
    assert rows.warmup.tolist() == [True, False, False]
    assert rows.survivors.tolist() == one.survived.sum(axis=1).tolist()
    for number, phase in enumerate(one.phases):
        assert rows[f"{phase}_bytes_up"].tolist() == one.bytes_up[:, number].sum(axis=1).tolist()
    for name in ("bytes_up", "bytes_down", "device_cpu_seconds", "modelled_seconds"):
        phases = [f"{phase}_{name}" for phase in one.phases]
        measured = rows[~rows.warmup]
        if name != "device_cpu_seconds":  # the slowest device of a phase need not be a round's
            np.testing.assert_allclose(measured[phases].sum(axis=1), measured[name])
    assert rows.modelled_seconds.isna().tolist() == [True, False, False]
    assert (rows.accuracy.isna()).all()
    assert len(one.rounds_frame()) == one.rounds


def test_units_are_in_the_names(folder, trained):
    """A column that is no count, fraction or name says bytes or seconds."""
    plain = {
        *("path", "run_id", "protocol", "algorithm", "devices", "dim", "seed", "round", "warmup"),
        *("validated", "survivors", "accuracy", "loss", "participants", "quantisation_error"),
        *("clipped_fraction", "overlap", "epsilon_paper", "epsilon_proven"),
    }
    names = hpcfl.load_many(folder, trained).rounds_records()[-1].keys()

    assert {name for name in names if "bytes" not in name and "seconds" not in name} == plain


def test_modelled_seconds_of_another_link(folder):
    slow, fast = (
        hpcfl.load_many(folder).rounds_records(uplink_mbps=rate)[1] for rate in (1.0, 100.0)
    )

    assert slow["modelled_seconds"] > fast["modelled_seconds"]
    assert slow["masked_input_modelled_seconds"] > fast["masked_input_modelled_seconds"]
    with pytest.raises(hpcfl.UsageError, match="uplink_mbps"):
        hpcfl.load_many(folder).rounds_records(uplink=1.0)


def test_a_run_without_a_measured_round_has_a_row(tmp_path):
    write_run(tmp_path / "none.h5", [], rounds=3)
    write_run(tmp_path / "wrong.h5", [simple_record(validated=False)], rounds=3)
    runs = hpcfl.load_many(tmp_path)

    assert [record["validated"] for record in runs.records()] == [True, False]
    assert [has_value(record["bytes_up_mean"]) for record in runs.records()] == [False, False]
    (row,) = runs.rounds_records()
    assert not has_value(row["modelled_seconds"])
    assert row["bytes_up"] == 660


def test_wrong_names_are_a_sentence(folder):
    with pytest.raises(hpcfl.UsageError, match="no column 'acuracy'; did you mean"):
        hpcfl.load_many(folder).records(["acuracy"])


def test_without_pandas_records_work_and_frames_say_what_to_install(folder):
    program = (
        "import sys; sys.modules['pandas'] = None; import hpcfl; "
        "runs = hpcfl.load_many(sys.argv[1]); "
        "print(len(runs.records()), len(runs.rounds_records()))\n"
        "for frame in (runs.to_frame, runs.rounds_frame, runs[0].rounds_frame):\n"
        "    try: frame()\n"
        "    except hpcfl.HpcflError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, folder], capture_output=True, text=True, timeout=60
    )

    assert done.stdout.splitlines() == [
        "8 24",
        *["a data frame needs pandas: pip install 'hpcfl[table]'"] * 3,
    ], done.stderr


def test_pandas_is_loaded_where_a_frame_is_made_and_not_before(folder):
    program = (
        "import sys, hpcfl; runs = hpcfl.load_many(sys.argv[1]); runs.records(); repr(runs); "
        "print('pandas' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, folder],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert done.stdout == "False\n"


def test_what_makes_frames_is_documented():
    for name in ("to_frame", "records", "rounds_frame", "rounds_records"):
        assert inspect.getdoc(getattr(hpcfl.Runs, name))
