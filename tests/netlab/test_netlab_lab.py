"""Real labs: they need root and a kernel that can do it, and leave nothing behind."""

import contextlib
import os
import signal
import subprocess
import time

import pytest
from click.testing import CliRunner
from labs import hpcfl, left_behind, star

from hpcfl.cli import group
from hpcfl.errors import HpcflError
from hpcfl.netlab import lab
from hpcfl.netlab.links import Link
from hpcfl.netlab.plan import LabPlan, owner_name
from hpcfl.netlab.probe import transfer
from hpcfl.results import load

pytestmark = pytest.mark.full

LIMIT_SECONDS = 200
# Slow enough that processors never are what takes the time.
LINK = Link(16e6)
TRANSFER_BYTES = 500_000


@pytest.fixture(autouse=True)
def _nothing_left_behind():
    yield

    assert left_behind() == []


@pytest.fixture
def own_plan():
    return star(3, LINK, owner=lab.my_owner_name())


@pytest.mark.usefixtures("needs_lab")
@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_transfer_takes_its_size_over_the_links_rate(own_plan, direction):
    """The link is a lower bound, which no load on the machine can break."""
    with lab.lab(own_plan):
        [alone] = transfer(own_plan, own_plan.devices[:1], direction, TRANSFER_BYTES)
        together = transfer(own_plan, own_plan.devices, direction, TRANSFER_BYTES)

    assert alone.ideal_seconds == pytest.approx(0.25)
    assert [done.device for done in together] == ["device0", "device1", "device2"]
    assert min(done.seconds for done in [alone, *together]) >= 0.9 * alone.ideal_seconds
    # With one link for all it would be at least three times as long.
    assert max(done.seconds for done in together) < 2.5 * max(alone.seconds, alone.ideal_seconds)


def both(size, *links):
    """Return what a device's transfers of a size take, up and down."""
    plan = star(1, *links, owner=lab.my_owner_name())
    with lab.lab(plan):
        return [transfer(plan, plan.devices, way, size)[0] for way in ("up", "down")]


@pytest.mark.usefixtures("needs_lab")
def test_each_direction_has_its_own_rate():
    up, down = both(100_000, Link(4e6), Link(16e6))

    assert (up.ideal_seconds, down.ideal_seconds) == pytest.approx((0.2, 0.05))
    assert up.seconds >= 0.9 * up.ideal_seconds
    assert down.seconds >= 0.9 * down.ideal_seconds


@pytest.mark.usefixtures("needs_delay")
def test_a_delay_is_paid_each_way():
    assert min(done.seconds for done in both(10_000, Link(16e6, 0.1))) >= 0.2


@pytest.mark.usefixtures("needs_lab")
def test_a_servers_rate_is_shared_by_all_devices():
    plan = star(3, LINK, server=LINK, owner=lab.my_owner_name())
    with lab.lab(plan):
        together = transfer(plan, plan.devices, "down", TRANSFER_BYTES)

    assert max(done.seconds for done in together) >= 3 * 0.9 * together[0].ideal_seconds


@pytest.mark.usefixtures("needs_lab")
def test_a_lab_that_cannot_be_built_is_taken_down(own_plan, monkeypatch):
    groups = [*own_plan.build(), (own_plan.server.namespace, [["ip", "link", "set", "no0", "up"]])]
    monkeypatch.setattr(LabPlan, "build", lambda self: groups)

    with pytest.raises(HpcflError, match=r"cannot be built.*no0"), lab.lab(own_plan):
        pytest.fail("it was built")
    assert [name for name in lab._names() if name.startswith(own_plan.owner)] == []


