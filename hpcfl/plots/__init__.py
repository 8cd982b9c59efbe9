"""Figures of results, drawn with matplotlib.

A kind of figure is a line in `KINDS` and a module of that name with two functions.
``lacking(run, asked)`` returns a reason why a run cannot be drawn, or None. ``draw(runs, asked)``
returns the matplotlib figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hpcfl.errors import UsageError, no_such
from hpcfl.options.definition import OptionGroup, again, make, option
from hpcfl.options.report import SCALES, ReportOptions
from hpcfl.values import dataclass

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hpcfl.results.reader import Run


KINDS = {
    "scaling": "what a round costs against the number of devices, of parameters, of ranks, nodes, "
    "ranks of the server, or threads",
    "phases": "CPU time and bytes of a round, phase by phase, devices and server apart",
    "timeline": "what each rank of one run did in each phase: computing, in MPI or waiting",
    "tradeoff": "CPU time of a device, or helper, against its bytes, and what is hidden",
    "accuracy": "accuracy of training over rounds, bytes, modelled seconds, or epsilon",
}
# The choices for the x axis, the default first.
AGAINST: dict[str, tuple[str, ...]] = {
    "scaling": ("devices", "dim", *SCALES),
    "accuracy": ("rounds", "bytes", "seconds", "epsilon"),
}


@dataclass(frozen=True, kw_only=True)
class PlotOptions(OptionGroup):
    """Options of a figure: its content and its size."""

    where: str | None = again(ReportOptions, "where", None)
    against: str | None = option(
        None,
        "Quantity on the x axis: "
        + "; ".join(f"{', '.join(values)} for {kind}" for kind, values in AGAINST.items())
        + ".",
        choices=tuple(value for values in AGAINST.values() for value in values),
        default_text="the first",
    )
    round: int | None = option(
        None,
        "Round that a timeline shows, from 0.",
        at_least=0,
        default_text="the one of median seconds",
    )
    size: str = option(
        "page",
        "Width of the figure: 3.33 or 7 inches, with the height that it needs.",
        choices=("column", "page"),
    )
    title: str | None = None  # replaces the default title; "" for none


@dataclass(frozen=True)
class Drawing:
    """A requested figure."""

    kind: str
    asked: PlotOptions

    def lacking(self, run: Run) -> str | None:
        """Return the reason why a run cannot be drawn, None if it can."""
        return self._module.lacking(run, self.asked)

    def draw(self, runs: Sequence[Run]) -> Figure:
        """Return the figure of at least one run; all runs must be drawable."""
        from hpcfl.plots.style import applied

        with applied():
            return self._module.draw(runs, self.asked)

    @property
    def _module(self) -> Any:
        return import_module(f"hpcfl.plots.{self.kind}")


def chosen(kind: str, given: Mapping[str, Any]) -> Drawing:
    """Return the figure of a kind with the given options.

    Raise UsageError if there is no such kind, or if an option has no meaning for it.
    """
    if kind not in KINDS:
        raise no_such("figure", kind, KINDS)
    known = AGAINST.get(kind, ())
    asked = make(PlotOptions, {"against": next(iter(known), None), **given})
    if asked.against is not None and asked.against not in known:
        choices = f": choose {', '.join(known)}" if known else ""
        raise UsageError(f"--against {asked.against} has no meaning for --kind {kind}{choices}")
    if asked.round is not None and kind != "timeline":
        raise UsageError(f"--round has no meaning for --kind {kind}")
    return Drawing(kind, asked)
