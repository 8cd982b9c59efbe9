"""Concentrated differentially private FL (Hu, Guo and Gong 2021) on Adult: Figures 3 to 8.

There are 16 devices, of which 10 take part in each round in turn; delta = 1e-4, with five seeds
(Figures 3 and 4: 20 and 10). The paper does not give the batch size (32 here), the clip of
gradients (1), the learning rates (from a small grid) or the hidden layers (as in `adult-nn`). The
split is the publisher's: 32,561 samples for training and 16,281 for testing. If a setting has
several learning rates, the one with the best reported accuracy is taken, for every method alike.
A logistic regression is declared convex if the learning rate is at most 2 over the smoothness of
the clipped loss, sqrt(2) times the largest norm of a sample (14.4): 0.098. The loss and the
gradient norm are those of the last model on all training data.

Figures 3 and 4 cannot be reproduced so: with standardised inputs no loss exceeds 0.7, and gradients
of norm 1 hide the noise. The paper's losses of 7 and more need inputs that are not standardised,
and a visible effect of noise needs gradients clipped far below 1; the paper says neither. Figure 3
is run with both, Figure 4 with the smaller clip. Both run without masks, which change no model and
take twice as long. Losses of first models on such inputs differ by factors of hundreds, hence 20
seeds. With the smaller clip, a network needs 1,000 rounds of one local step to learn.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from papers.artefact import Artefact, Result, Scale, Setting, by_round
from papers.panels import Panel
from papers.training import over_seeds
from papers.verdicts import SHOWN, Claim, Contrast, Line, means

TITLE = (
    "Hu, Guo and Gong, Concentrated Differentially Private Federated Learning (2021; preprint and "
    "journal have the same figures)"
)

SEEDS = range(5)
CONVEX_RATE = 0.098
EPSILONS = (1.0, 2.0, 5.0, 10.0, 20.0)


@dataclass(frozen=True)
class Model:
    """A model and its settings in the paper."""

    title: str
    name: str  # in `hpcfl.learning.models`
    # Learning rates to choose from. The convergence figures use the first, the trade-off figures
    # the last two.
    rates: tuple[float, ...]
    sigmas: tuple[float, ...]  # noise of the convergence figures
    taus: tuple[int, ...]  # local steps of the convergence figures
    utility: tuple[int, int]  # rounds and local steps of Figures 5 and 6
    trade_off: tuple[int, int]  # rounds and local steps of Figures 7 and 8
    measure: tuple[str, str]  # the quantity of Figures 3 to 6 besides accuracy: name, and in words
    # Data set, clip and learning rate of Figures 3 and 4, and the number of rounds of one local
    # step until convergence.
    grid: dict[str, Any]
    converged: int
    early_why: str = ""  # the reason if more steps are not better in early rounds


LOGISTIC = Model(
    "logistic regression",
    "adult-lr",
    (0.09, 0.3, 1.0, 3.0),
    (1e-5, 1e-4, 5e-4, 1e-3),
    (1, 5, 10, 40),
    (20, 10),
    (20, 2),
    ("training_loss", "training loss"),
    {"aggregate": "fedavg", "dataset": "adult-raw", "clip_norm": 1e-3, "rates": [3.0], "seeds": 20},
    300,
)
NETWORK = Model(
    "network",
    "adult-nn",
    (0.1, 0.3, 1.0),
    (1e-4, 1e-3, 5e-3, 1e-2),
    (1, 5, 10, 20),
    (50, 5),
    (50, 5),
    ("gradient_norm", "norm of the gradient"),
    {"aggregate": "fedavg", "dataset": "adult", "clip_norm": 0.1, "rates": [1.0], "seeds": 10},
    1000,
    "samples clipped one by one to 0.1 pull alike, the certain and the wrong ones, which is not "
    "the gradient whose norm is taken; clipped to 10 it matches, with any of the four noises",
)
MODELS = {model.name: model for model in (LOGISTIC, NETWORK)}
EARLY, LATE = 5, 100  # rounds after which Figures 3 and 4 are compared
# The tests of differences are not corrected for this choice.
_RATES = "each curve at the learning rate of its best accuracy on the data that it is compared on"
TURN = 40  # rounds after which the paper's loss rises again, with the most noise and steps


def _train(setting: Setting, data_dir: Path | None) -> Mapping[str, Any]:
    """Train with all seeds at every learning rate; return the results of the most accurate rate.

    The entry `rates` has the last results of the seeds with every learning rate.
    """
    seeds = range(setting["seeds"]) if "seeds" in setting else SEEDS
    algorithm = setting["algorithm"]
    tried = []
    for rate in setting["rates"]:
        options = _options(setting, rate)
        found = over_seeds(algorithm, data_dir, seeds, in_training=True, **options)
        tried.append({"rate": rate} | found)
    if "accuracy" not in tried[0]:
        return {}
    kept = ("rate", "last_accuracy", "last_loss", "training_loss", "gradient_norm")
    best = max(tried, key=lambda one: one["accuracy"][-1])
    return best | {"rates": [{name: one[name] for name in kept} for one in tried]}


def _options(setting: Setting, rate: float) -> dict[str, Any]:
    """Return the options of `hpcfl.train` for a setting and a learning rate."""
    private: dict[str, Any] = {}
    if setting["algorithm"] != "fedavg":
        given = ("sigma", "epsilon", "epsilon_by", "clip_norm")
        private = {name: setting[name] for name in given if name in setting}
        private |= {"gamma": 0.0, "delta": 1e-4, "sampling": "balanced"}
    if setting["algorithm"] == "cdp":
        private["convex"] = setting["model"] == LOGISTIC.name and rate <= CONVEX_RATE
    return {
        "devices": 16,
        "dropout": 0.0,
        "aggregate": setting["aggregate"],
        "rounds": setting["rounds"],
        "steps": setting["tau"],
        "batch_size": 32,
        "learning_rate": rate,
        "momentum": 0.0,
        "dataset": setting.get("dataset", "adult"),
        "model": setting["model"],
        "per_round": 10,
        **private,
    }


def _setting(
    model: Model, rates: Sequence[float], rounds: int, tau: int, **more: Any
) -> dict[str, Any]:
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
    """Return the grid of Figure 3 or 4: early and late rounds, with one local step to convergence.

    Figure 3 also has the round at which the paper's loss rises again.
    """
    found: list[Setting] = []
    for sigma, tau in itertools.product(model.sigmas, model.taus):
        late = model.converged if tau == 1 else LATE
        for rounds in (EARLY, late):
            found.append(_setting(model, [], rounds, tau, sigma=sigma) | model.grid)
    if model is LOGISTIC:
        found.append(_setting(model, [], TURN, model.taus[-1], sigma=model.sigmas[-1]) | model.grid)
    return found


def _utility(model: Model) -> list[Setting]:
    rounds, tau = model.utility
    found: list[Setting] = [
        _setting(model, model.rates, rounds, tau, algorithm="fedavg", aggregate="fedavg")
    ]
    for by, algorithm in itertools.product(("paper", "proven"), ("cdp", "dp-dsgd")):
        steps = tau if algorithm == "cdp" else 1
        privacy = {"epsilon": 10.0, "epsilon_by": by}
        found.append(_setting(model, model.rates, rounds, steps, algorithm=algorithm, **privacy))
    return found


def _trade_off(model: Model) -> list[Setting]:
    """Return the settings of Figure 7 or 8, with epsilon counted in both ways."""
    rounds, tau = model.trade_off
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
        for by, aggregate, epsilon in itertools.product(
            ("paper", "proven"), ("prf", "fedavg"), EPSILONS
        )
    ]


def _compare_convergence(results: Sequence[Result]) -> list[Line | Claim]:
    model = MODELS[results[0].setting["model"]]
    measure, words = model.measure
    # Results early, at the loss's turn, and late, by noise and local steps.
    early, turning, late = (
        {
            (one.setting["sigma"], one.setting["tau"]): one
            for one in results
            if {EARLY: EARLY, TURN: TURN}.get(one.setting["rounds"], LATE) == when
        }
        for when in (EARLY, TURN, LATE)
    )
    sigmas = sorted({sigma for sigma, _ in late})
    taus = sorted({tau for _, tau in late})
    little, much, few, many = sigmas[0], sigmas[-1], taus[0], taus[-1]

    def claim(what: str, paper: str, found: Sequence[Result], rises: bool, why: str = "") -> Claim:
        first, second = (one.found[measure] for one in found)
        higher, lower = (second, first) if rises else (first, second)
        # Seeds differ by factors.
        contrasts = [Contrast(higher, lower, ratio=True)]
        return Claim(what, paper, means(first, second), contrasts, why)

    lines: list[Line | Claim] = []
    for tau in taus:
        found = [late[sigma, tau] for sigma in (little, much)]
        rounds = found[0].setting["rounds"]
        what = f"tau = {tau}: {words} after {rounds} rounds, sigma {little:g} and {much:g}"
        lines.append(claim(what, "higher with more noise", found, True))
    for sigma in sigmas:
        found = [early[sigma, tau] for tau in (few, many)]
        what = f"sigma = {sigma:g}: {words} after {EARLY} rounds, tau {few} and {many}"
        lines.append(claim(what, "lower with more steps", found, False, why=model.early_why))
        found = [late[sigma, tau] for tau in (few, many)]
        after = " and ".join(
            f"{one.setting['rounds']:,} rounds of tau {one.setting['tau']}" for one in found
        )
        what = f"sigma = {sigma:g}: {words} after {after}"
        lines.append(claim(what, "higher with more steps", found, True))
    for (sigma, tau), one in turning.items():
        what = f"sigma = {sigma:g}, tau = {tau}: {words} after {TURN} and {LATE} rounds"
        paper = "it rises from about 40 rounds on"
        lines.append(claim(what, paper, [one, late[sigma, tau]], True))
    return lines


def _draw_convergence(results: Sequence[Result]) -> list[Panel]:
    """Return, for every noise, panels of the accuracy over rounds and of the paper's quantity.

    The quantity on training data is known only after the last round. The held-out loss replaces the
    training loss; points of the gradient norm come from runs of several lengths.
    """
    model = MODELS[results[0].setting["model"]]
    measure, words = model.measure
    panels = []
    for sigma in sorted({one.setting["sigma"] for one in results}):
        runs = [one for one in results if one.setting["sigma"] == sigma]
        by_tau = {
            f"tau = {tau}": sorted(
                (one for one in runs if one.setting["tau"] == tau),
                key=lambda one: int(one.setting["rounds"]),
            )
            for tau in sorted({one.setting["tau"] for one in runs})
        }
        title = f"sigma = {sigma:g}"
        accuracy, loss = (
            {name: by_round(some[-1].found[figure]) for name, some in by_tau.items()}
            for figure in ("accuracy", "loss")
        )
        panels.append(Panel(title, "rounds", "accuracy on held-out data", accuracy, True))
        if measure == "training_loss":
            panels.append(Panel(title, "rounds", "held-out loss", loss, True, True))
        else:
            points = {
                name: (
                    [one.setting["rounds"] for one in some],
                    [statistics.mean(one.found[measure]) for one in some],
                )
                for name, some in by_tau.items()
            }
            panels.append(Panel(title, "rounds", words, points, True))
    return panels


def _name(setting: Setting) -> str:
    if setting["algorithm"] == "fedavg":
        return "fedavg, no privacy"
    return f"{setting['algorithm']}, epsilon {setting['epsilon']:g} by {setting['epsilon_by']}"


def _compare_utility(results: Sequence[Result]) -> list[Line | Claim]:
    lines: list[Line | Claim] = []
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
    measure, words = MODELS[results[0].setting["model"]].measure
    found_by = {
        (one.setting.get("epsilon_by"), one.setting["algorithm"]): one.found for one in results
    }
    for by in ("paper", "proven"):
        ours, base = (found_by[by, algorithm] for algorithm in ("cdp", "dp-dsgd"))
        least = [
            min((rate[measure] for rate in one["rates"]), key=statistics.mean)
            for one in (ours, base)
        ]
        accuracies = ours["last_accuracy"], base["last_accuracy"]
        for what, sense, values in (
            ("accuracy, cdp and dp-dsgd", "higher", accuracies),
            (f"{words}, cdp and dp-dsgd", "lower", (ours[measure], base[measure])),
            (f"{words}, each at the learning rate of its least", "lower", least),
        ):
            higher, lower = values if sense == "higher" else values[::-1]
            lines.append(
                Claim(
                    f"equal epsilon by {by}: {what}",
                    f"{sense} for cdp" if by == "paper" else "",
                    means(*values),
                    [Contrast(higher, lower)],
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


def _by_epsilon(results: Sequence[Result]) -> dict[tuple[str, str], dict[float, list[float]]]:
    """Return the accuracies of the seeds by kind of epsilon and protocol, and then by epsilon."""
    found: dict[tuple[str, str], dict[float, list[float]]] = {}
    for one in results:
        line = found.setdefault((one.setting["epsilon_by"], one.setting["aggregate"]), {})
        line[one.setting["epsilon"]] = one.found["last_accuracy"]
    return found


def _compare_trade_off(results: Sequence[Result]) -> list[Line | Claim]:
    found = _by_epsilon(results)
    lines: list[Line | Claim] = []
    for by in dict.fromkeys(by for by, _ in found):
        summed, alone = found[by, "prf"], found[by, "fedavg"]
        for epsilon in summed:
            lines.append(
                Claim(
                    f"epsilon {epsilon:g} by {by}: accuracy with masks and without",
                    "always higher with masks" if by == "paper" else "",
                    means(summed[epsilon], alone[epsilon]),
                    [Contrast(summed[epsilon], alone[epsilon])],
                )
            )
        ends = min(summed), max(summed)
        lines.append(
            Claim(
                f"with masks, by {by}: accuracy at epsilon {ends[0]:g} and {ends[1]:g}",
                "higher with a larger epsilon" if by == "paper" else "",
                means(*(summed[end] for end in ends)),
                [Contrast(summed[ends[1]], summed[ends[0]])],
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
                name: (
                    list(found[by, aggregate]),
                    [statistics.mean(values) for values in found[by, aggregate].values()],
                )
                for aggregate, name in masks.items()
            },
            log_x=True,
        )
        for by in dict.fromkeys(by for by, _ in found)
    ]


def _figures(number: int, model: Model) -> list[Artefact]:
    """Return the three figures of a model; the first one has this number."""
    return [
        Artefact(
            f"zcdp/figure-{number}",
            f"Convergence for the grid of noise and local steps: {model.title}",
            {"paper": Scale(f"{model.grid['seeds']} seeds", _convergence(model))},
            _train,
            _compare_convergence,
            _draw_convergence,
        ),
        Artefact(
            f"zcdp/figure-{number + 2}",
            f"Against DP-DSGD at epsilon 10: {model.title}",
            {"paper": Scale(f"five seeds, {_RATES}", _utility(model))},
            _train,
            _compare_utility,
            _draw_utility,
        ),
        Artefact(
            f"zcdp/figure-{number + 4}",
            f"Accuracy over epsilon, with secure aggregation and without: {model.title}",
            {"paper": Scale(f"five seeds, {_RATES}", _trade_off(model))},
            _train,
            _compare_trade_off,
            _draw_trade_off,
        ),
    ]


ARTEFACTS = (*_figures(3, LOGISTIC), *_figures(4, NETWORK))
