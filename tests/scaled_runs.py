"""Runs on growing numbers of ranks, with seconds chosen by a test."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from page_runs import write_run

from hpcfl.results import load

# Factors with the median 1, for enough rounds for an interval of 97.5 %.
SPREAD = np.array([0.8, 0.9, 0.95, 1.0, 1.0, 1.0, 1.05, 1.1, 1.2])
_NUMBERS = itertools.count()


def scaled(
    folder,
    ranks,
    seconds,
    *,
    protocol="secagg",
    devices=16,
    dim=1000,
    hosts=(),
    facts=None,
    cores=None,
    spread=SPREAD,
    **config,
):
    """Return a run on `ranks` ranks, by default with as many cores, with this median round time."""
    name = f"{protocol}-{ranks}-{next(_NUMBERS)}"
    cores = ranks if cores is None else cores
    environment = {
        "transport": "mpi" if ranks > 1 else "loopback",
        "ranks": ranks,
        "host_ranks": list(hosts) or [ranks],
        "oversubscription_ratio": ranks / cores,
        "cpu_model": "abacus",
    }
    # Files of several server ranks have data of every rank, which these files lack.
    later = {name: config.pop(name) for name in ("server_ranks",) if name in config}
    path = write_run(
        *(folder / f"{name}.h5", protocol, devices, dim),
        rounds=len(spread),
        facts=environment | (facts or {}),
        **config,
    )
    run = load(path)
    asked = {"protocol": protocol, "devices": [devices], "dim": dim, **config, **later}
    return replace(run, round_seconds=seconds * spread, config=run.config | later, asked=asked)
