"""Pages of the command line, made from the commands and the definitions of their options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from textwrap import dedent

import click

from hpcfl.cli import COMMANDS, group
from hpcfl.cli.options import DefinedOption
from hpcfl.options.definition import TYPES, Option
from sitepages.markdown import anchor, block, code, table, words

HEAD = ("option", "value", "default", "what it is")
# What a value is, by its type.
VALUES = {kind: re.sub("^an? ", "", what) for kind, what in TYPES.items()}
_DEFAULT = re.compile(r"\s+\[default: (.*)\]$", re.DOTALL)


def pages() -> dict[str, str]:
    """Return the page of every command by its place in the site, and one that lists them."""
    rows = [(f"[`hpcfl {name}`]({name}.md)", words(COMMANDS[name])) for name in COMMANDS]
    first = f"# Commands\n\n{_described(group)}\n{table(('command', 'what it does'), rows)}"
    found = {"index.md": f"{first}\n{_options(group, group_context())}"}
    for name in COMMANDS:
        parts = [_page(*one) for one in walk(name)]
        found[f"{name}.md"] = "\n".join(parts)
    return found


def group_context() -> click.Context:
    """Return the context in which the command line itself is described."""
    return click.Context(group, info_name="hpcfl", **group.context_settings)


def walk(name: str) -> Iterator[tuple[click.Command, click.Context]]:
    """Yield a command with its context, and then its subcommands."""
    context = group_context()
    command = group.get_command(context, name)
    assert command is not None
    yield from _walk(command, click.Context(command, context, name))


def _walk(
    command: click.Command, context: click.Context
) -> Iterator[tuple[click.Command, click.Context]]:
    yield command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _walk(found, click.Context(found, context, name))


def _page(command: click.Command, context: click.Context) -> str:
    path = context.command_path
    level = "#" * (len(path.split()) - 1)
    usage = command.get_usage(context).removeprefix("Usage: ")
    parts = [f"{level} {path}\n", block(re.sub(r"\s+", " ", usage)), _described(command)]
    if isinstance(command, click.Group):
        rows = [
            (f"[`{path} {name}`](#{path.replace(' ', '-')}-{name})", words(_short(command, name)))
            for name in command.commands
        ]
        parts.append(table(("command", "what it does"), rows))
    parts.append(_options(command, context))
    return "\n".join(parts)


def _short(parent: click.Group, name: str) -> str:
    return parent.commands[name].get_short_help_str(limit=1000)


def _described(command: click.Command) -> str:
    """Return what the help says, its lists and examples as they stand there."""
    text = re.sub(r"\n\s*\n", "\n\n", dedent(command.help or ""))
    parts = []
    for paragraph in text.split("\n\n"):
        kept, as_it_is, lines = paragraph.partition("\b\n")
        if not as_it_is:
            parts.append(words(" ".join(kept.split())) + "\n")
            continue
        title, _, rest = lines.partition("\n")
        language = "sh" if title.startswith("Example") else "text"
        parts.append(f"**{words(title.strip().rstrip(':'))}**\n\n{block(dedent(rest), language)}")
    return "\n".join(parts)


def _options(command: click.Command, context: click.Context) -> str:
    """Return the table of a command's options."""
    prefix = context.command_path.removeprefix("hpcfl").strip().replace(" ", "-")
    rows = []
    for parameter in command.get_params(context):
        if not isinstance(parameter, click.Option) or parameter.hidden:
            continue
        long = max(parameter.opts, key=len).lstrip("-")
        place = anchor("-".join(filter(None, [prefix, long])))
        names = ", ".join(map(code, [*parameter.opts, *parameter.secondary_opts]))
        rows.append((f"{place}{names}", *described(parameter, context)))
    return table(HEAD, rows)


def described(parameter: click.Option, context: click.Context) -> tuple[str, str, str]:
    """Return an option's value, default and sentence, as Markdown."""
    if isinstance(parameter, DefinedOption):
        takes, usual, _ = defined(parameter.about)
        return takes, usual, words(_DEFAULT.sub("", parameter.help or ""))
    # What click itself shows: the value after the names, the default after the sentence.
    _, text = parameter.get_help_record(context) or ("", "")
    text = text.removesuffix("[required]").rstrip()
    default = _DEFAULT.search(text)
    text = _DEFAULT.sub("", text)
    valued = not (parameter.is_flag or parameter.count)
    value = parameter.make_metavar(context) if valued else ""
    return (
        code(value) if value else "",
        words(default[1]) if default else "required" if parameter.required else "",
        words(text),
    )


def defined(about: Option) -> tuple[str, str, str]:
    """Return the same of an option that has a definition, with its range."""
    value = ", ".join(map(code, about.choices))
    if not about.choices and about.type is not bool:
        value = VALUES[about.type]
    if about.range:
        value += f", {about.range}"
    return value, default_of(about), words(about.help)


def default_of(about: Option) -> str:
    """Return the default of an option, in words where it depends on something; "" for none."""
    return words(about.default_text) or (code(about.default_shown) if about.default_shown else "")
