"""LOCKS on MNIST: Figure 1, and the noise multipliers of its experiments.

100 clients, 20 a round in expectation, of 30 that send norms for `locks`; 5 local epochs. Uniform
sampling is `dp-fedavg` with Poisson rounds and a trusted server. The paper gives no model, rounds,
clip, delta or learning rate: softmax regression, 50 rounds, clip 1, delta = 1e-5 and learning rate
0.01 here, two classes a client, five seeds. Noise is chosen for a proven epsilon, for both alike;
"no noise" is a multiplier of 1e-6.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from hpcfl.reproduce.artefact import (
    SHOWN,
    Artefact,
    Claim,
    Context,
    Contrast,
    Line,
    Panel,
    Result,
    Scale,
    Setting,
    by_round,
    means,
    within,
)

SEEDS = range(5)
ROUNDS = 50
EPSILONS = (None, 50.0, 10.0)
_UNIFORM, _LOCKS = "dp-fedavg", "locks"


def _train(setting: Setting, context: Context) -> Mapping[str, Any]:
    from hpcfl.reproduce.seeds import over_seeds

    epsilon = setting["epsilon"]
    noise: dict[str, Any] = {"epsilon": epsilon} if epsilon else {"noise_multiplier": 1e-6}
    return over_seeds(
        context,
        100,
        SEEDS,
        algorithm=setting["algorithm"],
        rounds=setting["rounds"],
        dataset="mnist",
        model="softmax",
        partition="shards",
        per_round=20,
        sampling="poisson",
        first_stage=30,
        **noise,
    )


def _compare(results: Sequence[Result]) -> list[Line | Claim]:
    found = {(one.setting["epsilon"], one.setting["algorithm"]): one.found for one in results}
    lines: list[Line | Claim] = []
    for epsilon in EPSILONS:
        uniform, locks = found[epsilon, _UNIFORM], found[epsilon, _LOCKS]
        name = "no noise" if epsilon is None else f"proven epsilon {epsilon:g}"
        lines.append(
            Claim(
                f"{name}: accuracy after {ROUNDS} rounds, uniform and locks",
                "generally better with locks" if epsilon else "a mild gain with locks",
                means(uniform["last_accuracy"], locks["last_accuracy"]),
                [Contrast(locks["last_accuracy"], uniform["last_accuracy"])],
                "probably as locks spends half of the budget on norms, and weighs updates by the "
                "inverse of how likely they were heard; that was not tested apart",
            )
        )
        lines.append(
            Line(
                f"{name}: sent up by all devices, uniform and locks",
                "",
                f"{uniform['bytes_up'] / 1e6:.1f} and {locks['bytes_up'] / 1e6:.1f} MB",
                SHOWN,
            )
        )
    return lines


def _draw(results: Sequence[Result]) -> list[Panel]:
    panels = []
    for epsilon in EPSILONS:
        curves = {
            {_UNIFORM: "uniform", _LOCKS: "locks"}[one.setting["algorithm"]]: by_round(
                one.found["accuracy"]
            )
            for one in results
            if one.setting["epsilon"] == epsilon
        }
        title = "no noise" if epsilon is None else f"proven epsilon {epsilon:g}"
        panels.append(Panel(title, "rounds", "accuracy on held-out data", curves))
    return panels


def _multiplier(setting: Setting, context: Context) -> Mapping[str, Any]:
    """Return the epsilon of Poisson rounds with a noise multiplier, by RDP."""
    from hpcfl.privacy.accounting import dp_fedavg

    found = dp_fedavg.paper(
        dp_fedavg.Settings(
            sigma=setting["multiplier"],
            rounds=setting["rounds"],
            devices=100,
            per_round=20,
        )
    )
    return {"epsilon": found.epsilon}


def _compare_multipliers(results: Sequence[Result]) -> list[Line]:
    return [
        within(
            f"multiplier {one.setting['multiplier']}, {one.setting['rounds']} rounds: epsilon",
            one.setting["epsilon"],
            one.found["epsilon"],
            0.02,
            "",
            "with the rounds that fit the other multiplier; the paper gives neither rounds nor "
            "delta, and no number of rounds fits both",
        )
        for one in results
    ]


ARTEFACTS = (
    Artefact(
        "locks/figure-1",
        "Uniform sampling against LOCKS",
        {
            "paper": Scale(
                "epsilon infinite, 50 and 10; five seeds",
                [
                    {"algorithm": algorithm, "epsilon": epsilon, "rounds": ROUNDS}
                    for epsilon, algorithm in itertools.product(EPSILONS, (_UNIFORM, _LOCKS))
                ],
                30,
            )
        },
        _train,
        _compare,
        _draw,
        ("mnist",),
    ),
    Artefact(
        "locks/multipliers",
        "The noise multipliers 0.5 and 1.32 for epsilon 50 and 10",
        {
            "paper": Scale(
                "Poisson rounds of 20 of 100 clients, delta = 1e-5",
                [
                    {"multiplier": multiplier, "epsilon": epsilon, "rounds": rounds}
                    for rounds in (100, 54)
                    for multiplier, epsilon in ((0.5, 50.0), (1.32, 10.0))
                ],
                0.2,
            )
        },
        _multiplier,
        _compare_multipliers,
    ),
)
