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
    """A kind of figure that `hpcfl plot` draws.

    Attributes
    ----------
    what : str
        What it shows.
    home : str
        The module that draws it, imported only when it is asked for.
    options : tuple of str
        The options of `hpcfl plot` that it takes.
    """

    what: str
    home: str
    options: tuple[str, ...] = ()

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
    ),
}
