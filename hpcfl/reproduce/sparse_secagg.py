"""SparseSecAgg (Ergun, Sami and Guler, arXiv:2112.12872): Table I and Figures 2 to 6."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from statistics import fmean
from typing import Any

from hpcfl.reproduce import overlaps, sparse_readings
from hpcfl.reproduce.artefact import (
    DIFFERS,
    MATCHES,
    MORE,
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
    within,
)
from hpcfl.reproduce.seeds import to_target, without_training
from hpcfl.reproduce.sparse_readings import Runs
from hpcfl.reproduce.verdicts import OPEN, Claim, Contrast, about, mean_of

_DEVICES = (25, 50, 75, 100)
_DIM = 165_000
_PROTOCOLS = ("secagg", "sparse")
_BYTES_PAPER = {"secagg": ["0.66"] * 4, "sparse": ["0.08", "0.082", "0.083", "0.083"]}
_ALPHA = 0.1
_ONE_DIGIT = 1 / 6  # of 3: what rounds to it
_TOLERANCE = 0.03  # of Table I: of "around 8.2 x", and of a largest value of few rounds
# Section VII.
_LOCAL: dict[str, Any] = {
    "epochs": 5,
    "steps": None,
    "batch_size": 28,
    "learning_rate": 0.01,
    "momentum": 0.5,
}
# Data set, partition and accuracy of Figures 3, 5 and 6.
_CIFAR10, _IID, _SHARDS = (
    ("cifar10", "iid", 0.55),
    ("mnist", "iid", 0.97),
    ("mnist", "shards", 0.94),
)
_ALPHAS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
_DROPOUTS = (0.0, 0.1, 0.3)


def _run(setting: Setting, context: Context) -> Mapping[str, Any]:
    """Play rounds of vectors, train, or train and see the layers' overlaps."""
    if "local" in setting:
        return overlaps.by_layer(setting, context)
    return _bench(setting, context) if "dim" in setting else _train(setting, context)


def _bench(setting: Setting, context: Context) -> Mapping[str, Any]:
    """Play rounds; return what a device sent and received, and the modelled seconds of a round."""
    from hpcfl.benchmark.experiment import Experiment
    from hpcfl.options.bench import BenchOptions
    from hpcfl.options.definition import part
    from hpcfl.results.linkmodel import LinkModel
    from hpcfl.rounds.observer import Results
    from hpcfl.rounds.timed import Played

    options = BenchOptions(
        setting["protocol"],
        dim=setting["dim"],
        rounds=setting["rounds"],
        warmup=0,
        alpha=setting.get("alpha", _ALPHA),
        locations=setting.get("locations", "bitmap"),
    )
    experiment = Experiment.prepare(options, setting["devices"])
    transport = context.world.transport(setting["devices"])
    rounds = Results[Played]()
    if transport is not None:
        experiment.run(transport, rounds)
    context.world.settle(None)
    if not rounds.results:
        return {}
    phase = experiment.protocol.phases().index("masked_input")
    uploads = [record.bytes_up[phase][record.survived] for record in rounds.records]
    others = [record.bytes_up.sum(axis=0) - record.bytes_up[phase] for record in rounds.records]
    link = part(options, LinkModel)
    seconds = [float(link.seconds_of(vars(record)).sum()) for record in rounds.records]
    return {
        "largest_bytes": int(max(upload.max() for upload in uploads)),
        "mean_bytes": fmean(float(upload.mean()) for upload in uploads),
        "other_bytes_up": fmean(float(other.mean()) for other in others),
        "bytes_down": fmean(
            float(record.bytes_down.sum(axis=0).mean()) for record in rounds.records
        ),
        "modelled_seconds": fmean(seconds),
    }


