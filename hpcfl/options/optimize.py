"""Options of `hpcfl optimize fedsgd-dpc`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcfl.errors import UsageError
from hpcfl.options.definition import OptionGroup, Section, again, option
from hpcfl.options.privacy import PrivacyOptions
from hpcfl.options.shared import CommonOptions, SeedOptions
from hpcfl.options.training import LocalOptions, TrainOptions

# Options that are constants of the bound, and its names for them.
CONSTANTS = {"total_samples": "samples"} | {
    name: name
    for name in (
        *("dim", "gradient_norm", "smoothness", "convexity"),
        *("heterogeneity", "distance", "variance"),
    )
}
# With Gaussian noise the bound can fall for ever: no T is best without a limit.
_GAUSSIAN_ROUNDS = 500
_GAUSSIAN = "mechanism=gaussian"


@dataclass(frozen=True, kw_only=True)
class OptimizeOptions(OptionGroup):
    """What is asked of FedSGD-DPC's bound; see ``hpcfl optimize fedsgd-dpc --help``."""

    devices: int | None = again(
        CommonOptions,
        "devices",
        None,
        help="Number N of devices.",
        default_text="that of --constants; with --dataset, one on every rank but the server's, "
        "or 100 in one process",
    )
    epsilon: str = again(
        PrivacyOptions,
        "epsilon",
        "1",
        help="Privacy budget of a device for all its replies: one for all devices, or one for "
        "each.",
        unit="EPS[,EPS...]",
        above=None,
    )
    mechanism: str = again(
        PrivacyOptions,
        "mechanism",
        "laplace",
        help="Distribution of the noise.",
        choices=("laplace", "gaussian"),
    )
    rounds: int | None = again(
        CommonOptions,
        "rounds",
        None,
        help="Also find the best b for this T.",
        at_least=1,
    )
    per_round: int | None = again(
        TrainOptions,
        "per_round",
        None,
        help="Also find the best T for this b.",
        at_least=1,
    )
    max_rounds: int | None = again(
        CommonOptions,
        "max_rounds",
        None,
        help="Largest T to consider.",
        at_least=1,
        default_text=f"{_GAUSSIAN_ROUNDS} with Gaussian noise, else no limit",
    )
    constants: Path | None = option(
        None,
        "Constants of the bound, as --save-constants writes them; options take precedence.",
        unit="FILE.json",
        section=Section.WHAT,
    )
    dim: int | None = again(
        CommonOptions,
        "dim",
        None,
        help="Number p of parameters.",
    )
    total_samples: int | None = option(
        None,
        "Number d of samples on all devices together.",
        unit="samples",
        section=Section.SIZE,
    )
    gradient_norm: float | None = option(
        None,
        "G: upper bound on the l2 norm of a device's gradient.",
        unit="norm",
        section=Section.WHAT,
    )
    smoothness: float | None = option(
        None,
        "lambda: smoothness of the loss.",
        unit="lambda",
        section=Section.WHAT,
    )
    convexity: float | None = option(
        None, "mu: strong convexity of the loss.", unit="mu", section=Section.WHAT
    )
    heterogeneity: float | None = option(
        None,
        "Gamma: F* minus the mean of the devices' minimum losses.",
        unit="gamma",
        section=Section.WHAT,
    )
    distance: float | None = option(
        None,
        "Y0: squared distance of the start from the best model.",
        unit="distance",
        section=Section.WHAT,
    )
    variance: float | None = option(
        None,
        "Lambda^2: variance of a sample's gradient (gaussian).",
        unit="variance",
        section=Section.WHAT,
    )
    clip_norm: float | None = again(
        PrivacyOptions,
        "clip_norm",
        None,
        help="xi: norm to which a sample's gradient is clipped: l1 (laplace) or l2 (gaussian). "
        "With --dataset it is the largest gradient norm found, if that is less.",
    )
    delta: float = again(PrivacyOptions, "delta", 1e-5, help="Delta (gaussian).")
    fraction: float = option(
        1.0,
        "Part q of its samples that a reply uses (gaussian).",
        unit="fraction",
        section=Section.PRIVACY,
    )
    c2: float = option(
        1.0,
        "Constant c2 of Theorem 2 (gaussian).",
        unit="factor",
        section=Section.PRIVACY,
    )
    record_sampling: str = option(
        "poisson",
        "How a reply samples, which decides which data sets are neighbours: those with one record "
        "more (poisson), or with one record replaced (fixed) (gaussian).",
        choices=("poisson", "fixed"),
        section=Section.PRIVACY,
    )
    dataset: str | None = again(
        TrainOptions,
        "dataset",
        None,
        help="Estimate the constants from these data; not differentially private.",
    )
    data_dir: Path | None = again(TrainOptions, "data_dir", None)
    model: str | None = again(TrainOptions, "model", None)
    partition: str = again(TrainOptions, "partition", "iid")
    estimate_steps: int = option(
        200,
        "Full-batch steps of every device for the estimate.",
        at_least=2,
        unit="steps",
        section=Section.ADVANCED,
    )
    learning_rate: float = again(
        LocalOptions,
        "learning_rate",
        0.05,
        help="Initial learning rate of the estimate; it decays with the square root of the step.",
    )
    torch_device: str = again(
        TrainOptions,
        "torch_device",
        "auto",
        help="Where devices train for the estimate.",
    )
    seed: int = again(SeedOptions, "seed", 0)
    save_constants: Path | None = option(
        None,
        "Also write the constants to a file.",
        unit="FILE.json",
        marks=("output",),
        section=Section.OUTPUT,
    )
    plot: Path | None = again(
        CommonOptions,
        "plot",
        None,
        help="Also draw U against T for several b: .png, .svg or .pdf.",
    )
    size: str = again(CommonOptions, "size", "page")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(math.isfinite(epsilon) and epsilon > 0 for epsilon in self.epsilons):
            shown = ",".join(f"{epsilon:g}" for epsilon in self.epsilons)
            raise UsageError(f"--epsilon is {shown}; every budget must be above 0")
        if self.dataset is not None and self.constants is not None:
            raise UsageError("--constants and --dataset both say the constants: give one of them")

    @property
    def epsilons(self) -> list[float]:
        """Budgets: one for all devices, or one each."""
        try:
            return [float(part) for part in self.epsilon.split(",")]
        except ValueError:
            raise UsageError(
                f"--epsilon {self.epsilon!r} is not a number: give one, or one for each device as "
                "in 1,1,5"
            ) from None

    @property
    def clip_name(self) -> str:
        """The bound's name for the clipping norm xi."""
        return "l1_clip" if self.mechanism == "laplace" else "l2_clip"

    @property
    def most(self) -> int | None:
        """Largest T that is tried; None for no limit."""
        if self.max_rounds is None and self.mechanism == "gaussian":
            return max(_GAUSSIAN_ROUNDS, self.rounds or 0)
        return self.max_rounds

    @property
    def given(self) -> dict[str, Any]:
        """The constants that options give, by the bound's names."""
        named = {by: getattr(self, name) for name, by in CONSTANTS.items()}
        if self.dataset is None:
            named |= {"devices": self.devices, self.clip_name: self.clip_norm}
        return {name: value for name, value in named.items() if value is not None}
