"""What an option is: a field of a dataclass that says all there is to know about it.

From the field are made: the option of the command line, the keyword of the Python API, the check of
its range, the key of a sweep's plan, what a run may change when it is resumed, what makes two runs
repeats of one configuration, and what figures tell runs apart by.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, TypeVar

from hpcfl.errors import UsageError, no_such
from hpcfl.system.outputs import Kind, without_home

_KEY = "option"
LARGEST = 2**63 - 1  # of whole numbers, as files keep them


class Section(StrEnum):
    """Headings of the help, in the order in which it has them."""

    WHAT = "What is run"
    SIZE = "How many, and how long"
    TRAINING = "Training"
    PRIVACY = "Privacy and security"
    LINKS = "Links"
    OUTPUT = "Output"
    ADVANCED = "Advanced"


@dataclass(frozen=True)
class Option:
    """All there is to know about an option."""

    help: str  # a sentence
    # Range of a number, or of each of several; whole numbers have 63 bits if it does not say more.
    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = None
    why: str = ""  # the range is what it is, as the end of a sentence
    choices: tuple[str, ...] = ()  # what a text may be; empty for any text
    # What a number counts or measures, and what a text is; the help shows it as the value. Every
    # number has one.
    unit: str = ""
    section: Section = Section.ADVANCED  # under which heading the help has it
    typed: str = ""  # the name as it is typed, without dashes, where the field cannot have it
    negative: str = ""  # the flag that says no, without dashes, where neither is the default
    default_text: str = ""  # default in words, where it depends on something
    # Whether results files hold it; "if given" leaves those as they are whose runs do not use it.
    recorded: Literal["always", "if given", "no"] = "always"
    sweepable: bool = True  # whether the plan of a sweep may set it
    resumable: bool = False  # whether a run may go on with another value
    # Whether it is about one launch of a run: who goes on with the run gives it anew.
    of_launch: bool = False
    # Whether runs that differ in it are repeats of one configuration; "if given": only whether
    # there is a value matters; "if any": only whether the number is 0.
    repeats: Literal["no", "yes", "if given", "if any"] = "no"
    label: bool = False  # whether figures tell runs apart by it
    # Of a path, what kind of file or folder the command writes there; None if it is only read.
    writes: Kind | None = None
    # What this option says something about, which has to be there: another option that is given,
    # by its name, or one that has a value, as in "mechanism=gaussian".
    needs: str = ""
    name: str = ""  # of the field
    type: Any = str  # of a value that is not None
    optional: bool = False  # whether None is a value
    default: Any = None
    origin: str = ""  # the field that defines it, which may be of another group; see `again`

    @property
    def dashed(self) -> str:
        """The name as it is typed, without the dashes in front."""
        return self.typed or self.name.replace("_", "-")

    def read(self, value: Any) -> Any:
        """Return a value of the option's type, from text or from what a caller gave.

        A UsageError says of which type it must be.
        """
        what, reader = READERS[self.type]
        if self.choices and self.type is str and isinstance(value, int):
            value = str(value)
        try:
            return reader(value)
        except (TypeError, ValueError):
            raise UsageError(f"--{self.dashed} is {value!r}; it must be {what}") from None

    def check(self, value: Any) -> None:
        """Refuse, with a UsageError, a value that is out of range, or no choice."""
        for one in value if isinstance(value, tuple) else (value,):
            if one is None:
                continue
            if self.choices and one not in self.choices:
                raise no_such(f"--{self.dashed}", one, self.choices)
            if self.type is float and not math.isfinite(one):
                raise UsageError(f"--{self.dashed} is {one}; it must be a finite number")
            if self.at_most is None and isinstance(one, int) and abs(one) > LARGEST:
                raise UsageError(f"--{self.dashed} has more than 63 bits; give a smaller number")
            bounds = (
                (self.above, operator.gt),
                (self.at_least, operator.ge),
                (self.below, operator.lt),
                (self.at_most, operator.le),
            )
            if not all(bound is None or holds(one, bound) for bound, holds in bounds):
                why = f", {self.why}" if self.why else ""
                raise UsageError(f"--{self.dashed} is {one}; it must be {self.range}{why}")

    @property
    def range(self) -> str:
        """The range in words."""
        bounds = (
            ("above", self.above),
            ("at least", self.at_least),
            ("below", self.below),
            ("at most", self.at_most),
        )
        shown = [(word, f"{at:g}" if isinstance(at, float) else at) for word, at in bounds]
        return " and ".join(f"{word} {bound}" for word, bound in shown if bound is not None)


def option(default: Any, help: str, **about: Any) -> Any:
    """Return a field of an `OptionGroup` with a default and a sentence for ``--help``.

    `about` are fields of `Option`.
    """
    return field(default=default, metadata=described(help, **about))


def described(help: str, **about: Any) -> dict[str, Option]:
    """Return the metadata of a field without a default; see `option`."""
    return {_KEY: Option(help, **about)}


def again(group: type[OptionGroup], name: str, default: Any, **changed: Any) -> Any:
    """Return the option of another group with another default, or other attributes.

    A default in words is taken over only with the default that it is said of.
    """
    found = options_of(group)[name]
    if default != found.default:
        changed = {"default_text": ""} | changed
    return field(default=default, metadata={_KEY: dataclasses.replace(found, **changed)})


@dataclass(frozen=True, kw_only=True)
class OptionGroup:
    """Options that belong together; commands take several groups, which they inherit from.

    A UsageError says that a value is out of range.
    """

    def __post_init__(self) -> None:
        for name, about in options_of(type(self)).items():
            about.check(getattr(self, name))


Group = TypeVar("Group", bound=OptionGroup)


_known: dict[type[OptionGroup], Mapping[str, Option]] = {}


def options_of(group: type[OptionGroup]) -> Mapping[str, Option]:
    """Return the options of a group by their names, its own before those that it inherits."""
    if group not in _known:
        _known[group] = _find(group)
    return _known[group]


def _find(group: type[OptionGroup]) -> Mapping[str, Option]:
    fields = {one.name: one for one in dataclasses.fields(group) if _KEY in one.metadata}
    hints: dict[str, str] = {}
    homes: dict[str, type] = {}
    for kind in group.__mro__:
        own = {
            name: hint
            for name, hint in vars(kind).get("__annotations__", {}).items()
            if name not in hints
        }
        hints |= own
        homes |= dict.fromkeys(own, kind)
    return {
        name: dataclasses.replace(
            fields[name].metadata[_KEY],
            name=name,
            type=_TYPES[hints[name].removesuffix(" | None")],
            optional=hints[name].endswith(" | None"),
            default=fields[name].default,
            origin=fields[name].metadata[_KEY].origin or f"{homes[name].__qualname__}.{name}",
        )
        for name in hints
        if name in fields
    }


def names(group: type[OptionGroup], **attributes: Any) -> list[str]:
    """Return the names of a group's options with such attributes, as in ``label=True``."""
    return [
        name
        for name, about in options_of(group).items()
        if all(getattr(about, key) == value for key, value in attributes.items())
    ]