@pytest.mark.usefixtures("needs_lab")
def test_processes_end_with_the_lab_even_if_they_do_not_want_to(own_plan):
    stubborn = "trap '' TERM; echo ready; while :; do sleep 1; done"
    with lab.lab(own_plan):
        inside = ["ip", "netns", "exec", own_plan.devices[0].namespace, "sh", "-c", stubborn]
        process = subprocess.Popen(inside, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert process.pid in lab.processes_in([own_plan.devices[0].namespace])
        assert lab.processes_in([own_plan.devices[1].namespace]) == []

    assert process.wait(10) == -signal.SIGKILL
    process.stdout.close()


@pytest.mark.usefixtures("needs_lab")
def test_labs_of_the_dead_are_swept_and_those_of_the_living_left():
    mine, dead = lab.my_owner_name(), owner_name(os.getpid(), 1)
    for owner in (mine, dead):
        subprocess.run(["ip", "netns", "add", f"{owner}device0"], check=True)
        (lab.FOLDERS / owner.rstrip("-")).mkdir()
    try:
        assert dead in lab.sweep()
        assert (lab.NAMESPACES / f"{mine}device0").exists()
        assert not (lab.NAMESPACES / f"{dead}device0").exists()
        assert not (lab.FOLDERS / dead.rstrip("-")).exists()
    finally:
        lab.remove(mine)
    assert not (lab.NAMESPACES / f"{mine}device0").exists()
    assert not (lab.FOLDERS / mine.rstrip("-")).exists()


@pytest.mark.usefixtures("needs_lab")
def test_the_command_checks_a_lab():
    result = CliRunner().invoke(group, ["netlab", "--hosts", "2", "--rate", "16mbit", "--check"])

    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.output.splitlines()[1:]]
    expected = ["device0", "device0", "device0", "device1", "device0", "device1"]
    assert [row[0] for row in rows] == expected
    assert min(float(row[-1]) for row in rows) >= 0.9


@pytest.mark.usefixtures("needs_mpi")
def test_a_bench_in_a_lab_says_so_and_takes_what_its_links_take(tmp_path):
    path = tmp_path / "lab.h5"
    bench = ("fedavg", "--dim", 100_000, "--dropout", 0, "--rounds", 2, "--warmup", 0)
    job = hpcfl(
        *("netlab", "--hosts", 3, "--rate", "16mbit", "--", "bench", *bench, "--output", path)
    )
    output, errors = _finish(job)

    assert job.returncode == 0, errors
    assert "netlab" in output
    run = load(path)
    assert run.status == "complete"
    assert run.validated.all()
    assert run.environment["transport"] == "netlab"
    assert run.environment["netlab_hosts"] == 3
    assert run.environment["netlab_uplink_mbps"] == 16
    assert run.environment["hosts"] == ["server", "device0", "device1", "device2"]
    # 0.4 MB down, then 0.4 MB up.
    assert run.round_seconds.min() >= 0.9 * 2 * 8 * 400_000 / 16e6


@pytest.mark.usefixtures("needs_mpi")
def test_the_exit_status_and_error_of_the_run_are_passed_on():
    job = hpcfl("netlab", "--hosts", 1, "--", "bench", "nonsense")
    _, errors = _finish(job)

    assert job.returncode == 2
    assert "nonsense" in errors


@pytest.mark.usefixtures("needs_mpi")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_taken_down(number, tmp_path):
    job, namespaces = _long_run(tmp_path)
    job.send_signal(number)
    _, errors = _finish(job, 60)

    assert job.returncode == 128 + number
    assert f"interrupted by {number.name}" in errors
    assert "Traceback" not in errors
    assert not any((lab.NAMESPACES / name).exists() for name in namespaces)


@pytest.mark.usefixtures("needs_mpi")
def test_a_killed_run_is_cleaned_up_by_the_next(tmp_path):
    job, namespaces = _long_run(tmp_path)
    job.kill()
    _finish(job, 60)
    assert all((lab.NAMESPACES / name).exists() for name in namespaces)

    owner = owner_name(job.pid, 0).rsplit("-", 2)[0]
    assert any(prefix.startswith(owner) for prefix in lab.sweep())
    assert not any((lab.NAMESPACES / name).exists() for name in namespaces)


def _long_run(folder):
    """Start a run that takes long; return it and its namespaces once it is in its rounds."""
    path = folder / "long.h5"
    bench = ("fedavg", "--dim", 100_000, "--dropout", 0, "--rounds", 100_000, "--output", path)
    job = hpcfl("netlab", "--hosts", 2, "--rate", "16mbit", "--", "bench", *bench)
    end = time.monotonic() + LIMIT_SECONDS
    while not path.exists() and job.poll() is None and time.monotonic() < end:
        time.sleep(0.1)
    if job.poll() is not None or not path.exists():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGTERM)
        pytest.fail(f"the run did not start: {_finish(job, 60)}")
    prefix = f"hpcfl-netlab-{job.pid}-"
    return job, [name for name in os.listdir(lab.NAMESPACES) if name.startswith(prefix)]


def _finish(job, limit_seconds=LIMIT_SECONDS):
    try:
        return job.communicate(timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        job.terminate()  # so that it takes its lab down
        out, errors = job.communicate(timeout=60)
        pytest.fail(f"the run hung for {limit_seconds} s\n{out}\n{errors}")
