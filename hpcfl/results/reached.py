"""What training reached, and what it spent until it reached an accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.reader import Run
from hpcfl.results.schema import Metric
from hpcfl.results.statistics import UNKNOWN, Interval, median_interval


@dataclass(frozen=True)
class OverLaunches:
    """A figure of every launch, such as of several seeds: its median, and how far it varies."""

    median: float | None = None
    least: float | None = None
    most: float | None = None
    interval: Interval = UNKNOWN  # 95 %, of the median, by ranks; from 6 launches on

    @classmethod
    def of(cls, values: ArrayLike) -> OverLaunches:
        """Return it of one value a launch; without a median if one launch has no value."""
        known = np.asarray(values, np.float64)
        if known.size == 0 or np.isnan(known).any():
            return cls()
        return cls(
            float(np.median(known)), float(known.min()), float(known.max()), median_interval(known)
        )


@dataclass(frozen=True)
class Reached:
    """What a training run, or several that differ in nothing but their seeds, reached.

    No figure has a value for a benchmark; those to the target have none if a launch did not reach
    it.
    """

    accuracy: OverLaunches = field(default_factory=OverLaunches)  # after the last round
    accuracy_best: OverLaunches = field(default_factory=OverLaunches)  # after any round
    epsilon_paper: OverLaunches = field(default_factory=OverLaunches)
    epsilon_proven: OverLaunches = field(default_factory=OverLaunches)
    epsilon_delta: float | None = None
    target: float | None = None  # accuracy
    launches_at_target: int | None = None
    rounds_to_target: OverLaunches = field(default_factory=OverLaunches)
    bytes_to_target: OverLaunches = field(default_factory=OverLaunches)  # sent by all devices
    seconds_to_target: OverLaunches = field(default_factory=OverLaunches)  # modelled


def reached(runs: Sequence[Run], link: LinkModel, target: float | None = None) -> Reached:
    """Return what training reached in all launches of a configuration, with their link modelled.

    `target` is an accuracy; by default it is that of ``--target-accuracy``, if the runs had one.
    """
    if not all(Metric.ACCURACY in run.training and run.rounds for run in runs):
        return Reached()
    if target is None:
        stored = runs[0].config.get("target_accuracy")
        target = float(stored) if isinstance(stored, int | float) else None
    spent = [_to_target(run, link, target) for run in runs]
    delta = runs[0].config.get("epsilon_delta")
    return Reached(
        accuracy=_last(runs, Metric.ACCURACY),
        accuracy_best=OverLaunches.of([run.training[Metric.ACCURACY].max() for run in runs]),
        epsilon_paper=_last(runs, Metric.EPSILON_PAPER),
        epsilon_proven=_last(runs, Metric.EPSILON_PROVEN),
        epsilon_delta=float(delta) if isinstance(delta, int | float) else None,
        target=target,
        launches_at_target=None if target is None else sum(one[0] == one[0] for one in spent),
        rounds_to_target=OverLaunches.of([one[0] for one in spent]),
        bytes_to_target=OverLaunches.of([one[1] for one in spent]),
        seconds_to_target=OverLaunches.of([one[2] for one in spent]),
    )


def modelled_seconds(run: Run, link: LinkModel) -> NDArray[np.float64] | None:
    """Return the modelled seconds of every round of training, shape (R,), over another link too.

    None if the file does not tell. What devices trained is what the recorded seconds have beside
    the protocol's.
    """
    recorded = run.training.get(Metric.MODELLED_SECONDS)
    if recorded is None or link == run.link():
        return recorded
    protocol = [run.modelled_seconds(one).sum(axis=1) for one in (run.link(), link)]
    changed = np.full(run.rounds, np.nan)
    changed[run.measured] = recorded[run.measured] - protocol[0] + protocol[1]
    return changed


def _last(runs: Sequence[Run], metric: str) -> OverLaunches:
    found = [run.training.get(metric) for run in runs]
    return OverLaunches.of([np.nan if values is None else values[-1] for values in found])


def _to_target(run: Run, link: LinkModel, target: float | None) -> tuple[float, float, float]:
    """Return rounds, bytes of all devices and modelled seconds until the target was reached."""
    at_target = run.training[Metric.ACCURACY] >= (np.inf if target is None else target)
    if not at_target.any():
        return np.nan, np.nan, np.nan
    first = int(at_target.argmax())
    sent = run.training.get(Metric.BYTES_UP_TOTAL)
    seconds = modelled_seconds(run, link)
    return (
        first + 1.0,
        np.nan if sent is None else float(sent[first]),
        np.nan if seconds is None else float(seconds[: first + 1].sum()),
    )
