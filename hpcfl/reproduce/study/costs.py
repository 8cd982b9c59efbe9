"""What a round costs with each protocol: the settings of the study, and how one is found out.

A setting is measured where that takes at most `MOST_SECONDS`, and otherwise predicted from what
`hpcfl calibrate` has measured on the same machine; what was found says which.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.advice.advisor import exposed_alone
from hpcfl.algorithms.aggregation import PROTOCOLS, find
from hpcfl.algorithms.aggregation.base import QuantisedProtocol
from hpcfl.benchmark import experiment, session
from hpcfl.benchmark.experiment import Experiment
from hpcfl.comm.world import World
from hpcfl.costmodel import calibration as calibrations
from hpcfl.costmodel.calibration import Calibration
from hpcfl.costmodel.measuring import calibrate
from hpcfl.costmodel.model import Prediction, predict
from hpcfl.errors import UsageError
from hpcfl.options.advise import AdviseOptions
from hpcfl.options.bench import DP_FEDAVG, BenchOptions
from hpcfl.reproduce.artefact import Context, Setting
from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.reader import Run, load
from hpcfl.results.statistics import median_interval

# As in SparseSecAgg's paper: its default numbers, and the length of its model for CIFAR-10.
BASE: dict[str, Any] = {"devices": 100, "dim": 165_000, "dropout": 0.3}
ALPHA = 0.1
DEVICES = (25, 50, 100, 250, 1_000, 2_500, 10_000)
# The length that goes with DEVICES, and the number of devices that goes with DIMS.
DEVICES_DIM, DIMS_DEVICES = 10_000, 25
DIMS = (10_000, 100_000, 1_000_000, 10_000_000)
DROPOUTS = (0.0, 0.1, 0.2, 0.3, 0.4)
ALPHAS = (0.05, 0.1, 0.2, 0.5)
BITS = (8, 12, 16, 20, 24, 32)
# Mbit/s, as much down as up.
UPLINKS = (1, 3, 10, 30, 100, 300, 1_000)
# Noise is for so many rounds that are private together, with this delta.
PRIVATE_ROUNDS, DELTA = 20, 1e-5
# The fewest rounds that give a 95 % interval of the median; one goes before them.
ROUNDS = 6
MOST_SECONDS = 180.0

MEASURED, PREDICTED, REFUSED = "measured", "predicted", "refused"


def settings_of(
    sizes: Mapping[str, Any], more: Mapping[str, Any] | None = None, among: Sequence[str] = ()
) -> Iterator[Setting]:
    """Yield a setting for each protocol, or each of those named, that has a use for `more`."""
    more = more or {}
    for name in among or PROTOCOLS:
        kind = find(name)
        known = kind.uses(BenchOptions(name, dropout=sizes["dropout"]))
        fits = more.keys() <= known
        if fits and (kind.tolerates_dropouts or not sizes["dropout"]):
            sent = {"alpha": ALPHA} if kind.sparse_upload else {}
            yield {"protocol": name, **sizes, **sent, **more}


def over(name: str, values: Sequence[Any], fixed: Mapping[str, Any]) -> list[Setting]:
    """Return the settings in which one thing is varied, all others being those of BASE or fixed."""
    return [one for value in values for one in settings_of({**BASE, **fixed, name: value})]


def over_option(name: str, values: Sequence[Any]) -> list[Setting]:
    """Return the same for an option that only some protocols have a use for."""
    return [one for value in values for one in settings_of(BASE, {name: value})]


def run(setting: Setting, context: Context) -> Mapping[str, Any]:
    """Measure or predict what rounds of a setting cost; every rank calls this."""
    world = context.world
    calibration = _calibration(world)
    expected = world.agreed(partial(_expected, setting, calibration))
    if expected.get("state") == REFUSED or expected["seconds"] > MOST_SECONDS:
        return expected["found"] if world.rank == 0 else {}
    asked = experiment.asked(expected["given"])
    with tempfile.TemporaryDirectory() as folder:
        paths: list[Path] = []
        session.run(world, asked, asked.devices, Path(folder), paths.append)
        if not paths:
            return {}
        return expected["found"] | _measured(load(paths[0]))


def _calibration(world: World) -> Calibration:
    """Return what this machine was calibrated to, once, as `hpcfl calibrate` keeps it."""
    path = calibrations.default_path()
    if not world.agreed(lambda: {"there": path.exists()})["there"]:
        found = calibrate(world)
        world.first_alone(lambda: found.save(path))
    return calibrations.load(path)


def carries_noise(name: str) -> bool:
    """Whether the noises of a protocol's devices add up to that of a sum."""
    kind = find(name)
    return issubclass(kind, QuantisedProtocol) and kind.noise_adds_up


