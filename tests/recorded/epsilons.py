"""Epsilons of 40 settings, as they were printed: the same from version to version.

    python tests/recorded/epsilons.py      # writes epsilons.json again

Only a change that is meant to change an account writes it again, and its message says why.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

from click.testing import CliRunner

from hpcfl.cli import group

FILE = Path(__file__).with_name("epsilons.json")
WHICH = ("paper", "proven")
ROUNDS = "--rounds 73 --devices 37 --per-round 5"
SETTINGS = (
    *(
        f"dp-fedavg --sigma {sigma} --sampling {sampling} --rounds {rounds} --devices {devices} "
        f"--per-round {each}"
        for sampling in ("poisson", "exact")
        for sigma in ("0.7", "1.1", "3.3")
        for rounds, devices, each in ((7, 37, 3), (73, 333, 20))
    ),
    f"dp-fedavg --sigma 1.1 --delta 1e-7 --clip-norm 0.5 {ROUNDS}",
    *(
        f"dp-fedavg --sigma 1.32 {ROUNDS} --noise distributed --honest {honest} --unit {unit} "
        "--dim 7850"
        for honest in (1, 4)
        for unit in ("1e3", "1e6")
    ),
    *(
        f"cdp --sigma {sigma} {ROUNDS} --samples 640 --batch-size 32 --steps 10 {more}"
        for sigma in ("0.02", "0.2")
        for more in ("", "--convex", "--shuffle continuing", "--convex --shuffle continuing")
    ),
    f"cdp --sigma 0.2 {ROUNDS} --samples 14 --batch-size 28 --steps 3",
    *(
        f"dp-dsgd --sigma {sigma} {ROUNDS} --samples 640 --batch-size 32"
        for sigma in ("0.02", "0.2")
    ),
    f"dp-dsgd --sigma 0.2 {ROUNDS} --samples 640 --batch-size 32 --colluding 2",
    f"locks --variant local --sigma 10 {ROUNDS} --first-stage 12 --replies 20",
    f"locks --sigma 2 {ROUNDS} --first-stage 12",
    f"locks --sigma 2 --sigma-norms 5 {ROUNDS} --first-stage 12",
    *(
        f"fedsgd-dpc --sigma 0.05 {ROUNDS} --samples 600 {more}"
        for more in (
            "",
            "--delta 1e-5",
            "--mechanism gaussian",
            "--mechanism gaussian --fraction 0.1",
            "--mechanism gaussian --fraction 0.1 --record-sampling fixed",
        )
    ),
    f"fedsgd-dpc --sigma 0.05 {ROUNDS} --samples 600 --replies 20",
    f"fedsgd-dpc --sigma 0.5 {ROUNDS} --samples 14 --mechanism gaussian --fraction 2",
)


def printed(setting: str) -> dict[str, float]:
    """Return the epsilons of a setting, the paper's and the one that is proven."""
    ran = CliRunner().invoke(group, ["privacy", "epsilon", *setting.split(), "--json"])
    assert ran.exit_code == 0, (setting, ran.output, ran.exception)
    found = json.loads(ran.output)
    return {which: float(f"{found[which]['epsilon'] or math.inf:.6g}") for which in WHICH}


if __name__ == "__main__":
    FILE.write_text(json.dumps({setting: printed(setting) for setting in SETTINGS}, indent=1))
