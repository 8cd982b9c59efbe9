"""How often the protocol that `hpcfl advise` names first is the best one, or nearly, when measured.

    python benchmarks/advice.py [--launches L] [--rounds K] [--part I/N] [--output FILE.csv]

Calibrates, then plays all protocols that qualify for 40 sizes that nothing was fitted to, in one
process, and prints for every question by how much the protocol that is named first costs more than
the one that was measured to cost least. A size is N, d and dropouts; a question is a size, a
criterion, a link, and what is allowed: whole vectors without helpers, or all that there is.

A protocol costs what the median of its launches costs, and protocols take turns: a launch of one
can be a quarter slower than the next for reasons that are the machine's. An hour and a half on a
machine with nothing else to do. What is in FILE.csv is not measured again, so that it can be made
in parts, and is told at the end.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from hpcfl.advice.advisor import Choice, advise
from hpcfl.advice.tables import command
from hpcfl.costmodel.calibration import load
from hpcfl.options.advise import CRITERIA, AdviseOptions
from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.reader import Run
from hpcfl.results.reader import load as load_run

DIMS = {
    12: (3_000, 15_000, 80_000, 350_000, 1_500_000),
    20: (1_200, 8_000, 45_000, 250_000, 1_200_000),
    40: (2_000, 12_000, 60_000, 200_000, 700_000),
    60: (900, 7_000, 35_000, 180_000, 550_000),
    90: (5_000, 18_000, 120_000, 250_000, 400_000),
    130: (2_500, 11_000, 50_000, 150_000, 280_000),
    180: (1_100, 6_000, 25_000, 70_000, 140_000),
    250: (1_500, 4_000, 13_000, 30_000, 90_000),
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
COLUMNS = (
    *("devices", "dim", "dropout", "allowed", "criterion", "uplink_mbps"),
    *("named_first", "measured_best", "ratio"),
)


class Judged(NamedTuple):
    """A setting, the protocol named first for it, the one measured best, and how far apart."""

    setting: tuple[object, ...]
    first: str
    best: str
    ratio: float


def hpcfl(*arguments: str) -> None:
    """Run a command, in one process."""
    name = shutil.which("hpcfl") or "hpcfl"
    subprocess.run([name, *arguments], check=True, capture_output=True)


def measured(run: Run, criterion: str, uplink: float) -> float:
    """Return what a round cost, as `hpcfl advise` means it."""
    kept = run.measured
    counted = (run.survived & run.ordinary)[kept]
    if not counted.any():  # all are members of a committee
        counted = run.survived[kept]
    if criterion == "time":
        link = LinkModel(uplink_mbps=uplink)
        return float(np.median(run.modelled_seconds(link).sum(axis=1)))
    if criterion == "upload":
        return float(run.bytes_up[kept].sum(axis=1)[counted].mean())
    return float(run.cpu_seconds[kept][:, :, :-1].sum(axis=1)[counted].mean())


def play(choice: Choice, asked: AdviseOptions, rounds: int, folder: Path) -> Run:
    """Return a run of a choice, in a launch of its own."""
    file = folder / "run.h5"
    file.unlink(missing_ok=True)
    _, *words = shlex.split(command(choice, asked))
    hpcfl(*words, "--rounds", str(rounds), "--warmup", "1", "--output", str(file))
    return load_run(file)


def questions(
    size: tuple[int, int, float], launches: int, rounds: int, folder: Path
) -> Iterator[Judged]:
    """Yield for every question of a size who was named first, who was best, and by how much."""
    known = load(folder / "calibration.json")
    devices, dim, dropout = size
    at = AdviseOptions(devices=devices, dim=dim, dropout=dropout, **ALLOWED["all"])
    choices = advise(at, known).choices
    played: dict[str, list[Run]] = {choice.protocol: [] for choice in choices}
    for _, choice in itertools.product(range(launches), choices):
        played[choice.protocol].append(play(choice, at, rounds, folder))
    for allowed, options in ALLOWED.items():
        for criterion in CRITERIA:
            for uplink in UPLINKS if criterion == "time" else UPLINKS[:1]:
                asked = AdviseOptions(
                    devices=devices,
                    dim=dim,
                    dropout=dropout,
                    uplink_mbps=uplink,
                    criterion=criterion,
                    **options,
                )
                names = [choice.protocol for choice in advise(asked, known).choices]
                cost = {
                    name: median(measured(run, criterion, uplink) for run in played[name])
                    for name in names
                }
                best = min(cost, key=lambda name: cost[name])
                setting = (devices, dim, dropout, allowed, criterion, uplink)
                yield Judged(setting, names[0], best, cost[names[0]] / cost[best])


def read(path: Path) -> list[Judged]:
    """Return what a file has, nothing where there is none."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [
            Judged(
                (
                    *(int(row["devices"]), int(row["dim"]), float(row["dropout"])),
                    *(row["allowed"], row["criterion"], float(row["uplink_mbps"])),
                ),
                row["named_first"],
                row["measured_best"],
                float(row["ratio"]),
            )
            for row in csv.DictReader(file)
        ]


def write(path: Path, judged: list[Judged]) -> None:
    """Add to a file."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(COLUMNS)
        writer.writerows([*one.setting, one.first, one.best, f"{one.ratio:.4f}"] for one in judged)


def chosen(part: str) -> list[tuple[int, int, float]]:
    """Return the I-th of N parts of the sizes, which has sizes of all kinds."""
    which, parts = map(int, part.split("/"))
    return SIZES[which - 1 :: parts]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2, help="of each launch, after a warm-up")
    parser.add_argument("--part", default="1/1", help="one of several parts of the sizes, as 2/3")
    parser.add_argument("--output", type=Path, default=Path("advice.csv"))
    options = parser.parse_args()
    measured_already = {one.setting[:3] for one in read(options.output)}
    sizes = [size for size in chosen(options.part) if size not in measured_already]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if sizes:
            hpcfl("calibrate", "--output", str(folder / "calibration.json"))
        for size in sizes:
            judged = [*questions(size, options.launches, options.rounds, folder)]
            write(options.output, judged)
            for one in judged:
                words = ", ".join(map(str, one.setting))
                print(f"{words}, {one.first}, {one.best}, {one.ratio:.3f}", flush=True)
    tell(read(options.output))


def tell(judged: list[Judged]) -> None:
    """Print how many questions, and sizes, are within the limit."""
    ratios = [one.ratio for one in judged]
    within = [one for one in judged if one.ratio <= LIMIT]
    sizes = {one.setting[:3] for one in judged}
    all_within = len(sizes - {one.setting[:3] for one in judged if one.ratio > LIMIT})
    best = sum(one.first == one.best for one in judged)
    print(
        f"{len(judged)} questions: the best is named in {best}, and one within {LIMIT - 1:.0%} of "
        f"it in {len(within)}, in all questions at {all_within} of {len(sizes)} sizes; median "
        f"{np.median(ratios):.3f}, largest {max(ratios):.3f}"
    )


if __name__ == "__main__":
    main()
