"""One table in six renderings."""

import csv
import io
import json
import math

import pytest

from hpcfl.report import formats, jsontext
from hpcfl.report.table import RULE, Column, Facts, Table, label, seconds, size

COLUMNS = (
    label("phase"),
    Column("bytes_up", "up", "B/device", formats.count),
    Column("cpu_seconds", "device CPU median", "ms", formats.milliseconds),
)
ROWS = [["model", 400.0, 0.0105], ["a|*b*\nc", None, math.nan], RULE, ["total", 10**9, 12]]
TABLE = Table(COLUMNS, ROWS, "A round <1>", ["up_load is _not_ [a link](x)"])


def test_text_is_aligned_under_headings_with_units():
    assert TABLE.text().splitlines() == [
        "A round <1>",
        "",
        "                     device",
        "                        CPU",
        "                 up  median",
        "phase      B/device      ms",
        "-------  ----------  ------",
        "model           400   10.50",
        "a|*b* c           -       -",
        "-------  ----------  ------",
        "total    1000000000   12000",
        "",
        "up_load is _not_ [a link](x)",
    ]
    assert str(TABLE) == TABLE.text()


def test_markdown_is_a_rectangle_in_which_nothing_is_markup():
    title, table, notes = TABLE.markdown().split("\n\n")
    lines = table.splitlines()

    assert title == r"A round \<1\>"
    assert notes == r"- up\_load is \_not\_ \[a link\](x)"
    assert [line.replace(r"\|", "").count("|") for line in lines] == [4] * 5
    # Words to the left, numbers to the right.
    assert (lines[1][:3], lines[1][-3:]) == ("|:-", "-:|")
    assert r"a\|\*b\* c" in lines[3]
    assert r"\<b\> &amp; \`c\`" in Table([label("x")], [["<b> & `c`"]]).markdown()


def test_csv_and_json_hold_the_values_themselves():
    rows = list(csv.reader(io.StringIO(TABLE.csv())))

    assert rows == [
        ["phase", "bytes_up", "cpu_seconds"],
        ["model", "400.0", "0.0105"],
        ["a|*b*\nc", "", ""],
        ["total", "1000000000", "12"],
    ]
    assert json.loads(TABLE.json())[1] == {
        "phase": "a|*b*\nc",
        "bytes_up": None,
        "cpu_seconds": None,
    }


def test_html_marks_headers_and_escapes_what_it_shows():
    shown = Table(COLUMNS, [["<script>", 1, 1]], "<b>", ["a < b"]).html()

    assert "<script>" not in shown
    for part in ("<p>&lt;b&gt;</p>", "device CPU median, ms</th>", "<li>a &lt; b</li>"):
        assert part in shown
    assert TABLE._repr_html_() == TABLE.html()


def test_facts_leave_out_what_has_no_value():
    facts = Facts({"hosts": ["a", "b"], "none": None, "nan": math.nan, "off": False}, "machine")

    assert facts.text() == "machine\n  hosts  a, b\n  off    False"
    long = Facts({"name": "word " * 100})
    assert all(len(line) <= 50 for line in long.text(50).splitlines())
    assert long.text(50).splitlines()[1].startswith("      word")


def test_numbers_are_written_in_one_way():
    for write, value, expected in (
        (formats.seconds, 0.0, "0.000"),
        (formats.seconds, 1234.5, "1234"),
        (formats.seconds, 12.345, "12.35"),
        (formats.seconds, 0.0000123456, "0.000012"),
        (formats.seconds, math.nan, "-"),
        (formats.milliseconds, 10.0, "10000"),
        (formats.ratio, 1.966, "1.97x"),
        (formats.ratio, 1e-6, "1e-06x"),
        (formats.ratio, None, "-"),
        (formats.count, 1e9 + 0.4, "1000000000"),
        (formats.number, 1.23456e-7, "1.235e-07"),
        # Only what is 0 is shown as 0.
        (formats.share, 0.00012, "0.0120%"),
        (formats.share, 0.0, "0%"),
        (formats.share, 2e-43, "<0.0001%"),
        (formats.amount, 1_234_567, "1.235 MB"),
        (formats.duration, 99.94, "99.9 s"),
        (formats.duration, 18_600, "5 h 10 min"),
        (formats.duration, 3.2e9, "101 years"),
        (formats.time, 0.2, "0.200 s"),
        (formats.time, 1200, "20 min 00 s"),
        (formats.words, {"a": [1, None], "b": "x\ny"}, "a=1, -, b=x y"),
        (formats.words, "\x1b[2J", "\N{REPLACEMENT CHARACTER}[2J"),
    ):
        assert write(value) == expected


def test_json_has_null_for_what_is_not_a_finite_number():
    document = {"a": (math.inf, 1.5), "b": {"c": math.nan}, "d": True}

    assert json.loads(jsontext.dumps(document)) == {"a": [None, 1.5], "b": {"c": None}, "d": True}


def values_of(column, *values):
    table = Table([column], [[value] for value in values])
    column = table.shown[0]
    return f"{column.title}, {column.unit}".removesuffix(", "), [cell for (cell,) in table.cells]


@pytest.mark.parametrize(
    ("column", "values", "heading", "cells"),
    [
        (seconds("x", "CPU"), (0.0105, 0.999, None), "CPU, ms", ["10.50", "999.0", "-"]),
        (seconds("x", "CPU"), (0.0105, 12.0, math.nan), "CPU, s", ["0.0105", "12.00", "-"]),
        (seconds("x", "CPU"), (0.0105, 1.2e4), "CPU", ["0.0105 s", "3 h 20 min"]),
        (seconds("x", "CPU"), (2e-5, 5.0), "CPU, s", ["0.000020", "5.000"]),
        (seconds("x", "CPU"), (16_561_882_368.152469,), "CPU", ["525 years"]),
        (seconds("x", "CPU"), (), "CPU, ms", []),
        (size("x", "up", "/device"), (0, 999_999), "up, B/device", ["0", "999999"]),
        (size("x", "up", "/device"), (7073.0, 1e6), "up, MB/device", ["0.007073", "1"]),
        (
            size("x", "up", "/device"),
            (12, 4e9, None),
            "up, GB/device",
            ["1.2e-08", "4", "-"],
        ),
    ],
)
def test_a_column_has_the_unit_that_suits_all_of_its_values(column, values, heading, cells):
    assert values_of(column, *values) == (heading, cells)


def test_latex_has_the_rules_of_booktabs_and_nothing_that_tex_would_read():
    rows = [["a&b_%$#{}~^\\", 400.0, 0.0105], RULE, ["total", 1, 1]]
    table = Table(COLUMNS, rows, "50 %", ["_", "*: a star"])
    lines = table.latex().splitlines()

    assert [line for line in lines if line.startswith("\\") and "rule" in line] == [
        *("\\toprule", "\\midrule", "\\bottomrule")
    ]
    assert "\\begin{tabular}{lrr}" in lines
    assert "\\caption{50 \\%}" in lines
    (row,) = [line for line in lines if "400" in line]
    assert row.split(" &")[0].strip() == (r"a\&b\_\%\$\#\{\}\textasciitilde{}\^{}\textbackslash{}")
    # Otherwise TeX takes the star for one of the line's end.
    assert "\\_\n\n*: a star" in table.latex()
