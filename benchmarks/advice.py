"""How often the protocol that `hpcfl advise` names first is the best one, or nearly, when measured.

    python benchmarks/advice.py [--rounds K] [--quick]

Calibrates, then plays all protocols that qualify for settings that nothing was fitted to, each in a
launch of its own in one process, and prints for every setting and criterion by how much the first
one costs more than the one that was measured to cost least. Settings are of N, d and dropouts, of
links, and of what is allowed: whole vectors without helpers, or all that there is. Half an hour on
two cores with nothing else to do.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpcfl.advice.advisor import Choice, advise
from hpcfl.advice.tables import command
from hpcfl.costmodel.calibration import load
from hpcfl.options.advise import CRITERIA, AdviseOptions
from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.reader import Run
from hpcfl.results.reader import load as load_run

SIZES = [
    (devices, dim, dropout)
    for dropout, (devices, dims) in zip(
        (0.2, 0.0, 0.1, 0.3),
        (
            (12, (3_000, 80_000, 1_500_000)),
            (40, (2_000, 60_000, 700_000)),
            (90, (5_000, 120_000, 400_000)),
            (250, (1_500, 30_000, 90_000)),
        ),
        strict=True,
    )
    for dim in dims
]
UPLINKS = (2.0, 20.0, 200.0)
ALLOWED: dict[str, dict[str, Any]] = {
    "whole vectors": {},
    "all": {"helpers": 2, "alpha": 0.2, "max_exposed": 0.5},
}
LIMIT = 1.1


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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="only the first three sizes")
    options = parser.parse_args()
    sizes = SIZES[:3] if options.quick else SIZES
    ratios = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        hpcfl("calibrate", "--output", str(folder / "calibration.json"))
        print("N, d, dropout, allowed, criterion, uplink: named first, measured best, ratio")
        for setting, first, best, ratio in settings(options.rounds, folder, sizes):
            ratios.append(ratio)
            words = ", ".join(map(str, setting))
            print(f"{words}: {first}, {best}, {ratio:.3f}", flush=True)
    within = sum(ratio <= LIMIT for ratio in ratios)
    print(
        f"{within} of {len(ratios)} settings within {LIMIT - 1:.0%} of the best; median "
        f"{np.median(ratios):.3f}, largest {max(ratios):.3f}"
    )


if __name__ == "__main__":
    main()
