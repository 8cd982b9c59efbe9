"""The findings of the study: sentences whose figures come from the results."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from papers.artefact import Result
from papers.study import costs, training
from papers.study.found import Costs, Estimate, Missing, mean_of, spread
from papers.study.populations import SEEDS
from papers.training import without_training


@dataclass(frozen=True)
class Finding:
    """A claim about protocols, with its evidence and the results that would refute it."""

    says: str
    figures: Mapping[str, object]  # the results, by description
    parts: tuple[str, ...]  # parts of the study that the finding uses
    refuted_by: str

    @property
    def command(self) -> str:
        """The command that runs these parts again, into a separate folder."""
        names = " ".join(f"study/{part}" for part in self.parts)
        return f"python -m papers {names} --output results/again"


@dataclass(frozen=True)
class Evidence:
    """All results of the study."""

    costs: Costs
    trained: Mapping[str, list[Result]]  # by the names of the training parts


def findings(evidence: Evidence) -> list[Finding]:
    """Return the findings whose results are complete."""
    said = []
    for make in _FINDINGS:
        try:
            said.append(make(evidence))
        except Missing:
            continue
    return said


# The interval of a ratio is for one launch and does not cover other launches (docs/method.md,
# Statistics): later launches on the same machine have been outside it.
_LAUNCHES = "a ratio more than 25 % outside its interval, as the median over three launches"
_SEEDS = "runs with other seeds (`hpcfl train --seed`) whose interval does not overlap this one"
_SHORT: dict[str, Any] = {"dim": costs.DEVICES_DIM}
_FEW: dict[str, Any] = {"devices": costs.DIMS_DEVICES}
_WAYS = training.WAYS[1:]
_TRAINING = tuple(task.part for task in training.TASKS)


def _bytes(evidence: Evidence) -> Finding:
    def fewer(name: str, **changes: Any) -> float:
        return 1 / evidence.costs.versus("bytes_up", name, **changes).value

    by_devices = {n: fewer("sparse", **_SHORT, devices=n) for n in costs.DEVICES}
    by_dim = {d: fewer("sparse", **_FEW, dim=d) for d in costs.DIMS}
    return Finding(
        "With a tenth of the coordinates, a SparseSecAgg device sends "
        f"{fewer('sparse'):.1f} times fewer bytes than a SecAgg device. With vectors of only "
        f"{costs.DEVICES_DIM:,} coordinates, keys and shares reduce this to between "
        f"{by_devices[25]:.1f} times (N = 25) and {by_devices[10_000]:.2f} times (N = 10,000).",
        {
            **{f"`{name}`, times fewer": f"{fewer(name):.2f}" for name in _WAYS},
            "`sparse` over N, d = 10,000": _listed(by_devices),
            "`sparse` over d, N = 25": _listed(by_dim),
        },
        ("links", "devices", "dim"),
        "a run in which these bytes differ by more than 1 %",
    )


def _listed(found: Mapping[int, float]) -> str:
    return ", ".join(f"{value:.2f} ({at:,})" for at, value in found.items())


def _cpu(evidence: Evidence) -> Finding:
    def ratio(role: str, name: str = "sparse", **changes: Any) -> Estimate:
        return evidence.costs.versus(f"{role}_cpu_seconds", name, **changes)

    device = ratio("device")
    return Finding(
        f"A SparseSecAgg device needs {device.value:.2f} times the CPU time of a SecAgg device.",
        {
            **{f"`{name}`, device": ratio("device", name) for name in _WAYS},
            "`sparse`, server": ratio("server"),
            "`sparse`, device, no dropouts": ratio("device", dropout=0.0),
            "`sparse`, server, no dropouts": ratio("server", dropout=0.0),
            **{
                f"`sparse`, device, N = 25, d = {d:,}": ratio("device", **_FEW, dim=d)
                for d in costs.DIMS
            },
            **{
                f"`sparse`, device, N = {n}, d = 10,000": ratio("device", **_SHORT, devices=n)
                for n in costs.DEVICES[1:4]
            },
        },
        ("devices", "dim", "dropout"),
        _LAUNCHES,
    )


def _hidden(evidence: Evidence) -> Finding:
    shown = {
        name: f"{100 * evidence.costs.at(name)['exposed_alone']:.3g} %" for name in training.WAYS
    }
    alone = 100 * evidence.costs.at("sparse")["exposed_alone"]
    return Finding(
        f"With a tenth of the devices on its side, a curious server learns {alone:.0f} % of the "
        "values that a SparseSecAgg device sends.",
        {f"`{name}`": share for name, share in shown.items()},
        ("links",),
        "`hpcfl attack` on recorded rounds (`hpcfl bench sparse --keep-transcript`) that recovers "
        "a share more than a tenth higher or lower, as the mean of three rounds",
    )


def _compared(
    evidence: Evidence, figure: Callable[[Result], float], compare: Callable[[float, float], float]
) -> dict[tuple[str, str], Estimate]:
    """Compare a figure of every way with secagg's, for the seeds where both reach the accuracy."""
    found = {}
    for task in training.TASKS:
        results = evidence.trained.get(task.part, [])
        by_seed = {
            name: {
                one.setting["seed"]: figure(one)
                for one in results
                if one.setting["protocol"] == name and one.found["reached"]
            }
            for name in training.WAYS
        }
        for way in _WAYS:
            both = sorted(by_seed[way].keys() & by_seed["secagg"].keys())
            ratios = [compare(by_seed[way][seed], by_seed["secagg"][seed]) for seed in both]
            found[task.title, way] = mean_of(ratios)
    return found


