"""CPU time of whole rounds against that of an earlier version of hpcfl, in alternating launches.

    git worktree add ../hpcfl-bcc5cbe bcc5cbe
    LD_LIBRARY_PATH=... python benchmarks/against.py ../hpcfl-bcc5cbe [CASE...]

All devices and the server run in one process. A ratio is that of the quickest rounds of all
launches, because other users of a machine only slow rounds down. The limits are those against
commit bcc5cbe. The last two columns need lib25519 where the dynamic linker looks, and are left out
elsewhere. Takes about an hour on an idle core.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from harness import figure
from hpcfl.crypto import native
from hpcfl.results import load
from hpcfl.results.summary import everybodys_cpu_seconds

HERE = Path(__file__).resolve().parent.parent


class Case(NamedTuple):
    """A round, its limits by column, how often it is launched, and its rounds in a launch."""

    options: str
    limits: tuple[float, ...]
    launches: int = 5
    rounds: int = 5
    enrols: bool = True  # whether its devices have keys that they can keep for a run


class Column(NamedTuple):
    """What the later version may use."""

    name: str
    options: str
    native: bool


USUAL = "--devices 100 --dim 165000 --dropout 0.3"
MANY = "--devices 1000 --dim 50000 --dropout 0.1"
CASES = {
    "secagg": Case(f"secagg {USUAL} --group fq", (0.90, 0.74, 0.62, 0.54)),
    "sparse": Case(f"sparse {USUAL}", (0.88, 0.63, 0.58, 0.48)),
    "cohort": Case(f"cohort {USUAL}", (0.86, 0.55, 0.60, 0.50)),
    "common": Case(f"common {USUAL} --bits 16", (0.90, 0.58, 0.55, 0.42)),
    "assisted": Case(f"assisted {USUAL}", (0.90, 0.90, 0.70, 0.70), enrols=False),
    "secagg1000": Case(f"secagg {MANY} --group fq", (0.88, 0.64, 0.58, 0.44), 1, 1),
}
COLUMNS = [
    Column("NumPy", "", False),
    Column("NumPy, transport keys of a run", "--transport-keys run", False),
    Column("kernel and lib25519", "", True),
    Column("all", "--transport-keys run", True),
]


def seconds(checkout: Path, options: str, compiled: bool, rounds: int) -> float:
    """Return the CPU seconds of the quickest round with the version in a checkout."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.h5"
        command = [sys.executable, "-m", "hpcfl", "bench", *options.split(), "--output", str(path)]
        # The first round makes the keys of a run; that of 1,000 devices takes minutes.
        warmup = rounds > 1 or "--transport-keys" in options
        command += ["--rounds", f"{rounds}", "--warmup", f"{warmup:d}"]
        environment = os.environ | {"PYTHONPATH": str(checkout), "HPCFL_NATIVE": f"{compiled:d}"}
        subprocess.run(command, env=environment, check=True, cwd=folder, capture_output=True)
        run = load(path)
    code = [run.environment.get(fact) for fact in ("masks_added_by", "keys_agreed_by")]
    assert compiled != any(name in (None, "NumPy", "cryptography") for name in code), code
    return float(everybodys_cpu_seconds(run).min())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("earlier", type=Path, help="a checkout of the earlier version")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}")
    arguments = parser.parse_args()
    columns = COLUMNS if native.lib25519() and native.masker() else COLUMNS[:2]
    for name in arguments.cases or CASES:
        case = CASES[name]
        times = np.empty((case.launches, 1 + len(columns)))
        for launch in times:
            launch[0] = seconds(arguments.earlier.resolve(), case.options, False, case.rounds)
            for place, column in enumerate(columns, 1):
                options = f"{case.options} {column.options if case.enrols else ''}"
                launch[place] = seconds(HERE, options, column.native, case.rounds)
        base, *quickest = times.min(axis=0)
        print(f"{name}: {base:.3f} s with {arguments.earlier.name}")
        for column, time, limit in zip(columns, quickest, case.limits, strict=False):
            figure(f"    {column.name}: {time:.3f} s", time / base, limit)


if __name__ == "__main__":
    main()
