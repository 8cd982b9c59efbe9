"""The site of the documentation: every page has a place, and every link leads somewhere."""

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


def test_every_link_leads_to_a_file_on_a_code_host():
    for path in READ:
        text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
        found = re.findall(r"\]\((?![a-z]+:|#)([^)\s#]+)", re.sub(r"`[^`\n]+`(?!\])", "", text))
        lost = [target for target in found if not (path.parent / target).exists()]
        assert lost == []


class Page(HTMLParser):
    """What a page links to and loads, and its places."""

    def __init__(self, path):
        super().__init__()
        self.links, self.places = [], set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.places |= {found[name] for name in ("id", "name") if found.get(name)}
        wanted = {"a": "href", "link": "href", "script": "src", "img": "src"}.get(tag)
        if found.get(wanted) and found.get("rel") != "canonical":
            self.links.append(found[wanted])


@pytest.mark.full
def test_every_link_of_the_site_leads_to_a_place_on_a_page(tmp_path):
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package, reason="the site needs the extra 'docs'")
    folder = tmp_path / "site"
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
    lost = []
    for path, page in pages.items():
        for link in page.links:
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
