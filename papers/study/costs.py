"""The costs of a round with each protocol: the settings of the study, and how each is run.

A setting is measured if that takes at most `MOST_SECONDS`. Otherwise it is predicted from the
calibration by `hpcfl calibrate` on the same machine. The result says which of the two was done.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hpcfl
from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.aggregation.quantised import QuantisedProtocol
from hpcfl.benchmark.experiment import unused_by
from hpcfl.comm.world import connect
from hpcfl.options.bench import DP_FEDAVG, BenchOptions
from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.statistics import median_interval
from hpcfl.rounds.build import build
from papers.artefact import Setting

# Those that the suite had when these rounds were run: the figures compare only among themselves.
STUDIED = (
    "fedavg", "secagg", "secagg-graph", "sparse", "cohort", "common", "lightsecagg", "committee",
    "assisted", "ckks", "prf",
)  # fmt: skip
# As in SparseSecAgg's paper: its default numbers, and the length of its model for CIFAR-10.
BASE: dict[str, Any] = {"devices": 100, "dim": 165_000, "dropout": 0.3}
ALPHA = 0.1
DEVICES = (25, 50, 100, 250, 1_000, 2_500, 10_000)
# The length used with DEVICES, and the number of devices used with DIMS.
DEVICES_DIM, DIMS_DEVICES = 10_000, 25
DIMS = (10_000, 100_000, 1_000_000, 10_000_000)
DROPOUTS = (0.0, 0.1, 0.2, 0.3, 0.4)
BITS = (8, 12, 16, 20, 24, 32)
UPLINKS = (1, 3, 10, 30, 100, 300, 1_000)  # Mbit/s, for uplink and downlink
# The noise makes this number of rounds private together, with this delta.
PRIVATE_ROUNDS, DELTA = 20, 1e-5
# The fewest rounds with a 95 % interval of the median; one round of warm-up comes before them.
ROUNDS = 6
MOST_SECONDS = 180.0

MEASURED, PREDICTED, REFUSED = "measured", "predicted", "refused"


def settings_of(
    sizes: Mapping[str, Any], more: Mapping[str, Any] | None = None, among: Sequence[str] = ()
) -> Iterator[Setting]:
    """Yield a setting for each of STUDIED, or of `among`, that uses the options `more`."""
    more = more or {}
    for name in among or STUDIED:
        kind = find(name)
        usable = not more.keys() & unused_by(BenchOptions(name))
        if usable and (kind.tolerates_dropouts or not sizes["dropout"]):
            sent = {"alpha": ALPHA} if kind.sparse_upload else {}
            yield {"protocol": name, **sizes, **sent, **more}


def over(name: str, values: Sequence[Any], **fixed: Any) -> list[Setting]:
    """Return the settings that vary one size; the other sizes are fixed or those of BASE."""
    return [one for value in values for one in settings_of({**BASE, **fixed, name: value})]


def over_option(name: str, values: Sequence[Any]) -> list[Setting]:
    """Return the settings that vary an option, for the protocols that use it."""
    return [one for value in values for one in settings_of(BASE, {name: value})]


def carries_noise(name: str) -> bool:
    """Return whether the noises of a protocol's devices add up to the noise of the sum."""
    kind = find(name)
    return issubclass(kind, QuantisedProtocol) and kind.noise_adds_up


def run(setting: Setting, data_dir: Path | None) -> Mapping[str, Any]:
    """Measure or predict the costs of a setting's rounds; every rank calls this."""
    expected = connect().agreed(lambda: _expected(setting))
    found: dict[str, Any] = expected["found"]
    if found["state"] == REFUSED or expected["seconds"] > MOST_SECONDS:
        return found
    with tempfile.TemporaryDirectory() as folder:
        measured = hpcfl.bench(**expected["given"], output=folder)
    return {} if measured is None else found | _measured(measured)


def _expected(setting: Setting) -> dict[str, Any]:
    """Return the time of a measurement, and the cost model's prediction of a round."""
    from hpcfl.advice.advisor import exposed_alone
    from hpcfl.benchmark import experiment
    from hpcfl.costmodel import calibration
    from hpcfl.costmodel.model import predict
    from hpcfl.options.advise import AdviseOptions

    known = calibration.load(calibration.default_path())
    try:
        given, taken = options_of(setting)
        asked = experiment.asked(given)
        prepared = experiment.Experiment.prepare(asked, asked.devices[0])
        # The prediction is for a round without devices' noise, which the model does not cover.
        protocol, _ = build(setting["protocol"], asked, asked.devices[0], prepared.updates.dim)
        found = {name: predict(protocol, known, link) for name, link in _links().items()}
        sent = setting.get("alpha") if protocol.sparse_upload else None
        seen = AdviseOptions(
            devices=asked.devices[0], alpha=sent, dropout=asked.dropout, gamma=asked.gamma
        )
        hidden = exposed_alone(protocol, seen)
    except hpcfl.UsageError as error:
        return {"found": {"state": REFUSED, "why": str(error)}}
    one = found["1"]
    spent = ("device_cpu_seconds", "server_cpu_seconds", "member_cpu_seconds", "helper_cpu_seconds")
    return {
        "seconds": (ROUNDS + 1) * one.measured_seconds,
        "given": given,
        "found": {
            "state": PREDICTED,
            **{name: round(getattr(one, name)) for name in ("bytes_up", "bytes_down")},
            **{name: [_short(getattr(one, name))] for name in spent if getattr(one, name)},
            "modelled_seconds": {
                name: [_short(each.modelled_seconds)] for name, each in found.items()
            },
            "exposed_alone": _short(hidden),
            **taken,
        },
    }


