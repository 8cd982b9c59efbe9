"""docs/artifact.md has a line for every claim of the README, and its commands can be typed."""

import ast
import dataclasses
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from hpcfl.benchmark.experiment import asked
from hpcfl.cli import group
from hpcfl.cli.options import given
from hpcfl.errors import HpcflError
from hpcfl.options.compare import CompareOptions
from hpcfl.options.definition import make
from hpcfl.options.exposure import ExposureOptions
from hpcfl.options.report import ReportOptions
from hpcfl.results import columns
from hpcfl.sweeping.cells import resolve
from hpcfl.sweeping.plan import read
from hpcfl.sweeping.shipped import locate

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENT = (ROOT / "docs" / "artifact.md").read_text(encoding="utf-8")
MARK = re.compile(r"<!-- claims: ([\w -]+) -->\n")
# A measured quantity within a sentence, and a number that is a cell of a table or a code block.
QUANTITY = re.compile(r"(?<![\w.,])\d[\d.,]*\s?(?:B|kB|MB|GB|ms|s|%)(?!\w)")
CELL = re.compile(r"(?<=\|)\s*\d[\d.,]*(?: [%\w]+)?\s*(?=\|)")
COLUMN = re.compile(r"(?<=\s)\d[\d.,]*(?=\s|$)")


def rows():
    """Return the lines of the table of claims: six cells each."""
    (table,) = re.findall("<!-- claims -->\n(.*?)<!-- /claims -->", DOCUMENT, re.DOTALL)
    _, _, *lines = table.strip().splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


CLAIMS = {row[0].strip().strip("`"): row for row in rows()}
COMMANDS = sorted({one for row in CLAIMS.values() for one in re.findall("`([^`]+)`", row[2])})
A_COMMAND = re.compile(r"^ {4}.*hpcfl .*\n?", re.MULTILINE)


def blocks(text):
    """Return the paragraphs, tables and code of a text, without lines that are commands."""
    found = (A_COMMAND.sub("", one) for one in text.split("\n\n"))
    return [one for one in found if one.strip()]


def says_figures(block):
    """Return whether a block tells something that was measured or counted."""
    if "![" in block or QUANTITY.search(block):
        return True
    lines = block.splitlines()
    return any(
        len(CELL.findall(line)) >= 2 or (line.startswith("    ") and len(COLUMN.findall(line)) >= 3)
        for line in lines
    )


def claimed(block):
    """Return the claims that a block is marked with."""
    return [name for mark in MARK.findall(block) for name in mark.split()]


def test_every_figure_of_the_readme_is_marked_as_a_claim():
    unmarked = [one for one in blocks(README) if says_figures(one) and not claimed(one)]
    assert unmarked == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It uploads 79,312 B a device.", True),
        ("Half of it (52 %) is exposed.", True),
        ("| `secagg` | 213.0 | 329.6 |", True),
        ("    model   0   40016  0.0175", True),
        ("![a figure](docs/x.png)", True),
        ("Python 3.11.4 or newer, and N = 100 devices.", False),
        ("Bonawitz et al., CCS 2017", False),
        ("| `docs/x.md` | what is there |", False),
    ],
)
def test_a_figure_is_known_by_its_form(text, expected):
    assert says_figures(text) is expected


def test_every_claim_has_a_line_and_every_line_a_claim():
    marked = [name for block in blocks(README) for name in claimed(block)]

    assert len(marked) == len({*marked})
    assert {*marked} == {*CLAIMS}
    assert len(CLAIMS) == len(rows())


def unlinked(text):
    """Return Markdown with the words of links alone."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)


@pytest.mark.parametrize("name", CLAIMS)
def test_a_line_says_everything_and_quotes_the_readme(name):
    _, quoted, commands, minutes, file, tolerance = CLAIMS[name]
    (block,) = (one for one in blocks(README) if name in claimed(one))

    assert re.search("`[^`]+`", commands)
    assert re.match(r"\d+", minutes)
    assert len(file) > 3
    assert len(tolerance) > 3
    # What is between quotation marks is there word for word: a figure that changes is changed here.
    quotations = re.findall('"([^"]+)"', quoted)
    assert quotations
    for quotation in quotations:
        # Links lead from another folder here.
        assert unlinked(quotation) in unlinked(" ".join(block.split())), quotation


# Options whose values are looked at when the command begins.
GROUPS = {"report": ReportOptions, "compare": CompareOptions, "exposure": ExposureOptions}


def leaf(words):
    """Return a command of the command line, its name and its arguments."""
    command, name = group, "hpcfl"
    words = list(words)
    while isinstance(command, click.Group):
        context = click.Context(command, info_name=name)
        name = words.pop(0)
        command = command.get_command(context, name)
        assert command is not None, name
    return command, name, words


def options_of_script(script):
    """Return the options that a script adds to its parser."""
    return {
        one.value
        for one in ast.walk(ast.parse(script.read_text(encoding="utf-8")))
        if isinstance(one, ast.Constant) and isinstance(one.value, str) and one.value[:2] == "--"
    }


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_can_be_typed(line):
    words = shlex.split(line)
    if words[0] == "mpirun":
        assert words[1] == "-n"
        assert int(words[2]) > 1
        words = words[3:]
    program, *arguments = words
    if program == "hpcfl":
        command, name, arguments = leaf(arguments)
        with command.make_context(name, arguments) as context:
            if name == "bench":
                asked(given(context.params))  # refuses an option that the protocol does not have
            elif name in GROUPS:
                known = {one.name for one in dataclasses.fields(GROUPS[name])}
                typed = {one: value for one, value in context.params.items() if one in known}
                made = make(GROUPS[name], given(typed))
                columns.choose(getattr(made, "columns", None) or "protocol")
            elif name == "sweep":
                assert resolve(read(locate(str(context.params["plan"]))))
    elif program == "python":
        script = ROOT / arguments[0]
        assert script.exists()
        typed = {one.partition("=")[0] for one in arguments if one.startswith("--")}
        assert typed <= options_of_script(script)
    else:
        assert program == "pytest"
        for test in arguments:
            path, _, function = test.partition("::")
            text = (ROOT / path).read_text(encoding="utf-8")
            assert not function or f"def {function}(" in text


def test_a_command_that_is_none_is_noticed():
    for wrong in (
        "hpcfl bensh sparse",
        "hpcfl report --colums x",
        "hpcfl bench fedavg --alpha 0.1",
    ):
        with pytest.raises((AssertionError, click.UsageError, HpcflError)):
            test_every_command_can_be_typed(wrong)


def test_the_costs_on_another_machine_are_those_that_the_script_prints():
    script = ROOT / "benchmarks" / "study_again.py"
    kept = ROOT / "results" / "reproduction"
    printed = subprocess.run(
        [sys.executable, script, kept, kept / "again"], capture_output=True, text=True, check=True
    ).stdout
    summary = re.compile(r"(\d+) settings: the median is (.+?) times .*?(\d+)% .*?(\d+)% within")
    (settings, *device), (_, *server) = summary.findall(printed)
    document = " ".join(DOCUMENT.split())
    assert f"in the {settings} settings that both have measured" in document
    assert (
        "{} times that of the kept ones in the median, within 25 % in {} % of the settings, and "
        "within a factor of 1.5 in {} %. ".format(*device)
        + "The server's is {} times, {} % and {} %.".format(*server)
    ) in document
