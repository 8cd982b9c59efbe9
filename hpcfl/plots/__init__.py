"""Figures of results, drawn with matplotlib.

A figure of results files is a line in `KINDS` and a module with two functions:
``lacking(run, **options)`` says in words why a run cannot be drawn, or None;
``draw(runs, **options)`` returns the matplotlib figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from hpcfl.errors import UsageError
from hpcfl.options.definition import OptionGroup, make, option


@dataclass(frozen=True)
class Kind:
    """A kind of figure that `hpcfl plot` draws."""

    what: str  # it shows
    home: str  # the module that draws it, imported only when it is asked for
    options: tuple[str, ...] = ()  # of `PlotOptions`
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
    "timeline": Kind(
        "when each rank was in which phase of a round, computing, in MPI or waiting, of one run",
        "hpcfl.plots.timeline",
        ("round",),
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
    "tradeoff": Kind(
        "bytes and CPU time of a device, of members of committees and helpers, and what is hidden",
        "hpcfl.plots.tradeoff",
        ("protocol",),
    ),
}


@dataclass(frozen=True, kw_only=True)
class PlotOptions(OptionGroup):
    """How figures are drawn; every kind has some of these."""

    against: str | None = option(
        None,
        "Quantity on the x axis: "
        + "; ".join(f"{', '.join(one.against)} for {n}" for n, one in KINDS.items() if one.against)
        + ".",
        choices=tuple(value for kind in KINDS.values() for value in kind.against),
        default_text="the first",
    )
    style: str = option(
        "ecdf",
        "How seconds are drawn: as distribution functions, or as box plots (of a single run: one "
        "box per device).",
        choices=("ecdf", "box"),
    )
    clock: str = option(
        "cpu",
        "Which seconds: CPU time of the protocol, or elapsed time.",
        choices=("cpu", "wall"),
    )
    target: float | None = option(None, "Accuracy to mark.", at_least=0, at_most=1)
    protocol: str | None = option(
        None,
        "Class of the runs' protocol, if it does not come with hpcfl.",
        unit="MODULE:CLASS",
    )
    round: int | None = option(
        None, "Round to draw, from 0.", at_least=0, default_text="the one of median seconds"
    )
    log_x: bool = option(False, "Use a logarithmic x axis.")


def chosen(kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a figure's module takes: all options of the kind, those given and defaults.

    A UsageError says that there is no such kind, or that an option has no meaning for it.
    """
    if kind not in KINDS:
        raise UsageError(f"there is no figure {kind!r}; choose one of {', '.join(KINDS)}")
    known = KINDS[kind]
    asked = make(PlotOptions, given)
    for name in given.keys() - set(known.options):
        raise UsageError(f"--{name.replace('_', '-')} has no meaning for --kind {kind}")
    values = {name: getattr(asked, name) for name in known.options}
    if known.against:
        values["against"] = asked.against or known.against[0]
        if values["against"] not in known.against:
            raise UsageError(
                f"--against {asked.against} has no meaning for --kind {kind}: "
                f"choose {', '.join(known.against)}"
            )
    return values
