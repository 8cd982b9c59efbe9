"""Learns the costs of a protocol's terms: runs small real rounds and fits their times.

Rounds of different sizes run in one process. The model of a party's CPU seconds in a round is a sum
of its terms, each times a cost of at least 0. The fitted costs minimise the relative errors over
all sizes (non-negative least squares).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np
from scipy.optimize import nnls

from hpcfl import __version__
from hpcfl.algorithms.aggregation import PROTOCOLS, find, work
from hpcfl.algorithms.aggregation.base import AggregationProtocol
from hpcfl.algorithms.aggregation.work import Terms
from hpcfl.benchmark.experiment import Experiment
from hpcfl.comm.loopback import Loopback
from hpcfl.costmodel.calibration import ONCE, Calibration
from hpcfl.costmodel.model import terms_of
from hpcfl.crypto import native
from hpcfl.errors import UsageError
from hpcfl.options.bench import BenchOptions
from hpcfl.options.protocols import TransportOptions
from hpcfl.results.record import RoundRecord
from hpcfl.rounds.observer import Results
from hpcfl.rounds.timed import Played
from hpcfl.system import environment

# Devices N, lengths d and dropout rates of the rounds. Each size is repeated until its rounds are
# at least LEAST_ROUNDS and take LEAST_SECONDS together, or are MOST_ROUNDS.
SIZES = (
    *((6, 64, 0.0), (6, 64, 0.34), (12, 64, 0.3), (40, 64, 0.3), (100, 64, 0.1), (100, 64, 0.3)),
    *((6, 30_000, 0.34), (40, 30_000, 0.3), (100, 60_000, 0.3)),
    *((20, 200_000, 0.0), (20, 200_000, 0.3), (6, 1_000_000, 0.34), (12, 1_000_000, 0.1)),
)
LEAST_SECONDS, LEAST_ROUNDS, MOST_ROUNDS = 0.3, 3, 60
# The sizes at which options that change a protocol's terms are varied.
VARIED_SIZES = ((6, 64, 0.34), (40, 30_000, 0.3), (20, 200_000, 0.3))
ALPHA, OTHER_ALPHA = 0.1, 0.3
# A larger error means that the calibration was disturbed.
MOST_ERROR = 0.1
Costs = Mapping[str, Mapping[str, float]]


def calibrate(protocols: list[str], progress: Callable[[str], object]) -> Calibration:
    """Return the costs of protocols' terms on this machine; call `progress` after each protocol.

    Leave out hpcfl's protocols without a library or terms; raise UsageError for a user's protocol.
    """
    costs, errors = {}, {}
    for name in protocols:
        rounds = list(played(name))[1:]  # the first only warms up
        if rounds:
            kind = find(name).name
            costs[kind], errors[kind] = fitted(rounds)
        elif name not in PROTOCOLS:
            raise UsageError(f"{name} cannot be calibrated: its class declares no terms")
        progress(name)
    local = environment.capture_local()
    kept = {"cpu_model", "cores_usable", "python_version", "numpy_version", "git_commit"}
    # The keystream mode is timed, so it may differ from one command to the next.
    kept |= native.facts().keys() - {"keystream_mode"}
    about = {
        "measured": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "hpcfl_version": __version__,
        **{name: local[name] for name in kept if name in local},
    }
    return Calibration(costs, errors, about)


def played(name: str) -> Iterator[tuple[AggregationProtocol, dict[str, float]]]:
    """Run a protocol at each of its settings; yield the built protocol and each party's seconds."""
    for options, devices in settings(name):
        try:
            experiment = Experiment.prepare(options, devices)
            work.terms(experiment.protocol)
        except UsageError:
            continue  # too few devices for a cohort, or a library is not installed
        records: list[RoundRecord] = []
        spent = 0.0
        while len(records) < LEAST_ROUNDS or (spent < LEAST_SECONDS and len(records) < MOST_ROUNDS):
            results = Results[Played]()
            experiment.run(Loopback(devices, experiment.protocol.helpers), results)
            records += [record for record in results.records if not record.warmup]
            spent = sum(float(record.round_seconds) for record in records)
        yield experiment.protocol, seconds_of(records)


