"""What is recorded about machine, software and settings."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hpcfl
from hpcfl.system import environment

FACTS = {
    *("host_name", "cpu_model", "cores_physical", "cores_logical", "cores_affinity"),
    *("cores_usable", "cpu_governor", "cpu_turbo", "memory_bytes", "memory_available_bytes"),
    *("swap_bytes", "swap_used_bytes", "load_1min", "kernel", "clock_source", "python_version"),
    *("hpcfl_version", "numpy_version", "mpi4py_version", "h5py_version", "cryptography_version"),
    *("openssl_version", "git_commit", "git_dirty", "slurm_job_id", "environment_variables"),
}


@pytest.fixture
def alone(monkeypatch):
    """Let no container's quota have a say."""
    monkeypatch.setattr(environment, "_cpu_quota", lambda: None)


def test_all_facts_can_be_stored_as_they_are():
    facts = environment.capture_local()

    assert set(facts) >= FACTS
    for name, value in facts.items():
        if name != "environment_variables":
            assert value is None or isinstance(value, str | int | float), name
    json.dumps(facts)


def test_facts_that_every_machine_has_are_found():
    facts = environment.capture_local()

    assert facts["python_version"] == ".".join(map(str, sys.version_info[:3]))
    assert facts["hpcfl_version"] == hpcfl.__version__
    assert facts["numpy_version"].startswith("2.")
    assert facts["cores_usable"] >= 1
    assert facts["openssl_version"].startswith("OpenSSL ")


def test_a_system_that_tells_nothing_gives_no_error(monkeypatch, tmp_path):
    def refuse(*_, **__):
        raise OSError("no")

    monkeypatch.setattr(environment, "_CPUS", tmp_path / "none")
    monkeypatch.setattr(environment, "read", lambda _: "")
    monkeypatch.setattr(os, "sched_getaffinity", refuse, raising=False)
    monkeypatch.setattr(os, "getloadavg", refuse)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    monkeypatch.setattr(environment.subprocess, "run", refuse)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.backends.openssl.backend", None)

    facts = environment.capture({}, ["a"])

    for name in ("memory_bytes", "swap_used_bytes", "cores_physical", "cores_usable", "load_1min"):
        assert facts[name] is None, name
    assert facts["oversubscription_ratio"] is None
    assert facts["openssl_version"] is None
    assert facts["git_commit"] is None


def test_memory_is_in_bytes(monkeypatch):
    text = "MemTotal:  2000 kB\nMemAvailable: 500 kB\nSwapTotal: 100 kB\nSwapFree: 60 kB\n"
    monkeypatch.setattr(
        environment, "read", lambda path: text if str(path) == "/proc/meminfo" else ""
    )

    facts = environment.capture_local()

    assert facts["memory_bytes"] == 2000 * 1024
    assert facts["memory_available_bytes"] == 500 * 1024
    assert facts["swap_used_bytes"] == 40 * 1024


def test_hardware_threads_of_a_core_count_once(monkeypatch, tmp_path):
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        folder = tmp_path / f"cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    monkeypatch.setattr(environment, "_CPUS", tmp_path)

    assert environment.capture_local()["cores_physical"] == 2


@pytest.mark.parametrize(
    ("file", "text", "turbo"),
    [
        ("intel_pstate/no_turbo", "0", True),
        ("intel_pstate/no_turbo", "1", False),
        ("cpufreq/boost", "1", True),
        ("cpufreq/boost", "0", False),
        ("unknown", "1", None),
    ],
)
def test_turbo_is_read_the_right_way_round(monkeypatch, tmp_path, file, text, turbo):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    monkeypatch.setattr(environment, "_CPUS", tmp_path)

    assert environment.capture_local()["cpu_turbo"] is turbo


def test_variables_of_mpi_and_slurm_are_kept_and_no_others(monkeypatch):
    monkeypatch.setenv("OMPI_MCA_pml", "ob1")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("LD_PRELOAD_OF_MINE", "x")

    facts = environment.capture_local()

    assert facts["environment_variables"]["OMPI_MCA_pml"] == "ob1"
    assert facts["slurm_job_id"] == "17"
    assert "LD_PRELOAD_OF_MINE" not in facts["environment_variables"]


@pytest.mark.parametrize(
    "name",
    [
        *("SLURM_JWT", "SLURM_TOKEN", "OMPI_API_KEY", "UCX_SECRET_x", "PMIX_PASSWORD"),
        *("OMPI_MCA_access_key", "HDF5_CREDENTIALS", "SLURM_SPANK__SLURM_SPANK_OPTION_x"),
    ],
)
def test_variables_that_could_hold_a_secret_are_dropped(monkeypatch, name):
    monkeypatch.setenv(name, "hunter2")

    assert "hunter2" not in json.dumps(environment.capture_local())


