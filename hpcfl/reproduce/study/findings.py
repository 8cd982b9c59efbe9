"""What the study says, in sentences whose figures come from what was run."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from hpcfl.report.formats import counted
from hpcfl.reproduce.artefact import Result
from hpcfl.reproduce.seeds import without_training
from hpcfl.reproduce.study import costs, links, privacy, training
from hpcfl.reproduce.study.found import Costs, Estimate, Missing, mean_of, spread
from hpcfl.training.build import NOISE_OF_FEW_BITS


@dataclass(frozen=True)
class Finding:
    """A claim about protocols, with what it rests on and what would refute it."""

    title: str
    where: str  # of which numbers of devices, vectors, dropouts and so on it is true
    says: str
    parts: tuple[str, ...]  # the parts of the study whose figures are in it
    refuted_by: str

    @property
    def command(self) -> str:
        """What runs these parts again, all their settings, into a folder of its own."""
        names = " ".join(f"study/{part}" for part in self.parts)
        data = " --data-dir data" if {*self.parts} & _TRAINED else ""
        return f"hpcfl reproduce {names}{data} --output {AGAIN}"


@dataclass(frozen=True)
class Evidence:
    """All that was run."""

    costs: Costs
    trained: dict[str, list[Result]]  # by the names of tasks
    accuracies: list[Result]  # of training with noise
    linked: list[Result]  # of rounds over shaped links
    central: list[Result] = field(default_factory=list)  # of a trusted server's noise


def findings(evidence: Evidence) -> list[Finding]:
    """Return what can be said of what was run."""
    said = []
    for make in _FINDINGS:
        try:
            said.append(make(evidence))
        except Missing:
            continue
    return said


def missing(evidence: Evidence) -> int:
    """Return how many findings wait for something that was not run."""
    return len(_FINDINGS) - len(findings(evidence))


# Where readers put what they run again: what is kept stays as it was.
AGAIN = "results/again"
# Parts that train, and so need data.
_TASKS = tuple(f"training-{task.model}-{task.partition}" for task in training.TASKS)
_TRAINED = {"epsilon", *_TASKS}
# Training is the same for the same seeds.
_SEEDS = "runs of other seeds (`hpcfl train --seed`) whose interval does not overlap with this one"
_SEEDS_AND_LAUNCHES = (
    "runs of other seeds (`hpcfl train --seed`) whose interval lies more than 25 % beyond an end "
    "of this one"
)
# The interval of a ratio is within launches, and says nothing about the next one (docs/method.md,
# Statistics), which has been outside it on the same machine: two launches with 16 bits gave
# 0.600 and 0.605, beside [0.623, 0.687]. What docs/artifact.md calls the same is within 25 %.
_LAUNCHES = (
    "a ratio that lies more than 25 % beyond either end of its interval, in the median over three "
    "launches"
)


_DROP_OUT = f"{costs.BASE['dropout']:.0%} drop out"
_PLAIN = f"N = {costs.BASE['devices']}, d = {costs.BASE['dim']:,}"
_BASE = f"{_PLAIN}, {_DROP_OUT}"
_BASE_TENTH = f"{_BASE}, alpha = {costs.ALPHA:g}"
# Where vectors are short, keys and shares are most of a round.
_SHORT = {"dim": costs.DEVICES_DIM}


def _bytes(evidence: Evidence) -> Finding:
    def fewer(name: str, changes: dict[str, Any], more: dict[str, Any] | None = None) -> float:
        sent = _at(evidence, name, **changes, **(more or {}))["bytes_up"]
        return float(_at(evidence, "secagg", **changes)["bytes_up"] / sent)

    sent = {name: fewer(name, {}) for name in ("sparse", "cohort", "common")}
    narrow = fewer("common", {}, {"bits": 16})
    short = {devices: fewer("sparse", {**_SHORT, "devices": devices}) for devices in costs.DEVICES}
    long = {dim: fewer("sparse", {"devices": costs.DIMS_DEVICES, "dim": dim}) for dim in costs.DIMS}
    least, most = min(short), max(short)
    return Finding(
        f"With a tenth of the coordinates, SparseSecAgg sends {sent['sparse']:.1f} times less "
        f"than SecAgg; where vectors have {costs.DEVICES_DIM:,} coordinates, {short[least]:.1f} "
        f"(N = {least:,}) to {short[most]:.2f} times (N = {most:,})",
        f"{_BASE_TENTH}, but where it is said otherwise",
        f"A device of `sparse` sends {sent['sparse']:.2f} times fewer bytes in a round than one of "
        f"`secagg`, of `cohort` {sent['cohort']:.2f} and of `common` {sent['common']:.2f} times; "
        f"`common` with 16 bits a value {narrow:.2f} times. Keys and shares, of which there are "
        "more the more devices there are, are as long in `sparse` as in `secagg`. With d = "
        f"{costs.DEVICES_DIM:,} it sends {_by('N', short)} times fewer bytes; with N = "
        f"{costs.DIMS_DEVICES}, {_by('d', long)} times. Bytes are counted, or follow by formula, "
        "and are the same in every run, but for how many coordinates chance makes a device of "
        "`sparse` send.",
        ("links", "bits", "devices", "dim"),
        "a run in which these bytes differ by more than 1 %",
    )


def _by(name: str, found: Mapping[int, float | Estimate]) -> str:
    """Return a figure for every number of devices or of coordinates."""
    told = [
        f"{one if isinstance(one, Estimate) else f'{one:.2f}'} ({name} = {value:,})"
        for value, one in found.items()
    ]
    return ", ".join(told)


def _at(evidence: Evidence, protocol: str, **changes: Any) -> dict[str, Any]:
    return evidence.costs.at(protocol, **changes)


def _cpu_of_sparse(evidence: Evidence) -> Finding:
    def ratio(what: str, changes: dict[str, Any], name: str = "sparse") -> Estimate:
        return evidence.costs.ratio(f"{what}_cpu_seconds", (name, changes), ("secagg", changes))

    short = {
        devices: ratio("device", {**_SHORT, "devices": devices})
        for devices in costs.DEVICES
        if _state(evidence, {**_SHORT, "devices": devices}) == costs.MEASURED
    }
    long = {dim: ratio("device", {"devices": costs.DIMS_DEVICES, "dim": dim}) for dim in costs.DIMS}
    device = ratio("device", {})
    return Finding(
        f"A device of SparseSecAgg computes {device.value:.2f} times as long as one of SecAgg; "
        f"where vectors have {costs.DEVICES_DIM:,} coordinates, "
        f"{_between([one.value for one in short.values()])} times",
        f"{_BASE_TENTH}, but where it is said otherwise",
        f"CPU seconds of a device of `sparse` are {device} times those of `secagg`, and the "
        f"server's {ratio('server', {})} times; without dropouts it is "
        f"{ratio('device', _NO_DROPOUT)} and {ratio('server', _NO_DROPOUT)} times. With d = "
        f"{costs.DEVICES_DIM:,} a device takes {_by('N', short)} times as long; with N = "
        f"{costs.DIMS_DEVICES}, {_by('d', long)} times. With coordinates that all share, "
        f"`common`, it takes {ratio('device', {}, 'common')} times as long.",
        ("devices", "dim", "dropout"),
        _LAUNCHES,
    )


_NO_DROPOUT = {"dropout": 0.0}


def _state(evidence: Evidence, changes: dict[str, Any]) -> str:
    return str(_at(evidence, "sparse", **changes)["state"])


def _hidden(evidence: Evidence) -> Finding:
    shown = {
        name: 100 * _at(evidence, name)["exposed_alone"]
        for name in ("secagg", "sparse", "cohort", "common")
    }
    more = _at(evidence, "common")["bytes_up"] / _at(evidence, "sparse")["bytes_up"]
    return Finding(
        f"A curious server learns {shown['sparse']:.0f} % of what a device of SparseSecAgg sends",
        f"{_BASE_TENTH}, a tenth of the devices on the server's side",
        f"It learns {shown['sparse']:.3g} % of the values that an honest device of `sparse` sends, "
        f"each by itself; of `cohort` {shown['cohort']:.3g} %, of `common` "
        f"{shown['common']:.3g} % and of `secagg` {shown['secagg']:.3g} %. `common` sends "
        f"{more:.2f} times the bytes of `sparse`.",
        ("hidden",),
        "`hpcfl attack` on recorded rounds (`hpcfl bench sparse --keep-transcript`) that recovers "
        "another share, by more than a tenth of this one in the mean of three rounds",
    )


def _trained(evidence: Evidence) -> list[tuple[training.Task, list[Result]]]:
    """Return the tasks that were run, with their results; Missing if there are none."""
    found = [
        (task, evidence.trained.get(name, []))
        for task, name in zip(training.TASKS, _TASKS, strict=True)
    ]
    run = [(task, results) for task, results in found if results]
    if not run:
        raise Missing("training")
    return run


def _rounds(evidence: Evidence) -> Finding:
    told, differences = [], []
    for task, found in _trained(evidence):
        parts = []
        for way in training.WAYS[1:]:
            more = paired(found, way, lambda one: float(one.found["rounds"]), operator.sub)
            parts.append(f"`{way}` {_signed(more)}")
            differences.append(more)
        told.append(f"{task.title}, to {task.target:.0%}: {', '.join(parts)}")
    none = all(one.low <= 0 <= one.high for one in differences)
    return Finding(
        "A tenth of the coordinates costs no rounds that seeds can tell"
        if none
        else "What a tenth of the coordinates costs in rounds to an accuracy",
        _TRAINING,
        "Rounds more than `secagg` needs, mean over the seeds with its 95 % interval, each seed "
        f"with the same partition and dropouts. {'; '.join(told)}.",
        _TASKS,
        _SEEDS,
    )


def _signed(estimate: Estimate) -> str:
    if estimate.low == estimate.high:
        return f"{estimate.value:+.1f} with every seed"
    return f"{estimate.value:+.1f} [{estimate.low:+.1f}, {estimate.high:+.1f}]"


def paired(
    found: Sequence[Result],
    way: str,
    figure: Callable[[Result], float],
    compare: Callable[[float, float], float],
) -> Estimate:
    """Compare a figure of a way with secagg's, seed by seed, where both reach the accuracy."""
    by_seed = {
        name: {
            one.setting["seed"]: figure(one)
            for one in found
            if one.setting["protocol"] == name and one.found["reached"]
        }
        for name in (way, "secagg")
    }
    both = sorted(by_seed[way].keys() & by_seed["secagg"].keys())
    return mean_of([compare(by_seed[way][seed], by_seed["secagg"][seed]) for seed in both])


