"""CPU time of a report of PINE, at the device and at each server, beside a device of `secagg`.

N = 100 and d = 165,000. The works alternate, and the times are the shortest. Takes about 40 s on
one core.
"""

from __future__ import annotations

import os
from functools import partial

import numpy as np

from beside_secagg import DIM, spent
from harness import cpu_seconds, figure
from hpcfl.crypto.pine import HELPER, LEADER, Pine, largest_bound

REPEATS = 10
LIMITS = {"shard": 4.4, "prepare at the leader": 1.6, "prepare at the helper": 1.6}


def main() -> None:
    parties, nonce, key = Pine(DIM, largest_bound()), os.urandom(16), os.urandom(32)
    spread = 0.9 * largest_bound() / DIM**0.5
    vector = np.random.default_rng(1).normal(0, spread, DIM).round().astype(np.int64)
    shard = partial(parties.shard, vector, nonce, os.urandom(parties.rand_bytes))
    public, *shares = shard()
    works = [shard] + [
        partial(parties.prepare, number, key, nonce, public, share)
        for number, share in zip((LEADER, HELPER), shares, strict=True)
    ]
    found = []
    for _ in range(3):
        secagg = spent("secagg", 100, 2, dim=DIM).device
        found += [[secagg, *map(cpu_seconds, works)] for _ in range(REPEATS)]
    secagg, *seconds = np.min(found, axis=0).tolist()
    for (name, limit), each in zip(LIMITS.items(), seconds, strict=True):
        told = f"{name} ({each * 1e3:.1f} ms) / a device of secagg ({secagg * 1e3:.1f} ms)"
        figure(told, each / secagg, limit)


if __name__ == "__main__":
    main()
