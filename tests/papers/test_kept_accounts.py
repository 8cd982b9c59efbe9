"""Kept results of private training were charged as today's accounts charge."""

import os
from pathlib import Path

import numpy as np
import pytest

from hpcfl.learning import datasets, partition
from hpcfl.training import defaults
from hpcfl.training.build import make_algorithm, make_federation, with_precision
from papers import ARTEFACTS, queries, zcdp
from papers.artefact import Store

KEPT = Path(__file__).parent.parent.parent / "results" / "reproduction"
DIMS = {"adult-lr": 218, "adult-nn": 9_122, "softmax": 7_840}


def sizes_of(options, devices, data_dir):
    """Return the number of samples of every device."""
    data = datasets.load(options["dataset"], data_dir)
    shares = partition.make(options.get("partition", "iid"), data, devices, 0)
    shares = partition.thin(shares, options.get("data_fraction", 1.0), 0)
    return np.array([len(share) for share in shares], np.int64)


def private_settings():
    """Return options, algorithm and findings of every kept setting with an epsilon to reach."""
    settings = {}
    for artefact in ARTEFACTS.values():
        paper = artefact.id.partition("/")[0]
        if paper not in ("zcdp", "queries"):
            continue
        found = Store(KEPT, paper).results(artefact)
        for one in found[1] if found is not None else ():
            if "epsilon" not in one.setting or "epsilon_proven" not in one.found:
                continue
            if paper == "zcdp":
                options, algorithm = (
                    zcdp._options(one.setting, one.found["rate"]),
                    one.setting["algorithm"],
                )
            else:
                options, algorithm = queries._options(one.setting), "fedsgd-dpc"
            settings[str(one.setting)] = options, algorithm, one.found
    return settings


@pytest.mark.full
def test_kept_epsilons_are_those_of_the_accounts():
    data_dir = os.environ.get("HPCFL_DATA")
    if not data_dir:
        pytest.skip("HPCFL_DATA does not name a folder of data sets")
    settings = private_settings()
    assert len(settings) > 50
    sizes = {}
    stale = []
    for name, (given, kind, found) in settings.items():
        devices = given["devices"]
        task = given["dataset"], given.get("data_fraction"), devices
        if task not in sizes:
            sizes[task] = sizes_of(given, devices, Path(data_dir))
        dim = DIMS[given["model"]]
        asked = defaults.asked({"algorithm": kind, **given})
        options = with_precision(asked, sizes[task], dim)
        algorithm = make_algorithm(options, make_federation(options, sizes[task], dim))
        spent = algorithm.spent(options.rounds)
        for side in ("paper", "proven"):
            if found[f"epsilon_{side}"] != pytest.approx(getattr(spent, side), rel=2e-3):
                stale.append(f"{name}: {side}")

    assert stale == []
