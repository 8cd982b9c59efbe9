"""Training runs that differ in their seeds alone, drawn as one line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcfl.plots import naming
from hpcfl.plots.style import Frame
from hpcfl.results import pooling
from hpcfl.results.columns import TOLD_APART
from hpcfl.results.reader import Run
from hpcfl.results.resuming import without_beginning


@dataclass(frozen=True)
class Series:
    """Runs of one configuration."""

    protocol: str  # or algorithm
    label: str  # no two the same
    runs: Sequence[Run]

    @property
    def kept(self) -> NDArray[np.bool_]:
        """Which rounds all of the runs have, with a right aggregate: shape (R,), the shortest's."""
        rounds = min(run.rounds for run in self.runs)
        return np.logical_and.reduce([run.validated[:rounds] for run in self.runs])


def series(
    runs: Sequence[Run], frame: Frame, against: str = "rounds", options: Sequence[str] = ()
) -> list[Series]:
    """Return the runs by configuration, if the frame says that they are pooled, else one by one.

    They are told apart by task, protocol and its options, and by further `options`.
    """
    groups: dict[str, list[Run]] = {}
    for number, run in enumerate(runs):
        key = [pooling.configuration(run), without_beginning(run)] if frame.pool else number
        groups.setdefault(json.dumps(key, sort_keys=True), []).append(run)
    several = any(len(group) > 1 for group in groups.values())
    told_apart = [name for name in TOLD_APART if not (several and name == "seed")]
    firsts = [group[0] for group in groups.values()]
    remarks = [_remark(group, against) for group in groups.values()]
    labels = naming.labels(firsts, (*naming.TASK, *told_apart, *options), remarks, frame.called)
    return [
        Series(naming.named(group[0]), label, group)
        for label, group in zip(labels, groups.values(), strict=True)
    ]


def _remark(group: Sequence[Run], against: str) -> str:
    parts = []
    if len(group) > 1:
        seeds = {run.config.get("seed") for run in group}
        parts.append(f"{len(group)} {'seeds' if len(seeds) == len(group) else 'runs'}")
    # The bytes go on from the run that was interrupted; its rounds and seconds are not here.
    if against != "bytes" and any(map(without_beginning, group)):
        parts.append(f"{against} since resumed")
    return ", ".join(parts)


def mean(one: Series, values: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the mean over runs of what each has after each round, of the rounds that are kept."""
    return _together(one, values).mean(axis=0)


def deviation(one: Series, values: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the standard deviation of the same, 0 of one run."""
    found = _together(one, values)
    return found.std(axis=0, ddof=1) if len(found) > 1 else np.zeros(found.shape[1])


def _together(one: Series, values: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    kept = one.kept
    return np.stack([found[: kept.size][kept] for found in values])
