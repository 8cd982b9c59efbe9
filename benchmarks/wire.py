"""Bytes of an upload, counted on the messages of real rounds, against the formulas.

SparseSecAgg, Table I: 0.66 MB (SecAgg) against 0.08 to 0.083 MB (alpha = 0.1) per device and round.
Also values of 16 bits, and coordinates common to all devices. Takes about a minute on one core.
"""

from __future__ import annotations

import math

import numpy as np

from harness import figure, run
from hpcfl.comm import envelope
from hpcfl.options.bench import BenchOptions
from hpcfl.rounds.build import build

DIM = 165_000
LONG = 1_663_370


def upload_bytes(protocol: str, devices: int, **options: object) -> tuple[float, int, float]:
    """Return the mean and largest upload of the survivors in three rounds, and p."""
    experiment, records = run(protocol, devices, dim=DIM, rounds=3, warmup=0, **options)
    phase = experiment.protocol.phases().index("masked_input")
    sizes = np.concatenate([record.bytes_up[phase][record.survived] for record in records])
    return (float(sizes.mean()), int(sizes.max()), experiment.protocol.inclusion)


def all_bytes(devices: int, **options: object) -> float:
    """Return the bytes that a survivor of `common` sends in a round, with keys and shares."""
    options |= {"alpha": 0.1, "bits": "16"}
    _, (record,) = run("common", devices, dim=LONG, rounds=1, warmup=0, **options)
    return float(record.bytes_up[:, record.survived].sum(axis=0).mean())


def chosen_degree(devices: int) -> int:
    """Return the number of neighbours that each device needs for the default promise."""
    protocol, _ = build("secagg-graph", BenchOptions(protocol="secagg-graph"), devices, LONG)
    return int(protocol.settings()["degree"])


def main() -> None:
    mean, largest, p = upload_bytes("sparse", 100, locations="bitmap")
    formula = 4 * DIM * p + DIM / 8
    figure("sparse with bitmap / (4 d p + d/8), N=100", mean / formula, 1.01)
    figure("(4 d p + d/8) / sparse with bitmap, N=100", formula / mean, 1.01)
    coded, _, p = upload_bytes("sparse", 100, locations="gaps")
    entropy = -(p * math.log2(p) + (1 - p) * math.log2(1 - p))
    figure(
        "sparse with coded gaps / (4 d p + d H(p)/8), N=100",
        coded / (4 * DIM * p + DIM * entropy / 8),
        1.01,
    )
    dense, dense_largest, _ = upload_bytes("secagg", 100)
    figure(
        "secagg less 4 d, N=100: the fixed header", dense_largest - 4 * DIM, envelope.BYTES, " B"
    )
    _, narrow_largest, _ = upload_bytes("secagg", 100, bits="16")
    figure("secagg of 16 bits less 2 d", narrow_largest - 2 * DIM, envelope.BYTES, " B")
    for devices, options in ((25, {}), (100, {}), (100, {"degree": chosen_degree(100)})):
        sent = all_bytes(devices, **options)
        what = f"all that common of 16 bits sends, N={devices} {options or ''}"
        figure(f"{what} / 4 d of secagg", sent / (4 * LONG), 0.052)
    print("\n  N   secagg MB   sparse MB (bitmap): mean   largest   ratio   coded gaps MB   ratio")
    for devices in (25, 50, 75, 100):
        mean, largest, _ = upload_bytes("sparse", devices, locations="bitmap")
        coded, _, _ = upload_bytes("sparse", devices, locations="gaps")
        print(
            f"{devices:3}   {dense / 1e6:9.4f}   {mean / 1e6:24.4f}   {largest / 1e6:7.4f}"
            f"   {dense / mean:4.2f}x   {coded / 1e6:13.4f}   {dense / coded:4.2f}x"
        )
    print("Paper, Table I: secagg 0.66; sparse 0.08, 0.082, 0.083, 0.083; 8.2x.")


if __name__ == "__main__":
    main()
