"""Training that was interrupted and resumed, which lies in several files, as one run."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.options.definition import names
from hpcfl.options.training import TrainOptions
from hpcfl.results import schema
from hpcfl.results.reader import Run
from hpcfl.results.restoring import chosen
from hpcfl.results.schema import CHECKPOINT_SUFFIX, Metric

# Options that a launch may change when it goes on, and what follows from them or from going on.
_FREE = {*names(TrainOptions, "resumable"), "promises", "rounds_repeated"}


def joined(runs: Sequence[Run]) -> list[Run]:
    """Return the runs with every resumed one behind the rounds that it went on from.

    A training run that was resumed from a checkpoint is in a file of its own, with the rounds since
    then. Where the file that the checkpoint belongs to is among the runs too, both become one run,
    in the place and with the path of the first; rounds that were played again count once.
    """
    return _all_joined(runs)[0]


def _all_joined(runs: Sequence[Run]) -> tuple[list[Run], dict[Path, Run]]:
    """Return the runs, joined, and by their paths those that went on from others, and from which.

    The latter also of parts whose rounds were all played again.
    """
    found, before = list(runs), {}
    while (pair := _next_pair(found)) is not None:
        earlier, later, kept = pair
        before[later.path] = earlier
        whole = _join(earlier, later, kept)
        found = [whole if run is earlier else run for run in found if run is not later]
    return found, before


def without_beginning(run: Run) -> bool:
    """Return whether the first rounds of a training are in a file that is not among the runs."""
    return bool(run.training) and run.config.get("resume") is not None


def _next_pair(runs: Sequence[Run]) -> tuple[Run, Run, int] | None:
    """Return a run, one that went on from it, and after how many of its rounds."""
    # In the order in which they were launched: of several that went on from one checkpoint, the
    # last has what was played in the end.
    for later in sorted(runs, key=lambda run: run.started):
        checkpoint = later.config.get("resume")
        if not isinstance(checkpoint, str) or not later.training or not later.rounds:
            continue
        # The path in the file may be another one's, or be seen from another folder. Of two folders
        # that have files of the same names, a run belongs to its own.
        for earlier in sorted(runs, key=lambda run: run.path.parent != later.path.parent):
            if earlier is later or not _belongs(checkpoint, earlier, later):
                continue
            kept = _rounds_before(earlier, later)
            if kept is not None:
                return earlier, later, kept
    return None


def _belongs(checkpoint: str, earlier: Run, later: Run) -> bool:
    """Return whether a checkpoint is kept beside a run, or beside a file that continued it."""
    files = [str(earlier.path), *(str(launch.get("file")) for launch in earlier.resumed)]
    stems = [Path(file).stem for file in files]
    if later.path.stem.endswith(_tag(earlier)):
        stems = [stem.removesuffix(_tag(earlier)) for stem in stems]
    return Path(checkpoint).name in [f"{stem}{CHECKPOINT_SUFFIX}" for stem in stems]


def _tag(first: Run) -> str:
    return f"-{first.run_id}"


def distinct_names(runs: Sequence[Run]) -> list[str]:
    """Return names for runs' files that can lie in one folder, and in which `joined` finds parts.

    They are those that the files have, unless several have the same one: then the id of the run
    that was resumed is put behind the names of all its parts.
    """
    _, before = _all_joined(runs)

    def first(run: Run) -> Run:
        while run.path in before:
            run = before[run.path]
        return run

    tags = [_tag(first(run)) for run in runs]
    called = Counter(run.path.name for run in runs)
    ambiguous = {tag for run, tag in zip(runs, tags, strict=True) if called[run.path.name] > 1}
    return [
        f"{run.path.stem}{tag if tag in ambiguous else ''}{run.path.suffix}"
        for run, tag in zip(runs, tags, strict=True)
    ]


def _rounds_before(earlier: Run, later: Run) -> int | None:
    """Return how many rounds the later run goes on from; None if it is not of the same training.

    The bytes that all devices sent since the start tell it.
    """
    if _identity(earlier) != _identity(later) or later.training.keys() != earlier.training.keys():
        return None
    totals = earlier.training.get(Metric.BYTES_UP_TOTAL)
    if totals is None:
        return None
    before = later.training[Metric.BYTES_UP_TOTAL][0] - float(later.bytes_up[0].sum())
    if before == 0:
        return 0  # from what a private run keeps before its first round
    places = np.flatnonzero(totals == before)
    return int(places[-1]) + 1 if places.size else None


def _identity(run: Run) -> str:
    free = _FREE | chosen(run.asked)
    options = {name: value for name, value in run.config.items() if name not in free}
    return json.dumps([run.protocol, run.phases, run.devices, options], sort_keys=True)


def _join(earlier: Run, later: Run, kept: int) -> Run:
    rounds: dict[str, Any] = {}
    for name in (dataset.name for dataset in schema.KNOWN):
        parts = getattr(earlier, name), getattr(later, name)
        fits = all(part is not None for part in parts) and parts[0].shape[1:] == parts[1].shape[1:]
        rounds[name] = np.concatenate([parts[0][:kept], parts[1]]) if fits else None
    launch = {
        "command": later.command,
        "started": later.started,
        schema.FIRST_ROUND: kept,
        "file": str(later.path),
        **later.environment,
    }
    return dataclasses.replace(
        earlier,
        status=later.status,
        finished=later.finished,
        training={
            name: np.concatenate([values[:kept], later.training[name]])
            for name, values in earlier.training.items()
        },
        resumed=[
            *(one for one in earlier.resumed if one[schema.FIRST_ROUND] < kept),
            launch,
            *(one | {schema.FIRST_ROUND: kept + one[schema.FIRST_ROUND]} for one in later.resumed),
        ],
        # The last launch says how many rounds there were to be, and what it promises.
        config=earlier.config
        | {name: later.config[name] for name in _FREE & later.config.keys() - {"resume"}},
        **rounds,
    )
