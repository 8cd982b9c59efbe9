"""Does training lose anything where devices send less: the rounds of MNIST's 2NN to an accuracy.

python benchmarks/common_training.py --data-dir data --output results/common     run what is missing
python benchmarks/common_training.py --output results/common --table            show what there is
python benchmarks/common_training.py --data-dir data --output results/bits --study bits
python benchmarks/common_training.py --output results/common --known rounds.csv ...

Studies: `common` (whole vectors, cohorts, common coordinates, the latter also with error feedback,
for two partitions and two numbers of devices, alpha = 0.1), `few` (alpha = 0.01, also `sparse`,
with several learning rates of the server), `cnn` (both with a convolutional model and a tenth of
the data), and `bits` (`secagg` with few bits). Runs are made in the order in which they are listed;
several of these scripts may share a folder, and one that was stopped goes on. A run ends at the
accuracy, or after --rounds. What runs came to is added to the file --known (cell, seed, rounds to
the accuracy, most rounds, highest accuracy), and what is in it is not run again: a study of days
can be made a few hours at a time, on several machines. Compared are runs of the same seed: they
have the same partition, first model and dropouts.
"""

from __future__ import annotations

import argparse
import fcntl
import itertools
import os
import re
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
COLUMNS = ["cell", "seed", "rounds", "most_rounds", "best"]


@dataclass(frozen=True)
class Cell:
    """What is the same in the runs of all seeds."""

    name: str
    options: tuple[str, ...]
    against: str  # the name of the cell that it is compared with

    def path(self, folder: Path, seed: int) -> Path:
        return folder / f"{self.name}-{seed}.h5"


def federation(model: str, partition: str, devices: int) -> str:
    """Return how the names of a federation's cells begin."""
    return f"{model}-{partition}-{devices}"


def federations(
    model: str, *ways: tuple[str, tuple[str, ...]], more: tuple[str, ...] = ()
) -> Iterator[Cell]:
    """Yield ways to aggregate, and whole vectors, for both partitions and numbers of devices.

    `more` are options of all.
    """
    whole = ("whole", ("--aggregate", "fedavg"))
    for devices, partition in itertools.product((25, 100), ("iid", "shards")):
        where = federation(model, partition, devices)
        options = ("--model", model, "--partition", partition, "--devices", str(devices), *more)
        for name, way in (whole, *ways):
            yield Cell(f"{where}-{name}", (*options, *way), f"{where}-whole")


def sending(protocol: str, alpha: float) -> tuple[str, ...]:
    """Return the options of a protocol whose devices send a part of the coordinates."""
    return "--aggregate", protocol, "--alpha", str(alpha)


def tenths() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield cohorts and common coordinates, a tenth of all."""
    common = sending("common", 0.1)
    yield "common-0.1", common
    yield "cohort-0.1", sending("cohort", 0.1)
    yield "common-0.1-feedback", (*common, "--error-feedback")


def hundredths() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield hundredths of the coordinates, of which cohorts hide nobody."""
    for protocol, rate in itertools.product(("common", "sparse"), (1, 0.3, 0.1)):
        told = "" if rate == 1 else f"-rate-{rate}"
        way = (*sending(protocol, 0.01), "--server-learning-rate", str(rate))
        yield f"{protocol}-0.01{told}", way
    yield "common-0.01-feedback", (*sending("common", 0.01), "--error-feedback")


def bits_cells() -> Iterator[Cell]:
    """Yield secagg with 32 bits and with fewer."""
    options = ("--model", "2nn", "--devices", "25", "--aggregate", "secagg")
    for bits, rotate in ((32, False), (12, False), (16, False), (8, False), (8, True), (12, True)):
        turned = ("--rotate",) if rotate else ()
        name = f"secagg-{bits}{'-rotated' * rotate}"
        yield Cell(name, (*options, "--bits", str(bits), *turned), "secagg-32")


def train(cell: Cell, seed: int, folder: Path, data: str, accuracy: float, rounds: int) -> None:
    """Make a run, unless another script is at it, or has just made it."""
    path = cell.path(folder, seed)
    # A lock ends with the script that holds it, however that ends.
    claim = path.with_suffix(".running")
    with claim.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{path}: another script is at this run", file=sys.stderr)
            return
        if not path.exists():
            make(cell, seed, path, data, accuracy, rounds)
        claim.unlink()


