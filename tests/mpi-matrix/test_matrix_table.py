"""What the matrix makes of outcomes: its table, and where that goes in the page."""

import re

import features
import pytest
import table


def test_a_library_that_is_not_installed_is_a_row_that_says_so():
    outcomes = {
        "reduce": features.Outcome(True, "", 3.4),
        "train": features.Outcome(False, "assert `1` == 2", 60.0),
    }
    text = table.table([("A 1", outcomes), ("B", "no wheel")], ["reduce", "train"])

    assert "| A 1 | ok, 3 s | **fails**, 60 s |" in text
    assert "| B | - | - |" in text
    assert "- A 1, train: `assert '1' == 2`" in text
    assert "- B is not installed: `no wheel`" in text


def test_rows_that_are_kept_come_back(tmp_path):
    for row in (("A", {"reduce": features.Outcome(False, "why", 3.5)}), ("B", "no wheel")):
        table.keep(tmp_path / "row.json", *row)

        assert table.kept(tmp_path / "row.json") == row


def test_only_what_is_between_the_marks_is_replaced():
    page = f"before\n{table.BEGIN}\nold\n{table.END}\nafter"
    new = table.insert(page, "new")

    assert new == f"before\n{table.BEGIN}\n\nnew\n\n{table.END}\nafter"
    with pytest.raises(ValueError, match="has no"):
        table.insert("before", "new")


@pytest.mark.parametrize(
    ("text", "status", "reason"),
    [
        (
            "x\nFAILED ../a/test_jobs.py::test_a_b[sparse-5] - assert 1 == 2\n1 failed",
            *(1, "test a b[sparse-5]: assert 1 == 2"),
        ),
        ("SKIPPED [4] test_train_jobs.py:20: could not import 'torch'\n4 skipped", 0, "could"),
        ("no tests ran", 5, "pytest ended with status 5"),
        ("3 passed", 0, ""),
    ],
)
def test_the_reason_is_the_first_failure_or_why_tests_were_skipped(text, status, reason):
    found = features.reason(text, status)

    assert found == reason or (reason and found.startswith(reason))


def test_every_test_of_a_feature_is_there():
    for tests in features.FEATURES.values():
        for test in tests:
            file, name = re.fullmatch(r"(\w+\.py)::(\w+)(?:\[\S+\])?", test).groups()
            assert f"def {name}(" in (features.MPIRUN / file).read_text()


def test_the_page_has_the_marks_and_names_every_feature():
    page = table.PAGE.read_text()

    assert page.count(table.BEGIN) == page.count(table.END) == 1
    for feature in features.FEATURES:
        assert f"\n| {feature} |" in page
