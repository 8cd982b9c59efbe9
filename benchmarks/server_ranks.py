"""The speed-up of `unmask`, and of the whole round, by a second rank of the server.

python benchmarks/server_ranks.py              N = 100, d = 1,663,370, 30 dropouts; 3 minutes
python benchmarks/server_ranks.py --rounds 9   more rounds

Of three ranks, one or two belong to the server. Waiting ranks sleep, so that two cores are free.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from hpcfl.results.reader import load

RANKS, WANTED = 3, 1.7
# Without this, waiting ranks of Open MPI would poll without a pause and occupy one of two cores.
ASLEEP = (
    "from hpcfl.comm import patient; patient.YIELDING = (); from hpcfl.__main__ import main; main()"
)


def seconds(servers: int, group: str, given: argparse.Namespace) -> tuple[float, float]:
    """Return the seconds of `unmask` at the server, and of a round."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.h5"
        command = [
            *("mpirun", "-n", str(RANKS), "--oversubscribe", sys.executable, "-c", ASLEEP),
            *("bench", "secagg", "--devices", str(given.devices), "--dim", str(given.dim)),
            *("--group", group, "--server-ranks", str(servers), "--output", str(path)),
            *("--rounds", "1", "--warmup", "0"),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        run = load(path)
    assert run.validated.all()
    unmask = run.phases.index("unmask")
    return float(run.wall_seconds[0, unmask, -1]), float(run.round_seconds[0])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument("--dim", type=int, default=1_663_370)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    for group in ("fq", "ring32", "ring16"):
        # The two alternate, so that other load on the machine affects both alike.
        found = [[seconds(k, group, given) for k in (1, 2)] for _ in range(given.rounds)]
        one, two = (median(each[k][0] for each in found) for k in (0, 1))
        rounds = [median(each[k][1] for each in found) for k in (0, 1)]
        verdict = "met" if one / two >= WANTED else "NOT MET"
        print(
            f"{group:<7} unmask: {one:7.3f} s with a rank, {two:7.3f} s with two: "
            f"{one / two:5.2f} times as fast   at least {WANTED}: {verdict}; "
            f"round {rounds[0]:.2f} and {rounds[1]:.2f} s"
        )


if __name__ == "__main__":
    main()
