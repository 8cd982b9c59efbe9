"""The pages that are made for the site name everything that there is, with what is said of it."""

import re

import click
import pytest

from hpcfl.algorithms.aggregation import PROTOCOLS, find
from hpcfl.algorithms.federated import REGISTRY
from hpcfl.cli import COMMANDS
from hpcfl.cli.options import DefinedOption
from hpcfl.learning import models
from hpcfl.options.names import DATASETS
from hpcfl.plots import KINDS
from hpcfl.results import attributes, schema
from hpcfl.results.columns import COLUMNS
from hpcfl.results.footer import LINES
from hpcfl.results.schema import DeviceMetric, Metric
from hpcfl.sweeping import shipped
from hpcfl.training.presets import PRESETS
from sitepages import commands, markdown, notebook, registries, resultsfile, tables


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
EVERY_COMMAND = [
    pytest.param(command, context, id=context.command_path)
    for name in COMMANDS
    for command, context in commands.walk(name)
]


def section(context):
    """Return the part of a page that is about a command alone."""
    name, *below = context.command_path.split()[1:]
    title = f"{'#' * (1 + len(below))} {context.command_path}\n"
    _, found, rest = PAGES[f"{name}.md"].partition(title)
    assert found
    return re.split(r"^#+ hpcfl ", rest, flags=re.MULTILINE)[0]


@pytest.mark.parametrize(("command", "context"), EVERY_COMMAND)
def test_every_command_has_its_usage_and_all_of_its_help(command, context):
    text = section(context)
    assert " ".join(command.get_usage(context).removeprefix("Usage: ").split()) in plain(text)
    for paragraph in re.split(r"\n\s*\n", command.help or ""):
        title, _, lines = paragraph.strip().removeprefix("\b\n").strip().partition("\n")
        kept = f"{title.rstrip(':')}** " if paragraph.strip().startswith("\b") else f"{title} "
        told = plain(kept + re.sub("^```.*$", "", lines, flags=re.MULTILINE))
        shown = plain(re.sub("^```.*$", "", text, flags=re.MULTILINE))
        assert told.replace("**", "") in shown.replace("**", ""), told


@pytest.mark.parametrize(("command", "context"), EVERY_COMMAND)
def test_every_option_has_its_names_default_and_sentence(command, context):
    text = section(context)
    options = [one for one in command.get_params(context) if isinstance(one, click.Option)]
    for option in options:
        names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
        (line,) = (one for one in text.splitlines() if f"</a>{names} |" in one)
        row = row_of(text, line.split("|")[1].strip())
        said, _, default = (option.help or "").partition("[default: ")
        assert row["what it is"] == plain(said), names
        assert not default or row["default"] == plain(default.removesuffix("]")), names
        assert not option.required or row["default"] == "required", names
        if isinstance(option, DefinedOption):
            about = option.about
            unit = "" if about.choices else about.unit
            for word in (*about.choices, *filter(None, (about.range, unit))):
                assert word in row["value"], names
            assert about.type is bool or row["value"], names


def test_every_place_on_a_page_is_there_once():
    for name, text in PAGES.items():
        places = re.findall(r'<a id="([^"]+)"></a>', text)
        assert len(places) == len({*places}), name
    assert 'id="bench-alpha"' in PAGES["bench.md"]


def test_every_protocol_has_what_it_declares():
    page = registries.protocols()
    found = re.split(r"^## (.*)\n", page, flags=re.MULTILINE)[1:]
    parts = dict(zip(found[::2], found[1::2], strict=True))
    assert [*parts] == [*PROTOCOLS]
    for name, part in parts.items():
        kind = find(name)
        declared = {
            "fewest devices": str(kind.min_devices),
            "devices may drop out": "yes" if kind.tolerates_dropouts else "no",
            "an upload is some coordinates only": "yes" if kind.sparse_upload else "no",
            "vectors can be rotated": "yes" if kind.rotates else "no",
            "a committee in each round": "yes" if kind.has_committee else "no",
        }
        for what, said in declared.items():
            assert f"| {what} | {said} |" in part, (name, what)
        for step in kind.steps:
            assert f"| `{step.phase}` |" in part, (name, step)
        used = {*re.findall(r"\[`--([\w-]+)`\]", part)}
        for option in ("alpha", "degree", "levels", "threads"):
            assert (option in used) == (option in kind.uses(_options(name))), (name, option)
    assert "51 devices reconstruct a secret" in parts["secagg"]


def _options(name):
    from hpcfl.options.bench import BenchOptions
    from hpcfl.rounds.build import without_dropouts

    return BenchOptions(name, **without_dropouts(name, {}))


def test_servers_of_several_ranks_are_declared_by_those_that_the_option_names():
    from hpcfl.options.bench import BenchOptions
    from hpcfl.options.definition import options_of

    said = options_of(BenchOptions)["server_ranks"].help
    for part in re.split(r"^## ", registries.protocols(), flags=re.MULTILINE)[1:]:
        name = part.partition("\n")[0]
        can = "| the server can have several ranks | yes |" in part
        assert can == bool(re.search(rf"(?<![\w-]){name}(?![\w-])", said)), name


@pytest.mark.parametrize(
    ("page", "names"),
    [
        (registries.algorithms, [f"## {name}" for name in REGISTRY]),
        (registries.training, [f"## {name}" for name in PRESETS]),
        (registries.training, [f"| `{name}` |" for name in DATASETS]),
        (registries.training, [f"`{name}`" for name in models.NAMES]),
        (registries.plans, [f"## {name}" for name in shipped.titles()]),
        (tables.page, [f"| `{name}` | {choice.about}" for name, choice in COLUMNS.items()]),
        (tables.page, [f"| `{line.key}` |" for line in LINES]),
        (tables.page, [f"| `{name}` | {kind.what}" for name, kind in KINDS.items()]),
    ],
)
def test_every_registry_is_whole(page, names):
    text = page().replace("\\", "")
    assert names
    assert [name for name in names if name not in text] == []


def test_the_page_of_results_files_has_every_dataset_and_attribute():
    text = resultsfile.page()
    stored = text[text.index("## Datasets") :]
    for one in (*schema.KNOWN, schema.MARKED):
        row = row_of(stored, f"`{one.name}`")
        assert row["what it is"] == plain(one.about)
        assert row.get("unit", "") == one.unit.replace("1", "")
        assert row["type, shape"].count(",") == len(one.axes)
    for names in (
        *({**schema.HEADER, **schema.AT_END}, attributes.config(), attributes.ENVIRONMENT),
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
