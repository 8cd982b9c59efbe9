"""One table in five renderings."""

import csv
import io
import json
import math

import pytest

from hpcfl.report import formats, jsontext
from hpcfl.report.table import RULE, Column, Facts, Table, label

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
        "phase    up B/device  device CPU median ms",
        "-------  -----------  --------------------",
        "model            400                 10.50",
        "a|*b* c            -                     -",
        "-------  -----------  --------------------",
        "total     1000000000                 12000",
        "",
        "up_load is _not_ [a link](x)",
    ]
    assert str(TABLE) == TABLE.text()


def test_headings_are_wrapped_as_far_as_the_width_demands():
    assert TABLE.text(width=34).splitlines()[2:4] == [
        "                      device CPU",
        "phase    up B/device   median ms",
    ]
    assert TABLE.text(width=20).splitlines()[2:6] == [
        "                   device",
        "                      CPU",
        "                up median",
        "phase     B/device     ms",
    ]


@pytest.mark.parametrize("start", ["row 12: ", "warning: ", ""])
def test_notes_continue_below_what_follows_their_label(start):
    table = Table([label("x")], [], notes=[f"{start}one two three: four"])

    *_, first, second = table.text(width=len(start) + 8).splitlines()[:5]

    assert first == f"{start}one two"
    assert second == " " * len(start) + "three:"


def test_a_wide_table_has_its_columns_closer_together():
    table = Table([label(str(n), "x" * 9) for n in range(4)], [["y"] * 4])

    assert table.text(width=42).splitlines()[0] == "xxxxxxxxx  xxxxxxxxx  xxxxxxxxx  xxxxxxxxx"
    assert table.text(width=41).splitlines()[0] == "xxxxxxxxx xxxxxxxxx xxxxxxxxx xxxxxxxxx"


def test_markdown_is_a_rectangle_in_which_nothing_is_markup():
    title, table, notes = TABLE.markdown().split("\n\n")
    lines = table.splitlines()

    assert title == r"A round \<1\>"
    assert notes == r"- up_load is \_not\_ \[a link\](x)"
    assert [line.replace(r"\|", "").count("|") for line in lines] == [4] * 5
    assert "up, B/device" in lines[0]
    assert [cell.strip("-") for cell in lines[1].strip("|").split("|")] == [":", ":", ":"]
    assert lines[1].startswith("|:-")  # words to the left
    assert lines[1].endswith("-:|")  # numbers to the right
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
    assert "<caption>&lt;b&gt;</caption>" in shown
    assert '<th scope="row" class="word">&lt;script&gt;</th>' in shown
    assert '<th scope="col" class="number">device CPU median, ms</th>' in shown
    assert "<li>a &lt; b</li>" in shown
    assert TABLE._repr_html_() == TABLE.html()


def test_facts_leave_out_what_has_no_value():
    facts = Facts({"hosts": ["a", "b"], "none": None, "nan": math.nan, "off": False}, "machine")

    assert facts.text() == "machine\n  hosts  a, b\n  off    False"
    assert facts.markdown() == "- hosts: a, b\n- off: False"
    assert '<th scope="row">hosts</th><td>a, b</td>' in facts.html()
    long = Facts({"name": "word " * 100})
    assert all(len(line) <= 50 for line in long.text(50).splitlines())
    assert long.text(50).splitlines()[1].startswith("      word")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((formats.seconds(0.0), "0.000"), (formats.seconds(1234.5), "1234")),
        *((formats.seconds(12.345), "12.35"), (formats.seconds(0.2), "0.200")),
        *((formats.seconds(0.0123456), "0.0123"), (formats.seconds(0.0000123456), "0.000012")),
        *((formats.seconds(math.nan), "-"), (formats.seconds(math.inf), "-")),
        *((formats.milliseconds(None), "-"), (formats.milliseconds(10.0), "10000")),
        *((formats.ratio(1.966), "1.97x"), (formats.ratio(1e-6), "1e-06x")),
        *((formats.ratio(None), "-"), (formats.count(1e9 + 0.4), "1000000000")),
        *((formats.number(1.23456e-7), "1.235e-07"), (formats.change(-0.0123), "-0.012")),
        *((formats.share(0.5), "50.00%"), (formats.share(0.00012), "0.0120%")),
        *((formats.size(1_234_567), "1.2 MB"), (formats.duration(99.94), "99.9 s")),
        *((formats.duration(200), "3 min 20 s"), (formats.duration(18_600), "5 h 10 min")),
        (formats.words({"a": [1, None], "b": "x\ny"}), "a=1, -, b=x y"),
        (formats.words("\x1b[2J"), "\N{REPLACEMENT CHARACTER}[2J"),
    ],
)
def test_numbers_are_written_in_one_way(text, expected):
    assert text == expected


def test_json_has_null_for_what_is_not_a_finite_number():
    document = {"a": (math.inf, 1.5), "b": {"c": math.nan}, "d": True}

    assert json.loads(jsontext.dumps(document)) == {"a": [None, 1.5], "b": {"c": None}, "d": True}
