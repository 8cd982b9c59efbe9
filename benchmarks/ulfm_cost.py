"""The cost of being able to continue after the death of a rank, in rounds without a death.

    python benchmarks/ulfm_cost.py [LAUNCHES]

Launches of `hpcfl bench` with and without ``--with-ft ulfm`` alternate, with large and with tiny
messages. The script prints the medians of all their rounds and the ratio of the two.
"""

from __future__ import annotations

import sys
from statistics import median

from harness import launched

RANKS, ROUNDS, LAUNCHES = 17, 10, 3
CASES = (("secagg", 165_000), ("sparse", 165_000), ("sparse", 1_000))


def round_seconds(protocol: str, dim: int, *flags: str) -> list[float]:
    """Return the seconds of the measured rounds of one launch."""
    job = ["mpirun", *flags, "--map-by", ":OVERSUBSCRIBE", "-n", RANKS]
    run = launched(*job, "hpcfl", "bench", protocol, "--dim", dim, "--rounds", ROUNDS)
    found: list[float] = run.round_seconds[run.measured].tolist()
    return found


def main() -> None:
    """Measure and print."""
    launches = int(sys.argv[1]) if len(sys.argv) > 1 else LAUNCHES
    for protocol, dim in CASES:
        plain: list[float] = []
        tolerant: list[float] = []
        for _ in range(launches):
            plain += round_seconds(protocol, dim)
            tolerant += round_seconds(protocol, dim, "--with-ft", "ulfm")
        print(
            f"{protocol}, {RANKS} ranks, d = {dim}: {1e3 * median(plain):.1f} ms, with ULFM "
            f"{1e3 * median(tolerant):.1f} ms, ratio {median(tolerant) / median(plain):.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
