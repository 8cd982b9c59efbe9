"""CPU time of `--security active` over that of the passive variant: N = 100, d = 165,000.

Rounds of both take turns in one process, first the one, then the other; 30 devices drop out before
they upload. A device's time is the median over the surviving devices, of all phases; medians over
the rounds. The enrolment comes once a run and is given apart, and so is what the paper's signatures
would take in place of tags: one of every peer's keys, and t - 1 of the list of survivors. Takes
about 60 s on one core.
"""

from __future__ import annotations

import os
from functools import partial

import numpy as np

from harness import cpu_seconds, figure
from hpcfl.benchmark.experiment import Experiment
from hpcfl.comm.loopback import Loopback
from hpcfl.crypto.signatures import SigningKey, is_signed
from hpcfl.options.bench import BenchOptions
from hpcfl.results.record import RoundRecord
from hpcfl.rounds.enrolment import enrol
from hpcfl.rounds.timed import play

DEVICES, DIM = 100, 165_000
ROUNDS, WARMUP = 8, 1
LIMIT = 1.3
SECURITIES = ("passive", "active")


class Side:
    """One of the two variants, ready to play a round after the other."""

    def __init__(self, protocol: str, security: str) -> None:
        options = BenchOptions(protocol=protocol, dim=DIM, security=security)
        self.experiment = Experiment.prepare(options, DEVICES)
        self.transport = Loopback(DEVICES)
        self.enrolled = enrol(type(self.experiment.protocol), self.transport, first_round=0)
        self.records: list[RoundRecord] = []

    def play(self, index: int) -> None:
        played = play(
            self.experiment.protocol,
            self.transport,
            index=index,
            model=np.zeros(DIM, np.float32),
            inputs=partial(self.experiment.updates.vector, index),
            dropouts=self.experiment.schedule.draw(index),
            enrolled=self.enrolled,
        )
        if not played.record.validated:
            raise SystemExit(f"round {index} is wrong")
        if index >= WARMUP:
            self.records.append(played.record)

    def device(self) -> float:
        """Return the CPU seconds of a typical surviving device."""
        totals = [one.cpu_seconds[:, :-1].sum(axis=0)[one.survived] for one in self.records]
        return float(np.median([np.median(total) for total in totals]))

    def slowest(self) -> float:
        """Return the CPU seconds of the slowest device."""
        totals = [one.cpu_seconds[:, :-1].sum(axis=0).max() for one in self.records]
        return float(np.median(totals))

    def server(self) -> float:
        """Return the CPU seconds of the server."""
        return float(np.median([one.cpu_seconds[:, -1].sum() for one in self.records]))

    def everybody(self) -> float:
        """Return the CPU seconds of all devices and the server."""
        return float(np.median([one.cpu_seconds.sum() for one in self.records]))

    def sent(self) -> float:
        """Return the bytes that a surviving device sends."""
        totals = [one.bytes_up.sum(axis=0)[one.survived].mean() for one in self.records]
        return float(np.mean(totals))

    def received(self) -> float:
        """Return the bytes that a surviving device receives."""
        totals = [one.bytes_down.sum(axis=0)[one.survived].mean() for one in self.records]
        return float(np.mean(totals))


def compare(protocol: str) -> None:
    passive, active = (Side(protocol, security) for security in SECURITIES)
    for index in range(WARMUP + ROUNDS):
        for side in (passive, active) if index % 2 else (active, passive):
            side.play(index)
    for name in ("device", "slowest", "server", "everybody"):
        before, after = getattr(passive, name)(), getattr(active, name)()
        label = f"{protocol}, CPU of {name}: {after * 1e3:.2f} / {before * 1e3:.2f} ms"
        figure(label, after / before, LIMIT)
    phases = active.experiment.protocol.phases()
    check = phases.index("consistency_check")
    spent = np.median([one.cpu_seconds[check] for one in active.records], axis=0)
    print(
        f"    consistency_check: {np.median(spent[:-1]) * 1e3:.3f} ms a device, "
        f"{spent[-1] * 1e3:.3f} ms at the server"
    )
    for name in ("sent", "received"):
        before, after = getattr(passive, name)(), getattr(active, name)()
        print(f"    bytes {name} by a device: {after:,.0f}, {after - before:,.0f} more")
    assert active.enrolled is not None
    once = active.enrolled.record.cpu_seconds.sum(axis=0)
    print(
        f"    enrolment, once: {np.median(once[:-1]) * 1e3:.1f} ms a device, "
        f"{once[-1] * 1e3:.1f} ms at the server"
    )
    threshold = active.experiment.protocol.parameters.threshold
    paper = (active.device() + signatures_of_the_paper(threshold)) / passive.device()
    print(f"    with the paper's {DEVICES - 1} + {threshold - 1} signatures: {paper:.2f} x")


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


def main() -> None:
    for protocol in ("secagg", "sparse"):
        compare(protocol)


if __name__ == "__main__":
    main()
