"""The pages that are made for the site name everything that there is, with what is said of it."""

import re

import click

from hpcfl.algorithms.aggregation import PROTOCOLS, find
from hpcfl.algorithms.federated import REGISTRY
from hpcfl.cli import COMMANDS
from hpcfl.learning import models
from hpcfl.options.names import DATASETS
from hpcfl.plots import KINDS
from hpcfl.results import schema
from hpcfl.results.columns import COLUMNS
from hpcfl.results.record import KNOWN
from hpcfl.results.schema import Metric
from hpcfl.sweeping import shipped
from hpcfl.training.presets import PRESETS
from sitepages import attributes, commands, registries, resultsfile, tables


def plain(text):
    """Return the words of Markdown, as a reader sees them."""
    text = re.sub(r"<a id=[^>]*></a>|\\(?=[\W_])|`", "", text)
    return " ".join(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).split())


def row_of(page, name):
    """Return the cells of the row of a table that begins with a name, and which column is which."""
    lines = page.splitlines()
    (at,) = (number for number, line in enumerate(lines) if line.startswith(f"| {name} |"))
    top = at
    while lines[top - 1].startswith("| "):
        top -= 1
    cells = (re.split(r"(?<!\\)\|", line)[1:-1] for line in (lines[top], lines[at]))
    head, row = ([plain(cell) for cell in line] for line in cells)
    return dict(zip(head, row, strict=True))


PAGES = commands.pages()


def test_every_command_and_option_is_on_its_page():
    for name in COMMANDS:
        text = plain(PAGES[f"{name}.md"])
        for command, context in commands.walk(name):
            usage = command.get_usage(context).removeprefix("Usage: ")
            assert " ".join(usage.split()) in text
            for one in command.get_params(context):
                if isinstance(one, click.Option):
                    said = (one.help or "").partition("  [default: ")[0]
                    assert plain(said) in text, (name, one.opts)


def test_every_place_on_a_page_is_there_once():
    for name, text in PAGES.items():
        places = re.findall(r'<a id="([^"]+)"></a>', text)
        assert len(places) == len({*places}), name
    assert 'id="bench-alpha"' in PAGES["bench.md"]


def test_every_protocol_has_a_part_with_its_steps():
    found = re.split(r"^## (.*)\n", registries.protocols(), flags=re.MULTILINE)[1:]
    parts = dict(zip(found[::2], found[1::2], strict=True))
    assert [*parts] == [*PROTOCOLS]
    for name, part in parts.items():
        for step in find(name).steps:
            assert f"| `{step.phase}` |" in part, (name, step)


def test_every_registry_is_whole():
    for page, names in (
        (registries.algorithms, [f"## {name}" for name in REGISTRY]),
        (registries.training, [f"## {name}" for name in PRESETS]),
        (registries.training, [f"| `{name}` |" for name in DATASETS]),
        (registries.training, [f"`{name}`" for name in models.NAMES]),
        (registries.plans, [f"## {name}" for name in shipped.titles()]),
        (tables.page, [f"| `{name}` | {column.about}" for name, column in COLUMNS.items()]),
        (tables.page, [f"| `{name}` | {what}" for name, what in KINDS.items()]),
    ):
        text = page().replace("\\", "")
        assert names
        assert [name for name in names if name not in text] == []


def test_the_page_of_results_files_has_every_dataset_and_attribute():
    text = resultsfile.page()
    stored = text[text.index("## Datasets") :]
    for one in (*KNOWN, schema.MARKED):
        row = row_of(stored, f"`{one.name}`")
        assert row["what it is"] == plain(one.about)
        assert row.get("unit", "") == one.unit.replace("1", "")
        assert row["type, shape"].count(",") == len(one.axes)
    for names in (schema.HEADER, attributes.config(), attributes.ENVIRONMENT, [*Metric]):
        for name in names:
            assert f"\n| `{name}` |" in text, name
