"""LOCKS on MNIST: Figure 1, and the noise multipliers of its experiments.

100 clients, 20 a round in expectation, of 30 that send norms for `locks`; 5 local epochs. Uniform
sampling is `dp-fedavg` with Poisson rounds and a trusted server. The paper gives no model, rounds,
clip, delta or learning rate: softmax regression, 50 rounds, clip 1, delta = 1e-5 and learning rate
0.01 here, two classes a client, five seeds. Noise is chosen for a proven epsilon, for both alike;
"no noise" is a multiplier of 1e-6.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcfl.algorithms.registry import Registered
from hpcfl.reproduce import multipliers
from hpcfl.reproduce.artefact import (
    MORE,
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
)
from hpcfl.reproduce.statistics import Difference, paired

SEEDS = range(5)
ROUNDS = 50
EPSILONS = (None, 50.0, 10.0)
_UNIFORM, _LOCKS = "dp-fedavg", "locks"
_HOME = "hpcfl.reproduce.ablations"
ABLATIONS = {
    "locks-unweighted": Registered(f"{_HOME}:Unweighted", "updates weighted alike (line 21)"),
    "locks-free-norms": Registered(f"{_HOME}:FreeNorms", "norms without noise, at no cost"),
    "locks-unweighted-free-norms": Registered(
        f"{_HOME}:UnweightedFreeNorms", "both, weighted alike and norms at no cost"
    ),
    "locks-even-chances": Registered(f"{_HOME}:EvenChances", "stage 2 regardless of norms"),
    "locks-largest": Registered(
        f"{_HOME}:Largest", "weighted alike, chances by the fourth power of exact norms"
    ),
}
_UNEVEN = "dirichlet:0.1"


def _run(setting: Setting, context: Context) -> Mapping[str, Any]:
    """Train, see how much the norms of updates differ, or find what noise an epsilon takes."""
    if "norms" in setting:
        return _norms(setting, context)
    return _noise(setting) if "noise" in setting else _train(setting, context)


def _noise(setting: Setting) -> Mapping[str, Any]:
    """Return the noise multipliers that a proven epsilon takes: of 20 clients, and of 30."""
    from hpcfl.privacy.accounting import sampling
    from hpcfl.privacy.accounting.accountant import least_noise

    def multiplier(clients: int) -> float:
        def epsilon(sigma: float) -> float:
            return sampling.poisson_gaussian(clients / 100, sigma, setting["rounds"], 1e-5)[0]

        return least_noise(epsilon, setting["epsilon"], 1.0)

    return {"of_20": multiplier(20), "of_30": multiplier(30)}


def _train(setting: Setting, context: Context) -> Mapping[str, Any]:
    from hpcfl.reproduce.seeds import over_seeds

    epsilon, algorithm = setting["epsilon"], setting["algorithm"]
    noise: dict[str, Any] = {"epsilon": epsilon} if epsilon else {"noise_multiplier": 1e-6}
    return over_seeds(
        context,
        100,
        SEEDS,
        algorithm=ABLATIONS[algorithm].home if algorithm in ABLATIONS else algorithm,
        rounds=setting["rounds"],
        dataset="mnist",
        model="softmax",
        partition=setting.get("partition", "shards"),
        variant=setting.get("variant", "trusted"),
        per_round=20,
        sampling="poisson",
        first_stage=30,
        **noise,
    )


def _norms(setting: Setting, context: Context) -> Mapping[str, Any]:
    """Train without noise, 20 clients a round; return how the norms of their updates differ.

    Of every round the coefficient of variation of the norms, and of the norms clipped to 1. Every
    rank does all of it.
    """
    from hpcfl.learning import datasets, models, partition
    from hpcfl.learning.training import Trainer, single_thread
    from hpcfl.options.training import LocalOptions

    single_thread()
    data = datasets.load("mnist", context.data_dir, 0)
    shares = partition.make(setting["partition"], data, 100, 0)
    model = models.build("softmax", data.shape, data.classes, 0)
    weights = models.get_flat(model)
    trainer = Trainer(model, LocalOptions())
    generator = np.random.default_rng(0)
    found: dict[str, list[float]] = {"norms": [], "clipped": []}
    for index in range(setting["rounds"]):
        updates = []
        for device in generator.permutation(100)[:20].tolist():
            inputs, labels = data.train_inputs[shares[device]], data.train_labels[shares[device]]
            seeds = np.random.SeedSequence(0, spawn_key=(index, device))
            updates.append(trainer.local_update(weights, inputs, labels, seeds, index))
        norms = np.array([np.linalg.norm(update) for update in updates])
        for name, values in (("norms", norms), ("clipped", np.minimum(norms, 1.0))):
            found[name].append(round(float(values.std() / values.mean()), 4))
        factors = np.minimum(1.0, 1 / norms)[:, None]
        weights = (weights - (factors * updates).mean(axis=0)).astype(np.float32)
    return {"variation_of_" + name: values for name, values in found.items()}


def _compare(results: Sequence[Result]) -> list[Line | Claim]:
    """Return every ablation beside uniform sampling at the same epsilon, seed by seed."""
    trained = {
        (
            one.setting["epsilon"],
            one.setting["algorithm"],
            one.setting.get("partition", "shards"),
            one.setting.get("variant", "trusted"),
        ): one.found
        for one in results
        if "algorithm" in one.setting
    }
    noise = {one.setting["epsilon"]: one.found for one in results if "noise" in one.setting}
    variation = [
        one
        for result in results
        if "norms" in result.setting and result.setting["partition"] == "shards"
        for one in result.found["variation_of_clipped"]
    ]
    lines: list[Line | Claim] = []
    for epsilon in EPSILONS:
        name = "no noise" if epsilon is None else f"proven epsilon {epsilon:g}"
        uniform = trained[epsilon, _UNIFORM, "shards", "trusted"]
        locks = trained[epsilon, _LOCKS, "shards", "trusted"]
        others = {
            key: found
            for key, found in trained.items()
            if key[0] == epsilon and key[1:] != (_UNIFORM, "shards", "trusted")
        }
        changes: list[Line] = []
        gains: dict[str, Difference] = {}
        for (_, algorithm, partition, variant), found in others.items():
            # Data shared out otherwise have a uniform sampling of their own to be compared with.
            beside = trained.get((epsilon, _UNIFORM, partition, "trusted"))
            if algorithm == _UNIFORM or found is locks or beside is None:
                continue
            what = ABLATIONS[algorithm].about if algorithm in ABLATIONS else algorithm
            what += ", noise of users" if variant == "local" else ""
            what += "" if partition == "shards" else f", {partition}"
            gains[what] = paired(found["last_accuracy"], beside["last_accuracy"])
            changes.append(
                Line(
                    f"{name}: {what}: accuracy, and less uniform's",
                    "",
                    f"{found['accuracy'][-1]:.4f}, {gains[what]}",
                    SHOWN,
                )
            )
        lines += [
            Claim(
                f"{name}: accuracy after {ROUNDS} rounds, uniform and locks",
                "generally better with locks" if epsilon else "a mild gain with locks",
                means(uniform["last_accuracy"], locks["last_accuracy"]),
                [Contrast(locks["last_accuracy"], uniform["last_accuracy"])],
                tried=_tried(noise.get(epsilon), variation, gains),
            ),
            Line(
                f"{name}: sent up by all devices, uniform and locks",
                "",
                f"{uniform['bytes_up'] / 1e6:.1f} and {locks['bytes_up'] / 1e6:.1f} MB",
                SHOWN,
            ),
            *changes,
        ]
    for epsilon, found in noise.items():
        for mean_norm in (1.0, 0.5):
            told = ", ".join(f"{one:.4f}" for one in _noise_on_mean(found, mean_norm))
            lines.append(
                Line(
                    f"proven epsilon {epsilon:g}: noise on a coordinate of the mean update, norms "
                    f"of {mean_norm:g} C: uniform, locks, locks with norms at no cost",
                    "",
                    told,
                    SHOWN,
                )
            )
    for one in results:
        if "norms" in one.setting:
            values = [
                [100 * part for part in one.found[f"variation_of_{name}"]]
                for name in ("norms", "clipped")
            ]
            lines.append(
                Line(
                    f"{one.setting['partition']}: by how much norms of updates differ in a round "
                    "(standard deviation over mean), and once clipped",
                    "",
                    " and ".join(f"{min(some):.0f} to {max(some):.0f} %" for some in values),
                    SHOWN,
                )
            )
    return lines


def _noise_on_mean(noise: Mapping[str, Any], mean_norm: float) -> list[float]:
    """Return the noise on a coordinate of the mean update: uniform, locks, locks with free norms.

    With C = 1: uniform has z C / b. locks has z_0 S / m, S = max(m z, b C) / b for norms of mean z,
    and z_0 is sqrt(2) times what it takes without norms, as both releases have the same noise.
    """
    sent = max(30 * mean_norm, 20.0) / 20
    free = noise["of_30"] * sent / 30
    return [noise["of_20"] / 20, math.sqrt(2) * free, free]


def _tried(
    noise: Mapping[str, Any] | None, variation: Sequence[float], gains: Mapping[str, Difference]
) -> str:
    """Return what formulas say of locks beside uniform, and what one thing changed makes of it.

    Chances that go with norms lower the second moment of a sampled update, where norms are all that
    differs, by the factor 1 / (1 + v**2), v being the norms' standard deviation over their mean.
    """
    told = []
    if noise is not None:
        plain, most, _ = _noise_on_mean(noise, 1.0)
        least = _noise_on_mean(noise, 0.0)[1]
        told.append(
            f"by formula the mean update has {least / plain:.2f} to {most / plain:.2f} times "
            "uniform's noise, by the size of the norms: half of the budget is theirs, and of 30 "
            "invited less is hidden by chance than of 20"
        )
    if variation:
        saved = max(variation) ** 2 / (1 + max(variation) ** 2)
        told.append(
            f"norms differ by {min(variation):.0%} to {max(variation):.0%} in a round, so that "
            f"chances by norm save {saved:.1%} of an update's second moment at the most"
        )
    words = {
        "ahead of uniform": [f"{name}: {one}" for name, one in gains.items() if one.low > 0],
        "not distinguishable from it": [
            f"{name}: {one}" for name, one in gains.items() if one.low <= 0 <= one.high
        ],
        "behind it as well": [f"{name}: {one}" for name, one in gains.items() if one.high < 0],
    }
    found = [f"{word}: {', '.join(names)}" for word, names in words.items() if names]
    if found:
        told.append(f"with one thing changed, by intervals of 95 % each, {'; '.join(found)}")
    return "; ".join(told) or "nothing was changed (--scale more)"


def _draw(results: Sequence[Result]) -> list[Panel]:
    panels = []
    for epsilon in EPSILONS:
        curves = {
            {_UNIFORM: "uniform", _LOCKS: "locks"}[one.setting["algorithm"]]: by_round(
                one.found["accuracy"]
            )
            for one in results
            if one.setting.get("algorithm") in (_UNIFORM, _LOCKS)
            and one.setting["epsilon"] == epsilon
            and not {"partition", "variant"} & {*one.setting}
        }
        title = "no noise" if epsilon is None else f"proven epsilon {epsilon:g}"
        panels.append(Panel(title, "rounds", "accuracy on held-out data", curves))
    return panels


def _multiplier(setting: Setting, context: Context) -> Mapping[str, Any]:
    """Return the epsilon of Poisson rounds with a noise multiplier, by RDP, or try all readings."""
    if "sampling" in setting:
        return multipliers.run(setting, context)
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
    # The paper names neither rounds nor delta: these were taken because they fit one multiplier.
    fitted = [
        Line(
            "multiplier {multiplier}, {rounds} Poisson rounds, delta 1e-5: epsilon, for "
            "{epsilon:g}".format_map(one.setting),
            "",
            f"{one.found['epsilon']:.4g}",
            SHOWN,
        )
        for one in results
        if "multiplier" in one.setting
    ]
    return fitted + multipliers.compare([one for one in results if "sampling" in one.setting])


def _ablations() -> list[Setting]:
    """Return what is changed, the most telling first."""
    norms: list[Setting] = [
        {"norms": "uniform", "partition": partition, "rounds": 20}
        for partition in ("shards", _UNEVEN)
    ]
    changed: dict[float | None, list[Setting]] = {}
    for epsilon in EPSILONS:
        like = {"epsilon": epsilon, "rounds": ROUNDS}
        changed[epsilon] = [{"algorithm": algorithm, **like} for algorithm in ABLATIONS]
        changed[epsilon].append({"algorithm": _LOCKS, **like, "variant": "local"})
    uneven: list[Setting] = [
        {"algorithm": name, "epsilon": epsilon, "rounds": ROUNDS, "partition": _UNEVEN}
        for epsilon, name in itertools.product(EPSILONS, (_UNIFORM, _LOCKS))
    ]
    noisiest, quiet, between = EPSILONS[-1], EPSILONS[0], EPSILONS[1]
    # Without noise, norms cost nothing.
    without = [one for one in changed[quiet] if "free" not in one["algorithm"]]
    formulas: list[Setting] = [
        {"noise": "both", "epsilon": epsilon, "rounds": ROUNDS} for epsilon in EPSILONS if epsilon
    ]
    return [*norms, *formulas, *changed[noisiest], *without, *uneven, *changed[between]]


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
            ),
            MORE: Scale("one thing changed at a time, and how norms differ", _ablations(), 60),
        },
        _run,
        _compare,
        _draw,
        ("mnist",),
    ),
    Artefact(
        "locks/multipliers",
        "The noise multipliers 0.5 and 1.32 for epsilon 50 and 10",
        {
            "paper": Scale(
                "by formula: Poisson rounds of 20 of 100 clients; other readings",
                [
                    {"multiplier": multiplier, "epsilon": epsilon, "rounds": rounds}
                    for rounds in (100, 54)
                    for multiplier, epsilon in ((0.5, 50.0), (1.32, 10.0))
                ]
                + multipliers.SETTINGS,
                1,
            )
        },
        _multiplier,
        _compare_multipliers,
    ),
)
