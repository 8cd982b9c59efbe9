"""docs/exposure.md and the README say what the kept runs of training came to."""

import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "exposure.md").read_text(encoding="utf-8")


@pytest.fixture(name="tables")
def loaded(monkeypatch):
    """Return the script that makes the tables, as a module."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import training_tables

    return training_tables


def script(name, *arguments):
    return subprocess.run(
        [sys.executable, ROOT / "benchmarks" / name, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def kept_table(name):
    (found,) = re.findall(f"<!-- {name} -->\n(.*?)<!-- /{name} -->", PAGE, re.DOTALL)
    return found


@pytest.mark.parametrize("name", ["tenth", "hundredth"])
def test_its_tables_are_made_from_the_kept_runs(name):
    done = script("training_tables.py", name)
    assert (done.returncode, done.stdout.strip()) == (0, kept_table(name).strip()), done.stderr


@pytest.mark.parametrize("page", ["README.md", "docs/artifact.md"])
def test_how_many_times_as_many_rounds_is_what_the_table_says(page):
    _, _, *rows = kept_table("hundredth").splitlines()
    ratios = [ratio for row in rows if (ratio := row.split(" | ")[4]) != "-"]
    text = (ROOT / page).read_text(encoding="utf-8")
    assert (
        f"{min(ratios, key=float)} to {max(ratios, key=float)} times as many with a hundredth"
        in text
    )


@pytest.mark.parametrize(
    ("rows", "way", "other", "said"),
    [
        (
            "TENTHS",
            "common-0.1-feedback",
            "whole",
            "{} to {} times as many rounds as whole vectors",
        ),
        (
            "HUNDREDTHS",
            "common-0.01-rate-0.3",
            "sparse-0.01",
            "{} to {} times as many rounds as `sparse`",
        ),
    ],
)
def test_how_many_times_as_many_rounds_is_what_the_runs_say(tables, rows, way, other, said):
    ratios = []
    for row in getattr(tables, rows):
        runs = tables.kept(row.file, row.accuracy)
        ratios.append(
            tables.mean(runs[f"{row.cell}-{way}"]) / tables.mean(runs[f"{row.cell}-{other}"])
        )
    assert said.format(f"{min(ratios):.1f}", f"{max(ratios):.1f}") in " ".join(PAGE.split())


def test_in_how_many_rounds_error_feedback_did_not_get_there_is_what_the_runs_say(tables):
    times = []
    for row in tables.HUNDREDTHS:
        runs = tables.kept(row.file, row.accuracy)
        for run in runs[f"{row.cell}-common-0.01-feedback"].values():
            assert math.isinf(run.rounds)
            times.append(run.most_rounds / tables.mean(runs[f"{row.cell}-whole"]))
    said = "no run got to the accuracy, in {:.0f} to {:.0f} times the rounds of whole vectors"
    assert said.format(min(times), max(times)) in " ".join(PAGE.split())


@pytest.mark.parametrize(
    ("rounds", "told"),
    [
        ({}, "-"),
        ({0: 12}, "2.0, 1 seed"),
        ({0: 12, 1: 12}, "2.0, 2 seeds"),
        ({0: 11, 1: 10, 2: 12, 3: 8, 4: 9}, "0.0 [-2.0, 2.0]"),
        ({0: 10, 1: 10, 2: 10, 3: 10, 4: 10}, "0.0"),
        ({0: math.inf, 1: 12}, "1 of 2: 90.0 to 90.0 % in 50 rounds, 2 seeds"),
        (dict.fromkeys(range(5), math.inf), "90.0 to 94.0 % in 50 rounds"),
    ],
)
def test_runs_are_compared_with_whole_vectors_of_the_same_seeds(tables, rounds, told):
    whole = {seed: tables.Outcome(10.0, 50, 0.95) for seed in range(5)}
    runs = {
        seed: tables.Outcome(count, 50, 0.90 + seed / 100 if math.isinf(count) else 0.95)
        for seed, count in rounds.items()
    }
    assert tables.more(runs, whole) == told


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("cell,seed\n", "does not begin with cell,seed,rounds"),
        (
            "cell,seed,rounds,most_rounds,best\n2nn-iid-25-whole,0,7,50,0.93\n",
            "line 2: this run was to another accuracy",
        ),
    ],
)
def test_runs_to_another_accuracy_are_not_added_to(tmp_path, text, reason):
    known = tmp_path / "runs.csv"
    known.write_text(text)
    done = script("common_training.py", "--output", tmp_path, "--known", known, "--table")
    assert done.returncode == 2
    assert reason in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
