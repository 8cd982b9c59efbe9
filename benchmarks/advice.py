"""How often the first protocol that `hpcfl advise` names is measured as the best, or nearly so.

    python benchmarks/advice.py --output FOLDER [--passes P] [--sizes K]

Plays all qualifying protocols in one process, at sizes that no model was fitted to. For every
question it compares the measured cost of the protocol named first with the lowest measured cost. A
size is N, d and dropouts. A question is a size, a criterion, an uplink and the allowed protocols:
whole vectors without helpers, or all. Each pass calibrates again, and the median of the passes
counts. FOLDER keeps the measurements, so that an interrupted pass continues. A pass over all 40
sizes takes 75 minutes on an idle core.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import hpcfl
from hpcfl.advice.advisor import Choice, advise
from hpcfl.advice.tables import command
from hpcfl.costmodel.calibration import Calibration, load
from hpcfl.costmodel.model import DEVICE_WITHIN
from hpcfl.options.advise import AdviseOptions
from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.reader import Run

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
DROPOUTS = (0.2, 0.0, 0.1, 0.3)  # assigned in turn, so that every N has all of them
PAIRS = [(devices, dim) for devices, dims in DIMS.items() for dim in dims]
SIZES = [(*pair, DROPOUTS[number % len(DROPOUTS)]) for number, pair in enumerate(PAIRS)]
# Reordered, so that the first few are a mixture of all kinds.
SIZES = [SIZES[17 * number % len(SIZES)] for number in range(len(SIZES))]
ALLOWED: dict[str, dict[str, Any]] = {"whole vectors": {}, "all": {"helpers": 2, "alpha": 0.2}}
LIMIT = 1.1
ROUNDS = 5
Size = tuple[int, int, float]  # N, d, dropout
# The criterion to minimise, and the uplink in Mbit/s.
COSTS = (("time", 2.0), ("time", 20.0), ("time", 200.0), ("upload", 2.0), ("device-cpu", 2.0))
# The costs of each protocol, in the order of COSTS.
Costs = Mapping[str, Sequence[float]]


def run_command(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "hpcfl", *arguments], check=True, capture_output=True)


def asked_of(size: Size, allowed: str, cost: tuple[str, float] = COSTS[0]) -> AdviseOptions:
    """Return the options of `hpcfl advise` for a question."""
    devices, dim, dropout = size
    given = {"devices": devices, "dim": dim, "dropout": dropout, **ALLOWED[allowed]}
    return AdviseOptions(criterion=cost[0], uplink_mbps=cost[1], **given)


def measured(run: Run, criterion: str, uplink: float) -> float:
    """Return the cost of a round, as `hpcfl advise` defines it."""
    kept = run.measured
    if criterion == "time":
        link = LinkModel(uplink_mbps=uplink)
        return float(np.median(run.modelled_seconds(link).sum(axis=1)))
    survived = run.survived[kept]
    if criterion == "upload":
        others = survived & ~run.in_committee[kept]
        counted = others if others.any() else survived
        return float(run.bytes_up[kept].sum(axis=1)[counted].mean())
    return float(run.cpu_seconds[kept][:, :, :-1].sum(axis=1)[survived].mean())


def measure(folder: Path, number: int, sizes: Sequence[Size]) -> Calibration:
    """Play the missing sizes of a pass, and return its calibration."""
    path, file = folder / f"calibration-{number}.json", folder / f"rounds-{number}.csv"
    if not path.exists():
        run_command("calibrate", "--output", str(path))
    calibration, there = load(path), read(file)
    for size in sizes:
        if size in there:
            continue
        asked, rows = asked_of(size, "all"), []
        for choice in advise(asked, calibration).choices:
            _, *words = shlex.split(command(choice, asked))
            output = folder / "run.h5"
            output.unlink(missing_ok=True)
            played = ["--rounds", str(ROUNDS), "--warmup", "1", "--output", str(output)]
            run_command(*words, *played)
            run = hpcfl.load(output)
            rows.append([*size, choice.protocol, *(measured(run, *cost) for cost in COSTS)])
        with file.open("a", newline="") as stream:
            csv.writer(stream, lineterminator="\n").writerows(rows)
        print(f"pass {number}: {size}", flush=True)
    return calibration


def read(file: Path) -> dict[Size, dict[str, list[float]]]:
    """Return the measured costs by size and protocol."""
    found: dict[Size, dict[str, list[float]]] = defaultdict(dict)
    if file.exists():
        with file.open(newline="") as stream:
            for devices, dim, dropout, protocol, *costs in csv.reader(stream):
                found[int(devices), int(dim), float(dropout)][protocol] = [*map(float, costs)]
    return dict(found)


def judged(costs: Mapping[Size, Costs], known: Calibration) -> Iterator[tuple[str, float, bool]]:
    """Yield every question with the cost of the first protocol over that of the best one.

    The third value tells whether the first protocol's cost is within the bounds that `advise` says.
    """
    for size, allowed, cost in itertools.product(costs, ALLOWED, COSTS):
        choices = advise(asked_of(size, allowed, cost), known).choices
        at, found = COSTS.index(cost), costs[size]
        real = {choice.protocol: found[choice.protocol][at] for choice in choices}
        first, best = choices[0], min(real, key=real.__getitem__)
        ratio = real[first.protocol] / real[best]
        low, high = ends(first, cost[0])
        question = f"{(*size, allowed, *cost)}: {first.protocol} named, {best} best"
        yield question, ratio, low <= real[first.protocol] <= high


def ends(choice: Choice, criterion: str) -> tuple[float, float]:
    """Return the bounds between which nine of ten costs should lie."""
    if criterion == "time":
        return choice.prediction.modelled_within
    least, most = (0.99, 1.01) if criterion == "upload" else DEVICE_WITHIN
    return least * choice.cost(criterion), most * choice.cost(criterion)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="folder of what was measured")
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--sizes", type=int, default=len(SIZES), help="the first so many of them")
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    sizes = SIZES[: given.sizes]
    numbers = range(1, given.passes + 1)
    known = [measure(given.output, number, sizes) for number in numbers]
    passes = [read(given.output / f"rounds-{number}.csv") for number in numbers]
    costs = {
        size: {
            name: [median(one[size][name][at] for one in passes) for at in range(len(COSTS))]
            for name in passes[0][size]
            if all(name in one[size] for one in passes)
        }
        for size in sizes
    }
    for number, calibration in zip(numbers, known, strict=True):
        found = [*judged(costs, calibration)]
        near = sum(ratio <= LIMIT for _, ratio, _ in found)
        inside = sum(inside for *_, inside in found)
        for question, ratio, _ in found:
            if ratio > LIMIT:
                print(f"{question}, {ratio:.3f} times as much")
        print(
            f"calibration {number}: within {LIMIT - 1:.0%} of the best in {near} of {len(found)} "
            f"({near / len(found):.1%}), largest {max(ratio for _, ratio, _ in found):.3f}; "
            f"costs within what is said in {inside}"
        )


if __name__ == "__main__":
    main()