def _named(found: Mapping[tuple[str, str], Estimate]) -> dict[str, object]:
    return {f"{title}, `{way}`": one for (title, way), one in found.items()}


def _rounds(evidence: Evidence) -> Finding:
    more = _compared(evidence, lambda one: float(one.found["rounds"]), operator.sub)
    most = max(abs(one.value) for one in more.values())
    told = all(one.low <= 0 <= one.high for one in more.values())
    return Finding(
        "Sending a tenth of the coordinates changes the number of rounds to an accuracy by at most "
        f"{most:.1f}" + (", which is not distinguishable over the seeds." if told else "."),
        _named(more),
        _TRAINING,
        _SEEDS,
    )


def _bytes_to_target(evidence: Evidence) -> Finding:
    fewer = _compared(
        evidence, lambda one: float(one.found["bytes_up_total"]), lambda ours, all_: all_ / ours
    )
    sparse = [one.value for (_, way), one in fewer.items() if way == "sparse"]
    return Finding(
        f"To reach an accuracy, SparseSecAgg sends {min(sparse):.1f} to {max(sparse):.1f} times "
        "fewer bytes than SecAgg.",
        _named(fewer),
        _TRAINING,
        _SEEDS,
    )


def _time_to_target(evidence: Evidence) -> Finding:
    took = _compared(evidence, lambda one: without_training(one.found), operator.truediv)
    sparse = [one.value for (_, way), one in took.items() if way == "sparse"]
    return Finding(
        f"To reach an accuracy over links of 100 Mbit/s, SparseSecAgg takes {min(sparse):.2f} to "
        f"{max(sparse):.2f} times as long as SecAgg, without the time for training.",
        _named(took),
        _TRAINING,
        f"{_SEEDS} by more than 25 %",
    )


def _devices(evidence: Evidence) -> Finding:
    def grown(name: str) -> Estimate:
        few, many = (
            evidence.costs.figure("device_cpu_seconds", name, **_SHORT, devices=devices)
            for devices in (100, 1_000)
        )
        return many.over(few)

    complete, graph = grown("secagg"), grown("secagg-graph")
    state = evidence.costs.at("secagg", **_SHORT, devices=1_000)["state"]
    return Finding(
        "From 100 to 1,000 devices, the CPU time of a device grows "
        f"{complete.value:.0f}-fold in SecAgg and {graph.value:.1f}-fold in SecAgg+.",
        {f"`secagg`, {state}": complete, "`secagg-graph`": graph},
        ("devices",),
        f"{_LAUNCHES} (`hpcfl bench secagg --devices 1000 --dim {costs.DEVICES_DIM}`)",
    )


