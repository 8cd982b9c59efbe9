"""The site of the documentation: every page has a place, and every link leads somewhere."""

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from sitepages import links

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CONFIG = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
NAV = CONFIG.partition("\nnav:\n")[2]
SECTIONS = ("Tutorial", "How-to guides", "Reference", "Explanation")
# Markdown that people read on a code host too.
READ = [*sorted(DOCS.glob("*.md")), *ROOT.glob("*.md"), ROOT / "contrib" / "README.md"]


def test_every_page_has_a_place_in_the_navigation():
    named = re.findall(r"- (?:.*: )?(\S+\.md)$", NAV, re.MULTILINE)
    assert len(named) == len({*named})
    pages = {path.name for path in DOCS.glob("*.md")}
    missing = pages - {*named}
    assert not missing, f"not in nav of mkdocs.yml: {', '.join(sorted(missing))}"
    made = ("index.md", "reference/", f"{links.FOLDER}/")
    assert {name for name in named if not name.startswith(made)} == pages


def test_the_navigation_has_the_four_parts():
    assert re.findall(r"^  - (.*?):", NAV, re.MULTILINE) == ["Home", *SECTIONS]


@pytest.mark.parametrize("path", READ, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_leads_to_a_file_on_a_code_host(path):
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    found = re.findall(r"\]\((?![a-z]+:|#)([^)\s#]+)", re.sub(r"`[^`\n]+`(?!\])", "", text))
    lost = [target for target in found if not (path.parent / target).exists()]
    assert lost == []


def test_continuous_integration_makes_the_site_with_warnings_as_errors():
    assert "\nmake docs\n" in (ROOT / ".ci" / "run").read_text()
    assert "mkdocs build --strict" in (ROOT / "Makefile").read_text()
    assert "site/" in (ROOT / ".gitignore").read_text().splitlines()


def test_links_lead_to_pages_of_the_site():
    text = (
        "[a](method.md#x) [`b`](../examples/own_protocol.py) [c](../README.md#install) [d](#e)\n"
        "![f](protocols.png) [g](https://h/i) [j](../jobs/slurm) [k](../contrib/) [l](../none)\n"
        "```\n[m](../README.md)\n```\n[n](../CHANGELOG.md)\n"
    )
    assert links.rewrite(text, "docs/guide.md") == (
        "[a](method.md#x) [`b`](repository/examples/own_protocol.py.md) [c](index.md#install) "
        "[d](#e)\n"
        "![f](protocols.png) [g](https://h/i) [j](repository/jobs/slurm/index.md) "
        "[k](repository/contrib/README.md) [l](../none)\n"
        "```\n[m](../README.md)\n```\n[n](repository/CHANGELOG.md)\n"
    )
    assert links.rewrite("![a](docs/protocols.png) [b](docs/guide.md)", "README.md") == (
        "![a](protocols.png) [b](guide.md)"
    )
    assert links.rewrite("[a](reframe/settings.py) [b](../docs/guide.md)", "contrib/README.md") == (
        "[a](reframe/settings.py.md) [b](../../guide.md)"
    )


def test_files_that_pages_link_to_are_included():
    found = links.included()
    assert {"README.md", "CHANGELOG.md", "LICENSE", "examples/own_protocol.py"} <= found.keys()
    assert not any(path.startswith("docs/") for path in found)
    assert "class SignSum" in found["examples/own_protocol.py"]
    assert "[bench.sbatch](" in found["jobs/slurm"]


class Page(HTMLParser):
    """What a page links to and loads, its places, and its text by paragraphs."""

    def __init__(self, path):
        super().__init__()
        self.links, self.loaded, self.places, self.paragraphs = [], [], set(), []
        self._inside = False
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.places |= {found[name] for name in ("id", "name") if found.get(name)}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag in ("script", "img", "iframe", "source") and "src" in found:
            self.loaded.append(found["src"])
        if tag == "link" and found.get("rel") != "canonical":
            self.loaded.append(found["href"])
        if tag in ("p", "code"):
            self._inside = tag == "p"
            if self._inside:
                self.paragraphs.append("")

    def handle_endtag(self, tag):
        if tag == "code" and self.paragraphs:
            self._inside = True
        if tag == "p":
            self._inside = False

    def handle_data(self, data):
        if self._inside:
            self.paragraphs[-1] += data


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="the site needs the extra 'docs'")
    pytest.importorskip("material", reason="the site needs the extra 'docs'")
    pytest.importorskip("mkdocstrings", reason="the site needs the extra 'docs'")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {path.relative_to(folder): Page(path) for path in folder.rglob("*.html")}
    return folder, pages


full = pytest.mark.full


@full
def test_every_link_of_the_site_leads_to_a_place_on_a_page(site):
    folder, pages = site
    lost = []
    for path, page in pages.items():
        for link in [*page.links, *page.loaded]:
            url = urlsplit(link)
            if url.scheme or path.name == "404.html":
                continue
            target = os.path.normpath(path.parent / unquote(url.path)) if url.path else str(path)
            if (folder / target).is_dir():
                target = f"{target}/index.html"
            there = pages.get(Path(target))
            if not (folder / target).exists() or (
                url.fragment and there and unquote(url.fragment) not in there.places
            ):
                lost.append(f"{path}: {link}")
    assert lost == []


@full
def test_search_finds_what_is_written_and_no_code(site):
    index = json.loads((site[0] / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {one["location"].partition("#")[0] for one in index["docs"]}
    assert {"reference/commands/bench.html", "repository/CHANGELOG.html"} <= found
    assert {path for path in found if re.search(r"\.py\.html$|/slurm/index", path)} == set()


@full
def test_nothing_is_loaded_from_elsewhere(site):
    loaded = {link for page in site[1].values() for link in page.loaded}
    assert {link for link in loaded if urlsplit(link).scheme not in ("", "data")} == set()


@full
def test_every_figure_is_shown(site):
    shown = {
        os.path.normpath(path.parent / unquote(link))
        for path, page in site[1].items()
        for link in page.loaded
    }
    figures = {
        path.relative_to(DOCS).as_posix()
        for path in DOCS.rglob("*")
        if path.suffix in (".png", ".svg")
    }
    assert len(figures) > 10
    assert figures <= shown


@full
def test_lists_and_tables_are_not_run_together(site):
    """What a code host takes for a list or a table is one here as well."""
    bad = re.compile(r"(?:^|\n)\s*(?:[-*] |\d+\. |\|)", re.MULTILINE)
    found = [
        f"{path}: {text[:80]}"
        for path, page in site[1].items()
        for text in page.paragraphs
        if bad.search(text)
    ]
    assert found == []


@full
def test_the_site_names_no_path_of_the_machine_that_made_it(site):
    folder, pages = site
    named = [
        path
        for path in pages
        if re.search(
            rf"{re.escape(str(ROOT))}|{re.escape(str(folder))}",
            (folder / path).read_text(encoding="utf-8"),
        )
    ]
    assert named == []
