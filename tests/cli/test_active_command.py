"""`--security active` on the command line."""

import json
from pathlib import Path

import pytest
from commandline import hpcfl, refusal

from hpcfl.results import load

SMALL = ("--devices", 7, "--dim", 40, "--rounds", 2, "--warmup", 1)


@pytest.mark.parametrize("protocol", ["secagg", "sparse"])
@pytest.mark.parametrize("phase", ["consistency_check", "unmask"])
def test_devices_may_drop_out_of_the_check(tmp_path, protocol, phase):
    found = hpcfl(
        *("bench", protocol, *SMALL, "--security", "active", "--output", tmp_path, "--json"),
        *("--dropout-phase", phase, *(("--alpha", 0.5) if protocol == "sparse" else ())),
    )

    assert found.returncode == 0, found.stderr
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
    ("arguments", "sentence"),
    [
        (["secagg-graph"], "secagg-graph cannot be run with --security active"),
        (["cohort"], "cohort cannot be run with --security active"),
        (["secagg", "--degree", "4"], "every device is linked with all others"),
        (["secagg", "--dropout", "0.4"], "dropout is 0.4; with --security active"),
        (["secagg", "--gamma", "0.4"], "gamma is 0.4; with --security active"),
        # The passive variant has no such phase.
        (
            ["secagg", "--security", "passive", "--dropout-phase", "consistency_check"],
            "secagg: there is no phase 'consistency_check'",
        ),
    ],
)
def test_what_is_not_safe_is_refused(tmp_path, arguments, sentence):
    security = () if "--security" in arguments else ("--security", "active")

    assert sentence in refusal("bench", *arguments, *security, *SMALL, "--output", tmp_path)
    assert list(tmp_path.iterdir()) == []
