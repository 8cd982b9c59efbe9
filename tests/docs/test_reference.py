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
from hpcfl.results.footer import LINES
from hpcfl.results.record import KNOWN
from hpcfl.results.schema import DeviceMetric, Metric
from hpcfl.sweeping import shipped
from hpcfl.training.presets import PRESETS
from sitepages import attributes, commands, markdown, notebook, registries, resultsfile, tables


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
        (tables.page, [f"| `{key}` |" for key in LINES]),
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
    for names in (
        *(schema.HEADER, attributes.config(), attributes.ENVIRONMENT),
        *([*Metric], [*DeviceMetric]),
    ):
        for name in names:
            assert f"\n| `{name}` |" in text, name


def test_signs_in_sentences_are_no_markup():
    text = markdown.words("a_b *c* [d] <e> #f `g_h` ``i``")
    assert text == r"a\_b \*c\* \[d\] \<e\> \#f `g_h` `i`"
    assert plain(text) == "a_b *c* [d] <e> #f g_h i"


def test_a_cell_is_one_line_and_empty_columns_are_left_out():
    text = markdown.table(("a", "b", "c"), [("1|2", "", "x\ny"), ("3", "", "")])
    assert text == "| a | c |\n| --- | --- |\n| 1\\|2 | x y |\n| 3 |  |\n"


def test_a_block_is_not_ended_by_what_it_holds():
    assert markdown.block("```\n", "text") == "````text\n```\n````\n"


def test_a_notebook_is_shown_with_its_output():
    def code(source, *outputs):
        return {"cell_type": "code", "source": source, "outputs": outputs}

    cells = [
        {"cell_type": "markdown", "source": ["# T\n", "text"]},
        code("print(1)", {"output_type": "stream", "text": ["1\n"]}),
        code("t", {"output_type": "execute_result", "data": {"text/html": "<b>\n\n</b>"}}),
        code(
            "p", {"output_type": "display_data", "data": {"image/png": "QU\nJD", "text/plain": ""}}
        ),
        code("e", {"output_type": "error", "ename": "E", "evalue": "why"}),
    ]
    text = notebook.markdown({"cells": cells})

    assert text.startswith("# T\ntext\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n")
    assert "<div>\n<b>\n</b>\n</div>" in text
    assert 'src="data:image/png;base64,QUJD"' in text
    assert "```text\nE: why\n```" in text
