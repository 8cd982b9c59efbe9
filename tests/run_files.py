"""Small rounds with known figures, and the results files that hold them."""

import h5py
import numpy as np

from hpcfl.results.record import KNOWN, RoundRecord
from hpcfl.results.writer import ResultsWriter

# Columns of a run that its seeds fix.
FIXED = (
    *("bytes_up", "bytes_down", "messages_up", "messages_down"),
    *("survived", "validated", "warmup"),
)
PHASES = ("share_keys", "masked_input", "unmask")

CONFIG = {
    "dim": 10,
    "alpha": 0.1,
    "dropout": 0.25,
    "preset": None,
    "uplink_mbps": 8.0,
    "downlink_mbps": 16.0,
    "latency_ms": 1.0,
}
# Datasets missing in files of earlier versions, of one rank, and of runs without tolerance.
OPTIONAL = {dataset.name for dataset in KNOWN if dataset.unknown is not None}
ENVIRONMENT = {"transport": "loopback", "mpi_library": "none", "cpu": "abacus", "hosts": ["a", "b"]}


def random_record(seed, phases=3, devices=4):
    """Return the record of a round in which all array elements differ."""
    rng = np.random.default_rng(seed)
    traffic, times = (phases, devices), (phases, devices + 1)
    return RoundRecord(
        bytes_up=rng.integers(1, 2**64, traffic, np.uint64),
        bytes_down=rng.integers(1, 2**64, traffic, np.uint64),
        messages_up=rng.integers(1, 2**32, traffic, np.uint64),
        messages_down=rng.integers(1, 2**32, traffic, np.uint64),
        wall_seconds=rng.random(times),
        cpu_seconds=rng.random(times),
        round_seconds=float(rng.random()),
        survived=rng.random(devices) < 0.5,
        validated=bool(rng.random() < 0.5),
        warmup=seed == 0,
    )


def simple_record(scale=1, *, warmup=False, validated=True):
    """Return a round of 3 phases and 4 devices; the last device drops out before phase 1.

    All bytes and seconds are `scale` times round numbers, chosen so that a test can work out
    every figure by hand.
    """
    record = RoundRecord.empty(3, 4)
    record.bytes_up[:] = np.array([[10, 10, 10, 30], [100, 200, 300, 0], [0, 0, 0, 0]]) * scale
    record.bytes_down[:] = np.array([[20, 20, 20, 40], [0, 0, 0, 0], [5, 5, 5, 0]]) * scale
    record.messages_up[:] = [[1, 1, 1, 3], [1, 1, 1, 0], [0, 0, 0, 0]]
    record.messages_down[:] = [[1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 1, 0]]
    record.cpu_seconds[:] = (
        np.array([[1, 2, 3, 4, 10], [5, 1, 1, 0, 20], [1, 1, 1, 0, 30]]) * scale / 1000
    )
    record.wall_seconds[:] = (
        np.array([[2, 3, 4, 5, 11], [9, 8, 7, 0, 1], [1, 2, 3, 0, 4]]) * scale / 1000
    )
    record.round_seconds = 0.1 * scale
    record.survived[:] = [True, True, True, False]
    record.validated = validated
    record.warmup = warmup
    return record


def ranked_record(scale, **options):
    """Return such a round with times of three ranks, the second and third of which begin later.

    Each of its phases is half a second of computing, a quarter in MPI and a little waiting, all
    `scale` times as long.
    """
    record = simple_record(scale, **options)
    record.begin_seconds = scale * np.array([[0.0, 0.1, 0.2], [1.0] * 3, [2.0] * 3])
    record.computing_seconds = np.full((3, 3), 0.5 * scale)
    record.mpi_seconds = np.full((3, 3), 0.25 * scale)
    record.waiting_seconds = np.array([[0.0, 0.05, 0.05]] * 3) * scale
    record.end_seconds = record.begin_seconds + 0.8 * scale
    record.skew_seconds, record.clock_uncertainty_seconds = 0.002 * scale, 3e-6
    record.clock_offset_seconds = np.array([0.0, 5.0, -5.0])
    return record


