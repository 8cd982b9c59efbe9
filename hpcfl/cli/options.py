"""Options of the command line, made from the fields that define them in `hpcfl.options`."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any, Protocol

import click

from hpcfl.options.definition import Option, options_of

Function = Callable[..., Any]
# What the value of --output and of similar options is.
PLACE = click.Path(path_type=Path)
METAVARS = {int: "N", float: "X", Path: "PATH", tuple[int, ...]: "N[,...]"}
SUBJECT = "subject"  # of a context's `meta`: what is typed right behind the command


class Listed(Protocol):
    """What a registry knows of a protocol or an algorithm without importing it."""

    @property
    def about(self) -> str: ...


class DefinedOption(click.Option):
    """An option made from a field; the help has it under the heading of the field's class."""

    def __init__(self, *names: Any, about: Option, **more: Any) -> None:
        super().__init__(*names, **more)
        self.about = about


class Command(click.Command):
    """A command whose help has options under headings, and lists what it can be called with.

    Behind its subject, as in ``hpcfl bench secagg --help``, the help leaves out the options that
    `unused` says the subject has no use for.
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
        """Write the lists and the options, those of a heading in the order of their definitions."""
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
    help = about.help
    if about.choices:
        help += f" One of {', '.join(about.choices)}."
    if defaults and (default := about.default_text or about.default_shown):
        help += f"  [default: {default}]"
    known: dict[str, Any] = {"cls": DefinedOption, "about": about, "help": help, "default": None}
    if about.type is bool:
        # What is so unless something else is said can only be said not to be.
        no = f"/--no-{about.dashed}" if about.default is not False else ""
        return click.option(f"--{about.dashed}{no}", about.name, is_flag=True, **known)
    known["metavar"] = METAVARS.get(about.type, about.name.rpartition("_")[2].upper())
    if about.choices:
        known["type"] = click.Choice(about.choices)
    elif about.type is Path:
        known["type"] = click.Path()
    known["multiple"] = about.type == tuple[str, ...]
    return click.option(f"--{about.dashed}", about.name, **known)
