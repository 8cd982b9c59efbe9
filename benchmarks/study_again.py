"""CPU times of the study as another folder has them, beside the kept ones.

    python benchmarks/study_again.py results/reproduction results/reproduction/again

Two machines differ in speed, so what is compared is a protocol's CPU time over that of `secagg`
with the same devices, length and dropouts, of all settings that both have measured. Prints by what
factor that ratio differs, over the settings, and where it differs most. Takes a second.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.reproduce.artefact import Setting, key
from hpcfl.reproduce.study import costs
from hpcfl.reproduce.study.found import spread

MOST_SHOWN = 8


def ratios(folder: Path, name: str) -> dict[str, tuple[Setting, float]]:
    """Return every measured setting, by its key, and its CPU time over that of `secagg`."""
    found: dict[str, tuple[Setting, dict[str, Any]]] = {}
    for entry in json.loads((folder / "study.json").read_text())["results"]:
        setting = entry["setting"]
        rounds = {"protocol", *costs.BASE} <= setting.keys()
        if rounds and entry["found"]["state"] == costs.MEASURED:
            found[key(setting)] = setting, entry["found"]
    ratio = {}
    for text, (setting, values) in found.items():
        beside = key({"protocol": "secagg", **{size: setting[size] for size in costs.BASE}})
        # `fedavg` masks nothing: what it takes are microseconds around a round.
        if beside in found and text != beside and setting["protocol"] != "fedavg":
            ratio[text] = setting, spread(values[name]).value / spread(found[beside][1][name]).value
    return ratio


def main() -> None:
    """Print by what factors the second folder's ratios differ from those of the first."""
    kept, again = (Path(folder) for folder in sys.argv[1:])
    for name in ("device_cpu_seconds", "server_cpu_seconds"):
        before, after = ratios(kept, name), ratios(again, name)
        both = [text for text in after if text in before]
        factors = np.array([after[text][1] / before[text][1] for text in both])
        apart = np.abs(np.log(factors))
        within = ", ".join(
            f"{np.mean(apart <= np.log(factor)):.0%} within a factor of {factor:g}"
            for factor in (1.25, 1.5)
        )
        print(
            f"{name} over that of secagg, {len(both)} settings: the median is "
            f"{np.median(factors):.2f} times the kept one, {within}"
        )
        for number in np.argsort(-apart)[:MOST_SHOWN]:
            print(f"  {factors[number]:.2f} times: {after[both[number]][0]}")


if __name__ == "__main__":
    main()
