import json
from functools import partial

import h5py
import pytest
from commandline import invoke
from run_files import simple_record

from hpcfl.errors import UsageError

report = partial(invoke, "report")


@pytest.fixture
def pair(make_run):
    return [
        make_run("a.h5", [simple_record()]),
        make_run("b.h5", [simple_record(4)], protocol="secagg"),
    ]


def test_a_folder_is_the_same_as_its_files(pair, tmp_path):
    assert "baseline: row 2 (secagg);" in report(*pair).stdout
    assert report(tmp_path).stdout == report(*pair).stdout
    assert report(tmp_path, "--where", "protocol=secagg").stdout == report(pair[1]).stdout
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


@pytest.mark.parametrize("status", ["failed", "running", "wrong"])
def test_a_run_that_did_not_end_well_is_shown_with_a_warning(make_run, status):
    records = [simple_record(), simple_record(validated=status != "wrong")]
    path = make_run("run.h5", records, rounds=5, status="failed")
    with h5py.File(path, "r+") as file:
        file.attrs["status"] = "complete" if status == "wrong" else status
    result = report(path)

    assert result.exit_code == 0
    assert result.stderr.startswith(f"warning: {path} ")
    assert len(result.stderr.splitlines()) == 1
    if status == "wrong":
        assert "1 round that failed validation" in result.stderr


def test_json_holds_the_summaries_and_nothing_else(pair):
    one, both = (json.loads(report(*files, "--json").stdout) for files in (pair[:1], pair))

    assert list(one) == ["runs"]
    assert "bytes_up_ratio" not in one["runs"][0]
    assert [run["baseline"] for run in both["runs"]] == [str(pair[1])] * 2
    assert [run["bytes_up_ratio"] for run in both["runs"]] == [4, 1]


def test_columns_are_chosen_and_ordered_in_every_form(pair):
    options = ("--columns", "bytes-up-mean,protocol,clip_norm,bytes_up_ratio")
    names = ["bytes_up_mean", "protocol", "clip_norm", "bytes_up_ratio"]
    lines = report(*pair, *options).stdout.splitlines()

    # The notes call rows by their numbers.
    assert [line.split() for line in lines[5:7]] == [
        ["1", "210", "sparse", "-", "4.00x"],
        ["2", "840", "secagg", "-", "1.00x"],
    ]
    assert report(*pair, *options, "--format", "csv").stdout == (
        ",".join(names) + "\n210.0,sparse,,4.0\n840.0,secagg,,1.0\n"
    )
    assert [list(row) for row in json.loads(report(*pair, *options, "--json").stdout)] == [
        names
    ] * 2
    assert "\\toprule" in report(*pair, *options, "--format", "latex").stdout
    assert "|:" in report(*pair, *options, "--format", "markdown").stdout
    for columns, sentence in (
        ("protocol,acuracy", "there is no column 'acuracy'; did you mean 'accuracy'?"),
        ("dim,dim", "--columns has dim twice"),
    ):
        refused = report(*pair, "--columns", columns).exception
        assert isinstance(refused, UsageError)
        assert sentence in str(refused)


@pytest.mark.parametrize(
    ("option", "values", "titles"),
    [
        ("degree", (8, 12), ["degree"]),
        ("helpers", (None, 1), ["helpers"]),
        ("group", ("ring16", "ring20"), ["bits"]),
        # This has a column of its own.
        ("alpha", (0.1, 0.2), []),
    ],
)
def test_rows_are_told_apart_by_every_option_in_which_runs_of_a_protocol_differ(
    make_run, option, values, titles
):
    paths = [
        make_run(f"{k}.h5", [simple_record()], **{option: value}) for k, value in enumerate(values)
    ]
    headings = report(*paths).stdout.partition("-  -")[0].split()

    assert [one for one in ("degree", "helpers", "bits") if one in headings] == titles
