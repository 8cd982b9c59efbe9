"""The speed-up of `unmask` by a second rank of the server.

python benchmarks/server_ranks.py              N = 100, d = 1,663,370, 30 dropouts; 3 minutes
python benchmarks/server_ranks.py --rounds 9   more rounds

Of three ranks, one or two belong to the server. Waiting ranks sleep, so that two cores are free.
"""

from __future__ import annotations

import argparse
import sys

from harness import launched, speed_up

RANKS = 3
# Without this, waiting ranks of Open MPI would poll without a pause and occupy one of two cores.
ASLEEP = (
    "from hpcfl.comm import patient; patient.YIELDING = (); from hpcfl.__main__ import main; main()"
)


def seconds(servers: int, group: str, given: argparse.Namespace) -> float:
    """Return the seconds of `unmask` at the server."""
    run = launched(
        *("mpirun", "-n", RANKS, "--oversubscribe", sys.executable, "-c", ASLEEP),
        *("bench", "secagg", "--devices", given.devices, "--dim", given.dim, "--group", group),
        *("--server-ranks", servers, "--rounds", 1, "--warmup", 0),
    )
    assert run.validated.all()
    return float(run.wall_seconds[0, run.phases.index("unmask"), -1])


if __name__ == "__main__":
    speed_up(__doc__, "server ranks", 1.7, seconds)
