"""How many cores ranks may use, on machines made of files."""

import os

import pytest

from hpcfl.system import cores


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Return a function that makes a machine: its cores, each with so many hardware threads."""

    def make(number, threads_each, quota="max 100000"):
        for core in range(number):
            # As Linux numbers them: the second threads of all cores come after the first.
            threads = [core + number * k for k in range(threads_each)]
            for thread in threads:
                folder = tmp_path / f"cpu{thread}/topology"
                folder.mkdir(parents=True)
                (folder / "thread_siblings_list").write_text(",".join(map(str, threads)))
        (tmp_path / "cpufreq").mkdir()
        (tmp_path / "cpu.max").write_text(quota)
        everything = set(range(number * threads_each))
        affinities = {0: everything, os.getppid(): everything}
        monkeypatch.setattr(cores, "_CPUS", tmp_path)
        monkeypatch.setattr(cores, "_QUOTA", tmp_path / "cpu.max")
        monkeypatch.setattr(os, "cpu_count", lambda: number * threads_each)
        monkeypatch.setattr(os, "sched_getaffinity", affinities.__getitem__, raising=False)
        return affinities

    for name in list(os.environ):
        if name.startswith(("SLURM_", "OMPI_", "PMI")):
            monkeypatch.delenv(name)
    return make


def test_hardware_threads_of_a_core_are_one_core(machine):
    machine(4, 2)

    assert cores.physical() == cores.usable() == 4
    assert cores.usable([0, 4]) == 1
    assert cores.usable([0, 1, 4]) == 2


@pytest.mark.parametrize(
    ("threads_each", "allocated", "found"), [(1, 16, 16), (2, 16, 8), (2, 15, 8), (4, 16, 4)]
)
def test_slurm_allocates_hardware_threads(machine, monkeypatch, threads_each, allocated, found):
    machine(32, threads_each)[0] = {3}
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", str(allocated))

    assert cores.usable() == found
    # What ranks are allowed to use is known, and does not have to be concluded.
    assert cores.usable(range(3)) == 3


def test_a_launcher_has_the_cores_of_all_its_ranks(machine, monkeypatch):
    machine(64, 1)[0] = {3}

    assert cores.usable() == 1
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    assert cores.usable() == 64


@pytest.mark.parametrize(
    ("quota", "found"), [("200000 100000", 2), ("50000 100000", 1), ("max 100000", 8), ("", 8)]
)
def test_no_more_than_the_quota_is_usable(machine, quota, found):
    machine(8, 2, quota)

    assert cores.usable() == cores.usable(range(16)) == found


def test_a_system_without_affinities_has_its_cores(machine, monkeypatch, tmp_path):
    machine(4, 2)

    def refuse(_):
        raise OSError("no")

    monkeypatch.setattr(os, "sched_getaffinity", refuse)
    assert cores.affinity() is None
    assert cores.usable() == 4
    monkeypatch.setattr(cores, "_CPUS", tmp_path / "none")
    assert (cores.physical(), cores.usable()) == (None, 8)


@pytest.mark.parametrize(
    ("threads", "text"),
    [((), ""), ((3,), "3"), ((0, 1, 2, 3), "0-3"), ((0, 2, 3, 8), "0,2-3,8")],
)
def test_threads_are_listed_as_the_kernel_does(threads, text):
    assert cores.listed(threads) == text
