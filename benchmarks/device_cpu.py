"""CPU time of a device in a round of `sparse` and `cohort` against `secagg`: N = 100, alpha = 0.1.

The time covers all phases and is the median over the surviving devices and rounds. The limits are
meant for d = 1,663,370. With short vectors, the key agreements of all protocols weigh more. Takes
about 90 s on one core.
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
    for dim, limits in (
        (1_663_370, {"sparse": 0.25, "cohort": 1 / 3}),
        (165_000, {"sparse": 1.0, "cohort": 1.0}),
    ):
        secagg = device_seconds("secagg", dim)
        for protocol, limit in limits.items():
            seconds = device_seconds(protocol, dim)
            figure(
                f"d={dim:,}: {protocol} ({seconds * 1e3:.1f} ms) / secagg ({secagg * 1e3:.1f} ms)",
                seconds / secagg,
                limit,
            )


if __name__ == "__main__":
    main()
