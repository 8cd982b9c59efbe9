"""What protocols and phases look like: the same in every figure, whatever else is drawn."""

from __future__ import annotations

import functools
import math
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpcfl.algorithms import federated
from hpcfl.algorithms.aggregation import PROTOCOLS, active_variant, find
from hpcfl.algorithms.federated import locks
from hpcfl.comm.phases import phase_names
from hpcfl.errors import UsageError
from hpcfl.options.bench import DP_FEDAVG

# Okabe and Ito's palette without yellow and black, and then, one by one, the colour that is
# farthest (in OKLab) from those before it, to eyes without red or green receptors too (Machado et
# al. 2009). Near black and near white were left out.
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#662233"),
    *("#441199", "#0011FF", "#7777FF", "#99CC99", "#994433", "#554477", "#776677"),
)
# Where colours are not seen, as in print without them, every protocol has a marker of its own.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "<", ">", "h", "*")
# Further ones: those of matplotlib, stars as it writes them, and outlines.
_ROUND = [(math.cos(math.pi * step / 12), math.sin(math.pi * step / 12)) for step in range(13)]
_OUTLINES = {
    "upright bar": [(-0.4, -1), (0.4, -1), (0.4, 1), (-0.4, 1)],
    "flat bar": [(-1, -0.4), (1, -0.4), (1, 0.4), (-1, 0.4)],
    "hourglass": [(-1, -1), (1, -1), (-1, 1), (1, 1)],
    "bow tie": [(-1, -1), (1, 1), (1, -1), (-1, 1)],
    "upper half": [(x, y - 0.4) for x, y in _ROUND],
    "lower half": [(x, 0.4 - y) for x, y in _ROUND],
    "left half": [(0.4 - y, x) for x, y in _ROUND],
    "right half": [(y - 0.4, x) for x, y in _ROUND],
    "roof": [(-1, -1), (0, 0), (1, -1), (1, 0), (0, 1), (-1, 0)],
}
_STARS: dict[str, tuple[int, int, int]] = {
    "star of 4": (4, 1, 0),
    "star of 3": (3, 1, 0),
    "star of 6": (6, 1, 0),
    "star of 3, down": (3, 1, 180),
    "star of 4, turned": (4, 1, 45),
    "star of 3, left": (3, 1, 90),
    "star of 3, right": (3, 1, 270),
}
MORE_MARKERS = ("d", *_STARS, *_OUTLINES)
# Of what does not come with hpcfl.
_SPARE_COLOURS = ("#000000", "#999999")
# Of areas: those of spare looks are hatched, all others are not.
_HATCHES = ("", "//")
# Lines and points of one protocol differ in these, and then in shade.
DASHES = ("-", "--", "-.", ":")
FILLS = ("full", "none", "left", "bottom", "right", "top")
_SHADES = (1.0, 0.55, 1.45)  # as it is, darker, paler
# So many lines of one protocol, and so many lines altogether, can be told apart.
MOST_OF_ONE = len(FILLS) * len(_SHADES)
MOST_LINES = 28


