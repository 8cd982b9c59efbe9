import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from commandline import hpcfl

from hpcfl.errors import HpcflError, UsageError
from hpcfl.slurm import launchers, probe
from hpcfl.slurm.script import KINDS, Job, last_cell, render, seconds
from hpcfl.slurm.submit import submit
from hpcfl.system.doctor.mpi import Implementation, Library

ROOT = Path(__file__).parents[2]
NASTY = 'a\'b "c" $(touch broken) `touch broken`; touch broken # $HOME \\ {{launch}} *'
LIMIT_SECONDS = 60


def program(folder, name, body):
    """Put a program of a few lines of shell into a folder."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)


def run_script(script, folder, **variables):
    """Run a job script as Slurm would, with the programs of folder/bin before all others."""
    return subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "SLURM_JOB_ID": "7",
            "SLURM_NTASKS": "4",
            "SLURM_TASKS_PER_NODE": "2(x2)",
            "SLURM_JOB_NODELIST": "n[1-2]",
            "SLURM_ARRAY_JOB_ID": "7",
            "SLURM_ARRAY_TASK_ID": "3",
            **variables,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )


@pytest.fixture
def recorded(tmp_path):
    """Return the file in which a stand-in for mpirun writes its arguments, NUL after each."""
    file = tmp_path / "arguments"
    program(
        tmp_path / "bin",
        "mpirun",
        f'[ "$1" = --version ] && exec echo "mpirun (Open MPI) 5"\nprintf "%s\\0" "$@" >{file}',
    )
    return file


def words(file):
    return file.read_text().split("\0")[:-1]


def test_the_committed_scripts_are_the_templates_with_the_defaults():
    committed = {path.stem: path.read_text() for path in (ROOT / "jobs" / "slurm").glob("*")}

    # Made by: hpcfl slurm render KIND > jobs/slurm/KIND.sbatch
    assert committed == {kind: render(Job(kind)) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"launcher": "srun", "ranks": 101, "module": ("gcc/13.2", "openmpi"), "activate": NASTY},
        {"arguments": (NASTY,), "results": NASTY, "nodes": 2, "ntasks_per_node": 8},
    ],
)
def test_scripts_are_valid_shell(kind, options, tmp_path):
    if kind == "scaling":
        options = {name: value for name, value in options.items() if name != "ranks"}
        options |= {"arguments": (f"strong={NASTY}",)} if "arguments" in options else {}
    script = tmp_path / "job.sbatch"
    script.write_text(render(Job(kind, **options)))
    checkers = [["bash", "-n"]]
    if shutil.which("shellcheck"):
        # What is activated is not there to be read; what is quoted is meant as it stands.
        checkers.append(["shellcheck", "--exclude=SC1090,SC1091,SC2016"])
    for checker in checkers:
        done = subprocess.run(
            [*checker, str(script)], capture_output=True, text=True, timeout=LIMIT_SECONDS
        )

        assert (done.returncode, done.stdout + done.stderr) == (0, "")
    text = script.read_text()
    assert "}}" not in text.replace(NASTY.replace("'", "'\"'\"'"), "")
    # Slurm reads directives up to the first command, and bash sees none before it.
    lines = text.splitlines()
    first = lines.index("set -eo pipefail")
    assert all(line.startswith("#") for line in lines[:first])
    assert not any(line.startswith("#SBATCH") for line in lines[first:])


def test_the_shell_takes_arguments_and_folders_as_they_were_given(tmp_path, recorded):
    done = run_script(render(Job("bench", ("sparse", "--x", NASTY), results=NASTY)), tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    command = words(recorded)
    assert command[command.index("hpcfl") :] == [
        *("hpcfl", "bench", "sparse", "--x", NASTY, "--output", NASTY)
    ]
    assert not (tmp_path / "broken").exists()


def test_modules_are_loaded_before_the_environment_is_activated(tmp_path, recorded):
    folder = tmp_path / NASTY
    (folder / "bin").mkdir(parents=True)
    # Scripts of others use variables that are not set.
    (folder / "bin" / "activate").write_text('echo "activated$unset_variable"\n')
    script = render(Job("bench", module=("gcc/13", "openmpi"), activate=NASTY))
    # Modules that are missing from the list must not end the job.
    done = run_script('module() { echo "$@"; [ "$1" = load ]; }\n' + script, tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:4] == ["load gcc/13", "load openmpi", "activated", "list"]
    assert script.startswith("#!/bin/bash -l\n")


@pytest.mark.parametrize(
    ("given", "sourced"),
    [
        (".venv", "source .venv/bin/activate"),
        ("/opt/env/bin/activate", "source /opt/env/bin/activate"),
        ("env.sh", "source ./env.sh"),
        ("-env.sh", "source ./-env.sh"),
        ("activate", "source ./activate"),
    ],
)
def test_what_is_activated(given, sourced):
    assert sourced in render(Job("bench", activate=given)).splitlines()


@pytest.mark.parametrize(
    ("variables", "ranks", "shared"),
    [
        ({"SLURM_TASKS_PER_NODE": "1(x4)"}, None, False),
        ({"SLURM_TASKS_PER_NODE": "1(x4)", "OMP_NUM_THREADS": "0"}, None, False),
        ({"SLURM_TASKS_PER_NODE": "9999,1"}, None, True),
        ({"SLURM_TASKS_PER_NODE": "1(x4)"}, 5, True),
    ],
)
def test_ranks_are_bound_unless_they_share_cores(tmp_path, recorded, variables, ranks, shared):
    done = run_script(render(Job("bench", ranks=ranks)), tmp_path, **variables)

    assert (done.returncode, done.stderr) == (0, "")
    command = words(recorded)
    free = ["--map-by", "slot:OVERSUBSCRIBE", "--bind-to", "none"]
    options = free if shared else ["--map-by", "slot", "--bind-to", "core"]
    assert command[: command.index("hpcfl")] == ["-n", str(ranks or 4), *options]
    assert ("share cores" in done.stdout) == shared


def program_of(family, folder, recorded):
    """Put the launchers of an MPI into a folder, which write down how they are called."""
    said = {
        "MPICH": "HYDRA build details:",
        "Intel MPI": "Intel(R) MPI Library for Linux* OS, Version 2021.18",
        "another": "mpirun 1.0",
    }[family]
    record = f'echo "$0 $*" | sed "s|.*/||" >{recorded}; cat "${{@: -1}}" >/dev/null 2>&1 || true'
    for name in ("mpirun", "mpiexec.hydra"):
        body = f'[ "$1" = --version ] && exec echo "{said}"\n{record}'
        program(folder, name, f'{body}\nprintf "%s\\n" "$I_MPI_PIN" >>{recorded}')


@pytest.mark.parametrize(
    ("family", "ranks", "expected"),
    [
        ("MPICH", None, ["mpirun -n 4 -bind-to core", ""]),
        ("MPICH", 9, ["mpirun -n 9", ""]),
        # Intel's mpirun is a shell script, which does not pass signals on.
        ("Intel MPI", None, ["mpiexec.hydra -bootstrap slurm -n 4", "1"]),
        ("Intel MPI", 9, ["mpiexec.hydra -bootstrap slurm -n 9", "0"]),
        ("another", 9, ["mpirun -n 9", ""]),
    ],
)
def test_every_mpi_has_its_own_launcher_and_options(tmp_path, family, ranks, expected):
    program_of(family, tmp_path / "bin", tmp_path / "called")
    done = run_script(
        render(Job("bench", ranks=ranks)), tmp_path, SLURM_TASKS_PER_NODE="1(x4)", I_MPI_PIN=""
    )

    assert (done.returncode, done.stderr) == (0, "")
    command, pin = (tmp_path / "called").read_text().splitlines()
    assert [command.partition(" hpcfl")[0], pin] == expected


@pytest.mark.parametrize("launcher", ["Open MPI", "MPICH", "srun"])
def test_the_server_has_a_node_of_its_own(tmp_path, recorded, launcher):
    program(tmp_path / "bin", "scontrol", 'printf "%s\\n" n1 n2 n3')
    # The devices' ranks are spread evenly, and nobody else is where the server is.
    expected = ["n1:1", "n2:3", "n3:2"]
    placed = f'cat "$file" >{tmp_path}/hosts'
    if launcher == "MPICH":
        body = '[ "$1" = --version ] && exec echo "HYDRA build details:"\n'
        search = 'while [ "$1" != -machinefile ]; do shift; done; file=$2; '
        program(tmp_path / "bin", "mpirun", body + search + placed)
    elif launcher == "srun":
        program(tmp_path / "bin", "hpcfl", "echo pmix")
        program(tmp_path / "bin", "srun", f"file=$SLURM_HOSTFILE; {placed}")
    job = Job(
        "bench",
        nodes=3,
        ntasks=6,
        server_node=True,
        launcher="srun" if launcher == "srun" else "mpirun",
    )
    script = render(job)
    done = run_script(script, tmp_path, SLURM_NTASKS="9", SLURM_TASKS_PER_NODE="3(x3)")

    assert (done.returncode, done.stderr) == (0, "")
    directives = [line for line in script.splitlines() if line.startswith("#SBATCH")]
    assert directives[1:4] == [
        *("#SBATCH --nodes=3", "#SBATCH --ntasks=9", "#SBATCH --ntasks-per-node=3")
    ]
    if launcher == "Open MPI":
        command = words(recorded)
        assert command[:2] == ["-n", "6"]
        assert command[command.index("--host") + 1].split(",") == expected
        return
    hosts = (tmp_path / "hosts").read_text().split()
    if launcher == "srun":
        hosts = [f"{host}:{hosts.count(host)}" for host in dict.fromkeys(hosts)]
    assert hosts == expected


def test_srun_starts_the_ranks_with_what_the_probe_finds_or_the_job_ends(tmp_path):
    program(tmp_path / "bin", "hpcfl", 'echo "Error: $*" >&2; exit 1')
    program(tmp_path / "bin", "srun", 'echo srun "$@"')
    refused = run_script(render(Job("bench", launcher="srun", mpi="pmi2")), tmp_path)
    program(tmp_path / "bin", "hpcfl", 'if [ "$*" = "slurm probe" ]; then echo pmi2; fi')
    shared = run_script(render(Job("bench", launcher="srun", ranks=9)), tmp_path)
    bound = run_script(
        render(Job("bench", launcher="srun")), tmp_path, SLURM_TASKS_PER_NODE="1(x4)"
    )

    assert refused.returncode == 1
    assert refused.stderr == "Error: slurm probe --mpi pmi2\n"
    assert "srun" not in refused.stdout
    command = "hpcfl bench sparse --output results"
    assert shared.stdout.splitlines()[-1] == (
        f"srun --mpi=pmi2 --ntasks 9 --overcommit --cpu-bind=none {command}"
    )
    assert bound.stdout.splitlines()[-1] == f"srun --mpi=pmi2 --ntasks 4 --cpu-bind=cores {command}"


def test_a_cell_of_the_array_is_run(tmp_path, recorded):
    done = run_script(render(Job("sweep-array", ("p.toml",), results="-r")), tmp_path)

    assert done.returncode == 0
    command = words(recorded)
    assert command[command.index("hpcfl") :] == [
        *("hpcfl", "sweep", "p.toml", "--output", "./-r", "--cell", "3")
    ]


STEP = re.compile(r"^\+ (.*)$", re.MULTILINE)


def scaling_steps(folder, fails="nothing", **variables):
    """Return what the script of scaling runs on two nodes of four tasks, and how it ends."""
    program(
        folder / "bin", "mpirun", '[ "$1" = --version ] && exec echo "mpirun (Open MPI) 5"; true'
    )
    wrong = f'[[ "$*" == *{fails}* ]] && exit 3\necho "table of $*"\n'
    program(folder / "bin", "hpcfl", wrong)
    script = render(Job("scaling", nodes=2, ntasks_per_node=4, results="r"))
    shape = {"SLURM_NTASKS": "8", "SLURM_TASKS_PER_NODE": "4(x2)", "SLURM_JOB_NUM_NODES": "2"}
    done = run_script(script, folder, **shape | variables)
    return STEP.findall(done.stderr), done


def test_scaling_sweeps_every_number_of_ranks_and_shows_what_came_out(tmp_path):
    steps, done = scaling_steps(tmp_path)
    sweeps = [step.partition("hpcfl ")[2] for step in steps if "sweep" in step]
    shown = [step for step in steps if " report " in step or " plot " in step]

    assert done.returncode == 0, done.stderr
    assert sweeps == [
        # 1, 2 and 4 ranks beside the server's, the first node, and all.
        *(f"sweep scaling-strong --output r/strong/{n}" for n in (2, 3, 4, 5, 8)),
        *(f"sweep scaling-weak --output r/weak/{n}" for n in (2, 3, 4, 5, 8)),
        "sweep scaling-server --output r/server-ranks",
        "sweep scaling-threads --output r/threads",
    ]
    assert [step.split()[2] for step in steps if step.startswith("mpirun")] == [
        *"2345823458", "8",
    ]  # fmt: skip
    assert steps[-3].startswith("hpcfl sweep")  # of threads, in one process
    # Folders that no run has been written to stay a pattern, which hpcfl refuses.
    assert shown[:2] == [
        "hpcfl report r/strong/* --speed-up ranks --format markdown",
        "hpcfl plot r/strong/* --kind scaling --against ranks --output r/strong-ranks.pdf",
    ]
    assert "--speed-up nodes" in shown[2]
    assert shown[-2:] == [
        "hpcfl report r/threads --speed-up threads --format markdown",
        "hpcfl plot r/threads --kind scaling --against threads --output r/threads.pdf",
    ]
    # Nothing but the table is in its file.
    table = (tmp_path / "r" / "strong-nodes.md").read_text()
    assert table.startswith("table of report ")
    assert len(table.splitlines()) == 1


def test_scaling_goes_on_after_a_step_that_fails_and_says_so_at_the_end(tmp_path):
    steps, done = scaling_steps(tmp_path, fails="scaling-threads")

    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "failed: hpcfl sweep scaling-threads --output r/threads"
    assert steps[-1].startswith("hpcfl plot r/threads")


def test_scaling_on_one_node_has_no_table_of_nodes(tmp_path):
    shape = {"SLURM_NTASKS": "2", "SLURM_TASKS_PER_NODE": "2", "SLURM_JOB_NUM_NODES": "1"}
    steps, done = scaling_steps(tmp_path, **shape)

    assert done.returncode == 0, done.stderr
    assert not any("nodes" in step for step in steps)
    assert [step.split()[2] for step in steps if step.startswith("mpirun")] == ["2", "2", "2"]


def test_with_srun_few_ranks_are_packed_onto_few_nodes(tmp_path):
    program(tmp_path / "bin", "hpcfl", 'if [ "$*" = "slurm probe" ]; then echo pmix; fi')
    program(tmp_path / "bin", "srun", "true")
    script = render(Job("scaling", ("weak=p.toml",), launcher="srun", results="r"))
    done = run_script(script, tmp_path, SLURM_TASKS_PER_NODE="2(x2)", SLURM_JOB_NUM_NODES="2")
    started = [step for step in STEP.findall(done.stderr) if step.startswith("srun")]

    assert [re.findall(r"(?:--ntasks |--nodes=)(\d+)", step) for step in started] == [
        *(["2", "1"], ["3", "2"], ["4", "2"]),
    ]


def test_a_training_goes_on_from_the_newest_checkpoint(tmp_path, recorded):
    folder = tmp_path / "my runs"
    script = render(Job("train", ("fedavg", "--checkpoint-every=2"), results="my runs"))
    first = run_script(script, tmp_path)
    command = words(recorded)

    assert first.returncode == 0
    assert command[command.index("hpcfl") :] == [
        *("hpcfl", "train", "fedavg", "--checkpoint-every=2"),
        *("--output", "my runs/train-7-0.h5"),
    ]
    for age, name in ((20, "a"), (10, "b"), (30, "c")):
        file = folder / f"{name}.checkpoint.npz"
        file.touch()
        os.utime(file, (1_000_000_000 - age,) * 2)
    run_script(script, tmp_path, SLURM_RESTART_COUNT="2")
    command = words(recorded)
    assert command[command.index("--resume") :] == [
        *("--resume", "my runs/b.checkpoint.npz", "--output", "my runs/train-7-2.h5")
    ]


@pytest.mark.parametrize("requeue", [False, True])
def test_the_signal_is_passed_on_and_the_status_comes_back(tmp_path, requeue):
    # The run gets the signal from the script, twice, and takes its time to leave.
    program(
        tmp_path / "bin",
        "mpirun",
        '[ "$1" = --version ] && exec echo "mpirun (Open MPI) 5"\n'
        'trap "((++got == 2)) && sleep 0.3 && exit 75" USR1\n'
        # By now the script knows which process it passes signals on to.
        "sleep 1; kill -USR1 $PPID; sleep 1; kill -USR1 $PPID\n"
        "for ((i = 0; i < 100; i++)); do sleep 0.05; done; exit 9",
    )
    program(tmp_path / "bin", "scontrol", 'echo "scontrol $*"')
    done = run_script(render(Job("train", requeue=requeue)), tmp_path, SLURM_TASKS_PER_NODE="1(x4)")

    last = done.stdout.splitlines()[-1]
    assert done.returncode == (0 if requeue else 75), done.stderr
    assert last == (
        "scontrol requeue 7"
        if requeue
        else "stopped by a signal: submit this script again to continue"
    )
    # A training that fails says so and is not queued again.
    program(tmp_path / "bin", "mpirun", "exit 3")
    failed = run_script(render(Job("train", requeue=requeue)), tmp_path)
    assert (failed.returncode, "scontrol" in failed.stdout) == (3, False)
    directive = "#SBATCH --requeue" if requeue else "#SBATCH --no-requeue"
    assert directive in render(Job("train", requeue=requeue)).splitlines()


def test_directives_say_what_was_asked_for():
    job = Job(
        "sweep-array", nodes=2, ntasks_per_node=8, time="1-02:03", partition="a,b", account="x_1",
        job_name="me", output="logs/%A.out", array="1-9:2%3", mem="4G",
        directive=("qos=debug", "x"),
    )  # fmt: skip
    directives = [line[8:] for line in render(job).splitlines() if line.startswith("#SBATCH")]

    assert directives == [
        *("--job-name=me", "--nodes=2", "--ntasks=16", "--ntasks-per-node=8", "--mem=4G"),
        *("--time=1-02:03", "--partition=a,b", "--account=x_1", "--array=1-9:2%3"),
        *("--output=logs/%A.out", "--exclusive", "--qos=debug", "--x", "--no-requeue"),
    ]
    # Nodes that are shared give what Slurm gives.
    assert {"#SBATCH --mem=0", "#SBATCH --exclusive"} <= set(render(Job("bench")).splitlines())
    shared = render(Job("bench", share_nodes=True))
    assert "--mem" not in shared
    assert "--exclusive" not in shared
    assert last_cell("1-9:2%30") == 9
    assert last_cell("3,12,7") == 12


def test_time_limits():
    for text, expected in {
        "90": 5400,
        "2:30": 150,
        "01:30:05": 5405,
        "2-3": 2 * 86400 + 3 * 3600,
        "1-00:30": 86400 + 1800,
        "1-02:03:04": 86400 + 7200 + 184,
    }.items():
        assert seconds(text) == expected, text
    for text in ("", "soon", "1h", "-1", "1:2:3:4", "1-", "0", "00:00:00", "١", "5\n"):
        with pytest.raises(UsageError, match="--time"):
            Job("bench", time=text)


def test_what_cannot_be_in_a_script_is_refused():
    for options, sentence in (
        ({"partition": "a b"}, "--partition"),
        ({"partition": "a\n#SBATCH --uid=0"}, "--partition"),
        ({"account": "x#y"}, "--account"),
        ({"account": ""}, "--account"),
        ({"job_name": "$(id)"}, "--job-name"),
        ({"output": "a'b"}, "--output"),
        ({"directive": ("-x",)}, "--directive"),
        ({"module": ("-h",)}, "--module"),
        ({"module": ("a;b",)}, "--module"),
        ({"activate": "a\nb"}, "--activate"),
        ({"results": "a\rb"}, "--results"),
        ({"arguments": ("sparse\ntouch broken",)}, "the command"),
        ({"arguments": ("sparse", "--output=x")}, "--results"),
        ({"results": ""}, "--results"),
        ({"nodes": 0}, "--nodes"),
        ({"ntasks": -1}, "--ntasks"),
        ({"ranks": 0}, "--ranks"),
        ({"nodes": 4, "ntasks": 3}, "some would idle"),
        ({"nodes": 2, "ntasks": 9, "ntasks_per_node": 4}, "room for 8"),
        ({"ntasks_per_node": 4}, "needs --nodes"),
        ({"server_node": True}, "needs --nodes 2 or more"),
        ({"server_node": True, "nodes": 1, "ntasks": 4}, "needs --nodes 2 or more"),
        (
            {"server_node": True, "nodes": 2, "ntasks": 9, "ntasks_per_node": 4},
            "1 with 4 tasks each hold 4 devices' ranks",
        ),
        ({"mem": "4 GB"}, "--mem"),
        ({"mpi": "pmix"}, "--mpi is for --launcher srun"),
        ({"mpi": "$(id)", "launcher": "srun"}, "--mpi"),
        ({"array": "0-3"}, "is for sweep-array"),
        ({"requeue": True}, "is for train"),
        ({"launcher": "mpiexec"}, "choose one of auto, mpirun, srun"),
        ({"kind": "sweep-array", "array": "0-3;4"}, "--array"),
        ({"kind": "sweep-array", "arguments": ("p", "--cell", "1")}, "--array"),
        ({"kind": "train", "arguments": ("fedavg", "--resume", "x")}, "--resume"),
        ({"kind": "train", "time": "2", "lead": 120}, "as soon as it starts"),
        ({"kind": "train", "lead": 0}, "--lead"),
        ({"kind": "prune"}, "prune"),
        ({"kind": "scaling", "arguments": ("weak",)}, "give STUDY=PLAN, with the studies strong"),
        ({"kind": "scaling", "arguments": ("sideways=p",)}, "give STUDY=PLAN"),
        ({"kind": "scaling", "arguments": ("weak=p", "weak=q")}, "weak twice"),
        ({"kind": "scaling", "ranks": 9}, "its ranks grow"),
    ):
        with pytest.raises(UsageError, match=sentence):
            Job(**{"kind": "bench"} | options)


def test_auto_takes_srun_only_where_only_srun_can(tmp_path, monkeypatch):
    system = tmp_path / "system"
    system.mkdir()
    (system / "bash").symlink_to(shutil.which("bash") or "bash")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{system}")
    chosen = [launchers.choose("auto"), launchers.choose("srun")]
    program(tmp_path / "bin", "srun", 'echo "MPI plugin types are..."; echo "	none" >&2')
    chosen.append(launchers.choose("auto"))
    with pytest.raises(UsageError, match=r"with pmix, pmi2 or cray_shasta: srun .* names none"):
        launchers.choose("srun")
    program(tmp_path / "bin", "srun", 'echo "srun: MPI types are..."; echo "srun: pmix_v4" >&2')
    chosen += [launchers.choose("auto"), launchers.choose("srun"), launchers.choose("mpirun")]
    with pytest.raises(UsageError, match="with pmi2: srun --mpi=list names pmix_v4"):
        launchers.choose("srun", "pmi2")
    program(tmp_path / "bin", "mpirun", "exit 1")
    chosen.append(launchers.choose("auto"))
    program(tmp_path / "bin", "srun", "echo 'srun: fatal: no configuration' >&2; exit 1")

    assert chosen == ["mpirun", "srun", "mpirun", "srun", "srun", "mpirun", "mpirun"]
    with pytest.raises(HpcflError, match="no configuration"):
        launchers.choose("srun")


LISTED = (
    'if [ "$1" = --mpi=list ]; then echo "none cray_shasta pmi2 pmix" | tr " " "\\n"; exit; fi\n'
)
WITH_PMI2 = '[ "$1" = --mpi=pmi2 ] && echo ranks 2 || { echo ranks 1; echo ranks 1; }'


@pytest.mark.parametrize(
    ("family", "asked", "srun", "found"),
    [
        ("MPICH", None, "echo ranks 2", "pmi2"),
        ("Open MPI", None, "echo ranks 2", "pmix"),
        ("Cray MPICH", None, "echo ranks 2", "cray_shasta"),
        # An Open MPI 4 that was built with Slurm's PMI2.
        ("Open MPI", None, WITH_PMI2, "pmi2"),
        ("Open MPI", "cray_shasta", "echo ranks 2", "cray_shasta"),
        (
            "Open MPI",
            None,
            "echo ranks 1; echo ranks 1",
            "pmix each of 2 ranks sees itself alone; ",
        ),
        (
            "MPICH",
            "none",
            "echo ranks 1; echo ranks 1",
            "none each of 2 ranks sees itself alone; use",
        ),
        ("MPICH", "x", "echo srun: no such plugin >&2; exit 1", "2 ranks fail: srun: no such plug"),
        ("Intel MPI", None, "echo ranks 1; echo ranks 1", "I_MPI_PMI_LIBRARY"),
    ],
)
def test_the_probe_finds_what_two_ranks_find_each_other_with(
    tmp_path, monkeypatch, family, asked, srun, found
):
    library = Library(Implementation(family, "4.1"))
    monkeypatch.setattr(probe, "find_library", lambda: library)
    program(tmp_path / "bin", "srun", LISTED + srun)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    if " " not in found and "_LIBRARY" not in found:
        assert probe.find_manager(asked) == (found, f"{family} 4.1")
        return
    with pytest.raises(HpcflError, match=f"srun cannot start {family} 4.1 here: .*{found}"):
        probe.find_manager(asked)


def test_submitting(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(UsageError, match="no sbatch on this machine"):
        submit("x")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    program(
        tmp_path / "bin", "sbatch", f'cat >{tmp_path}/script; echo "welcome 3"; echo "12;north"'
    )

    assert submit("#!/bin/bash\n") == "12"
    assert (tmp_path / "script").read_text() == "#!/bin/bash\n"
    program(tmp_path / "bin", "sbatch", 'echo "sbatch: error: invalid partition: x" >&2; exit 1')
    with pytest.raises(HpcflError, match="refuses the job: invalid partition: x"):
        submit("x")
    program(tmp_path / "bin", "sbatch", "echo hello")
    with pytest.raises(HpcflError, match="did not say which job"):
        submit("x")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["bench", "--", "sparse", "--nonsense"], "--nonsense"),
        (["train", "--", "fedavg", "--rounds", "many"], "--rounds is 'many'"),
        (["bench", "--", "sparse", "--alpha", "2"], "--alpha is 2.0; it must be above 0"),
        (["bench", "--time", "soon"], "--time is 'soon'"),
        (["sweep-array", "--results", "nowhere", "--", "p.toml"], "holds no frozen sweep"),
    ],
)
def test_wrong_use_is_refused_before_anything_is_submitted(
    arguments, sentence, tmp_path, monkeypatch
):
    program(tmp_path / "bin", "sbatch", f"touch {tmp_path}/submitted")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    done = hpcfl("slurm", "submit", *arguments)

    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "submitted").exists()


def test_the_array_has_the_cells_of_the_frozen_sweep(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("p.toml").write_text("[fixed]\ndim = 10\n[grid]\nprotocol=['fedavg']\ndevices=[2,3,4]\n")
    frozen = hpcfl("sweep", "p.toml", "--freeze", "--output", "r")
    assert frozen.returncode == 0, frozen.stderr
    array = ("sweep-array", "--results", "r")
    script = hpcfl("slurm", "render", *array, "--", "p.toml")
    beyond = hpcfl("slurm", "submit", *array, "--array", "0-3", "--", "p.toml")

    assert "#SBATCH --array=0-2" in script.stdout.splitlines()
    assert beyond.returncode == 2
    assert "the sweep has cells 0 to 2" in beyond.stderr
