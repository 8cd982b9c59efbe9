"""Numbers and words as they are shown; what has no value is a dash."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

Format = Callable[[Any], str]

NOTHING = "-"


def has_value(value: Any) -> bool:
    """Return whether a value is neither None nor NaN."""
    return value is not None and value == value  # NaN is not equal to itself


def words(value: Any, nothing: str = NOTHING) -> str:
    """Return anything on one line: lists with commas, mappings as ``name=value``."""
    if not has_value(value):
        return nothing
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={words(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(words, value))
    line = " ".join(str(value).split())
    # A results file is not to steer the terminal that it is shown in.
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line
    )


def count(value: float | None) -> str:
    """Return a number of bytes, devices or rounds, to the nearest whole one."""
    return f"{value:.0f}" if value is not None and has_value(value) else NOTHING


def number(value: float | None, digits: int = 4) -> str:
    """Return a number with so many significant digits, a whole one (an int) with all of them."""
    if isinstance(value, int):
        return str(value)
    return f"{value:.{digits}g}" if value is not None and has_value(value) else NOTHING


def change(value: float | None) -> str:
    """Return a difference with its sign, to two significant digits."""
    return f"{value:+.2g}" if value is not None and has_value(value) else NOTHING


def share(value: float | None) -> str:
    """Return a part of a whole in per cent, to four decimals where it is below 1 %."""
    if value is None or not has_value(value):
        return NOTHING
    return f"{value:.2%}" if value == 0 or abs(value) >= 0.01 else f"{value:.4%}"


def seconds(value: float | None) -> str:
    """Return seconds to four significant digits and at most a millisecond, without an exponent.

    Below 0.1 s they have three significant digits, up to a microsecond.
    """
    return _plain(value, 4)


def milliseconds(value: float | None) -> str:
    """Return seconds as milliseconds, as :func:`seconds` does."""
    return NOTHING if value is None else _plain(1e3 * value, 4)


def ratio(value: float | None) -> str:
    """Return how many times as much, to three significant digits: ``1.97x``."""
    if value is None or not has_value(value):
        return NOTHING
    return f"{_plain(value, 3) if value >= 0.1 else number(value, 3)}x"


def _plain(value: float | None, digits: int) -> str:
    if value is None or not math.isfinite(value):
        return NOTHING
    exponent = math.floor(math.log10(abs(value))) if value else 0
    if exponent < -1:
        decimals = min(6, 2 - exponent)
    else:
        decimals = min(3, max(0, digits - 1 - max(0, exponent)))
    return f"{value:.{decimals}f}"


def interval(low: float, high: float, unit: Format = seconds) -> str:
    """Return both ends of an interval: ``[0.98, 1.02]``."""
    return f"[{unit(low)}, {unit(high)}]"


def size(bytes_: float) -> str:
    """Return a number of bytes in MB (10^6 bytes)."""
    return f"{bytes_ / 1e6:.1f} MB"


def duration(value: float) -> str:
    """Return seconds as people say them: ``4.2 s``, ``3 min 20 s`` or ``5 h 10 min``."""
    if value < 100:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 100:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"
