"""Runs with known figures: benchmarks of several sizes, and private training."""

import numpy as np
from run_files import new_writer

from hpcfl.results.record import RoundRecord

PHASES = ("share_keys", "masked_input")
FIGURES = ("accuracy", "bytes_up_total", "modelled_seconds", "epsilon_paper", "epsilon_proven")


def write_run(
    path,
    protocol="sparse",
    devices=4,
    dim=10,
    *,
    rounds=7,
    training=False,
    facts=None,
    **config,
):
    """Write a run whose seconds and bytes grow with devices and parameters."""
    with new_writer(
        path,
        protocol=protocol,
        command="hpcfl bench",
        config={"dim": dim, "alpha": 0.1, "promises": []} | config,
        environment={"transport": "loopback"} | (facts or {}),
        phases=PHASES,
        devices=devices,
        rounds=rounds,
        training=FIGURES if training else (),
    ) as writer:
        for number in range(rounds):
            record = RoundRecord.empty(2, devices)
            record.bytes_up[0], record.bytes_up[1] = 16 * devices, 4 * dim
            record.messages_up[:] = 1
            record.cpu_seconds[:] = 1e-3 * devices * (1 + 0.1 * number)
            record.wall_seconds[:] = 2e-3 * devices * (1 + 0.1 * np.arange(devices + 1))
            record.round_seconds = 1e-2 * devices * (1 + 0.1 * number)
            record.survived[:] = record.validated = True
            k = number + 1
            values = dict(zip(FIGURES, (0.1 * k, 1e6 * k, 0.5, 1.5 * k, 1.0 * k), strict=True))
            writer.append(record, values if training else None)
    return path
