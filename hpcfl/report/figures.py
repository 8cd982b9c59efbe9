"""Figures of runs as inline SVG, those that have something to show."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcfl.errors import HpcflError, UsageError
from hpcfl.plots import KINDS, style
from hpcfl.report.markup import Markup, element, join, text
from hpcfl.results.reader import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Names that refer to each other within an SVG, of which there are several in a page.
_OWN_NAME = re.compile(r'(?<=\bid=")|(?<=\burl\(#)|(?<=href="#)')
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)


@dataclass(frozen=True)
class _Wanted:
    """A figure of the page."""

    kind: str  # of `hpcfl.plots.KINDS`
    caption: str
    options: dict[str, str]
    # Tells of the runs that can be drawn whether there is something to see.
    worthwhile: Callable[[Sequence[Run]], bool]


def _vary(runs: Sequence[Run], measure: Callable[[Run], int]) -> bool:
    """Return whether there is a protocol that was run at several sizes."""
    sizes: dict[str, set[int]] = {}
    for run in runs:
        sizes.setdefault(run.protocol, set()).add(measure(run))
    return any(len(found) > 1 for found in sizes.values())


_WANTED = (
    _Wanted(
        "phases",
        "A round, phase by phase: CPU time of the slowest device, CPU time of the server, and "
        "bytes that a device sends, medians over measured rounds. The dot is the median of whole "
        "rounds, with its 95 % interval where there are enough of them.",
        {},
        lambda runs: True,
    ),
    _Wanted(
        "scaling",
        "A round against the number of devices: measured seconds, modelled seconds, and bytes "
        "sent up, medians with 95 % intervals.",
        {"against": "devices"},
        lambda runs: _vary(runs, lambda run: run.devices),
    ),
    _Wanted(
        "scaling",
        "A round against the number of parameters: measured seconds, modelled seconds, and bytes "
        "sent up, medians with 95 % intervals.",
        {"against": "dim"},
        lambda runs: _vary(runs, lambda run: run.dim),
    ),
    _Wanted(
        "ranks",
        "CPU seconds of a round: the share of values, over devices and measured rounds, that are "
        "at most so large.",
        {"style": "ecdf"},
        lambda runs: True,
    ),
    _Wanted(
        "accuracy",
        "Accuracy on held-out data after each round of training.",
        {"against": "rounds"},
        lambda runs: True,
    ),
    _Wanted(
        "accuracy",
        "Accuracy on held-out data against the bytes that all devices sent.",
        {"against": "bytes"},
        lambda runs: True,
    ),
    _Wanted(
        "accuracy",
        "Accuracy on held-out data against the modelled time.",
        {"against": "seconds"},
        lambda runs: True,
    ),
    _Wanted(
        "epsilon",
        "Privacy that training spent, as the paper claims and as is proven for the mechanism as "
        "it was run, and the accuracy it bought.",
        {},
        lambda runs: True,
    ),
)


def figures(runs: Sequence[Run]) -> Markup:
    """Return the figures that the runs give, each with a caption that says what it shows.

    A figure with too many lines is replaced by a sentence that says why.
    """
    parts = []
    for number, wanted in enumerate(_WANTED):
        module = KINDS[wanted.kind].module()
        drawable = [run for run in runs if module.lacking(run, **wanted.options) is None]
        # What benchmarks and training cost a round is for different figures.
        drawable = [run for run in drawable if not run.training] or drawable
        if not drawable or not wanted.worthwhile(drawable):
            continue
        try:
            figure = module.draw(drawable, **wanted.options)
        except UsageError as error:
            parts.append(element("p", f"Figure of {wanted.kind} left out: {error}."))
            continue
        except HpcflError as error:  # matplotlib is missing, for all of them
            return element("p", f"No figures: {error}")
        drawn = svg(figure, f"f{number}-", wanted.caption)
        parts.append(element("figure", join([drawn, element("figcaption", wanted.caption)])))
    return join(parts)


def svg(figure: Figure, prefix: str, label: str) -> Markup:
    """Return a figure as an SVG element for use within a page.

    `prefix` is put before all names in it, so that no two elements of a page have the same; `label`
    is for those who cannot see it.
    """
    found = _METADATA.sub("", style.svg(figure))
    found = found[found.index("<svg") :]
    found = _OWN_NAME.sub(prefix, found)
    return Markup(found.replace("<svg", f'<svg role="img" aria-label="{text(label)}"', 1))
