"""What files say of the machine under real launches, and which of these are repeats."""

import sys
from pathlib import Path

import numpy as np
import pytest
from launcher import HERE, LIMIT_SECONDS, finish, mpirun, needs_mpirun, start

from hpcfl.results import load, pooling

sys.path.append(str(HERE.parent / "faults"))

from ulfm import needs_ulfm

pytestmark = needs_mpirun

BENCH = ("bench", "fedavg", "--dim", 50, "--rounds", 1, "--warmup", 0)


def launched(path, *options):
    """Return the run of a launch with options of mpirun."""
    command = ("mpirun", "--map-by", ":OVERSUBSCRIBE", *options, "-n", 3, "hpcfl", *BENCH)
    job = finish(start(*command, "--output", path), LIMIT_SECONDS)
    assert job.returncode == 0, job.stderr
    return load(path)


@needs_ulfm
def test_equal_launches_are_repeats_and_other_ways_to_launch_are_not(tmp_path):
    free = ("--bind-to", "none")
    ways = {
        "plain": free,
        "again": free,
        "ulfm": (*free, "--with-ft", "ulfm"),
        "tcp": (*free, "--mca", "btl", "tcp,self"),
    }
    runs = [launched(tmp_path / f"{name}.h5", *options) for name, options in ways.items()]
    found = [[run.path.stem for run in pool.runs] for pool in pooling.group(runs)]
    plain, _, ulfm, tcp = runs

    assert found == [["plain", "again"], ["ulfm"], ["tcp"]]
    names = {"fault_tolerance", "OMPI_MCA_mpi_ft_enable"}
    assert pooling.differences(pooling.machine, plain, ulfm).keys() == names
    assert pooling.differences(pooling.machine, plain, tcp) == {"OMPI_MCA_btl": (None, "tcp,self")}


def on_hosts(folder, hosts, *arguments):
    """Run a command line, a rank on each of the hosts."""
    program = (sys.executable, HERE / "several_hosts.py", folder, ",".join(hosts))
    job = mpirun(len(hosts), *program, *arguments)
    assert job.returncode == 0, job.stderr
    (path,) = Path(folder).glob("*.h5")
    return load(path).environment


def looked(folder):
    return sorted(int(path.stem) for path in folder.glob("*.looked"))


def test_on_one_host_nobody_but_rank_0_looks(tmp_path):
    facts = on_hosts(tmp_path, "aaa", *BENCH, "--output", tmp_path / "run.h5")

    assert looked(tmp_path) == [0]
    assert facts["host_facts"] is None
    assert len(facts["before_clock_seconds"]) == 1
    assert facts["after_clock_seconds"][0] > facts["before_clock_seconds"][0]


@pytest.mark.parametrize("devices", [2, 5])
def test_the_first_rank_of_every_host_looks_and_rank_0_writes(tmp_path, devices):
    output = ("--devices", devices, "--output", tmp_path / "run.h5")
    facts = on_hosts(tmp_path, "abab", *BENCH, *output)
    before, after = (np.array(facts[f"{when}_clock_seconds"]) for when in ("before", "after"))

    assert looked(tmp_path) == [0, 1]
    assert (facts["hosts"], facts["host_ranks"]) == (["a", "b"], [2, 2])
    assert facts["mapping"] == "in turns"
    assert facts["host_facts"]["host_name"] == ["a", "b"]
    assert (after > before).all()
    assert [place["host"] for place in facts["placement"]] == list("abab")
    ids = [place["devices"] for place in facts["placement"]]
    assert ids[0] == []
    assert sorted(id for local in ids for id in local) == list(range(devices))
    cores = facts["placement"][0]["cores"]
    assert cores
    assert {place["cores"] for place in facts["placement"]} == {cores}


def test_training_knows_its_hosts_too(tmp_path):
    pytest.importorskip("torch")
    options = ("--dataset", "digits", "--rounds", 1, "--devices", 2, "--dropout", 0)
    facts = on_hosts(tmp_path, "ab", "train", "fedavg", *options, "--output", tmp_path / "run.h5")

    assert looked(tmp_path) == [0, 1]
    assert np.isfinite(facts["after_clock_seconds"]).tolist() == [True, True]
    assert facts["placement"][1]["devices"] == [0, 1]


@needs_ulfm
def test_nothing_is_known_at_the_end_of_a_host_whose_first_rank_died(tmp_path):
    program = (sys.executable, HERE / "several_hosts.py", tmp_path, "a,b,a,c,b")
    kill = ("--kill", "rank=1,phase=upload,round=0")
    run = ("bench", "fedavg", "--dim", 50, "--rounds", 2, "--warmup", 0, "--dropout", 0, *kill)
    command = ("mpirun", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", "--with-ft", "ulfm")
    path = tmp_path / "run.h5"
    job = finish(start(*command, "-n", 5, *program, *run, "--output", path), LIMIT_SECONDS)
    facts = load(path).environment

    assert "Traceback" not in job.stderr
    assert facts["hosts"] == ["a", "b", "c"]
    assert np.isfinite(facts["before_clock_seconds"]).all()
    assert np.isfinite(facts["after_clock_seconds"]).tolist() == [True, False, True]
