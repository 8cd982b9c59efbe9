"""Reads a sweep's plan: a TOML file of fixed options and of grids of options."""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcfl.errors import UsageError, no_such
from hpcfl.options.definition import options_of
from hpcfl.sweeping.commands import COMMANDS, Command
from hpcfl.system import files

_REPEATS = "repeats"
# In place of devices: so many on each rank that holds some, however many ranks are started.
_PER_RANK = "devices-per-rank"
MOST_CELLS = 100_000


@dataclass(frozen=True)
class Setting:
    """One combination of a plan's values."""

    # What is typed after the command for it: the subject, then ``--name=value`` by name.
    arguments: tuple[str, ...]
    repeats: int  # how many runs of it are asked for
    command: str = "bench"  # one of `COMMANDS`


def read(path: Path, ranks: int = 1) -> list[Setting]:
    """Return all combinations of a plan in a file, in its order, for a launch of so many ranks.

    The TOML file's table ``[fixed]`` holds options of all cells, and ``[grid]``, or several tables
    ``[[grid]]``, hold lists of values whose products are the cells. The keys are ``protocol`` and
    the long options of `hpcfl bench` without their dashes, or ``algorithm`` and those of
    `hpcfl train`, and ``repeats``; ``devices-per-rank`` is as many times the ranks that hold
    devices. A file that cannot be read, and a wrong key or value, are a
    UsageError that says in which table.
    """
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"the plan {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        # Of TOML, of UTF-8, of a number with too many digits.
        raise UsageError(f"the plan {path} is not TOML: {files.brief(error)}") from None
    return combine(content, str(path), ranks)


def combine(content: Mapping[str, Any], source: str, ranks: int = 1) -> list[Setting]:
    """Return all combinations of the tables of a plan, in its order, as `read` does.

    `source` says where they are from, for messages. A combination leaves out the options that its
    protocol has no use for; one that no protocol of a grid has a use for is a UsageError.
    """
    unknown = sorted(content.keys() - {"fixed", "grid"})
    if unknown:
        raise UsageError(f"{source}: {unknown[0]!r} is neither [fixed] nor [grid], put it into one")
    fixed = _table(content.get("fixed", {}), f"{source}: [fixed]")
    grids = content.get("grid", {})
    several = isinstance(grids, list)
    settings: list[Setting] = []
    cells = 0
    for number, grid in enumerate(grids if several else [grids], 1):
        place = f"{source}: [[grid]] number {number}" if several else f"{source}: [grid]"
        command = _command({*fixed, *_table(grid, place)}, place)
        repeats, choices = _choices(command, fixed, grid, f"{source}: [fixed]", place)
        # Before there are any: a few lists have more products than any memory holds.
        cells += repeats * math.prod(map(len, choices.values()))
        if cells > MOST_CELLS:
            raise UsageError(
                f"{place}: with it the plan has more than {MOST_CELLS} cells, make several plans"
            )
        used = {command.subject}
        for values in itertools.product(*choices.values()):
            options = dict(zip(choices, values, strict=True))
            subject = options.pop(command.subject)
            if _PER_RANK in options:
                each = int(options.pop(_PER_RANK))
                options["devices"] = str(each * _holding(subject, options, ranks))
                used.add(_PER_RANK)
            options = command.used(subject, options)
            used |= options.keys()
            typed = (_typed(command, key, options[key]) for key in sorted(options))
            settings.append(Setting((subject, *filter(None, typed)), repeats, command.name))
        _refuse_unused(choices, choices[command.subject], used, place)
    if not settings:
        raise UsageError(f"{source}: the plan has no cells, [[grid]] is empty")
    return settings


_SUBJECTS = " or ".join(command.subject for command in COMMANDS.values())


def _holding(subject: str, options: Mapping[str, str], ranks: int) -> int:
    """Return how many of the ranks hold devices: all but the server's and helpers'; 1 of one."""
    from hpcfl.algorithms.aggregation import PROTOCOLS, find

    name, helpers = options.get("aggregate", subject), 0
    if name in PROTOCOLS and find(name).most_helpers:
        asked = options.get("helpers")
        helpers = find(name).helpers_of(None if asked is None else int(asked))
    return max(1, ranks - int(options.get("server-ranks", "1")) - helpers)


def _command(keys: Set[str], place: str) -> Command:
    """Return the command of a grid, by what it says is to run; if it says nothing, the first."""
    commands = [*COMMANDS.values()]
    found = [command for command in commands if command.subject in keys]
    if len(found) > 1:
        raise UsageError(
            f"{place}: {_SUBJECTS}, not both: the algorithms of hpcfl train are summed by the "
            "protocols of aggregate"
        )
    return found[0] if found else commands[0]


