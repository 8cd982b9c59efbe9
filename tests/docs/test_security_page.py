"""docs/security.md names every protocol, and a test that exists for every rule."""

import re
from pathlib import Path

from hpcfl.algorithms.aggregation import PROTOCOLS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")


def tabled(heading):
    """Return the rows of the table below a heading, without the marks of code."""
    section = TEXT.partition(f"\n## {heading}")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


def test_every_protocol_is_in_the_table():
    assert {*PROTOCOLS, "dp-fedavg"} == {row[0] for row in tabled("What each protocol promises")}


def test_every_rule_names_a_test_that_exists():
    rules = tabled("Rules, and the test that guards each")
    assert len(rules) > 10
    assert all(rule[1].startswith("tests/") for rule in rules)
    for file, function in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", TEXT):
        assert f"def {function or 'test_'}" in (ROOT / file).read_text(encoding="utf-8"), file
