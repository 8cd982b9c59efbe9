"""Commands that pages name exist, and so do all of their options."""

import re
import shlex
from pathlib import Path

import click

from hpcfl.cli import group

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]
# In a block of code, at a prompt or not, or between backticks.
LINE = re.compile(r"(?:^(?: {4}|\$ )(?:\w+ -n \S+ )?|`)(hpcfl [a-z][^`\n]*)", re.MULTILINE)


def typed(text):
    """Return the commands that a page names, without comments and the output of other programs."""
    text = re.sub(r"\\\n\s*", " ", text)
    return [re.split(r"\s[#>|&;]|;\s", line)[0] for line in LINE.findall(text)]


def unknown(line):
    """Return what a command line names that there is not."""
    try:
        words = shlex.split(line)[1:]
    except ValueError:  # a sentence with an apostrophe
        return []
    command, context = group, click.Context(group)
    while isinstance(command, click.Group) and words:
        if not re.fullmatch(r"[a-z][a-z-]+", words[0]):
            return []
        name = words.pop(0)
        command = command.get_command(context, name)
        if command is None:
            return [name]
    if "--" in words:  # what follows is for a program that the command starts
        words = words[: words.index("--")]
    if command.context_settings.get("ignore_unknown_options"):  # they are those of sbatch
        return []
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    given = {re.split("[=,.;:)]", word)[0] for word in words if re.match("--[a-z]", word)}
    return sorted(given - known - {"--help"})


def test_every_command_and_option_that_a_page_names_exists():
    found = [(path, line) for path in PAGES for line in typed(path.read_text(encoding="utf-8"))]
    assert len(found) > 100
    wrong = [(path.name, line, unknown(line)) for path, line in found if unknown(line)]
    assert wrong == []


def test_a_command_or_an_option_that_does_not_exist_is_noticed():
    assert unknown("hpcfl bensh sparse") == ["bensh"]
    assert unknown("hpcfl report run.h5 --colums x") == ["--colums"]
