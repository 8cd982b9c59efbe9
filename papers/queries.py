"""The queries-and-replies paper (FedSGD-DPC): Table I and Figures 1 to 8.

The setting: 10 devices with two digits each, softmax regression, ten seeds, gradients clipped to
300 in l1 (Laplace) or 10 in l2 (Gaussian, Poisson batches of 1 %, delta = 1e-5), learning rate
0.05 / sqrt(t + 1). Every setting has the noise for its proven epsilon. The paper does not list all
tested settings; here T is from 10 to 500 and b is 1, 5 or 10.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from papers.artefact import Artefact, Result, Scale, Setting, by_round
from papers.panels import Panel
from papers.training import over_seeds
from papers.verdicts import Claim, Contrast, Line, means, says

TITLE = (
    "Optimizing the numbers of queries and replies in federated learning with differential privacy "
    "(FedSGD-DPC)"
)

SEEDS = range(10)
# The settings of Figure 1 with very many queries or replies.
_VERY_LARGE = ((500, 1), (100, 10))
# Our reading of the paper's words for an accuracy.
_VERY_POOR, _VERY_HIGH = 0.5, 0.8
LAPLACE, GAUSSIAN = (1.0, 5.0, 10.0), (0.1, 0.5, 1.0)
# Table I: T* for b = 5 and b = 10, b* for T = 50, T* for the joint optimum b* = 1.
_TABLE = {
    "mnist": ((5, 32, 67), (2, 20, 42), (1, 3, 5), (22, 121, 244)),
    "femnist": ((2, 22, 48), (1, 14, 31), (1, 2, 3), (11, 70, 145)),
}
_COLUMNS = ("T* for b = 5", "T* for b = 10", "b* for T = 50", "T* for b* = 1")
# (lambda / mu) 2, G^2 d^2 / (4 p xi^2) and the rest of the bound behind the table. The paper does
# not print its estimates; these values reproduce all its 24 entries.
_IMPLIED = {
    "mnist": (2.1, 412.0, 197.0, 7_840, 60_000),
    "femnist": (4.25, 96.5, 127.8, 110_526, 70_037),
}
# The training tasks; the paper does not print FEMNIST's clip of l1 norms.
_TASKS: dict[str, dict[str, Any]] = {
    "mnist": {"model": "softmax", "partition": "two-digit", "schedule": "sqrt"},
    "femnist": {"model": "femnist-cnn", "partition": "writer", "decay": 0.9999},
}


def _entries(setting: Setting, data_dir: Path | None) -> Mapping[str, Any]:
    """Return a row's entries for one epsilon from the bound's closed forms."""
    from hpcfl.privacy.queries import Bound, Constants

    gamma, gradient, rest, dim, samples = _IMPLIED[setting["dataset"]]
    unit = dim * 300.0**2 / samples**2
    convexity = 0.3
    constants = Constants(
        devices=10,
        dim=dim,
        samples=samples,
        gradient_norm=2 * math.sqrt(unit * gradient),
        smoothness=gamma * convexity / 2,
        convexity=convexity,
        heterogeneity=0.0,
        distance=32 * unit * rest / (gamma * convexity**2),
        clip_norm=300.0,
    )
    bound = Bound(constants, setting["epsilon"])
    c1, c2, _ = bound.coefficients
    return {
        "entries": [
            math.floor(bound.best_rounds(5)),
            math.floor(bound.best_rounds(10)),
            math.ceil(min(max(math.sqrt(c1 / c2) / 50, 1), constants.devices)),
            math.floor(bound.joint().rounds),
        ]
    }


def _compare_table(results: Sequence[Result]) -> list[Line]:
    lines = []
    for one in results:
        dataset, epsilon = one.setting["dataset"], one.setting["epsilon"]
        column = LAPLACE.index(epsilon)
        for name, row, ours in zip(_COLUMNS, _TABLE[dataset], one.found["entries"], strict=True):
            what, printed = f"{dataset}, epsilon {epsilon:g}: {name}", row[column]
            lines.append(says(what, str(printed), str(ours), printed == ours, "by formula"))
    return lines


def _train(setting: Setting, data_dir: Path | None) -> Mapping[str, Any]:
    """Train with T queries of b replies each, with all seeds."""
    return over_seeds("fedsgd-dpc", data_dir, SEEDS, **_options(setting))


def _options(setting: Setting) -> dict[str, Any]:
    """Return the options of `hpcfl.train` for a setting."""
    laplace = setting["mechanism"] == "laplace"
    return {
        "devices": 10,
        "dropout": 0.0,
        "rounds": setting["T"],
        "steps": 1,
        "batch_size": 0 if laplace else 60,
        "learning_rate": 0.05,
        "momentum": 0.0,
        "weight_decay": 1e-4,
        "dataset": setting["dataset"],
        "data_fraction": setting["data_fraction"],
        "per_round": setting["b"],
        "sampling": "balanced",
        "mechanism": setting["mechanism"],
        "clip_norm": 300.0 if laplace else 10.0,
        **_TASKS[setting["dataset"]],
        "epsilon": setting["epsilon"],
    }


def _settings(
    dataset: str,
    mechanism: str,
    epsilon: float,
    pairs: Sequence[tuple[int, int]],
    fraction: float = 1.0,
) -> list[Setting]:
    return [
        {
            "dataset": dataset,
            "data_fraction": fraction,
            "mechanism": mechanism,
            "epsilon": epsilon,
            "T": queries,
            "b": replies,
        }
        for queries, replies in dict.fromkeys(pairs)
    ]


def _best_rounds(dataset: str, epsilon: float, replies: int) -> int:
    """Return the table's T* for a number of replies."""
    row = {5: 0, 10: 1, 1: 3}[replies]
    return _TABLE[dataset][row][LAPLACE.index(epsilon)]


