"""The study's figures are those of rounds that were run, and its sentences those of its figures."""

import json
from pathlib import Path

import pytest
from calibrations import flat

from hpcfl.benchmark import experiment
from hpcfl.costmodel import calibration
from hpcfl.errors import UsageError
from papers import pages
from papers.artefact import Result, Store
from papers.study import artefacts, costs, findings
from papers.study.found import Costs, Estimate

pytestmark = pytest.mark.full

KEPT = Path(__file__).parents[2] / "results" / "reproduction"
KNOWN = flat()
COSTED = [one for one in artefacts.ARTEFACTS if one.run is costs.run]
TINY = {"devices": 6, "dim": 40, "dropout": 0.2}


@pytest.fixture(autouse=True)
def _calibrated(monkeypatch):
    monkeypatch.setattr(calibration, "load", lambda path: KNOWN)


def test_settings_give_only_options_that_protocols_have_a_use_for_and_most_can_be_prepared():
    refused = 0
    settings = [one for artefact in COSTED for one in artefact.scales["paper"].settings]
    for setting in settings:
        asked = experiment.asked(costs.options_of(setting)[0])
        assert asked.devices == (setting["devices"],)
        try:
            experiment.Experiment.prepare(asked, asked.devices[0])
        except UsageError:
            refused += 1

    assert refused < len(settings) / 20


def test_a_setting_is_measured_where_that_is_short_and_predicted_otherwise(monkeypatch):
    setting = {"protocol": "secagg", **TINY}
    measured = costs.run(setting, None)
    monkeypatch.setattr(costs, "MOST_SECONDS", 0.0)
    predicted = costs.run(setting, None)

    assert (measured["state"], predicted["state"]) == (costs.MEASURED, costs.PREDICTED)
    # Bytes are known beforehand.
    assert measured["bytes_up"] == predicted["bytes_up"]
    assert measured["bytes_down"] == pytest.approx(predicted["bytes_down"], rel=0.05)
    median, low, high = measured["device_cpu_seconds"]
    assert 0 < low <= median <= high
    assert len(predicted["device_cpu_seconds"]) == 1
    slow, *_, fast = (one[0] for one in measured["modelled_seconds"].values())
    assert slow > fast
    json.dumps([measured, predicted], allow_nan=False)


def test_the_parts_that_a_finding_names_suffice_for_it(tmp_path):
    """What its command runs gives the sentence, and no part is run for nothing."""
    kept = Store(KEPT, "study")
    by_name = {one.id.partition("/")[2]: one for one in artefacts.ARTEFACTS}
    told = findings.findings(pages.evidence(KEPT))

    def said_by(parts):
        store = Store(tmp_path / "-".join(parts), "study")
        for part in parts:
            for one in kept.results(by_name[part])[1]:
                store._entries[json.dumps(one.setting, sort_keys=True)] = vars(one)
        store.add({"none": 0}, {})
        return findings.findings(pages.evidence(store.path.parent))

    assert len(told) == len(findings._FINDINGS)
    for finding in told:
        assert finding in said_by(finding.parts)
        for part in finding.parts if len(finding.parts) > 1 else ():
            assert finding not in said_by([one for one in finding.parts if one != part])


def test_runs_that_did_not_reach_the_accuracy_are_no_rounds_to_it():
    (task, *_) = findings.training.TASKS
    trained = [
        Result(
            {"protocol": way, "seed": seed},
            {"rounds": 12 if way == "sparse" else 10, "reached": (way, seed) != ("sparse", 2)},
        )
        for way in findings.training.WAYS
        for seed in range(3)
    ]
    # The seed that did not get there would have made it another mean.
    trained[5].found["rounds"] = 99
    evidence = findings.Evidence(Costs([]), {one.part: trained for one in findings.training.TASKS})

    more = findings._rounds(evidence).figures

    assert more[f"{task.title}, `sparse`"] == Estimate(2.0, 2.0, 2.0)
