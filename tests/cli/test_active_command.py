"""`--security active` on the command line."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from hpcfl.cli import bench, predict
from hpcfl.errors import UsageError
from hpcfl.results import load

SMALL = ("--devices", "7", "--dim", "40", "--rounds", "2", "--warmup", "1", "--security", "active")


def run(command, *arguments):
    return CliRunner().invoke(command, arguments, catch_exceptions=True)


@pytest.mark.parametrize("protocol", ["secagg", "sparse"])
@pytest.mark.parametrize("phase", ["consistency_check", "unmask"])
def test_devices_may_drop_out_of_the_check(tmp_path, protocol, phase):
    options = (*SMALL, "--output", str(tmp_path), "--json", "--alpha", "0.5")
    found = run(bench.command, protocol, *options, "--dropout-phase", phase)

    assert found.exit_code == 0, found.output
    (summary,) = json.loads(found.stdout)["runs"]
    measured = load(Path(summary["path"]))
    assert measured.config["security"] == "active"
    assert measured.config["threshold"] == 5
    assert measured.validated.all()
    assert measured.survived.all()  # all had uploaded
    place = list(measured.phases).index("consistency_check")
    sent = (measured.bytes_up[:, place] > 0).sum(axis=1)
    assert sent.tolist() == [5 if phase == "consistency_check" else 7] * 3


@pytest.mark.parametrize(
    ("command", "arguments", "sentence"),
    [
        (bench, ["secagg-graph"], "secagg-graph cannot be run with --security active"),
        (bench, ["cohort"], "cohort cannot be run with --security active"),
        (bench, ["secagg", "--degree", "4"], "every device is linked with all others"),
        (bench, ["secagg", "--dropout", "0.4"], "dropout is 0.4; with --security active"),
        (bench, ["secagg", "--gamma", "0.4"], "gamma is 0.4; with --security active"),
    ],
)
def test_what_is_not_safe_is_refused(tmp_path, command, arguments, sentence):
    found = run(command.command, *arguments, *SMALL, "--output", str(tmp_path))

    assert isinstance(found.exception, UsageError)
    assert sentence in str(found.exception)
    assert list(tmp_path.iterdir()) == []


def test_the_passive_variant_has_no_check_to_drop_out_of(tmp_path):
    options = [option if option != "active" else "passive" for option in SMALL]
    found = run(
        bench.command,
        "secagg",
        *options,
        "--dropout-phase",
        "consistency_check",
        "--output",
        str(tmp_path),
    )

    assert isinstance(found.exception, UsageError)
    assert "no phase 'consistency_check'" in str(found.exception)


def test_there_is_no_cost_model_of_it(tmp_path):
    found = run(
        predict.command,
        "secagg",
        "--devices",
        "7",
        "--security",
        "active",
        "--calibration",
        str(tmp_path / "none.json"),
    )

    assert isinstance(found.exception, UsageError)
