"""What one hostile device does to a training: it sends minus its update, far too long.

Masks hide the device's vector, so a server that only sums cannot clip it. The accuracy is compared
with that of a training without the device's attack. To attack another command's training or rounds,
name the protocol ``hpcfl.audit.boost:PROTOCOL``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from copy import copy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms import aggregation
from hpcfl.algorithms.aggregation.quantised import QuantisedProtocol
from hpcfl.algorithms.quantisation import Quantiser
from hpcfl.comm.world import World
from hpcfl.crypto.pine import Pine, Report
from hpcfl.errors import HpcflError, UsageError
from hpcfl.options.boost import BoostOptions
from hpcfl.options.privacy import NoiseOptions
from hpcfl.report import formats
from hpcfl.report.table import Column, Table, count
from hpcfl.results.schema import Metric
from hpcfl.rounds.observer import Results
from hpcfl.training import session
from hpcfl.values import asdict, dataclass

HOSTILE = 0  # the device's number


class Boosted(QuantisedProtocol):
    """Mixed into the class of a protocol, whose first device then breaks the rules."""

    times = BoostOptions.times
    hostile = False

    def device(self, id: int, round_index: int, secrets: Any) -> Any:
        if id != HOSTILE:
            return super().device(id, round_index, secrets)
        # The device plays a protocol of its own, in which it neither clips nor checks.
        changed = copy(self)
        changed.hostile, changed.quantiser = True, Quantiser(math.inf, self.quantiser.levels)
        if (proofs := getattr(self, "proofs", None)) is not None:
            changed.__dict__["proofs"] = _Forging(proofs.dim, proofs.norm_bound)
        return super(Boosted, changed).device(id, round_index, secrets)

    def bounded(self, values: NDArray[np.floating]) -> tuple[NDArray[np.floating], float | None]:
        if not self.hostile:
            return super().bounded(values)
        # Other protocols than pine have no norm: C is then the default of train's --clip-norm.
        norm = getattr(self, "clip_norm", NoiseOptions.clip_norm)
        return values * (-self.times * norm / (float(np.linalg.norm(values)) or 1.0)), None


class _Forging(Pine):
    """PINE at a device that claims the largest norm for a longer vector."""

    def shard(self, vector: NDArray[np.int64], nonce: bytes, rand: bytes) -> Report:
        most = self.norm_bound**2
        if np.square(vector, dtype=np.float64).sum() <= most:
            return super().shard(vector, nonce, rand)
        claim = [most >> place & 1 for place in range(self.norm_bits)] + self.norm_bits * [0]
        return self._shard(vector, np.array(claim, np.uint64), nonce, rand)


def boosted(name: str) -> type[QuantisedProtocol]:
    """Return a protocol with a hostile device."""
    kind = aggregation.find(name)
    if name not in aggregation.PROTOCOLS or not issubclass(kind, QuantisedProtocol):
        raise UsageError(f"{name} is no protocol of hpcfl with quantised vectors, such as secagg")
    told = f"{name}-boosted-{Boosted.times:g}"
    return type(name, (Boosted, kind), {"name": told, "__module__": __name__})


def __getattr__(name: str) -> type[QuantisedProtocol]:
    if name not in aggregation.PROTOCOLS:
        raise AttributeError(name)
    return boosted(name)


class _Watched(Results[Any]):
    """Keeps the rounds' results, and in which rounds something was refused."""

    def __init__(self, progress: Callable[[int], object]) -> None:
        super().__init__()
        self.refusals: dict[str, list[int]] = defaultdict(list)
        self._progress = progress

    def refused(self, index: int, error: HpcflError) -> None:
        self.refusals[str(error)].append(index)

    def ended(self, index: int) -> None:
        self._progress(1)


@dataclass(frozen=True)
class Boost:
    """The accuracy on held-out data after each round, and what was refused in which rounds."""

    asked: BoostOptions
    honest: list[float]
    attacked: list[float]
    refused: dict[str, list[int]]

    def as_dict(self) -> dict[str, Any]:
        """Return the findings for JSON."""
        found = asdict(self)
        return found | {"asked": {"aggregate": self.asked.aggregate, "times": self.asked.times}}

    def render(self) -> str:
        """Return a table of the rounds, and the refusals."""
        asked = self.asked
        title = f"{asked.aggregate}: device {HOSTILE} of {asked.devices} sends minus its update"
        columns = [count("round", "round")]
        columns += [Column(one, one, format=formats.number) for one in ("honest", "attacked")]
        rows = [*zip(range(asked.rounds), self.honest, self.attacked, strict=True)]
        told = [f"refused in {len(when)} rounds: {why}" for why, when in self.refused.items()]
        title += f", {asked.times:g} C long, C = {NoiseOptions.clip_norm:g}"
        table = Table(columns, rows, title).text()
        return "\n".join([table, "", *(told or ["nothing was refused"])])


def boost(asked: BoostOptions, progress: Callable[[int], object] = lambda done: None) -> Boost:
    """Train twice in this process, without and with the hostile device."""
    Boosted.times = asked.times
    boosted(asked.aggregate)  # raises UsageError
    given = {"algorithm": "fedavg", "dropout": 0.0, **asdict(asked)}
    del given["times"]
    runs, world = [], World(None)
    with TemporaryDirectory() as folder:
        given["output"] = asked.output or Path(folder)
        for name in (asked.aggregate, f"{__name__}:{asked.aggregate}"):
            runs.append(_Watched(progress))
            session.run(world, session.asked(world, given | {"aggregate": name}), runs[-1])
    honest, attacked = (
        [float(played.figures[Metric.ACCURACY]) for played in watched.results] for watched in runs
    )
    return Boost(asked, honest, attacked, dict(runs[1].refusals))