def _bytes_to_target(evidence: Evidence) -> Finding:
    told = []
    fewer: dict[str, list[Estimate]] = {way: [] for way in training.WAYS[1:]}
    for task, found in _trained(evidence):
        whole = mean_of([_megabytes(one) for one in found if _whole(one)])
        for way, estimates in fewer.items():
            estimates.append(paired(found, way, _megabytes, lambda ours, all_: all_ / ours))
        parts = [f"`{way}` {_every(some[-1], 'times less')}" for way, some in fewer.items()]
        told.append(f"{task.title}: `secagg` {whole} MB, {', '.join(parts)}")
    return Finding(
        f"Until an accuracy is reached, SparseSecAgg sends {_ends(fewer['sparse'], 1)} times less "
        "than SecAgg",
        _TRAINING,
        "Sent by all devices until the accuracy is reached, means over seeds, compared seed by "
        f"seed. {'; '.join(told)}.",
        _TASKS,
        _SEEDS,
    )


# What all tasks have in common.
_TRAINING = (
    f"MNIST, the CNN with a tenth of it, N = {training.DEVICES}, {_DROP_OUT}, "
    f"alpha = {costs.ALPHA:g}, five local epochs, "
    f"{len(training.SEEDS)} seeds"
)


def _ends(estimates: Sequence[Estimate], digits: int) -> str:
    """Return the least and the largest end of some intervals."""
    ends = min(one.low for one in estimates), max(one.high for one in estimates)
    return " to ".join(dict.fromkeys(f"{end:.{digits}f}" for end in ends))


