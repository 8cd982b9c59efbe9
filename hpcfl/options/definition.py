"""Options as dataclass fields, which also hold the text for ``--help``.

Each field defines the command-line option, the keyword of the Python API, the check of the value,
and the key of a sweep's plan. A field without `option` is a keyword of the API alone.
Nothing here imports click: with a hundred ranks on a machine, every package is loaded as often.
"""

import dataclasses
import math
import operator
import os
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from fractions import Fraction
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, TypeVar

from hpcfl.errors import UsageError, no_such

_KEY = "option"
LARGEST = 2**63 - 1  # of whole numbers, as files keep them

Mark = Literal[
    "label",  # figures and tables tell runs apart by it
    "repeat",  # runs that differ in it are repeats of one configuration
    "repeat if given",  # the same, but only among runs that have a value, or only among others
    "repeat if any",  # the same, but a run with 0 is no repeat of one with more
    "resumable",  # a run may go on with another value
    "launch",  # it is about one launch of a run: who goes on with the run gives it anew
    "output",  # the command writes there
    "unrecorded",  # results files do not hold it
    "recorded if given",  # they hold it only where it is not the default
]


@dataclass(frozen=True)
class Option:
    """What a field says of its option; `name` and what follows are those of field and class."""

    help: str  # a sentence
    choices: tuple[str, ...] = ()  # what a text may be; empty for any text
    # The range of a number, or of each of several.
    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = None
    default_text: str = ""  # the default in words, where it depends on something
    marks: tuple[Mark, ...] = ()
    name: str = ""
    type: Any = str  # of a value that is not None
    optional: bool = False  # whether None is a value
    default: Any = None
    heading: str = ""  # in the help, see `OptionGroup`

    @property
    def dashed(self) -> str:
        """The name as it is typed, without the dashes in front."""
        return self.name.replace("_", "-")

    @property
    def default_shown(self) -> str:
        """The default as it is typed; "" for none."""
        if self.default is None or self.default is MISSING or isinstance(self.default, bool):
            return ""
        several = self.default if isinstance(self.default, tuple) else (self.default,)
        return ",".join(map(str, several))

    def read(self, value: Any) -> Any:
        """Return a value of the option's type, from text or from what a caller gave.

        A UsageError says of which type it must be.
        """
        if self.choices and type(value) is int:
            value = str(value)
        try:
            return _converted(self.type, value)
        except (TypeError, ValueError, ZeroDivisionError):
            what = TYPES[self.type]
            raise UsageError(f"--{self.dashed} is {value!r}; it must be {what}") from None

    def check(self, value: Any) -> None:
        """Raise UsageError for a value that is out of range or not among the choices."""
        for one in value if isinstance(value, tuple) else (value,):
            if one is None:
                continue
            if self.choices and one not in self.choices:
                raise no_such(f"--{self.dashed}", one, self.choices)
            if self.type is float and not math.isfinite(one):
                raise UsageError(f"--{self.dashed} is {one}; it must be a finite number")
            if self.at_most is None and isinstance(one, int) and abs(one) > LARGEST:
                raise UsageError(f"--{self.dashed} has more than 63 bits; give a smaller number")
            if (
                (self.above is not None and one <= self.above)
                or (self.at_least is not None and one < self.at_least)
                or (self.below is not None and one >= self.below)
                or (self.at_most is not None and one > self.at_most)
            ):
                raise UsageError(f"--{self.dashed} is {one}; it must be {self.range}")

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
    """Return a field with a default and a sentence for ``--help``.

    `about` are fields of `Option`.
    """
    return field(default=default, metadata=described(help, **about))


def described(help: str, **about: Any) -> dict[str, Option]:
    """Return the metadata of a field without a default; see `option`."""
    return {_KEY: Option(help, **about)}


