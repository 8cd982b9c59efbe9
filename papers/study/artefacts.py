"""The parts of the study; each is run, tabulated and drawn separately."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

from papers.artefact import Artefact, Result, Scale, Setting, by_round
from papers.panels import Panel
from papers.study import costs, populations, training
from papers.study.found import mean_of, spread
from papers.verdicts import SHOWN, Line

_BASE = "N = {devices}, d = {dim:,}, {dropout:.0%} drop out".format_map(costs.BASE)
# The drawn figures of a round: name, label of the axis, and divisor of the stored figure.
_DRAWN = (
    ("bytes_up", "sent by a device, MB", 1e6),
    ("device_cpu_seconds", "CPU of a device, s", 1.0),
    ("server_cpu_seconds", "CPU of the server, s", 1.0),
)


def _not_refused(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Return the results of every protocol that was not refused, by protocol."""
    by_protocol: dict[str, list[Result]] = {}
    for one in results:
        if one.found["state"] != costs.REFUSED:
            by_protocol.setdefault(str(one.setting["protocol"]), []).append(one)
    return by_protocol


def _told(results: Sequence[Result]) -> list[Line]:
    """Return the costs of rounds in words."""
    lines = []
    for one in results:
        what = ", ".join(
            str(value) if name == "protocol" else f"{name.replace('_', ' ')} {value:g}"
            for name, value in one.setting.items()
        )
        ours = f"refused: {one.found.get('why')}"
        if one.found["state"] != costs.REFUSED:
            sent = one.found["bytes_up"] / 1e6
            device, server = (spread(one.found[name]) for name, _, _ in _DRAWN[1:])
            ours = (
                f"{sent:.4g} MB up; CPU {device} s device, {server} s server ({one.found['state']})"
            )
        lines.append(Line(what, "", ours, SHOWN))
    return lines


def _panels(results: Sequence[Result], over: str, across: str, log: bool) -> list[Panel]:
    """Return panels of a round's costs over one parameter: bytes, CPU of a device and server."""
    panels = []
    for name, up, unit in _DRAWN:
        curves, intervals, hollow = {}, {}, {}
        for protocol, some in _not_refused(results).items():
            figures = [spread(one.found[name]) for one in some]
            curves[protocol] = (
                [one.setting.get(over, 0) for one in some],
                [figure.value / unit for figure in figures],
            )
            intervals[protocol] = [(figure.low / unit, figure.high / unit) for figure in figures]
            hollow[protocol] = [one.found["state"] == costs.PREDICTED for one in some]
        panels.append(Panel("", across, up, curves, log, True, intervals, hollow))
    return panels


def _cost(name: str, title: str, settings: Sequence[Setting], draw: Any) -> Artefact:
    scales = {"paper": Scale("the study's scale", settings)}
    return Artefact(f"study/{name}", title, scales, costs.run, _told, draw)


def _over(
    name: str, title: str, settings: Sequence[Setting], over: str, across: str, log: bool = True
) -> Artefact:
    """Return a part of the study that varies one parameter."""
    draw = partial(_panels, over=over, across=across, log=log)
    return _cost(name, f"A round over {title}", settings, draw)


def _uplink_panels(results: Sequence[Result]) -> list[Panel]:
    """Return the modelled seconds of a round over the rate of the links."""
    across, up = "links up and down, Mbit/s", "modelled seconds of a round"
    curves, intervals = {}, {}
    for name, (one,) in _not_refused(results).items():
        figures = [spread(stored) for stored in one.found["modelled_seconds"].values()]
        curves[name] = (costs.UPLINKS, [figure.value for figure in figures])
        intervals[name] = [(figure.low, figure.high) for figure in figures]
    return [Panel("", across, up, curves, True, True, intervals)]


def _trained(results: Sequence[Result]) -> list[Line]:
    """Return the rounds and bytes to the target for every way, over the seeds."""
    lines = []
    for way in training.WAYS:
        found = [one.found for one in results if one.setting["protocol"] == way]
        reached = [one for one in found if one["reached"]]
        told = f"{len(reached)} of {len(found)} seeds reach it"
        if len(reached) > 1:
            rounds = mean_of([one["rounds"] for one in reached])
            sent = mean_of([one["bytes_up_total"] / 1e6 for one in reached])
            told += f"; rounds {rounds}, MB of all devices {sent}"
        lines.append(Line(way, "", told, SHOWN))
    return lines


