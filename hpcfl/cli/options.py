"""Options of the command line, made from their definitions in `hpcfl.options`."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import click

from hpcfl.options.definition import Option, OptionGroup, Section, options_of
from hpcfl.system.outputs import Kind

Function = Callable[..., Any]


class Output(click.Path):
    """A path that a command writes to; see `hpcfl.system.outputs`."""

    def __init__(self, kind: Kind, read_as: type | None = Path) -> None:
        super().__init__(path_type=read_as)
        self.kind = kind


class ShownOption(click.Option):
    """An option that the help has under a heading; see `Command`."""

    def __init__(
        self,
        *names: Any,
        section: Section = Section.ADVANCED,
        origin: str = "",
        **more: Any,
    ) -> None:
        super().__init__(*names, **more)
        self.section = section
        self.origin = origin


class DefinedOption(ShownOption):
    """An option that was made from its definition, which it keeps."""

    def __init__(self, names: Sequence[str], about: Option, **attributes: Any) -> None:
        super().__init__(names, **attributes)
        self.about = about


# An option of one command alone, with a `section` besides what `click.option` takes.
option = partial(click.option, cls=ShownOption)


def same(
    group: type[OptionGroup], name: str, help: str, *names: str, **more: Any
) -> Callable[[Function], Function]:
    """Return a decorator that adds one option of a group, with another sentence.

    `more` is what `click.option` takes.
    """
    about = options_of(group)[name]
    about_it: dict[str, Any] = {
        "section": about.section,
        "origin": about.origin,
        "metavar": about.unit.upper() or _METAVARS[about.type],
        "type": click.Choice(about.choices) if about.choices else None,
    }
    return option(f"--{about.dashed}", *names, help=help, **about_it | more)


# Choices that are longer are in the sentence, so that a line of the help fits 80 columns.
LONGEST_CHOICES = 60
# Headings are for commands with more options than one looks through at a glance.
MOST_PLAIN = 9


class Command(click.Command):
    """A command whose help has its options under headings, if there are many of them."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, those of a heading in the order of their definitions."""
        sections: dict[str, list[tuple[str, str]]] = {}
        shown = [
            (one, record)
            for one in self.get_params(ctx)
            if isinstance(one, click.Option) and (record := one.get_help_record(ctx)) is not None
        ]
        plain = len(shown) <= MOST_PLAIN
        order = ["Options"] if plain else [*Section]
        for one, record in shown:
            heading = "Options" if plain else getattr(one, "section", Section.ADVANCED)
            sections.setdefault(heading, []).append(record)
        for heading in order:
            if heading in sections:
                with formatter.section(heading):
                    formatter.write_dl(sections[heading])


class Group(click.Group):
    """A group of such commands."""

    command_class = Command


# What the help calls a value, by its type.
_METAVARS: dict[Any, str] = {
    int: "INTEGER",
    float: "FLOAT",
    Fraction: "FRACTION",
    str: "TEXT",
    Path: "PATH",
    tuple[int, ...]: "N",
    tuple[str, ...]: "TEXT",
}


def options(group: type[OptionGroup], *, defaults: bool = True) -> Callable[[Function], Function]:
    """Return a decorator that adds the options of a group to a command.

    The command is called with the text of each; its definition reads it. See `given`. The help
    shows `defaults` unless they are not the command's.
    """

    def decorate(command: Function) -> Function:
        for about in reversed([*options_of(group).values()]):
            command = _option(about, defaults)(command)
        return command

    return decorate


class About(Protocol):
    """What a registry knows of a protocol or an algorithm without importing it."""

    @property
    def about(self) -> str: ...


def listing(**registries: Mapping[str, About]) -> Callable[[Function], Function]:
    """Put registries, one line an entry, in the place of their ``{name}`` in a command's help."""

    def decorate(command: Function) -> Function:
        for place, entries in registries.items():
            width = max(map(len, entries)) + 2
            lines = []
            for name, entry in entries.items():
                # Four columns are the help's own margin, and it has at most 78.
                first, *rest = textwrap.wrap(entry.about, 74 - width)
                lines += [f"{name:<{width}}{first}", *(" " * width + line for line in rest)]
            text = "\n      ".join(lines)
            command.__doc__ = (command.__doc__ or "").replace(f"{{{place}}}", text)
        return command

    return decorate


def given(typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was typed, of the values that a command is called with."""
    return {name: value for name, value in typed.items() if value or value == ""}


def _option(about: Option, defaults: bool) -> Callable[[Function], Function]:
    help = about.help
    metavar = f"[{'|'.join(about.choices)}]"
    if about.choices and len(metavar) > LONGEST_CHOICES:
        help += f" One of {', '.join(about.choices)}."
    if len(metavar) > LONGEST_CHOICES or not about.choices:
        metavar = about.unit.upper() or _METAVARS.get(about.type, "")
    default = about.default_text or _shown(about.default)
    if default and defaults:
        help += f"  [default: {default}]"
    kept: dict[str, Any] = {
        "section": about.section,
        "origin": about.origin,
        "help": help,
        "cls": DefinedOption,
        "about": about,
    }
    if about.type is bool:
        negative = f"/--{about.negative}" if about.negative else ""
        more = {"default": None} if about.negative else {}
        return option(f"--{about.dashed}{negative}", about.name, is_flag=True, **kept, **more)
    return option(
        f"--{about.dashed}",
        about.name,
        type=_type(about),
        metavar=f"{metavar}[,...]" if about.type == tuple[int, ...] else metavar,
        multiple=about.type == tuple[str, ...],
        **kept,
    )


def _type(about: Option) -> click.ParamType | None:
    """Return what click is to know of an option; its definition reads the text all the same."""
    if about.writes is not None:
        return Output(about.writes, None)
    if about.choices:
        return click.Choice(about.choices)
    return click.Path() if about.type is Path else None


def _shown(default: Any) -> str:
    """Return a default in words; "" for none."""
    if default is None or default is False:
        return ""
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