def _optimum_and_others(dataset: str) -> list[Setting]:
    """Return the optimal and other settings, for every epsilon."""
    found: list[Setting] = []
    for epsilon in LAPLACE:
        others = [(queries, 1) for queries in (10, 50, 100, 250, 500)]
        others += [(50, 5), (10, 10), (50, 10), (100, 10)]
        best = _best_rounds(dataset, epsilon, 1)
        found += _settings(dataset, "laplace", epsilon, [(best, 1), *others])
    for epsilon in GAUSSIAN:
        pairs = [(500, 10), (500, 5), (500, 1), (100, 10)]
        found += _settings(dataset, "gaussian", epsilon, pairs)
    return found


def _every_replies(dataset: str) -> list[Setting]:
    """Return every b with the best T for it."""
    found: list[Setting] = []
    for epsilon in LAPLACE:
        pairs = [(_best_rounds(dataset, epsilon, replies), replies) for replies in (1, 5, 10)]
        found += _settings(dataset, "laplace", epsilon, pairs)
    for epsilon in GAUSSIAN:
        found += _settings(dataset, "gaussian", epsilon, [(500, b) for b in (1, 5, 10)])
    return found


def _fractions(dataset: str, fractions: Sequence[float]) -> list[Setting]:
    """Return the optimal settings with fractions of the data."""
    found: list[Setting] = []
    for fraction in fractions:
        for epsilon in LAPLACE:
            best = _best_rounds(dataset, epsilon, 1)
            found += _settings(dataset, "laplace", epsilon, [(best, 1)], fraction)
        for epsilon in GAUSSIAN:
            found += _settings(dataset, "gaussian", epsilon, [(500, 10)], fraction)
    return found


def _losses(one: Result) -> list[float | None]:
    """Return the last loss of every seed; None if it was not a number."""
    return list(one.found["last_loss"])


def _loss(one: Result) -> float:
    """Return the mean of the last losses; infinite if one was not a number."""
    return statistics.mean(math.inf if loss is None else loss for loss in _losses(one))


def _groups(results: Sequence[Result]) -> dict[tuple[str, float], list[Result]]:
    groups: dict[tuple[str, float], list[Result]] = {}
    for one in results:
        groups.setdefault((one.setting["mechanism"], one.setting["epsilon"]), []).append(one)
    return groups


def _pair(one: Result) -> str:
    return f"T = {one.setting['T']}, b = {one.setting['b']}"


