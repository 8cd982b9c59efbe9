import json

import numpy as np
import pytest
from launcher import assert_refused, hpcfl, needs_mpirun

pytestmark = needs_mpirun

pytest.importorskip("torch")

ESTIMATE = (
    *("optimize", "fedsgd-dpc", "--dataset", "digits", "--estimate-steps", 4),
    *("--partition", "shards", "--epsilon", 2),
)


def optimize(ranks, *options):
    job = hpcfl(ranks, *ESTIMATE, *options, "--json")
    assert job.returncode == 0, job.stderr
    assert job.stderr.count("not differentially private") == 1
    return json.loads(job.stdout)


def test_devices_on_several_ranks_give_the_estimate_of_one_process():
    # With four ranks, one has no device to hold.
    found = [optimize(ranks, "--devices", 2) for ranks in (1, 2, 4)]

    for other in found[1:]:
        assert other["estimate"]["sizes"] == found[0]["estimate"]["sizes"]
        for name, values in found[0]["estimate"]["devices"].items():
            np.testing.assert_allclose(
                other["estimate"]["devices"][name], values, rtol=1e-4, err_msg=name
            )
        assert other["joint"]["bound"] == pytest.approx(found[0]["joint"]["bound"], rel=1e-3)


def test_by_default_every_rank_but_the_server_is_a_device():
    assert optimize(3)["constants"]["devices"] == 2


@pytest.mark.parametrize(
    ("options", "status", "sentence"),
    [
        (["--model", "no-such-model"], 2, "there is no model 'no-such-model'"),
        (["--per-round", "3"], 2, "--per-round is 3, and there are 2 devices"),
        (["--learning-rate", "1e38", "--model", "2nn"], 1, "diverged"),
    ],
)
def test_what_fails_is_said_once(options, status, sentence):
    assert_refused(hpcfl(3, *ESTIMATE, *options), sentence, status)


def test_without_data_one_rank_answers():
    job = hpcfl(3, "optimize", "fedsgd-dpc", "--devices", 4)

    assert_refused(job, "the bound needs --dim")