def _compare_bytes(results: Sequence[Result]) -> list[Line]:
    """Compare uploads; of sparse the largest, as the paper says that it reports."""
    lines = []
    for one in results:
        protocol, devices, rounds = (
            one.setting[name] for name in ("protocol", "devices", "rounds")
        )
        printed = _BYTES_PAPER[protocol][_DEVICES.index(devices)]
        largest, mean = one.found["largest_bytes"] / 1e6, one.found["mean_bytes"] / 1e6
        if protocol == "secagg":
            lines.append(_as_printed(f"secagg, N = {devices}: a device's upload", printed, largest))
            continue
        changed = ", a pair's probability alpha / N" if "alpha" in one.setting else ""
        what = f"sparse, N = {devices}{changed}: the largest upload of {rounds} rounds"
        line = _as_printed(what, printed, largest)
        lines.append(replace(line, ours=f"{line.ours} (mean {mean:.4f})"))
    return [*lines, *_compare_rise(results)]


def _as_printed(what: str, printed: str, ours: float) -> Line:
    """Compare a number of megabytes with one that is printed with so many digits, or to 3 %."""
    digits = len(printed.partition(".")[2])
    if f"{ours:.{digits}f}" != printed:
        why = (
            "by formula: even the mean, 4 d p + d / 8, is 2 % above what is printed; with a pair's "
            "probability of alpha / N the mean is what is printed (below)"
        )
        return within(what, float(printed), ours, _TOLERANCE, "MB", why)
    return Line(what, f"{printed} MB", f"{ours:.4f} MB", MATCHES, f"with {digits} decimals")


def _compare_rise(results: Sequence[Result]) -> list[Line]:
    """Return what follows for the column of sparse as a whole."""
    found: dict[bool, dict[int, float]] = {False: {}, True: {}}
    for one in results:
        if one.setting["protocol"] == "sparse":
            uploads = found["alpha" in one.setting]
            uploads[one.setting["devices"]] = one.found["largest_bytes"] / 1e6
    lines = []
    for changed, uploads in found.items():
        if len(uploads) < len(_DEVICES):
            continue
        means = [
            _DIM * (sparse_readings.inclusion(devices, _pairs(devices, changed)) + 1 / 32) * 4e-6
            for devices in _DEVICES
        ]
        name = "alpha / N" if changed else "alpha / (N - 1), eq. 13"
        lines.append(
            says(
                f"sparse, N = 25 to 100, a pair's probability {name}: the mean upload, by formula",
                "rises from 0.08 to 0.083 MB",
                ", ".join(f"{one:.4f}" for one in means) + " MB",
                means == sorted(means),
                "impossible with eq. 13: p = 1 - (1 - alpha / (N - 1))^(N - 1), and with it the "
                "mean, 4 d p + d / 8, falls with N; with alpha / N instead it rises, and comes to "
                "what is printed in as many digits (below), though the paper says that it prints "
                "the largest",
            )
        )
        lines.append(
            within(
                f"N = 25, a pair's probability {name}: secagg / sparse",
                8.2,
                4e-6 * _DIM / uploads[25],
                _TOLERANCE,
                "x",
                "by formula, as above",
            )
        )
    return lines


def _pairs(devices: int, changed: bool) -> float:
    """Return the alpha of which eq. 13 makes alpha / N, or the paper's."""
    return _ALPHA * (devices - 1) / devices if changed else _ALPHA


def _bytes_settings(rounds: int) -> list[Setting]:
    like = {"dim": _DIM, "rounds": rounds}
    as_printed: list[Setting] = [
        {"protocol": protocol, "devices": devices, **like}
        for protocol, devices in itertools.product(_PROTOCOLS, _DEVICES)
    ]
    changed: list[Setting] = [
        {"protocol": "sparse", "devices": devices, **like, "alpha": _pairs(devices, True)}
        for devices in _DEVICES
    ]
    return as_printed + changed


# Options of training that settings may name.
_OPTIONS = ("seed", "epochs", "steps", "batch_size", "error_feedback", "server_learning_rate")


