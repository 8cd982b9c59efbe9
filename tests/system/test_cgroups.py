import pytest

from hpcfl.system import cgroups, environment


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Return what writes files of a machine's control groups."""
    monkeypatch.setattr(cgroups, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(cgroups, "_CGROUPS", tmp_path / "cgroup")

    def write(groups, files):
        for name, text in {"proc/self/cgroup": groups, **files}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)

    return write


def test_without_limits_nothing_is_known(machine):
    assert cgroups.memory_left_bytes() is None
    machine("0::/job\n", {"cgroup/job/memory.max": "max\n", "cgroup/job/memory.current": "5\n"})
    assert cgroups.memory_left_bytes() is None


def test_the_limit_of_a_group_above_counts_where_it_is_the_tightest(machine):
    step = {"memory.max": "9000\n", "memory.current": "100\n"}
    job = {"memory.max": "1000\n", "memory.current": "700\n", "memory.stat": "inactive_file 50\n"}
    files = {f"cgroup/job/step/{name}": text for name, text in step.items()}
    files |= {f"cgroup/job/{name}": text for name, text in job.items()}
    machine("0::/job/step\n", files)

    assert cgroups.memory_left_bytes() == 350


def test_the_older_groups_have_other_files_and_a_container_its_own_root(machine):
    root = "cgroup/memory/memory."
    files = {
        f"{root}limit_in_bytes": "1000\n",
        f"{root}usage_in_bytes": "600\n",
        f"{root}stat": "cache 7\ntotal_inactive_file 100\n",
    }
    machine("5:cpu:/x\n4:memory:/of/the/host\n0::/\n", files)

    assert cgroups.memory_left_bytes() == 500


def test_memory_is_what_both_the_host_and_the_group_leave(machine, monkeypatch):
    monkeypatch.setattr(environment, "_memory", lambda: {"MemAvailable": 400})
    assert environment.memory_available_bytes() == 400
    machine("0::/\n", {"cgroup/memory.max": "900\n", "cgroup/memory.current": "600\n"})
    assert environment.memory_available_bytes() == 300
