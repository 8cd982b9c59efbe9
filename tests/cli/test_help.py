"""What ``--help`` shows: headings, sentences, units and defaults; one name has one meaning."""

import re
from collections import defaultdict

import click
import pytest
from commandline import hpcfl

from hpcfl.cli import group
from hpcfl.cli.options import MOST_PLAIN, Command
from hpcfl.options.definition import Section

WIDTH = 80
# Flags that say what to do of whatever the command does.
FLAGS = {"--json", "--footer", "--list", "--dry-run", "--no-pool"}
# Named as sbatch names them, which the script is for.
OF_SBATCH = {"--output", "--partition"}


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


@pytest.mark.parametrize("name", [*COMMANDS, *GROUPS])
def test_help_fits_80_columns(name):
    done = hpcfl(*name.split(), "--help")

    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if len(line) > WIDTH] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_many_options_are_under_headings_in_one_order(name):
    text = hpcfl(*name.split(), "--help").stdout
    headings = [line[:-1] for line in text.splitlines() if line[:-1] in (*Section, "Options")]

    assert isinstance(COMMANDS[name], Command)
    assert not re.search(r"^  [A-Z]+$", text, re.MULTILINE), "an argument among the options"
    if len(options(name)) < MOST_PLAIN:
        assert headings == ["Options"]
        return
    assert headings == [one for one in Section if one in headings]
    assert len(headings) > 1
    for one in options(name):
        assert isinstance(getattr(one, "section", None), Section), one.opts


@pytest.mark.parametrize(("name", "one"), EVERY, ids=lambda one: getattr(one, "name", one))
def test_every_option_has_a_sentence_a_unit_and_its_default(name, one):
    sentence, _, default = one.help.partition("  [default: ")

    assert re.match(r"[A-Za-z0-9]", sentence), sentence
    assert re.search(r"\.$", sentence), sentence
    assert not default or default.endswith("]")
    if not one.is_flag:
        # What click calls a value by itself tells nobody what it is.
        shown = one.make_metavar(click.Context(COMMANDS[name]))
        assert shown not in ("INTEGER", "FLOAT", "VALUE", "INTEGER RANGE", "FLOAT RANGE"), one.opts
    about = defined(name).get(one.name)
    if about is not None and about.default not in (None, False, ()):
        assert default or name == "attack audit", f"{one.opts} has a default that is not shown"


def defined(name):
    """Return the definitions of a command's options, by name."""
    from hpcfl.algorithms.federated.audited import AuditOptions, Instance
    from hpcfl.options.bench import BenchOptions
    from hpcfl.options.compare import CompareOptions
    from hpcfl.options.definition import options_of
    from hpcfl.options.exposure import ExposureOptions
    from hpcfl.options.optimize import OptimizeOptions
    from hpcfl.options.predict import PredictOptions
    from hpcfl.options.report import ReportOptions
    from hpcfl.options.scaling import ContinuationOptions
    from hpcfl.options.training import TrainOptions
    from hpcfl.plots import PlotOptions
    from hpcfl.slurm.script import Job

    groups = {
        "bench": [BenchOptions],
        "train": [TrainOptions],
        "predict": [PredictOptions],
        "compare": [CompareOptions],
        "report": [ReportOptions, ContinuationOptions],
        "plot": [PlotOptions, ContinuationOptions],
        "privacy exposure": [ExposureOptions],
        "optimize fedsgd-dpc": [OptimizeOptions],
        "attack audit": [AuditOptions, Instance],
        "slurm render": [Job],
        "slurm submit": [Job],
    }.get(name, [])
    return {key: about for one in groups for key, about in options_of(one).items()}


@pytest.mark.parametrize("name", sorted({one.opts[0] for _, one in EVERY}))
def test_one_name_has_one_meaning(name):
    """Options of one name are taken over from one definition, or are the same flag."""
    meanings = defaultdict(list)
    for command, one in EVERY:
        if one.opts[0] == name and not (command.startswith("slurm ") and name in OF_SBATCH):
            meanings[one.origin].append(command)

    assert len(meanings) == 1, dict(meanings)
    if "" in meanings and len(meanings[""]) > 1:
        assert name in FLAGS


def test_an_option_has_one_name():
    for name, one in EVERY:
        assert len(one.opts) == 1, (name, one.opts)
