"""The speed-up of the server's `unmask` by a second thread and by fewer bits, in one process.

python benchmarks/threads.py              N = 100, d = 1,663,370, 30 dropouts; two idle cores
python benchmarks/threads.py --rounds 5   more rounds
"""

from __future__ import annotations

import argparse

from harness import run, speed_up


def seconds(threads: int, group: str, given: argparse.Namespace) -> float:
    """Return the seconds of `unmask` at the server."""
    options = {"rounds": 1, "warmup": 0, "group": group, "threads": threads}
    experiment, (record,) = run("secagg", given.devices, dim=given.dim, **options)
    return float(record.wall_seconds[experiment.phases.index("unmask"), -1])


if __name__ == "__main__":
    speed_up(__doc__, "threads", 1.6, seconds)
