"""What helpers leave to a device: `assisted` with K = 2, N = 100, d = 165,000, 30 dropouts.

python benchmarks/helped_masks.py              ten seconds of one core
python benchmarks/helped_masks.py --rounds 9   more rounds

CPU time of a device's upload against the bare keystream of its two masks and its quantisation, and
its bytes.
"""

from __future__ import annotations

import argparse
import os
from statistics import median

import numpy as np

from harness import cpu_seconds, figure, run
from hpcfl.algorithms.aggregation.assisted import Assisted
from hpcfl.crypto import keystream
from hpcfl.crypto.groups import FQ
from hpcfl.rounds.inputs import SyntheticUpdates

DEVICES, DIM, HELPERS, REPEATS = 100, 165_000, 2, 50
MORE_BYTES = 200


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    plan = {"dim": DIM, "dropout": 0.3, "rounds": rounds, "warmup": 1, "helpers": HELPERS}
    experiment, records = run("assisted", DEVICES, **plan)
    protocol = experiment.protocol
    assert isinstance(protocol, Assisted)
    upload, unmask = (protocol.phases().index(name) for name in ("masked_input", "unmask"))
    sent = records[0].bytes_up.sum(axis=0).max()
    figure("bytes that a device sends, beyond 4 d", float(sent) - 4 * DIM, MORE_BYTES, " B")

    vector = SyntheticUpdates(DIM, 0).vector(0, 0)
    block = np.empty(4 * DIM, np.uint8)

    def bare() -> None:
        """Generate two masks for nothing, and quantise."""
        for _ in range(HELPERS):
            keystream.fill(keystream.open_stream(os.urandom(keystream.KEY_BYTES)), block)
        FQ.reduce(protocol.quantise(vector, 0, 0))

    floor = median(cpu_seconds(bare) for _ in range(REPEATS))
    survived = records[0].survived
    spent = median(
        float(np.median(record.cpu_seconds[upload, :-1][survived])) for record in records
    )
    print(f"device {1e3 * spent:.2f} ms, keystream of two masks and quantisation {1e3 * floor:.2f}")
    figure("device over the bare keystream and quantisation", spent / floor, 2.5)
    helper = median(float(record.helper_cpu_seconds[unmask].max()) for record in records)
    print(f"each helper {1e3 * helper:.1f} ms for {int(survived.sum())} masks")


if __name__ == "__main__":
    main()
