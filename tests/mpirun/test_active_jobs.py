"""Devices of several ranks know each other's registered keys, and agree on who survived."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from launcher import bench, needs_mpirun

from hpcfl.results import load

pytestmark = needs_mpirun

SMALL = ("secagg", "--dim", 500, "--rounds", 2, "--warmup", 0, "--security", "active")


def test_ranks_agree_as_one_process_does(tmp_path: Path) -> None:
    runs, sums = [], []
    for ranks in (2, 4, 8):
        target = tmp_path / f"{ranks}.npy"
        options = ("--devices", 7, "--save-aggregate", target)
        (summary,) = bench(ranks, tmp_path / str(ranks), *SMALL, *options)
        assert (summary["rounds_validated"], summary["rounds_total"]) == (2, 2)
        runs.append(load(Path(summary["path"])))
        sums.append(np.load(target))

    check = list(runs[0].phases).index("consistency_check")
    assert (runs[0].bytes_up[:, check] > 0).sum(axis=1).tolist() == [5, 5]
    for run in runs:
        for name in ("bytes_up", "bytes_down", "messages_up", "messages_down", "survived"):
            np.testing.assert_array_equal(getattr(run, name), getattr(runs[0], name))
    for other in sums:
        np.testing.assert_array_equal(other, sums[0])
