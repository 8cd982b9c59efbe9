"""Does training lose anything where devices send less: the rounds of MNIST's 2NN to an accuracy.

python benchmarks/common_training.py --data-dir data --output results/common     run what is missing
python benchmarks/common_training.py --output results/common --table            show what there is
python benchmarks/common_training.py --data-dir data --output results/bits --study bits
python benchmarks/common_training.py --output results/common --known rounds.csv ...

Studies: `common` (whole vectors, cohorts, common coordinates, the latter also with error feedback,
for two partitions, two numbers of devices and two fractions alpha), `cnn` (the same with a
convolutional model), and `bits` (`secagg` with few bits). Runs are made in the order in which they
are listed; several of these scripts may share a folder, and one that was stopped goes on. A run
ends at the accuracy, or after --rounds. What runs came to is added to the file --known (cell, seed,
rounds), and what is in it is not run again: a study of days can be made a few hours at a time, on
several machines. Compared are runs of the same seed: they have the same
partition, first model and dropouts.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from csv import DictReader, writer
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from hpcfl.results.reader import load

SEEDS = range(5)


@dataclass(frozen=True)
class Cell:
    """What is the same in the runs of all seeds."""

    name: str
    options: tuple[str, ...]
    against: str  # the name of the cell that it is compared with

    def path(self, folder: Path, seed: int) -> Path:
        return folder / f"{self.name}-{seed}.h5"


def common_cells(model: str) -> Iterator[Cell]:
    """Yield whole vectors, cohorts and common coordinates."""
    for devices, partition in itertools.product((25, 100), ("iid", "shards")):
        where = f"{model}-{partition}-{devices}"
        options = ("--model", model, "--partition", partition, "--devices", str(devices))

        ways: dict[str, tuple[str, ...]] = {"whole": ("--aggregate", "fedavg")}
        for alpha in ("0.1", "0.01"):
            common = ("--aggregate", "common", "--alpha", alpha)
            ways[f"common-{alpha}"] = common
            # A cohort has alpha N devices: one of fewer than two hides nobody, and is refused.
            if float(alpha) * devices >= 2:
                ways[f"cohort-{alpha}"] = ("--aggregate", "cohort", "--alpha", alpha)
            ways[f"common-{alpha}-feedback"] = (*common, "--error-feedback")
        for name, way in ways.items():
            yield Cell(f"{where}-{name}", (*options, *way), f"{where}-whole")


def bits_cells() -> Iterator[Cell]:
    """Yield secagg with 32 bits and with fewer."""
    options = ("--model", "2nn", "--devices", "25", "--aggregate", "secagg")
    for bits, rotate in ((32, False), (12, False), (16, False), (8, False), (8, True), (12, True)):
        turned = ("--rotate",) if rotate else ()
        name = f"secagg-{bits}{'-rotated' * rotate}"
        yield Cell(name, (*options, "--bits", str(bits), *turned), "secagg-32")


def train(cell: Cell, seed: int, folder: Path, data: str, accuracy: float, rounds: int) -> None:
    """Make a run, unless another script is at it."""
    path = cell.path(folder, seed)
    claim = path.with_suffix(".running")
    try:
        os.close(os.open(claim, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    unfinished = path.with_suffix(".unfinished.h5")
    unfinished.unlink(missing_ok=True)
    command = [
        *(sys.executable, "-m", "hpcfl", "train", "fedavg", "--dataset", "mnist"),
        *("--data-dir", data, "--dropout", "0.3", "--seed", str(seed), "--rounds", str(rounds)),
        *("--target-accuracy", str(accuracy), "--output", str(unfinished), *cell.options),
    ]
    try:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        unfinished.rename(path)
    finally:
        claim.unlink()


def read_known(path: Path | None) -> dict[tuple[str, int], float]:
    """Return the rounds that runs needed, by cell and seed, as a file has them."""
    if path is None or not path.exists():
        return {}
    with path.open(newline="") as file:
        return {(row["cell"], int(row["seed"])): float(row["rounds"]) for row in DictReader(file)}


def add_known(path: Path, cell: Cell, seed: int, rounds: float) -> None:
    """Add what a run came to."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        table = writer(file, lineterminator="\n")
        if new:
            table.writerow(["cell", "seed", "rounds"])
        table.writerow([cell.name, seed, f"{rounds:g}"])


def rounds_needed(path: Path, accuracy: float) -> float:
    """Return the rounds that a run needed, infinity if it did not reach the accuracy."""
    reached = np.flatnonzero(load(path).training["accuracy"] >= accuracy)
    return float(reached[0] + 1) if reached.size else np.inf


def interval(samples: np.ndarray) -> str:
    """Return mean and 95 % interval (Student's t)."""
    mean = samples.mean()
    if samples.size < 2:
        return f"{mean:7.1f}"
    margin = stats.t.ppf(0.975, samples.size - 1) * samples.std(ddof=1) / np.sqrt(samples.size)
    return f"{mean:7.1f} +- {margin:4.1f}"


def show(cells: list[Cell], found: dict[tuple[str, int], float], accuracy: float) -> None:
    """Print a row for each cell with a run; `found` has the rounds of each run."""
    needed = {
        cell.name: {seed: found[cell.name, seed] for seed in SEEDS if (cell.name, seed) in found}
        for cell in cells
    }
    title = f"rounds to {accuracy:g}"
    print(f"{title:<32} seeds  reached  rounds (95 %)    more than whole or 32 bits")
    for cell in cells:
        runs = needed[cell.name]
        if not runs:
            continue
        rounds = np.array(list(runs.values()))
        ended = np.isfinite(rounds)
        base = needed.get(cell.against, {})
        more = [rounds - base[seed] for seed, rounds in runs.items() if seed in base]
        paired = np.array([one for one in more if np.isfinite(one)])
        told = interval(rounds[ended]) if ended.any() else "      -"
        differ = interval(paired) if paired.size and cell.name != cell.against else ""
        print(f"{cell.name:<32} {rounds.size:5}  {ended.sum():7}  {told:<16} {differ}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--study", choices=("common", "cnn", "bits"), default="common")
    parser.add_argument("--data-dir", default=os.environ.get("HPCFL_DATA", "data"))
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--only", default="", help="part of the names of the runs to make")
    parser.add_argument("--accuracy", type=float, help="to reach; 0.97, 0.99 for cnn")
    parser.add_argument("--rounds", type=int, default=200, help="most rounds of a run")
    parser.add_argument("--known", type=Path, help="file of what runs came to, to be added to")
    parser.add_argument("--table", action="store_true", help="only show what there is")
    given = parser.parse_args()
    accuracy = given.accuracy or (0.99 if given.study == "cnn" else 0.97)
    models = {"common": "2nn", "cnn": "mnist-cnn"}
    cells = list(bits_cells() if given.study == "bits" else common_cells(models[given.study]))
    given.output.mkdir(parents=True, exist_ok=True)
    for seed, cell in itertools.product(SEEDS, cells):
        path = cell.path(given.output, seed)
        known = (cell.name, seed) in read_known(given.known)
        if not (given.table or known or path.exists()) and given.only in cell.name:
            train(cell, seed, given.output, given.data_dir, accuracy, given.rounds)
        if given.known is not None and path.exists() and not known:
            add_known(given.known, cell, seed, rounds_needed(path, accuracy))
    found = {
        (cell.name, seed): rounds_needed(cell.path(given.output, seed), accuracy)
        for cell, seed in itertools.product(cells, SEEDS)
        if cell.path(given.output, seed).exists()
    }
    show(cells, read_known(given.known) | found, accuracy)


if __name__ == "__main__":
    main()
