import json

import pytest
from calibrations import flat
from commandline import invoke

from hpcfl.costmodel import learning
from hpcfl.errors import HpcflError


@pytest.fixture
def calibration(tmp_path):
    path = tmp_path / "calibration.json"
    flat().save(path)
    return path


def predict(*arguments):
    return invoke("predict", *arguments)


def test_one_round_is_shown_phase_by_phase(calibration):
    found = predict("sparse", "--calibration", calibration)

    assert found.exit_code == 0, found.output
    assert "sparse, N = 100, d = 165000: predicted, not run" in found.stdout
    assert "masked_input" in found.stdout
    assert "CPU in a round: device" in found.stdout
    assert max(map(len, found.stdout.splitlines())) < 120


def test_several_sizes_are_shown_side_by_side(calibration):
    sizes = ("--devices", "10,20", "--dim", "100,1000")
    found = predict("secagg", *sizes, "--calibration", calibration)

    assert found.stdout.count("secagg") == 4


def test_json_holds_every_phase(calibration):
    found = predict("cohort", "--json", "--calibration", calibration)
    (one,) = json.loads(found.stdout)["predictions"]

    assert one["phases"][0]["name"] == "model"
    assert one["bytes_up"] == pytest.approx(sum(p["bytes_up"] for p in one["phases"]))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nothing"], "there is no protocol 'nothing'"),
        (["secagg", "--dropout-phase", "unmask"], "leave out --dropout-model and --dropout-phase"),
        (["secagg", "--upload", "reduce"], "leave out --upload"),
        (["sparse", "--sampler", "dense"], "no cost model of --sampler dense"),
        (["secagg", "--security", "active"], "there is no cost model of --security active"),
        (["secagg", "--ranks", "1", "--network-gbps", "1"], "--ranks is 1"),
        (["cohort", "--devices", "10", "--alpha", "0.1"], "hides nobody"),
    ],
)
def test_what_cannot_be_predicted_is_refused(calibration, arguments, sentence):
    found = predict(*arguments, "--calibration", calibration)

    assert isinstance(found.exception, HpcflError), found.output
    assert sentence in str(found.exception)


def test_without_a_calibration_its_command_is_named(tmp_path):
    found = predict("secagg", "--calibration", tmp_path / "none.json")

    assert "'hpcfl calibrate' makes one" in str(found.exception)


def test_a_calibration_that_could_not_be_kept_is_not_made(tmp_path, monkeypatch):
    monkeypatch.setattr(
        learning, "played", lambda name: pytest.fail("it was measured all the same")
    )
    (tmp_path / "file").write_text("")
    found = invoke("calibrate", "--output", tmp_path / "file" / "c.json")

    assert isinstance(found.exception, HpcflError)
    assert "cannot write" in str(found.exception)


@pytest.mark.parametrize(("error", "warned"), [(0.3, True), (0.02, False)])
def test_a_calibration_that_explains_its_rounds_badly_is_warned_of(
    tmp_path, monkeypatch, error, warned
):
    """It is kept all the same."""
    monkeypatch.setattr(learning, "played", lambda name: iter([None, None]))
    monkeypatch.setattr(learning, "fitted", lambda rounds: ({"device": {"once": 1.0}}, error))
    path = tmp_path / "c.json"
    found = invoke("calibrate", "secagg", "--output", path)

    assert found.exit_code == 0, found.output
    assert ("warning: rounds of secagg took 30%" in found.stderr) == warned
    assert json.loads(path.read_text())["errors"] == {"secagg": error}
