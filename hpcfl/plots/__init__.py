"""Figures of results, drawn with matplotlib.

A figure of results files is a line in `KINDS` and a module with two functions:
``lacking(run, **options)`` says in words why a run cannot be drawn, or None;
``draw(runs, **options)`` returns the matplotlib figure.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Kind:
    """A kind of figure that `hpcfl plot` draws."""

    what: str  # it shows
    home: str  # the module that draws it, imported only when it is asked for
    options: tuple[str, ...] = ()  # of `hpcfl plot`
    against: tuple[str, ...] = ()  # values of that option, the default first

    def module(self) -> Any:
        """Import the module that draws it."""
        return import_module(self.home)


KINDS = {
    "partition": Kind(
        "which device has how many samples of which class, of one run",
        "hpcfl.plots.partition",
    ),
    "accuracy": Kind(
        "accuracy of training runs over rounds, bytes or modelled seconds",
        "hpcfl.plots.accuracy",
        ("against", "target", "log_x"),
        against=("rounds", "bytes", "seconds"),
    ),
    "scaling": Kind(
        "seconds and bytes of a round against the number of devices or of parameters",
        "hpcfl.plots.scaling",
        ("against",),
        against=("devices", "dim"),
    ),
    "phases": Kind(
        "CPU time and bytes of a round, phase by phase, devices and server apart",
        "hpcfl.plots.phases",
    ),
    "ranks": Kind(
        "how CPU or elapsed seconds spread over devices and rounds",
        "hpcfl.plots.ranks",
        ("style", "clock", "log_x"),
    ),
    "epsilon": Kind(
        "epsilon of private training over rounds, as the paper claims and as proven, and accuracy "
        "over it",
        "hpcfl.plots.epsilon",
        ("log_x",),
    ),
    "exposure": Kind(
        "what a curious server learns by itself (by formula), against the bytes that were sent",
        "hpcfl.plots.exposure",
        ("protocol",),
    ),
}