def _dropouts(evidence: Evidence) -> Finding:
    grown = {}
    for name in ("secagg", "lightsecagg", "assisted", "committee"):
        without, with_ = (
            evidence.costs.figure("server_cpu_seconds", name, dropout=dropout)
            for dropout in (0.0, 0.4)
        )
        grown[name] = with_.over(without)
    return Finding(
        "With 40 % dropouts, the server needs "
        f"{grown['secagg'].value:.0f} times the CPU time without dropouts in `secagg`, and "
        f"{grown['assisted'].value:.1f} times in `assisted`.",
        {f"`{name}`": one for name, one in grown.items()},
        ("dropout",),
        _LAUNCHES,
    )


def _links(evidence: Evidence) -> Finding:
    """Find the protocol with the shortest round among those that hide all values, no helpers."""
    whole = [
        name
        for name in ("secagg", "secagg-graph", "common", "lightsecagg", "committee")
        if evidence.costs.at(name)["exposed_alone"] == 0
    ]
    first: dict[int, tuple[str, Estimate]] = {}
    for rate in costs.UPLINKS:
        took = {
            name: spread(evidence.costs.at(name)["modelled_seconds"][f"{rate}"]) for name in whole
        }
        best = min(took, key=lambda name: took[name].value)
        first[rate] = best, took[best]
    return Finding(
        f"Among the protocols that hide all values without helpers, `{first[1][0]}` has the "
        f"shortest modelled round at 1 Mbit/s ({first[1][1].value:.2g} s) and, on this machine, "
        f"`{first[1000][0]}` at 1 Gbit/s ({first[1000][1].value:.2g} s).",
        {f"{rate} Mbit/s": f"`{name}`, {took} s" for rate, (name, took) in first.items()},
        ("links",),
        "a shorter round of another protocol on real links of that rate, with devices as fast as "
        "these",
    )


def _narrow(evidence: Evidence) -> Finding:
    def cpu(bits: int, other: int | None) -> Estimate:
        changes = {} if other is None else {"bits": other}
        beside = evidence.costs.figure("device_cpu_seconds", "secagg", **changes)
        return evidence.costs.figure("device_cpu_seconds", "secagg", bits=bits).over(beside)

    sent = (
        evidence.costs.at("secagg")["bytes_up"] / evidence.costs.at("secagg", bits=16)["bytes_up"]
    )
    return Finding(
        f"With 16 bits per value, SecAgg sends {sent:.2f} times fewer bytes than in the 32-bit "
        f"prime field, and a device needs {cpu(16, None).value:.2f} times the CPU time.",
        {
            "16 bits over the prime field": cpu(16, None),
            **{f"{bits} bits over 32-bit integers": cpu(bits, 32) for bits in (16, 20, 24)},
        },
        ("links", "bits"),
        _LAUNCHES,
    )


def _noise(evidence: Evidence) -> Finding:
    def more(name: str) -> Estimate:
        with_ = evidence.costs.figure("device_cpu_seconds", name, noise_multiplier=1.0)
        return with_.over(evidence.costs.figure("device_cpu_seconds", name))

    central, all_devices = (
        {
            one.setting["epsilon"]: one.found["last_accuracy"]
            for one in evidence.trained.get("epsilon", [])
            if one.setting["aggregate"] == name
        }
        for name in ("fedavg", "secagg")
    )
    if not central:
        raise Missing("training with noise")
    lost = {
        f"accuracy minus that with a trusted server's noise, points, epsilon {epsilon:g}": mean_of(
            [100 * (a - b) for a, b in zip(all_devices[epsilon], alone, strict=True)]
        )
        for epsilon, alone in central.items()
    }
    return Finding(
        "If devices add discrete Gaussian noise themselves, a SecAgg device needs "
        f"{more('secagg').value:.1f} times the CPU time without noise.",
        {
            **{
                f"`{name}`, device": more(name)
                for name in ("secagg", "cohort", "common", "assisted")
            },
            **lost,
        },
        ("noise", "epsilon"),
        f"accuracies whose interval does not overlap this one, or {_LAUNCHES}",
    )


