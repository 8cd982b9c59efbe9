"""Options of differentially private algorithms."""

from hpcfl.errors import UsageError
from hpcfl.options.definition import OptionGroup, option
from hpcfl.values import dataclass


class _Group(OptionGroup):
    heading = "Privacy"


@dataclass(frozen=True, kw_only=True)
class NoiseOptions(_Group):
    """Options of all private algorithms: the noise, and the privacy that it may spend."""

    sigma: float | None = option(
        None,
        "Noise on a coordinate (Gaussian: standard deviation, Laplace: scale): on a mean gradient "
        "(cdp, dp-dsgd, fedsgd-dpc), on the sum of updates (dp-fedavg), on an update (locks).",
        above=0,
    )
    noise_multiplier: float | None = option(
        None, "Noise on a coordinate in units of --clip-norm.", above=0, marks=("label",)
    )
    clip_norm: float = option(
        1.0, "Norm to which a sample's gradient (dp-fedavg, pine: an update) is clipped.", above=0
    )
    epsilon: float | None = option(
        None,
        "Privacy budget: training stops before a round would exceed it. Unless the noise is given, "
        "it is chosen such that all rounds together cost this.",
        above=0,
        marks=("label",),
    )
    epsilon_by: str = option(
        "proven",
        "Which account --epsilon refers to: the paper's, or the proven one.",
        choices=("paper", "proven"),
    )
    delta: float = option(1e-5, "Target delta.", above=0, below=1)
    # Draw the noise from a fast generator that is not cryptographic. Anybody can draw it again with
    # the recorded seed, so epsilon is infinite.
    fast_noise: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sigma is not None and self.noise_multiplier is not None:
            raise UsageError("give either --sigma or --noise-multiplier, and not both")
        if self.fast_noise and self.epsilon is not None:
            raise UsageError(
                "--epsilon does not go with fast_noise, whose noise anybody can draw again"
            )


@dataclass(frozen=True, kw_only=True)
class StepNoiseOptions(_Group):
    """Options of algorithms with noisy local steps."""

    shuffle: str = option(
        "continuing",
        "How a device goes through its data.",
        choices=("continuing", "fresh", "poisson"),
        default_text="continuing; poisson for fedsgd-dpc",
    )


@dataclass(frozen=True, kw_only=True)
class ConvexOptions(_Group):
    """Options of algorithms whose privacy account is tighter for convex losses."""

    convex: bool = option(
        False,
        "Declare that no local step expands distances, because the learning rate is small. This "
        "tightens the proven account of cdp, for linear models of two classes.",
    )


@dataclass(frozen=True, kw_only=True)
class MechanismOptions(_Group):
    """Options of algorithms that offer several distributions of the noise."""

    mechanism: str = option(
        "gaussian",
        "Distribution of the noise, which also decides which norm is clipped: l2 or l1 "
        "(fedsgd-dpc).",
        choices=("gaussian", "laplace"),
    )


@dataclass(frozen=True, kw_only=True)
class UpdateNoiseOptions(_Group):
    """Options of algorithms that add noise to the sum of updates."""

    noise: str = option(
        "central",
        "Add the noise at a trusted server, or at every device to its integers (dp-fedavg).",
        choices=("central", "distributed"),
        marks=("label",),
    )


@dataclass(frozen=True, kw_only=True)
class NormOptions(_Group):
    """Options of algorithms that keep users by the norms of their updates."""

    first_stage: int | None = option(
        None,
        "Expected number of users invited in a round (locks).",
        at_least=1,
        default_text="3/2 of --per-round",
    )
    variant: str = option(
        "trusted",
        "Add the noise at a trusted server, or at every user (locks).",
        choices=("trusted", "local"),
    )
    sigma_norms: float | None = option(
        None, "Noise on norms (locks).", above=0, default_text="that on updates"
    )


@dataclass(frozen=True, kw_only=True)
class PrivacyOptions(
    NoiseOptions, StepNoiseOptions, ConvexOptions, MechanismOptions, UpdateNoiseOptions, NormOptions
):
    """Options of all private algorithms."""
