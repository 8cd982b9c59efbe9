"""Terminal output while rounds run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from hpcfl.cli.terminal import warn
from hpcfl.errors import HpcflError
from hpcfl.report.formats import counted
from hpcfl.results.schema import Metric
from hpcfl.rounds.observer import RoundObserver

if TYPE_CHECKING:
    from hpcfl.rounds.timed import Played


class Spoken(RoundObserver):
    """Prints each warning once, and why devices were refused; calls `progress` after a round."""

    def __init__(self, progress: Callable[[], object] = lambda: None) -> None:
        self._progress = progress
        self._warnings: set[str] = set()

    def enrolling(self, devices: int) -> None:
        click.echo(f"{counted(devices, 'device')} enrol, once a run", err=True)

    def refused(self, index: int, error: HpcflError) -> None:
        click.echo(f"round {index}: {error}", err=True)

    def warned(self, sentence: str) -> None:
        if sentence not in self._warnings:
            warn(sentence)
            self._warnings.add(sentence)

    def ended(self, index: int) -> None:
        self._progress()


class Rows(Spoken):
    """Prints a heading, and a line for every round of training, with epsilons if it is private."""

    def __init__(self, private: bool) -> None:
        super().__init__()
        self._private = private
        self._count = 0

    def finished(self, index: int, result: Played) -> None:
        if self._count == 0:
            click.echo(
                " round  accuracy     loss  sent up, MB  round, s  training, s  modelled, s"
                + ("  epsilon: paper    proven" if self._private else "")
            )
        figures = result.figures
        line = (
            f"{index:6}  {figures[Metric.ACCURACY]:8.4f}  {figures[Metric.LOSS]:7.4f}"
            f"  {figures[Metric.BYTES_UP_TOTAL] / 1e6:11.3f}  {result.record.round_seconds:8.3f}"
            f"  {figures[Metric.TRAIN_SECONDS]:11.3f}  {figures[Metric.MODELLED_SECONDS]:11.3f}"
        )
        if self._private:
            line += (
                f"  {figures[Metric.EPSILON_PAPER]:14.3f}  {figures[Metric.EPSILON_PROVEN]:8.3f}"
            )
        click.echo(line)
        self._count += 1
