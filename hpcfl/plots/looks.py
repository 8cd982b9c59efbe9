"""What protocols and phases look like: the same in every figure, whatever else is drawn."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hpcfl.algorithms import federated
from hpcfl.algorithms.aggregation import PROTOCOLS, active_variant, find
from hpcfl.algorithms.federated import locks
from hpcfl.comm.phases import phase_names
from hpcfl.errors import UsageError
from hpcfl.options.bench import DP_FEDAVG

# Okabe and Ito's palette without yellow and black, and then, one by one, the colour that is
# farthest (in OKLab) from those before it, to eyes without red or green receptors too.
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#662233"),
    *("#441199", "#0011FF", "#7777FF", "#99CC99", "#994433", "#554477", "#776677"),
)
# One more than colours, so that no two of 210 protocols have the same colour and the same marker.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "<", ">", "h", "*", "d", "8", "H")
# Lines of one protocol differ in these.
DASHES = ("-", "--", "-.", ":")
FILLS = ("full", "none", "left", "bottom", "right", "top")
MOST_LINES = 28


@dataclass(frozen=True)
class Look:
    """Colour and marker of a protocol or an algorithm, and which of its lines this is."""

    colour: str
    marker: str
    line: int = 0

    def points(self) -> dict[str, Any]:
        """Return how points look that are joined by no line."""
        return {
            "color": self.colour,
            "marker": self.marker,
            "linestyle": "none",
            "fillstyle": FILLS[self.line % len(FILLS)],
            "markerfacecoloralt": "white",
        }

    def curve(self) -> dict[str, Any]:
        """Return how a line looks that joins points."""
        return self.points() | {"linestyle": DASHES[self.line % len(DASHES)]}


def of_lines(lines: Iterable[tuple[str, str]]) -> dict[str, Look]:
    """Return how lines look, by their labels, from what protocol and label each has.

    Colour and marker are those of the protocol, with or without noise; its lines are told apart in
    the order of their labels, so that the order of files makes no difference. More lines than can
    be told apart are a UsageError.
    """
    labels: dict[str, set[str]] = {}
    for protocol, label in lines:
        labels.setdefault(protocol.removeprefix(f"{DP_FEDAVG}-"), set()).add(label)
    count = sum(map(len, labels.values()))
    if count > MOST_LINES:
        raise UsageError(
            f"there are {count} lines to draw and {MOST_LINES} can be told apart: name fewer "
            "files, or choose some with --where"
        )
    found = {}
    for protocol, place in _places(_protocols(), labels).items():
        colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
        for line, label in enumerate(sorted(labels[protocol])):
            found[label] = Look(colour, marker, line)
    return found


def of_phases(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return how bars of phases look, by the names of the phases, in their order."""
    return {
        name: {
            "facecolor": COLOURS[place % len(COLOURS)],
            "hatch": "//" if place >= len(COLOURS) else "",
            "edgecolor": "white",
            "linewidth": 0.5,
        }
        for name, place in _places(_phases(), names).items()
    }


def _places(known: Sequence[str], names: Iterable[str]) -> dict[str, int]:
    """Return the places of names among those that come with hpcfl; others come after them."""
    wanted = set(names)
    order = [*known, *sorted(wanted.difference(known))]
    return {name: place for place, name in enumerate(order) if name in wanted}


@functools.cache
def _protocols() -> list[str]:
    return [*dict.fromkeys([*PROTOCOLS, *federated.REGISTRY])]


@functools.cache
def _phases() -> list[str]:
    protocols = [find(name) for name in PROTOCOLS]
    active = [active_variant(kind) for kind in protocols]
    kinds = [kind for kind in (*protocols, *active) if kind is not None]
    phases = [phase for kind in kinds for phase in kind.phases()]
    return [*dict.fromkeys([*phases, *phase_names(locks.STEPS)])]
