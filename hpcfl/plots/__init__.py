"""Figures of results, drawn with matplotlib.

A figure of results files is a line in `KINDS` and a module with two functions:
``lacking(run, **options)`` says in words why a run cannot be drawn, or None;
``draw(runs, frame, **options)`` returns the matplotlib figure, with what all kinds have in common
from the frame.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hpcfl.errors import UsageError, no_such
from hpcfl.options.definition import OptionGroup, Section, again, make, names, option
from hpcfl.options.report import ReportOptions
from hpcfl.options.scaling import SCALES
from hpcfl.options.shared import CommonOptions
from hpcfl.options.training import TrainOptions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hpcfl.plots.style import Frame
    from hpcfl.results.reader import Run


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
        ("against", "target_accuracy", "log_x"),
        against=("rounds", "bytes", "seconds"),
    ),
    "scaling": Kind(
        "seconds, CPU time and bytes of a round against the number of devices or of parameters; "
        "speed-up and parallel efficiency over ranks, nodes, ranks of the server or threads",
        "hpcfl.plots.scaling",
        ("against",),
        against=("devices", "dim", *SCALES),
    ),
    "phases": Kind(
        "CPU time and bytes of a round, phase by phase, devices and server apart",
        "hpcfl.plots.phases",
    ),
    "ranks": Kind(
        "how CPU or elapsed seconds spread over devices and rounds",
        "hpcfl.plots.ranks",
        ("spread", "clock", "log_x"),
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
class FrameOptions(OptionGroup):
    """How figures of all kinds are drawn."""

    where: str | None = again(ReportOptions, "where", None)
    size: str = again(CommonOptions, "size", "page", default_text="page; the style's")
    style: str = option(
        "paper",
        "Fonts and lines: paper, talk (larger ones, 12 inches wide), a matplotlib style file, or "
        "the name of a style of matplotlib. Colours of protocols and phases stay what they are.",
        unit="STYLE",
        section=Section.OUTPUT,
    )
    title: str | None = option(
        None,
        'Title in place of the figure\'s own; "" for none.',
        default_text="the figure's own",
        section=Section.OUTPUT,
    )
    label: tuple[str, ...] = option(
        (),
        "What to call a protocol or an algorithm in the figure; repeatable.",
        unit="NAME=TEXT",
        section=Section.OUTPUT,
    )


@dataclass(frozen=True, kw_only=True)
class PlotOptions(FrameOptions):
    """How figures are drawn; every kind has some of those that are not of all kinds."""

    against: str | None = option(
        None,
        "Quantity on the x axis: "
        + "; ".join(f"{', '.join(one.against)} for {n}" for n, one in KINDS.items() if one.against)
        + ".",
        choices=tuple(value for kind in KINDS.values() for value in kind.against),
        default_text="the first",
        section=Section.WHAT,
    )
    spread: str = option(
        "ecdf",
        "How the spread of seconds is drawn: as distribution functions, or as box plots (of a "
        "single run: one box per device).",
        choices=("ecdf", "box"),
        section=Section.WHAT,
    )
    clock: str = option(
        "cpu",
        "Which seconds: CPU time of the protocol, or elapsed time.",
        choices=("cpu", "wall"),
        section=Section.WHAT,
    )
    target_accuracy: float | None = again(
        TrainOptions,
        "target_accuracy",
        None,
        help="Accuracy to mark.",
        section=Section.WHAT,
    )
    protocol: str | None = option(
        None,
        "Class of the runs' protocol, if it does not come with hpcfl.",
        unit="MODULE:CLASS",
        section=Section.WHAT,
    )
    round: int | None = option(
        None,
        "Round to draw, from 0.",
        at_least=0,
        default_text="the one of median seconds",
        unit="round",
        section=Section.WHAT,
    )
    log_x: bool = option(False, "Use a logarithmic x axis.", section=Section.OUTPUT)


@dataclass(frozen=True)
class Drawing:
    """A figure that was asked for."""

    kind: str
    values: Mapping[str, Any]  # of the kind's own options, those given and defaults
    common: FrameOptions

    def lacking(self, run: Run) -> str | None:
        """Return in words why a run cannot be drawn, None if it can."""
        reason: str | None = KINDS[self.kind].module().lacking(run, **self.values)
        return reason

    def draw(self, runs: Sequence[Run], pool: bool = True) -> Figure:
        """Return the figure of runs, one at least, which can be drawn.

        Repeats are drawn as one if they are to be pooled, and trainings that were resumed with
        those that they went on from. A UsageError says what does not go together.
        """
        from hpcfl.plots.naming import named
        from hpcfl.plots.style import Frame, applied
        from hpcfl.results import pooling

        width, height = inches_of(self.common.size)
        called = dict(_renamed(text) for text in self.common.label)
        there = sorted({named(run) for run in runs})
        for name in called.keys() - {*there}:
            raise no_such("--label", name, there)
        frame = Frame(width, height, self.common.title, called, pool)
        pools = (pooling.group if pool else pooling.apart)(runs)
        drawn = [run for one in pools for run in one.drawn]
        with applied(self.common.style):
            figure: Figure = KINDS[self.kind].module().draw(drawn, frame, **self.values)
        return figure


def chosen(kind: str, given: Mapping[str, Any]) -> Drawing:
    """Return what was asked for, with all options of the kind.

    A UsageError says that there is no such kind, or that an option has no meaning for it.
    """
    if kind not in KINDS:
        raise no_such("figure", kind, KINDS)
    known = KINDS[kind]
    if given.get("style") in ("ecdf", "box"):
        raise UsageError(f"--style is {given['style']!r}: boxes and such are chosen by --spread")
    asked = make(PlotOptions, given)
    for name in given.keys() - {*known.options, *names(FrameOptions)}:
        raise UsageError(f"--{name.replace('_', '-')} has no meaning for --kind {kind}")
    inches_of(asked.size)
    for text in asked.label:
        _renamed(text)
    values = {name: getattr(asked, name) for name in known.options}
    if known.against:
        values["against"] = asked.against or known.against[0]
        if values["against"] not in known.against:
            raise UsageError(
                f"--against {asked.against} has no meaning for --kind {kind}: "
                f"choose {', '.join(known.against)}"
            )
    return Drawing(kind, values, asked)


def framed(size: str) -> Frame:
    """Return how a figure of a size is drawn that has no other options of figures."""
    from hpcfl.plots.style import Frame

    width, height = inches_of(size)
    return Frame(width=width, height=height)


def inches_of(size: str) -> tuple[float | None, float | None]:
    """Return width and height, None for what the style or the figure itself says.

    A UsageError says that `size` is none of what `--size` takes.
    """
    from hpcfl.plots.style import WIDTHS

    if size in WIDTHS:
        return (WIDTHS[size] if size != "page" else None), None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)x(\d+(?:\.\d+)?)", size)
    if found is None or not all(1 <= float(inches) <= 50 for inches in found.groups()):
        raise UsageError(
            f"--size is {size!r}; give {' or '.join(WIDTHS)}, or width and height in inches, from "
            "1 to 50, such as 3.3x2.5"
        )
    return float(found[1]), float(found[2])


def _renamed(text: str) -> tuple[str, str]:
    """Return a protocol, and what it is called instead."""
    name, equals, words = text.partition("=")
    if not (name and equals and words):
        raise UsageError(f"--label is {text!r}; give NAME=TEXT, as in sparse=SparseSecAgg")
    return name, words