def _refuse_unused(
    choices: Mapping[str, list[str]], subjects: list[str], used: Set[str], place: str
) -> None:
    """Refuse an option of a grid that none of its combinations has a use for, by UsageError."""
    for key in choices.keys() - used:
        raise UsageError(
            f"{place}, {key}: {' and '.join(subjects)} {'has' if len(subjects) == 1 else 'have'} "
            "no use for it, leave it out"
        )


def _table(table: Any, place: str) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise UsageError(f"{place} is not a table of options")
    return table


def _choices(
    command: Command, fixed: dict[str, Any], grid: dict[str, Any], fixed_place: str, place: str
) -> tuple[int, dict[str, list[str]]]:
    """Return the repeats of one grid, and its options' values as they are typed."""
    twice = sorted(fixed.keys() & grid.keys())
    if twice:
        raise UsageError(f"{place}, {twice[0]}: it is in [fixed] too, leave one of them out")
    repeats = 1
    choices: dict[str, list[str]] = {}
    for where, table in ((fixed_place, fixed), (place, grid)):
        for key, value in table.items():
            spot = f"{where}, {key}"
            if key != _REPEATS:
                choices[key] = _values(command, key, value, spot, several=table is grid)
                continue
            if type(value) is not int or value < 1:
                raise UsageError(f"{spot}: {value!r} is not a number of repeats, give 1 or more")
            repeats = value
    if "devices" in choices and _PER_RANK in choices:
        raise UsageError(
            f"{place}: devices and {_PER_RANK} both say how many: leave one of them out"
        )
    keys = ((command.subject,), _SUBJECTS), (("devices", _PER_RANK), "devices")
    for alternatives, name in keys:
        if not choices.keys() & {*alternatives}:
            raise UsageError(f"{place}: neither it nor [fixed] says {name}")
    return repeats, choices


def _values(command: Command, key: str, value: Any, spot: str, *, several: bool) -> list[str]:
    """Return an option's values as they are typed, each checked by itself."""
    if key not in (*command.keys, command.subject, _PER_RANK):
        if key in {about.dashed for about in options_of(command.group).values()}:
            raise UsageError(
                f"{spot}: there is no option of a plan {key!r}: it would be the same for every "
                f"cell, and is for hpcfl {command.name} alone"
            )
        also = f"see hpcfl {command.name} --help"
        known = [*command.keys, command.subject, _REPEATS, _PER_RANK]
        raise no_such("option of a plan", key, known, also=also, listed=False, place=f"{spot}: ")
    if isinstance(value, list) and not several:
        raise UsageError(f"{spot}: a list of values belongs in [grid]")
    values = value if isinstance(value, list) else [value]
    if not values:
        raise UsageError(f"{spot}: the list is empty")
    texts = [_text(command, key, item, spot) for item in values]
    for text in texts:
        try:
            _check(command, "devices" if key == _PER_RANK else key, text)
        except UsageError as error:
            raise UsageError(f"{spot}: {error}") from None
    return texts


def _typed(command: Command, key: str, value: str) -> str:
    """Return how a value is typed; "" for a flag that is not set."""
    about = command.keys[key]
    if about.type is bool:
        return f"--{key}" if about.read(value) else ""
    return f"--{key}={value}"


def _text(command: Command, key: str, value: Any, spot: str) -> str:
    flag = key in command.keys and command.keys[key].type is bool
    if isinstance(value, bool) is not flag or not isinstance(value, int | float | str):
        raise UsageError(f"{spot}: {value!r} is neither a number nor text")
    return str(value)


def _check(command: Command, key: str, text: str) -> None:
    """Find out whether a value is a possible one, whatever it is combined with."""
    if key == command.subject:
        if text.startswith("-"):
            raise UsageError(f"{text!r} is not a {key}")
        command.check_subject(text)
        return
    about = command.keys[key]
    value = about.read(text)
    about.check(value)
    if command.name == "bench" and key == "model":
        from hpcfl.learning.models import parameters

        parameters(value)
    if key == "devices" and isinstance(value, tuple) and len(value) != 1:
        raise UsageError(f"{text!r} is not a number of devices; give a list of numbers in [grid]")
    if key == "aggregate":
        from hpcfl.algorithms.aggregation import find

        find(text)
    if key == "updates":
        files.require(value)
