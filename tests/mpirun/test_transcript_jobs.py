import json

import numpy as np
import pytest
from launcher import bench, hpcfl, needs_mpirun

pytestmark = needs_mpirun

ROUND = ("--devices", 9, "--dim", 700, "--rounds", 1, "--warmup", 1, "--alpha", 0.4)
KEEP = ("--gamma", 0.34, "--insecure-seed", 5, "--keep-transcript")


@pytest.mark.parametrize("protocol", ["secagg", "sparse", "cohort"])
def test_a_round_over_mpi_is_kept_as_one_in_a_process(tmp_path, protocol):
    files = []
    for ranks in (1, 4):
        files.append(tmp_path / f"{ranks}.npz")
        bench(ranks, tmp_path, protocol, *ROUND, *KEEP, files[-1])
    one, many = (np.load(path) for path in files)

    assert one.files == many.files
    for name in set(one.files) - {"header"}:
        np.testing.assert_array_equal(one[name], many[name], err_msg=name)
    headers = [json.loads(file["header"].tobytes()) for file in (one, many)]
    for header in headers:
        assert header["config"].pop("keep_transcript").endswith(".npz")
    assert headers[0] == headers[1]

    job = hpcfl(1, "attack", "components", files[1], "--json")
    found = json.loads(job.stdout)
    assert (found["colluding"], found["dropped"], found["round_index"]) == (3, 2, 1)
    assert found["agrees"]
    assert (found["beyond"] > 0) == (protocol == "sparse")


def test_refusals_are_told_once(tmp_path):
    path = tmp_path / "round.npz"
    job = hpcfl(3, "bench", "sparse", *ROUND, "--keep-transcript", path)

    assert job.returncode == 2
    assert job.stderr.count("together with --insecure-seed") == 1
    assert not path.exists()
