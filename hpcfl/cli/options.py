"""Options of the command line, made from the fields that define them in `hpcfl.options`."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import click

from hpcfl.options.definition import Option, Section, options_of

Function = Callable[..., Any]


class ShownOption(click.Option):
    """An option that the help has under a heading, with its definition if it has one."""

    def __init__(
        self,
        *names: Any,
        section: Section = Section.OUTPUT,
        about: Option | None = None,
        **more: Any,
    ) -> None:
        super().__init__(*names, **more)
        self.section = section if about is None or about.section is None else about.section
        self.about = about


# An option of one command alone, with a `section` besides what `click.option` takes.
option = partial(click.option, cls=ShownOption)
# What the value of --output and of similar options is.
PLACE = click.Path(path_type=Path)
# Choices that are longer are in the sentence, so that a line of the help fits 80 columns.
_LONGEST_CHOICES = 60
# Headings are for commands with more options than one looks through at a glance.
_MOST_PLAIN = 9


class Command(click.Command):
    """A command whose help has its options under headings, if there are many of them."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, those of a heading in the order of their definitions."""
        shown = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
        headings = ["Options"] if len(shown) <= _MOST_PLAIN else [*Section]
        for heading in headings:
            records = [
                record
                for one in shown
                if heading in ("Options", getattr(one, "section", Section.OUTPUT))
                and (record := one.get_help_record(ctx)) is not None
            ]
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


class Group(click.Group):
    """A group of such commands."""

    command_class = Command


class Subjects(Group):
    """A group with a command for each subject, such as an algorithm, that has its own options.

    `make` returns the command of a subject by its name, or of ``MODULE:CLASS``: only what is asked
    about is imported.
    """

    def __init__(
        self,
        *arguments: Any,
        names: Iterable[str],
        make: Callable[[str], click.Command],
        **more: Any,
    ) -> None:
        super().__init__(*arguments, **more)
        self._names, self._make = [*names], make

    def list_commands(self, ctx: click.Context) -> list[str]:
        return self._names

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return self._make(name)


def leaves(command: click.Command, name: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield all commands that do something, each after its name."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command)
    for sub in command.list_commands(context):
        found = command.get_command(context, sub)
        if found is not None:
            yield from leaves(found, f"{name} {sub}".strip())


def options(group: type, *, defaults: bool = True) -> Callable[[Function], Function]:
    """Return a decorator that adds the options of a dataclass to a command.

    The command is called with the text of each, None for what was not typed; see `given`. The help
    shows `defaults` unless they are not the command's.
    """

    def decorate(command: Function) -> Function:
        for about in reversed([*options_of(group).values()]):
            command = _option(about, defaults)(command)
        return command

    return decorate


def given(typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was typed, of the values that a command is called with."""
    return {name: value for name, value in typed.items() if value is not None and value != ()}


def _option(about: Option, defaults: bool) -> Callable[[Function], Function]:
    """Return the decorator for an option; whatever is typed, its definition reads it."""
    help, metavar = about.help, about.value
    if about.choices:
        metavar = f"[{metavar}]"
        if len(metavar) > _LONGEST_CHOICES:
            help, metavar = f"{help} One of {', '.join(about.choices)}.", "NAME"
    if defaults and (default := about.default_text or _shown(about.default)):
        help += f"  [default: {default}]"
    known: dict[str, Any] = {"about": about, "help": help, "default": None}
    if about.type is bool:
        # What is so unless something else is said can only be said not to be.
        no = f"/--no-{about.dashed}" if about.default is not False else ""
        return option(f"--{about.dashed}{no}", about.name, is_flag=True, **known)
    known["type"] = click.Choice(about.choices) if about.choices else None
    known["metavar"] = metavar
    if about.type is Path:
        known["type"] = click.Path()
    known["multiple"] = about.type == tuple[str, ...]
    return option(f"--{about.dashed}", about.name, **known)


def _shown(default: Any) -> str:
    """Return a default in words; "" for none."""
    if default is None or default is MISSING or isinstance(default, bool):
        return ""
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)


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
