from pathlib import Path

import golden
import h5py
import numpy as np
import pytest
from run_files import assert_holds

from hpcfl.results import load
from hpcfl.results.schema import SCHEMA

GOLDEN = sorted(Path(__file__).parent.glob("golden-*.h5"))


def layout(path):
    """Return type, axes and unit of all datasets, and type of all attributes that have no text."""
    found = {}

    def visit(name, item):
        if isinstance(item, h5py.Dataset):
            axes = [dimension.label for dimension in item.dims]
            found[name] = (item.dtype.str, item.shape, axes, item.attrs.get("unit"))
        for key, value in item.attrs.items():
            found[f"{name}@{key}"] = type(value).__name__

    with h5py.File(path) as file:
        visit("", file)
        file.visititems(visit)
    return found


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_file_of_an_older_release_is_read(path):
    run = load(path)

    # What golden.py writes; only the planned rounds that were played are in the file.
    assert (run.protocol, run.status, run.devices, run.dim) == ("secagg", "complete", 3, 7)
    assert run.phases == list(golden.PHASES)
    assert_holds(run, [golden.record(index) for index in range(golden.ROUNDS)])
    assert run.training["accuracy"].tolist() == [0.25, 0.75]
    assert run.training["epsilon_proven"].tolist() == [1.5, np.inf]
    assert run.partition.tolist() == [[1, 2], [3, 4], [5, 6]]
    options = {"dim": 7, "alpha": 0.1, "preset": None, "convex": True, "promises": ["nothing"]}
    assert run.config == options
    assert run.environment["stop_reason"] == "max_seconds"
    assert run.environment["after_load_1min"] == 1.25


def test_files_of_this_schema_are_still_written_so(tmp_path):
    """A changed layout needs a new version of the schema, and a golden file of it."""
    golden.write(tmp_path / "new.h5")
    known = layout(next(path for path in GOLDEN if SCHEMA.replace("/", "-") in path.stem))
    written = layout(tmp_path / "new.h5")

    # What was added since, readers of this schema do without; nothing writes device_loss now.
    added = {name for name in written.keys() - known.keys() if "promise_failure" in name}
    gone = {name for name in known if "device_loss" in name}
    assert {name: written[name] for name in written.keys() - added} == {
        name: known[name] for name in known.keys() - gone
    }