def _training_panels(results: Sequence[Result]) -> list[Panel]:
    """Return the error over rounds and over bytes, for the first seed of every way."""
    by_rounds, by_bytes = {}, {}
    for one in results:
        if one.setting["seed"] != training.SEEDS[0]:
            continue
        rounds, accuracy = by_round(one.found["accuracy"])
        wrong = [100 * (1 - share) for share in accuracy]
        each = one.found["bytes_up_total"] / one.found["rounds"] / 1e6
        by_rounds[one.setting["protocol"]] = rounds, wrong
        by_bytes[one.setting["protocol"]] = [each * number for number in rounds], wrong
    up = "% of held-out data wrong"
    return [
        Panel("first seed", "rounds", up, by_rounds, log_y=True),
        Panel("first seed", "sent by all devices, MB", up, by_bytes, log_x=True, log_y=True),
    ]


def _accuracies(results: Sequence[Result]) -> list[Line]:
    return [
        Line(
            "{aggregate}, epsilon {epsilon:g}".format_map(one.setting),
            "",
            f"accuracy {mean_of(one.found['last_accuracy'])}",
            SHOWN,
        )
        for one in results
    ]


def _accuracy_panels(results: Sequence[Result]) -> list[Panel]:
    curves, intervals = {}, {}
    for aggregate in training.NOISY:
        found = [one for one in results if one.setting["aggregate"] == aggregate]
        figures = [mean_of(one.found["last_accuracy"]) for one in found]
        epsilons = [one.setting["epsilon"] for one in found]
        curves[aggregate] = epsilons, [figure.value for figure in figures]
        intervals[aggregate] = [(figure.low, figure.high) for figure in figures]
    across, up = "epsilon at delta = 1e-5, proven", "accuracy on held-out data"
    return [Panel("", across, up, curves, True, False, intervals)]


_AT_BASE = list(costs.settings_of(costs.BASE))
_NOISY = [name for name in costs.STUDIED if costs.carries_noise(name)]
_WITH_NOISE = list(costs.settings_of(costs.BASE, among=_NOISY))

ARTEFACTS = (
    _over(
        "devices",
        f"the number of devices, d = {costs.DEVICES_DIM:,}",
        costs.over("devices", costs.DEVICES, dim=costs.DEVICES_DIM),
        "devices",
        "devices N",
    ),
    _over(
        "dim",
        f"the length of vectors, N = {costs.DIMS_DEVICES}",
        costs.over("dim", costs.DIMS, devices=costs.DIMS_DEVICES),
        "dim",
        "length d",
    ),
    _over(
        "dropout",
        "the fraction that drops out",
        costs.over("dropout", costs.DROPOUTS),
        "dropout",
        "fraction that drops out",
        log=False,
    ),
    _over(
        "bits",
        "the bits of a value",
        costs.over_option("bits", costs.BITS),
        "bits",
        "bits of a value",
        log=False,
    ),
    _cost(
        "links", f"A round over the rate of the links, {_BASE}; modelled", _AT_BASE, _uplink_panels
    ),
    _over(
        "noise",
        f"the noise of differential privacy, {_BASE}",
        [*_WITH_NOISE, *({**one, "noise_multiplier": 1.0} for one in _WITH_NOISE)],
        "noise_multiplier",
        "noise multiplier; 0: none",
        log=False,
    ),
    _over(
        "epsilon-cost",
        f"epsilon: {_BASE}, the noise for {costs.PRIVATE_ROUNDS} rounds",
        [
            {**one, "epsilon": epsilon}
            for one, epsilon in product(
                costs.settings_of(costs.BASE, among=["fedavg", *_NOISY]), training.EPSILONS
            )
        ],
        "epsilon",
        f"proven epsilon, delta {costs.DELTA:g}",
    ),
    Artefact(
        "study/populations",
        "The fastest protocol where devices are not alike; predicted",
        {"paper": Scale(populations.PREDICTED, populations.ROUNDS)},
        populations.predicted,
        populations.told,
    ),
    Artefact(
        "study/waiting",
        "Training by whom the server waits for: a tenth of MNIST, 2NN, 300 shards, 25 phones",
        {"paper": Scale("three seeds", populations.TRAININGS)},
        populations.trained,
        populations.reached,
    ),
    Artefact(
        "study/epsilon",
        "Accuracy over epsilon: Adult, logistic regression, N = 100, 20 rounds",
        {"paper": Scale("five seeds", training.noisy_settings())},
        training.run_noisy,
        _accuracies,
        _accuracy_panels,
    ),
    *(
        Artefact(
            f"study/{task.part}",
            f"Training on MNIST to {task.target:.0%}, {task.title}, N = 25, 30% drop out",
            {"paper": Scale("five seeds", training.settings(task))},
            training.run,
            _trained,
            _training_panels,
        )
        for task in training.TASKS
    ),
)
