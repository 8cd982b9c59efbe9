"""The tables of papers/fewer-coordinates.md: rounds of training if devices send fewer coordinates.

    python benchmarks/training_tables.py tenth
    python benchmarks/training_tables.py hundredth

They are made from the runs in results/reproduction. The runs of the finished studies are lines of
CSV files (cell, seed, rounds to the accuracy, most rounds, highest accuracy). The others are those
of `python -m papers study`. The page says how to make the runs.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas
from scipy import stats

from hpcfl.report.formats import counted
from protocols import markdown

KEPT = Path(__file__).resolve().parents[1] / "results" / "reproduction"
COLUMNS = ["cell", "seed", "rounds", "most_rounds", "best"]
SEEDS = 5
MODELS = {"2nn": "2NN", "mnist-cnn": "CNN"}
PARTITIONS = {"iid": "IID", "shards": "300 shards"}


@dataclass(frozen=True)
class Row:
    """A federation, its target accuracy, and the file of its runs."""

    model: str
    partition: str
    devices: int
    accuracy: float
    file: str

    @property
    def cell(self) -> str:
        """The beginning of the names of its cells."""
        return f"{self.model}-{self.partition}-{self.devices}"

    @property
    def runs(self) -> pandas.DataFrame:
        """The runs of its file, with the cell as index."""
        return pandas.read_csv(KEPT / f"{self.file}-training.csv").set_index("cell")

    def __str__(self) -> str:
        where = f"N = {self.devices}, {PARTITIONS[self.partition]}"
        return f"{MODELS[self.model]}, {where}, to {100 * self.accuracy:.0f} %"


def rows_of(model: str, iid: tuple[float, str], shards: tuple[float, str]) -> list[Row]:
    """Return the rows of a model, for 25 and 100 devices and both partitions.

    Each partition comes with its target accuracy and the file of its runs.
    """
    ways = {"iid": iid, "shards": shards}
    return [Row(model, way, devices, *to) for devices in (25, 100) for way, to in ways.items()]


CNN = rows_of("mnist-cnn", (0.95, "cnn"), (0.90, "cnn-shards"))
TENTHS = [*rows_of("2nn", (0.97, "common"), (0.94, "shards")), *CNN]
HUNDREDTHS = [*rows_of("2nn", (0.95, "few"), (0.95, "few")), *CNN]


def study() -> pandas.DataFrame:
    """Return the study's runs, under the names of the cells in this module."""
    rows = []
    for entry in json.loads((KEPT / "study.json").read_text())["results"]:
        setting, found = entry["setting"], entry["found"]
        if "partition" in setting:
            way = "whole" if setting["protocol"] == "secagg" else f"{setting['protocol']}-0.1"
            cell = f"{setting['model']}-{setting['partition']}-25-{way}"
            rounds = found["rounds"] if found["reached"] else math.inf
            best = max(found["accuracy"])
            rows.append([cell, setting["seed"], rounds, setting["most_rounds"], best])
    return pandas.DataFrame(rows, columns=COLUMNS).set_index("cell")


def at(runs: pandas.DataFrame, cell: str) -> pandas.DataFrame:
    """Return the runs of a cell by seed; an empty frame if there are none."""
    return runs[runs.index == cell].set_index("seed").sort_index()


def more(runs: pandas.DataFrame, whole: pandas.DataFrame) -> str:
    """Return how many more rounds the runs take than whole vectors with the same seeds."""
    both = runs.merge(whole, on="seed", suffixes=("", "_whole"))
    if both.empty:
        return "-"
    told = "" if len(both) == SEEDS else f", {counted(len(both), 'seed')}"
    short = both[np.isinf(both.rounds)]
    if len(short):
        who = "" if len(short) == len(both) else f"{len(short)} of {len(both)}: "
        best = 100 * short.best
        rounds = short.most_rounds.max()
        return f"{who}{best.min():.1f} to {best.max():.1f} % in {rounds} rounds{told}"
    differences = both.rounds - both.rounds_whole
    ends = ""
    if np.ptp(differences) > 0:
        low, high = stats.ttest_1samp(differences, 0.0).confidence_interval()
        ends = f" [{low:.1f}, {high:.1f}]"
    return f"{differences.mean():.1f}{ends}{told}".replace("-0.0", "0.0")


def tenth() -> str:
    """Return the table for a tenth of the coordinates."""
    of_study = study()
    rows = []
    for row in TENTHS:
        runs = row.runs
        # Runs of the study are compared with whole vectors of the study.
        beside = of_study if f"{row.cell}-whole" in of_study.index else runs
        whole = at(beside, f"{row.cell}-whole")
        ways = [
            more(at(beside, f"{row.cell}-{way}-0.1"), whole)
            for way in ("sparse", "cohort", "common")
        ]
        own_whole = at(runs, f"{row.cell}-whole")
        feedback = more(at(runs, f"{row.cell}-common-0.1-feedback"), own_whole)
        rows.append([str(row), f"{whole.rounds.mean():.1f} rounds", *ways, feedback])
    ways = ["`sparse`", "`cohort`", "`common`", "`common`, error feedback"]
    return markdown(["alpha = 0.1", "whole vectors", *ways], rows)


def hundredth() -> str:
    """Return the table for a hundredth of the coordinates."""
    rows = []
    for row in HUNDREDTHS:
        whole, sparse, common, feedback = (
            at(row.runs, f"{row.cell}-{way}")
            for way in ("whole", "sparse-0.01", "common-0.01-rate-0.3", "common-0.01-feedback")
        )
        taken = whole.rounds.mean()
        ratio = f"{common.rounds.mean() / taken:.1f}" if len(common) == len(whole) else "-"
        told = [more(sparse, whole), more(common, whole), ratio, more(feedback, whole)]
        rows.append([str(row), f"{taken:.1f} rounds", *told])
    slowly = ["`common`, learning rate of the server 0.3", "its rounds over those of whole vectors"]
    ways = ["`sparse`", *slowly, "`common`, error feedback, learning rate 1"]
    return markdown(["alpha = 0.01", "whole vectors", *ways], rows)


TABLES = {"tenth": tenth, "hundredth": hundredth}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", choices=TABLES)
    print(TABLES[parser.parse_args().table]())
