"""How often the protocol that `hpcfl advise` names first is the best one, or nearly, when measured.

    python benchmarks/advice.py --output FOLDER [--passes P] [--part I/N]
    python benchmarks/advice.py --output FOLDER --table [--keep OTHER]

Plays all protocols that qualify for 40 sizes that nothing was fitted to, in one process, and prints
by how much the protocol that is named first costs more than the one that was measured to cost
least, for every question. A size is N, d and dropouts; a question is a size, a criterion, a link,
and what is allowed: whole vectors without helpers, or all that there is. Beside it stands how good
the best protocol of one pass is in another pass, as a measurement is no better than that.

A machine that others use too is a half slower in some minutes than in others, and not in all
operations alike. So a pass plays every size once, and calibrates again after every few of them; a
protocol costs what the median of its passes costs, and is predicted from all calibrations together.
A pass takes 75 minutes on a core with nothing else to do. FOLDER keeps what was measured
(rounds.csv, calibration-*.json): a pass that was stopped goes on, and parts of the sizes may be
played one after another or on two cores at once. --table plays nothing; --keep writes what it needs
to another folder, in little space.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import shlex
import shutil
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from hpcfl.advice.advisor import Choice, advise
from hpcfl.advice.tables import command
from hpcfl.costmodel.calibration import Calibration, load
from hpcfl.costmodel.model import DEVICE_WITHIN
from hpcfl.options.advise import AdviseOptions
from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.reader import Run
from hpcfl.results.reader import load as load_run

DIMS = {
    16: (1_500, 9_500, 55_000, 240_000, 1_000_000),
    28: (1_600, 7_000, 36_000, 175_000, 800_000),
    40: (2_400, 15_000, 68_000, 210_000, 650_000),
    56: (1_200, 5_800, 29_000, 130_000, 430_000),
    80: (3_800, 17_000, 82_000, 200_000, 380_000),
    120: (2_600, 11_500, 50_000, 125_000, 260_000),
    170: (1_300, 6_800, 23_000, 75_000, 150_000),
    240: (1_900, 5_000, 14_000, 34_000, 95_000),
}
DROPOUTS = (0.2, 0.0, 0.1, 0.3)  # in turn: every N has all of them
PAIRS = [(devices, dim) for devices, dims in DIMS.items() for dim in dims]
SIZES = [
    (devices, dim, DROPOUTS[number % len(DROPOUTS)]) for number, (devices, dim) in enumerate(PAIRS)
]
UPLINKS = (2.0, 20.0, 200.0)
ALLOWED: dict[str, dict[str, Any]] = {
    "whole vectors": {},
    "all": {"helpers": 2, "alpha": 0.2, "max_exposed": 0.5},
}
LIMIT = 1.1
# Sizes that are played after one calibration.
CALIBRATED = 5
Size = tuple[int, int, float]  # N, d, dropout
# What a round costs, as `hpcfl advise` means it, by what is to be least and the uplink in Mbit/s.
Cost = tuple[str, float]
COSTS: tuple[Cost, ...] = (
    *(("time", uplink) for uplink in UPLINKS),
    ("upload", UPLINKS[0]),
    ("device-cpu", UPLINKS[0]),
)


class Played(NamedTuple):
    """What a protocol cost at a size, in one pass."""

    number: int  # of the pass
    size: Size
    protocol: str
    costs: tuple[float, ...]  # in the order of COSTS


class Question(NamedTuple):
    """What is asked."""

    size: Size
    allowed: str
    cost: Cost

    def __str__(self) -> str:
        return ", ".join(map(str, (*self.size, self.allowed, *self.cost)))


class Judged(NamedTuple):
    """A question, the protocol named first for it, the one measured best, and how far apart."""

    question: Question
    first: str
    best: str
    ratio: float


# What was found by size and protocol, in the order of COSTS.
Costs = Mapping[Size, Mapping[str, Sequence[float]]]
# The protocols that qualify, the one that is predicted to cost least first.
Answers = Mapping[Question, Sequence[str]]


def hpcfl(*arguments: str) -> None:
    """Run a command, in one process."""
    name = shutil.which("hpcfl") or "hpcfl"
    subprocess.run([name, *arguments], check=True, capture_output=True)


def asked_of(size: Size, allowed: str, cost: Cost = COSTS[0]) -> AdviseOptions:
    """Return what advice is asked for."""
    devices, dim, dropout = size
    criterion, uplink = cost
    return AdviseOptions(
        devices=devices,
        dim=dim,
        dropout=dropout,
        uplink_mbps=uplink,
        criterion=criterion,
        **ALLOWED[allowed],
    )


def measured(run: Run, criterion: str, uplink: float) -> float:
    """Return what a round cost, as `hpcfl advise` means it."""
    kept = run.measured
    if criterion == "time":
        link = LinkModel(uplink_mbps=uplink)
        return float(np.median(run.modelled_seconds(link).sum(axis=1)))
    if criterion == "upload":
        counted = (run.survived & run.ordinary)[kept]
        if not counted.any():  # all are members of a committee
            counted = run.survived[kept]
        return float(run.bytes_up[kept].sum(axis=1)[counted].mean())
    return float(run.cpu_seconds[kept][:, :, :-1].sum(axis=1)[run.survived[kept]].mean())


def play(choice: Choice, asked: AdviseOptions, rounds: int, file: Path) -> Run:
    """Return a run of a choice, in a launch of its own."""
    file.unlink(missing_ok=True)
    _, *words = shlex.split(command(choice, asked))
    hpcfl(*words, "--rounds", str(rounds), "--warmup", "1", "--output", str(file))
    return load_run(file)


def one_pass(
    number: int, sizes: Sequence[Size], known: Calibration, rounds: int
) -> Iterator[list[Played]]:
    """Play all protocols that qualify at some sizes; yield what was found, size by size."""
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            asked = asked_of(size, "all")
            found = []
            for choice in advise(asked, known).choices:
                run = play(choice, asked, rounds, Path(folder) / "run.h5")
                costs = tuple(measured(run, *cost) for cost in COSTS)
                found.append(Played(number, size, choice.protocol, costs))
            yield found


def answers(sizes: Iterable[Size], known: Calibration) -> Answers:
    """Return what is advised for every question."""
    questions = itertools.starmap(Question, itertools.product(sizes, ALLOWED, COSTS))
    return {
        question: [choice.protocol for choice in advise(asked_of(*question), known).choices]
        for question in questions
    }


def medians(played: Iterable[Played]) -> Costs:
    """Return the medians of passes."""
    found: dict[Size, dict[str, list[tuple[float, ...]]]] = defaultdict(lambda: defaultdict(list))
    for one in played:
        found[one.size][one.protocol].append(one.costs)
    return {
        size: {name: [median(of) for of in zip(*costs, strict=True)] for name, costs in by.items()}
        for size, by in found.items()
    }


def measured_at(question: Question, costs: Costs, names: Iterable[str]) -> dict[str, float]:
    """Return what each protocol was measured to cost, of what is asked about."""
    return {name: costs[question.size][name][COSTS.index(question.cost)] for name in names}


def judge(costs: Costs, advised: Answers) -> Iterator[Judged]:
    """Yield for every question who was named first, who was best, and by how much."""
    for question, names in advised.items():
        if question.size in costs:
            yield _judged(question, names[0], measured_at(question, costs, names))


def measured_again(passes: Iterable[Costs], advised: Answers) -> Iterator[Judged]:
    """Yield the same for those that were the best in one pass, judged by another pass.

    That is how good advice would be that plays all protocols once in place of predicting them.
    """
    for (before, after), question in itertools.product(itertools.permutations(passes, 2), advised):
        if question.size in before and question.size in after:
            then, now = (measured_at(question, one, advised[question]) for one in (before, after))
            yield _judged(question, min(then, key=then.__getitem__), now)


def _judged(question: Question, first: str, cost: Mapping[str, float]) -> Judged:
    best = min(cost, key=cost.__getitem__)
    return Judged(question, first, best, cost[first] / cost[best])


def together(calibrations: Sequence[Calibration]) -> Calibration:
    """Return the medians of several calibrations."""
    names = calibrations[0].samples
    samples = {name: median(one.cost(name) for one in calibrations) for name in names}
    kept = {name: [float(f"{cost:.4g}")] for name, cost in samples.items()}
    return replace(calibrations[0], samples=kept)


COLUMNS = ("pass", "devices", "dim", "dropout", "protocol")
NAMES = tuple(f"{criterion} at {uplink:g} Mbit/s" for criterion, uplink in COSTS[: len(UPLINKS)])
NAMES += tuple(criterion for criterion, _ in COSTS[len(UPLINKS) :])


def read(path: Path) -> list[Played]:
    """Return what a file has, nothing where there is none."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [_played(row) for row in csv.DictReader(file)]