def make(cell: Cell, seed: int, path: Path, data: str, accuracy: float, rounds: int) -> None:
    """Make a run, whose file is there once it is finished."""
    unfinished = path.with_suffix(".unfinished.h5")
    unfinished.unlink(missing_ok=True)
    command = [
        *(sys.executable, "-m", "hpcfl", "train", "fedavg", "--dataset", "mnist"),
        *("--data-dir", data, "--dropout", "0.3", "--seed", str(seed), "--rounds", str(rounds)),
        *("--target-accuracy", str(accuracy), "--output", str(unfinished), *cell.options),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    unfinished.rename(path)


@dataclass(frozen=True)
class Outcome:
    """What a run came to."""

    rounds: float  # to the accuracy, infinity if it did not get there
    most_rounds: int
    best: float  # highest accuracy


def read_known(path: Path | None, accuracy: float) -> dict[tuple[str, int], Outcome]:
    """Return what runs came to, by cell and seed, as a file has them.

    ValueError if it is no such file, or one of runs to another accuracy.
    """
    if path is None or not path.exists():
        return {}
    found = {}
    with path.open(newline="") as file:
        table = DictReader(file)
        if table.fieldnames != COLUMNS:
            raise ValueError(f"{path} does not begin with {','.join(COLUMNS)}")
        for row in table:
            one = Outcome(float(row["rounds"]), int(row["most_rounds"]), float(row["best"]))
            if np.isfinite(one.rounds) != (one.best >= accuracy):
                raise ValueError(
                    f"{path}, line {table.line_num}: this run was to another accuracy than "
                    f"{accuracy:g}: give --accuracy, or another file"
                )
            found[row["cell"], int(row["seed"])] = one
    return found


def add_known(path: Path, cell: Cell, seed: int, found: Outcome) -> None:
    """Add what a run came to."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        table = writer(file, lineterminator="\n")
        if new:
            table.writerow(COLUMNS)
        table.writerow([cell.name, seed, f"{found.rounds:g}", found.most_rounds, found.best])


def outcome(path: Path, accuracy: float) -> Outcome:
    """Return what a run came to."""
    run = load(path)
    accuracies = run.training["accuracy"]
    reached = np.flatnonzero(accuracies >= accuracy)
    rounds = float(reached[0] + 1) if reached.size else np.inf
    return Outcome(rounds, int(run.config["rounds"]), float(np.nanmax(accuracies)))


def interval(samples: np.ndarray) -> str:
    """Return mean and 95 % interval (Student's t)."""
    mean = samples.mean()
    if samples.size < 2:
        return f"{mean:7.1f}"
    margin = stats.t.ppf(0.975, samples.size - 1) * samples.std(ddof=1) / np.sqrt(samples.size)
    return f"{mean:7.1f} +- {margin:4.1f}"


def show(cells: list[Cell], found: dict[tuple[str, int], Outcome], accuracy: float) -> None:
    """Print a row for each cell with a run."""
    runs = {
        cell.name: {seed: found[cell.name, seed] for seed in SEEDS if (cell.name, seed) in found}
        for cell in cells
    }
    print(
        f"{f'rounds to {accuracy:g}':<32} seeds  reached  rounds (95 %)    "
        "more than whole or 32 bits  highest accuracy of those that did not reach it"
    )
    for cell in cells:
        ended = {seed: one for seed, one in runs[cell.name].items() if np.isfinite(one.rounds)}
        short = [one for one in runs[cell.name].values() if not np.isfinite(one.rounds)]
        if not ended and not short:
            continue
        told, differ, best = "      -", "", ""
        if ended:
            told = interval(np.array([one.rounds for one in ended.values()]))
        base = runs.get(cell.against, {})
        more = [one.rounds - base[seed].rounds for seed, one in ended.items() if seed in base]
        if more and cell.name != cell.against:
            differ = interval(np.array(more))
        if short:
            highest = [one.best for one in short]
            limit = max(one.most_rounds for one in short)
            best = f"{min(highest):.3f} to {max(highest):.3f} in {limit} rounds"
        print(
            f"{cell.name:<32} {len(ended) + len(short):5}  {len(ended):7}  {told:<16} "
            f"{differ:<26}  {best}"
        )


STUDIES = {
    "common": lambda: federations("2nn", *tenths()),
    "few": lambda: federations("2nn", *hundredths()),
    "bits": bits_cells,
}


def expression(text: str) -> re.Pattern[str]:
    """Return a regular expression; argparse's error if it is not one."""
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--study", choices=STUDIES, default="common")
    parser.add_argument("--data-dir", default=os.environ.get("HPCFL_DATA", "data"))
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument(
        "--only", type=expression, default="", help="expression for the names of the runs to make"
    )
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="so many of each, at most")
    parser.add_argument("--accuracy", type=float, help="to reach; 0.97, 0.95 for cnn and few")
    parser.add_argument("--rounds", type=int, default=200, help="most rounds of a run")
    parser.add_argument("--known", type=Path, help="file of what runs came to, to be added to")
    parser.add_argument("--table", action="store_true", help="only show what there is")
    given = parser.parse_args()
    accuracy = given.accuracy or {"cnn": 0.95, "few": 0.95}.get(given.study, 0.97)
    cells = list(STUDIES[given.study]())
    try:
        read_known(given.known, accuracy)
    except ValueError as error:
        parser.error(str(error))
    given.output.mkdir(parents=True, exist_ok=True)
    found = {}
    for seed, cell in itertools.product(SEEDS, cells):
        path = cell.path(given.output, seed)
        # Other scripts may have added to it.
        known = read_known(given.known, accuracy)
        wanted = seed < given.seeds and given.only.search(cell.name)
        if wanted and not (given.table or (cell.name, seed) in known or path.exists()):
            train(cell, seed, given.output, given.data_dir, accuracy, given.rounds)
        if path.exists():
            found[cell.name, seed] = outcome(path, accuracy)
            if given.known is not None and (cell.name, seed) not in known:
                add_known(given.known, cell, seed, found[cell.name, seed])
    show(cells, read_known(given.known, accuracy) | found, accuracy)


if __name__ == "__main__":
    main()