def _train(setting: Setting, context: Context) -> Mapping[str, Any]:
    """Train to the target accuracy, or without one for all rounds."""
    from hpcfl.options.training import TrainOptions

    algorithm = setting.get("algorithm", "fedavg")
    options = _LOCAL | {name: setting[name] for name in _OPTIONS if name in setting}
    asked = TrainOptions(
        algorithm,
        aggregate=setting.get("protocol", "fedavg"),
        rounds=setting["most_rounds"],
        dropout=0.3 if algorithm == "fedavg" else 0.0,
        **options,
        dataset=setting["dataset"],
        data_dir=context.data_dir,
        partition=setting["partition"],
        model=setting["model"],
        target_accuracy=setting.get("target"),
    )
    return to_target(context.world, asked, setting["devices"])


Task = tuple[str, str, float]  # data set, partition, accuracy
Run = tuple[str, int, int]  # model, N, most rounds


def _pairs_of_runs(task: Task, runs: Sequence[Run], seeds: Sequence[int] = (0,)) -> list[Setting]:
    """Return the training of both protocols to the target, seed by seed."""
    dataset, partition, target = task
    return [
        {
            "dataset": dataset,
            "partition": partition,
            "target": target,
            "model": model,
            "devices": devices,
            "most_rounds": most,
            "protocol": protocol,
            # Not named for the first seed, as in what was kept before there were others.
            **({"seed": seed} if seed else {}),
        }
        for (model, devices, most), seed, protocol in itertools.product(runs, seeds, _PROTOCOLS)
    ]


# As many rounds as data that are alike take to their target, with any seed.
_LONGEST_IID = 75


def _without_target(task: Task, run: Run) -> list[Setting]:
    """Return the training of sparse for so many rounds, whatever it comes to, with all seeds."""
    pairs = _pairs_of_runs(task, [run], range(5))
    return [
        {name: value for name, value in one.items() if name != "target"}
        for one in pairs
        if one["protocol"] == "sparse"
    ]


def _to_target(what: str, minutes: float, task: Task, runs: Sequence[Run]) -> Scale:
    return Scale(what, _pairs_of_runs(task, runs), minutes)


def _further(
    minutes: float, task: Task, dim: int, runs: Sequence[Run], also: Sequence[Setting] = ()
) -> Scale:
    """Return what is run of a figure besides: rounds without training, then other N and seeds."""
    # Eq. 10 sums over the survivors with weights of all devices, and divides by nothing.
    undivided = [
        {**one, "server_learning_rate": 1 - sparse_readings.DROPOUT}
        for one in _pairs_of_runs(task, runs[:1])
        if one["protocol"] == "secagg"
    ]
    settings = [
        *sparse_readings.settings(_DEVICES, dim),
        *also,
        *undivided,
        *_pairs_of_runs(task, runs, range(5)),
    ]
    return Scale("rounds without training for all N, five seeds", settings, minutes)


def _for_all(model: str, most: int) -> list[Run]:
    return [(model, devices, most) for devices in _DEVICES]