def options_of(setting: Setting) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of `hpcfl.bench`, and the noise and bits for an epsilon in the setting.

    With devices' noise the setting's protocol is the aggregate; a server's noise is in no round.
    """
    name, given = setting["protocol"], {**setting, "rounds": ROUNDS, "warmup": 1}
    taken = _private(setting) if given.pop("epsilon", None) is not None else {}
    if carries_noise(name):
        given |= {key: value for key, value in taken.items() if key != "noise_in_sum"}
    if "noise_multiplier" in given:
        given |= {"protocol": DP_FEDAVG, "aggregate": name}
    return given, taken


def _private(setting: Setting) -> dict[str, Any]:
    """Return the noise for a setting's epsilon, and the fewest bits for it.

    The devices add the noise if their noises add up; otherwise a trusted server does.
    """
    from hpcfl.options.training import TrainOptions
    from hpcfl.training.build import planned_in_fewest_bits

    distributed = carries_noise(setting["protocol"])
    asked = TrainOptions(
        DP_FEDAVG,
        aggregate=setting["protocol"],
        rounds=PRIVATE_ROUNDS,
        delta=DELTA,
        # A server's noise is for sums that each device joins at random.
        noise="distributed" if distributed else "central",
        sampling="exact" if distributed else "poisson",
        dropout_model="exact" if distributed else "bernoulli",
        **{key: setting[key] for key in ("dropout", "alpha", "epsilon") if key in setting},
    )
    algorithm: Any
    algorithm, bits = planned_in_fewest_bits(asked, setting["devices"], setting["dim"])
    noise = {
        "noise_multiplier": _short(algorithm.sigma / asked.clip_norm),
        "noise_in_sum": _short(algorithm.noise_in_sum),
    }
    return noise | ({"bits": bits} if bits else {})


def _links() -> dict[str, LinkModel]:
    return {f"{rate}": LinkModel(uplink_mbps=rate, downlink_mbps=rate) for rate in UPLINKS}


def _measured(run: hpcfl.Run) -> dict[str, Any]:
    """Return the figures of a run: medians over the rounds, and their 95 % intervals.

    CPU seconds are the mean over the surviving devices outside the committee, those of the server,
    and those of the slowest member and helper. Bytes are means.
    """
    kept = run.measured
    ordinary = (run.survived & run.ordinary)[kept]
    spent = {
        "device_cpu_seconds": _mean_of(run.cpu_seconds[kept][..., :-1].sum(axis=1), ordinary),
        "server_cpu_seconds": run.cpu_seconds[kept][..., -1].sum(axis=1),
        "member_cpu_seconds": run.slowest_cpu_seconds("member")[:, -1],
        "helper_cpu_seconds": run.slowest_cpu_seconds("helper")[:, -1],
    }
    sent = {
        name: _mean_of(moved[kept].sum(axis=1), ordinary)
        for name, moved in (("bytes_up", run.bytes_up), ("bytes_down", run.bytes_down))
    }
    return {
        "state": MEASURED,
        **{name: round(float(all.mean())) for name, all in sent.items() if not np.isnan(all).any()},
        **{name: spread_of(all) for name, all in spent.items() if not np.isnan(all).any()},
        "modelled_seconds": {
            name: spread_of(run.modelled_seconds(link).sum(axis=1))
            for name, link in _links().items()
        },
    }


def _mean_of(values: NDArray[Any], among: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the mean over some devices in each round; NaN if there are none."""
    count = among.sum(axis=1)
    total = (values * among).sum(axis=1)
    return np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)


def spread_of(values: NDArray[np.float64]) -> list[float]:
    """Return the median, and the ends of its interval if there are enough rounds."""
    interval = median_interval(values)
    ends = [interval.low, interval.high] if interval.known else []
    return [_short(float(value)) for value in (np.median(values), *ends)]


def _short(value: float) -> float:
    """Return the value rounded to four digits."""
    return float(f"{value:.4g}")
