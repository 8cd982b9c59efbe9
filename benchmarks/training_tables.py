"""The tables of papers/fewer-coordinates.md: rounds of training where devices send less.

    python benchmarks/training_tables.py tenth
    python benchmarks/training_tables.py hundredth

They are made from the runs that are kept in results/reproduction: those of
benchmarks/common_training.py, and those of the study (`python -m papers study`).
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from common_training import SEEDS, Outcome, federation, read_known
from hpcfl.report.formats import counted
from protocols import markdown

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "results" / "reproduction"
STUDY = KEPT / "study.json"
MODELS = {"2nn": "2NN", "mnist-cnn": "CNN"}
PARTITIONS = {"iid": "IID", "shards": "300 shards"}

Runs = Mapping[int, Outcome]  # by seed


@dataclass(frozen=True)
class Row:
    """A federation, the accuracy to which it is trained, and the file of its runs."""

    model: str
    partition: str
    devices: int
    accuracy: float
    file: str

    @property
    def cell(self) -> str:
        """How the names of its cells begin."""
        return federation(self.model, self.partition, self.devices)

    def __str__(self) -> str:
        where = f"N = {self.devices}, {PARTITIONS[self.partition]}"
        return f"{MODELS[self.model]}, {where}, to {100 * self.accuracy:.0f} %"


def rows_of(model: str, iid: tuple[float, str], shards: tuple[float, str]) -> list[Row]:
    """Return the rows of a model: 25 and 100 devices, and both partitions.

    Each partition has the accuracy to which it is trained, and the file of its runs.
    """
    ways = {"iid": iid, "shards": shards}
    return [Row(model, way, devices, *to) for devices in (25, 100) for way, to in ways.items()]


CNN = rows_of("mnist-cnn", (0.95, "cnn"), (0.90, "cnn-shards"))
TENTHS = [*rows_of("2nn", (0.97, "common"), (0.94, "shards")), *CNN]
HUNDREDTHS = [*rows_of("2nn", (0.95, "few"), (0.95, "few")), *CNN]


def kept(name: str, accuracy: float) -> Mapping[str, Runs]:
    """Return the runs of a file, by cell."""
    cells: dict[str, dict[int, Outcome]] = defaultdict(dict)
    for (cell, seed), one in read_known(KEPT / f"{name}-training.csv", accuracy).items():
        cells[cell][seed] = one
    return cells


def study() -> Mapping[str, Runs]:
    """Return the study's runs, by the names that cells have here."""
    cells: dict[str, dict[int, Outcome]] = defaultdict(dict)
    for entry in json.loads(STUDY.read_text())["results"]:
        setting, found = entry["setting"], entry["found"]
        if "partition" not in setting:
            continue
        way = "whole" if setting["protocol"] == "secagg" else f"{setting['protocol']}-0.1"
        cell = f"{federation(setting['model'], setting['partition'], 25)}-{way}"
        rounds = found["rounds"] if found["reached"] else math.inf
        best = max(found["accuracy"])
        cells[cell][setting["seed"]] = Outcome(rounds, setting["most_rounds"], best)
    return cells


def mean(runs: Runs) -> float:
    """Return the mean rounds to the accuracy."""
    return sum(one.rounds for one in runs.values()) / len(runs)


def more(runs: Runs, whole: Runs) -> str:
    """Return how many rounds more than whole vectors, of the same seeds, runs take."""
    seeds = sorted(runs.keys() & whole.keys())
    if not seeds:
        return "-"
    told = "" if len(seeds) == len(SEEDS) else f", {counted(len(seeds), 'seed')}"
    some = [runs[seed] for seed in seeds]
    if not all(math.isfinite(one.rounds) for one in some):
        return never(some) + told
    if len(seeds) == 1:
        return f"{some[0].rounds - whole[seeds[0]].rounds:.1f}{told}"
    differences = np.array([runs[seed].rounds - whole[seed].rounds for seed in seeds])
    ends = ""
    if np.ptp(differences) > 0:
        low, high = stats.ttest_1samp(differences, 0.0).confidence_interval()
        ends = f" [{low:.1f}, {high:.1f}]"
    return f"{differences.mean():.1f}{ends}{told}".replace("-0.0", "0.0")


def never(runs: list[Outcome]) -> str:
    """Return how many of some runs did not get to the accuracy, and how far they got."""
    short = [one for one in runs if not math.isfinite(one.rounds)]
    who = "" if len(short) == len(runs) else f"{len(short)} of {len(runs)}: "
    best = [100 * one.best for one in short]
    rounds = max(one.most_rounds for one in short)
    return f"{who}{min(best):.1f} to {max(best):.1f} % in {rounds} rounds"


def tenth() -> str:
    """Return the table of a tenth of the coordinates."""
    of_study = study()
    rows = []
    for row in TENTHS:
        runs = kept(row.file, row.accuracy)
        # Runs of the study are compared with whole vectors of the study.
        beside = of_study if f"{row.cell}-whole" in of_study else runs
        whole = beside[f"{row.cell}-whole"]
        ways = [
            more(beside[f"{row.cell}-{way}-0.1"], whole) for way in ("sparse", "cohort", "common")
        ]
        feedback = more(runs[f"{row.cell}-common-0.1-feedback"], runs[f"{row.cell}-whole"])
        rows.append([str(row), f"{mean(whole):.1f} rounds", *ways, feedback])
    ways = ["`sparse`", "`cohort`", "`common`", "`common`, error feedback"]
    return markdown(["alpha = 0.1", "whole vectors", *ways], rows)


def hundredth() -> str:
    """Return the table of a hundredth of the coordinates."""
    rows = []
    for row in HUNDREDTHS:
        runs = kept(row.file, row.accuracy)
        whole, sparse, common, feedback = (
            runs[f"{row.cell}-{way}"]
            for way in ("whole", "sparse-0.01", "common-0.01-rate-0.3", "common-0.01-feedback")
        )
        ratio = f"{mean(common) / mean(whole):.1f}" if common.keys() == whole.keys() else "-"
        told = [more(sparse, whole), more(common, whole), ratio, more(feedback, whole)]
        rows.append([str(row), f"{mean(whole):.1f} rounds", *told])
    slowly = ["`common`, learning rate of the server 0.3", "its rounds over those of whole vectors"]
    ways = ["`sparse`", *slowly, "`common`, error feedback, learning rate 1"]
    return markdown(["alpha = 0.01", "whole vectors", *ways], rows)


TABLES = {"tenth": tenth, "hundredth": hundredth}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", choices=TABLES)
    print(TABLES[parser.parse_args().table]())


if __name__ == "__main__":
    main()
