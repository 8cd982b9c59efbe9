"""Peak memory of a round of `secagg` in one process, where rows of all pairs are exchanged.

Takes two minutes with 1,000 devices on one core, 20 with 3,000:

    python benchmarks/route_memory.py 3000
"""

from __future__ import annotations

import resource
import sys

from harness import figure, run
from hpcfl.rounds.memory import row_bytes

LIMIT_GB = 1.5  # with 3,000 devices


def main() -> None:
    devices = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    run("secagg", 2, dim=100, rounds=1, warmup=0)  # what is loaded and is no part of the round
    before = _peak_bytes()
    experiment, _ = run("secagg", devices, dim=100, rounds=1, warmup=0, dropout=0.3)
    rows, peak = row_bytes(experiment.protocol, devices), _peak_bytes()
    print(f"N = {devices:,}: rows {rows / 1e9:.3f} GB, {before / 1e9:.3f} GB before the round")
    figure("peak of the process", peak / 1e9, LIMIT_GB, " GB")
    figure(
        "what the round added / its rows", (peak - before) / rows, experiment.protocol.rows_at_peak
    )


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