def _room_for_noise(evidence: Evidence) -> Finding:
    """Find the bits and bytes that an epsilon needs, and the noise compared with a server's."""
    names = ("secagg", "secagg-graph", "cohort", "common", "lightsecagg", "committee", "assisted")
    figures, larger = {}, {}
    for epsilon in training.EPSILONS:
        server = evidence.costs.at("fedavg", epsilon=epsilon)["noise_in_sum"]
        for name in names:
            one = evidence.costs.at(name, epsilon=epsilon)
            larger[name, epsilon] = one["noise_in_sum"] / server
            figures[f"`{name}`, epsilon {epsilon:g}"] = (
                f"{one['bits']} bits, {one['bytes_up'] / 1e6:.3g} MB, "
                f"{larger[name, epsilon]:.2f} times the noise"
            )
    bits = {evidence.costs.at("secagg", epsilon=one)["bits"] for one in training.EPSILONS}
    return Finding(
        f"For an epsilon of 1 to 8 over {costs.PRIVATE_ROUNDS} private rounds (delta = "
        f"{costs.DELTA:g}), SecAgg needs {' or '.join(sorted(bits))} bits per value and "
        f"{larger['secagg', 1.0]:.2f} times the noise of a trusted server.",
        figures,
        ("epsilon-cost",),
        "`hpcfl train dp-fedavg --noise distributed` with fewer `--bits`, the same `--epsilon` and "
        "a `noise_in_sum` of at most 1.05 times that of 32 bits",
    )


def _slowest(evidence: Evidence) -> Finding:
    """Find what is left of SparseSecAgg's saving where rounds wait for slow devices."""
    found = {}
    for one in evidence.trained.get("populations", []):
        at = one.setting
        if (at["devices"], at["dim"]) == (100, 10**6) and at["population"] != "uniform":
            took = one.found["secagg"] / one.found["sparse"]
            found[f"{at['population']}, quorum {at['quorum']:g}"] = took
    if not found:
        raise Missing("populations")
    return Finding(
        "Where devices are not alike (three assumed populations, quorums of 0.7 to 1), a SecAgg "
        f"round is predicted to take {min(found.values()):.1f} to {max(found.values()):.1f} times "
        "as long as one of SparseSecAgg, whose devices send 9 times fewer bytes (N = 100, a "
        "million coordinates): only the upload gets shorter, and on fast links the server's work "
        "decides.",
        {f"`secagg` / `sparse`, {name}": f"{took:.2f}" for name, took in found.items()},
        ("populations",),
        "modelled rounds of `hpcfl bench --population` whose ratio differs by more than 25 %",
    )


def _waiting(evidence: Evidence) -> Finding:
    """Find what a quorum costs and saves in training."""
    trained = evidence.trained.get("waiting", [])
    found = {
        (one.setting["quorum"], one.setting["deadline"], one.setting["seed"]): one.found
        for one in trained
    }
    if not found:
        raise Missing("waiting")

    def beside_all(quorum: float, deadline: float | None) -> dict[str, Estimate]:
        pairs = [(found[quorum, deadline, seed], found[1.0, None, seed]) for seed in SEEDS]
        return {
            "accuracy, points": mean_of([100 * (a["accuracy"] - b["accuracy"]) for a, b in pairs]),
            "modelled time": mean_of([
                a["modelled_seconds"] / b["modelled_seconds"] for a, b in pairs
            ]),
            "devices in no sum, %": mean_of([100 * a["never_in_sum"] for a, _ in pairs]),
        }  # fmt: skip

    ways = {"quorum 0.9": (0.9, None), "quorum 0.7": (0.7, None), "2 s an exchange": (1.0, 2.0)}
    figures = {name: beside_all(*way) for name, way in ways.items()}
    few = figures["quorum 0.7"]
    told = few["accuracy, points"].low <= 0 <= few["accuracy, points"].high
    return Finding(
        "A server that waits for 70 % of 25 modelled phones takes "
        f"{few['modelled time'].value:.2f} times the modelled time of one that waits for all (30 "
        "rounds, 2NN, 300 shards, a tenth of MNIST). No sum has "
        f"{few['devices in no sum, %'].value:.0f} % of them, and the measured accuracy changes by "
        f"{few['accuracy, points'].value:+.1f} points"
        + (", which is not distinguishable over the seeds." if told else "."),
        {f"{way}: {name}": one for way, some in figures.items() for name, one in some.items()},
        ("waiting",),
        _SEEDS,
    )


_FINDINGS: tuple[Callable[[Evidence], Finding], ...] = (
    _bytes,
    _cpu,
    _hidden,
    _rounds,
    _bytes_to_target,
    _time_to_target,
    _devices,
    _dropouts,
    _links,
    _narrow,
    _noise,
    _room_for_noise,
    _slowest,
    _waiting,
)