def _compare_training(figure: str) -> Callable[[Sequence[Result]], list[Line | Claim]]:
    """Return how pairs of runs, secagg and sparse, compare with a figure's two factors.

    MNIST's are printed for N = 100; for CIFAR-10 no N is named.
    """
    of_bytes, of_time = sparse_readings.FACTORS[figure]

    def compare(results: Sequence[Result]) -> list[Line | Claim]:
        lines: list[Line | Claim] = []
        everything = sparse_readings.paired(results)
        # Others are there for what they say of a round.
        own = [runs for runs in everything if runs.partition == everything[0].partition]
        factors = sparse_readings.factors_of(results)
        for runs in own:
            name = f"{runs.model}, N = {runs.devices}: secagg / sparse, "
            if not runs.reached:
                lines.append(
                    says(f"{name}to the target", "reached", "not reached", False, "too few rounds")
                )
                continue
            sent, took = runs.ratios("bytes_up_total"), runs.ratios("modelled_seconds")
            alone = [
                without_training(dense) / without_training(sparse) for dense, sparse in runs.found
            ]
            what = f"{name}bytes to the target", f"{name}modelled time"
            lines.append(_rounds(figure, f"{name}rounds", runs))
            if runs.dataset != "mnist" or runs.devices == 100:
                bytes_why = sparse_readings.why_bytes(factors, figure, runs)
                time_why = sparse_readings.why_time(figure, runs)
                lines += [
                    about(what[0], of_bytes, sent, sparse_readings.TOLERANCE, "x", bytes_why),
                    about(what[1], of_time, took, sparse_readings.TOLERANCE, "x", time_why),
                ]
            else:
                lines += [
                    Line(one, "", mean_of(values, "x"), SHOWN)
                    for one, values in zip(what, (sent, took), strict=True)
                ]
            lines.append(
                Line(f"{name}modelled time without training", "", mean_of(alone, "x"), SHOWN)
            )
        reached = [runs for runs in own if runs.reached]
        return [
            *lines,
            *(_accuracy_lost(results) if figure == "figure-6" else ()),
            *sparse_readings.lines(results, figure, reached, everything),
        ]

    return compare


def _rounds(figure: str, what: str, runs: Runs) -> Line | Claim:
    """Return the rounds of both, of which the paper speaks for CIFAR-10 alone."""
    counts = ", ".join(f"{dense['rounds']} / {sparse['rounds']}" for dense, sparse in runs.found)
    if figure != "figure-3" or len(runs.found) < 2:
        return Line(what, "", counts, SHOWN)
    secagg, sparse = ([pair[which]["rounds"] for pair in runs.found] for which in (0, 1))
    return Claim(what, "a few less for secagg", counts, [Contrast(sparse, secagg)])


def _accuracy_lost(results: Sequence[Result]) -> list[Line]:
    """Compare the accuracy of sparse on both partitions of MNIST, after the same rounds.

    These are the rounds that data that are alike take to their target. The other training has none:
    where both stop at theirs, the difference is that of the targets.
    """
    lost: dict[tuple[str, int], list[float]] = {}
    alike, others = (
        {
            (setting["model"], setting["devices"], setting.get("seed", 0)): one.found["accuracy"]
            for one in results
            for setting in [one.setting]
            if setting.get("protocol") == "sparse"
            and setting.get("partition") == partition
            and ("target" in setting) == to_target
        }
        for partition, to_target in (("iid", True), ("shards", False))
    )
    for (model, devices, seed), accuracy in others.items():
        to_compare = alike.get((model, devices, seed), [])
        rounds = len(to_compare)
        if 0 < rounds <= len(accuracy):
            loss = 100 * (to_compare[-1] - accuracy[rounds - 1])
            lost.setdefault((model, devices), []).append(loss)
    return [
        about(
            f"{model}, N = {devices}, sparse: accuracy lost with data that are not alike, after "
            f"the rounds that {_IID[2]:.0%} take with data that are alike",
            3,
            values,
            _ONE_DIGIT,
            "points",
            "of the 2NN, and of our way to make 300 shards; the paper does not say after how many "
            "rounds",
        )
        for (model, devices), values in lost.items()
    ]


def _draw_training(results: Sequence[Result]) -> list[Panel]:
    """Return the accuracy over rounds, a model to a panel, of the fewest and the most devices."""
    shown = [
        one
        for one in results
        # Others are there for what they say of a round, or to be compared with.
        if one.setting.get("partition") == results[0].setting["partition"]
        and "target" in one.setting
        and not one.setting.get("seed")
        and not sparse_readings.undivided(one.setting)
    ]
    panels = []
    for model in dict.fromkeys(one.setting["model"] for one in shown):
        some = [one for one in shown if one.setting["model"] == model]
        counts = [one.setting["devices"] for one in some]
        curves = {
            "{protocol}, N = {devices}".format_map(one.setting): by_round(one.found["accuracy"])
            for one in some
            if one.setting["devices"] in (min(counts), max(counts))
        }
        panels.append(Panel(model, "rounds", "accuracy on held-out data", curves))
    return panels


