"""CPU times of the study on another machine, beside the stored ones.

    python -m papers.study.again

Because machines differ in speed, the ratios of a protocol's CPU time to that of `secagg` with the
same devices, length and dropouts are compared, for all settings that both machines have measured.
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
    """Return the CPU time of every measured setting over that of `secagg`, by the setting's key."""
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
        # `fedavg` masks nothing: its CPU time is microseconds of overhead.
        if beside in found and text != beside and setting["protocol"] != "fedavg":
            seconds, others = (spread(found[one]["found"][name]).value for one in (text, beside))
            ratio[text] = seconds / others
    return ratio


def compared(role: str) -> str:
    """Return in words how far the ratios of the other machine differ from the stored ones."""
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
