"""Options of `hpcfl privacy epsilon` and `hpcfl privacy noise`."""

from __future__ import annotations

from dataclasses import dataclass

from hpcfl.options.definition import OptionGroup, Section, again, option
from hpcfl.options.exposure import ExposureOptions
from hpcfl.options.privacy import PrivacyOptions
from hpcfl.options.shared import CommonOptions
from hpcfl.options.training import TrainOptions


@dataclass(frozen=True, kw_only=True)
class AccountOptions(OptionGroup):
    """Settings of the private algorithms, each optional here: the algorithm says which it needs.

    The algorithm's own settings read and check what is typed, and have the defaults.
    """

    rounds: int | None = again(TrainOptions, "rounds", None, help="Number T of rounds.")
    devices: int | None = again(
        TrainOptions, "devices", None, help="Number n of devices.", default_text=""
    )
    per_round: int | None = again(
        TrainOptions,
        "per_round",
        None,
        help="Devices in a round; for dp-fedavg with Poisson sampling and for locks (stage 2) in "
        "expectation.",
        default_text="",
    )
    sampling: str | None = again(
        TrainOptions,
        "sampling",
        None,
        help="Who takes part: each user independently, or an exact number (dp-fedavg).",
        choices=("poisson", "exact"),
        default_text="poisson",
    )
    samples: int | None = again(
        CommonOptions,
        "samples",
        None,
        help="Records on a device, on the smallest if they differ (cdp, dp-dsgd, fedsgd-dpc).",
    )
    batch_size: int | None = again(
        TrainOptions,
        "batch_size",
        None,
        help="Samples in a mini-batch (cdp, dp-dsgd).",
        section=Section.SIZE,
    )
    steps: int | None = again(
        TrainOptions,
        "steps",
        None,
        help="Local steps tau in a round (cdp).",
        default_text="1",
        section=Section.SIZE,
    )
    participations: int | None = option(
        None,
        "Rounds of the device that takes part most often (cdp, dp-dsgd; dp-fedavg with distributed "
        "noise).",
        unit="rounds",
        section=Section.SIZE,
        default_text="those of a balanced schedule; all for dp-fedavg",
    )
    replies: int | None = option(
        None,
        "Largest number of answers of a device (fedsgd-dpc; stage 2 of locks, local).",
        unit="rounds",
        section=Section.SIZE,
        default_text="by turns; every round for locks",
    )
    first_stage: int | None = again(
        PrivacyOptions,
        "first_stage",
        None,
        help="Users that stage 1 keeps, in expectation (locks).",
        default_text="",
        section=Section.SIZE,
    )
    first_stages: int | None = option(
        None,
        "Largest number of times that a user is in stage 1 (locks, local).",
        unit="rounds",
        section=Section.SIZE,
        default_text="every round",
    )
    dim: int | None = again(
        CommonOptions,
        "dim",
        None,
        help="Coordinates of an update (dp-fedavg, distributed).",
    )
    clip_norm: float | None = again(
        PrivacyOptions,
        "clip_norm",
        None,
        help="Norm to which a gradient of a sample, or a user's update, is clipped.",
        default_text="1",
    )
    delta: float | None = again(
        PrivacyOptions,
        "delta",
        None,
        help="Delta of the guarantee.",
        default_text="1e-5; 0 for fedsgd-dpc with Laplace noise",
    )
    noise: str | None = again(
        PrivacyOptions,
        "noise",
        None,
        help="Who adds the noise (dp-fedavg).",
        default_text="central",
    )
    mechanism: str | None = again(
        PrivacyOptions,
        "mechanism",
        None,
        help="Distribution of the noise (fedsgd-dpc).",
        default_text="laplace",
    )
    sigma_norms: float | None = again(
        PrivacyOptions,
        "sigma_norms",
        None,
        help="Noise on the norms; inf if they are not used (locks).",
        default_text="sigma",
    )
    sigma_count: float | None = option(
        None,
        "Noise on the count of adaptive clipping, which sums a bit minus 1/2 of every user "
        "(dp-fedavg).",
        unit="sigma",
        section=Section.PRIVACY,
    )
    discrete: bool | None = option(
        None,
        "Whether the last step's noise is discrete Gaussian, added to integers (cdp, dp-dsgd).",
        negative="continuous",
        default_text="continuous",
        section=Section.PRIVACY,
    )
    integer_sigma: float | None = option(
        None,
        "Smallest parameter of a device's discrete noise, in integers (cdp, dp-dsgd).",
        unit="sigma",
        default_text="8",
        section=Section.PRIVACY,
        needs="discrete",
    )
    honest: int | None = option(
        None,
        "Devices whose noise is in every sum and known to nobody else (dp-fedavg, distributed).",
        unit="devices",
        section=Section.PRIVACY,
    )
    colluding: int | None = again(
        ExposureOptions,
        "colluding",
        None,
        help="Devices that tell the server their noise (cdp, dp-dsgd).",
        default_text="0",
    )
    unit: float | None = option(
        None,
        "Factor by which values are scaled before they are rounded to integers (dp-fedavg, "
        "distributed).",
        unit="factor",
        section=Section.PRIVACY,
    )
    secagg: bool | None = option(
        None,
        "Whether the server learns only sums (cdp, dp-dsgd).",
        negative="no-secagg",
        default_text="secagg",
        section=Section.PRIVACY,
    )
    shuffle: str | None = again(
        PrivacyOptions,
        "shuffle",
        None,
        help="fresh: every round starts a new epoch; continuing: epochs continue, no record twice "
        "in a round (cdp, dp-dsgd).",
        choices=("fresh", "continuing"),
        default_text="fresh",
    )
    convex: bool | None = again(
        PrivacyOptions,
        "convex",
        None,
        help="Whether local steps with clipped gradients never expand distances: proven for linear "
        "models with one output or two classes and learning rates of at most 2 / smoothness, and "
        "false for softmax with more classes and for networks (cdp).",
        negative="non-convex",
        default_text="non-convex",
    )
    variant: str | None = again(
        PrivacyOptions,
        "variant",
        None,
        help="Who adds the noise: an aggregator, or every user (locks).",
        default_text="trusted",
    )
    fraction: float | None = option(
        None,
        "Fraction of its samples that an answer uses (fedsgd-dpc, Gaussian).",
        unit="fraction",
        default_text="1",
        section=Section.PRIVACY,
    )
    record_sampling: str | None = option(
        None,
        "How an answer's samples are drawn (fedsgd-dpc, Gaussian).",
        choices=("poisson", "fixed"),
        default_text="poisson",
        section=Section.PRIVACY,
    )
    exact_dropouts: bool | None = option(
        None,
        "Whether an exact number of a round's users drops out, so that one user more can make "
        "another one leave (dp-fedavg, Poisson; locks, trusted).",
        negative="independent-dropouts",
        default_text="independent-dropouts",
        section=Section.PRIVACY,
    )
    failure: float | None = option(
        None,
        "Probability, in a round, that an assumption about its sum fails, such as that a cohort "
        "holds as many honest survivors; taken off delta, for every round (cdp, dp-dsgd, "
        "dp-fedavg, locks).",
        unit="probability",
        default_text="0",
        section=Section.PRIVACY,
    )
