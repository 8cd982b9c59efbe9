"""Formats of numbers and words; a dash stands for a missing value."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Format = Callable[[Any], str]
# Chooses the unit and the format of a column from its values.
Scale = Callable[[Iterable[Any]], tuple[str, Format]]

NOTHING = "-"


def has_value(value: Any) -> bool:
    """Return whether a value is neither None nor NaN."""
    return value is not None and value == value  # NaN is not equal to itself


def words(value: Any, nothing: str = NOTHING) -> str:
    """Return any value on one line, lists with commas and mappings as ``name=value``."""
    if not has_value(value):
        return nothing
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={words(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(words, value))
    line = " ".join(str(value).split())
    # Control characters in a results file must not reach the terminal.
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line
    )


def counted(number: int, what: str) -> str:
    """Return a number of things: ``1 round``, ``3 rounds``, ``2 launches``, ``2 replies``."""
    if number == 1:
        return f"{number} {what}"
    if what.endswith("y"):
        return f"{number} {what[:-1]}ies"
    return f"{number} {what}{'es' if what.endswith(('s', 'ch')) else 's'}"


def named(what: str, numbers: Sequence[int], most: int = 10) -> str:
    """Return a noun with its numbers: ``device 3``, ``devices 0, 3, 4 and 20 more``."""
    listed = ", ".join(map(str, numbers[:most]))
    more = f" and {len(numbers) - most} more" if len(numbers) > most else ""
    return f"{what}{'s' * (len(numbers) > 1)} {listed}{more}"


def count(value: float | None) -> str:
    """Return a value, such as a number of bytes or rounds, rounded to a whole number."""
    return f"{value:.0f}" if value is not None and has_value(value) else NOTHING


def number(value: float | None, digits: int = 4) -> str:
    """Return a number with `digits` significant digits; an int with all its digits."""
    if isinstance(value, int):
        return str(value)
    return f"{value:.{digits}g}" if value is not None and has_value(value) else NOTHING


def rounded_up(value: float, digits: int) -> float:
    """Round a number up to `digits` significant digits, for example a required noise scale.

    Digits of a float beyond the twelfth are ignored.
    """
    with decimal.localcontext(prec=digits, rounding=decimal.ROUND_CEILING):
        return float(+decimal.Decimal(f"{value:.12g}"))


def share(value: float | None) -> str:
    """Return a fraction as a percentage; only 0 itself is shown as 0."""
    if value is None or not has_value(value):
        return NOTHING
    if value == 0:
        return "0%"
    if abs(value) < 5e-7:
        return "<0.0001%"
    return f"{value:.2%}" if abs(value) >= 0.01 else f"{value:.4%}"


def seconds(value: float | None, digits: int = 4) -> str:
    """Return seconds with `digits` significant digits, at most three decimals and no exponent.

    Values below 0.1 s have three significant digits and at most six decimals.
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    exponent = math.floor(math.log10(abs(value))) if value else 0
    if exponent < -1:
        decimals = min(6, 2 - exponent)
    else:
        decimals = min(3, max(0, digits - 1 - max(0, exponent)))
    return f"{value:.{decimals}f}"


def milliseconds(value: float | None) -> str:
    """Return seconds as milliseconds in the format of :func:`seconds`."""
    return NOTHING if value is None else seconds(1e3 * value)


def ratio(value: float | None) -> str:
    """Return a ratio to three significant digits: ``1.97x``."""
    if value is None or not has_value(value):
        return NOTHING
    return f"{seconds(value, 3) if value >= 0.1 else number(value, 3)}x"


def interval(low: float, high: float, unit: Format = seconds) -> str:
    """Return both ends of an interval: ``[0.98, 1.02]``."""
    return f"[{unit(low)}, {unit(high)}]"


def duration(value: float) -> str:
    """Return seconds in units that suit: ``4.2 s``, ``3 min 20 s``, ``5 h 10 min``, ``9 d 4 h``."""
    if value < 100:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 100:
        return f"{minutes} min {rest:02} s"
    hours = minutes // 60
    if hours < 100:
        return f"{hours} h {minutes % 60:02} min"
    if hours < 24 * 1000:
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours / (24 * 365.25):,.0f} years"


# From this many seconds on, durations are shown in larger units.
_LONG = 1000
_BYTES = {1e12: "TB", 1e9: "GB", 1e6: "MB", 1: "B"}


def time(value: float | None) -> str:
    """Return seconds with their unit, from 1000 s on as `duration` does: ``0.200 s``."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"{seconds(value)} s" if value < _LONG else duration(value)


def amount(value: float | None) -> str:
    """Return a number of bytes with four digits, in B, MB, GB or TB: ``4.000 GB``."""
    if value is None or not has_value(value):
        return NOTHING
    size, unit = _byte_unit(value)
    return f"{count(value) if size == 1 else seconds(value / size)} {unit}"


def seconds_scale(values: Iterable[Any]) -> tuple[str, Format]:
    """Return the unit and the format of seconds: ms if all are below a second, otherwise s.

    If any value is 1000 s or more, each value has its own unit, and the returned unit is "".
    """
    largest = _largest(values)
    if largest >= _LONG:
        return "", time
    return ("ms", milliseconds) if largest < 1 else ("s", seconds)


def bytes_scale(values: Iterable[Any]) -> tuple[str, Format]:
    """Return the unit and the format of numbers of bytes."""
    size, unit = _byte_unit(_largest(values))
    if size == 1:
        return unit, count
    return unit, lambda value: NOTHING if value is None else number(value / size)


def _byte_unit(value: float) -> tuple[float, str]:
    return next(((size, unit) for size, unit in _BYTES.items() if value >= size), (1, "B"))


def _largest(values: Iterable[Any]) -> float:
    """Return the largest finite magnitude; 0 without any."""
    known = (abs(value) for value in values if isinstance(value, int | float))
    return max(filter(math.isfinite, known), default=0.0)