def _compare_optimum(results: Sequence[Result]) -> list[Line | Claim]:
    """Compare the first setting of every group, the paper's optimum, with the others."""
    lines: list[Line | Claim] = []
    for (mechanism, epsilon), group in _groups(results).items():
        optimum, *others = group
        best = min(group, key=_loss)
        lines.append(
            Claim(
                f"{mechanism}, epsilon {epsilon:g}: the lowest loss of {len(group)} settings",
                f"{_pair(optimum)} ({_loss(optimum):.4f} here)",
                f"{_pair(best)} ({_loss(best):.4f})",
                [Contrast(_losses(one), _losses(optimum), _pair(one)) for one in others],
            )
        )
        if mechanism == "laplace":
            large = [one for one in group if (one.setting["T"], one.setting["b"]) in _VERY_LARGE]
            lines.append(
                Claim(
                    f"{mechanism}, epsilon {epsilon:g}: loss with "
                    + ", ".join(_pair(one) for one in (optimum, *large)),
                    "higher with very large T or b than at the optimum",
                    means(*(_losses(one) for one in (optimum, *large))),
                    [Contrast(_losses(one), _losses(optimum), _pair(one)) for one in large],
                )
            )
    return lines


def _rising(names: Sequence[str], samples: Sequence[list[float | None]]) -> list[Contrast]:
    """Return the contrasts of a rising sequence, one for every step."""
    return [
        Contrast(high, low, f"{a} to {b}")
        for (a, low), (b, high) in itertools.pairwise(zip(names, samples, strict=True))
    ]


def _compare_replies(results: Sequence[Result]) -> list[Line | Claim]:
    lines: list[Line | Claim] = []
    for (mechanism, epsilon), group in _groups(results).items():
        found = {one.setting["b"]: _losses(one) for one in group}
        order = (1, 5, 10) if mechanism == "laplace" else (10, 5, 1)
        lines.append(
            Claim(
                f"{mechanism}, epsilon {epsilon:g}: loss for b = 1, 5, 10",
                "higher with larger b" if mechanism == "laplace" else "lower with larger b",
                means(*(found[b] for b in (1, 5, 10))),
                _rising([f"b = {b}" for b in order], [found[b] for b in order]),
            )
        )
    return lines


def _compare_budgets(results: Sequence[Result]) -> list[Line | Claim]:
    lines: list[Line | Claim] = []
    groups = _groups(results)
    for mechanism, epsilons, replies in (("laplace", LAPLACE, 1), ("gaussian", GAUSSIAN, 10)):
        losses = [
            next(_losses(one) for one in groups[mechanism, epsilon] if one.setting["b"] == replies)
            for epsilon in epsilons
        ]
        words = [f"{epsilon:g}" for epsilon in epsilons]
        lines.append(
            Claim(
                f"{mechanism}, b = {replies}: loss for epsilon " + ", ".join(words),
                "higher with a smaller epsilon",
                means(*losses),
                _rising([f"epsilon {word}" for word in words[::-1]], losses[::-1]),
            )
        )
    return lines


def _compare_fractions(results: Sequence[Result]) -> list[Line | Claim]:
    lines: list[Line | Claim] = []
    for (mechanism, epsilon), group in _groups(results).items():
        accuracies = [one.found["last_accuracy"] for one in group]
        parts = [f"{100 * one.setting['data_fraction']:g} %" for one in group]
        lines.append(
            Claim(
                f"{mechanism}, epsilon {epsilon:g}: accuracy with {', '.join(parts)} of the data",
                "higher with more data",
                means(*accuracies, digits=3),
                _rising(parts, accuracies),
            )
        )
    laplace, gaussian = (
        min(
            (
                one.found["last_accuracy"]
                for (kind, _), group in _groups(results).items()
                for one in group
                if kind == mechanism
            ),
            key=statistics.mean,
        )
        for mechanism in ("laplace", "gaussian")
    )
    poor, high = [_VERY_POOR] * len(laplace), [_VERY_HIGH] * len(gaussian)
    lines.append(
        Claim(
            "the lowest accuracy of all, Laplace and Gaussian",
            f"very poor (below {_VERY_POOR}), and very high (above {_VERY_HIGH})",
            means(laplace, gaussian, digits=3),
            [Contrast(poor, laplace, "Laplace"), Contrast(gaussian, high, "Gaussian")],
            "at epsilon 0.1 with a tenth of the data the noise of a step is ten times what it is "
            "with all data, whether proven or by the paper's formula; with the noise of a gradient "
            "of all samples instead of a batch it is 0.804",
        )
    )
    return lines


