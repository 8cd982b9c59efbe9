"""Options as dataclass fields, which also hold the text for ``--help``.

Each field defines the command-line option, the keyword of the Python API, the check of the value,
and the key of a sweep's plan. A field without `option` is a keyword of the API alone.
Nothing here imports click, because each of a hundred ranks on a machine would load it.
"""

import dataclasses
import math
import operator
import os
import typing
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, TypeVar

from hpcfl.errors import UsageError, no_such
from hpcfl.values import MISSING, dataclass, field

_KEY = "option"
LARGEST = 2**63 - 1  # largest integer that files store

Mark = Literal[
    "label",  # figures and tables show it if runs differ in it
    "repeat",  # runs that differ only in it are repeats of one configuration
    "repeat if given",  # the same, but a run without a value does not repeat one with a value
    "repeat if any",  # the same, but a run with 0 does not repeat one with more
    "resumable",  # a run may be resumed with another value
    "launch",  # it applies to one launch of a run, and a resumed run does not keep it
    "output",  # the command writes to this path
    "unrecorded",  # results files do not record it
    "recorded if given",  # results files record it only if it is not the default
]


@dataclass(frozen=True)
class Option:
    """The description of an option; `name` and all after it come from the field and its class."""

    help: str  # a sentence
    choices: tuple[str, ...] = ()  # allowed texts; empty if any text is allowed
    # The range of a number, or of each of several.
    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = None
    default_text: str = ""  # the default in words, if it depends on something
    marks: tuple[Mark, ...] = ()
    name: str = ""
    type: Any = str  # of a value that is not None
    optional: bool = False  # whether None is allowed
    default: Any = None
    heading: str = ""  # in the help, see `OptionGroup`

    @property
    def dashed(self) -> str:
        """The name on the command line, without the leading dashes."""
        return self.name.replace("_", "-")

    @property
    def default_shown(self) -> str:
        """The default as typed on the command line; "" if there is none to show."""
        if self.default is None or self.default is MISSING or isinstance(self.default, bool):
            return ""
        several = self.default if isinstance(self.default, tuple) else (self.default,)
        return ",".join(map(str, several))

    def read(self, value: Any) -> Any:
        """Return a value of the option's type, converted from text or from a caller's value.

        Raises UsageError if the conversion is impossible.
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
        """The allowed range in words."""
        bounds = (
            ("above", self.above),
            ("at least", self.at_least),
            ("below", self.below),
            ("at most", self.at_most),
        )
        shown = [(word, f"{at:g}" if isinstance(at, float) else at) for word, at in bounds]
        return " and ".join(f"{word} {bound}" for word, bound in shown if bound is not None)


def option(default: Any, help: str, **about: Any) -> Any:
    """Return a field with a default and a help sentence; `about` sets fields of `Option`."""
    return field(default=default, metadata=described(help, **about))


def described(help: str, **about: Any) -> dict[str, Option]:
    """Return the metadata of a field without a default; see `option`."""
    return {_KEY: Option(help, **about)}


def again(group: "type[OptionGroup]", name: str, default: Any, **changed: Any) -> Any:
    """Return another group's option as a field with another default or other fields of `Option`.

    The new option keeps `default_text` only if it keeps the default.
    """
    found = options_of(group)[name]
    if default != found.default:
        changed = {"default_text": ""} | changed
    return field(default=default, metadata={_KEY: dataclasses.replace(found, **changed)})


@dataclass(frozen=True, kw_only=True)
class OptionGroup:
    """Options that belong together; the options of a command inherit from several groups.

    The constructor raises UsageError if a value is out of range.
    """

    heading: ClassVar[str] = "Options"  # in the help, above the options that the class defines

    def __post_init__(self) -> None:
        for name, about in options_of(type(self)).items():
            about.check(getattr(self, name))


Group = TypeVar("Group", bound=OptionGroup)

_known: dict[type, Mapping[str, Option]] = {}


def options_of(group: type) -> Mapping[str, Option]:
    """Return the options of a dataclass by their names, its own before inherited ones."""
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
    """Return the option of the field `one`, which the class `home` annotates with `hint`."""
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
    """Return a group of options from keyword values or from texts of a command line.

    An option has its default if it is not in `given`, or is None there and does not allow None.
    Texts are read as on the command line. Raises UsageError if an option is unknown or missing, or
    if a value is of the wrong type or out of range.
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
    """Return `given` without the None of each option that does not allow None."""
    known = options_of(group)
    return {
        name: value
        for name, value in given.items()
        if value is not None or name not in known or known[name].optional
    }


def values_of(options: OptionGroup, group: type[OptionGroup]) -> dict[str, Any]:
    """Return the values of an inherited group's options, by name."""
    return {one.name: getattr(options, one.name) for one in dataclasses.fields(group)}


def part(options: OptionGroup, group: type[Group]) -> Group:
    """Return the values of an inherited group as an instance of that group."""
    return group(**values_of(options, group))


def recorded(options: OptionGroup) -> dict[str, Any]:
    """Return the values that results files record, by name."""
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
    """Return the values that are not the default, by name, for JSON; `make` reads them again.

    Options that apply to one launch are left out.
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
    """Return a value as a type in `TYPES`; raise TypeError or ValueError if it cannot be one."""
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
        return float(Fraction(value))  # for 1/3, a common value of gamma
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
