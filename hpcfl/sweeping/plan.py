"""Reads a sweep's plan: a TOML file of fixed options and of grids of options."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcfl.errors import UsageError, no_such
from hpcfl.sweeping.commands import COMMANDS, Bench
from hpcfl.system import files
from hpcfl.values import dataclass

_REPEATS = "repeats"
# An alternative to devices: the number of devices per rank that holds devices.
_PER_RANK = "devices-per-rank"


@dataclass(frozen=True)
class Setting:
    """One combination of a plan's values."""

    # Command-line arguments after the command: the subject, then ``--name=value`` by name.
    arguments: tuple[str, ...]
    repeats: int  # number of runs of this combination
    command: str = "bench"  # one of `COMMANDS`


def read(path: Path, ranks: int = 1) -> list[Setting]:
    """Return all combinations of a plan in a file, in its order, for a launch of `ranks` ranks.

    ``hpcfl sweep --help`` describes the format. Raise UsageError if the file cannot be read, or for
    a wrong key or value; the message names the table.
    """
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"the plan {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"the plan {path} is not TOML: {files.brief(error)}") from None
    return combine(content, str(path), ranks)


def combine(content: Mapping[str, Any], source: str, ranks: int = 1) -> list[Setting]:
    """Return all combinations of the tables of a plan, in its order, as `read` does.

    `source` names their origin in messages. A combination leaves out options that its protocol does
    not use. Raise UsageError for an option that no protocol of a grid uses.
    """
    for name in content.keys() - {"fixed", "grid"}:
        raise UsageError(f"{source}: put {name!r} into [fixed] or [grid]")
    fixed, grids = content.get("fixed", {}), content.get("grid", {})
    settings: list[Setting] = []
    for number, grid in enumerate(grids if isinstance(grids, list) else [grids], 1):
        place = f"{source}: [[grid]] number {number}" if grid is not grids else f"{source}: [grid]"
        if not isinstance(fixed, dict) or not isinstance(grid, dict):
            raise UsageError(f"{place}: it and [fixed] must be tables of options")
        settings += _settings(fixed, grid, place, ranks)
    if not settings:
        raise UsageError(f"{source}: the plan has no cells, because [[grid]] is empty")
    return settings


def _settings(fixed: dict[str, Any], grid: dict[str, Any], place: str, ranks: int) -> list[Setting]:
    """Return all combinations of a grid."""
    said = [one for one in COMMANDS.values() if one.subject in {*fixed, *grid}]
    if len(said) != 1:
        names = " or ".join(command.subject for command in COMMANDS.values())
        raise UsageError(f"{place}: give either {names}, here or in [fixed]")
    (command,) = said
    choices: dict[str, list[str]] = {}
    for table, spot in ((fixed, f"{place} with [fixed]"), (grid, place)):
        for key, value in table.items():
            if key in choices:
                raise UsageError(f"{spot}, {key}: it is in [fixed] too, leave one of them out")
            if isinstance(value, list) and (table is fixed or not value):
                raise UsageError(f"{spot}, {key}: a list belongs in [grid], and must not be empty")
            try:
                listed = value if isinstance(value, list) else [value]
                choices[key] = [_text(command, key, one) for one in listed]
            except UsageError as error:
                raise UsageError(f"{spot}, {key}: {error}") from None
    if len(choices.keys() & {"devices", _PER_RANK}) != 1:
        raise UsageError(f"{place}: give either devices or {_PER_RANK}, here or in [fixed]")
    repeats = int(choices.pop(_REPEATS, ["1"])[0])
    found, used = [], {command.subject, _PER_RANK}
    for values in itertools.product(*choices.values()):
        options = dict(zip(choices, values, strict=True))
        subject = options.pop(command.subject)
        if _PER_RANK in options:
            each = int(options.pop(_PER_RANK))
            options["devices"] = str(each * _holding(subject, options, ranks))
        options = command.used(subject, options)
        used |= options.keys()
        typed = (_typed(command, key, options[key]) for key in sorted(options))
        found.append(Setting((subject, *filter(None, typed)), repeats, command.name))
    for key in choices.keys() - used:
        subjects = ", ".join(choices[command.subject])
        raise UsageError(f"{place}, {key}: it is not an option of {subjects}")
    return found


def _holding(subject: str, options: Mapping[str, str], ranks: int) -> int:
    """Return the number of ranks with devices: all but the server's and helpers', at least 1."""
    from hpcfl.algorithms.aggregation import PROTOCOLS, find

    name, helpers = options.get("aggregate", subject), 0
    if name in PROTOCOLS and find(name).most_helpers:
        asked = options.get("helpers")
        helpers = find(name).helpers_of(None if asked is None else int(asked))
    return max(1, ranks - int(options.get("server-ranks", "1")) - helpers)


def _text(command: Bench, key: str, value: Any) -> str:
    """Return a value in command-line form; raise UsageError if it is invalid for the option."""
    known = [*command.keys, command.subject, _REPEATS, _PER_RANK]
    if key not in known:
        also = f"see hpcfl {command.name} --help"
        raise no_such("option of a plan", key, known, also=also, listed=False)
    flag = key in command.keys and command.keys[key].type is bool
    if isinstance(value, bool) is not flag or not isinstance(value, int | float | str):
        raise UsageError(f"{value!r} is neither a number nor text")
    text = str(value)
    if key == _REPEATS:
        if type(value) is not int or value < 1:
            raise UsageError(f"{value!r} is not a number of repeats, give 1 or more")
    elif key == command.subject:
        command.find(text)
    else:
        about = command.keys["devices" if key == _PER_RANK else key]
        read = about.read(text)
        about.check(read)
        if about.name == "devices" and isinstance(read, tuple) and len(read) != 1:
            raise UsageError(f"{text!r} is not a number of devices; give a list in [grid]")
        if key == "aggregate":
            from hpcfl.algorithms.aggregation import find

            find(text)
    return text


def _typed(command: Bench, key: str, value: str) -> str:
    """Return the command-line argument for a value; "" for a flag that is not set."""
    about = command.keys[key]
    if about.type is bool:
        return f"--{key}" if about.read(value) else ""
    return f"--{key}={value}"
