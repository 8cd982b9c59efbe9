import json

import h5py
import pytest
from click.testing import CliRunner
from run_files import simple_record

from hpcfl.cli.report import report as command
from hpcfl.errors import HpcflError, UsageError


def report(*arguments):
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


@pytest.fixture
def pair(make_run):
    return [
        make_run("a.h5", [simple_record()]),
        make_run("b.h5", [simple_record(4)], protocol="secagg"),
    ]


def test_a_folder_is_the_same_as_its_files(pair, tmp_path):
    assert "baseline: row 2 (secagg);" in report(*pair).stdout
    assert report(tmp_path).stdout == report(*pair).stdout
    assert "baseline: row 1 (sparse);" in report(*pair, "--baseline", "a").stdout


def test_the_link_is_the_runs_own_unless_given(make_run):
    path = make_run("run.h5", [simple_record()])
    old = make_run("old.h5", [simple_record()], uplink_mbps=None, downlink_mbps=None)

    assert "link model    8 Mbit/s up, 16 Mbit/s down, 1 ms" in report(path).stdout
    given = report(path, "--uplink-mbps", 2, "--latency-ms", 0).stdout
    assert "link model    2 Mbit/s up, 16 Mbit/s down, 0 ms" in given
    assert "link model    100 Mbit/s up, 100 Mbit/s down, 1 ms" in report(old).stdout
    for rate in (0, -1):  # the files are not to blame
        refused = report(path, path, "--uplink-mbps", rate).exception
        assert isinstance(refused, UsageError)
        assert "--uplink-mbps" in str(refused)


@pytest.mark.parametrize("status", ["failed", "running"])
def test_a_run_that_did_not_end_well_is_shown_with_a_warning(make_run, status):
    path = make_run("run.h5", [simple_record()], rounds=5, status="failed")
    with h5py.File(path, "r+") as file:
        file.attrs["status"] = status
    result = report(path)

    assert result.exit_code == 0
    assert result.stderr.startswith(f"warning: {path} ")
    assert len(result.stderr.splitlines()) == 1
    assert f"status        {status}" in result.stdout


def test_rounds_that_failed_validation_are_warned_of(make_run):
    path = make_run("run.h5", [simple_record(), simple_record(validated=False)])

    assert "1 round that failed validation" in report(path).stderr


def test_nothing_but_damaged_files_is_an_error(tmp_path):
    for name in ("a.h5", "b.h5"):
        (tmp_path / name).write_text("junk")
    both = report(tmp_path)

    assert type(both.exception) is HpcflError
    assert "none of the 2 files" in str(both.exception)


def test_json_holds_the_summaries_and_nothing_else(pair):
    one, both = (json.loads(report(*files, "--json").stdout) for files in (pair[:1], pair))

    assert list(one) == ["runs"]
    assert one["runs"][0]["bytes_up_mean"] == 210
    assert "bytes_up_ratio" not in one["runs"][0]
    assert [run["baseline"] for run in both["runs"]] == [str(pair[1])] * 2
    assert both["runs"][0]["bytes_up_ratio"] == 4
    assert both["runs"][1]["bytes_up_ratio"] == 1


def test_a_report_is_printed_in_every_form(pair):
    for asked in (pair, pair[:1]):
        lines = report(*asked, "--format", "markdown").stdout.splitlines()
        assert len({line.count("|") for line in lines if line.startswith("|")}) == 1
        assert "bytes_up_mean," in report(*asked, "--format", "csv").stdout.splitlines()[0]
        assert "\\toprule" in report(*asked, "--format", "latex").stdout
    assert report(*pair, "--json").stdout == report(*pair, "--format", "json").stdout


def test_columns_are_chosen_and_ordered_in_every_form(pair):
    options = ("--columns", "bytes-up-mean,protocol,clip_norm,bytes_up_ratio")
    names = ["bytes_up_mean", "protocol", "clip_norm", "bytes_up_ratio"]
    lines = report(*pair, *options).stdout.splitlines()

    assert [line.split() for line in lines[3:7]] == [
        ["#", "B/device", "protocol", "norm", "up", "ratio"],
        ["-", "-" * 8, "-" * 8, "-" * 4, "-" * 8],
        # The notes call rows by their numbers.
        ["1", "210", "sparse", "-", "4.00x"],
        ["2", "840", "secagg", "-", "1.00x"],
    ]
    assert any(line.startswith("baseline: row 2") for line in lines)
    assert report(*pair, *options, "--format", "csv").stdout == (
        ",".join(names) + "\n210.0,sparse,,4.0\n840.0,secagg,,1.0\n"
    )
    assert [list(row) for row in json.loads(report(*pair, *options, "--json").stdout)] == [
        names
    ] * 2
    # One run, too, where columns are asked for.
    assert json.loads(report(pair[0], "--columns", "file,dim", "--json").stdout) == [
        {"file": "a.h5", "dim": 10}
    ]


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ("protocol,acuracy", "there is no column 'acuracy'; did you mean 'accuracy'?"),
        ("protocol,", "there is no column ''; choose one of"),
        ("dim,dim", "--columns has dim twice"),
    ],
)
def test_a_column_that_there_is_not_is_refused(pair, columns, sentence):
    refused = report(*pair, "--columns", columns).exception

    assert isinstance(refused, UsageError)
    assert sentence in str(refused)


def test_where_leaves_out_the_others(pair):
    found = json.loads(report(*pair, "--where", "protocol=secagg,dropout=0.25", "--json").stdout)

    assert [run["protocol"] for run in found["runs"]] == ["secagg"]
    for condition, sentence in (
        ("protocol", "give KEY=VALUE"),
        ("protocl=secagg", "did you mean 'protocol'?"),
        ("protocol=cohort", "no run has protocol=cohort"),
    ):
        refused = report(*pair, "--where", condition).exception
        assert isinstance(refused, UsageError)
        assert sentence in str(refused)


@pytest.mark.parametrize(
    ("option", "values", "titles"),
    [
        ("degree", (8, 12), ["degree"]),
        ("helpers", (None, 1), ["helpers"]),
        ("threads", (1, 2), ["threads"]),
        ("seed", (0, 1), ["seed"]),
        ("gamma", (0.1, 0.2), ["gamma"]),
        ("group", ("ring16", "ring20"), ["bits"]),
        ("levels", (1000, 2000), ["levels"]),
        # These have columns of their own.
        ("alpha", (0.1, 0.2), []),
        ("dropout", (0.1, 0.2), []),
        # Files are told apart by what was measured, not by where they are.
        ("output", ("a", "b"), []),
    ],
)
def test_rows_are_told_apart_by_every_option_in_which_runs_of_a_protocol_differ(
    make_run, option, values, titles
):
    paths = [
        make_run(f"{k}.h5", [simple_record()], **{option: value}) for k, value in enumerate(values)
    ]
    headings = report(*paths).stdout.partition("-  -")[0].split()
    known = ("degree", "helpers", "threads", "seed", "gamma", "bits", "levels")

    assert [one for one in known if {*one.split()} <= {*headings}] == titles