def test_ranks_are_counted_for_each_host(monkeypatch):
    monkeypatch.setattr(environment, "usable_cores", lambda: 2)

    facts = environment.capture({"transport": "mpi", "ranks": 5}, ["b", "a", "b", "b", "a"])

    assert facts["hosts"] == ["b", "a"]
    assert facts["host_ranks"] == [3, 2]
    assert facts["oversubscription_ratio"] == 1.5


def test_mpi_facts_are_passed_on_and_missing_ones_named():
    facts = environment.capture({"transport": "loopback", "ranks": 1, "extra": 2}, [])

    assert (facts["transport"], facts["ranks"], facts["extra"]) == ("loopback", 1, 2)
    assert (facts["mpi_library"], facts["mpi_standard"], facts["thread_level"]) == (None,) * 3
    assert facts["oversubscription_ratio"] is None


def test_timers_are_described():
    facts = environment.capture({}, [])

    for timer in ("wall", "cpu"):
        assert facts[f"{timer}_timer_resolution_seconds"] > 0
        assert facts[f"{timer}_timer_overhead_seconds"] > 0


def test_the_resolution_is_the_smallest_step_that_the_clock_makes():
    readings = iter([0.0, 0.0, 0.5, 0.5, 0.75, 2.0])

    resolution, _ = environment.timer_quality(lambda: next(readings, 2.0))

    assert resolution == 0.25


def test_a_clock_that_stands_still_has_no_resolution():
    assert environment.timer_quality(lambda: 1.0)[0] is None


def test_a_bound_rank_still_counts_all_cores_of_its_host(monkeypatch, alone):
    cores = {0: {3}, os.getppid(): set(range(8))}
    monkeypatch.setattr(os, "sched_getaffinity", cores.__getitem__, raising=False)

    assert environment.usable_cores() == 1
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    assert environment.usable_cores() == 8


def test_slurms_allocation_counts_rather_than_the_whole_host(monkeypatch, alone):
    cores = {0: {3}, os.getppid(): set(range(64))}
    monkeypatch.setattr(os, "sched_getaffinity", cores.__getitem__, raising=False)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "16")

    assert environment.usable_cores() == 16


@pytest.mark.parametrize(
    ("limit", "cores"), [("200000 100000", 2), ("50000 100000", 1), ("max 100000", 8), ("", 8)]
)
def test_a_containers_quota_limits_the_cores(monkeypatch, limit, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(environment, "read", lambda path: limit)

    assert environment.usable_cores() == cores


def test_capturing_does_not_load_mpi():
    program = (
        "import sys; from hpcfl.system import environment; environment.capture({}, []); "
        "print('mpi4py' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.stdout.strip() == "False", done.stderr


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Return a committed repository that the package seems to be run from."""
    if shutil.which("git") is None:
        pytest.skip("no git here")
    (tmp_path / "hpcfl").mkdir()
    (tmp_path / "hpcfl/__init__.py").write_text("")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    monkeypatch.setattr(hpcfl, "__file__", str(tmp_path / "hpcfl/__init__.py"))
    return tmp_path


def git(folder, *arguments):
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.hooksPath=/dev/null")
    return subprocess.run(
        ["git", *identity, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout.strip()


def test_the_commit_that_ran_is_recorded(repository):
    facts = environment.capture_local()

    assert facts["git_commit"] == git(repository, "rev-parse", "HEAD")
    assert facts["git_dirty"] is False


@pytest.mark.parametrize(
    ("file", "dirty"), [("hpcfl/__init__.py", True), ("hpcfl/new.py", True), ("notes.txt", False)]
)
def test_only_changed_code_makes_the_commit_dirty(repository, file, dirty):
    (repository / file).write_text("x = 1\n")

    assert environment.capture_local()["git_dirty"] is dirty


def test_an_installed_package_does_not_claim_the_repository_around_it(repository, monkeypatch):
    installed = repository / "site-packages/hpcfl"
    installed.mkdir(parents=True)
    monkeypatch.setattr(hpcfl, "__file__", str(installed / "__init__.py"))

    assert environment.capture_local()["git_commit"] is None


def test_a_repository_without_commits_has_none(tmp_path, monkeypatch):
    if shutil.which("git") is None:
        pytest.skip("no git here")
    git(tmp_path, "init", "--quiet")
    monkeypatch.setattr(hpcfl, "__file__", str(tmp_path / "hpcfl/__init__.py"))

    assert environment.capture_local()["git_commit"] is None
