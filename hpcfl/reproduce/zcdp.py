"""Concentrated differentially private FL (Hu, Guo and Gong 2021) on Adult: Figures 3 to 8.

16 devices, 10 a round in turn, delta = 1e-4, five seeds. What the paper does not give: batches of
32 samples, gradients clipped to 1, learning rates from a small grid, hidden layers as in
`adult-nn`; the partition is that of the publisher, 32,561 samples for training and 16,281 for
testing. Where a setting has several learning rates the best one is taken by the accuracy that is
reported, for every method alike. A logistic regression is declared convex where the learning rate
is at most 2 over the smoothness of the clipped loss, which is sqrt(2) times the largest norm of a
sample (14.4): 0.098.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcfl.reproduce.artefact import (
    SHOWN,
    Artefact,
    Context,
    Line,
    Panel,
    Result,
    Scale,
    Setting,
    by_round,
    says,
)

SEEDS = range(5)
CONVEX_RATE = 0.098
EPSILONS = (1.0, 2.0, 5.0, 10.0, 20.0)


@dataclass(frozen=True)
class Model:
    """A model and its settings in the paper."""

    title: str
    name: str  # in `hpcfl.learning.models`
    # Learning rates to choose from; the first is that of the convergence figures, the last two
    # those of the trade-off.
    rates: tuple[float, ...]
    sigmas: tuple[float, ...]  # noise of the convergence figures
    taus: tuple[int, ...]  # local steps of the convergence figures
    utility: tuple[int, int]  # rounds and local steps of Figures 5 and 6
    trade_off: tuple[int, int]  # those of Figures 7 and 8


LOGISTIC = Model(
    "logistic regression",
    "adult-lr",
    (0.09, 0.3, 1.0, 3.0),
    (1e-5, 1e-4, 5e-4, 1e-3),
    (1, 5, 10, 40),
    (20, 10),
    (20, 2),
)
NETWORK = Model(
    "network",
    "adult-nn",
    (0.1, 0.3, 1.0),
    (1e-4, 1e-3, 5e-3, 1e-2),
    (1, 5, 10, 20),
    (50, 5),
    (50, 5),
)


def _train(setting: Setting, context: Context) -> Mapping[str, Any]:
    """Train with all seeds at every learning rate; return what the best gave, by accuracy.

    Under `rates`, what the seeds gave at the end with every learning rate.
    """
    tried = [{"rate": rate} | _at_rate(setting, rate, context) for rate in setting["rates"]]
    if "accuracy" not in tried[0]:
        return {}
    kept = ("rate", "last_accuracy", "last_loss", "training_loss", "gradient_norm")
    best = max(tried, key=lambda one: one["accuracy"][-1])
    return best | {"rates": [{name: one[name] for name in kept} for one in tried]}


def _at_rate(setting: Setting, rate: float, context: Context) -> dict[str, Any]:
    from hpcfl.reproduce.seeds import over_seeds

    return over_seeds(context, 16, SEEDS, in_training=True, **_options(setting, rate))


def _options(setting: Setting, rate: float) -> dict[str, Any]:
    """Return the options of `hpcfl train` for a setting and a learning rate."""
    given = ("sigma", "epsilon", "epsilon_by", "clip_norm")
    return {
        "algorithm": setting["algorithm"],
        "aggregate": setting["aggregate"],
        "rounds": setting["rounds"],
        "gamma": 0.0,
        "epochs": None,
        "steps": setting["tau"],
        "batch_size": 32,
        "learning_rate": rate,
        "momentum": 0.0,
        "dataset": setting.get("dataset", "adult"),
        "model": setting["model"],
        "per_round": 10,
        "sampling": "balanced" if setting["algorithm"] != "fedavg" else "exact",
        "delta": 1e-4,
        "convex": setting["model"] == LOGISTIC.name and rate <= CONVEX_RATE,
        **{name: setting[name] for name in given if name in setting},
    }


def _setting(model: Model, rates: Sequence[float], rounds: int, tau: int, **more: Any) -> Setting:
    defaults: dict[str, Any] = {
        "model": model.name,
        "algorithm": "cdp",
        "aggregate": "prf",
        "rates": list(rates),
        "rounds": rounds,
        "tau": tau,
    }
    return defaults | more


def _convergence(model: Model) -> list[Setting]:
    grid = itertools.product(model.sigmas, model.taus)
    return [_setting(model, model.rates[:1], 100, tau, sigma=sigma) for sigma, tau in grid]


def _utility(model: Model) -> list[Setting]:
    rounds, tau = model.utility
    found = [
        _setting(model, model.rates, rounds, tau, algorithm="fedavg", aggregate="fedavg"),
    ]
    for by, algorithm in itertools.product(("paper", "proven"), ("cdp", "dp-dsgd")):
        steps = tau if algorithm == "cdp" else 1
        privacy = {"epsilon": 10.0, "epsilon_by": by}
        found.append(_setting(model, model.rates, rounds, steps, algorithm=algorithm, **privacy))
    return found


def _trade_off(model: Model) -> list[Setting]:
    """Return Figure 7 or 8, by both counts."""
    rounds, tau = model.trade_off
    counts = ("paper", "proven")
    return [
        _setting(
            model,
            model.rates[-2:],
            rounds,
            tau,
            aggregate=aggregate,
            epsilon=epsilon,
            epsilon_by=by,
        )
        for by, aggregate, epsilon in itertools.product(counts, ("prf", "fedavg"), EPSILONS)
    ]


def _compare_convergence(results: Sequence[Result]) -> list[Line]:
    found = {(one.setting["sigma"], one.setting["tau"]): one.found for one in results}
    sigmas = sorted({sigma for sigma, _ in found})
    taus = sorted({tau for _, tau in found})
    little, much, few, many = sigmas[0], sigmas[-1], taus[0], taus[-1]
    lines = []
    for tau in taus:
        low, high = (found[sigma, tau]["loss"][-1] for sigma in (little, much))
        lines.append(
            says(
                f"tau = {tau}: loss after 100 rounds, sigma {little:g} and {much:g}",
                "higher with more noise",
                f"{low:.4f} and {high:.4f}",
                high > low,
                "inputs are standardised and gradients clipped to 1 here, beside which this noise "
                "is nothing; the paper's losses, of 7 and more, are those of larger inputs",
            )
        )
    late = "with our learning rate, tau = 1 is still on its way after 100 rounds"
    for sigma in sigmas:
        for rounds, higher, why in ((5, False, ""), (100, True, late)):
            short, long = (found[sigma, tau]["loss"][rounds - 1] for tau in (few, many))
            lines.append(
                says(
                    f"sigma = {sigma:g}: loss after {rounds} rounds, tau {few} and {many}",
                    f"{'higher' if higher else 'lower'} with more steps",
                    f"{short:.4f} and {long:.4f}",
                    long > short if higher else long < short,
                    why,
                )
            )
    for (sigma, tau), one in found.items():
        proven = one["epsilon_proven"]
        lines.append(
            Line(
                f"sigma = {sigma:g}, tau = {tau}: accuracy, epsilon",
                "",
                f"{one['accuracy'][-1]:.4f}, paper {one['epsilon_paper']:.3g}, "
                f"proven {'infinite' if proven is None else format(proven, '.3g')}",
                SHOWN,
                "the noise is less than the integers that masks need can carry"
                if proven is None
                else "",
            )
        )
    return lines


def _draw_convergence(results: Sequence[Result]) -> list[Panel]:
    panels = []
    for sigma in sorted({one.setting["sigma"] for one in results}):
        for figure, up in (("accuracy", "accuracy on held-out data"), ("loss", "loss")):
            curves = {
                f"tau = {one.setting['tau']}": by_round(one.found[figure])
                for one in results
                if one.setting["sigma"] == sigma
            }
            panels.append(Panel(f"sigma = {sigma:g}", "rounds", up, curves))
    return panels


def _name(setting: Setting) -> str:
    if setting["algorithm"] == "fedavg":
        return "fedavg, no privacy"
    return f"{setting['algorithm']}, epsilon {setting['epsilon']:g} by {setting['epsilon_by']}"


def _compare_utility(results: Sequence[Result]) -> list[Line]:
    lines = []
    for one in results:
        found = one.found
        sides = ", ".join(
            f"{side} {found[f'epsilon_{side}']:.3g}"
            for side in ("paper", "proven")
            if found[f"epsilon_{side}"] is not None
        )
        lines.append(
            Line(
                f"{_name(one.setting)}: accuracy, loss, epsilons",
                "",
                f"{found['accuracy'][-1]:.4f}, {found['loss'][-1]:.4f}"
                + (f", {sides}" if one.setting["algorithm"] != "fedavg" else ""),
                SHOWN,
            )
        )
    found_by = {
        (one.setting.get("epsilon_by"), one.setting["algorithm"]): one.found for one in results
    }
    for by, (figure, better) in itertools.product(
        ("paper", "proven"), (("accuracy", "higher"), ("loss", "lower"))
    ):
        ours, base = (found_by[by, algorithm][figure][-1] for algorithm in ("cdp", "dp-dsgd"))
        lines.append(
            says(
                f"equal epsilon by {by}: {figure}, cdp and dp-dsgd",
                f"{better} for cdp" if by == "paper" else "",
                f"{ours:.4f} and {base:.4f}",
                (ours > base) == (better == "higher"),
                "the largest learning rate is best in accuracy, and makes the few wrong answers "
                "more certain",
            )
        )
    return lines


def _draw_utility(results: Sequence[Result]) -> list[Panel]:
    return [
        Panel(
            "", "rounds", up, {_name(one.setting): by_round(one.found[figure]) for one in results}
        )
        for figure, up in (("accuracy", "accuracy on held-out data"), ("loss", "loss"))
    ]


def _by_epsilon(results: Sequence[Result]) -> dict[tuple[str, str], dict[float, float]]:
    found: dict[tuple[str, str], dict[float, float]] = {}
    for one in results:
        line = found.setdefault((one.setting["epsilon_by"], one.setting["aggregate"]), {})
        line[one.setting["epsilon"]] = one.found["accuracy"][-1]
    return found


def _compare_trade_off(results: Sequence[Result]) -> list[Line]:
    found = _by_epsilon(results)
    lines = []
    for by in dict.fromkeys(by for by, _ in found):
        summed, alone = found[by, "prf"], found[by, "fedavg"]
        for epsilon in summed:
            lines.append(
                says(
                    f"epsilon {epsilon:g} by {by}: accuracy with masks and without",
                    "higher with masks" if by == "paper" else "",
                    f"{summed[epsilon]:.4f} and {alone[epsilon]:.4f}",
                    summed[epsilon] > alone[epsilon],
                    "the noise is so small that its factor of sqrt(10) does not show"
                    if by == "paper"
                    else "nothing is proven of sums of several steps at these learning rates, so "
                    "the noise is the same",
                )
            )
        ends = min(summed), max(summed)
        lines.append(
            says(
                f"with masks, by {by}: accuracy at epsilon {ends[0]:g} and {ends[1]:g}",
                "higher with a larger epsilon" if by == "paper" else "",
                f"{summed[ends[0]]:.4f} and {summed[ends[1]]:.4f}",
                summed[ends[1]] > summed[ends[0]],
                "the noise is so small that it does not show",
            )
        )
    return lines


def _draw_trade_off(results: Sequence[Result]) -> list[Panel]:
    found = _by_epsilon(results)
    masks = {"prf": "with masks", "fedavg": "without masks"}
    return [
        Panel(
            f"epsilon by {by}",
            "epsilon",
            "accuracy on held-out data",
            {
                name: (list(found[by, aggregate]), list(found[by, aggregate].values()))
                for aggregate, name in masks.items()
            },
            log_x=True,
        )
        for by in dict.fromkeys(by for by, _ in found)
    ]


def _artefacts() -> list[Artefact]:
    found = []
    for title, settings, compare, draw, models in (
        (
            "Convergence for the grid of noise and local steps",
            _convergence,
            _compare_convergence,
            _draw_convergence,
            ((3, LOGISTIC, 20), (4, NETWORK, 25)),
        ),
        (
            "Against DP-DSGD at epsilon 10",
            _utility,
            _compare_utility,
            _draw_utility,
            ((5, LOGISTIC, 12), (6, NETWORK, 20)),
        ),
        (
            "Accuracy over epsilon, with secure aggregation and without",
            _trade_off,
            _compare_trade_off,
            _draw_trade_off,
            ((7, LOGISTIC, 10), (8, NETWORK, 12)),
        ),
    ):
        for number, model, minutes in models:
            found.append(
                Artefact(
                    f"zcdp/figure-{number}",
                    f"{title}: {model.title}",
                    {"paper": Scale("five seeds", settings(model), minutes)},
                    _train,
                    compare,
                    draw,
                    ("adult",),
                )
            )
    return found


ARTEFACTS = tuple(_artefacts())
