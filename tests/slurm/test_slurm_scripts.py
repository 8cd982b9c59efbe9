import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from commandline import hpcfl, invoke, refusal

from hpcfl.errors import HpcflError
from hpcfl.slurm import probe
from hpcfl.slurm.script import KINDS, Job, directives, render
from hpcfl.system.doctor import Implementation

ROOT = Path(__file__).parents[2]
NASTY = 'a\'b "c" $(touch broken) `touch broken`; touch broken # $HOME \\ {{launch}} *'
LIMIT_SECONDS = 60
OPEN_MPI = '[ "$1" = --version ] && exec echo "mpirun (Open MPI) 5"\n'
STEP = re.compile(r"^\+ (.*)$", re.MULTILINE)


@pytest.fixture
def run(tmp_path):
    """Return a function that runs a job as Slurm would on two nodes, with programs of its own."""

    def start(job, variables=None, **programs):
        for name, body in programs.items():
            path = tmp_path / "bin" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"#!/bin/bash\n{body}\n")
            path.chmod(0o755)
        return subprocess.run(
            ["bash", "-c", render(job)],
            cwd=tmp_path,
            env={
                "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
                "SLURM_JOB_ID": "7",
                "SLURM_NTASKS": "4",
                "SLURM_TASKS_PER_NODE": "1(x4)",
                "SLURM_JOB_NUM_NODES": "2",
                "SLURM_JOB_NODELIST": "n[1-2]",
                "SLURM_ARRAY_TASK_ID": "3",
                **(variables or {}),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
        )

    return start


@pytest.fixture
def words(tmp_path, run):
    """Return a function that runs a job, and returns how it called mpirun, and what it printed."""
    file = tmp_path / "arguments"

    def started(job, variables=None, **programs):
        done = run(
            job, variables, **{"mpirun": f'{OPEN_MPI}printf "%s\\0" "$@" >{file}', **programs}
        )
        assert (done.returncode, done.stderr) == (0, "")
        return file.read_text().split("\0")[:-1], done.stdout

    return started


def test_the_committed_scripts_are_the_templates_with_the_defaults():
    committed = {path.stem: path.read_text() for path in (ROOT / "jobs" / "slurm").glob("*")}

    # Made by: hpcfl slurm render KIND > jobs/slurm/KIND.sbatch
    assert committed == {kind: render(Job(kind)) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_scripts_are_valid_shell_and_sbatch_finds_its_options(kind, tmp_path):
    arguments = (f"strong={NASTY}",) if kind == "scaling" else (NASTY,)
    job = Job(kind, arguments=arguments, results=NASTY, setup=("module load a", "source b"))
    script = tmp_path / "job.sbatch"
    script.write_text(render(job))
    checkers = [["bash", "-n"]]
    if shutil.which("shellcheck"):
        # What is activated is not there to be read; what is quoted is meant as it stands.
        checkers.append(["shellcheck", "--exclude=SC1090,SC1091,SC2016"])
    for checker in checkers:
        done = subprocess.run([*checker, script], capture_output=True, text=True)
        assert (done.returncode, done.stdout + done.stderr) == (0, "")
    # Slurm reads directives up to the first command.
    lines = script.read_text().splitlines()
    first = lines.index("set -eo pipefail")
    assert all(line.startswith("#") for line in lines[:first])
    assert not any(line.startswith("#SBATCH") for line in lines[first:])


def test_the_shell_takes_arguments_and_folders_as_they_were_given(words, tmp_path):
    # Scripts of others use variables that are not set.
    job = Job(
        "bench", arguments=("sparse", "--x", NASTY), results=NASTY, setup=("echo ready$unset",)
    )
    command, said = words(job)

    assert command[command.index("hpcfl") :] == [
        *("hpcfl", "bench", "sparse", "--x", NASTY, "--output", NASTY)
    ]
    assert said == "ready\n"
    assert not (tmp_path / "broken").exists()
    assert render(job).startswith("#!/bin/bash -l\n")
    command, _ = words(Job("sweep-array", arguments=("p.toml",), results="-r"))
    assert command[command.index("hpcfl") :] == [
        *("hpcfl", "sweep", "p.toml", "--output", "./-r", "--cell", "3")
    ]


@pytest.mark.parametrize(
    ("variables", "ranks", "shared"),
    [
        ({}, None, False),
        ({"SLURM_TASKS_PER_NODE": "9999,1"}, None, True),
        ({}, 5, True),
    ],
)
def test_ranks_are_bound_unless_they_share_cores(words, variables, ranks, shared):
    command, said = words(Job("bench", ranks=ranks), variables)

    free = ["--map-by", "slot:OVERSUBSCRIBE", "--bind-to", "none"]
    options = free if shared else ["--map-by", "slot", "--bind-to", "core"]
    assert command[: command.index("hpcfl")] == ["-n", str(ranks or 4), *options]
    assert ("share cores" in said) == shared


@pytest.mark.parametrize(
    ("told", "ranks", "expected"),
    [
        ("HYDRA build details:", None, "mpirun -n 4 -bind-to core hpcfl"),
        # Intel's mpirun is a shell script, which does not pass signals on.
        ("Intel(R) MPI Library", None, "mpiexec.hydra 1 -bootstrap slurm -n 4 hpcfl"),
        ("mpirun 1.0", 9, "mpirun -n 9 hpcfl"),
    ],
)
def test_every_mpi_has_its_own_launcher_and_options(run, told, ranks, expected):
    mpirun = f'[ "$1" = --version ] && exec echo "{told}"\necho "mpirun $*"'
    programs = {"mpirun": mpirun, "mpiexec.hydra": 'echo "mpiexec.hydra $I_MPI_PIN $*"'}
    done = run(Job("bench", ranks=ranks), **programs)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith(expected)


def test_the_server_has_a_node_of_its_own(words, tmp_path):
    """The devices' ranks are spread evenly, and nobody else is where the server is."""
    variables = {"SLURM_NTASKS": "9", "SLURM_TASKS_PER_NODE": "3(x3)", "SLURM_JOB_NUM_NODES": "3"}
    nodes = {"scontrol": 'printf "%s\\n" n1 n2 n3'}
    command, _ = words(Job("bench", ranks=6, server_node=True), variables, **nodes)
    assert command[:2] == ["-n", "6"]
    assert command[command.index("--host") + 1].split(",") == ["n1:1", "n2:3", "n3:2"]
    all_tasks, _ = words(Job("bench", server_node=True), variables, **nodes)
    assert all_tasks[:2] == ["-n", "7"]
    placed = {"srun": f"cat $SLURM_HOSTFILE >{tmp_path}/arguments", "hpcfl": "echo pmix"}
    words(Job("bench", ranks=6, server_node=True, launcher="srun"), variables, **nodes, **placed)
    hosts = (tmp_path / "arguments").read_text().split()
    assert hosts == ["n1", *["n2"] * 3, *["n3"] * 2]


def test_srun_starts_the_ranks_with_what_the_probe_finds_or_the_job_ends(run):
    wrong = run(Job("bench", launcher="srun"), hpcfl="exit 1", srun='echo srun "$@"')
    bound = run(Job("bench", launcher="srun"), hpcfl="echo pmi2")
    shared = run(Job("bench", launcher="srun", ranks=9))

    assert (wrong.returncode, "srun" in wrong.stdout) == (1, False)
    command = "hpcfl bench sparse --output results\n"
    assert bound.stdout == f"srun --mpi=pmi2 --ntasks 4 --cpu-bind=cores {command}"
    assert shared.stdout.endswith(
        f"srun --mpi=pmi2 --ntasks 9 --overcommit --cpu-bind=none {command}"
    )


def test_scaling_sweeps_every_number_of_ranks_and_goes_on_after_a_step_that_fails(run, tmp_path):
    shape = {"SLURM_NTASKS": "8", "SLURM_TASKS_PER_NODE": "4(x2)"}
    job = Job("scaling", results="r")
    failing = '[ "$2" != scaling-threads ]'
    failed = run(job, shape, hpcfl=failing, mpirun=f"{OPEN_MPI}true")
    done = run(job, shape, hpcfl='echo "table of $*"')
    steps = STEP.findall(done.stderr)
    sweeps = [step for step in steps if "sweep" in step]

    assert done.returncode == 0, done.stderr
    # 1, 2 and 4 ranks beside the server's, the first node, and all.
    assert [step.split()[2] for step in sweeps[:-1]] == [*"23458", *"23458", "8"]
    assert sweeps[4].endswith("hpcfl sweep scaling-strong --output r/strong/8")
    assert sweeps[-1] == "hpcfl sweep scaling-threads --output r/threads"
    shown = [step for step in steps if " report " in step or " plot " in step]
    assert shown[:2] == [
        "hpcfl report r/strong/* --speed-up ranks --format markdown",
        "hpcfl plot r/strong/* --kind scaling --against ranks --output r/strong-ranks.pdf",
    ]
    assert "--speed-up nodes" in shown[2]
    # Nothing but the table is in its file.
    assert (tmp_path / "r/strong-nodes.md").read_text().splitlines()[1:] == []
    assert failed.returncode == 1
    assert failed.stdout.endswith("failed: hpcfl sweep scaling-threads --output r/threads\n")
    assert "plot r/threads" in failed.stderr


def test_silos_have_a_table_also_where_a_cell_failed(run, tmp_path):
    (tmp_path / "r").mkdir()
    programs = {"mpirun": f'{OPEN_MPI}echo "ran $*"; exit 1', "hpcfl": 'echo "table of $2"'}
    done = run(Job("silo", results="r"), **programs)

    assert done.returncode == 1
    assert done.stdout.endswith("hpcfl sweep silo --output r\n")
    assert (tmp_path / "r" / "silo.md").read_text() == "table of r\n"


def test_a_training_goes_on_in_its_file_once_there_is_a_checkpoint(words, tmp_path):
    job = Job("train", arguments=("fedavg", "--checkpoint-every=2"), results="my runs")
    command, _ = words(job)
    assert command[command.index("hpcfl") :] == [
        *("hpcfl", "train", "fedavg", "--checkpoint-every=2", "--output", "my runs/train.h5")
    ]
    (tmp_path / "my runs" / "train.checkpoint.npz").touch()
    command, _ = words(job, {"SLURM_RESTART_COUNT": "2"})
    assert command[-2:] == ["--resume", "my runs/train.h5"]


@pytest.mark.parametrize("requeue", [False, True])
def test_the_signal_is_passed_on_and_the_status_comes_back(run, requeue):
    # The run gets the signal from the script, twice, and takes its time to leave.
    mpirun = (
        f'{OPEN_MPI}trap "((++got == 2)) && sleep 0.3 && exit 75" USR1\n'
        # By now the script knows which process it passes signals on to.
        "sleep 0.5; kill -USR1 $PPID; sleep 0.5; kill -USR1 $PPID\n"
        "for ((i = 0; i < 100; i++)); do sleep 0.05; done; exit 9"
    )
    done = run(Job("train"), mpirun=mpirun, scontrol=f'echo "$*" Requeue={requeue:d}')

    assert done.returncode == (0 if requeue else 75), done.stderr
    assert done.stdout.splitlines()[-1].startswith("requeue 7" if requeue else "stopped by a")
    # A training that fails says so and is not queued again.
    failed = run(Job("train"), mpirun="exit 3")
    assert (failed.returncode, "requeue" in failed.stdout) == (3, False)


def test_options_of_sbatch_pass_through_and_replace_ours():
    words = ("--nodes", "2", "--ntasks-per-node=8", "-p", "a", "--mem=4G", "--requeue")
    assert directives(Job("train", sbatch=words)) == [
        *("--job-name=hpcfl-train", "--time=01:00:00", "--exclusive", "--signal=B:USR1@120"),
        *("--nodes=2", "--ntasks-per-node=8", "-p a", "--mem=4G", "--requeue"),
    ]
    found = invoke("slurm", "render", "bench", "--ntasks", 16, "-t5", "--", "secagg", "--dim", 4)
    assert "#SBATCH --ntasks=16\n#SBATCH -t5\n" in found.stdout
    assert "hpcfl bench secagg --dim 4 --output results\n" in found.stdout


def test_a_frozen_sweep_says_how_many_cells_there_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.toml").write_text(
        '[grid]\ndevices = [3]\nprotocol = ["fedavg", "secagg", "prf"]\n'
    )
    words = ("sweep-array", "--results", "s", "--", "plan.toml")
    assert hpcfl("sweep", "plan.toml", "--freeze", "--output", "s").returncode == 0
    assert "#SBATCH --array=0-2\n" in invoke("slurm", "render", *words).stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("bench", "--partition", "a b"), "cannot be in an #SBATCH line"),
        (("bench", "--", "sparse", "--output=x"), "give --results before the --"),
        (("bench", "--", "sparse", "--dum", "4"), "--dum"),
        (("scaling", "--server-node"), "not for scaling"),
        (("scaling", "--", "weak"), "give STUDY=PLAN"),
    ],
)
def test_what_would_fail_in_the_queue_is_refused_at_once(words, sentence):
    assert sentence in refusal("slurm", "render", *words)


def test_the_probe_finds_what_two_ranks_find_each_other_with(tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "find_library", lambda: Implementation("Open MPI", "5.0.11"))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    srun = tmp_path / "srun"
    srun.write_text(
        "#!/bin/bash\n"
        'if [ "$1" = --mpi=list ]; then\n'
        '    printf "%s\\n" "MPI plugin types are..." none pmi2 "srun: pmix" pmix_v4 >&2\n'
        'elif [ "$1" = --mpi=pmi2 ]; then echo ranks 2\n'
        "else echo ranks 1; echo ranks 1; fi\n"
    )
    srun.chmod(0o755)

    assert probe.find_manager() == "pmi2"
    srun.write_text(srun.read_text().replace("--mpi=pmi2 ]", "--mpi=none ]"))
    with pytest.raises(HpcflError, match="with --mpi=pmix each of 2 ranks sees itself alone"):
        probe.find_manager()