def _played(row: Mapping[str, str]) -> Played:
    size = int(row["devices"]), int(row["dim"]), float(row["dropout"])
    costs = tuple(float(row[name]) for name in NAMES)
    return Played(int(row["pass"]), size, row["protocol"], costs)


def write(path: Path, played: Sequence[Played]) -> None:
    """Add to a file."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow([*COLUMNS, *NAMES])
        for one in played:
            costs = [f"{cost:.6g}" for cost in one.costs]
            writer.writerow([one.number, *one.size, one.protocol, *costs])


def measure(folder: Path, passes: int, part: str, rounds: int) -> None:
    """Play what is missing."""
    which, parts = map(int, part.split("/"))
    file, own = folder / "rounds.csv", SIZES[which - 1 :: parts]
    for number, start in itertools.product(range(1, passes + 1), range(0, len(own), CALIBRATED)):
        there = {one.size for one in read(file) if one.number == number}
        sizes = [size for size in own[start : start + CALIBRATED] if size not in there]
        if not sizes:
            continue
        calibration = folder / f"calibration-{number}-{SIZES.index(own[start]) + 1}.json"
        if not calibration.exists():
            hpcfl("calibrate", "--output", str(calibration))
        for found in one_pass(number, sizes, load(calibration), rounds):
            write(file, found)
            print(f"pass {number}: {found[0].size}", flush=True)


def tell(played: Sequence[Played], known: Calibration) -> None:
    """Print every question that is beyond the limit, how many there are, and what to hold it to."""
    costs = medians(played)
    advised = answers(costs, known)
    judged = [*judge(costs, advised)]
    for one in judged:
        if one.ratio > LIMIT:
            print(f"{one.question}: {one.first} was named, {one.ratio:.3f} times {one.best}")
    print(f"advised, judged by all passes: {_summary(judged)}")
    missed = {one.question.size for one in judged if one.ratio > LIMIT}
    print(
        f"of {len(costs)} sizes, {len(costs) - len(missed)} have no question beyond {LIMIT - 1:.0%}"
    )
    for line in errors(costs, known):
        print(line)
    numbers = sorted({one.number for one in played})
    passes = [medians(one for one in played if one.number == number) for number in numbers]
    if len(passes) > 1:
        each = [one for single in passes for one in judge(single, advised)]
        print(f"advised, judged by each pass: {_summary(each)}")
        again = [*measured_again(passes, advised)]
        print(f"measured in one pass, judged by each other one: {_summary(again)}")


def errors(costs: Costs, known: Calibration) -> Iterator[str]:
    """Yield in how many cases what `advise` says of its errors holds, for every question of time.

    Of two protocols those are told apart of which one, the first, is predicted to cost so many
    times less that `advise` does not name the other beside it.
    """
    for cost in COSTS:
        within, ahead, factors = [], [], []
        for size, allowed in itertools.product(costs, ALLOWED):
            found = costs[size]
            advice = advise(asked_of(size, allowed, cost), known)
            first, *others = advice.choices
            at = COSTS.index(cost)
            ahead += [
                found[first.protocol][at] < found[other.protocol][at]
                for other in others
                if other.protocol not in advice.as_good
            ]
            # All that whole vectors have to choose from is there among all as well.
            for choice in advice.choices if allowed == "all" else ():
                least, most = _ends(choice, cost)
                within.append(least <= found[choice.protocol][at] <= most)
                factors.append(found[choice.protocol][at] / choice.cost(cost[0]))
        low, high = np.quantile(factors, (0.05, 0.95))
        yield (
            f"{NAMES[COSTS.index(cost)]}: {np.mean(within):.1%} of {len(within)} within what is "
            f"said; nine of ten {low:.2f} to {high:.2f} times what is predicted; "
            f"{np.mean(ahead):.1%} of {len(ahead)} that are told apart"
        )


def _ends(choice: Choice, cost: Cost) -> tuple[float, float]:
    """Return what nine of ten are said to lie between."""
    if cost[0] == "time":
        return choice.prediction.modelled_within
    least, most = (0.99, 1.01) if cost[0] == "upload" else DEVICE_WITHIN
    return least * choice.cost(cost[0]), most * choice.cost(cost[0])


def _summary(judged: Sequence[Judged]) -> str:
    ratios = [one.ratio for one in judged]
    within = sum(ratio <= LIMIT for ratio in ratios)
    best = sum(one.first == one.best for one in judged)
    return (
        f"{len(judged)} questions, the best is named in {best}, and one within {LIMIT - 1:.0%} of "
        f"it in {within}; median {median(ratios):.3f}, largest {max(ratios):.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="folder of what was measured")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--part", default="1/1", help="one of several parts of the sizes, as 2/3")
    parser.add_argument("--rounds", type=int, default=5, help="of a launch, after a warm-up round")
    parser.add_argument("--table", action="store_true", help="play nothing")
    parser.add_argument("--keep", type=Path, help="folder for what the table is made of")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    file = options.output / "rounds.csv"
    if not options.table:
        measure(options.output, options.passes, options.part, options.rounds)
    known = together([load(path) for path in sorted(options.output.glob("calibration-*.json"))])
    tell(read(file), known)
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
        known.save(options.keep / "calibration-all.json")
        shutil.copy(file, options.keep)


if __name__ == "__main__":
    main()
