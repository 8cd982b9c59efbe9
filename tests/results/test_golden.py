"""Files that older releases have left behind: they are read, and never written again."""

from pathlib import Path

import numpy as np
import pytest
from run_files import assert_holds

from hpcfl.results import load
from hpcfl.results.record import RoundRecord

GOLDEN = sorted(Path(__file__).parent.glob("golden-*.h5"))


def record(index):
    """Return round 0 or 1 of three devices, all of whose figures are different numbers."""
    traffic = np.arange(6, dtype=np.uint64).reshape(2, 3) + np.uint64(100 * index)
    seconds = np.arange(8).reshape(2, 4) / 8 + index
    return RoundRecord(
        bytes_up=traffic + np.uint64(2**40),
        bytes_down=traffic + np.uint64(20),
        messages_up=traffic + np.uint64(30),
        messages_down=traffic + np.uint64(40),
        wall_seconds=seconds + 10,
        cpu_seconds=seconds + 20,
        round_seconds=0.5 + index,
        survived=np.array([True, index == 0, False]),
        validated=True,
        warmup=index == 0,
    )


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_file_of_an_older_release_is_read(path):
    run = load(path)

    # Three rounds were planned; those that were played are in the file.
    assert (run.protocol, run.status, run.devices, run.dim) == ("secagg", "complete", 3, 7)
    assert run.phases == ["model", "masked_input"]
    assert_holds(run, [record(index) for index in range(2)])
    assert run.training["accuracy"].tolist() == [0.25, 0.75]
    assert run.training["epsilon_proven"].tolist() == [1.5, np.inf]
    assert run.partition.tolist() == [[1, 2], [3, 4], [5, 6]]
    options = {"dim": 7, "alpha": 0.1, "preset": None, "convex": True, "promises": ["nothing"]}
    assert run.config == options
    assert run.environment["stop_reason"] == "max_seconds"
    assert run.environment["after_load_1min"] == 1.25
