import json

import pytest
from launcher import hpcfl, needs_mpirun

pytestmark = [needs_mpirun, pytest.mark.full]


def test_ranks_are_calibrated_and_predicted(tmp_path):
    path = tmp_path / "calibration.json"
    job = hpcfl(3, "calibrate", "--output", path)
    assert job.returncode == 0, job.stderr

    content = json.loads(path.read_text())
    options = ("--ranks", 3, "--calibration", path, "--json")
    predicted = hpcfl(1, "predict", "secagg", *options)

    assert content["ranks"] == 3
    assert set(content["links"]) == {"broadcast", "gather", "route"}
    assert all(alpha > 0 and min(betas) >= 0 for alpha, *betas in content["links"].values())
    (one,) = json.loads(predicted.stdout)["predictions"]
    assert one["total"]["measured_seconds"] > 0
