"""The speed-up of the server's `unmask` by a second thread and by fewer bits, in one process.

python benchmarks/threads.py              N = 100, d = 1,663,370, 30 dropouts; two idle cores
python benchmarks/threads.py --rounds 5   more rounds
"""

from __future__ import annotations

import argparse
from statistics import median

from harness import run

UNMASK = 4
WANTED = 1.6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument("--dim", type=int, default=1_663_370)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    for group in ("fq", "ring32", "ring16"):
        seconds: dict[int, list[float]] = {1: [], 2: []}
        # The two alternate, so that other load on the machine affects both alike.
        for _ in range(given.rounds):
            for threads, found in seconds.items():
                options = {"rounds": 1, "warmup": 0, "group": group, "threads": threads}
                _, records = run("secagg", given.devices, dim=given.dim, **options)
                found += [float(record.wall_seconds[UNMASK, -1]) for record in records]
        one, two = (median(found) for found in seconds.values())
        verdict = "met" if one / two >= WANTED else "NOT MET"
        print(
            f"{group:<7} unmask: {one:7.3f} s with a thread, {two:7.3f} s with two: "
            f"{one / two:5.2f} times as fast   at least {WANTED}: {verdict}"
        )


if __name__ == "__main__":
    main()