_CHANGES: dict[str, dict[str, Any]] = {
    "": {},
    ", gradients of one step": {"epochs": None, "steps": 1},
    ", gradients of one step, what is not sent kept for later": {
        "epochs": None,
        "steps": 1,
        "error_feedback": True,
    },
    ", what is not sent kept for later": {"error_feedback": True},
}


def _overlap_settings(
    rounds: int,
    model: str,
    algorithms: Sequence[str] = ("rand-k", "top-k"),
    partitions: Sequence[str] = ("iid", "shards"),
    change: str = "",
) -> list[Setting]:
    return [
        {
            "algorithm": algorithm,
            "dataset": "mnist",
            "partition": partition,
            "model": model,
            "devices": 30,
            "most_rounds": rounds,
            **_CHANGES[change],
        }
        for algorithm, partition in itertools.product(algorithms, partitions)
    ]


def _further_overlaps() -> list[Setting]:
    """Return the other readings of what a gradient is, cheapest first."""
    one_step, kept, both_kept = list(_CHANGES)[1:]
    like = {"devices": 30, "partition": "iid"}
    step, epochs = {"epochs": None, "steps": 1}, {"epochs": 5}
    layers: list[Setting] = [
        {"model": model, "rounds": rounds, "local": local, "inputs": inputs, **like}
        for model, rounds, local, inputs in (
            ("2nn", 30, step, "standardised"),
            ("2nn", 30, step, "raw"),
            ("mnist-cnn", 30, step, "standardised"),
            ("2nn", 6, epochs, "standardised"),
            ("2nn", 6, epochs, "raw"),
        )
    ]
    top: list[str] = ["top-k"]
    parts = ("iid", "shards", "two-digit")
    return [
        *_overlap_settings(60, "2nn", top, parts, one_step),
        *_overlap_settings(60, "2nn", top, parts, kept),
        *layers,
        *_overlap_settings(12, "2nn", top, ("iid", "shards"), both_kept),
        *_overlap_settings(30, "mnist-cnn", top, ("iid", "shards"), one_step),
        *_overlap_settings(30, "mnist-cnn", top, ("iid", "shards"), kept),
        *_overlap_settings(600, "2nn", top, ("iid", "shards"), kept),
    ]


def _change(setting: Setting) -> str:
    """Return in words what is otherwise in a setting of Figure 2."""
    changed = {name: setting[name] for name in _OPTIONS if name in setting}
    return next(words for words, change in _CHANGES.items() if change == changed)


_CLOSE = 1.25  # a factor up to which an overlap is what is printed
_PRINTED = {"iid": (0.30, 0.10), "shards": (0.12, 0.12)}


def _far(overlap: Sequence[float], partition: str) -> float:
    """Return by which factor an overlap is off what is printed, in the first or last round."""
    pairs = zip((overlap[0], overlap[-1]), _PRINTED[partition], strict=True)
    return max(max(a / b, b / a) for a, b in pairs)


