"""docs/security.md says what pyproject.toml and the tests say."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "docs" / "security.md").read_text()
# Of development, not of a program that runs.
DEVELOPMENT = {"test", "lint", "docs"}
GUARDS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", TEXT)))


def tabled(heading):
    """Return the rows of the table below a heading, without the marks of code."""
    section = TEXT.partition(f"\n## {heading}")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


def test_every_dependency_is_in_the_table_with_its_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    by_extra = {"": project["dependencies"]} | {
        extra: listed
        for extra, listed in project["optional-dependencies"].items()
        if extra not in DEVELOPMENT
    }
    wanted = [
        [*re.fullmatch(r"([\w-]+)(.*)", one).groups(), extra]  # type: ignore[union-attr]
        for extra, listed in by_extra.items()
        for one in listed
    ]

    assert sorted(wanted) == sorted(row[:3] for row in tabled("Dependencies"))
    assert all(row[3] for row in tabled("Dependencies"))


def test_every_protocol_is_in_the_table():
    from hpcfl.algorithms.aggregation import PROTOCOLS

    assert {*PROTOCOLS, "dp-fedavg"} == {row[0] for row in tabled("What each protocol promises")}


@pytest.mark.parametrize(("file", "function"), GUARDS)
def test_every_rule_has_the_test_that_is_named(file, function):
    assert f"def {function or 'test_'}" in (ROOT / file).read_text()


def test_every_rule_names_a_test():
    rules = tabled("Rules, and the test that guards each")

    assert len(rules) > 10
    assert all(rule[1].startswith("tests/") for rule in rules)
