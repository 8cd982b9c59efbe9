"""Options of `hpcfl train`."""

import math
from pathlib import Path

from hpcfl.errors import UsageError
from hpcfl.options.definition import OptionGroup, option
from hpcfl.options.names import DATASETS
from hpcfl.options.privacy import PrivacyOptions
from hpcfl.options.shared import DEVICES, ROUNDS, RunOptions
from hpcfl.values import dataclass, field


@dataclass(frozen=True, kw_only=True)
class LocalOptions(OptionGroup):
    """Options of a device's training between two rounds of communication: SGD with momentum.

    Exactly one of `epochs` and `steps` is given. The steps take as many newly shuffled passes over
    the data as they need, and the velocity starts each round at zero.
    """

    heading = "Local training"

    epochs: int | None = option(
        5,
        "Local epochs per round.",
        at_least=1,
        default_text="5, without --steps",
        marks=("label",),
    )
    steps: int | None = option(
        None, "Local steps per round, instead of epochs.", at_least=1, marks=("label",)
    )
    batch_size: int = option(
        28,
        "Samples in a step; 0: all data of the device.",
        at_least=0,
        at_most=2**31 - 1,
        marks=("label",),
    )
    learning_rate: float = option(
        0.01, "Learning rate of the first round.", above=0, marks=("label",)
    )
    momentum: float = option(
        0.5,
        "Momentum of local training.",
        at_least=0,
        below=1,
        default_text="0.5; 0 with noisy steps",
        marks=("label",),
    )
    decay: float = option(
        1.0, "Per-round learning-rate decay, a factor.", above=0, at_most=1, marks=("label",)
    )
    weight_decay: float = 0.0
    # "sqrt" also divides the learning rate by the square root of the round's number, from 1.
    schedule: str = "decay"

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.epochs is None) == (self.steps is None):
            raise UsageError("give either --epochs or --steps, and not both")

    def rate(self, round_index: int) -> float:
        """Return the learning rate of a round."""
        rate = self.learning_rate * self.decay**round_index
        return rate / math.sqrt(round_index + 1) if self.schedule == "sqrt" else rate

    def divisor(self, samples: int) -> int:
        """Return the divisor of the sum of gradients in a private step of a device.

        It is the batch size, even if the device has fewer `samples`; `samples` for batch size 0.
        """
        return self.batch_size or max(1, samples)


@dataclass(frozen=True, kw_only=True)
class TrainOptions(LocalOptions, PrivacyOptions, RunOptions):
    """Options of `hpcfl train`; see ``hpcfl train --help``."""

    heading = "Options"
    algorithm: str = field(kw_only=False)
    aggregate: str = option(
        "fedavg",
        "Protocol that sums the updates: one of hpcfl bench's, or MODULE:CLASS.",
        marks=("unrecorded",),
    )
    devices: int | None = option(
        None,
        "Number of devices.",
        default_text="one on every rank but the server's, 100 in one process",
        **DEVICES,
    )
    dataset: str = option(
        "digits", "Data set; digits and synthetic need no files.", choices=tuple(DATASETS)
    )
    data_dir: Path | None = option(
        None, "Folder of the data sets.", default_text="$HPCFL_DATA", marks=("resumable",)
    )
    partition: str = option(
        "iid", "How data are divided among devices: iid, shards, two-digit, dirichlet:A or writer."
    )
    data_fraction: float = 1.0  # fraction of its data that every device uses
    model: str | None = option(
        None, "Model, or MODULE:FUNCTION.", default_text="one for the data set"
    )
    rounds: int = option(100, "Largest number of rounds.", marks=("resumable",), **ROUNDS)
    target_accuracy: float | None = option(
        None, "Stop at this accuracy on held-out data.", above=0, at_most=1, marks=("resumable",)
    )
    max_seconds: float | None = option(
        None, "Stop after the round that passes this time.", at_least=0, marks=("resumable",)
    )
    per_round: int | None = option(
        None, "Devices that take part in a round.", at_least=1, default_text="all", marks=("label",)
    )
    sampling: str = option(
        "exact",
        "Choose exactly --per-round devices at random in each round; each device independently, "
        "--per-round in expectation; or --per-round devices in turn.",
        choices=("exact", "poisson", "balanced"),
        default_text="exact; balanced with noisy steps; poisson for locks",
        marks=("label",),
    )
    server_learning_rate: float = option(
        1.0, "Learning rate of the server.", above=0, marks=("label",)
    )
    torch_device: str = "auto"  # where devices train, as torch names it; ranks share a GPU
    error_feedback: bool = option(
        False,
        "Add what a device has not sent to its next update (rand-k, top-k; fedavg with common).",
        marks=("label",),
    )
    # Options of benchmarks that training has little reason to set.
    scaling: str = "survivors"
    upload: str = "gather"
    dropout_model: str = "exact"
    dropout_phase: str | None = None
    security_bits: int = 40
    checkpoint_every: int | None = option(
        None,
        "Write a checkpoint next to the results file every EVERY rounds.",
        at_least=1,
        marks=("resumable",),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.error_feedback and (self.checkpoint_every is not None or self.resume is not None):
            raise UsageError(
                "--error-feedback does not go with checkpoints, which do not hold what each device "
                "has not sent yet: leave one of them out"
            )
