"""Click options made from the fields that define them in `hpcfl.options`."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any, Protocol

import click

from hpcfl.options.definition import Option, options_of

Function = Callable[..., Any]
# The type of the values of --output and similar options.
PLACE = click.Path(path_type=Path)
METAVARS = {int: "N", float: "X", Path: "PATH", tuple[int, ...]: "N[,...]"}
SUBJECT = "subject"  # key in a context's `meta` for the word typed after the command


class Listed(Protocol):
    """What a registry knows of a protocol or an algorithm without importing it."""

    @property
    def about(self) -> str: ...


class DefinedOption(click.Option):
    """An option made from a field; the help shows it under the heading of the field's class."""

    def __init__(self, *names: Any, about: Option, **more: Any) -> None:
        super().__init__(*names, **more)
        self.about = about


class Command(click.Command):
    """A command whose help shows options under headings and lists the possible subjects.

    After a subject, as in ``hpcfl bench secagg --help``, the help leaves out the options that
    `unused` returns for the subject.
    """

    def __init__(
        self,
        *names: Any,
        lists: Mapping[str, Mapping[str, Listed]] = {},
        unused: Callable[[str], Container[str]] = lambda subject: (),
        **more: Any,
    ):
        super().__init__(*names, **more)
        self._lists, self._unused = lists, unused

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if self._lists and args and not args[0].startswith("-"):
            ctx.meta[SUBJECT] = args[0]
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the lists, and the options of each heading in the order of their definitions."""
        subject = ctx.meta.get(SUBJECT)
        unused = () if subject is None else self._unused(subject)
        sections: dict[str, list[tuple[str, str]]] = {
            title: [(name, one.about) for name, one in entries.items()]
            for title, entries in self._lists.items()
            if subject is None
        }
        for one in self.get_params(ctx):
            record = one.get_help_record(ctx)
            if record is not None and isinstance(one, click.Option) and one.name not in unused:
                heading = one.about.heading if isinstance(one, DefinedOption) else "Options"
                sections.setdefault(heading, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


class Group(click.Group):
    """A group of such commands."""

    command_class = Command


def options(group: type, *, defaults: bool = True) -> Callable[[Function], Function]:
    """Return a decorator that adds the options of a dataclass to a command.

    The command receives the text of each option, None if it was not typed; see `given`. Without
    `defaults`, the help hides the dataclass's defaults, because the command has others.
    """

    def decorate(command: Function) -> Function:
        for about in reversed([*options_of(group).values()]):
            command = _option(about, defaults)(command)
        return command

    return decorate


def given(typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that were typed, among those that a command receives."""
    return {name: value for name, value in typed.items() if value is not None and value != ()}


def _option(about: Option, defaults: bool) -> Callable[[Function], Function]:
    """Return the decorator for an option, whose definition parses the typed text."""
    help = about.help
    if about.choices:
        help += f" One of {', '.join(about.choices)}."
    if defaults and (default := about.default_text or about.default_shown):
        help += f"  [default: {default}]"
    known: dict[str, Any] = {"cls": DefinedOption, "about": about, "help": help, "default": None}
    if about.type is bool:
        # A flag that is not off by default needs a way to switch it off.
        no = f"/--no-{about.dashed}" if about.default is not False else ""
        return click.option(f"--{about.dashed}{no}", about.name, is_flag=True, **known)
    known["metavar"] = METAVARS.get(about.type, about.name.rpartition("_")[2].upper())
    if about.choices:
        known["type"] = click.Choice(about.choices)
    elif about.type is Path:
        known["type"] = click.Path()
    known["multiple"] = about.type == tuple[str, ...]
    return click.option(f"--{about.dashed}", about.name, **known)
