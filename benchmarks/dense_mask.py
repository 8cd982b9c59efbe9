"""Time of one device's dense mask against the bare AES-CTR keystream of the same bytes.

N = 100 masks (99 pairwise, one private) of d = 1,663,370 elements; CPU seconds, each pair of times
taken back to back, the median of their ratios. Takes about 10 s on one core.
"""

from __future__ import annotations

import os
from functools import partial

import numpy as np

from harness import cpu_seconds, figure
from hpcfl.crypto import keystream
from hpcfl.crypto.groups import GROUPS

DIM = 1_663_370
MASKS = 100
REPEATS = 15


def bare(keys: list[bytes]) -> None:
    """Generate the keystreams of all masks, in the same blocks, and use them for nothing."""
    streams = [keystream.open_stream(key) for key in keys]
    block = np.empty(keystream.BLOCK_BYTES, np.uint8)
    for start in range(0, 4 * DIM, keystream.BLOCK_BYTES):
        part = block[: min(keystream.BLOCK_BYTES, 4 * DIM - start)]
        for stream in streams:
            keystream.fill(stream, part)


def main() -> None:
    keys = [os.urandom(keystream.KEY_BYTES) for _ in range(MASKS)]
    signs = [(-1) ** k for k in range(MASKS)]
    vector = np.zeros(DIM, np.uint32)
    for name, limit in (("fq", 2.5), ("ring32", 1.5)):
        mask = partial(GROUPS[name].add_masks, vector, keys, signs)
        floor = partial(bare, keys)
        times = np.array([(cpu_seconds(floor), cpu_seconds(mask)) for _ in range(REPEATS)])
        bare_ms, mask_ms = np.median(times, axis=0) * 1e3
        figure(
            f"mask of N=100, d=1,663,370 in {name} ({mask_ms:.0f} ms) / bare keystream "
            f"({bare_ms:.0f} ms)",
            float(np.median(times[:, 1] / times[:, 0])),
            limit,
        )


if __name__ == "__main__":
    main()
