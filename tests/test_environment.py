"""What is recorded about machine, software and settings."""

import json
import os
import subprocess
import sys

import pytest

import hpcfl
from hpcfl.system import cores, environment, mpisettings, revision

FACTS = {
    *("host_name", "cpu_model", "cores_physical", "cores_logical", "cores_affinity"),
    *("cores_usable", "cpu_governor", "cpu_turbo", "memory_bytes", "memory_available_bytes"),
    *("swap_bytes", "swap_used_bytes", "load_1min", "kernel", "clock_source", "python_version"),
    *("hpcfl_version", "numpy_version", "mpi4py_version", "h5py_version", "cryptography_version"),
    *("openssl_version", "git_commit", "git_dirty", "git_changes", "slurm_job_id"),
    *("environment_variables", "mpi_parameters", "networks"),
}


def local(name):
    """Return a fact as it is now."""
    return environment.capture_local()[name]


def test_all_facts_are_there_and_can_be_stored_as_they_are():
    facts = environment.capture_local()

    assert set(facts) >= FACTS
    json.dumps(facts)
    lists = ("environment_variables", "mpi_parameters", "networks")
    others = {name: value for name, value in facts.items() if name not in lists}
    assert all(value is None or isinstance(value, str | int | float) for value in others.values())
    assert facts["python_version"] == ".".join(map(str, sys.version_info[:3]))
    assert facts["hpcfl_version"] == hpcfl.__version__
    assert facts["numpy_version"].startswith("2.")
    assert facts["cores_usable"] >= 1
    assert facts["openssl_version"].startswith("OpenSSL ")


def test_a_system_that_tells_nothing_gives_no_error(monkeypatch, tmp_path):
    def refuse(*_, **__):
        raise OSError("no")

    for module in (environment, cores):
        monkeypatch.setattr(module, "_CPUS", tmp_path / "none")
    monkeypatch.setattr(environment, "read", lambda _: "")
    monkeypatch.setattr(mpisettings, "read", lambda _: "")
    monkeypatch.setattr(mpisettings, "_NETWORKS", tmp_path / "none")
    monkeypatch.setattr(os, "sched_getaffinity", refuse, raising=False)
    monkeypatch.setattr(os, "getloadavg", refuse)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    monkeypatch.setattr(revision.subprocess, "run", refuse)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.backends.openssl.backend", None)

    facts = environment.capture({}, [("a", ())])

    for name in (
        *("memory_bytes", "swap_used_bytes", "cores_physical", "cores_usable", "load_1min"),
        *("oversubscription_ratio", "openssl_version", "git_commit", "binding"),
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


def test_the_variables_that_steer_are_kept_and_no_others(monkeypatch):
    for name in ("OMPI_MCA_pml", "SLURM_JOB_ID", "LD_PRELOAD_OF_MINE", "KMP_INIT_AT_FORK"):
        monkeypatch.setenv(name, "17")
    monkeypatch.setenv("LD_PRELOAD", "")
    facts = environment.capture_local()
    kept = facts["environment_variables"]

    assert (kept["OMPI_MCA_pml"], kept["LD_PRELOAD"], facts["slurm_job_id"]) == ("17", "", "17")
    assert not kept.keys() & {"SLURM_JOB_ID", "LD_PRELOAD_OF_MINE", "KMP_INIT_AT_FORK"}


def place(host, *threads):
    return host, threads


def facts_of(**changes):
    """Return what a rank found on its host."""
    return {"cores_usable": 2, "load_1min": 0.5, "environment_variables": {}} | changes


def test_ranks_are_counted_for_each_host_and_missing_facts_named():
    places = [place(host, 0, 1) for host in "babba"]
    facts = environment.capture({"transport": "mpi", "extra": 2}, places, [facts_of()] * 2)

    assert facts["hosts"] == ["b", "a"]
    assert facts["host_ranks"] == [3, 2]
    assert facts["oversubscription_ratio"] == 1.5
    assert (facts["transport"], facts["extra"]) == ("mpi", 2)
    assert (facts["mpi_library"], facts["mpi_standard"], facts["thread_level"]) == (None,) * 3
    assert facts["host_facts"] == {}
    assert environment.capture({}, [])["oversubscription_ratio"] is None


def test_facts_in_which_hosts_differ_are_kept_for_each_of_them():
    tcp = {"OMPI_MCA_btl": "tcp,self"}
    found = [facts_of(), facts_of(cores_usable=64, environment_variables=tcp), None]
    facts = environment.capture({}, [place(host, 0) for host in "abc"], found)

    assert facts["cores_usable"] == 2
    assert facts["host_facts"] == {
        "cores_usable": [2, 64, None],
        "load_1min": [0.5, 0.5, None],
        "environment_variables": [{}, tcp, None],
    }
    # The fullest host, as far as is known.
    assert facts["oversubscription_ratio"] == 0.5
    assert environment.capture({}, [place("a", 0)], [facts_of()])["host_facts"] is None


@pytest.mark.parametrize(
    ("threads", "binding"),
    [
        ([(0, 1)] * 3, "hardware threads a rank: 2; ranks a thread: at most 3"),
        ([(0,), (1,), (2,)], "hardware threads a rank: 1; ranks a thread: at most 1"),
        ([(0, 1), (2,), (2, 3)], "hardware threads a rank: 1 to 2; ranks a thread: at most 2"),
        # What the system does not tell is not guessed.
        ([(), (0,)], None),
        ([], None),
    ],
)
def test_the_binding_of_ranks_is_what_they_may_use(threads, binding):
    places = [place("a", *mine) for mine in threads]

    assert environment.capture({}, places, [facts_of()])["binding"] == binding


def test_equal_threads_of_other_hosts_are_not_shared():
    found = environment.capture({}, [place("a", 0), place("b", 0)], [facts_of()] * 2)

    assert found["binding"] == "hardware threads a rank: 1; ranks a thread: at most 1"


@pytest.mark.parametrize(
    ("hosts", "mapping"),
    [
        ("aabb", "host by host"),
        ("abab", "in turns"),
        ("aabba", "0,0,1,1,0"),
        ("a", "host by host"),
        ("", None),
    ],
)
def test_how_ranks_follow_each_other_on_hosts_is_told_without_their_names(hosts, mapping):
    places = [place(host, 0) for host in hosts]

    assert environment.capture({}, places, [facts_of()] * 2)["mapping"] == mapping


def test_timers_are_described():
    facts = environment.capture({}, [])
    readings = iter([0.0, 0.0, 0.5, 0.5, 0.75, 2.0])

    for timer in ("wall", "cpu"):
        assert facts[f"{timer}_timer_resolution_seconds"] > 0
        assert facts[f"{timer}_timer_overhead_seconds"] > 0
    # The smallest step that the clock makes, if it makes one.
    assert environment.timer_quality(lambda: next(readings, 2.0))[0] == 0.25
    assert environment.timer_quality(lambda: 1.0)[0] is None


def test_capturing_does_not_load_mpi():
    program = (
        "import sys; from hpcfl.system import environment; environment.capture({}, []); "
        "print('mpi4py' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )

    assert done.stdout.strip() == "False", done.stderr
