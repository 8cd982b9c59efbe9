"""CPU time of `--security active` over that of the passive variant: N = 100, d = 165,000.

Runs of both alternate in one process; 30 devices drop out before they upload. A device's time
covers all phases and is the median over the surviving devices, then over the rounds. The cost of
the paper's signatures instead of tags is printed separately: one signature of every peer's keys,
and t - 1 of the list of survivors. Takes about 90 s on one core.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from harness import cpu_seconds, figure, run
from hpcfl.comm.loopback import Loopback
from hpcfl.crypto.signatures import SigningKey, is_signed
from hpcfl.results.record import RoundRecord
from hpcfl.rounds.enrolment import enrol

DEVICES, DIM = 100, 165_000
TURNS, ROUNDS = 4, 2
LIMIT = 1.3


def device(record: RoundRecord) -> float:
    """Return the CPU seconds of a typical surviving device in a round."""
    return float(np.median(record.cpu_seconds[:, :-1].sum(axis=0)[record.survived]))


FIGURES: dict[str, Callable[[RoundRecord], float]] = {
    "a device": device,
    "the slowest device": lambda record: record.cpu_seconds[:, :-1].sum(axis=0).max(),
    "the server": lambda record: record.cpu_seconds[:, -1].sum(),
    "everybody": lambda record: record.cpu_seconds.sum(),
}


def compare(protocol: str) -> None:
    records: dict[str, list[RoundRecord]] = {"passive": [], "active": []}
    for turn in range(TURNS):
        for security in [*records] if turn % 2 else reversed(records):
            experiment, some = run(
                protocol, DEVICES, dim=DIM, security=security, rounds=ROUNDS, warmup=1
            )
            records[security] += some
    passive, active = records.values()
    for name, spent in FIGURES.items():
        before, after = (float(np.median([*map(spent, some)])) for some in (passive, active))
        label = f"{protocol}, CPU of {name}: {after * 1e3:.2f} / {before * 1e3:.2f} ms"
        figure(label, after / before, LIMIT)
    for name in ("bytes_up", "bytes_down"):
        before, after = (
            np.mean([getattr(one, name).sum(axis=0)[one.survived].mean() for one in some])
            for some in (passive, active)
        )
        print(f"    {name} of a device: {after:,.0f}, {after - before:,.0f} more")
    enrolled = enrol(type(experiment.protocol), Loopback(DEVICES))
    assert enrolled is not None
    once = float(np.median(enrolled.record.cpu_seconds[:, :-1].sum(axis=0)))
    print(f"    enrolment, once: {once * 1e3:.1f} ms a device")
    threshold = experiment.protocol.parameters.threshold
    with_paper = np.median([*map(device, active)]) + signatures_of_the_paper(threshold)
    share = with_paper / np.median([*map(device, passive)])
    print(f"    with the paper's {DEVICES - 1} + {threshold - 1} signatures: {share:.2f} x")


def signatures_of_the_paper(threshold: int) -> float:
    """Return the CPU seconds in which a device makes two signatures and checks all others."""
    key, message = SigningKey.generate(os.urandom), os.urandom(64)
    signature = key.sign(b"keys", message)

    def work() -> None:
        key.sign(b"keys", message)
        key.sign(b"list", message)
        for _ in range(DEVICES - 1 + threshold - 1):
            assert is_signed(key.public, signature, b"keys", message)

    return min(cpu_seconds(work) for _ in range(5))


if __name__ == "__main__":
    for name in ("secagg", "sparse"):
        compare(name)
