"""Links of Markdown files, which lead to other files of the repository, as links of the site.

docs/ is the root of the site and README.md its first page. What else is linked to becomes a page
below repository/: a Markdown file as it is, other text as code, a folder as the list of its files.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from sitepages import notebook
from sitepages.markdown import block

ROOT = Path(__file__).resolve().parents[2]
HOME = "README.md"
DOCS = "docs"
FOLDER = "repository"
# A link or an image whose target may be a file: no URL, and not just a place on the same page.
_LINK = re.compile(r"(!?\[[^\]]*\]\()(?![a-z]+:|[#/])([^)\s#]+)(#[^)\s]*)?(\))")
_CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
# Code would be found before what is written of it.
_UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"
_LANGUAGES = {
    ".cff": "yaml",
    ".eb": "python",
    ".py": "python",
    ".sbatch": "bash",
    ".toml": "toml",
    ".yaml": "yaml",
}


def place(path: str) -> str:
    """Return the page, or the file, of the site that shows a file or folder of the repository."""
    if path == HOME:
        return "index.md"
    if path.startswith(f"{DOCS}/"):
        return path.removeprefix(f"{DOCS}/")
    if (ROOT / path).is_dir():
        own = f"{path}/README.md"
        return place(own) if (ROOT / own).exists() else f"{FOLDER}/{path}/index.md"
    return f"{FOLDER}/{path}" if path.endswith(".md") else f"{FOLDER}/{path}.md"


def rewrite(text: str, origin: str) -> str:
    """Return the Markdown of a file of the repository with links as its page has them.

    Links to what is not there stay as they are: MkDocs finds them.
    """
    page = posixpath.dirname(place(origin))

    def link(found: re.Match[str]) -> str:
        start, _, fragment, end = found.groups()
        path = _target(found, origin)
        if path is None:
            return found[0]
        return f"{start}{posixpath.relpath(place(path), page or '.')}{fragment or ''}{end}"

    return _outside_code(text, lambda part: _LINK.sub(link, part))


def targets(text: str, origin: str) -> Iterator[str]:
    """Yield the files and folders of the repository that a Markdown file links to."""
    for found in _LINK.finditer(_CODE.sub("", text)):
        path = _target(found, origin)
        if path is not None:
            yield path


def _target(found: re.Match[str], origin: str) -> str | None:
    path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), found[2]))
    return path if not path.startswith("..") and (ROOT / path).exists() else None


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    parts, end = [], 0
    for found in _CODE.finditer(text):
        parts += [change(text[end : found.start()]), found[0]]
        end = found.end()
    return "".join([*parts, change(text[end:])])


def included() -> dict[str, str]:
    """Return the files and folders outside of docs/ that pages link to, with their Markdown."""
    waiting = [HOME, *(path.relative_to(ROOT).as_posix() for path in (ROOT / DOCS).glob("*.md"))]
    texts: dict[str, str] = {}
    while waiting:
        path = waiting.pop()
        if (ROOT / path / HOME).exists():
            path = f"{path}/{HOME}"
        if path not in texts and not (path.startswith(f"{DOCS}/") and not path.endswith(".md")):
            texts[path] = shown(path)
            waiting += targets(texts[path], path)
    return {path: text for path, text in texts.items() if not path.startswith(f"{DOCS}/")}


def shown(path: str) -> str:
    """Return what the page of a file or folder says, its links as they are in the repository."""
    file = ROOT / path
    if file.is_dir():
        names = sorted(one.name for one in file.iterdir() if one.is_file())
        files = "\n".join(f"- [{name}]({file.name}/{name})" for name in names)
        return f"{_UNSEARCHED}# {path}/\n\n{files}\n"
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        return text
    if file.suffix == ".ipynb":
        return notebook.markdown(json.loads(text))
    return f"{_UNSEARCHED}# {path}\n\n{block(text, _LANGUAGES.get(file.suffix, 'text'))}"