def make(group: type[Group], given: Mapping[str, Any]) -> Group:
    """Return the options that keywords, or texts of a command line, stand for.

    What is not in `given` has its default, and so has None where that is no value of the option. A
    text is read as on the command line. A UsageError says that there is no such option, or that a
    value is of the wrong type or out of range.
    """
    known = options_of(group)
    fields = {one.name for one in dataclasses.fields(group)}
    for name in given.keys() - fields:
        raise no_such("option", name, fields, listed=False)
    values = {
        name: known[name].read(value) if name in known and value is not None else value
        for name, value in stated(group, given).items()
    }
    options = group(**values)
    check_needed(group, options, given)
    return options


def check_needed(group: type[OptionGroup], options: object, given: Mapping[str, Any]) -> None:
    """Refuse, by UsageError, a given option whose subject is not there: it would do nothing.

    `options` have the values of all of them, or of those that are of some use.
    """
    for name, about in options_of(group).items():
        other, _, value = about.needs.partition("=")
        if not other or given.get(name) in (None, False) or not hasattr(options, other):
            continue
        # None of a number is nothing to say something about.
        there = getattr(options, other) == value if value else getattr(options, other)
        if not there:
            wanted = f"--{other.replace('_', '-')} {value}".strip()
            wanted = wanted if other in options_of(group) else value
            raise UsageError(
                f"--{about.dashed} is given, and has no meaning without {wanted}: leave it out, or "
                f"give {wanted}"
            )


