"""Jobs on a real Slurm of two nodes, which cluster.sh starts on this machine."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from hpcfl.results import load

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
# Installing the packages is a part of it, once on a machine.
START_SECONDS = 220
CLUSTER_SECONDS = 900
COMMAND_SECONDS = 60
JOB_SECONDS = 150

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        not (BIN / "mpirun").exists() and shutil.which("mpirun") is None,
        reason="no mpirun: install the extra 'mpi' or an MPI of your own",
    ),
]


@pytest.fixture(scope="module")
def cluster():
    """Yield the environment in which sbatch finds the cluster."""
    # Under /tmp: the path of a Unix socket must be short.
    folder = Path(tempfile.mkdtemp(prefix="hpcfl-slurm-"))
    folder.chmod(0o755)
    # Process IDs of the cluster are those of other jobs outside of its namespace, too, and mpirun
    # names its session folder after them.
    (folder / "tmp").mkdir()
    variables = os.environ | {
        "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
        "SLURM_CONF": str(folder / "slurm.conf"),
        "TMPDIR": str(folder / "tmp"),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    script = subprocess.Popen(
        [str(HERE / "cluster.sh"), str(folder), str(CLUSTER_SECONDS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=variables,
        start_new_session=True,
    )
    assert script.stdin is not None
    assert script.stdout is not None
    assert script.stderr is not None
    too_late = threading.Timer(START_SECONDS, os.killpg, (script.pid, signal.SIGKILL))
    too_late.daemon = True
    too_late.start()
    try:
        ready = script.stdout.readline()
        too_late.cancel()
        if ready != "ready\n":
            said = script.stderr.read()
            status = script.wait(COMMAND_SECONDS)
            if status == 77:
                pytest.skip(said.strip().splitlines()[-1])
            pytest.fail(f"cluster.sh ended with status {status}: {said}")
        yield variables
    finally:
        too_late.cancel()
        script.stdin.close()
        try:
            script.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(script.pid, signal.SIGKILL)
            script.wait(20)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def folder(tmp_path, cluster):
    """Yield a folder to submit from; no job outlives its test."""
    yield tmp_path
    run(cluster, tmp_path, "scancel", "--user=root")


def run(variables, folder, *command):
    """Return what a command prints that must succeed."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done.stdout


def submitted(variables, folder, *words):
    """Submit the script that `hpcfl slurm render` prints; return the number of the job."""
    script = run(variables, folder, "hpcfl", "slurm", "render", *words)
    (folder / "job.sbatch").write_text(script)
    return run(variables, folder, "sbatch", "--parsable", "job.sbatch").strip()


def facts(variables, folder, job):
    """Return what Slurm knows of a job, of each of its tasks if it is an array."""
    lines = run(variables, folder, "scontrol", "--oneliner", "show", "job", job).splitlines()
    return [dict(re.findall(r"(\w+)=(\S*)", line)) for line in lines]


def finish(variables, folder, job, limit_seconds=JOB_SECONDS):
    """Wait for a job; return the states in which its tasks ended."""
    deadline = time.monotonic() + limit_seconds
    while True:
        states = [fact["JobState"] for fact in facts(variables, folder, job)]
        if not {"PENDING", "CONFIGURING", "RUNNING", "SIGNALING", "COMPLETING"} & set(states):
            return states
        assert time.monotonic() < deadline, f"{states} {logs(folder)}"
        time.sleep(0.3)


def logs(folder):
    return "\n".join(path.read_text() for path in sorted(folder.glob("*.out")))


def loads_pmix(cluster, folder):
    """Return whether srun starts tasks with PMIx: it offers what it cannot load, too."""
    command = ["srun", "--mpi=pmix", "true"]
    job = subprocess.run(
        command, env=cluster, cwd=folder, capture_output=True, timeout=COMMAND_SECONDS
    )
    return job.returncode == 0


@pytest.mark.parametrize("launcher", ["mpirun", "srun"])
def test_a_rendered_script_runs_across_both_nodes(cluster, folder, launcher):
    """The server has a node of its own."""
    if launcher == "srun" and not loads_pmix(cluster, folder):
        pytest.skip("this Slurm has no PMIx, or cannot load it")
    options = ("--nodes", 2, "--ntasks-per-node", 3, "--server-node", "--launcher", launcher)
    options += ("--time", 5, "--results", "my results")
    arguments = ("fedavg", "--dim", 500, "--rounds", 3, "--warmup", 0)
    job = submitted(cluster, folder, "bench", *options, "--", *arguments)

    assert finish(cluster, folder, job) == ["COMPLETED"], logs(folder)
    (path,) = (folder / "my results").glob("*.h5")
    measured = load(path)
    environment = measured.environment
    assert (measured.rounds, measured.devices) == (3, 3)
    assert (environment["hosts"], environment["host_ranks"]) == (["n1", "n2"], [1, 3])
    assert (environment["slurm_job_id"], environment["slurm_nodes"]) == (job, "2")
    assert environment["slurm_node_list"] == "n[1-2]"
    # The first rank of every host looks at it, before and after.
    before, after = (np.array(environment[f"{when}_clock_seconds"]) for when in ("before", "after"))
    assert (after > before).tolist() == [True, True]
    assert [place["host"] for place in environment["placement"]] == ["n1", "n2", "n2", "n2"]


