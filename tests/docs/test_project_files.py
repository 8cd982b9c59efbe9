"""What the files at the top of the project say of it."""

import importlib.util
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


def test_the_readme_of_an_index_has_no_links_to_files_without_a_repository():
    spec = importlib.util.spec_from_file_location("setup_of_hpcfl", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    shown = module.for_index(text("README.md"), None)

    assert re.findall(r"\]\((?!https?:)", shown) == []
    assert "build mpi4py against the cluster's MPI library: docs/clusters.md" in shown
    assert "| docs/guide.md | " in shown
    # Nothing else is another.
    assert [line for line in shown.splitlines() if line.startswith("    hpcfl")] == [
        line for line in text("README.md").splitlines() if line.startswith("    hpcfl")
    ]