def stated(group: type[OptionGroup], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is given without None where it says nothing: that is no value of the option."""
    known = options_of(group)
    return {
        name: value
        for name, value in given.items()
        if value is not None or name not in known or known[name].optional
    }


def values_of(options: OptionGroup, group: type[OptionGroup]) -> dict[str, Any]:
    """Return by name the values that options have for a group that they inherit."""
    return {name: getattr(options, name) for name in options_of(group)}


def written(options: OptionGroup) -> list[tuple[Path, Kind]]:
    """Return the paths that options name for a command to write, and what it writes there."""
    return [
        (getattr(options, name), about.writes)
        for name, about in options_of(type(options)).items()
        if about.writes is not None and getattr(options, name) is not None
    ]


def part(options: OptionGroup, group: type[Group]) -> Group:
    """Return one of the groups that options inherit, by itself."""
    return group(**values_of(options, group))


def recorded(options: OptionGroup) -> dict[str, Any]:
    """Return by name the values that results files hold."""
    known = options_of(type(options))
    values = {name: getattr(options, name) for name in known if known[name].recorded != "no"}
    return {
        name: value
        for name, value in values.items()
        if known[name].recorded == "always" or value != known[name].default
    }


def asked_for(options: OptionGroup) -> dict[str, Any]:
    """Return by name what options say that is not the default, for JSON; `make` reads it again.

    The first field of some groups, which is no option, is among it. Options of one launch are not.
    """
    known = options_of(type(options))
    found = {}
    for one in dataclasses.fields(options):
        value = getattr(options, one.name)
        if one.name in known and (known[one.name].of_launch or value == known[one.name].default):
            continue
        found[one.name] = without_home(str(value)) if isinstance(value, Path | Fraction) else value
    return found


def _whole(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    return int(value) if isinstance(value, str) else operator.index(value)


def _number(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError
    # A third is said exactly so, as gamma often is.
    return float(_fraction(value) if isinstance(value, str) and "/" in value else value)


def _fraction(value: Any) -> Fraction:
    try:
        return Fraction(value)
    except ZeroDivisionError:
        raise ValueError from None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _flag(value: Any) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise TypeError
    return value


def _path(value: str | os.PathLike[str]) -> Path:
    return Path(os.path.expanduser(value))


def _wholes(value: Any) -> tuple[int, ...]:
    if isinstance(value, str):
        value = value.split(",")
    return tuple(map(_whole, value if hasattr(value, "__iter__") else [value]))


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(map(_text, [value] if isinstance(value, str) else value))


# What a value must be, and what reads it, by the type of the field.
READERS: dict[Any, tuple[str, Callable[[Any], Any]]] = {
    int: ("a whole number", _whole),
    float: ("a number", _number),
    Fraction: ("a fraction like 1/3 or 0.25", _fraction),
    str: ("text", _text),
    bool: ("True or False", _flag),
    Path: ("a path", _path),
    tuple[int, ...]: ("whole numbers like 25,50,100", _wholes),
    tuple[str, ...]: ("texts", _texts),
}
# The same types as fields name them. To let `typing` find out costs every rank some milliseconds.
_TYPES = {kind.__name__ if isinstance(kind, type) else str(kind): kind for kind in READERS}
