"""Options of the command line, made from their definitions in `hpcfl.options`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from hpcfl.options.definition import Option, OptionGroup, options_of
from hpcfl.system.outputs import Kind

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Command = Callable[..., Any]


class Output(click.Path):
    """A path that a command writes to; see `hpcfl.system.outputs`."""

    def __init__(self, kind: Kind, read_as: type | None = Path) -> None:
        super().__init__(path_type=read_as)
        self.kind = kind


class DefinedOption(click.Option):
    """An option that was made from its definition, which it keeps."""

    def __init__(self, names: Sequence[str], about: Option, **attributes: Any) -> None:
        super().__init__(names, **attributes)
        self.about = about


# What the help calls a value, by its type.
_METAVARS: dict[Any, str] = {
    int: "INTEGER",
    float: "FLOAT",
    Fraction: "FRACTION",
    str: "TEXT",
    Path: "PATH",
    tuple[int, ...]: "N[,N...]",
    tuple[str, ...]: "TEXT",
}


def options(
    group: type[OptionGroup], *, defaults: bool = True, **also: str
) -> Callable[[Command], Command]:
    """Return a decorator that adds the options of a group to a command.

    The command is called with the text of each; its definition reads it. See `given`. The help
    shows `defaults` unless they are not the command's. Some options can `also` have a second name.
    """

    def decorate(command: Command) -> Command:
        for name, about in reversed([*options_of(group).items()]):
            names = [f"--{about.dashed}", *filter(None, [also.get(name)]), name]
            command = _option(about, names, defaults)(command)
        return command

    return decorate


class About(Protocol):
    """What a registry knows of a protocol or an algorithm without importing it."""

    @property
    def about(self) -> str: ...


def listing(**registries: Mapping[str, About]) -> Callable[[Command], Command]:
    """Put registries, one line an entry, in the place of their ``{name}`` in a command's help."""

    def decorate(command: Command) -> Command:
        for place, entries in registries.items():
            width = max(map(len, entries)) + 2
            lines = [f"{name:<{width}}{entry.about}" for name, entry in entries.items()]
            text = "\n      ".join(lines)
            command.__doc__ = (command.__doc__ or "").replace(f"{{{place}}}", text)
        return command

    return decorate


def given(typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was typed, of the values that a command is called with."""
    return {name: value for name, value in typed.items() if value or value == ""}


def _option(about: Option, names: list[str], defaults: bool) -> Callable[[Command], Command]:
    help = about.help
    default = about.default_text or _shown(about.default)
    if default and defaults:
        help += f"  [default: {default}]"
    if about.type is bool:
        return click.option(*names, cls=DefinedOption, about=about, is_flag=True, help=help)
    metavar = f"[{'|'.join(about.choices)}]" if about.choices else about.unit.upper()
    return click.option(
        *names,
        cls=DefinedOption,
        about=about,
        type=_type(about),
        metavar=metavar or _METAVARS[about.type],
        multiple=about.type == tuple[str, ...],
        shell_complete=partial(_complete, about),
        help=help,
    )


def _type(about: Option) -> click.ParamType | None:
    """Return what click is to know of an option; its definition reads the text all the same."""
    if about.writes is not None:
        return Output(about.writes, None)
    return click.Path() if about.type is Path else None


def _shown(default: Any) -> str:
    """Return a default in words; "" for none."""
    if default is None or default is False:
        return ""
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _complete(
    about: Option, context: click.Context, parameter: click.Parameter, typed: str
) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    if about.type is Path:
        return [CompletionItem(typed, type="file")]
    return [CompletionItem(one) for one in about.choices if one.startswith(typed)]
