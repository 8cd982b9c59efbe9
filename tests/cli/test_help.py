"""What ``--help`` shows: headings, sentences, units and defaults; one name has one meaning."""

import re
from collections import defaultdict

import click
from commandline import hpcfl

from hpcfl.cli import group
from hpcfl.cli.options import MOST_PLAIN, Command
from hpcfl.options.definition import Section

WIDTH = 80
# Flags that say what to do of whatever the command does.
FLAGS = {"--json", "--footer", "--list", "--dry-run"}
# What click calls a value by itself tells nobody what it is.
NO_METAVAR = ("INTEGER", "FLOAT", "VALUE", "INTEGER RANGE", "FLOAT RANGE")


def commands(command=group, name=""):
    """Yield the names of all commands, and the commands."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    with command.make_context(name, ["nothing"], resilient_parsing=True) as context:
        for sub in command.list_commands(context):
            yield from commands(command.get_command(context, sub), f"{name} {sub}".strip())


COMMANDS = dict(commands())
GROUPS = ["", *sorted({name.split()[0] for name in COMMANDS if " " in name})]


def options(name):
    return [one for one in COMMANDS[name].params if isinstance(one, click.Option)]


EVERY = [(name, one) for name in COMMANDS for one in options(name)]


def test_help_fits_80_columns_and_many_options_are_under_headings_in_one_order():
    for name in [*COMMANDS, *GROUPS]:
        done = hpcfl(*name.split(), "--help")
        assert done.returncode == 0, done.stderr
        assert [line for line in done.stdout.splitlines() if len(line) > WIDTH] == []
        if name in GROUPS:
            continue
        lines = done.stdout.splitlines()
        headings = [line[:-1] for line in lines if line[:-1] in (*Section, "Options")]
        assert isinstance(COMMANDS[name], Command)
        if len(options(name)) < MOST_PLAIN:
            assert headings == ["Options"], name
        else:
            assert headings == [one for one in Section if one in headings], name
            assert len(headings) > 1, name


def test_every_option_has_one_name_a_sentence_and_a_unit():
    for name, one in EVERY:
        sentence, _, default = one.help.partition("  [default: ")
        assert len(one.opts) == 1, (name, one.opts)
        assert re.match(r"[A-Za-z0-9].*\.$", sentence, re.DOTALL), (name, one.opts)
        assert not default or default.endswith("]"), (name, one.opts)
        if not one.is_flag:
            shown = one.make_metavar(click.Context(COMMANDS[name]))
            assert shown not in NO_METAVAR, (name, one.opts)


def test_one_name_has_one_meaning():
    """Options of one name are taken over from one definition, or are the same flag."""
    meanings = defaultdict(lambda: defaultdict(list))
    for name, one in EVERY:
        meanings[one.opts[0]][one.origin].append(name)
    for name, found in meanings.items():
        assert len(found) == 1, (name, dict(found))
        assert name in FLAGS or len(found.get("", [])) < 2, name