def _every(estimate: Estimate, words: str) -> str:
    """Return a mean over the seeds in words; where all were the same it has no interval."""
    return f"{estimate} {words}" + " with every seed" * (estimate.low == estimate.high)


def _time_to_target(evidence: Evidence) -> Finding:
    told = []
    ends = []
    for task, found in _trained(evidence):
        whole = mean_of([_protocol_seconds(one) for one in found if _whole(one)])
        training_ = mean_of(
            [one.found["modelled_seconds_of_training"] for one in found if _whole(one)]
        )
        parts = []
        for way in training.WAYS[1:]:
            ratio = paired(found, way, _protocol_seconds, operator.truediv)
            parts.append(f"`{way}` {_every(ratio, 'times as long')}")
            ends += [ratio] if way == "sparse" else []
        told.append(
            f"{task.title}: `secagg` {whole} s, {', '.join(parts)}; training {training_} s more"
        )
    return Finding(
        f"Until an accuracy is reached, SparseSecAgg takes {_ends(ends, 2)} times as long as "
        "SecAgg, training left out",
        f"{_TRAINING}, links of 100 Mbit/s",
        "Modelled seconds of all rounds until the accuracy is reached, less those of the slowest "
        "device's training in each round, which is the same work for all; means over seeds, "
        f"compared seed by seed. {'. '.join(told)} (measured beside other "
        "programs).",
        _TASKS,
        _SEEDS_AND_LAUNCHES,
    )


