"""The parts of the study, each run, tabulated and drawn by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from hpcfl.report import formats
from hpcfl.reproduce.artefact import SHOWN, Artefact, Line, Panel, Result, Scale, Setting, by_round
from hpcfl.reproduce.study import costs, links, privacy, training
from hpcfl.reproduce.study.found import mean_of, spread

_BASE = "N = {devices}, d = {dim:,}, {dropout:.0%} drop out".format_map(costs.BASE)
# What is drawn of a round: name, label of the axis, and what a stored figure is divided by.
_DRAWN = (
    ("bytes_up", "sent by a device, MB", 1e6),
    ("device_cpu_seconds", "CPU of a device, s", 1.0),
    ("server_cpu_seconds", "CPU of the server, s", 1.0),
)


def _lines(results: Sequence[Result]) -> list[Line]:
    """Return what rounds cost, in words."""
    return [Line(_named(one.setting), "", _told(one.found), SHOWN) for one in results]


def _named(setting: Setting) -> str:
    values = [
        f"{name.replace('_', ' ')} {value:g}" if isinstance(value, int | float) else str(value)
        for name, value in setting.items()
    ]
    return ", ".join(values)


def _told(found: Mapping[str, Any]) -> str:
    if found["state"] == costs.REFUSED:
        return f"refused: {found['why']}"
    device, server = (
        formats.time(spread(found[name]).value)
        for name in ("device_cpu_seconds", "server_cpu_seconds")
        if name in found
    )
    sent = formats.amount(found["bytes_up"])
    return f"{sent} up, CPU {device} device, {server} server ({found['state']})"


def _panels(results: Sequence[Result], over: str, across: str, log: bool) -> list[Panel]:
    """Return what a round costs over one thing: bytes, a device's CPU and the server's."""
    shown = [one for one in results if one.found["state"] != costs.REFUSED]
    by_protocol: dict[str, list[Result]] = {}
    for one in shown:
        by_protocol.setdefault(str(one.setting["protocol"]), []).append(one)
    panels = []
    for name, up, unit in _DRAWN:
        curves, intervals, hollow = {}, {}, {}
        for protocol, some in by_protocol.items():
            having = [one for one in some if name in one.found]
            figures = [spread(one.found[name]) for one in having]
            curves[protocol] = (
                [one.setting.get(over, 0) for one in having],
                [figure.value / unit for figure in figures],
            )
            intervals[protocol] = [(figure.low / unit, figure.high / unit) for figure in figures]
            hollow[protocol] = [one.found["state"] == costs.PREDICTED for one in having]
        panels.append(Panel("", across, up, curves, log, True, intervals, hollow))
    return panels


def _cost(
    name: str,
    title: str,
    settings: Sequence[Setting],
    over: str,
    across: str,
    minutes: float,
    log: bool = True,
    draw: Callable[[Sequence[Result]], list[Panel]] | None = None,
) -> Artefact:
    return Artefact(
        f"study/{name}",
        title,
        {"paper": Scale("the study's scale", settings, minutes)},
        costs.run,
        _lines,
        draw or partial(_panels, over=over, across=across, log=log),
    )


def _uplink_panels(results: Sequence[Result]) -> list[Panel]:
    """Return the modelled seconds of a round over the rate of the links."""
    curves, intervals = {}, {}
    for one in results:
        if one.found["state"] == costs.REFUSED:
            continue
        figures = [spread(stored) for stored in one.found["modelled_seconds"].values()]
        name = str(one.setting["protocol"])
        curves[name] = (list(costs.UPLINKS), [figure.value for figure in figures])
        intervals[name] = [(figure.low, figure.high) for figure in figures]
    across, up = "links up and down, Mbit/s", "modelled seconds of a round"
    return [Panel("", across, up, curves, True, True, intervals)]


def _hidden_panels(results: Sequence[Result]) -> list[Panel]:
    """Return the share of its values that a device shows to the server, against its bytes."""
    curves = {
        str(one.setting["protocol"]): (
            [one.found["bytes_up"] / 1e6],
            [100 * one.found["exposed_alone"]],
        )
        for one in results
        if one.found["state"] != costs.REFUSED
    }
    across = "sent by a device, MB"
    up = "% of a device's sent values\nthat a curious server learns"
    return [Panel("", across, up, curves, True)]


def _trained(results: Sequence[Result]) -> list[Line]:
    """Return of every way the rounds and bytes to the target, over the seeds."""
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
    """Return the error over rounds and over bytes; of every way the first seed."""
    seed = training.SEEDS[0]
    by_rounds, by_bytes = {}, {}
    for one in results:
        if one.setting["seed"] != seed:
            continue
        rounds, accuracy = by_round(one.found["accuracy"])
        wrong = [100 * (1 - share) for share in accuracy]
        each = one.found["bytes_up_total"] / one.found["rounds"] / 1e6
        by_rounds[one.setting["protocol"]] = rounds, wrong
        by_bytes[one.setting["protocol"]] = [each * number for number in rounds], wrong
    up = f"% of held-out data wrong\n(seed {seed})"
    return [
        Panel("", "rounds", up, by_rounds, log_y=True),
        Panel("", "sent by all devices, MB", up, by_bytes, log_x=True, log_y=True),
    ]


def _accuracies(results: Sequence[Result]) -> list[Line]:
    return [
        Line(
            f"{_way_of(one).title}, epsilon {one.setting['epsilon']:g}",
            "",
            f"accuracy {mean_of(one.found['last_accuracy'])}",
            SHOWN,
        )
        for one in results
    ]


_CENTRAL = {"noise_cpu_seconds": "noise", "server_cpu_seconds": "the rest of its round"}


def _central_lines(results: Sequence[Result]) -> list[Line]:
    """Return what a trusted server's noise takes, beside its round without."""
    return [
        Line(
            f"d = {one.setting['dim']:,}",
            "",
            f"noise {formats.time(noise.value)}, the rest of its round {formats.time(rest.value)}",
            SHOWN,
        )
        for one in results
        for noise, rest in [[spread(one.found[name]) for name in _CENTRAL]]
    ]


