"""What is recorded about machine, software and settings, on machines made of files."""

import json
import os
import sys
from pathlib import Path

import psutil
import pytest

import hpcfl
from hpcfl.errors import UsageError
from hpcfl.system import environment, machine

FACTS = {
    *("cpu_model", "cores_affinity", "cpu_governor", "swap_used_bytes", "kernel", "clock_source"),
    *("mpi4py_version", "h5py_version", "cryptography_version", "git_commit", "git_changes"),
    *("slurm_job_id", "networks"),
}
# What launchers set for rank 0 by themselves, names, and secrets.
OF_A_LAUNCH = (
    *("OMPI_ARGV", "OMPI_COMM_WORLD_RANK", "OMPI_MCA_ess_base_vpid", "PMIX_NAMESPACE", "PMI_FD"),
    *("I_MPI_HYDRA_UUID", "SLURM_JOB_ID", "PATH", "FI_CXI_AUTH_KEY", "MPICH_PASSWORD"),
    *("I_MPI_USER_NAME", "OMPI_MCA_plm_rsh_agent", "OMPI_MCA_mca_base_env_list"),
)
STEERING = (
    *("OMPI_MCA_btl", "PMIX_MCA_gds", "PRTE_MCA_rmaps_default_mapping_policy", "UCX_TLS"),
    *("MPIR_CVAR_CH4_NETMOD", "I_MPI_FABRICS", "FI_PROVIDER", "OMP_NUM_THREADS", "LD_PRELOAD"),
    *("KMP_AFFINITY", "GLIBC_TUNABLES", "HDF5_USE_FILE_LOCKING"),
)


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Return a function that writes files, from which alone the system is read."""
    monkeypatch.setattr(machine, "CPUS", tmp_path / "cpus")
    monkeypatch.setattr(machine, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(environment, "_NETWORKS", tmp_path / "class")
    real = machine.read

    def read(path):
        path = Path(path)
        return real(path if path.is_relative_to(tmp_path) else tmp_path / path.relative_to("/"))

    monkeypatch.setattr(machine, "read", read)
    monkeypatch.setattr(environment, "read", read)

    def write(**texts):
        for name, text in texts.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)

    return write


@pytest.fixture
def cores(files, monkeypatch):
    """Return a function that makes so many cores, each with so many hardware threads."""

    def make(number, threads_each, quota="max 100000"):
        texts = {"cgroup/cpu.max": quota}
        for core in range(number):
            # As Linux numbers them: the second threads of all cores come after the first.
            threads = [core + number * k for k in range(threads_each)]
            for thread in threads:
                name = f"cpus/cpu{thread}/topology/thread_siblings_list"
                texts[name] = ",".join(map(str, threads))
        files(**texts)
        everything = set(range(number * threads_each))
        affinities = {0: everything, os.getppid(): everything}
        monkeypatch.setattr(os, "cpu_count", lambda: number * threads_each)
        monkeypatch.setattr(psutil, "cpu_count", lambda logical: number)
        monkeypatch.setattr(os, "sched_getaffinity", affinities.__getitem__)
        return affinities

    return make


def test_cores_are_counted_and_not_hardware_threads(cores, monkeypatch):
    affinities = cores(32, 2)

    assert machine.physical() == machine.usable() == 32
    assert machine.usable([0, 32]) == 1
    assert machine.usable([0, 1, 32]) == 2
    # Bound to one core, a rank has those of its launcher, or what Slurm allocated here.
    affinities[0] = {3}
    assert machine.usable() == 1
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    assert machine.usable() == 32
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "15")
    assert machine.usable() == 8
    # What ranks are allowed to use is known, and does not have to be concluded.
    assert machine.usable(range(3)) == 3


@pytest.mark.parametrize(
    ("quota", "found"), [("200000 100000", 2), ("50000 100000", 1), ("max 100000", 8), ("", 8)]
)
def test_no_more_than_the_quota_is_usable(cores, quota, found):
    cores(8, 2, quota)

    assert machine.usable() == machine.usable(range(16)) == found


def test_memory_is_what_the_host_and_the_tightest_group_leave(files):
    host = psutil.virtual_memory().available
    assert machine.memory_available() == pytest.approx(host, rel=0.2)
    step = {"memory.max": "9000\n", "memory.current": "100\n"}
    job = {"memory.max": "1000\n", "memory.current": "700\n", "memory.stat": "inactive_file 50\n"}
    files(**{"proc/self/cgroup": "0::/job/step\n"})
    files(**{f"cgroup/job/step/{name}": text for name, text in step.items()})
    files(**{f"cgroup/job/{name}": text for name, text in job.items()})
    assert machine.memory_available() == 350
    # The older groups have other files, and a container its own root.
    root = "cgroup/memory/memory."
    files(**{"proc/self/cgroup": "5:cpu:/x\n4:memory:/of/the/host\n"})
    files(**{f"{root}limit_in_bytes": "1000\n", f"{root}usage_in_bytes": "600\n"})
    files(**{f"{root}stat": "cache 7\ntotal_inactive_file 100\n"})
    assert machine.memory_available() == 500
    machine.check_memory("these", 500, "give fewer")
    with pytest.raises(UsageError, match=r"these take about .* free: give fewer"):
        machine.check_memory("these", 501, "give fewer")


def test_all_facts_are_there_and_can_be_stored_as_they_are():
    facts = environment.capture_local()

    assert set(facts) >= FACTS
    json.dumps(facts)
    lists = ("environment_variables", "networks")
    others = {name: value for name, value in facts.items() if name not in lists}
    assert all(value is None or isinstance(value, str | int | float) for value in others.values())
    assert facts["python_version"] == ".".join(map(str, sys.version_info[:3]))
    assert facts["hpcfl_version"] == hpcfl.__version__
    assert facts["memory_bytes"] >= facts["memory_available_bytes"] > 0


def test_a_system_that_tells_nothing_gives_no_error(files, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: None)
    monkeypatch.delattr(os, "sched_getaffinity")
    facts = environment.capture({}, [("a", ())])

    for name in (
        *("cores_physical", "cores_usable", "cpu_turbo", "clock_source", "binding"),
        "oversubscription_ratio",
    ):
        assert facts[name] is None, name


def test_networks_are_told_by_kind_and_rate(files):
    port = {"state": "4: ACTIVE", "link_layer": "InfiniBand", "rate": "100 Gb/sec (4X EDR)"}
    card = {"operstate": "up", "type": "1", "speed": "25000", "device/x": ""}
    found = {
        "infiniband/mlx5_0/ports/1": port,
        "infiniband/mlx5_1/ports/1": port | {"state": "1: DOWN"},
        "net/ens3": card,
        "net/virtio": card | {"speed": "-1"},
        "net/docker0": {"operstate": "up", "type": "1"},  # no device
        "net/ens4": card | {"operstate": "down"},
        "net/ib0": card | {"type": "32"},
        "cxi/cxi0": {"x": ""},
    }
    for folder, texts in found.items():
        files(**{f"class/{folder}/{name}": f"{text}\n" for name, text in texts.items()})

    assert environment.networks() == [
        *("Ethernet", "Ethernet 25000 Mbit/s", "InfiniBand 100 Gb/sec (4X EDR)", "Slingshot")
    ]


def test_only_what_changes_how_ranks_compute_and_messages_move_is_kept(monkeypatch):
    for name in OF_A_LAUNCH:
        assert environment.steering({name: "1"}) == {}
    for name in STEERING:
        assert environment.steering({name: "1"}) == {name: "1"}
        monkeypatch.setenv(name, "17")
    kept = environment.capture_local()["environment_variables"]
    assert {name: kept[name] for name in STEERING} == dict.fromkeys(STEERING, "17")


def place(host, *threads):
    return host, threads


def facts_of(**changes):
    """Return what a rank found on its host."""
    return {"cores_usable": 2, "load_1min": 0.5, "environment_variables": {}} | changes


def test_facts_of_hosts_are_counted_and_kept_where_they_differ():
    tcp = {"OMPI_MCA_btl": "tcp,self"}
    found = [facts_of(), facts_of(cores_usable=64, environment_variables=tcp), None]
    places = [place(host, 0) for host in "baabc"]
    facts = environment.capture({"transport": "mpi", "extra": 2}, places, found)

    assert (facts["hosts"], facts["host_ranks"]) == (["b", "a", "c"], [2, 2, 1])
    assert (facts["transport"], facts["extra"], facts["mpi_library"]) == ("mpi", 2, None)
    assert facts["cores_usable"] == 2
    assert facts["host_facts"] == {
        "cores_usable": [2, 64, None],
        "load_1min": [0.5, 0.5, None],
        "environment_variables": [{}, tcp, None],
    }
    # The fullest host, as far as is known.
    assert facts["oversubscription_ratio"] == 1
    assert environment.capture({}, [place("a", 0)], [facts_of()])["host_facts"] is None


@pytest.mark.parametrize(
    ("places", "binding", "mapping"),
    [
        (
            [place("a", 0, 1), place("b", 2), place("a", 1, 3), place("b", 4)],
            "hardware threads a rank: 1 to 2; ranks a thread: at most 2",
            "in turns",
        ),
        # What the system does not tell is not guessed.
        ([place("a"), place("b", 0), place("b", 0), place("a", 0)], None, "0,1,1,0"),
        ([], None, None),
    ],
)
def test_where_ranks_are_is_told_without_names(places, binding, mapping):
    facts = environment.capture({}, places, [facts_of()] * 2)

    assert (facts["binding"], facts["mapping"]) == (binding, mapping)
