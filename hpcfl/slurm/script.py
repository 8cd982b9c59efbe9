"""Fills in the job scripts for Slurm.

The templates lie beside this module; what they give with the defaults is ``jobs/slurm/``. Whatever
a user says goes into a script either quoted for the shell, or, in ``#SBATCH`` lines, which no shell
reads, only if it has none of the characters that mean something there.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from importlib import resources
from pathlib import PurePosixPath
from textwrap import indent

from hpcfl.errors import UsageError, no_such
from hpcfl.options.definition import OptionGroup, Section, again, option
from hpcfl.options.shared import CommonOptions
from hpcfl.report.formats import counted
from hpcfl.slurm import launchers

# What a kind runs when nothing is said, and where its results go.
KINDS = {
    "bench": (("sparse",), "results"),
    "sweep-array": (("table-1",), "results/sweep"),
    "train": (("fedavg", "--aggregate", "sparse", "--rounds", "300"), "results/train"),
    "scaling": (
        (
            *("strong=scaling-strong", "weak=scaling-weak"),
            *("server-ranks=scaling-server", "threads=scaling-threads"),
        ),
        "results/scaling",
    ),
}
# The studies of the kind scaling, and the function of its script that runs the plan of each.
STUDIES = {
    "strong": "over_ranks",
    "weak": "over_ranks",
    "server-ranks": "on_all",
    "threads": "alone",
}
TASKS = 101
CHECKPOINT_EVERY = 10
ARRAY = "0-7"  # the cells of the plan table-1

# Slurm's own names, lists of them, and numbers: a blank, quote or # would mean something there.
_WORD = re.compile(r"[A-Za-z0-9_./%+:@,=\[\]~*&|()-]+")
_ARRAY = re.compile(r"\d+(-\d+(:\d+)?)?(,\d+(-\d+(:\d+)?)?)*(%[1-9]\d*)?")
_MODULE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+:@-]*")
_TIME = re.compile(
    r"(?:(?P<days>\d{1,9})-(?P<dh>\d{1,9})(?::(?P<dm>\d{1,9})(?::(?P<ds>\d{1,9}))?)?"
    r"|(?P<h>\d{1,9}):(?P<hm>\d{1,9}):(?P<hs>\d{1,9})"
    r"|(?P<m>\d{1,9})(?::(?P<s>\d{1,9}))?)"
)

# For the job's log.
_MODULE_LIST = "if command -v module >/dev/null; then module list 2>&1 || true; fi"


@dataclass(frozen=True, kw_only=True)
class Job(OptionGroup):
    """What a script is to ask Slurm for, and to run; see ``hpcfl slurm render --help``."""

    kind: str = field(kw_only=False)
    # Of hpcfl bench, sweep or train; empty for the kind's own.
    arguments: tuple[str, ...] = field(default=(), kw_only=False)
    nodes: int | None = option(
        None,
        "Nodes.",
        at_least=1,
        default_text="as few as the tasks need",
        unit="nodes",
        section=Section.SIZE,
    )
    ntasks: int | None = option(
        None,
        "Tasks, one core each.",
        at_least=1,
        default_text=str(TASKS),
        unit="tasks",
        section=Section.SIZE,
    )
    ntasks_per_node: int | None = option(
        None, "Tasks on each node.", at_least=1, unit="tasks", section=Section.SIZE
    )
    ranks: int | None = again(
        CommonOptions,
        "ranks",
        None,
        help="MPI ranks, if not one per task; more than that share cores.",
        at_least=1,
    )
    server_node: bool = option(
        False,
        "Keep the first of --nodes for the server's rank; devices use the others.",
        section=Section.SIZE,
    )
    share_nodes: bool = option(
        False,
        "Let other jobs run on the same nodes, which disturbs what is measured.",
        section=Section.SIZE,
    )
    mem: str | None = option(
        None,
        "Memory of each node, as in sbatch; the server's needs most.",
        unit="SIZE",
        default_text="all of it; with --share-nodes what Slurm gives",
        section=Section.SIZE,
    )
    time: str = option("01:00:00", "Time limit.", unit="time", section=Section.SIZE)
    partition: str | None = option(None, "Partition.", unit="name", section=Section.WHAT)
    account: str | None = option(None, "Account.", unit="name", section=Section.WHAT)
    job_name: str | None = option(
        None, "Name.", default_text="hpcfl-KIND", unit="name", section=Section.OUTPUT
    )
    output: str | None = option(
        None,
        "The job's log, as in sbatch.",
        default_text="slurm-%j.out",
        unit="pattern",
        section=Section.OUTPUT,
    )
    directive: tuple[str, ...] = option(
        (),
        "Another option of sbatch, such as qos=debug; can be repeated.",
        unit="NAME[=VALUE]",
        section=Section.ADVANCED,
    )
    module: tuple[str, ...] = option(
        (), "Module to load; can be repeated.", unit="name", section=Section.WHAT
    )
    activate: str | None = option(
        None, "Python environment to activate.", unit="PATH", section=Section.WHAT
    )
    launcher: str = option(
        "mpirun",
        "What starts the ranks; auto takes srun where only srun can.",
        choices=("auto", "mpirun", "srun"),
        section=Section.WHAT,
    )
    mpi: str | None = option(
        None,
        "srun: process manager, as srun --mpi=list names it.",
        unit="NAME",
        default_text="the first with which two ranks find each other",
        section=Section.WHAT,
    )
    results: str | None = option(None, "Folder of the results.", unit="DIR", section=Section.OUTPUT)
    array: str | None = option(
        None,
        "sweep-array: cells, as in sbatch.",
        default_text="all, from DIR",
        unit="cells",
        section=Section.WHAT,
    )
    lead: int = option(
        120,
        "train: seconds before the time limit at which to leave.",
        unit="seconds",
        section=Section.ADVANCED,
    )
    requeue: bool = option(
        False, "train: return to the queue after leaving.", section=Section.ADVANCED
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind not in KINDS:
            raise no_such("job", self.kind, KINDS)
        self._check_size()
        self._check_words()
        self._check_arguments()
        limit = seconds(self.time)
        if self.kind == "train":
            if not 1 <= self.lead <= 65535:
                raise UsageError(
                    f"--lead is {self.lead} s; Slurm takes 1 to 65535 s before the limit"
                )
            if limit <= self.lead:
                raise UsageError(
                    f"--time {self.time} is not longer than --lead, {self.lead} s: the "
                    "training would be told to leave as soon as it starts"
                )
        elif self.requeue:
            raise UsageError(
                f"--requeue is for train: {self.kind} measures, and starts afresh by hand"
            )
        if self.kind == "sweep-array":
            if self.array is not None and not _ARRAY.fullmatch(self.array):
                raise UsageError(
                    f"--array is {self.array!r}; write cells as 0-23, 0-23%4 or 3,7,12"
                )
        elif self.array is not None:
            raise UsageError(f"--array is for sweep-array, not for {self.kind}")

    @property
    def folder(self) -> str:
        """Folder of the results."""
        return self.results or KINDS[self.kind][1]

    def _check_size(self) -> None:
        if self.ntasks_per_node is not None and self.nodes is None and self.ntasks is None:
            raise UsageError("--ntasks-per-node needs --nodes or --ntasks beside it")
        if self.mpi is not None and self.launcher == "mpirun":
            raise UsageError("--mpi is for --launcher srun")
        if self.nodes is not None and self.nodes > self._tasks:
            tasks = counted(self._tasks, "task")
            raise UsageError(f"--nodes is {self.nodes}, for {tasks}: some would idle")
        if self.server_node:
            self._check_server_node()
        elif None not in (self.nodes, self.ntasks, self.ntasks_per_node):
            nodes, each = self.nodes or 0, self.ntasks_per_node or 0
            if (self.ntasks or 0) > nodes * each:
                raise UsageError(
                    f"--ntasks is {self.ntasks}, but there is room for {nodes * each}: on "
                    f"{counted(nodes, 'node')}, {counted(each, 'task')} each"
                )

    def _check_server_node(self) -> None:
        if self.nodes is None or self.nodes < 2:
            raise UsageError("--server-node needs --nodes 2 or more, the server's among them")
        room = 1 + (self.nodes - 1) * self._tasks_of_node
        if self._tasks > room:
            raise UsageError(
                f"--ntasks is {self._tasks}, but beside the server's node {self.nodes - 1} with "
                f"{counted(self._tasks_of_node, 'task')} each hold {room - 1} devices' ranks"
            )

    def _check_words(self) -> None:
        for name, value in (
            ("--partition", self.partition),
            ("--account", self.account),
            ("--job-name", self.job_name),
            ("--output", self.output),
            ("--mem", self.mem),
            ("--mpi", self.mpi),
            *(("--directive", directive) for directive in self.directive),
        ):
            if value is not None and (not _WORD.fullmatch(value) or value.startswith("-")):
                raise UsageError(
                    f"{name} is {value!r}: it goes into a #SBATCH line, which cannot hold "
                    "blanks, quotes, other special characters or a leading dash"
                )
        for module in self.module:
            if not _MODULE.fullmatch(module):
                raise UsageError(f"--module is {module!r}, which cannot be the name of a module")
        for what, value in (
            ("--activate", self.activate),
            ("--results", self.results),
            *(("the command", argument) for argument in self.arguments),
        ):
            if value is not None and not value.isprintable():
                raise UsageError(
                    f"{what} holds {value!r}: control characters cannot be in a script"
                )
            if value == "" and what != "the command":
                raise UsageError(f"{what} is empty")

    def _check_arguments(self) -> None:
        if self.kind == "scaling":
            self._check_studies()
            return
        ours = {
            "bench": {"--output": "--results"},
            "sweep-array": {
                "--output": "--results",
                **dict.fromkeys(("--cell", "--freeze", "--dry-run"), "--array"),
            },
            "train": {"--output": "--results", "--resume": "--results"},
        }[self.kind]
        for argument in self.arguments:
            option = argument.partition("=")[0]
            if option in ours:
                raise UsageError(
                    f"{option} is set by the script: give {ours[option]} before the --"
                )

    def _check_studies(self) -> None:
        if self.server_node or self.ranks is not None:
            raise UsageError("--server-node and --ranks are not for scaling: its ranks grow")
        studies = [argument.partition("=")[0] for argument in self.arguments]
        for argument, study in zip(self.arguments, studies, strict=True):
            if study not in STUDIES or not argument.partition("=")[2]:
                raise UsageError(
                    f"scaling has {argument!r} behind the --: give STUDY=PLAN, with the studies "
                    f"{', '.join(STUDIES)}"
                )
            if studies.count(study) > 1:
                raise UsageError(f"scaling has {study} twice behind the --")

    @property
    def _tasks(self) -> int:
        # Always said: not every Slurm sets SLURM_NTASKS from the nodes and the tasks of each.
        if self.ntasks is not None:
            return self.ntasks
        if self.ntasks_per_node is None:
            return TASKS
        nodes = self.nodes or 0
        return (
            1 + (nodes - 1) * self.ntasks_per_node
            if self.server_node
            else (nodes * self.ntasks_per_node)
        )

    @property
    def _tasks_of_node(self) -> int:
        """Tasks of each node where the server has one of its own."""
        others = (self.nodes or 2) - 1
        return self.ntasks_per_node or -(-(self._tasks - 1) // others)


def seconds(time: str) -> int:
    """Return how long a time limit of Slurm is, in seconds; none at all is refused."""
    found = _TIME.fullmatch(time) if time.isascii() else None
    if found is None:
        raise UsageError(
            f"--time is {time!r}; write minutes, HH:MM:SS or DAYS-HH:MM:SS, such as 01:30:00"
        )
    part = {name: int(value or 0) for name, value in found.groupdict().items()}
    total = (
        86400 * part["days"]
        + 3600 * (part["dh"] + part["h"])
        + 60 * (part["dm"] + part["hm"] + part["m"])
        + (part["ds"] + part["hs"] + part["s"])
    )
    if total == 0:
        raise UsageError(f"--time is {time}, which Slurm takes for no limit at all: give one")
    return total


def last_cell(array: str) -> int:
    """Return the highest number of a list of cells such as ``0-23%4``."""
    return max(int(number) for number in re.findall(r"\d+", re.sub(r"[:%]\d+", "", array)))


def render(job: Job) -> str:
    """Return the script of a job."""
    template = resources.files("hpcfl.slurm") / "templates" / f"{job.kind}.sbatch"
    text = template.read_text(encoding="utf-8")
    values = {
        "shebang": "#!/bin/bash -l" if job.module else "#!/bin/bash",
        "directives": "\n".join(_directives(job)),
        "environment": "\n".join(_environment(job)),
        "launch": _launch(job),
        "command": _command(job),
        "results": shlex.quote(_as_path(job.folder)),
        "lead": str(job.lead),
        "requeue": "#SBATCH --requeue" if job.requeue else "#SBATCH --no-requeue",
        "stopped": (
            'exec scontrol requeue "$SLURM_JOB_ID"'
            if job.requeue
            else 'echo "stopped by a signal: submit this script again to continue"'
        ),
    }
    # In one pass: what a user wrote is never searched for markers.
    return re.sub(r"\{\{(\w+)\}\}", lambda marker: values[marker[1]], text)


def _launch(job: Job) -> str:
    """Return the lines that set how ranks are started."""
    if job.kind == "scaling":
        # Within a function, called with each number of ranks.
        return indent(launchers.block(job.launcher, "$1", job.mpi, False), "    ")
    # Slurm counts tasks on the server's node that it does not use.
    ranks = job.ranks or (job._tasks if job.server_node else None)
    count = launchers.TASKS if ranks is None else str(ranks)
    return launchers.block(job.launcher, count, job.mpi, job.server_node)


def _directives(job: Job) -> list[str]:
    tasks, of_node = job._tasks, job.ntasks_per_node
    if job.server_node:
        # As many on every node: not every Slurm gives nodes of different numbers.
        of_node = job._tasks_of_node
        tasks = (job.nodes or 0) * of_node
    options: list[tuple[str, str | int | None]] = [
        ("job-name", job.job_name or f"hpcfl-{job.kind}"),
        ("nodes", job.nodes),
        ("ntasks", tasks),
        ("ntasks-per-node", of_node),
        ("mem", job.mem or (None if job.share_nodes else "0")),
        ("time", job.time),
        ("partition", job.partition),
        ("account", job.account),
        ("array", (job.array or ARRAY) if job.kind == "sweep-array" else None),
        ("output", job.output or f"slurm-{'%A_%a' if job.kind == 'sweep-array' else '%j'}.out"),
    ]
    lines = [f"--{name}={value}" for name, value in options if value is not None]
    if not job.share_nodes:
        lines.append("--exclusive")
    return [f"#SBATCH {line}" for line in (*lines, *(f"--{more}" for more in job.directive))]


def _environment(job: Job) -> list[str]:
    if not job.module and job.activate is None:
        return [
            "# The software, unless the job finds it where it was submitted:",
            "# module load openmpi",
            "# source .venv/bin/activate",
            _MODULE_LIST,
        ]
    lines = [f"module load {shlex.quote(module)}" for module in job.module]
    if job.activate is not None:
        path = PurePosixPath(_as_path(job.activate))
        script = path if path.name == "activate" or path.suffix == ".sh" else path / "bin/activate"
        # Without a slash bash would look for it among the programs.
        name = str(script) if "/" in str(script) else f"./{script}"
        lines.append(f"source {shlex.quote(name)}")
    return [*lines, _MODULE_LIST]


def _command(job: Job) -> str:
    """Return the command line; the script adds what only it knows."""
    arguments = job.arguments or KINDS[job.kind][0]
    if job.kind == "scaling":
        pairs = [argument.partition("=") for argument in arguments]
        return "\n".join(
            shlex.join([STUDIES[study], study, _as_path(plan)]) for study, _, plan in pairs
        )
    words = ["hpcfl", "sweep" if job.kind == "sweep-array" else job.kind, *arguments]
    if job.kind == "train":
        names = {argument.partition("=")[0] for argument in arguments}
        if "--checkpoint-every" not in names:
            words += ["--checkpoint-every", str(CHECKPOINT_EVERY)]
    else:
        words += ["--output", _as_path(job.folder)]
    return shlex.join(words)


def _as_path(text: str) -> str:
    """Return a path that no program takes for an option."""
    return f"./{text}" if text.startswith("-") else text
