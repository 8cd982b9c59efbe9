"""Prepares jobs, so that what would be refused is refused before it has waited for its turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpcfl.algorithms import aggregation, federated
from hpcfl.errors import UsageError
from hpcfl.options.bench import DP_FEDAVG, BenchOptions
from hpcfl.options.definition import make, options_of
from hpcfl.options.training import TrainOptions
from hpcfl.slurm.launchers import choose
from hpcfl.slurm.script import Job, last_cell
from hpcfl.sweeping.manifest import load


def prepare(given: Mapping[str, Any], read: Callable[[str, Sequence[str]], dict[str, Any]]) -> Job:
    """Return a job; `read` returns what a command's arguments say, as texts by name."""
    job = make(Job, given)
    job = replace(job, launcher=choose(job.launcher, job.mpi))
    if job.arguments and job.kind != "scaling":
        name = job.kind.partition("-")[0]
        typed = read(name, job.arguments)
        _check_known(typed)
        known = options_of(TrainOptions if name == "train" else BenchOptions)
        for option in known.keys() & typed.keys():
            known[option].check(known[option].read(typed[option]))
    cells = _cells(job)
    if cells is not None and job.array is None:
        job = replace(job, array=f"0-{cells - 1}" if cells > 1 else "0")
    return job


def _check_known(typed: Mapping[str, Any]) -> None:
    """Refuse a protocol or an algorithm that does not come with hpcfl.

    One of the user's own (``MODULE:CLASS``) may be found where the job runs, and not here.
    """
    protocol, algorithm = typed.get("protocol", DP_FEDAVG), typed.get("algorithm", "fedavg")
    if protocol != DP_FEDAVG and ":" not in protocol:
        aggregation.find(protocol, others=(DP_FEDAVG,))
    if ":" not in algorithm:
        federated.find(algorithm)


def check_frozen(job: Job) -> None:
    """Refuse a job for the cells of a sweep that has not been frozen, or has fewer."""
    if job.kind != "sweep-array":
        return
    cells = _cells(job)
    if cells is None:
        plan = (job.arguments or ("PLAN",))[0]
        raise UsageError(
            f"{job.folder} holds no frozen sweep: first run "
            f"hpcfl sweep {plan} --freeze --output {job.folder}"
        )
    if last_cell(job.array or "0") >= cells:
        raise UsageError(f"--array is {job.array}, but the sweep has cells 0 to {cells - 1}")


def _cells(job: Job) -> int | None:
    """Return the number of cells of the frozen sweep, None if there is none."""
    manifest = load(Path(job.folder)) if job.kind == "sweep-array" else None
    return None if manifest is None else len(manifest.cells)
