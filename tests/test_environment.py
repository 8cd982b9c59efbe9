"""What is recorded about machine, software and settings."""

import json
import os
import shutil
import subprocess
import sys

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


def local(name):
    """Return a fact as it is now."""
    return environment.capture_local()[name]


def test_all_facts_are_there_and_can_be_stored_as_they_are():
    facts = environment.capture_local()

    assert set(facts) >= FACTS
    json.dumps(facts)
    others = {name: value for name, value in facts.items() if name != "environment_variables"}
    assert all(value is None or isinstance(value, str | int | float) for value in others.values())
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

    for name in (
        *("memory_bytes", "swap_used_bytes", "cores_physical", "cores_usable", "load_1min"),
        *("oversubscription_ratio", "openssl_version", "git_commit"),
    ):
        assert facts[name] is None, name


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

    assert local("cores_physical") == 2


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

    assert local("cpu_turbo") is turbo


def test_variables_of_mpi_and_slurm_are_kept_but_none_that_could_hold_a_secret(monkeypatch):
    secrets = (
        *("SLURM_JWT", "SLURM_TOKEN", "OMPI_API_KEY", "UCX_SECRET_x", "PMIX_PASSWORD"),
        *("OMPI_MCA_access_key", "HDF5_CREDENTIALS", "SLURM_SPANK__SLURM_SPANK_OPTION_x"),
    )
    for name, value in {
        **dict.fromkeys(secrets, "hunter2"),
        "OMPI_MCA_pml": "ob1",
        "SLURM_JOB_ID": "17",
        "LD_PRELOAD_OF_MINE": "x",
    }.items():
        monkeypatch.setenv(name, value)
    facts = environment.capture_local()

    assert facts["environment_variables"]["OMPI_MCA_pml"] == "ob1"
    assert facts["slurm_job_id"] == "17"
    assert not {*secrets, "LD_PRELOAD_OF_MINE"} & facts["environment_variables"].keys()
    assert "hunter2" not in json.dumps(facts)


def test_ranks_are_counted_for_each_host_and_missing_facts_named(monkeypatch):
    monkeypatch.setattr(environment, "usable_cores", lambda: 2)
    facts = environment.capture({"transport": "mpi", "extra": 2}, ["b", "a", "b", "b", "a"])

    assert facts["hosts"] == ["b", "a"]
    assert facts["host_ranks"] == [3, 2]
    assert facts["oversubscription_ratio"] == 1.5
    assert (facts["transport"], facts["extra"]) == ("mpi", 2)
    assert (facts["mpi_library"], facts["mpi_standard"], facts["thread_level"]) == (None,) * 3
    assert environment.capture({}, [])["oversubscription_ratio"] is None


def test_timers_are_described():
    facts = environment.capture({}, [])
    readings = iter([0.0, 0.0, 0.5, 0.5, 0.75, 2.0])

    for timer in ("wall", "cpu"):
        assert facts[f"{timer}_timer_resolution_seconds"] > 0
        assert facts[f"{timer}_timer_overhead_seconds"] > 0
    # The smallest step that the clock makes, if it makes one.
    assert environment.timer_quality(lambda: next(readings, 2.0))[0] == 0.25
    assert environment.timer_quality(lambda: 1.0)[0] is None


@pytest.mark.parametrize(
    ("variables", "quota", "cores"),
    [
        # A launcher binds a rank to a core of its own: its parent's count.
        ({}, "", 1),
        ({"OMPI_COMM_WORLD_RANK": "0"}, "", 64),
        ({"OMPI_COMM_WORLD_RANK": "0", "SLURM_CPUS_ON_NODE": "16"}, "", 16),
        ({"SLURM_CPUS_ON_NODE": "16"}, "200000 100000", 2),
        ({"SLURM_CPUS_ON_NODE": "16"}, "50000 100000", 1),
        ({"SLURM_CPUS_ON_NODE": "16"}, "max 100000", 16),
    ],
)
def test_cores_are_those_that_all_ranks_of_the_host_may_use(monkeypatch, variables, quota, cores):
    affinity = {0: {3}, os.getppid(): set(range(64))}
    monkeypatch.setattr(os, "sched_getaffinity", affinity.__getitem__, raising=False)
    monkeypatch.setattr(environment, "read", lambda path: quota)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert environment.usable_cores() == cores


def test_capturing_does_not_load_mpi():
    program = (
        "import sys; from hpcfl.system import environment; environment.capture({}, []); "
        "print('mpi4py' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )

    assert done.stdout.strip() == "False", done.stderr


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Return a repository without commits that the package seems to be run from."""
    if shutil.which("git") is None:
        pytest.skip("no git here")
    (tmp_path / "hpcfl").mkdir()
    (tmp_path / "hpcfl/__init__.py").write_text("")
    git(tmp_path, "init", "--quiet")
    monkeypatch.setattr(hpcfl, "__file__", str(tmp_path / "hpcfl/__init__.py"))
    return tmp_path


def git(folder, *arguments):
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.hooksPath=/dev/null")
    command = ["git", *identity, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("file", "dirty"),
    [(None, False), ("hpcfl/__init__.py", True), ("hpcfl/new.py", True), ("notes.txt", False)],
)
def test_the_commit_that_ran_is_recorded_and_whether_its_code_was_changed(repository, file, dirty):
    assert local("git_commit") is None  # before there is one
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message", "first")
    if file:
        (repository / file).write_text("x = 1\n")

    assert local("git_commit") == git(repository, "rev-parse", "HEAD")
    assert local("git_dirty") is dirty


def test_an_installed_package_does_not_claim_the_repository_around_it(repository, monkeypatch):
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message", "first")
    installed = repository / "site-packages/hpcfl"
    installed.mkdir(parents=True)
    monkeypatch.setattr(hpcfl, "__file__", str(installed / "__init__.py"))

    assert local("git_commit") is None
