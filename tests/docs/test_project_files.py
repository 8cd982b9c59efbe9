"""What the files at the top of the project say of it."""

import json
import re
import tomllib
from pathlib import Path

from hpcfl.system.revision import RELEASE

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_release_has_one_number():
    for file, pattern in (
        ("CITATION.cff", r"^version: (\S+)$"),
        ("CHANGELOG.md", r"^## \[(.+?)\]"),
    ):
        assert re.findall(pattern, text(file), re.MULTILINE)[:1] == [RELEASE]


def test_license_and_authors_are_the_same_everywhere():
    (author,) = PROJECT["authors"]
    citation = text("CITATION.cff")

    assert f"Copyright 2026 {author['name']}\n" in text("LICENSE")
    assert f"authors:\n  - name: {author['name']}\n" in citation
    assert f"\nlicense: {PROJECT['license']}\n" in citation
    assert text("LICENSE").lstrip().startswith("Apache License\n")


def test_the_facts_for_catalogues_are_those_of_the_project():
    found = json.loads(text("codemeta.json"))

    assert found["version"] == RELEASE
    assert found["license"] == f"https://spdx.org/licenses/{PROJECT['license']}"
    assert [one["name"] for one in found["author"]] == [one["name"] for one in PROJECT["authors"]]
    for name in ("name", "description", "keywords"):
        assert found[name] == PROJECT[name]
    assert found["runtimePlatform"] == f"Python {PROJECT['requires-python']}"
