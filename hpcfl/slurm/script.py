"""Renders the job scripts for Slurm.

The templates are beside this module; ``jobs/slurm/`` has the scripts rendered with the defaults.
Options that hpcfl does not know are passed to sbatch as ``#SBATCH`` lines.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from hpcfl.errors import UsageError
from hpcfl.options.definition import OptionGroup, option
from hpcfl.sweeping.manifest import load
from hpcfl.values import dataclass, field

# The default arguments of each kind, and its default folder of results.
KINDS = {
    "bench": (("sparse",), "results"),
    "sweep-array": (("table-1",), "results/sweep"),
    "train": (("fedavg", "--aggregate", "sparse", "--rounds", "300"), "results/train"),
    "silo": (("silo",), "results/silo"),
    "scaling": (
        (
            *("strong=scaling-strong", "weak=scaling-weak"),
            *("server-ranks=scaling-server", "threads=scaling-threads"),
        ),
        "results/scaling",
    ),
}
# The commands of the kinds that are not called like their command.
COMMANDS = {"sweep-array": "sweep", "silo": "sweep"}
# The studies of the kind scaling, and the shell function that runs the plan of each.
STUDIES = {
    "strong": "over_ranks",
    "weak": "over_ranks",
    "server-ranks": "on_all",
    "threads": "alone",
}
# Default options of sbatch: they request whole nodes, because memory and cores are measured.
_ASKED = {"ntasks": "101", "mem": "0", "time": "01:00:00", "exclusive": ""}
# The last cell of the plan table-1.
LAST_CELL = 7
_CHECKPOINT = ("--checkpoint-every", "10")
# Options of hpcfl that the scripts set themselves.
_TAKEN = {"--output", "--resume", "--cell", "--freeze"}
# Blanks, quotes, backslashes and # have a special meaning in an #SBATCH line.
_WORD = re.compile(r"[^\s'\"\\#]+")


@dataclass(frozen=True, kw_only=True)
class Job(OptionGroup):
    """What a script requests from Slurm and runs; see ``hpcfl slurm render --help``."""

    kind: str = field(kw_only=False)
    # Options of sbatch, and arguments of hpcfl bench, sweep or train; empty for the defaults.
    sbatch: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    ranks: int | None = option(
        None, "MPI ranks, if not one per task; more than that share cores.", at_least=1
    )
    server_node: bool = option(
        False, "Keep the first of --nodes for the server's rank; devices use the others."
    )
    setup: tuple[str, ...] = option(
        (),
        "Line of shell that makes hpcfl available, such as 'module load openmpi' or 'source "
        ".venv/bin/activate'; can be repeated.",
    )
    launcher: str = option("mpirun", "What starts the ranks.", choices=("mpirun", "srun"))
    results: str | None = option(None, "Folder of the results.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind == "scaling" and (self.ranks is not None or self.server_node):
            raise UsageError(
                "--server-node and --ranks are not for scaling, whose number of ranks grows"
            )
        for word in self.sbatch:
            if not _WORD.fullmatch(word):
                raise UsageError(f"{word!r} cannot be in an #SBATCH line, not even quoted")
        taken = _TAKEN.intersection(word.partition("=")[0] for word in self.arguments)
        if taken:
            raise UsageError(f"{taken.pop()} is set by the script: give --results before the --")

    @property
    def folder(self) -> str:
        """Folder of the results."""
        return self.results or KINDS[self.kind][1]


def render(job: Job) -> str:
    """Return a job script."""
    server_node = "yes" if job.server_node else "no"
    ranks = "$((1 + (SLURM_JOB_NUM_NODES - 1) * of_node))" if job.server_node else "$ntasks"
    places = {
        # The command `module` is a function of login shells.
        "shebang": "#!/bin/bash -l" if job.setup else "#!/bin/bash",
        "directives": "\n".join(f"#SBATCH {line}" for line in directives(job)),
        "setup": "\n".join(job.setup)
        or "# The software, unless the job finds it where it was submitted:\n"
        "# module load openmpi\n# source .venv/bin/activate",
        "launch": _template("launch.sh").rstrip(),
        "launcher": job.launcher,
        "server_node": server_node,
        "ranks": ranks if job.ranks is None else str(job.ranks),
        "results": shlex.quote(_as_path(job.folder)),
        "command": _command(job),
    }
    # In this order, because some values contain other places; the user's values come last.
    text = _template(f"{job.kind}.sbatch")
    for name, value in places.items():
        text = text.replace(f"{{{{{name}}}}}", value)
    return text


def directives(job: Job) -> list[str]:
    """Return the options of a script for sbatch: the defaults, overridden by the user's options."""
    given: list[str] = []
    for word in job.sbatch:
        if word.startswith("-") or not given:
            given.append(word)
        else:
            given[-1] += f"={word}" if given[-1].startswith("--") else f" {word}"
    names = {line.lstrip("-").partition("=")[0] for line in given}
    ours = {"job-name": f"hpcfl-{job.kind}", **_ASKED}
    if job.kind == "silo":
        ours["ntasks"] = "17"
    if "ntasks-per-node" in names:
        del ours["ntasks"]
    # A measurement interrupted by a failing node must not restart automatically.
    ours["no-requeue"] = ""
    if "requeue" in names:
        del ours["no-requeue"]
    if job.kind == "train":
        # Signals the script 120 seconds before the time limit, which is longer than a round.
        ours["signal"] = "B:USR1@120"
    if job.kind == "sweep-array":
        cells = cells_of(job)
        ours["array"] = f"0-{LAST_CELL if cells is None else cells - 1}"
    kept = [f"--{name}{value and '='}{value}" for name, value in ours.items() if name not in names]
    return [*kept, *given]


def cells_of(job: Job) -> int | None:
    """Return the number of cells of a frozen sweep, None if no sweep is frozen."""
    manifest = load(Path(job.folder))
    return None if manifest is None else len(manifest.cells)


def _template(name: str) -> str:
    return (resources.files("hpcfl.slurm") / "templates" / name).read_text(encoding="utf-8")


def _command(job: Job) -> str:
    """Return the command line, to which the script adds further arguments."""
    arguments: Sequence[str] = job.arguments or KINDS[job.kind][0]
    if job.kind == "scaling":
        return "\n".join(map(_study, arguments))
    words = ["hpcfl", COMMANDS.get(job.kind, job.kind), *arguments]
    if job.kind != "train":
        words += ["--output", _as_path(job.folder)]
    elif not any(word.startswith(_CHECKPOINT[0]) for word in arguments):
        words += _CHECKPOINT
    return shlex.join(words)


def _study(argument: str) -> str:
    study, _, plan = argument.partition("=")
    if study not in STUDIES or not plan:
        raise UsageError(
            f"{argument!r} is no study: give STUDY=PLAN after the --, with STUDY one of "
            f"{', '.join(STUDIES)}"
        )
    return shlex.join([STUDIES[study], study, _as_path(plan)])


def _as_path(text: str) -> str:
    """Return a path that no program mistakes for an option."""
    return f"./{text}" if text.startswith("-") else text
