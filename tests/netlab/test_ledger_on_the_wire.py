"""What the ledger says that devices sent and received, against what their interfaces counted."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from labs import ENVIRONMENT, star

from hpcfl.netlab import lab
from hpcfl.results import load

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("needs_lab")]

PROGRAM = Path(__file__).parent / "counted_rounds.py"
DEVICES, ROUNDS, DIM = 4, 2, 500_000
ATTEMPTS = 3
# Of every packet, an acknowledgement included: Ethernet, IP, TCP, and TCP's timestamps. A packet
# that is larger than a frame, cut up later or never, is counted once, with its headers.
HEADER_BYTES = 14 + 20 + 20 + 12
TOLERANCE = 0.01
# MPI's headers, and the sizes that are announced, of a device that sends no vector.
FRAMING_BYTES = 1500


def off(ledger, wire):
    """Return how far the wire is from the ledger, as a share, where it is further than it may be.

    All that the ledger has was on the wire, and hardly anything else.
    """
    most = np.maximum(TOLERANCE * ledger, FRAMING_BYTES)
    wrong = (wire < ledger) | (wire > ledger + most)
    return (wire / ledger - 1)[wrong].tolist()


def play(folder, protocol, *options):
    """Return the bytes up, then down, by round and device: those of the ledger, and the wire's."""
    path = folder / "run.h5"
    bench = ("bench", protocol, "--dim", DIM, "--rounds", ROUNDS, "--warmup", 0, *options)
    program = [sys.executable, PROGRAM, folder, *bench, "--output", path]
    assert lab.run(star(DEVICES), [*map(str, program)]) == 0
    run = load(path)
    assert run.validated.all()
    ledger = [each.sum(axis=1)[:, :DEVICES] for each in (run.bytes_up, run.bytes_down)]
    counted = [json.loads((folder / f"{rank + 1}.json").read_text()) for rank in range(DEVICES)]
    received, received_packets, sent, sent_packets = np.array(counted).T
    wire = [sent - HEADER_BYTES * sent_packets, received - HEADER_BYTES * received_packets]
    return np.array(ledger), np.array(wire)


@pytest.mark.parametrize(
    ("protocol", "options"),
    [
        ("fedavg", ["--dropout", 0]),
        ("secagg", ["--dropout", 0.25]),
        ("secagg", ["--dropout", 0, "--group", "ring32", "--upload", "reduce"]),
        ("sparse", ["--dropout", 0]),
    ],
    ids=["fedavg", "secagg", "reduce", "sparse"],
)
def test_interfaces_count_what_the_ledger_says(protocol, options, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", ENVIRONMENT["PATH"])
    # Where others use the cores, TCP sends packets again that only came late: some percent of what
    # a device sends. A wrong ledger is wrong every time.
    for attempt in range(ATTEMPTS):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        wrong = off(*play(folder, protocol, *options))
        if not wrong:
            return
    assert wrong == []