def _given(setting: Setting) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of `hpcfl bench`, and what an epsilon in the setting takes.

    With noise of devices the protocol is what sums; of a server's noise a round knows nothing.
    """
    name, given = setting["protocol"], {**setting, "rounds": ROUNDS, "warmup": 1}
    taken = _private(setting) if given.pop("epsilon", None) is not None else {}
    if carries_noise(name):
        given |= {key: value for key, value in taken.items() if key != "noise_in_sum"}
    if "noise_multiplier" in given:
        given |= {"protocol": DP_FEDAVG, "aggregate": name}
    return given, taken


def _private(setting: Setting) -> dict[str, Any]:
    """Return what a setting's epsilon takes: how much noise, and the fewest bits for it.

    The noise is that of devices where noises add up, and otherwise of a trusted server. UsageError
    if no number of bits will do.
    """
    from hpcfl.algorithms.federated.dpfedavg import DPFedAvg
    from hpcfl.options.training import TrainOptions
    from hpcfl.training.build import planned_in_fewest_bits

    name = setting["protocol"]
    asked = TrainOptions(
        DP_FEDAVG,
        aggregate=name,
        rounds=PRIVATE_ROUNDS,
        delta=DELTA,
        # A server's noise is for sums in which everybody is by chance.
        noise="distributed" if carries_noise(name) else "central",
        sampling="exact" if carries_noise(name) else "poisson",
        dropout_model="exact" if carries_noise(name) else "bernoulli",
        **{key: setting[key] for key in ("dropout", "alpha", "epsilon") if key in setting},
    )
    algorithm, bits = planned_in_fewest_bits(asked, setting["devices"], setting["dim"])
    assert isinstance(algorithm, DPFedAvg)
    noise = {
        "noise_multiplier": _short(algorithm.sigma / asked.clip_norm),
        "noise_in_sum": _short(algorithm.noise_in_sum),
    }
    return noise | ({"bits": bits} if bits else {})


def _expected(setting: Setting, calibration: Calibration) -> dict[str, Any]:
    """Return how long measuring takes, and what the cost model predicts of a round."""
    try:
        given, taken = _given(setting)
        asked = experiment.asked(given)
        protocol = Experiment.prepare(asked, asked.devices[0]).protocol
        links = {f"{rate}": LinkModel(uplink_mbps=rate, downlink_mbps=rate) for rate in UPLINKS}
        found = {name: predict(protocol, calibration, link) for name, link in links.items()}
        sent = setting.get("alpha") if protocol.sparse_upload else None
        hidden = exposed_alone(
            protocol,
            AdviseOptions(
                devices=asked.devices[0], alpha=sent, dropout=asked.dropout, gamma=asked.gamma
            ),
        )
    except UsageError as error:
        return {"state": REFUSED, "found": {"state": REFUSED, "why": str(error)}}
    first = next(iter(found.values()))
    seconds = first.measured_seconds
    assert seconds is not None
    return {
        "seconds": (ROUNDS + 1) * seconds,
        "given": given,
        "found": _predicted(first, found) | {"exposed_alone": _short(hidden)} | taken,
    }


def _predicted(one: Prediction, by_link: Mapping[str, Prediction]) -> dict[str, Any]:
    """Return the figures of a prediction, without intervals."""
    names = ("device_cpu_seconds", "server_cpu_seconds", "member_cpu_seconds", "helper_cpu_seconds")
    return {
        "state": PREDICTED,
        "bytes_up": round(one.total("bytes_up")),
        "bytes_down": round(one.total("bytes_down")),
        **{name: [_short(one.total(name))] for name in names if one.total(name)},
        "modelled_seconds": {
            name: [_short(found.total("modelled_seconds"))] for name, found in by_link.items()
        },
    }


def _measured(run: Run) -> dict[str, Any]:
    """Return the figures of a run: medians over the rounds, and their 95 % intervals.

    CPU seconds are those of a device whose vector is in the sum and that is in no committee, a mean
    over these devices; of the server; and of the slowest member and helper. Bytes are means.
    """
    kept = run.measured
    ordinary = (run.survived & run.ordinary)[kept]
    device = run.cpu_seconds[kept][..., :-1].sum(axis=1)
    spent = {
        "device_cpu_seconds": _mean_of(device, ordinary),
        "server_cpu_seconds": run.cpu_seconds[kept][..., -1].sum(axis=1),
        "member_cpu_seconds": run.slowest_cpu_seconds("member")[:, -1],
        "helper_cpu_seconds": run.slowest_cpu_seconds("helper")[:, -1],
    }
    sent = {
        name: _mean_of(moved[kept].sum(axis=1), ordinary)
        for name, moved in (("bytes_up", run.bytes_up), ("bytes_down", run.bytes_down))
    }
    links = {f"{rate}": LinkModel(uplink_mbps=rate, downlink_mbps=rate) for rate in UPLINKS}
    return {
        "state": MEASURED,
        **{
            name: round(float(np.mean(values)))
            for name, values in sent.items()
            if not np.isnan(values).any()
        },
        **{name: spread_of(values) for name, values in spent.items() if not np.isnan(values).any()},
        "modelled_seconds": {
            name: spread_of(run.modelled_seconds(link).sum(axis=1)) for name, link in links.items()
        },
    }


def _mean_of(values: NDArray[Any], among: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the mean over some devices of each round; NaN where there are none."""
    count = among.sum(axis=1)
    total = (values * among).sum(axis=1)
    return np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)


def spread_of(values: NDArray[np.float64]) -> list[float]:
    """Return the median, and the ends of its interval where there are enough rounds."""
    interval = median_interval(values)
    ends = [interval.low, interval.high] if interval.known else []
    return [_short(float(value)) for value in (np.median(values), *ends)]


def _short(value: float) -> float:
    """Return as many digits as anybody reads."""
    return float(f"{value:.4g}")