def again(group: "type[OptionGroup]", name: str, default: Any, **changed: Any) -> Any:
    """Return the option of another group with another default, or other fields of `Option`.

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

    heading: ClassVar[str] = "Options"  # in the help, of the options that the class itself has

    def __post_init__(self) -> None:
        for name, about in options_of(type(self)).items():
            about.check(getattr(self, name))


Group = TypeVar("Group", bound=OptionGroup)

_known: dict[type, Mapping[str, Option]] = {}


def options_of(group: type) -> Mapping[str, Option]:
    """Return the options of a dataclass by their names, its own before those that it inherits."""
    if group not in _known:
        fields = {one.name: one for one in dataclasses.fields(group) if _KEY in one.metadata}
        types = typing.get_type_hints(group)
        _known[group] = {
            name: _of_field(home, fields[name], types[name])
            for home in group.__mro__
            for name in vars(home).get("__annotations__", ())
            if name in fields
        }
    return _known[group]


def _of_field(home: "type[OptionGroup]", one: dataclasses.Field[Any], hint: Any) -> Option:
    """Return the option of a field of a class, which has annotated it."""
    about: Option = one.metadata[_KEY]
    optional = isinstance(hint, UnionType)
    return dataclasses.replace(
        about,
        name=one.name,
        type=next(kind for kind in hint.__args__ if kind is not NoneType) if optional else hint,
        optional=optional,
        default=one.default,
        heading=home.heading,
    )


def names(group: type, *marks: Mark) -> list[str]:
    """Return the names of a group's options that have all the given marks."""
    return [name for name, about in options_of(group).items() if {*marks} <= {*about.marks}]


def make(group: type[Group], given: Mapping[str, Any]) -> Group:
    """Return the options that keywords, or texts of a command line, stand for.

    What is not in `given` has its default, and so has None where that is no value of the option. A
    text is read as on the command line. A UsageError says that there is no such option, that one is
    missing, or that a value is of the wrong type or out of range.
    """
    known = options_of(group)
    fields = {one.name: one.default for one in dataclasses.fields(group)}
    for name in given.keys() - fields.keys():
        raise no_such("option", name, fields, listed=False)
    values = {
        name: known[name].read(value) if name in known and value is not None else value
        for name, value in stated(group, given).items()
    }
    missing = [name for name, default in fields.items() if default is MISSING]
    if not {*missing} <= values.keys():
        raise UsageError(f"{', '.join(n for n in missing if n not in values)} must be given")
    return group(**values)


def stated(group: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is given without None where it says nothing: that is no value of the option."""
    known = options_of(group)
    return {
        name: value
        for name, value in given.items()
        if value is not None or name not in known or known[name].optional
    }


def values_of(options: OptionGroup, group: type[OptionGroup]) -> dict[str, Any]:
    """Return by name the values that options have for a group that they inherit."""
    return {one.name: getattr(options, one.name) for one in dataclasses.fields(group)}


def part(options: OptionGroup, group: type[Group]) -> Group:
    """Return one of the groups that options inherit, by itself."""
    return group(**values_of(options, group))


def recorded(options: OptionGroup) -> dict[str, Any]:
    """Return by name the values that results files hold."""
    known = options_of(type(options))
    plain = [one for one in dataclasses.fields(options) if one.name not in known]
    found = {one.name: getattr(options, one.name) for one in plain if one.default is not MISSING}
    for name, about in known.items():
        value = getattr(options, name)
        is_default = "recorded if given" in about.marks and value == about.default
        if "unrecorded" not in about.marks and not is_default:
            found[name] = value
    return found


def asked_for(options: OptionGroup) -> dict[str, Any]:
    """Return by name what options say that is not the default, for JSON; `make` reads it again.

    Options of one launch are not among it.
    """
    from hpcfl.system.outputs import without_home

    launch = {*names(type(options), "launch")}
    found = {}
    for one in dataclasses.fields(options):
        value = getattr(options, one.name)
        if one.name not in launch and value != one.default:
            is_text = isinstance(value, Path | Fraction)
            found[one.name] = without_home(str(value)) if is_text else value
    return found


def _converted(kind: Any, value: Any) -> Any:
    """Return a value as one of the types in `TYPES`; TypeError or ValueError if it is none."""
    if kind == tuple[int, ...]:
        several = value.split(",") if isinstance(value, str) else value
        several = several if hasattr(several, "__iter__") else [several]
        return tuple(_converted(int, one) for one in several)
    if kind == tuple[str, ...]:
        return tuple(_converted(str, one) for one in ([value] if isinstance(value, str) else value))
    if kind is bool:
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        kind = bool if isinstance(value, bool) else None
    elif isinstance(value, bool) or (kind is str and not isinstance(value, str)):
        raise TypeError
    elif kind is int and not isinstance(value, str):
        return operator.index(value)
    elif kind is Path:
        return Path(os.path.expanduser(value))
    elif kind is float and isinstance(value, str) and "/" in value:
        return float(Fraction(value))  # a third is said exactly so, as gamma often is
    return kind(value)


# What a value must be, by the type of the field.
TYPES: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    Fraction: "a fraction like 1/3 or 0.25",
    str: "text",
    bool: "True or False",
    Path: "a path",
    tuple[int, ...]: "whole numbers like 25,50,100",
    tuple[str, ...]: "texts",
}
