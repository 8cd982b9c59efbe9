"""Summaries as Markdown and CSV."""

from __future__ import annotations

import csv
import io
import json

import pytest
from click.testing import CliRunner, Result
from conftest import MakeRun
from run_files import PHASES, simple_record

from hpcfl.cli.report import command
from hpcfl.errors import UsageError
from hpcfl.results.export import markdown_table


def report(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_csv_has_a_row_for_each_run_and_phase_and_the_total(make_run: MakeRun) -> None:
    paths = [
        make_run("a.h5", [simple_record()]),
        make_run("b.h5", [simple_record(4)] * 6, protocol='se"c, agg'),
    ]
    result = report(*paths, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))

    assert result.exit_code == 0
    assert [row["phase"] for row in rows] == [*PHASES, "total"] * 2
    assert [row["protocol"] for row in rows] == ["sparse"] * 4 + ['se"c, agg'] * 4
    assert float(rows[1]["bytes_up_mean"]) == 200
    assert float(rows[0]["server_cpu_seconds_median"]) == pytest.approx(0.010)
    assert float(rows[3]["round_seconds_median"]) == pytest.approx(0.1)
    assert rows[0]["round_seconds_median"] == ""
    assert rows[3]["round_seconds_interval_low"] == ""  # undefined for one round
    assert float(rows[7]["round_seconds_interval_low"]) == pytest.approx(0.4)
    assert all(row["link_uplink_mbps"] == "8.0" for row in rows)


def test_markdown_tables_are_rectangles(make_run: MakeRun) -> None:
    paths = [
        make_run("a.h5", [simple_record()], protocol="x|y\n*z*"),
        make_run("b.h5", [simple_record(4)], protocol="secagg"),
    ]
    for asked in (paths, paths[:1]):
        result = report(*asked, "--format", "markdown")
        lines = [line for line in result.stdout.splitlines() if line.startswith("|")]

        assert result.exit_code == 0
        assert len({line.replace("\\|", "").count("|") for line in lines}) == 1
        assert set(lines[1]) <= set("|:- ")
    assert "x\\|y \\*z\\*" in report(*paths, "--format", "markdown").stdout


def test_markdown_escapes_what_it_would_read() -> None:
    table = markdown_table(["a"], [["<b> & _x_ masked_input [l](u) `c`"]])

    assert table.splitlines()[2] == (r"| \<b\> &amp; \_x\_ masked_input \[l\](u) \`c\` |")


def test_json_is_the_same_by_both_names(make_run: MakeRun) -> None:
    path = make_run("a.h5", [simple_record()])

    assert report(path, "--json").stdout == report(path, "--format", "json").stdout
    assert json.loads(report(path, "--json").stdout)["runs"][0]["protocol"] == "sparse"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--json", "--format", "csv"], "do not go together"),
        (["--html", "a.html", "--json"], "leave --format and --json out"),
        (["--html", "a.html", "--format", "csv"], "leave --format and --json out"),
    ],
)
def test_two_forms_at_once_are_refused(
    make_run: MakeRun, options: list[str], sentence: str
) -> None:
    result = report(make_run("a.h5", [simple_record()]), *options)

    assert isinstance(result.exception, UsageError)
    assert sentence in str(result.exception)