def test_an_array_runs_every_cell_of_a_frozen_sweep(cluster, folder):
    (folder / "plan.toml").write_text(
        "[fixed]\ndim = 100\nrounds = 2\nwarmup = 0\n"
        '[grid]\nprotocol = ["fedavg", "secagg"]\ndevices = [3]\n'
    )
    run(cluster, folder, "hpcfl", "sweep", "plan.toml", "--freeze", "--output", "sweep")
    # More ranks than tasks, too.
    options = ("--ntasks", 2, "--ranks", 4, "--time", 5, "--results", "sweep")
    job = submitted(cluster, folder, "sweep-array", *options, "--", "plan.toml")

    assert finish(cluster, folder, job) == ["COMPLETED"] * 2, logs(folder)
    runs = [load(path) for path in (folder / "sweep").rglob("*.h5")]
    assert sorted(measured.protocol for measured in runs) == ["fedavg", "secagg"]
    for measured in runs:
        assert measured.rounds == 2
        assert measured.environment["ranks"] == 4
    assert len(list(folder.glob(f"slurm-{job}_[01].out"))) == 2


TINY = """
[fixed]
dim = 14_000  # two ranks of the server take half of it each
rounds = 7
warmup = 0
dropout = 0.0
protocol = "{protocol}"
[grid]
{grid}
"""


def test_one_job_makes_the_tables_and_figures_of_scaling(cluster, folder):
    plans = {
        "strong": ("secagg", "devices = [6]"),
        "server-ranks": ("secagg", "devices = [4]\nserver-ranks = [1, 2]"),
        "threads": ("secagg", "devices = [4]\nthreads = [1, 2]"),
    }
    for name, (protocol, grid) in plans.items():
        (folder / f"{name}.toml").write_text(TINY.format(protocol=protocol, grid=grid))
    # What takes half a minute to measure is here already.
    options = ("--nodes", 2, "--ntasks-per-node", 2, "--time", 10, "--results", "r")
    studies = [f"{name}=./{name}.toml" for name in plans]
    job = submitted(cluster, folder, "scaling", *options, "--", *studies)

    assert finish(cluster, folder, job, 2 * JOB_SECONDS) == ["COMPLETED"], logs(folder)
    made = {path.name for path in (folder / "r").iterdir() if path.is_file()}
    names = ("strong-ranks", "strong-nodes", "server-ranks", "threads")
    assert made == {f"{n}.{e}" for n in names for e in ("md", "pdf")}
    # Packed: two ranks are on one node, three and four on both.
    hosts = {
        path.name: load(next(path.glob("*.h5"))).environment["host_ranks"]
        for path in (folder / "r" / "strong").iterdir()
    }
    assert hosts == {"2": [2], "3": [2, 1], "4": [2, 2]}


def test_a_training_that_meets_its_time_limit_goes_on_when_submitted_again(cluster, folder):
    pytest.importorskip("torch")
    learn = ("fedavg", "--devices", 4, "--epochs", 3, "--checkpoint-every", 5, "--rounds")
    options = ("--nodes", 2, "--ntasks-per-node", 2, "--time", 5, "--results", "r")
    options += ("--signal", "B:USR1@10")
    words = ("train", *options, "--", *learn)
    job = submitted(cluster, folder, *words, 3000)
    checkpoint = folder / "r" / "train.checkpoint.npz"
    started = time.monotonic()
    while not checkpoint.exists():
        assert facts(cluster, folder, job)[0]["JobState"] in ("PENDING", "RUNNING"), logs(folder)
        assert time.monotonic() < started + JOB_SECONDS, logs(folder)
        time.sleep(0.3)
    # How long it takes to start depends on the machine: the limit is set when rounds are made.
    hours, minutes, seconds = map(int, facts(cluster, folder, job)[0]["RunTime"].split(":"))
    limit = (3600 * hours + 60 * minutes + seconds + 25) // 60 + 1
    run(cluster, folder, "scontrol", "update", f"JobId={job}", f"TimeLimit={limit}")

    assert finish(cluster, folder, job) == ["FAILED"], logs(folder)
    assert facts(cluster, folder, job)[0]["ExitCode"] == "75:0"
    assert "submit this script again" in logs(folder)
    reached = int(np.load(checkpoint)["next_round"])
    first = load(folder / "r" / "train.h5")
    assert first.rounds == reached
    assert first.environment["hosts"] == ["n1", "n2"]

    again = submitted(cluster, folder, *words, reached + 2)

    assert finish(cluster, folder, again) == ["COMPLETED"], logs(folder)
    assert "continuing r/train.h5" in logs(folder)
    second = load(folder / "r" / "train.h5")
    assert second.rounds == reached + 2
    sent = "bytes_up_total"
    assert second.training[sent][reached] > first.training[sent][-1]
    assert "complete" in run(cluster, folder, "hpcfl", "report", second.path)
