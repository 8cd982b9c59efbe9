from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from launcher import assert_refused, bench, hpcfl, needs_mpirun

from hpcfl.results import load

pytestmark = needs_mpirun

SMALL = ("prf", "--dim", 2000, "--rounds", 2, "--warmup", 1)


def test_virtual_devices_enrol_and_are_summed_as_one_device_a_rank(tmp_path: Path) -> None:
    runs, sums = [], []
    for ranks in (2, 3, 6):
        target = tmp_path / f"{ranks}.npy"
        folder = tmp_path / str(ranks)
        (summary,) = bench(ranks, folder, *SMALL, "--devices", 5, "--save-aggregate", target)
        assert (summary["rounds_validated"], summary["rounds_total"]) == (3, 3)
        assert summary["theta"] == 0
        runs.append(load(Path(summary["path"])))
        sums.append(np.load(target))

    for run in runs:
        assert run.bytes_up[0, 0].tolist() == [16 + 32] * 5
        assert run.bytes_up[1:, 0].sum() == 0
        for name in ("bytes_up", "bytes_down", "messages_up", "messages_down", "survived"):
            np.testing.assert_array_equal(getattr(run, name), getattr(runs[0], name))
    for other in sums:
        np.testing.assert_array_equal(other, sums[0])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--dropout", "0.3"], "prf has no dropouts, but the dropout rate is 0.3"),
        (["--degree", "4"], "--degree 4 has no effect"),
        (["--devices", "1"], "prf needs at least 2 devices, but there are 1"),
    ],
)
def test_wrong_use_is_refused_once_with_a_sentence(options: list[str], sentence: str) -> None:
    assert_refused(hpcfl(3, "bench", "prf", *options), sentence)


def test_a_missing_device_ends_the_job_once_with_a_sentence(tmp_path: Path) -> None:
    deserting = ("faulty_protocols:Deserting", *SMALL[1:], "--devices", 4, "--dropout", 0.3)
    job = hpcfl(3, "bench", *deserting, "--output", tmp_path)

    assert_refused(job, "round 0 cannot end: prf has no way to remove the masks", status=1)