def assert_holds(run, records):
    """Check that a run, or a dict of its arrays, holds exactly these rounds."""
    expected = list(records)
    for name in RoundRecord.__dataclass_fields__:
        known = all(np.size(getattr(record, name)) for record in expected)
        if name in OPTIONAL and (isinstance(run, dict) or not known):
            continue
        stored = run[name] if isinstance(run, dict) else getattr(run, name)
        assert len(stored) == len(expected), name
        for row, record in zip(stored, expected, strict=True):
            np.testing.assert_array_equal(row, getattr(record, name), err_msg=name, strict=False)


def new_writer(path, **changes):
    """Open the file of a run, by default with 3 phases, 4 devices and 3 rounds."""
    options = {
        "protocol": "sparse",
        "command": "hpcfl bench sparse",
        "config": CONFIG,
        "environment": ENVIRONMENT,
        "phases": PHASES,
        "devices": 4,
        "rounds": 3,
    }
    return ResultsWriter(path, **(options | changes))


def write_run(path, records=(), *, status="complete", rounds=None, environment=None, **config):
    """Write a run file of rounds with 3 phases and 4 devices, and return its path."""
    records = list(records)
    protocol = config.pop("protocol", "sparse")
    path.parent.mkdir(exist_ok=True, parents=True)
    writer = new_writer(
        path,
        protocol=protocol,
        command=f"hpcfl bench {protocol}",
        config=CONFIG | config,
        environment=ENVIRONMENT | (environment or {}),
        rounds=rounds or max(1, len(records)),
    )
    for record in records:
        writer.append(record)
    writer.close(status)
    return path


FIGURES = ("accuracy", "bytes_up_total", "modelled_seconds", "epsilon_paper", "epsilon_proven")


def write_growing(
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
    """Write a run of two phases whose seconds and bytes grow with devices and parameters."""
    with new_writer(
        path,
        protocol=protocol,
        config={"dim": dim, "alpha": 0.1} | config,
        environment={"transport": "loopback"} | (facts or {}),
        phases=PHASES[:2],
        devices=devices,
        rounds=rounds,
        training=FIGURES if training else (),
    ) as writer:
        for k in range(1, rounds + 1):
            slower = 1 + 0.1 * (k - 1)
            record = RoundRecord.empty(2, devices)
            record.bytes_up[0], record.bytes_up[1] = 16 * devices, 4 * dim
            record.messages_up[:] = 1
            record.cpu_seconds[:] = 1e-3 * devices * slower
            record.wall_seconds[:] = 2e-3 * devices * (1 + 0.1 * np.arange(devices + 1))
            record.round_seconds = 1e-2 * devices * slower
            record.survived[:] = record.validated = True
            values = dict(zip(FIGURES, (0.1 * k, 1e6 * k, 0.5, 1.5 * k, 1.0 * k), strict=True))
            writer.append(record, values if training else None)
    return path


def write_seconds(path, seconds, *, protocol="secagg", scale=1, warmup=None, **options):
    """Write a run with rounds of these seconds, after a warm-up round if one is given."""
    records = []
    for value in [*([] if warmup is None else [warmup]), *seconds]:
        warming = warmup is not None and not records
        record = simple_record(1 if warming else scale, warmup=warming)
        record.round_seconds = float(value)
        record.cpu_seconds *= float(value)
        records.append(record)
    return write_run(path, records, protocol=protocol, **options)


def cut(path, rounds):
    """Change a complete file into one that was left by a kill after some rounds."""
    with h5py.File(path, "r+") as file:
        file.attrs.modify("status", np.array("running", file.attrs["status"].dtype))
        facts = file["environment"].attrs
        facts.modify("stop_reason", np.array(b"", facts.get_id("stop_reason").dtype))
        file["rounds/finished"][rounds:] = False
