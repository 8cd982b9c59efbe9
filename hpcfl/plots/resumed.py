"""Trainings that were resumed, put behind those that they went on from."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.options.definition import names
from hpcfl.options.training import TrainOptions
from hpcfl.results import schema
from hpcfl.results.reader import Run
from hpcfl.results.schema import Metric

# Options that may differ between a run and the one that goes on with it, and what follows.
_FREE = {*names(TrainOptions, resumable=True), "promises", "rounds_repeated"}


def join(runs: Sequence[Run]) -> list[Run]:
    """Return the runs, with those that went on from another one's checkpoint behind it, as one.

    One that was resumed is left as it is if the other is not among the runs. The other is then not
    by itself among those that are returned, unless it has more rounds than the joined run.
    """
    before = {id(run): _predecessor(run, runs) for run in runs}
    contained = {
        id(found[0])
        for run in runs
        if (found := before[id(run)]) is not None and found[1] + run.rounds >= found[0].rounds
    }

    def whole(run: Run, behind: int = 0) -> Run:
        found = before[id(run)]
        # Files that name each other come from somebody's hands.
        if found is None or behind == len(runs):
            return run
        earlier, kept = found
        return _joined(whole(earlier, behind + 1), run, kept - earlier.rounds)

    return [whole(run) for run in runs if id(run) not in contained] or [*runs]


def resumed(run: Run) -> bool:
    """Return whether the first rounds of a training are in another file."""
    return bool(run.training) and run.config.get("resume") is not None


def _predecessor(run: Run, runs: Sequence[Run]) -> tuple[Run, int] | None:
    """Return the run from whose checkpoint a run went on, and after how many of its rounds."""
    checkpoint = run.config.get("resume")
    if not resumed(run) or not isinstance(checkpoint, str) or not run.rounds:
        return None
    same_name = [
        other
        for other in runs
        if other is not run
        and other.path.with_suffix(".checkpoint.npz").name == Path(checkpoint).name
        and _same(other, run)
    ]
    for other in same_name:
        kept = _rounds_before(run, other)
        if kept is not None:
            return other, kept
    return None


def _same(one: Run, other: Run) -> bool:
    settings = [
        {name: value for name, value in run.config.items() if name not in _FREE}
        | {"": (run.protocol, run.devices, run.phases)}
        for run in (one, other)
    ]
    return settings[0] == settings[1] and one.training.keys() == other.training.keys()


def _rounds_before(run: Run, earlier: Run) -> int | None:
    """Return how many rounds of an earlier run are behind this one, None if it was another.

    A file does not say so, but how many bytes devices had sent by then it does.
    """
    sent = run.training.get(Metric.BYTES_UP_TOTAL)
    if sent is None:
        return None
    start = sent[0] - run.bytes_up[0].sum(dtype=float)
    found = np.flatnonzero(earlier.training[Metric.BYTES_UP_TOTAL] == start)
    return int(found[-1]) + 1 if found.size else None


def _joined(earlier: Run, run: Run, left_out: int) -> Run:
    """Return two runs as one; of the earlier one, some last rounds (a number below 0) are not."""
    kept = earlier.rounds + left_out
    rounds: dict[str, Any] = {}
    for dataset in schema.KNOWN:
        first, second = getattr(earlier, dataset.name), getattr(run, dataset.name)
        fits = first is not None and second is not None and first.shape[1:] == second.shape[1:]
        rounds[dataset.name] = np.concatenate([first[:kept], second]) if fits else None
    training = {
        name: np.concatenate([values[:kept], run.training[name]])
        for name, values in earlier.training.items()
    }
    return dataclasses.replace(earlier, status=run.status, training=training, **rounds)