def settings(name: str) -> Iterator[tuple[BenchOptions, int]]:
    """Yield the options and the number of devices of the rounds to run."""
    kind = find(name)

    def setting(size: tuple[int, int, float], **more: Any) -> tuple[BenchOptions, int]:
        devices, dim, dropout = size
        dropout = dropout if kind.tolerates_dropouts else 0.0
        given = {"dim": dim, "dropout": dropout, "alpha": ALPHA, "rounds": 3, "warmup": 1, **more}
        return BenchOptions(name, **given), devices

    # The first setting is an additional warm-up of process and caches, which is not learned from.
    yield from (setting(size) for size in (SIZES[2], *SIZES))
    varied: list[dict[str, Any]] = []
    if kind.sparse_upload:
        # One size is so long that even the uploads do not fit the cache.
        yield from (setting(size, alpha=OTHER_ALPHA) for size in (*VARIED_SIZES, SIZES[-2]))
    if kind.family:
        varied += [{"bits": bits} for bits in ("12", "16", "28", "32")]
    if TransportOptions in kind.options:
        varied += [{"transport_keys": "run"}]
    for more in varied:
        yield from (setting(size, **more) for size in VARIED_SIZES)


def seconds_of(records: list[RoundRecord]) -> dict[str, float]:
    """Return each party's seconds in a round, the median over the rounds."""
    found: dict[str, list[float]] = {}
    for record in records:
        of_devices = record.cpu_seconds[:, :-1].sum(axis=0)
        server = float(record.cpu_seconds[:, -1].sum())
        helpers = np.sum(record.helper_cpu_seconds, axis=0)
        committee = np.isin(np.arange(of_devices.size), np.flatnonzero(record.in_committee))
        members, others = record.survived & committee, record.survived & ~committee
        if others.any():
            found.setdefault("device", []).append(float(of_devices[others].mean()))
        if members.any():
            found.setdefault("member", []).append(float(of_devices[members].mean()))
        if helpers.size:
            found.setdefault("helper", []).append(float(helpers.mean()))
        found.setdefault("server", []).append(server)
        at_work = float(of_devices[record.survived].sum()) + server + float(helpers.sum())
        found.setdefault("around", []).append(record.round_seconds - at_work)
    return {party: float(np.median(seconds)) for party, seconds in found.items()}


def fitted(rounds: list[tuple[AggregationProtocol, dict[str, float]]]) -> tuple[Costs, float]:
    """Return the best-fitting seconds per term for each party, and their error.

    The error is the median relative error over all parties and rounds.
    """
    declared = [(terms_of(protocol), seconds) for protocol, seconds in rounds]
    costs, errors = {}, []
    for party in sorted({party for _, seconds in declared for party in seconds}):
        costs[party], off = _costs(
            [
                ({ONCE: 1.0} | terms[party], seconds[party])
                for terms, seconds in declared
                if party in seconds
            ]
        )
        errors += off
    return costs, float(np.median(errors))


def _costs(samples: list[tuple[Terms, float]]) -> tuple[dict[str, float], list[float]]:
    """Return the cost of each term, and each sample's relative error."""
    names = sorted({name for terms, _ in samples for name in terms})
    counts = np.array([[terms.get(name, 0.0) for name in names] for terms, _ in samples])
    taken = np.maximum([seconds for _, seconds in samples], 1e-7)
    relative = counts / taken[:, None]
    scale = relative.max(axis=0)
    scale[scale == 0] = 1.0
    found, _ = nnls(relative / scale, np.ones(len(samples)))
    errors = np.abs(relative / scale @ found - 1)
    return dict(zip(names, (found / scale).tolist(), strict=True)), errors.tolist()
