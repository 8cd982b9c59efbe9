"""``hpcfl optimize``: settings under which training with noise does best."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcfl.errors import HpcflError, UsageError

if TYPE_CHECKING:
    from hpcfl.algorithms.federated.queries import Bound, Constants, Optimum
    from hpcfl.comm.world import World
    from hpcfl.train.estimate import Estimate

# Options of constants, by the name that the constant has.
SYMBOLS = {
    "dim": ("p", int, "Number p of parameters."),
    "samples": ("d", int, "Number d of samples on all devices together."),
    "gradient_norm": ("G", float, "G: l2 norm that no device's gradient exceeds."),
    "smoothness": ("lambda", float, "lambda: smoothness of the loss."),
    "convexity": ("mu", float, "mu: strong convexity of the loss."),
    "heterogeneity": ("Gamma", float, "Gamma: F* less the mean of the devices' least losses."),
    "distance": ("Y0", float, "Y0: squared distance of the start from the best model."),
    "variance": ("Lambda^2", float, "Lambda^2: variance of a sample's gradient (gaussian)."),
}
SHORT = {"gradient_norm": "--g", "smoothness": "--lambda", "convexity": "--mu"}
# Where U is printed and drawn.
MOST_ROWS, POINTS, MOST_LINES = 12, 200, 5


def _constant_options(function: Any) -> Any:
    for name, (_, kind, text) in reversed(SYMBOLS.items()):
        long = f"--{name.replace('_', '-')}"
        names = [long, SHORT[name]] if name in SHORT else [long]
        function = click.option(*names, name, type=kind, help=text)(function)
    return function


@click.group("optimize")
def command() -> None:
    """Find settings under which training with noise does best."""


@command.command("fedsgd-dpc")
@click.option(
    "--devices",
    type=click.IntRange(min=1),
    help="Number N of devices.  [default: that of --constants; with --dataset, one on every rank "
    "but the server's, or 100 in one process]",
)
@click.option(
    "--epsilon",
    default="1",
    show_default=True,
    metavar="EPS[,EPS...]",
    help="Budget of a device for all its replies: one for all devices, or one each.",
)
@click.option(
    "--mechanism",
    type=click.Choice(["laplace", "gaussian"]),
    default="laplace",
    show_default=True,
    help="The noise.",
)
@click.option("--rounds", type=click.IntRange(min=1), help="Also find the best b for this T.")
@click.option("--per-round", type=click.IntRange(min=1), help="Also find the best T for this b.")
@click.option(
    "--max-rounds",
    type=click.IntRange(min=1),
    help="T at the most.  [default: 500 with Gaussian noise, else no limit]",
)
@click.option(
    "--constants",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE.json",
    help="Constants of the bound, as --save-constants writes them; options go before.",
)
@_constant_options
@click.option(
    "--xi",
    type=float,
    help="Norm to which a sample's gradient is clipped: l1 (laplace) or l2 (gaussian). With "
    "--dataset it is the largest gradient norm found, if that is less.",
)
@click.option("--delta", type=float, default=1e-5, show_default=True, help="Delta (gaussian).")
@click.option(
    "--fraction",
    type=float,
    default=1.0,
    show_default=True,
    help="Part q of its samples that a reply uses (gaussian).",
)
@click.option("--c2", type=float, default=1.0, show_default=True, help="Of Theorem 2 (gaussian).")
@click.option(
    "--sampling",
    type=click.Choice(["poisson", "fixed"]),
    default="poisson",
    show_default=True,
    help="How a reply samples, and so which data are neighbours: with one record more (poisson), "
    "or with one replaced (fixed) (gaussian).",
)
@click.option(
    "--dataset",
    type=click.Choice(["digits", "synthetic", "mnist", "cifar10", "adult", "femnist"]),
    help="Estimate the constants from these data; not differentially private.",
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    help="Folder of the data sets.  [default: $HPCFL_DATA]",
)
@click.option("--model", help="Model, or MODULE:FUNCTION.  [default: one for the data set]")
@click.option(
    "--partition",
    default="iid",
    show_default=True,
    help="iid, shards, two-digit, dirichlet:A or writer.",
)
@click.option(
    "--estimate-steps",
    type=int,
    default=200,
    show_default=True,
    help="Full-batch steps of every device for the estimate.",
)
@click.option(
    "--learning-rate",
    type=float,
    default=0.05,
    show_default=True,
    help="Of the first of these steps; it falls with the root of their number.",
)
@click.option(
    "--torch-device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Where devices train for the estimate.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--save-constants",
    type=click.Path(path_type=Path),
    metavar="FILE.json",
    help="Also write the constants to a file.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    help="Also draw U against T for several b: .png, .svg or .pdf.",
)
def fedsgd_dpc(
    dataset: str | None,
    as_json: bool,
    plot: Path | None,
    save_constants: Path | None,
    **options: Any,
) -> None:
    """Find how often FedSGD-DPC should query and reply: T* rounds of b* devices.

    U(T, b) bounds the squared distance of the trained model from the best one. T* and b* are where
    it is least, by the formulas of the paper and among whole numbers. The paper counts T b / N
    replies of a device; whole replies counts those of the device that replies most, which is the
    noise that a run needs. T of 0 means that no training beats the start.

    \b
    Examples:
      hpcfl optimize fedsgd-dpc --devices 10 --epsilon 1 --constants mnist.json
      hpcfl optimize fedsgd-dpc --devices 10 --dim 7840 --samples 60000 --g 18 --xi 300 \\
          --lambda 1.05 --mu 1 --heterogeneity 0.5 --distance 600 --per-round 5 --plot bound.png
      mpirun -n 11 hpcfl optimize fedsgd-dpc --dataset mnist --model softmax \\
          --partition two-digit --xi 300 --epsilon 10 --save-constants mnist.json
      hpcfl optimize fedsgd-dpc --mechanism gaussian --constants mnist.json --xi 10 \\
          --fraction 0.01 --rounds 500 --json
    """
    from hpcfl.comm.world import connect

    if plot is not None:
        from hpcfl.plots import style

        style.check_path(plot)
    epsilons = _epsilons(options["epsilon"])
    # Read before the estimate, which can take long; the same on every rank.
    given = _given(options, with_data=dataset is not None)
    world = connect()
    estimate = None if dataset is None else _estimate(world, dataset, options)
    error = None
    if world.rank == 0:
        try:
            if estimate is not None:
                from hpcfl.train.estimate import WARNING

                click.echo(WARNING, err=True)
                given = estimate.constants.as_dict() | given
            bound = _bound(given, epsilons, options)
            if save_constants is not None:
                _save(bound.constants, save_constants)
            _show(bound, options, estimate, as_json, plot)
        except HpcflError as problem:
            error = problem
    # The other ranks learn of an error: a rank that ends alone would leave the job hanging.
    world.settle(error)


def _epsilons(text: str) -> list[float]:
    try:
        epsilons = [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(
            f"--epsilon {text!r} is no number: give one, or one for each device as in 1,1,5"
        ) from None
    if not all(math.isfinite(epsilon) and epsilon > 0 for epsilon in epsilons):
        raise UsageError(f"--epsilon is {text}; every budget must be above 0")
    return epsilons


def _given(options: dict[str, Any], with_data: bool) -> dict[str, Any]:
    """Return the constants of the file and of the options."""
    given = {} if options["file"] is None else _read(options["file"])
    if with_data and given:
        raise UsageError("--constants and --dataset both say the constants: give one of them")
    given |= {name: options[name] for name in SYMBOLS if options[name] is not None}
    # With data, N is that of the estimate, and xi is bounded by it.
    if not with_data:
        if options["devices"] is not None:
            given["devices"] = options["devices"]
        if options["xi"] is not None:
            given[_clip_name(options)] = options["xi"]
    return given


def _clip_name(options: dict[str, Any]) -> str:
    return "l1_clip" if options["mechanism"] == "laplace" else "l2_clip"


def _read(path: Path) -> dict[str, Any]:
    from hpcfl.system import files

    try:
        found = files.parse_json(files.text(path))
    except OSError as error:
        raise UsageError(
            f"cannot read {path} ({error.strerror or error}): give a file of constants"
        ) from None
    except ValueError as error:
        raise UsageError(f"{path} is no JSON ({error}): --save-constants writes one") from None
    if not isinstance(found, dict):
        raise UsageError(f"{path} must have an object of constants by name, as in {{'dim': 7840}}")
    return found


def _save(constants: Constants, path: Path) -> None:
    import json

    try:
        path.write_text(json.dumps(constants.as_dict(), indent=2) + "\n")
    except OSError as error:
        raise UsageError(
            f"cannot write {path} ({error.strerror or error}): choose another place"
        ) from None


def _estimate(world: World, dataset: str, options: dict[str, Any]) -> Estimate | None:
    from hpcfl.train import estimate

    settings = estimate.EstimateOptions(
        dataset=dataset,
        **{name: options[name] for name in ("partition", "model", "data_dir", "seed")},
        steps=options["estimate_steps"],
        learning_rate=options["learning_rate"],
        torch_device=options["torch_device"],
        **({} if options["xi"] is None else {_clip_name(options): options["xi"]}),
    )
    return estimate.run(world, settings, options["devices"])


def _bound(given: dict[str, Any], epsilons: list[float], options: dict[str, Any]) -> Bound:
    from hpcfl.algorithms.federated.queries import (
        REQUIRED,
        Constants,
        GaussianBound,
        LaplaceBound,
    )

    clip = _clip_name(options)
    missing = [name for name in (*REQUIRED, clip) if given.get(name) is None]
    if missing:
        names = ("xi" if name == clip else name.replace("_", "-") for name in missing)
        raise UsageError(
            f"the bound needs {', '.join(f'--{name}' for name in names)}: give them, a file by "
            "--constants, or data to estimate from by --dataset"
        )
    constants = Constants.from_dict(given)
    if options["per_round"] is not None and options["per_round"] > constants.devices:
        raise UsageError(
            f"--per-round is {options['per_round']}, and there are {constants.devices} devices"
        )
    if options["mechanism"] == "laplace":
        return LaplaceBound(constants, epsilons)
    return GaussianBound(
        constants,
        epsilons,
        delta=options["delta"],
        fraction=options["fraction"],
        c2=options["c2"],
        replace=options["sampling"] == "fixed",
    )


def _show(
    bound: Bound,
    options: dict[str, Any],
    estimate: Estimate | None,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Print what is found, and draw it."""
    most = options["max_rounds"]
    if most is None and bound.mechanism == "gaussian":
        most = max(500, options["rounds"] or 0)
    found = _find(bound, most, options, estimate)
    if as_json:
        import json

        click.echo(json.dumps(found, indent=2, allow_nan=False))
    else:
        click.echo(_render(found))
    if plot is not None:
        _draw(bound, most, plot)
        click.echo(f"Figure: {plot}", err=as_json)