@dataclass(frozen=True)
class Look:
    """Colour and marker of a protocol or an algorithm, and which of its lines this is."""

    colour: str
    marker: str
    line: int = 0

    @property
    def shade(self) -> Any:
        """The colour of this line."""
        from matplotlib.colors import to_rgb

        by = _SHADES[self.line // len(FILLS) % len(_SHADES)]
        parts = to_rgb(self.colour)
        return tuple(by * part if by <= 1 else 1 - (2 - by) * (1 - part) for part in parts)

    def points(self) -> dict[str, Any]:
        """Return how points look that are joined by no line."""
        marker = _STARS.get(self.marker) or _OUTLINES.get(self.marker) or self.marker
        found = {"color": self.shade, "marker": marker, "linestyle": "none"}
        return found | {
            "fillstyle": FILLS[self.line % len(FILLS)],
            "markerfacecoloralt": "white",
        }

    def curve(self, points: int) -> dict[str, Any]:
        """Return how a line of so many points looks, with about ten markers on it."""
        return self.points() | {
            "linestyle": DASHES[self.line % len(DASHES)],
            # Markers of neighbouring lines lie side by side where there are enough points.
            "markevery": (self.line % 3 if points > 20 else 0, max(1, points // 10)),
        }


def widths(curves: Sequence[tuple[Any, Any]]) -> list[dict[str, Any]]:
    """Return by how much lines, or points, are drawn larger so that none of them hides another.

    A curve is where it is, across and up. Of those that are the same, the first are the widest, and
    lie below the others.
    """
    from matplotlib import rcParams

    found = []
    for number, (x, y) in enumerate(curves):
        above = sum(
            len(x) == len(other_x)
            and np.allclose(x, other_x, rtol=0.01)
            and np.allclose(y, other_y, rtol=0.01, atol=1e-9)
            for other_x, other_y in curves[number + 1 :]
        )
        larger = 1 + 0.6 * above
        size, width = rcParams["lines.markersize"], rcParams["lines.linewidth"]
        found.append(
            {"linewidth": width * larger, "markersize": size * larger, "zorder": 2 - above / 100}
        )
    return found


def numbered(number: int) -> Look:
    """Return how a line looks that is of no protocol: one of the first 28 lines of a figure."""
    return Look(COLOURS[number % 7], MARKERS[number % 7], number % len(DASHES))


def of_lines(lines: Iterable[tuple[str, str]]) -> dict[str, Look]:
    """Return how lines look, by their labels, from what protocol and label each has.

    Colour and marker are those of the protocol; its lines are told apart in the order of their
    labels, so that the order of files makes no difference. More than can be told apart are a
    UsageError.
    """
    labels: dict[str, set[str]] = {}
    for protocol, label in lines:
        labels.setdefault(protocol, set()).add(label)
    check_count(sum(map(len, labels.values())))
    for protocol, of_one in labels.items():
        check_count(len(of_one), f"lines of {protocol}", MOST_OF_ONE)
    bases = of_protocols(labels)
    return {
        label: replace(bases[protocol], line=number)
        for protocol, of_one in labels.items()
        for number, label in enumerate(sorted(of_one, key=_by_numbers))
    }


def check_count(count: int, what: str = "lines to draw", most: int = MOST_LINES) -> None:
    """Refuse more lines than can be told apart."""
    if count > most:
        raise UsageError(
            f"there are {count} {what} and {most} can be told apart: name fewer files, or choose "
            "some with --where"
        )


def of_protocols(names: Iterable[str]) -> dict[str, Look]:
    """Return how protocols and algorithms look, by their names."""
    spare = [Look(colour, marker) for colour in _SPARE_COLOURS for marker in MORE_MARKERS]
    return _of(set(names), _known(), spare, lambda look: look.marker)


def of_phases(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return how areas of phases look, by the names of the phases.

    Stacked areas are parted by a white line.
    """
    areas = [
        {"facecolor": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0.5}
        for hatch in _HATCHES
        for colour in COLOURS
    ]
    known = dict(zip(_phases(), areas, strict=False))
    return _of(set(names), known, areas[len(COLOURS) :], lambda area: area)


def _of(
    names: set[str], known: Mapping[str, Any], spare: list[Any], mark: Callable[[Any], Any]
) -> dict[str, Any]:
    """Return the looks of names that are known, in their order, and spare ones of others.

    Another one's is always the same, unless the figure has two that would be alike: whose `mark`
    is the same.
    """
    found = {name: look for name, look in known.items() if name in names}
    for name in sorted(names - known.keys()):
        taken = [mark(look) for look in found.values()]
        free = [look for look in spare if mark(look) not in taken]
        free = free or [look for look in spare if look not in found.values()] or spare
        wanted = spare[zlib.crc32(name.encode()) % len(spare)]
        found[name] = wanted if wanted in free else free[0]
    return found


@functools.cache
def _known() -> dict[str, Look]:
    """Return the looks of all protocols and algorithms that come with hpcfl."""
    algorithms = [name for name in federated.REGISTRY if name not in PROTOCOLS]
    # With noise, a protocol keeps its colour.
    noisy = [f"{DP_FEDAVG}-{name}" for name in PROTOCOLS]
    colours = [*range(len(PROTOCOLS) + len(algorithms)), *range(len(PROTOCOLS))]
    names = [*PROTOCOLS, *algorithms, *noisy]
    return {
        name: Look(COLOURS[colour % len(COLOURS)], marker)
        for name, colour, marker in zip(names, colours, (*MARKERS, *MORE_MARKERS), strict=False)
    }


@functools.cache
def _phases() -> list[str]:
    """Return the phases of all that comes with hpcfl, in order."""
    protocols = [find(name) for name in PROTOCOLS]
    active = [active_variant(kind) for kind in protocols]
    kinds = [kind for kind in (*protocols, *active) if kind is not None]
    phases = [phase for kind in kinds for phase in kind.phases()]
    return list(dict.fromkeys([*phases, *phase_names(locks.STEPS)]))


def _by_numbers(label: str) -> list[tuple[float, str]]:
    """Return a key that puts ``N = 9`` before ``N = 10``."""
    parts = re.split(r"(\d+(?:\.\d+)?)", label)
    return [(float(part), "") if number % 2 else (0.0, part) for number, part in enumerate(parts)]
