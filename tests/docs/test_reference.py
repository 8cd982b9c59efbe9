"""The pages that are made for the site name everything that there is, with what is said of it."""

import re

import click

from hpcfl.algorithms.aggregation import PROTOCOLS
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


def test_every_registry_is_whole():
    for page, names in (
        (registries.protocols, [f"## {name}" for name in PROTOCOLS]),
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
    datasets = text[text.index("## Datasets") :].splitlines()
    for one in (*KNOWN, schema.MARKED):
        (row,) = (line for line in datasets if line.startswith(f"| `{one.name}` |"))
        assert plain(one.about) in plain(row)
    for names in (schema.HEADER, attributes.config(), attributes.ENVIRONMENT, [*Metric]):
        for name in names:
            assert f"\n| `{name}` |" in text, name