def _find(
    bound: Bound, most: int | None, options: dict[str, Any], estimate: Estimate | None
) -> dict[str, Any]:
    """Return everything there is to print; null is an infinite number of rounds."""
    devices = bound.constants.devices
    solutions = bound.solutions()
    joint = bound.joint()
    rows = []
    for b in _some(devices, MOST_ROWS, options["per_round"]):
        best = bound.best_rounds(b)
        rows.append(
            {
                "per_round": b,
                "rounds": _finite(best),
                "whole": _as_dict(bound.best_whole_rounds(b, most), devices),
                "whole_replies": _as_dict(bound.best_whole_rounds(b, most, whole=True), devices),
            }
        )
    whole_replies = bound.integer(most, whole=True)
    found: dict[str, Any] = {
        "algorithm": "fedsgd-dpc",
        "mechanism": bound.mechanism,
        "devices": devices,
        "epsilons": bound.epsilons.tolist(),
        "constants": bound.constants.as_dict() | {"gamma": bound.constants.gamma},
        "max_rounds": most,
        "solutions": {name: _as_dict(one, devices) for name, one in solutions.items()},
        "joint": _as_dict(joint, devices)
        | {"solution": next(name for name, one in solutions.items() if one == joint)},
        "whole": _as_dict(bound.integer(most), devices),
        "whole_replies": _as_dict(whole_replies, devices),
        "noise": _noise(bound, whole_replies, options),
        "by_per_round": rows,
    }
    if options["rounds"] is not None:
        T = options["rounds"]
        tried = bound.value(T, range(1, devices + 1))
        whole = bound.value(T, range(1, devices + 1), whole=True)
        best = bound.best_per_round(T)
        found["for_rounds"] = {
            "rounds": T,
            "per_round": best,
            "bound": float(bound.value(T, best)),
            "whole": {"per_round": int(tried.argmin()) + 1, "bound": float(tried.min())},
            "whole_replies": {"per_round": int(whole.argmin()) + 1, "bound": float(whole.min())},
        }
    if options["per_round"] is not None:
        found["for_per_round"] = next(
            row for row in rows if row["per_round"] == options["per_round"]
        )
    if estimate is not None:
        found["estimate"] = {
            "private": False,
            "sizes": estimate.sizes.tolist(),
            "devices": {name: values.tolist() for name, values in estimate.figures.items()},
        }
    lines = _some(devices, MOST_LINES, options["per_round"])
    rounds = _grid(bound, most, 12)
    found["curve"] = {
        "rounds": rounds,
        "per_round": lines,
        "bound": [bound.value(rounds, b).tolist() for b in lines],
        "bound_whole_replies": [bound.value(rounds, b, whole=True).tolist() for b in lines],
    }
    return found


