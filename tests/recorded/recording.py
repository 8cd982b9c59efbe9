"""Seeded runs, as what moved and what was written: the same to the bit from version to version.

    python tests/recorded/recording.py      # writes recorded.json again

Only a change that is meant to change bytes on the wire or what a file says writes it again, and its
message says why.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcfl.benchmark.experiment import Experiment, asked
from hpcfl.comm.loopback import Loopback
from hpcfl.rounds.observer import Results
from hpcfl.rounds.timed import Played

FILE = Path(__file__).with_name("recorded.json")
DEVICES = 12
COMMON = {"dim": 90, "rounds": 2, "warmup": 1, "seed": 5, "insecure_seed": 7}
# Options of `hpcfl bench`, by the name of the run.
RUNS: dict[str, dict[str, Any]] = {
    "fedavg": {"protocol": "fedavg"},
    "secagg": {"protocol": "secagg"},
    "secagg, ring32": {"protocol": "secagg", "group": "ring32", "scaling": "paper"},
    "secagg, reduced": {"protocol": "secagg", "upload": "reduce"},
    "secagg, early dropouts": {"protocol": "secagg", "dropout_phase": "share_keys"},
    "secagg, late dropouts": {"protocol": "secagg", "dropout_phase": "unmask"},
    "secagg, dropouts by chance": {"protocol": "secagg", "dropout_model": "bernoulli"},
    "secagg, active": {"protocol": "secagg", "security": "active", "gamma": 0.0},
    "secagg-graph": {"protocol": "secagg-graph", "degree": 8},
    "sparse": {"protocol": "sparse", "alpha": 0.3},
    "sparse, bitmap": {"protocol": "sparse", "alpha": 0.3, "locations": "bitmap"},
    "sparse, active": {"protocol": "sparse", "alpha": 0.3, "security": "active", "gamma": 0.0},
    "cohort": {"protocol": "cohort", "alpha": 0.4},
    "cohort, floor": {"protocol": "cohort", "alpha": 1.0, "min_cohort": 2, "gamma": 0.0},
    "common": {"protocol": "common", "alpha": 0.4},
    "secagg, 12 bits": {"protocol": "secagg", "bits": "12"},
    "sparse, 20 bits": {"protocol": "sparse", "alpha": 0.3, "bits": "20"},
    "cohort, 8 bits": {"protocol": "cohort", "alpha": 0.4, "bits": "8"},
    "assisted": {"protocol": "assisted", "bits": "16"},
    "pine": {"protocol": "pine"},
    "lightsecagg": {"protocol": "lightsecagg", "gamma": 0.2},
    "committee": {"protocol": "committee", "dropout": 0.1},
    "opa": {"protocol": "opa", "dropout": 0.1, "bits": "20"},
    "prf": {"protocol": "prf", "dropout": 0.0},
    "dp-fedavg": {"protocol": "dp-fedavg", "noise_multiplier": 1.0},
    "dp-fedavg, cohort": {"protocol": "dp-fedavg", "aggregate": "cohort", "alpha": 0.5},
}
# TenSEAL draws keys and errors from the operating system, whatever the seed is.
NOT_RECORDED = {"ckks"}
# Words in the names of what a file says of the machine and the moment, or of what the last bit
# differs in from processor to processor; the rest must not change.
OF_THE_RUN = (
    *("seconds", "command", "started", "finished", "run_id", "version", "promise_failure"),
    *("resident", "peak"),
)
FILES = ("secagg", "sparse, active", "dp-fedavg, cohort")


class Hearing(Loopback):
    """A loopback that keeps a digest of every message that moves."""

    def __init__(self, devices, helpers):
        super().__init__(devices, helpers)
        self.digest = hashlib.sha256()
        self.bytes = 0

    def _hear(self, message):
        raw = np.ascontiguousarray(message).tobytes()
        self.digest.update(len(raw).to_bytes(8, "little") + raw)
        self.bytes += len(raw)

    def broadcast(self, message, error=None):
        heard = super().broadcast(message, error)
        self._hear(heard)
        return heard

    def scatter(self, receivers, produce):
        for receiver, message in super().scatter(receivers, produce):
            self._hear(message)
            yield receiver, message

    def gather(self, senders, produce, largest):
        for sender, message in super().gather(senders, produce, largest):
            self._hear(message)
            yield sender, message

    def reduce(self, senders, produce, group, dim):
        sent, total = super().reduce(senders, produce, group, dim)
        self._hear(total)
        return sent, total

    def route(self, senders, rows, width):
        blocks = list(rows)
        for block in blocks:
            self._hear(block)
        return super().route(senders, blocks, width)


def wire(options):
    """Return a digest of what moved in a run, and what was counted of it."""
    run = Experiment.prepare(asked(COMMON | options), DEVICES)
    transport, rounds = Hearing(DEVICES, run.protocol.helpers), Results[Played]()
    run.run(transport, rounds)
    return {
        "messages": transport.digest.hexdigest(),
        "bytes": transport.bytes,
        "bytes_up": [record.bytes_up.sum(axis=1).tolist() for record in rounds.records],
        "survivors": [np.flatnonzero(record.survived).tolist() for record in rounds.records],
    }


def file(options, folder):
    """Return what the file of a run says, without what was measured: values or their digests."""
    path = folder / f"{len(list(folder.iterdir()))}.h5"
    given = COMMON | options | {"devices": DEVICES, "output": path}
    command = [Path(sys.executable).with_name("hpcfl"), "bench", given.pop("protocol")]
    for name, value in given.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    found: dict[str, Any] = {}

    def visit(name, item):
        if name == "environment":
            return
        measured = any(word in name for word in OF_THE_RUN)
        if isinstance(item, h5py.Dataset):
            array = np.asarray(item)
            text = json.dumps(array.astype(str).tolist() if array.dtype.hasobject else None)
            raw = text.encode() if array.dtype.hasobject else array.tobytes()
            value = "" if measured else hashlib.sha256(raw).hexdigest()[:16]
            found[name] = [item.dtype.str, list(item.shape), value]
        for key, value in item.attrs.items():
            told = measured or any(word in key for word in OF_THE_RUN)
            found[f"{name}@{key}"] = type(value).__name__ if told else str(value)

    with h5py.File(path) as stored:
        visit("", stored)
        stored.visititems(visit)
    # The order in which options are defined says nothing.
    return found | {"@asked": json.dumps(json.loads(found["@asked"]), sort_keys=True)}


def record():
    """Return all runs as they are now."""
    with tempfile.TemporaryDirectory() as folder:
        return {
            "wire": {name: wire(options) for name, options in RUNS.items()},
            "file": {name: file(RUNS[name], Path(folder)) for name in FILES},
        }


if __name__ == "__main__":
    FILE.write_text(json.dumps(record(), indent=1) + "\n")
