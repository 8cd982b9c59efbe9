"""The look of protocols and phases, the same in every figure, whatever else is drawn."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

from hpcfl.algorithms import federated
from hpcfl.algorithms.aggregation import PROTOCOLS, active_variant, find
from hpcfl.algorithms.federated import locks
from hpcfl.comm.phases import phase_names
from hpcfl.errors import UsageError
from hpcfl.options.bench import DP_FEDAVG
from hpcfl.values import dataclass

# Okabe and Ito's palette without yellow and black. Each further colour is the farthest (in OKLab)
# from those before it, also for viewers without red or green receptors.
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#662233"),
    *("#441199", "#0011FF", "#7777FF", "#99CC99", "#994433", "#554477", "#776677"),
)
# One marker more than colours, so that 210 protocols have different pairs of colour and marker.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "<", ">", "h", "*", "d", "8", "H")
# Distinguish the lines of one protocol.
DASHES = ("-", "--", "-.", ":")
FILLS = ("full", "none", "left", "bottom", "right", "top")
MOST_LINES = 28


@dataclass(frozen=True)
class Look:
    """Colour and marker of a protocol or an algorithm, and the number of one of its lines."""

    colour: str
    marker: str
    line: int = 0

    def points(self) -> dict[str, Any]:
        """Return the matplotlib properties of points without a line."""
        return {
            "color": self.colour,
            "marker": self.marker,
            "linestyle": "none",
            "fillstyle": FILLS[self.line % len(FILLS)],
            "markerfacecoloralt": "white",
        }

    def curve(self) -> dict[str, Any]:
        """Return the matplotlib properties of points joined by a line."""
        return self.points() | {"linestyle": DASHES[self.line % len(DASHES)]}


def of_lines(lines: Iterable[tuple[str, str]]) -> dict[str, Look]:
    """Return the looks of lines by label, given each line's protocol and label.

    Colour and marker are those of the protocol, with or without noise. A protocol's lines differ in
    dashes and fill, in the order of their labels, so the order of files does not matter. Raise
    UsageError for more lines than can be distinguished.
    """
    labels: dict[str, set[str]] = {}
    for protocol, label in lines:
        labels.setdefault(protocol.removeprefix(f"{DP_FEDAVG}-"), set()).add(label)
    count = sum(map(len, labels.values()))
    if count > MOST_LINES:
        raise UsageError(
            f"there are {count} lines to draw, but only {MOST_LINES} can be told apart: name fewer "
            "files, or choose some with --where"
        )
    found = {}
    for protocol, place in _places(_protocols(), labels).items():
        colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
        for line, label in enumerate(sorted(labels[protocol])):
            found[label] = Look(colour, marker, line)
    return found


def of_phases(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the matplotlib properties of phases' bars by name, in the order of the phases."""
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
    """Return the positions of names in the list of hpcfl's, followed by other names."""
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