def _whole(one: Result) -> bool:
    return one.setting["protocol"] == "secagg" and bool(one.found["reached"])


def _protocol_seconds(one: Result) -> float:
    return without_training(one.found)


def _megabytes(one: Result) -> float:
    return float(one.found["bytes_up_total"]) / 1e6


def _devices(evidence: Evidence) -> Finding:
    dim = {"dim": costs.DEVICES_DIM}
    complete, graph = (
        evidence.costs.ratio(
            "device_cpu_seconds", (name, {**dim, "devices": 1_000}), (name, {**dim, "devices": 100})
        )
        for name in ("secagg", "secagg-graph")
    )
    state = _at(evidence, "secagg", **dim, devices=1_000)["state"]
    ahead = [
        devices
        for devices in costs.DEVICES
        if _cheaper(evidence, "secagg-graph", "secagg", {**dim, "devices": devices})
    ]
    since = (
        f" A device of `secagg-graph` takes less from N = {min(ahead)} on, of the numbers run."
        if ahead
        else ""
    )
    return Finding(
        "From 100 to 1,000 devices the computing of a device grows "
        f"{complete.value:.0f}-fold in SecAgg ({state}), and {graph.value:.1f}-fold on a graph",
        f"d = {costs.DEVICES_DIM:,}, {_DROP_OUT}",
        "From 100 to 1,000 devices, CPU seconds of a device of "
        f"`secagg` grow by {complete} ({state}), those of `secagg-graph` by {graph}.{since}",
        ("devices",),
        f"{_LAUNCHES}; what is predicted here `hpcfl bench secagg --devices 1000 --dim "
        f"{costs.DEVICES_DIM}` measures",
    )


def _cheaper(evidence: Evidence, a: str, b: str, at: dict[str, Any]) -> bool:
    try:
        first, second = (spread(_at(evidence, name, **at)["device_cpu_seconds"]) for name in (a, b))
    except Missing:
        return False
    return first.high < second.low


def _dropouts(evidence: Evidence) -> Finding:
    grown = {
        name: evidence.costs.ratio(
            "server_cpu_seconds", (name, {"dropout": 0.4}), (name, {"dropout": 0.0})
        )
        for name in ("secagg", "lightsecagg", "assisted", "committee")
    }
    parts = [f"`{name}` {estimate}" for name, estimate in grown.items()]
    secagg, assisted = (grown[name] for name in ("secagg", "assisted"))
    return Finding(
        f"With 40 % dropouts SecAgg's server computes {secagg.low:.0f} to {secagg.high:.0f} times "
        f"as long as without, that of assisted {assisted.low:.1f} to {assisted.high:.1f} times",
        _PLAIN,
        "CPU seconds of the server with 40 % dropouts, as a multiple of those without: "
        f"{', '.join(parts)}.",
        ("dropout",),
        _LAUNCHES,
    )


