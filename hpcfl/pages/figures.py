"""Figures of runs as inline SVG, those that have something to show."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpcfl.errors import MissingPackageError, UsageError
from hpcfl.plots import chosen, style
from hpcfl.report.markup import Markup, element, join, text
from hpcfl.results import pooling
from hpcfl.results.reader import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Names that refer to each other within an SVG, of which there are several in a page.
_OWN_NAME = re.compile(r'(?<=\bid=")|(?<=\burl\(#)|(?<=href="#)')
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)


# Kind, options, and caption: what the figure shows and how it is read.
_WANTED: list[tuple[str, dict[str, str], str]] = [
    (
        "phases",
        {},
        "A round, phase by phase: CPU time of the slowest device, CPU time of the server, and "
        "bytes that a device sends, medians over measured rounds. The dot is the median of whole "
        "rounds, with its 95 % interval where there are enough of them.",
    ),
    *(
        (
            "scaling",
            {"against": against},
            f"A round against the number of {what}: seconds measured and modelled, CPU seconds, "
            "and bytes sent up; medians, with 95 % intervals where there are enough rounds.",
        )
        for against, what in (("devices", "devices"), ("dim", "parameters"))
    ),
    (
        "ranks",
        {"spread": "ecdf"},
        "CPU seconds of a round: the share of values, over devices and measured rounds, that are "
        "at most so large.",
    ),
    *(
        ("accuracy", {"against": against}, f"Accuracy on held-out data {what}.")
        for against, what in (
            ("rounds", "after each round of training"),
            ("bytes", "against the bytes that all devices sent"),
            ("seconds", "against the modelled time"),
        )
    ),
    (
        "epsilon",
        {},
        "Privacy that training spent, as the paper claims and as is proven for the mechanism as "
        "it was run, and the accuracy it bought.",
    ),
]


def _vary(runs: Sequence[Run], size: str) -> bool:
    """Return whether there is a protocol that was run at several sizes: devices or dim."""
    sizes = {(run.protocol, getattr(run, size)) for run in runs}
    return len(sizes) > len({protocol for protocol, _ in sizes})


def figures(runs: Sequence[Run]) -> Markup:
    """Return the figures that the runs give, each with a caption that says what it shows.

    A figure with too many lines is replaced by a sentence that says why.
    """
    parts = []
    # Runs that could be taken together, but are several, were to be kept apart.
    pool = len(pooling.group(runs)) == len(runs)
    for number, (kind, options, caption) in enumerate(_WANTED):
        drawing = chosen(kind, options)
        drawable = [run for run in runs if drawing.lacking(run) is None]
        # What benchmarks and training cost a round is for different figures.
        drawable = [run for run in drawable if not run.training] or drawable
        if not drawable or (kind == "scaling" and not _vary(drawable, options["against"])):
            continue
        try:
            figure = drawing.draw(drawable, pool)
        except MissingPackageError as error:  # for all of them
            return element("p", f"No figures: {error}")
        except UsageError as error:
            parts.append(element("p", f"Figure of {kind} left out: {error}."))
            continue
        drawn = svg(figure, f"f{number}-", caption)
        parts.append(element("figure", join([drawn, element("figcaption", caption)])))
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
