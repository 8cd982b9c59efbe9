"""Ticks that are read as numbers: no powers of ten, and no two labels in one place.

Importing this needs matplotlib.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import rcParams
from matplotlib.font_manager import FontProperties
from matplotlib.ticker import FuncFormatter, Locator, LogLocator, MaxNLocator, NullFormatter

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# More ticks than these say no more.
_MOST = 7
# A figure of a number is so wide, and a line so high, in units of the size of its font.
_FIGURE, _LINE = 0.62, 1.5


def number(value: float) -> str:
    """Return a number without an exponent: ``0.005``, ``20``, ``165,000``."""
    text = f"{value:,.9f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def plain(axes: Axes, places: Sequence[float] | None = None, whole: str = "") -> None:
    """Give both axes ticks that are plain numbers.

    Along x it is those of the `places` that fit. The axes that are named by `whole`, such as "xy",
    have no fractions.
    """
    for axis, along in ((axes.xaxis, True), (axes.yaxis, False)):
        axis.set_major_locator(RoundNumbers(along, axis.axis_name in whole))
        if axis.get_scale() == "log":
            axis.set_minor_locator(LogLocator(subs=[*range(2, 10)], numticks=50))
        axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
        axis.set_minor_formatter(NullFormatter())
    if places is not None:
        axes.xaxis.set_major_locator(Places(places))
        axes.xaxis.set_minor_locator(Places(places, every=True))


class RoundNumbers(Locator):
    """Round numbers, as many as have room, on an axis of either scale."""

    def __init__(self, along: bool, whole: bool = False) -> None:
        self._along, self._whole = along, whole
        size = rcParams["xtick.labelsize"] if along else rcParams["ytick.labelsize"]
        self._size = FontProperties(size=size).get_size_in_points()

    def __call__(self) -> Any:
        """Return the places of the ticks."""
        axis: Any = self.axis
        return self.tick_values(*axis.get_view_interval())

    def tick_values(self, vmin: float, vmax: float) -> Any:
        """Return the places of the ticks between two ends."""
        found: Any = []
        for some in self._candidates(*sorted((vmin, vmax))):
            found = some
            if len(some) <= _MOST and self._fit(some):
                break
        return found

    def _candidates(self, low: float, high: float) -> Iterator[Any]:
        """Yield sets of round numbers within two ends, more of them first."""
        axis: Any = self.axis
        if axis.get_scale() == "log" and low > 0:
            exponents = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
            for digits in (range(1, 10), (1, 2, 5), (1, 3), (1,)):
                places = [digit * 10.0**power for power in exponents for digit in digits]
                some = [place for place in places if low <= place <= high]
                if len(some) > 1:
                    yield some
            for step in range(2, len(exponents)):
                yield [10.0**power for power in exponents[::step] if low <= 10.0**power <= high]
        for count in range(_MOST - 1, 0, -1):
            locator = MaxNLocator(count, steps=[1, 2, 5, 10], integer=self._whole)
            some = [place for place in locator.tick_values(low, high) if low <= place <= high]
            if some:
                yield some

    def _fit(self, places: Sequence[float]) -> bool:
        """Return whether the labels have room beside each other."""
        centres, reach = self._spans(places)
        return bool((np.diff(centres) >= reach[1:] + reach[:-1]).all())

    def _spans(self, places: Sequence[float]) -> tuple[Any, Any]:
        """Return where labels are, and how far they reach to either side, in points."""
        axis: Any = self.axis
        box = axis.axes.get_window_extent()
        length = 72 / axis.axes.figure.dpi * (box.width if self._along else box.height)
        low, high = axis.get_transform().transform(np.array(axis.get_view_interval()))
        at = axis.get_transform().transform(np.array(places, float))
        letters = [len(number(place)) for place in places]
        wide = [_FIGURE * count + 0.8 if self._along else _LINE for count in letters]
        return abs(at - low) / (abs(high - low) or 1) * length, self._size * np.array(wide) / 2


class Places(RoundNumbers):
    """The places that were measured, those of them that have room; or every one, for marks."""

    def __init__(self, places: Sequence[float], every: bool = False) -> None:
        super().__init__(along=True)
        self._places, self._every = sorted(places), every

    def tick_values(self, vmin: float, vmax: float) -> Any:
        """Return the places of the ticks between two ends."""
        some = [place for place in self._places if vmin <= place <= vmax]
        if self._every or not some:
            return some
        centres, reach = self._spans(some)
        # From the largest: it is the one that is looked for.
        kept = [len(some) - 1]
        for index in range(len(some) - 2, -1, -1):
            if centres[kept[-1]] - centres[index] >= reach[index] + reach[kept[-1]]:
                kept.append(index)
        return [some[index] for index in reversed(kept)]
