"""What MkDocs calls while it builds the site: pages that are made, and links to the repository.

Made anew in every build, and never committed: the reference, from commands, definitions of options,
registries, the schema of results files and docstrings; and pages of the files outside of docs/
that others link to.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from sitepages import commands, links, python, registries, resultsfile, tables

REFERENCE = "reference"
# In the navigation, this stands for the pages of all commands.
COMMANDS = f"{REFERENCE}/commands/"


def reference() -> dict[str, str]:
    """Return the pages of the reference by their places in the site."""
    pages = {
        "protocols.md": registries.protocols(),
        "algorithms.md": registries.algorithms(),
        "training.md": registries.training(),
        "plans.md": registries.plans(),
        "results-file.md": resultsfile.page(),
        "tables.md": tables.page(),
        "python.md": python.api(),
        "classes.md": python.bases(),
    }
    pages |= {f"commands/{name}": text for name, text in commands.pages().items()}
    return {f"{REFERENCE}/{name}": text for name, text in pages.items()}


def included() -> dict[str, str]:
    """Return the pages of files outside of docs/ by their places in the site."""
    return {links.place(path): links.rewrite(text, path) for path, text in links.included().items()}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of the commands into the navigation."""
    config.nav = list(_expanded(config.nav or []))
    return config


def _expanded(entries: list[Any]) -> Iterator[Any]:
    for entry in entries:
        if entry == COMMANDS:
            yield from (f"{COMMANDS}{name}" for name in commands.pages())
        elif isinstance(entry, dict):
            yield {
                title: list(_expanded(below)) if isinstance(below, list) else below
                for title, below in entry.items()
            }
        else:
            yield entry


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made."""
    for name, text in {**reference(), **included()}.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links of docs/ lead to pages of the site."""
    if page.file.generated_by is not None:
        return markdown
    return links.rewrite(markdown, f"{links.DOCS}/{page.file.src_uri}")
