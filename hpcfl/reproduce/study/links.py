"""Rounds over real, shaped links, beside what the link model makes of the same rounds.

Only a few devices: all of them compute on the cores of one machine, and where they are many, or the
links fast, a round lasts as long as that takes.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

from hpcfl.errors import HpcflError
from hpcfl.reproduce.artefact import Context, Setting
from hpcfl.reproduce.study import costs
from hpcfl.results.reader import load

RATES = (1, 10, 100)
SIZES: dict[str, Any] = {"devices": 10, "dim": 165_000, "dropout": 0.0}
# A cohort of two of ten devices.
ALPHA = 0.2
WAYS = ("secagg", "sparse", "cohort", "common", "lightsecagg", "committee", "assisted")


def settings() -> list[Setting]:
    """Return the rounds, the slow links first."""
    return [
        {"rate_mbps": rate, **one, **({"alpha": ALPHA} if "alpha" in one else {})}
        for rate, one in product(RATES, costs.settings_of(SIZES, among=WAYS))
    ]


def run(setting: Setting, context: Context) -> Mapping[str, Any]:
    """Play rounds in a lab of shaped links, as `hpcfl netlab` does: Linux only, as root."""
    if context.world.size > 1:
        raise HpcflError(
            "rounds over shaped links start ranks of their own: run this part without mpirun"
        )
    given = dict(setting)
    rate, protocol = given.pop("rate_mbps"), given.pop("protocol")
    given |= {"rounds": costs.ROUNDS, "warmup": 1}
    hosts = given.pop("devices")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.h5"
        words = [f"--{name}={value}" for name, value in given.items()]
        lab = ["netlab", f"--hosts={hosts}", f"--rate={rate}mbit"]
        command = [sys.executable, "-m", "hpcfl", *lab, "--", "bench", protocol, *words]
        done = subprocess.run(
            [*command, f"--output={file}"], capture_output=True, text=True, check=False
        )
        if done.returncode == 2:
            why = done.stderr.strip().splitlines()[-1].removeprefix("Error: ")
            return {"state": costs.REFUSED, "why": why}
        if done.returncode:
            raise HpcflError(f"{' '.join(command[2:])} failed: {done.stderr.strip()[-300:]}")
        run = load(file)
    kept = run.measured
    modelled = run.modelled_seconds(run.link()).sum(axis=1)
    return {
        "state": costs.MEASURED,
        "round_seconds": costs.spread_of(run.round_seconds[kept]),
        "modelled_seconds": costs.spread_of(modelled),
    }
