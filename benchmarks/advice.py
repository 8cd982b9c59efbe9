"""How often the protocol that `hpcfl advise` names first is the best one, or nearly, when measured.

    python benchmarks/advice.py [--rounds K] [--quick] [--output FILE.csv]

Calibrates, then plays all protocols that qualify for 40 sizes that nothing was fitted to, each in a
launch of its own in one process, and prints for every question by how much the protocol that is
named first costs more than the one that was measured to cost least. A size is N, d and dropouts; a
question is a size, a criterion, a link, and what is allowed: whole vectors without helpers, or all
that there is. An hour on two cores with nothing else to do.
"""

from __future__ import annotations

import argparse
import csv
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, TextIO

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
    """Return a measured run of a choice."""
    file = folder / "run.h5"
    file.unlink(missing_ok=True)
    _, *words = shlex.split(command(choice, asked))
    hpcfl(*words, "--rounds", str(rounds), "--warmup", "1", "--output", str(file))
    return load_run(file)


def settings(rounds: int, folder: Path, sizes: list[tuple[int, int, float]]) -> Iterator[Judged]:
    """Yield of every setting and criterion who was named first, who was best, by how much."""
    known = load(folder / "calibration.json")
    for devices, dim, dropout in sizes:
        at = AdviseOptions(devices=devices, dim=dim, dropout=dropout, **ALLOWED["all"])
        choices = advise(at, known).choices
        played = {choice.protocol: play(choice, at, rounds, folder) for choice in choices}
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
                    cost = {name: measured(played[name], criterion, uplink) for name in names}
                    best = min(cost, key=lambda name: cost[name])
                    setting = (devices, dim, dropout, allowed, criterion, uplink)
                    yield Judged(setting, names[0], best, cost[names[0]] / cost[best])


def write(files: list[TextIO], row: Sequence[object]) -> None:
    """Write a row of CSV to files, at once."""
    for file in files:
        csv.writer(file, lineterminator="\n").writerow(row)
        file.flush()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="only the first three sizes")
    parser.add_argument("--output", type=Path, help="write every question to a CSV file")
    options = parser.parse_args()
    sizes = SIZES[:3] if options.quick else SIZES
    judged = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        files = [sys.stdout]
        if options.output is not None:
            files.append(stack.enter_context(options.output.open("w", newline="")))
        hpcfl("calibrate", "--output", str(folder / "calibration.json"))
        # Line by line: what an hour has found until something fails is kept.
        write(files, COLUMNS)
        for one in settings(options.rounds, folder, sizes):
            judged.append(one)
            write(files, [*one.setting, one.first, one.best, f"{one.ratio:.4f}"])
    ratios = [one.ratio for one in judged]
    within = [one for one in judged if one.ratio <= LIMIT]
    all_within = len(sizes) - len({one.setting[:3] for one in judged if one.ratio > LIMIT})
    print(
        f"{len(within)} of {len(judged)} questions within {LIMIT - 1:.0%} of the best, all of them "
        f"at {all_within} of {len(sizes)} sizes; median {np.median(ratios):.3f}, largest "
        f"{max(ratios):.3f}"
    )


if __name__ == "__main__":
    main()
