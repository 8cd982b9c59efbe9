"""What a terminal shows of rounds while they are played."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from hpcfl.cli import terminal
from hpcfl.errors import HpcflError
from hpcfl.report import formats
from hpcfl.results.schema import Metric
from hpcfl.rounds.observer import RoundObserver
from hpcfl.system import launch

if TYPE_CHECKING:
    from hpcfl.algorithms.aggregation.base import AggregationProtocol
    from hpcfl.comm.placement import Placement
    from hpcfl.training.experiment import RoundResult


# Of rounds that take longer than this a terminal is told beforehand how long.
LONG_SECONDS = 30


class Spoken(RoundObserver):
    """Passes on warnings and who was refused, and calls `progress` after every round.

    On a terminal it says after the first round how long the others may take, where that is long.
    """

    def __init__(self, progress: Callable[[], object] = lambda: None) -> None:
        self._progress = progress
        self._untold, self._began = 0, 0.0

    def refused(self, index: int, error: HpcflError) -> None:
        click.echo(f"round {index}: {error}", err=True)

    def begins(self, protocol: AggregationProtocol, rounds: int, place: Placement) -> None:
        if launch.terminal_for_progress() is not None:
            self._untold, self._began = rounds, time.monotonic()

    def warned(self, sentence: str) -> None:
        terminal.warn(sentence)

    def ended(self, index: int) -> None:
        self._progress()
        left, self._untold = self._untold - 1, 0
        seconds = left * (time.monotonic() - self._began)
        if left > 0 and seconds > LONG_SECONDS:
            rounds = formats.counted(left, "round")
            click.echo(f"{rounds} more may take about {formats.duration(seconds)}.", err=True)


class Rows(Spoken):
    """Prints a line for every round of training, under a heading; of private training, epsilons."""

    def __init__(self, private: bool) -> None:
        super().__init__()
        self._private = private
        self._count = 0

    def finished(self, index: int, result: RoundResult) -> None:
        if self._count == 0:
            click.echo(
                " round  accuracy     loss  sent up, MB  round, s  training, s  modelled, s"
                + ("  epsilon: paper    proven" if self._private else "")
            )
        figures = result.figures
        line = (
            f"{self._count:6}  {figures[Metric.ACCURACY]:8.4f}  {figures[Metric.LOSS]:7.4f}"
            f"  {figures[Metric.BYTES_UP_TOTAL] / 1e6:11.3f}  {result.record.round_seconds:8.3f}"
            f"  {figures[Metric.TRAIN_SECONDS]:11.3f}  {figures[Metric.MODELLED_SECONDS]:11.3f}"
        )
        if self._private:
            line += (
                f"  {figures[Metric.EPSILON_PAPER]:14.3f}  {figures[Metric.EPSILON_PROVEN]:8.3f}"
            )
        click.echo(line)
        self._count += 1