def _central_panels(results: Sequence[Result]) -> list[Panel]:
    dims = [one.setting["dim"] for one in results]
    curves, intervals = {}, {}
    for name, title in _CENTRAL.items():
        figures = [spread(one.found[name]) for one in results]
        curves[title] = dims, [figure.value for figure in figures]
        intervals[title] = [(figure.low, figure.high) for figure in figures]
    return [Panel("", "length d", "CPU of the server, s", curves, True, True, intervals)]


def _way_of(result: Result) -> privacy.Way:
    aggregate = result.setting["aggregate"]
    return next(way for way in privacy.WAYS if way.aggregate == aggregate)


def _accuracy_panels(results: Sequence[Result]) -> list[Panel]:
    curves, intervals = {}, {}
    for way in privacy.WAYS:
        found = [one for one in results if _way_of(one) == way]
        figures = [mean_of(one.found["last_accuracy"]) for one in found]
        curves[way.title] = (
            [one.setting["epsilon"] for one in found],
            [figure.value for figure in figures],
        )
        intervals[way.title] = [(figure.low, figure.high) for figure in figures]
    across, up = "epsilon at delta = 1e-5, proven", "accuracy on held-out data"
    return [Panel("", across, up, curves, True, False, intervals)]


def _real_lines(results: Sequence[Result]) -> list[Line]:
    """Return what rounds over shaped links took, beside the model's seconds."""
    lines = []
    for one in results:
        told = str(one.found.get("why"))
        if one.found["state"] == costs.MEASURED:
            took, modelled = (
                spread(one.found[name]) for name in ("round_seconds", "modelled_seconds")
            )
            told = f"{took} s measured, {modelled} s modelled"
        what = f"{one.setting['protocol']}, {one.setting['rate_mbps']} Mbit/s"
        lines.append(Line(what, "", told, SHOWN))
    return lines