def _links(evidence: Evidence) -> Finding:
    """Who has the shortest round, of those that hide all values and need no helpers."""
    whole = [
        name
        for name in ("secagg", "secagg-graph", "common", "lightsecagg", "committee")
        if _at(evidence, name)["exposed_alone"] == 0
    ]
    first = {}
    for rate in costs.UPLINKS:
        took = {name: spread(_at(evidence, name)["modelled_seconds"][f"{rate}"]) for name in whole}
        best = min(took, key=lambda name: took[name].value)
        first[rate] = (best, took[best], took["secagg"])
    parts = [
        f"{rate} Mbit/s: `{best}` {seconds} s (`secagg` {others} s)"
        for rate, (best, seconds, others) in first.items()
        if rate in (1, 10, 100, 1_000)
    ]
    switched = [(slow, fast) for slow, fast in pairwise(first) if first[slow][0] != first[fast][0]]
    when = "".join(f" The first one changes between {a} and {b} Mbit/s." for a, b in switched)
    slowest, fastest = (first[rate][0] for rate in (costs.UPLINKS[0], costs.UPLINKS[-1]))
    return Finding(
        f"The shortest round, as modelled, is that of {slowest} at 1 Mbit/s and, on this machine, "
        f"of {fastest} at 1 Gbit/s",
        f"{_BASE}, alpha = {costs.ALPHA:g} in `common`",
        "The shortest round, modelled from measured CPU seconds and bytes, among protocols that "
        f"hide all values and need no helper: {'; '.join(parts)}.{when} On fast links the "
        "machine decides, too: [artifact.md](artifact.md) has one on which another one is first.",
        ("links",),
        "a round on real links of that rate, with devices as fast as these, in which another one "
        "is shorter",
    )


def _real(evidence: Evidence) -> Finding:
    """How far rounds on real links are from the model."""
    ratios: dict[int, list[float]] = {}
    for one in evidence.linked:
        if one.found["state"] == costs.MEASURED:
            took, modelled = (
                spread(one.found[name]).value for name in ("round_seconds", "modelled_seconds")
            )
            ratios.setdefault(one.setting["rate_mbps"], []).append(took / modelled)
    if not ratios:
        raise Missing("rounds over shaped links")
    parts = [
        f"{rate} Mbit/s {median(some):.2f} ({min(some):.2f} to {max(some):.2f})"
        for rate, some in ratios.items()
    ]
    slowest = median(ratios[min(ratios)])
    return Finding(
        f"At {min(ratios)} Mbit/s, rounds on real links take {slowest:.2f} times what is modelled",
        f"N = {links.SIZES['devices']}, d = {links.SIZES['dim']:,}, no dropouts, "
        f"alpha = {links.ALPHA:g}",
        "Measured over modelled seconds of a round, of devices on dedicated shaped links, "
        f"median over the protocols and their range: {'; '.join(parts)}. All devices compute on "
        "the cores of one machine, and the faster the links the more of a round that is.",
        ("real-links",),
        "medians over the protocols that differ from these by more than 25 %, in the median over "
        "three launches",
    )


def _narrow(evidence: Evidence) -> Finding:
    sent = _at(evidence, "secagg")["bytes_up"] / _at(evidence, "secagg", bits=16)["bytes_up"]
    field = evidence.costs.ratio("device_cpu_seconds", ("secagg", {"bits": 16}), ("secagg", {}))
    rings = {
        bits: evidence.costs.ratio(
            "device_cpu_seconds", ("secagg", {"bits": bits}), ("secagg", {"bits": 32})
        )
        for bits in (16, 20, 24)
    }
    told = ", ".join(f"with {bits} bits {one} times" for bits, one in rings.items())
    return Finding(
        f"With 16 bits a value, SecAgg sends {sent:.2f} times fewer bytes, and computes "
        f"{field.value:.2f} times as long as in its prime field of 32 bits, {rings[16].value:.2f} "
        "times as long as with integers of 32 bits",
        _BASE,
        f"`secagg` with 16 bits sends {sent:.2f} times fewer bytes than with 32, and a device "
        f"takes {field} times the CPU seconds that it takes in the prime field, which is the "
        f"default. The integers modulo 2^32 take less, too: compared with them a device takes "
        f"{told} as long; 20 and 24 bits are not a machine's words, and are packed.",
        ("links", "bits"),
        _LAUNCHES,
    )


