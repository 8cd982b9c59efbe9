"""How long a cell will take, judged by the cells that are finished, or by the cost model."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime
from statistics import median

from hpcfl.benchmark.experiment import Experiment
from hpcfl.costmodel.calibration import default_path, load
from hpcfl.costmodel.model import predict
from hpcfl.errors import HpcflError
from hpcfl.results.reader import Run
from hpcfl.sweeping.cells import Cell


def estimate_seconds(
    cell: Cell, finished: Iterable[tuple[Cell, Run]], before: int = 0
) -> float | None:
    """Return the seconds that a cell will take; None if no cell of its protocol is finished.

    Those of the same protocol (and of training the same algorithm, model and data) with the nearest
    N and d are taken, the median of their seconds a round, in proportion to N d. That is rough:
    masks between all pairs grow faster. `before` rounds of the cell are finished.
    """
    known = [
        (_distance(cell, other), elapsed_seconds(run) / run.rounds * _size(cell) / _size(other))
        for other, run in finished
        if _kind(other) == _kind(cell) and run.rounds
    ]
    if not known:
        return None
    nearest = min(distance for distance, _ in known)
    left = cell.rounds - before
    return left * median(seconds for distance, seconds in known if distance == nearest)


def predicted_seconds(cell: Cell, before: int = 0) -> float | None:
    """Return the seconds that the cost model gives a cell in one process, behind some rounds.

    None for training, and where this host is not calibrated for it.
    """
    if cell.algorithm is not None:
        return None
    try:
        options = cell.command.parse(cell.arguments)
        protocol = Experiment.prepare(options, cell.devices).protocol
        seconds = predict(protocol, load(default_path())).measured_seconds
    except HpcflError:
        return None
    return (cell.rounds - before) * seconds


def elapsed_seconds(run: Run) -> float:
    """Return the seconds from a run's start to its end: rounds, their checks and the log.

    The file has whole seconds, so that short runs are better told by the sum of their rounds. Of a
    run that was resumed, nobody knows how long it stood still.
    """
    rounds = float(run.round_seconds.sum())
    if run.finished is None or run.resumed:
        return rounds
    elapsed = datetime.fromisoformat(run.finished) - datetime.fromisoformat(run.started)
    return max(rounds, elapsed.total_seconds())


def _kind(cell: Cell) -> tuple[str | None, ...]:
    return cell.protocol, cell.algorithm, cell.task


def _size(cell: Cell) -> int:
    return cell.devices * (cell.dim or 1)


def _distance(one: Cell, other: Cell) -> float:
    sizes = (one.devices / other.devices, (one.dim or 1) / (other.dim or 1))
    return sum(abs(math.log(size)) for size in sizes)
