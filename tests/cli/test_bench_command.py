import json

import numpy as np
from commandline import hpcfl

from hpcfl.results import load, pooling


def test_one_process_plays_everybody_and_says_so(tmp_path):
    done = hpcfl("bench", "sparse", "--devices", 5, "--dim", 500, "--output", tmp_path)
    (path,) = tmp_path.glob("sparse-5x500-*.h5")

    assert done.returncode == 0, done.stderr
    assert "transport     loopback" in done.stdout
    assert "validated     12/12" in done.stdout
    assert str(path) in done.stdout
    assert load(path).environment["transport"] == "loopback"


def test_json_is_all_that_stdout_holds(tmp_path):
    done = hpcfl(
        *("bench", "secagg", "--devices", "3,4", "--dim", 50, "--rounds", 1, "--json"),
        *("--output", tmp_path),
    )
    runs = json.loads(done.stdout)["runs"]

    assert [run["devices"] for run in runs] == [3, 4]


def test_a_results_file_can_be_named_and_is_never_overwritten(tmp_path):
    options = ("bench", "fedavg", "--devices", 3, "--dim", 10, "--output", tmp_path / "mine.h5")
    first, second = hpcfl(*options), hpcfl(*options)

    assert (first.returncode, second.returncode) == (0, 2)
    assert second.stderr.count("\n") == 1
    assert "exists already" in second.stderr


def test_a_note_is_kept_and_makes_no_other_configuration(tmp_path):
    notes = {"plain": (), "noted": ("--note", "turbo off")}
    for name, note in notes.items():
        hpcfl("bench", "fedavg", "--devices", 3, "--dim", 10, *note,
              "--output", tmp_path / f"{name}.h5")  # fmt: skip
    plain, noted = (load(tmp_path / f"{name}.h5") for name in notes)

    assert "note" not in plain.config
    assert noted.config["note"] == "turbo off"
    assert len(pooling.group([plain, noted])) == 1


def test_insecure_keys_are_announced_and_recorded_and_repeat(tmp_path):
    options = ("--devices", 4, "--dim", 400, "--rounds", 1, "--insecure-seed", 7)
    for name in ("a", "b"):
        done = hpcfl("bench", "sparse", *options, "--output", tmp_path / f"{name}.h5")
        assert "keys are not secret" in done.stderr
    a, b = load(tmp_path / "a.h5"), load(tmp_path / "b.h5")

    assert a.config["insecure_seed"] == 7
    # How many coordinates a device sends follows from its keys.
    np.testing.assert_array_equal(a.bytes_up, b.bytes_up)


def test_the_seed_of_the_experiment_fixes_no_key(tmp_path):
    for name in ("a", "b"):
        hpcfl("bench", "sparse", "--devices", 6, "--dim", 9000, "--rounds", 2, "--seed", 1,
              "--output", tmp_path / f"{name}.h5")  # fmt: skip
    a, b = load(tmp_path / "a.h5"), load(tmp_path / "b.h5")

    np.testing.assert_array_equal(a.survived, b.survived)
    assert not np.array_equal(a.bytes_up, b.bytes_up)
    assert a.config["insecure_seed"] is None