def _noise(evidence: Evidence) -> Finding:
    cost = _noise_ratio(evidence, "secagg")
    others = [
        f"`{name}` {_noise_ratio(evidence, name)}"
        for name in ("cohort", "common", "assisted")
        if _carries_noise(evidence, name)
    ]
    sent = (
        _at(evidence, "secagg", noise_multiplier=1.0)["bytes_up"]
        / _at(evidence, "secagg")["bytes_up"]
    )
    central, all_devices = (
        {
            one.setting["epsilon"]: one.found["last_accuracy"]
            for one in evidence.accuracies
            if one.setting["aggregate"] == name
        }
        for name in ("fedavg", "secagg")
    )
    if not central:
        raise Missing("training with noise")
    parts = []
    for epsilon in central:
        lost = mean_of([a - b for a, b in zip(all_devices[epsilon], central[epsilon], strict=True)])
        parts.append(
            f"epsilon {epsilon:g}: {100 * lost.value:+.2f} points "
            f"[{100 * lost.low:+.2f}, {100 * lost.high:+.2f}]"
        )
    return Finding(
        f"With noise that devices add themselves, a device of SecAgg computes {cost.value:.1f} "
        "times as long as without",
        f"{_BASE_TENTH}; accuracies: Adult, logistic regression, N = {costs.BASE['devices']}, "
        f"{counted(costs.PRIVATE_ROUNDS, 'round')}, {len(training.SEEDS)} seeds",
        f"With discrete Gaussian noise a device of `secagg` takes {cost} times the CPU seconds"
        f"{''.join(f', of {other}' for other in others)}. `secagg` sends {sent:.4f} times the "
        f"bytes. {_of_trusted_server(evidence)}Accuracy against that of DP-FedAvg whose trusted "
        f"server adds the noise, at the same proven epsilon: {'; '.join(parts)}.",
        ("noise", "epsilon", *["central-noise"] * bool(evidence.central)),
        f"accuracies whose interval does not overlap with this one, or {_LAUNCHES}",
    )


def _of_trusted_server(evidence: Evidence) -> str:
    """Return what its noise costs a trusted server, over the rest of its work."""
    told = []
    for one in evidence.central:
        noise, rest = (
            spread(one.found[name]) for name in ("noise_cpu_seconds", "server_cpu_seconds")
        )
        ratio = Estimate(noise.value / rest.value, noise.low / rest.high, noise.high / rest.low)
        told.append(f"{ratio} (d = {one.setting['dim']:,})")
    if not told:
        return ""
    return (
        f"A trusted server draws its noise in {', '.join(told)} times the CPU seconds that it "
        f"takes for the rest of a round of `fedavg` with N = {costs.DIMS_DEVICES}. "
    )


def _room_for_noise(evidence: Evidence) -> Finding:
    """How many bits, and so bytes, an epsilon takes."""
    epsilons = privacy.EPSILONS
    able = [*dict.fromkeys(one["protocol"] for one in privacy.epsilon_settings())]
    parts = []
    for name in able:
        sent: dict[str, list[float]] = {}
        for epsilon in epsilons:
            one = _at(evidence, name, epsilon=epsilon)
            bits = f" ({one['bits']} bits)" if "bits" in one else ""
            sent.setdefault(f"{one['bytes_up'] / 1e6:.3g} MB{bits}", []).append(epsilon)
        told = [
            f"{size} for {_listed(some)}" if len(sent) > 1 else size for size, some in sent.items()
        ]
        parts.append(f"`{name}` {', '.join(told)}")
    noises = [_at(evidence, "fedavg", epsilon=one)["noise_in_sum"] for one in epsilons]
    larger = {
        name: [
            _at(evidence, name, epsilon=epsilon)["noise_in_sum"] / noise
            for epsilon, noise in zip(epsilons, noises, strict=True)
        ]
        for name in able
        if name != "fedavg"
    }
    more = "; ".join(f"`{name}` {_between(found)}" for name, found in larger.items())
    fewest = _between([int(_at(evidence, "secagg", epsilon=one)["bits"]) for one in epsilons])
    return Finding(
        f"For an epsilon of {epsilons[0]:g} to {epsilons[-1]:g} SecAgg takes {fewest} bits a "
        f"value, and {_between(larger['secagg'])} times the noise of a trusted server",
        f"{_BASE_TENTH}, {counted(costs.PRIVATE_ROUNDS, 'round')}, delta = {costs.DELTA:g}",
        f"What a device sends in a round, for a proven epsilon of {_listed(epsilons)}, with the "
        f"fewest bits whose noise is at most {NOISE_OF_FEW_BITS:g} times that of 32 bits, where a "
        f"protocol has bits to choose: {'; '.join(parts)}. The noise that a trusted server adds to "
        f"a sum is {_listed(noises)} times the norm to which updates are clipped. Noise that "
        f"devices add themselves, rounding included, is larger: {more} times as large, on a "
        "coordinate that is in the sum. All devices add noise, but the account relies only on that "
        "of honest devices that are certain to be in the sum; in a cohort these are one or a few. "
        "Where a device sends a tenth of its coordinates each counts ten times, and its noise "
        "does, too; in `common`, this noise is on a tenth of the coordinates in a round. For an "
        f"epsilon of {epsilons[0]:g} a device of `secagg` takes "
        f"{_private_ratio(evidence, epsilons[0])} times the CPU seconds of a round without noise "
        f"in the field of 32 bits, for {epsilons[-1]:g} "
        f"{_private_ratio(evidence, epsilons[-1])} times.",
        ("epsilon-cost", "links"),
        "`hpcfl train dp-fedavg --noise distributed` with fewer `--bits`, such an `--epsilon` and "
        f"a `noise_in_sum` that is at most {NOISE_OF_FEW_BITS:g} times that with 32 bits, or "
        f"{_LAUNCHES}",
    )


