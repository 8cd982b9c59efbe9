"""CPU times of the study as another machine has them, beside the kept ones.

    python -m papers.study.again

Two machines differ in speed, so what is compared is a protocol's CPU time over that of `secagg`
with the same devices, length and dropouts, of all settings that both have measured.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from papers.artefact import key
from papers.study import costs
from papers.study.found import spread

KEPT = Path(__file__).parents[2] / "results" / "reproduction"


def ratios(folder: Path, name: str) -> dict[str, float]:
    """Return the CPU time of every measured setting over that of `secagg`, by its key."""
    found = {
        key(entry["setting"]): entry
        for entry in json.loads((folder / "study.json").read_text())["results"]
        if {"protocol", *costs.BASE} <= entry["setting"].keys()
        and entry["found"]["state"] == costs.MEASURED
    }
    ratio = {}
    for text, entry in found.items():
        setting = entry["setting"]
        beside = key({"protocol": "secagg", **{size: setting[size] for size in costs.BASE}})
        # `fedavg` masks nothing: what it takes are microseconds around a round.
        if beside in found and text != beside and setting["protocol"] != "fedavg":
            seconds, others = (spread(found[one]["found"][name]).value for one in (text, beside))
            ratio[text] = seconds / others
    return ratio


def compared(role: str) -> str:
    """Return by what factors the ratios of the other machine differ from the kept ones."""
    kept, again = (ratios(folder, f"{role}_cpu_seconds") for folder in (KEPT, KEPT / "again"))
    factors = np.array([again[one] / kept[one] for one in again if one in kept])
    apart = np.abs(np.log(factors))
    near, far = (np.mean(apart <= np.log(factor)) for factor in (1.25, 1.5))
    return (
        f"{role}: in the median over {len(factors)} settings, the ratio is "
        f"{np.median(factors):.2f} times that of the first machine; {near:.0%} are within a factor "
        f"of 1.25, and {far:.0%} within 1.5"
    )


if __name__ == "__main__":
    print(compared("device"), compared("server"), sep="\n")