def _compare_overlap(results: Sequence[Result]) -> list[Line]:
    lines: list[Line] = []
    others: list[Line] = []
    tried: dict[str, dict[str, Sequence[float]]] = {partition: {} for partition in _PRINTED}
    for result in results:
        if "local" in result.setting:
            tried["iid"] |= _layers(result)
    for result in results:
        setting, overlap = result.setting, result.found.get("overlap", ())
        if setting.get("algorithm") == "top-k" and setting["partition"] in tried:
            reading = f"{setting['model']}{_change(setting)}, {len(overlap)} rounds"
            tried[setting["partition"]][reading] = overlap
    for result in results:
        if "local" in result.setting:
            others += [
                Line(f"top tenth, iid, {name}: overlap, first and last round", "", told, SHOWN)
                for name, overlap in _layers(result).items()
                for told in [f"{overlap[0]:.1%} to {overlap[-1]:.1%}"]
            ]
            continue
        partition, overlap = result.setting["partition"], result.found["overlap"]
        name = f"{result.setting['algorithm']}, {partition}, {result.setting['model']}"
        if result.setting["algorithm"] == "rand-k":
            lines.append(
                within(f"{name}: overlap", 10, 100 * sum(overlap) / len(overlap), 0.02, "%", "")
            )
            continue
        change = _change(result.setting)
        what = f"{name}{change}: overlap, first and last of {len(overlap)} rounds"
        ours = f"{overlap[0]:.1%} to {overlap[-1]:.1%}"
        if change or result.setting["model"] != results[0].setting["model"]:
            others.append(Line(what, "", ours, SHOWN))
        else:
            beside = {
                name: found for name, found in tried[partition].items() if found is not overlap
            }
            lines.append(_overlap_line(what, ours, overlap, partition, beside))
    return lines + others


def _overlap_line(
    what: str,
    ours: str,
    overlap: Sequence[float],
    partition: str,
    tried: Mapping[str, Sequence[float]],
) -> Line:
    """Return what is printed of top-K beside the first reading, and which other is nearest."""
    paper = "30 % to 10 %" if partition == "iid" else "about 12 %"
    if _far(overlap, partition) <= _CLOSE:
        return Line(what, paper, ours, MATCHES)
    if not tried:
        return Line(what, paper, ours, OPEN, "other readings were not tried (--scale more)")
    nearest = min(tried, key=lambda name: _far(tried[name], partition))
    found = tried[nearest]
    told = f"{nearest} ({found[0]:.1%} to {found[-1]:.1%})"
    if _far(found, partition) <= _CLOSE:
        return Line(what, paper, ours, DIFFERS, f"it comes out with {told}")
    why = f"{len(tried)} other readings were tried (below); the nearest is {told}"
    return Line(what, paper, ours, OPEN, why)


def _layers(result: Result) -> dict[str, Sequence[float]]:
    """Return the overlaps of the whole and of every layer, by what they are of."""
    setting, overlaps = result.setting, result.found["overlaps"]
    step = "gradients of one step" if setting["local"].get("steps") else "five epochs"
    inputs = ", inputs from 0 to 1" if setting["inputs"] == "raw" else ""
    names = [name for name in overlaps if not name.endswith("bias")]
    layers = ["all layers", *(f"layer {number} alone" for number in range(1, len(names)))]
    return {
        f"{setting['model']}, {step}{inputs}, {layer}": overlaps[name]
        for layer, name in zip(layers, names, strict=True)
    }


def _draw_overlap(results: Sequence[Result]) -> list[Panel]:
    curves = {
        "{algorithm}, {partition}".format_map(one.setting): by_round(
            [100 * value for value in one.found["overlap"]]
        )
        for one in results
        if "overlap" in one.found and not {*_OPTIONS} & {*one.setting}
    }
    return [Panel("", "rounds", "coordinates in common, %", curves)]


def _exposed(setting: Setting, context: Context) -> Mapping[str, Any]:
    """Return, for every alpha, T and what is exposed, by formula.

    A third of the devices colludes, rounded down, or so many as the setting says.
    """
    from hpcfl.privacy.exposure import exposure
    from hpcfl.privacy.masking import BySelection
    from hpcfl.privacy.population import Population, count_of

    devices = setting["devices"]
    population = Population(
        devices=devices,
        colluding=setting.get("colluding", count_of(Fraction(1, 3), devices)),
        dropout=setting["dropout"],
    )
    found: dict[str, list[float]] = {name: [] for name in ("contributors", "sole", "alone_of_sent")}
    for alpha in setting["alphas"]:
        seen = exposure(
            "sparse", BySelection(population.devices, alpha), population, dim=_DIM, samples=1_000
        )
        for name, values in found.items():
            values.append(getattr(seen, name).value)
    return found