def _between(values: Sequence[float]) -> str:
    """Return the ends of what values are, or the one that they are; Missing without any."""
    if not values:
        raise Missing("nothing was measured")
    ends = [
        f"{one}" if isinstance(one, int) else f"{one:#.3g}" for one in (min(values), max(values))
    ]
    return " to ".join(dict.fromkeys(ends))


def _listed(values: Sequence[float]) -> str:
    told = [f"{one:g}" for one in values]
    return " and ".join([", ".join(told[:-1]), told[-1]] if len(told) > 1 else told)


def _private_ratio(evidence: Evidence, epsilon: float) -> Estimate:
    return evidence.costs.ratio(
        "device_cpu_seconds", ("secagg", {"epsilon": epsilon}), ("secagg", {})
    )


def _noise_ratio(evidence: Evidence, name: str) -> Estimate:
    return evidence.costs.ratio("device_cpu_seconds", (name, {"noise_multiplier": 1.0}), (name, {}))


def _carries_noise(evidence: Evidence, name: str) -> bool:
    try:
        _noise_ratio(evidence, name)
    except Missing:
        return False
    return True


def _short_vectors(evidence: Evidence) -> Finding:
    """How much of a message is not the vector."""
    added = {}
    for dim in costs.DIMS:
        found = _at(evidence, "secagg", devices=costs.DIMS_DEVICES, dim=dim)
        added[dim] = f"{100 * (found['bytes_up'] / (4 * dim) - 1):.2g} %"
    parts = [f"d = {dim:,}: {more}" for dim, more in added.items()]
    short, long = min(added), max(added)
    device, server = (
        evidence.costs.ratio(
            what,
            ("secagg", {"devices": costs.DIMS_DEVICES, "dim": costs.DIMS[-1]}),
            ("secagg", {"devices": costs.DIMS_DEVICES, "dim": costs.DIMS[-2]}),
        )
        for what in ("device_cpu_seconds", "server_cpu_seconds")
    )
    return Finding(
        f"Keys and shares add {added[short]} to a vector of {short:,} coordinates, and "
        f"{added[long]} to one of {long:,}",
        f"N = {costs.DIMS_DEVICES}, {_DROP_OUT}",
        "What a device of `secagg` sends beyond its vector: "
        f"{'; '.join(parts)}. From {costs.DIMS[-2]:,} to {costs.DIMS[-1]:,} coordinates, CPU "
        f"seconds of a device grow by {device} and those of the server by {server}.",
        ("dim",),
        f"a run with other bytes, or {_LAUNCHES}",
    )


_FINDINGS: tuple[Callable[[Evidence], Finding], ...] = (
    _bytes,
    _cpu_of_sparse,
    _hidden,
    _rounds,
    _bytes_to_target,
    _time_to_target,
    _devices,
    _short_vectors,
    _dropouts,
    _links,
    _real,
    _narrow,
    _noise,
    _room_for_noise,
)
