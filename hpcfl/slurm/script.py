"""Fills in the job scripts for Slurm.

The templates lie beside this module; what they give with the defaults is ``jobs/slurm/``. Whatever
a user says goes into a script either quoted for the shell, or, in ``#SBATCH`` lines, which no shell
reads, only if it has none of the characters that mean something there.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from importlib import resources
from pathlib import PurePosixPath

from hpcfl.errors import UsageError
from hpcfl.slurm import launchers

# What a kind runs when nothing is said, and where its results go.
KINDS = {
    "bench": (("sparse",), "results"),
    "sweep-array": (("examples/sweep_table1.toml",), "results/sweep"),
    "train": (("fedavg", "--aggregate", "sparse", "--rounds", "300"), "results/train"),
}
TASKS = 101
CHECKPOINT_EVERY = 10
ARRAY = "0-7"  # the cells of examples/sweep_table1.toml

# Slurm's own names, lists of them, and numbers: a blank, quote or # would mean something there.
_WORD = re.compile(r"[A-Za-z0-9_./%+:@,=\[\]~*&|()-]+")
_ARRAY = re.compile(r"\d+(-\d+(:\d+)?)?(,\d+(-\d+(:\d+)?)?)*(%[1-9]\d*)?")
_MODULE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+:@-]*")
_TIME = re.compile(
    r"(?:(?P<days>\d+)-(?P<dh>\d+)(?::(?P<dm>\d+)(?::(?P<ds>\d+))?)?"
    r"|(?P<h>\d+):(?P<hm>\d+):(?P<hs>\d+)"
    r"|(?P<m>\d+)(?::(?P<s>\d+))?)"
)


@dataclass(frozen=True)
class Job:
    """What a script is to ask Slurm for, and to run; see ``hpcfl slurm render --help``."""

    kind: str
    arguments: tuple[str, ...] = ()  # of hpcfl bench, sweep or train; empty for the kind's own
    results: str | None = None
    nodes: int | None = None
    tasks: int | None = None
    tasks_per_node: int | None = None
    ranks: int | None = None  # if not one for each task; more of them share cores
    time: str = "01:00:00"
    partition: str | None = None
    account: str | None = None
    name: str | None = None
    log: str | None = None
    directives: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    activate: str | None = None
    launcher: str = "mpirun"
    array: str | None = None
    lead_seconds: int = 120
    requeue: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"there is no job {self.kind!r}; choose one of {', '.join(KINDS)}")
        self._check_size()
        self._check_words()
        self._check_arguments()
        limit = seconds(self.time)
        if self.kind == "train":
            if not 1 <= self.lead_seconds <= 65535:
                raise UsageError(
                    f"--lead is {self.lead_seconds} s; Slurm takes 1 to 65535 s before the limit"
                )
            if limit <= self.lead_seconds:
                raise UsageError(
                    f"--time {self.time} is not longer than --lead, {self.lead_seconds} s: the "
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
        for option, value in (
            ("--nodes", self.nodes),
            ("--ntasks", self.tasks),
            ("--ntasks-per-node", self.tasks_per_node),
            ("--ranks", self.ranks),
        ):
            if value is not None and value < 1:
                raise UsageError(f"{option} is {value}; it must be at least 1")
        if self.tasks_per_node is not None and self.nodes is None and self.tasks is None:
            raise UsageError("--ntasks-per-node needs --nodes or --ntasks beside it")
        if self.nodes is not None and self.nodes > self._tasks:
            raise UsageError(f"--nodes is {self.nodes}, for {self._tasks} tasks: some would idle")
        if None not in (self.nodes, self.tasks, self.tasks_per_node):
            room = (self.nodes or 0) * (self.tasks_per_node or 0)
            if (self.tasks or 0) > room:
                raise UsageError(
                    f"--ntasks is {self.tasks}, but {self.nodes} nodes with {self.tasks_per_node} "
                    f"tasks each hold {room}"
                )

    def _check_words(self) -> None:
        for option, value in (
            ("--partition", self.partition),
            ("--account", self.account),
            ("--job-name", self.name),
            ("--output", self.log),
            *(("--directive", directive) for directive in self.directives),
        ):
            if value is not None and (not _WORD.fullmatch(value) or value.startswith("-")):
                raise UsageError(
                    f"{option} is {value!r}: it goes into a #SBATCH line, which cannot hold "
                    "blanks, quotes, other special characters or a leading dash"
                )
        for module in self.modules:
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
        for option, value in (("--activate", self.activate), ("--results", self.results)):
            if value == "":
                raise UsageError(f"{option} is empty")
        if self.launcher not in launchers.BLOCKS:
            raise UsageError(f"--launcher is {self.launcher!r}; choose mpirun or srun")

    def _check_arguments(self) -> None:
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

    @property
    def _tasks(self) -> int:
        # Always said: not every Slurm sets SLURM_NTASKS from the nodes and the tasks of each.
        if self.tasks is not None:
            return self.tasks
        return (self.nodes or 0) * self.tasks_per_node if self.tasks_per_node else TASKS


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
        "shebang": "#!/bin/bash -l" if job.modules else "#!/bin/bash",
        "directives": "\n".join(_directives(job)),
        "environment": "\n".join(_environment(job)),
        "launch": launchers.block(job.launcher, job.ranks),
        "command": _command(job),
        "results": shlex.quote(_as_path(job.folder)),
        "lead": str(job.lead_seconds),
        "requeue": "#SBATCH --requeue" if job.requeue else "#SBATCH --no-requeue",
        "stopped": (
            'exec scontrol requeue "$SLURM_JOB_ID"'
            if job.requeue
            else 'echo "told to leave: submit this script again to go on"'
        ),
    }
    # In one pass: what a user wrote is never searched for markers.
    return re.sub(r"\{\{(\w+)\}\}", lambda marker: values[marker[1]], text)


def _directives(job: Job) -> list[str]:
    options: list[tuple[str, str | int | None]] = [
        ("job-name", job.name or f"hpcfl-{job.kind}"),
        ("nodes", job.nodes),
        ("ntasks", job._tasks),
        ("ntasks-per-node", job.tasks_per_node),
        ("time", job.time),
        ("partition", job.partition),
        ("account", job.account),
        ("array", (job.array or ARRAY) if job.kind == "sweep-array" else None),
        ("output", job.log or f"slurm-{'%A_%a' if job.kind == 'sweep-array' else '%j'}.out"),
    ]
    lines = [f"--{name}={value}" for name, value in options if value is not None]
    return [f"#SBATCH {line}" for line in (*lines, *(f"--{more}" for more in job.directives))]


def _environment(job: Job) -> list[str]:
    if not job.modules and job.activate is None:
        return [
            "# The software, unless the job finds it where it was submitted:",
            "# module load openmpi",
            "# source .venv/bin/activate",
        ]
    lines = [f"module load {shlex.quote(module)}" for module in job.modules]
    if job.activate is not None:
        path = PurePosixPath(_as_path(job.activate))
        script = path if path.name == "activate" or path.suffix == ".sh" else path / "bin/activate"
        # Without a slash bash would look for it among the programs.
        name = str(script) if "/" in str(script) else f"./{script}"
        lines.append(f"source {shlex.quote(name)}")
    return lines


def _command(job: Job) -> str:
    """Return the command line; the script adds what only it knows."""
    arguments = job.arguments or KINDS[job.kind][0]
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
