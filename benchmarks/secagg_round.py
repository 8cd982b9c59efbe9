"""CPU time of a whole `secagg` round: N = 100, d = 165,000, 30 devices drop out before they upload.

All devices and the server run in one process. Their time is compared with that of the bare AES-CTR
keystream for all masks of such a round: 70 x 100 on the devices, 70 + 30 x 70 at the server. Takes
about 20 s on one core.
"""

from __future__ import annotations

import os

import numpy as np

from harness import cpu_seconds, figure, run
from hpcfl.crypto import keystream
from hpcfl.crypto.groups import GROUPS

DIM = 165_000
MASKS = 70 * 100 + 70 + 30 * 70


def keystream_of_all_masks() -> None:
    """Generate the keystream of every mask of the round, and discard it."""
    block = np.empty(keystream.BLOCK_BYTES, np.uint8)
    for _ in range(MASKS):
        stream = keystream.open_stream(os.urandom(keystream.KEY_BYTES))
        for start in range(0, 4 * DIM, keystream.BLOCK_BYTES):
            keystream.fill(stream, block[: min(keystream.BLOCK_BYTES, 4 * DIM - start)])


def main() -> None:
    floor = cpu_seconds(keystream_of_all_masks)
    for group, most in (("fq", 3.0), ("ring32", 3.0), ("ring16", 1.2)):
        experiment, records = run("secagg", 100, dim=DIM, dropout=0.3, group=group, rounds=5)
        seconds = np.array([record.cpu_seconds.sum() for record in records])
        figure(f"secagg round in {group}, all CPU seconds", float(np.median(seconds)), most, " s")
        words = floor * GROUPS[group].dtype.itemsize / 4
        print(f"    {np.median(seconds) / words:.2f} x the {words:.2f} s of the bare keystream")
        by_phase = np.median([record.cpu_seconds for record in records], axis=0)
        for name, row in zip(experiment.protocol.phases(), by_phase, strict=True):
            print(f"    {name:<16} devices {row[:-1].sum():6.3f} s   server {row[-1]:6.3f} s")


if __name__ == "__main__":
    main()