def _noise(bound: Bound, best: Optimum, options: dict[str, Any]) -> dict[str, Any] | None:
    """Return the noise of a device at the best whole numbers, and what an accountant asks for."""
    if best.rounds == 0:
        return None
    devices = bound.constants.devices
    T, b = int(best.rounds), int(best.per_round)
    replies = -(-T * b // devices)
    epsilons = sorted(set(bound.epsilons.tolist()))
    found: dict[str, Any] = {"rounds": T, "per_round": b, "replies": replies}
    variances = bound.constants.dim / b
    if bound.mechanism == "laplace":
        # The whole count makes Theorem 1 the proven noise.
        return found | {
            "scale": {
                str(epsilon): bound.sensitivity * replies / epsilon  # type: ignore[attr-defined]
                for epsilon in epsilons
            }
        }
    from hpcfl.privacy.accounting import systems

    paper, proven = {}, {}
    for epsilon in epsilons:
        calibrations = systems.noise(
            "fedsgd-dpc",
            epsilon,
            noise="gaussian",
            rounds=T,
            devices=devices,
            per_round=b,
            samples=int(bound.constants.samples // devices),
            clip=bound.constants.l2_clip,
            delta=options["delta"],
            fraction=options["fraction"],
            sampling=options["sampling"],
        )
        sigmas = {one.by: one.sigma for one in calibrations}
        paper[str(epsilon)] = sigmas["paper"] * options["c2"]
        proven[str(epsilon)] = sigmas["proven"]
    mean = sum(proven[str(epsilon)] ** 2 for epsilon in bound.epsilons.tolist()) / devices
    value = float(bound.with_noise(T, b, variances * mean))
    return found | {"sigma_paper": paper, "sigma_proven": proven, "bound_proven": value}


def _as_dict(one: Optimum, devices: int) -> dict[str, Any]:
    replies = one.rounds * one.per_round / devices
    return {
        "rounds": _finite(one.rounds),
        "per_round": one.per_round,
        "replies": _finite(replies),
        "bound": one.bound,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _some(devices: int, most: int, also: int | None) -> list[int]:
    """Return at most so many numbers from 1 to N, both among them, and one more."""
    import numpy as np

    if devices <= most:
        return list(range(1, devices + 1))
    some = set(np.unique(np.geomspace(1, devices, most).round().astype(int)).tolist())
    return sorted(some | ({also} if also is not None else set()))


def _grid(bound: Bound, most: int | None, points: int) -> list[int]:
    """Return numbers T of rounds from 1 to well beyond the best ones, evenly in logarithms."""
    import numpy as np

    last = most
    if last is None:
        last = max(20, math.ceil(5 * bound.best_rounds(1)))
    return np.unique(np.geomspace(1, last, points).round().astype(int)).tolist()


def _draw(bound: Bound, most: int | None, path: Path) -> None:
    import numpy as np

    from hpcfl.plots import queries as figures
    from hpcfl.plots import style

    lines = _some(bound.constants.devices, MOST_LINES, None)
    if len(lines) > 3:
        lines = [lines[0], lines[len(lines) // 2], lines[-1]]
    last = _grid(bound, most, 2)[-1]
    rounds = np.geomspace(1, max(2, last), POINTS)
    optima = []
    for b in lines:
        T = bound.best_rounds(b)
        optima.append((T, float(bound.value(T, b))) if math.isfinite(T) else None)
    epsilons = sorted(set(bound.epsilons.tolist()))
    budget = ", ".join(f"{epsilon:g}" for epsilon in epsilons[:3])
    title = (
        f"FedSGD-DPC, {bound.mechanism}, N = {bound.constants.devices}, epsilon = {budget}"
        f"{', ...' if len(epsilons) > 3 else ''}"
    )
    values = np.array([bound.value(rounds, b) for b in lines])
    style.save(figures.draw(rounds, lines, values, optima, title, bound.constants.distance), path)


def _render(found: dict[str, Any]) -> str:
    """Return the tables."""
    from tabulate import tabulate

    constants = found["constants"]
    epsilons = sorted(set(found["epsilons"]))
    clip = "l1_clip" if found["mechanism"] == "laplace" else "l2_clip"
    symbols = {name: symbol for name, (symbol, _, _) in SYMBOLS.items()} | {
        clip: "xi1" if clip == "l1_clip" else "xi2",
        "gamma": "gamma",
    }
    if found["mechanism"] == "laplace":
        del symbols["variance"]
    lines = [
        f"FedSGD-DPC, {found['mechanism']} noise, N = {found['devices']} devices, epsilon "
        + ", ".join(f"{epsilon:g}" for epsilon in epsilons),
        ", ".join(f"{symbol} = {constants[name]:.6g}" for name, symbol in symbols.items()),
        "U bounds E||theta_T - theta*||^2; without a round it is Y0.",
        "",
    ]
    optima = [
        *((f"{name}", one) for name, one in found["solutions"].items()),
        (f"joint optimum ({found['joint']['solution']})", found["joint"]),
        ("best whole T and b", found["whole"]),
        ("the same, whole replies", found["whole_replies"]),
    ]
    lines.append(
        tabulate(
            [[name, *_cells(one)] for name, one in optima],
            headers=["", "T", "b", "U"],
            tablefmt="plain",
            disable_numparse=True,
            colalign=("left", "right", "right", "right"),
        )
    )
    lines += _sentences(found)
    by_b = [
        [
            str(row["per_round"]),
            _number(row["rounds"]),
            *_cells(row["whole"])[::2],
            *_cells(row["whole_replies"])[::2],
            str(-(-row["whole_replies"]["rounds"] * row["per_round"] // found["devices"])),
        ]
        for row in found["by_per_round"]
    ]
    headers = ["b", "T*(b)", "best T", "U", "whole replies: T", "U", "replies"]
    lines += [
        "",
        tabulate(by_b, headers=headers, tablefmt="plain", disable_numparse=True, stralign="right"),
    ]
    curve = found["curve"]
    table = [
        [str(T), *(f"{values[index]:.4g}" for values in curve["bound"])]
        for index, T in enumerate(curve["rounds"])
    ]
    headers = ["U at T", *(f"b = {b}" for b in curve["per_round"])]
    lines += [
        "",
        tabulate(table, headers=headers, tablefmt="plain", disable_numparse=True, stralign="right"),
    ]
    return "\n".join(lines)


def _sentences(found: dict[str, Any]) -> list[str]:
    """Return what was asked for beside the joint optimum, and the noise."""
    lines = [""]
    if "for_per_round" in found:
        row = found["for_per_round"]
        T = _number(row["rounds"])
        lines.append(
            f"for b = {row['per_round']}: T* = {T}; of whole numbers {row['whole']['rounds']}, "
            f"with whole replies {row['whole_replies']['rounds']}"
        )
    if "for_rounds" in found:
        row = found["for_rounds"]
        lines.append(
            f"for T = {row['rounds']}: b* = {row['per_round']:.4g}; of whole numbers "
            f"{row['whole']['per_round']}, with whole replies {row['whole_replies']['per_round']}"
        )
    noise = found["noise"]
    if noise is None:
        lines.append("no training has a smaller bound than the start, at these budgets")
        return lines
    at = f"at T = {noise['rounds']}, b = {noise['per_round']}, {noise['replies']} replies"
    if "scale" in noise:
        scales = ", ".join(
            f"{scale:.4g} (epsilon {epsilon})" for epsilon, scale in noise["scale"].items()
        )
        return [*lines, f"scale of the noise on a coordinate {at}: {scales}"]
    for epsilon, sigma in noise["sigma_proven"].items():
        lines.append(
            f"sigma of the noise on a coordinate {at} (epsilon {epsilon}): proven {sigma:.4g}, "
            f"paper {noise['sigma_paper'][epsilon]:.4g}"
        )
    return [*lines, f"U there with the proven noise: {noise['bound_proven']:.4g}"]


def _cells(one: dict[str, Any]) -> list[str]:
    return [_number(one["rounds"]), f"{one['per_round']:.4g}", f"{one['bound']:.4g}"]


def _number(value: float | None) -> str:
    if value is None:
        return "infinite"
    return str(value) if isinstance(value, int) else f"{value:.4g}"