def _draw_fractions(results: Sequence[Result]) -> list[Panel]:
    panels = []
    for mechanism in ("laplace", "gaussian"):
        curves = {
            f"epsilon {epsilon:g}": (
                [100 * one.setting["data_fraction"] for one in group],
                [one.found["accuracy"][-1] for one in group],
            )
            for (kind, epsilon), group in _groups(results).items()
            if kind == mechanism
        }
        panels.append(
            Panel(mechanism, "part of the data used, %", "accuracy on held-out data", curves)
        )
    return panels


def _draw_losses(results: Sequence[Result]) -> list[Panel]:
    return [
        Panel(
            f"{mechanism}, epsilon {epsilon:g}",
            "queries",
            "loss",
            {_pair(one): by_round(one.found["loss"]) for one in group},
            log_y=True,
        )
        for (mechanism, epsilon), group in _groups(results).items()
    ]


def _draw_by(what: str) -> Callable[[Sequence[Result]], list[Panel]]:
    """Return the function that draws the last losses over b or epsilon."""

    def draw(results: Sequence[Result]) -> list[Panel]:
        across, along = ("b", "epsilon") if what == "b" else ("epsilon", "b")
        panels = []
        for mechanism in ("laplace", "gaussian"):
            curves: dict[str, tuple[list[float], list[float]]] = {}
            for one in results:
                if one.setting["mechanism"] != mechanism:
                    continue
                x, y = curves.setdefault(f"{along} = {one.setting[along]:g}", ([], []))
                x.append(one.setting[across])
                y.append(_loss(one))
            panels.append(Panel(mechanism, across, "loss after the last query", curves))
        return panels

    return draw


def _figures(dataset: str) -> list[Artefact]:
    """Return the four figures of a data set; MNIST has odd numbers, FEMNIST even ones."""
    first, name = (1, "MNIST") if dataset == "mnist" else (2, "FEMNIST")
    replies = {"paper": Scale("ten seeds", _every_replies(dataset))}
    optimum = {"paper": Scale("ten seeds", _optimum_and_others(dataset))}
    tenths = [part / 10 for part in range(1, 11)]
    parts = {
        "paper": Scale("10 % to 100 % of the data, ten seeds", _fractions(dataset, tenths)),
        "small": Scale(
            "10 %, 50 % and 100 % of the data, ten seeds", _fractions(dataset, [0.1, 0.5, 1.0])
        ),
    }

    def figure(
        number: int, title: str, scales: Mapping[str, Scale], compare: Any, draw: Any
    ) -> Artefact:
        return Artefact(f"queries/figure-{number}", title, scales, _train, compare, draw)

    return [
        figure(
            first,
            f"Loss after every query, {name}: the optimum against other T and b",
            optimum,
            _compare_optimum,
            _draw_losses,
        ),
        figure(
            first + 2,
            f"Loss for b = 1, 5, 10, each with its best T, {name}",
            replies,
            _compare_replies,
            _draw_by("b"),
        ),
        figure(
            first + 4,
            f"Loss over the privacy budget, {name}",
            replies,
            _compare_budgets,
            _draw_by("epsilon"),
        ),
        figure(
            first + 6,
            f"Accuracy over budget and part of the data used, {name}",
            parts,
            _compare_fractions,
            _draw_fractions,
        ),
    ]


ARTEFACTS = (
    Artefact(
        "queries/table-1",
        "The best numbers of queries and replies, Laplace noise",
        {
            "paper": Scale(
                "from three constants of each data set that the table implies",
                [
                    {"dataset": dataset, "epsilon": epsilon}
                    for dataset, epsilon in itertools.product(_TABLE, LAPLACE)
                ],
            )
        },
        _entries,
        _compare_table,
    ),
    *itertools.chain.from_iterable(_figures(dataset) for dataset in _TABLE),
)
