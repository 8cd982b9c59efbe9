"""What commands say of wrong use, and with which exit status."""

import h5py
import numpy as np
from commandline import hpcfl, refusal

from hpcfl.report.formats import counted
from hpcfl.results.reader import load


def test_one_and_several():
    assert [counted(number, "round") for number in range(3)] == ["0 rounds", "1 round", "2 rounds"]
    assert counted(2, "launch") == "2 launches"
    assert counted(2, "reply") == "2 replies"
    assert counted(2, "other host") == "2 other hosts"


def test_a_file_that_there_is_not_is_wrong_use(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments in (
        ("report", "none.h5"),
        ("plot", "none.h5", "--kind", "phases"),
        ("compare", "none.h5", "none.h5"),
        ("merge", "none.h5", "--output", "merged"),
        ("bench", "fedavg", "--devices", "3", "--resume", "none.h5"),
        ("bench", "fedavg", "--devices", "3", "--updates", "none.npy"),
        ("train", "fedavg", "--devices", "3", "--resume", "none.npz"),
        ("attack", "components", "none.npz"),
        ("predict", "secagg", "--calibration", "none.json"),
        ("sweep", "none.toml"),
    ):
        assert "none." in refusal(*arguments)


def test_bench_names_all_that_it_can_measure():
    assert "ckks, prf, dp-fedavg, or give MODULE:CLASS" in refusal("bench", "nosuch")
    # Which adds its noise within one of the others.
    assert "dp-fedavg" not in refusal("bench", "dp-fedavg", "--aggregate", "nosuch")


def test_updates_say_how_many_devices_there_are_in_one_process(tmp_path):
    np.save(tmp_path / "three.npy", np.zeros((3, 5), np.float32))
    np.save(tmp_path / "none.npy", np.zeros((0, 5), np.float32))
    file = tmp_path / "run.h5"
    options = ("--rounds", "1", "--warmup", "0", "--output", file)
    done = hpcfl("bench", "fedavg", "--updates", tmp_path / "three.npy", *options)

    assert done.returncode == 0, done.stderr
    assert load(file).devices == 3
    refused = refusal("bench", "fedavg", "--updates", tmp_path / "three.npy", "--devices", "4")
    assert "has 3 rows for 4 devices; give --devices 3" in refused
    refused = refusal("bench", "fedavg", "--updates", tmp_path / "three.npy", "--devices", "1")
    assert "has 3 rows for 1 device; give --devices 3" in refused
    refused = refusal("bench", "fedavg", "--updates", tmp_path / "none.npy")
    assert "shape (0, 5); numbers of shape (devices, coordinates) are needed" in refused


def test_a_file_of_updates_without_updates_says_what_it_has(tmp_path):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["vectors"] = np.zeros((3, 5))
    refused = refusal("bench", "fedavg", "--devices", "3", "--updates", tmp_path / "other.h5")

    assert "it has no array 'updates', only ['vectors']" in refused


def test_a_cell_that_runs_alone_is_not_one_of_1(tmp_path):
    (tmp_path / "plan.toml").write_text(
        "[fixed]\ndim = 10\nrounds = 1\ndevices = 3\n[grid]\nprotocol = ['fedavg', 'secagg']\n"
    )
    options = (tmp_path / "plan.toml", "--output", tmp_path / "out")
    hpcfl("sweep", *options, "--freeze")
    one, both = hpcfl("sweep", *options, "--cell", "1"), hpcfl("sweep", *options)

    assert one.stdout.startswith("cell 1: ")
    assert both.stdout.startswith("cell 0 of 2: ")


def test_a_job_for_what_there_is_not_is_refused():
    for command, what in (("bench", "protocol"), ("train", "algorithm")):
        said = refusal("slurm", "render", command, "--", "nosuch")
        assert f"there is no {what} 'nosuch'" in said
        # One's own may be found where the job runs.
        own = hpcfl("slurm", "render", command, "--", "mine:Mine")
        assert (own.returncode, "mine:Mine" in own.stdout) == (0, True)


def test_training_shows_no_density_where_all_is_sent_and_no_option_that_it_has_not(tmp_path):
    for aggregate in ("fedavg", "sparse"):
        done = hpcfl(
            *("train", "fedavg", "--aggregate", aggregate, "--devices", "3", "--rounds", "1"),
            *("--output", tmp_path / f"{aggregate}.h5"),
        )
        assert done.returncode == 0, done.stderr
        assert "after 1 round," in done.stdout
        assert "--warmup" not in hpcfl("report", tmp_path / f"{aggregate}.h5").stdout

    assert load(tmp_path / "fedavg.h5").config["alpha"] is None
    assert load(tmp_path / "sparse.h5").config["alpha"] == 0.1