def _real_panels(results: Sequence[Result]) -> list[Panel]:
    """Return the measured seconds over the rate of links, and over those of the model."""
    seconds, ratios, intervals = {}, {}, {}
    for way in links.WAYS:
        found = [
            one
            for one in results
            if one.setting["protocol"] == way and one.found["state"] == costs.MEASURED
        ]
        rates = [one.setting["rate_mbps"] for one in found]
        took = [spread(one.found["round_seconds"]) for one in found]
        modelled = [spread(one.found["modelled_seconds"]).value for one in found]
        seconds[way] = rates, [figure.value for figure in took]
        intervals[way] = [(figure.low, figure.high) for figure in took]
        ratios[way] = rates, [a.value / b for a, b in zip(took, modelled, strict=True)]
    across = "links up and down, Mbit/s"
    return [
        Panel("", across, "seconds of a round", seconds, True, True, intervals),
        Panel("", across, "measured / modelled", ratios, True),
    ]


_OVER_DROPOUT = costs.over("dropout", costs.DROPOUTS, {})
_AT_BASE = list(costs.settings_of(costs.BASE))

ARTEFACTS = (
    _cost(
        "devices",
        f"A round over the number of devices, d = {costs.DEVICES_DIM:,}",
        costs.over("devices", costs.DEVICES, {"dim": costs.DEVICES_DIM}),
        "devices",
        "devices N",
        20,
    ),
    _cost(
        "dim",
        f"A round over the length of vectors, N = {costs.DIMS_DEVICES}",
        costs.over("dim", costs.DIMS, {"devices": costs.DIMS_DEVICES}),
        "dim",
        "length d",
        10,
    ),
    _cost(
        "dropout",
        "A round over the fraction that drops out",
        _OVER_DROPOUT,
        "dropout",
        "fraction that drops out",
        15,
        log=False,
    ),
    _cost(
        "alpha",
        "A round over the fraction of the coordinates that a device sends",
        costs.over_option("alpha", costs.ALPHAS),
        "alpha",
        "fraction alpha",
        2,
    ),
    _cost(
        "bits",
        "A round over the bits of a value",
        costs.over_option("bits", costs.BITS),
        "bits",
        "bits of a value",
        3,
        log=False,
    ),
    _cost(
        "links",
        f"A round over the rate of the links, {_BASE}; modelled",
        _AT_BASE,
        "",
        "",
        3,
        draw=_uplink_panels,
    ),
    Artefact(
        "study/real-links",
        "A round over shaped links, N = {devices}, d = {dim:,}; measured".format_map(links.SIZES),
        {"paper": Scale("one machine, Linux, as root", links.settings(), 15)},
        links.run,
        _real_lines,
        _real_panels,
    ),
    _cost(
        "hidden",
        f"What stays hidden, against bytes, {_BASE}",
        _AT_BASE,
        "",
        "",
        3,
        draw=_hidden_panels,
    ),
    _cost(
        "noise",
        f"A round with the noise of differential privacy, {_BASE}",
        privacy.cost_settings(),
        "noise_multiplier",
        "noise multiplier; 0: none",
        4,
        log=False,
    ),
    _cost(
        "epsilon-cost",
        f"A round for an epsilon: {_BASE}, the noise for "
        f"{formats.counted(costs.PRIVATE_ROUNDS, 'round')}",
        privacy.epsilon_settings(),
        "epsilon",
        f"proven epsilon, delta {costs.DELTA:g}",
        25,
    ),
    Artefact(
        "study/central-noise",
        f"The noise of a trusted server, over the length of vectors, N = {costs.DIMS_DEVICES}",
        {"paper": Scale("the study's scale", privacy.central_settings(), 1)},
        privacy.central_noise,
        _central_lines,
        _central_panels,
    ),
    Artefact(
        "study/epsilon",
        "Accuracy over epsilon: Adult, logistic regression, N = 100, 20 rounds",
        {"paper": Scale("five seeds", privacy.training_settings(), 25)},
        privacy.train,
        _accuracies,
        _accuracy_panels,
        ("adult",),
    ),
    *(
        Artefact(
            f"study/training-{task.model}-{task.partition}",
            f"Training on MNIST to {task.target:.0%}, {task.title}, N = 25, 30% drop out",
            {"paper": Scale("five seeds", training.settings(task), minutes)},
            training.run,
            _trained,
            _training_panels,
            ("mnist",),
        )
        for task, minutes in zip(training.TASKS, (60, 200, 200, 400), strict=True)
    ),
)