def _exposure_settings(devices: Sequence[int]) -> list[Setting]:
    settings: list[Setting] = [
        {"devices": count, "dropout": dropout, "alphas": list(_ALPHAS)}
        for count, dropout in itertools.product(devices, _DROPOUTS)
    ]
    for dropout in _DROPOUTS:
        settings.append(
            {"devices": 100, "dropout": dropout, "alphas": list(_ALPHAS), "colluding": 34}
        )
    return settings


def _compare_exposure(results: Sequence[Result]) -> list[Line]:
    found = {
        (one.setting["dropout"], one.setting.get("colluding", 33)): one.found
        for one in results
        if one.setting["devices"] == 100
    }

    def at(name: str, dropout: float, alpha: float, colluding: int = 33) -> float:
        return float(found[dropout, colluding][name][_ALPHAS.index(alpha)])

    shares = {
        (dropout, colluding): 100 * at("sole", dropout, 0.2, colluding)
        for dropout, colluding in itertools.product(_DROPOUTS, (33, 34))
    }
    fitting = [
        f"{colluding} colluding and dropout {dropout:g}"
        for (dropout, colluding), share in shares.items()
        if f"{share:.2f}" == "0.07"
    ]
    told = "; ".join(
        f"dropout {dropout:g}: {shares[dropout, 33]:.3f} and {shares[dropout, 34]:.3f} %"
        for dropout in _DROPOUTS
    )
    what = "alpha = 0.2, N = 100: coordinates with one honest contributor, 33 and 34 colluding"
    where = (
        f"it comes out with {' or '.join(fitting)} only" if fitting else "impossible, by formula"
    )
    lines = [
        # The text: the dropout rate is 0.3 unless another one is named.
        Line(what, "0.07 %", told, DIFFERS, f"{where}; the text has dropout 0.3")
        if f"{sparse_readings.DROPOUT:g}" not in {one.rpartition(" ")[2] for one in fitting}
        else Line(what, "0.07 %", told, MATCHES)
    ]
    falls = {
        devices: all(
            more > less
            for one in results
            if one.setting["devices"] == devices
            for more, less in itertools.pairwise(one.found["sole"])
            if more > 0
        )
        for devices in _DEVICES
    }
    lines.append(
        says(
            "coordinates with one honest contributor, alpha from 0.05 to 0.5, every dropout rate",
            "fewer with a larger alpha where N > 25",
            "; ".join(
                f"N = {devices}: {'fewer' if each else 'more at first'}"
                for devices, each in falls.items()
            ),
            all(each for devices, each in falls.items() if devices > 25),
        )
    )
    for dropout in _DROPOUTS:
        slope = at("contributors", dropout, 0.1) / (0.1 * (1 - dropout) * 67)
        lines.append(
            within(f"dropout {dropout}: T over alpha (1 - theta) (N - A)", 1, slope, 0.06, "", "")
        )
    lines.append(
        says(
            "what a curious server learns by itself of what a device sends, alpha = 0.1",
            "0.07 % or less",
            f"{at('alone_of_sent', 0.0, 0.1):.0%} without dropouts, "
            f"{at('alone_of_sent', 0.3, 0.1):.0%} with 0.3",
            False,
            "by formula, and simulated and attacked with the same result (docs/exposure.md): the "
            "server strips the private masks of all who answer, and the pairs' masks of a "
            "coordinate tie one or two devices together, mostly",
        )
    )
    return lines


def _draw_exposure(results: Sequence[Result]) -> list[Panel]:
    return [
        Panel(
            title,
            "alpha",
            up,
            {
                f"theta = {one.setting['dropout']}": (
                    one.setting["alphas"],
                    [factor * value for value in one.found[figure]],
                )
                for one in results
                if one.setting["devices"] == 100 and "colluding" not in one.setting
            },
        )
        for figure, title, up, factor in (
            ("contributors", "T, honest devices in a sum", "devices", 1),
            ("sole", "one honest contributor", "of the coordinates, %", 100),
            ("alone_of_sent", "learnt by the server alone", "of what is sent, %", 100),
        )
    ]


