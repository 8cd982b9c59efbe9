"""CPU time of a device in a round of `sparse` against `secagg`: all phases, N = 100, alpha = 0.1.

The median over the surviving devices and rounds. The limit is meant for d = 1,663,370; with short
vectors the key agreements, which both protocols need, weigh more. Takes about 60 s on one core.
"""

from __future__ import annotations

import numpy as np

from harness import figure, run


def device_seconds(protocol: str, dim: int) -> float:
    """Return the CPU seconds of a typical device."""
    _, records = run(protocol, 100, dim=dim, rounds=2, warmup=1)
    totals = [record.cpu_seconds[:, :-1].sum(axis=0)[record.survived] for record in records]
    return float(np.median(totals))


def main() -> None:
    for dim, limit in ((1_663_370, 0.25), (165_000, 1.0)):
        sparse, secagg = device_seconds("sparse", dim), device_seconds("secagg", dim)
        figure(
            f"d={dim:,}: sparse ({sparse * 1e3:.1f} ms) / secagg ({secagg * 1e3:.1f} ms)",
            sparse / secagg,
            limit,
        )


if __name__ == "__main__":
    main()