ARTEFACTS = (
    Artefact(
        "sparse-secagg/table-1",
        "Bytes a device sends in a round",
        {"paper": Scale("d = 165,000; 3 rounds", _bytes_settings(3), 2)},
        _run,
        _compare_bytes,
    ),
    Artefact(
        "sparse-secagg/figure-2",
        "Coordinates that a pair has in common under rand-K and top-K",
        {
            "paper": Scale("the CNN, 60 rounds", _overlap_settings(60, "mnist-cnn"), 120),
            "small": Scale("the 2NN instead of the CNN", _overlap_settings(60, "2nn"), 15),
            MORE: Scale("other readings of a gradient", _further_overlaps(), 60),
        },
        _run,
        _compare_overlap,
        _draw_overlap,
        ("mnist",),
    ),
    Artefact(
        "sparse-secagg/figure-3",
        "Training on CIFAR-10 to 55 %: bytes, accuracy, time",
        {
            "paper": _to_target("N = 25 to 100", 240, _CIFAR10, _for_all("cifar-cnn", 400)),
            "small": _to_target("N = 25", 20, _CIFAR10, [("cifar-cnn", 25, 400)]),
            # No N is named: how rounds go with N is played, and training costs hours.
            MORE: _further(120, _CIFAR10, 165_005, [("cifar-cnn", 25, 400)]),
        },
        _run,
        _compare_training("figure-3"),
        _draw_training,
        ("cifar10",),
    ),
    Artefact(
        "sparse-secagg/figure-4",
        "T against alpha, and what is revealed, a third of the devices colluding",
        {"paper": Scale("by formula; d = 165,000", _exposure_settings(_DEVICES), 1)},
        _exposed,
        _compare_exposure,
        _draw_exposure,
    ),
    Artefact(
        "sparse-secagg/figure-5",
        "Training on MNIST, IID, to 97 %: bytes and time",
        {
            "paper": _to_target("the CNN, N = 25 to 100", 60, _IID, _for_all("mnist-cnn", 40)),
            "small": _to_target(
                "the CNN and the 2NN, N = 25 and 100",
                45,
                _IID,
                [
                    *(("2nn", devices, 150) for devices in (25, 100)),
                    *(("mnist-cnn", devices, 40) for devices in (25, 100)),
                ],
            ),
            MORE: _further(400, _IID, 1_663_370, _for_all("2nn", 150)),
        },
        _run,
        _compare_training("figure-5"),
        _draw_training,
        ("mnist",),
    ),
    Artefact(
        "sparse-secagg/figure-6",
        "Training on MNIST, not IID, to 94 %: bytes and time",
        {
            "paper": _to_target("the CNN, N = 25 to 100", 90, _SHARDS, _for_all("mnist-cnn", 60)),
            "small": _to_target(
                "the 2NN, N = 25 and 100", 25, _SHARDS, [("2nn", 25, 400), ("2nn", 100, 600)]
            ),
            MORE: _further(
                400,
                _SHARDS,
                1_663_370,
                [("2nn", 25, 400), ("2nn", 50, 400), ("2nn", 75, 400), ("2nn", 100, 600)],
                [
                    # For how long a device trains the CNN in a round.
                    *_pairs_of_runs(_IID, [("mnist-cnn", 25, 40)]),
                    # What data that are not alike lose.
                    *_pairs_of_runs(_IID, [("2nn", 100, 150)], range(5)),
                    *_without_target(_SHARDS, ("2nn", 100, _LONGEST_IID)),
                ],
            ),
        },
        _run,
        _compare_training("figure-6"),
        _draw_training,
        ("mnist",),
    ),
)
