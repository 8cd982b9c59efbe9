"""The small instance of an algorithm that an audit runs, and what its observer sees."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcfl.algorithms import federated
from hpcfl.algorithms.federated.private import PrivateAlgorithm
from hpcfl.errors import UsageError
from hpcfl.options.definition import (
    LARGEST,
    OptionGroup,
    Section,
    again,
    described,
    make,
    option,
    options_of,
)
from hpcfl.options.privacy import PrivacyOptions
from hpcfl.options.shared import CommonOptions, SeedOptions
from hpcfl.options.training import TrainOptions

# An instance is played thousands of times, one device after the other.
_SMALL = {"at_most": 10_000, "why": "as an audit plays it on each of two datasets, --runs times"}
# Multiples of the clipping norm that noise can be: beyond, accounts overflow.
_NOISE = {"at_least": 1e-9, "at_most": 1e9, "why": "in clipping norms"}


@dataclass(frozen=True, kw_only=True)
class AuditOptions(OptionGroup):
    """How often an instance is run, and what follows from that."""

    runs: int = option(
        5000, "Runs on each dataset.", at_least=20, unit="runs", section=Section.SIZE
    )
    seed: int = again(SeedOptions, "seed", 0, help="Seed of all randomness.", at_most=LARGEST)
    confidence: float = option(
        0.99,
        "Confidence of each lower bound.",
        above=0,
        below=1,
        unit="probability",
        section=Section.ADVANCED,
    )


@dataclass(frozen=True, kw_only=True)
class Instance(OptionGroup):
    """What is run; the settings are those of training, and small; the clipping norm is 1.

    A UsageError says that the settings do not go together, or cannot be audited.
    """

    algorithm: str = field(kw_only=False)  # its name, or MODULE:CLASS
    sigma: float = field(
        kw_only=False,
        metadata=described(
            "Standard deviation (or Laplace scale) of the noise, as in hpcfl train; the clipping "
            "norm is 1.",
            **_NOISE,
            origin=options_of(PrivacyOptions)["sigma"].origin,
            unit="sigma",
            section=Section.PRIVACY,
        ),
    )
    rounds: int = again(CommonOptions, "rounds", 1, help="Rounds of a run.", at_least=1, **_SMALL)
    devices: int = again(CommonOptions, "devices", 1, help="Number of devices.", **_SMALL)
    per_round: int = again(
        TrainOptions, "per_round", 1, help="Devices in a round (locks: those kept).", at_least=1
    )
    samples: int = again(CommonOptions, "samples", 1, **_SMALL)
    batch_size: int = again(TrainOptions, "batch_size", 1, help="Samples in a batch.", at_least=1)
    steps: int = again(
        TrainOptions, "steps", 1, help="Local steps in a round.", at_least=1, **_SMALL
    )
    delta: float = again(PrivacyOptions, "delta", 1e-5, help="Delta of all epsilons.")
    aggregate: str = again(
        TrainOptions,
        "aggregate",
        "fedavg",
        help="Whether the server sees every upload, or only sums (cdp, dp-dsgd).",
        choices=("fedavg", "secagg"),
    )
    shuffle: str = again(PrivacyOptions, "shuffle", "fresh")
    mechanism: str = again(
        PrivacyOptions, "mechanism", "gaussian", help="Kind of noise (fedsgd-dpc)."
    )
    sampling: str = again(
        TrainOptions, "sampling", "balanced", help="How the devices of a round are drawn."
    )
    first_stage: int = again(
        PrivacyOptions, "first_stage", 1, help="Users invited in a round (locks)."
    )
    sigma_norms: float | None = again(
        PrivacyOptions, "sigma_norms", None, help="Noise on norms (locks).", **_NOISE, above=None
    )
    variant: str = again(PrivacyOptions, "variant", "local")
    noise: str = again(PrivacyOptions, "noise", "central")

    def __post_init__(self) -> None:
        super().__post_init__()
        defaults = options_of(Instance)
        self.refuse_unused(
            name for name in defaults if getattr(self, name) != defaults[name].default
        )
        if self.batch_size > self.samples:
            raise UsageError(
                f"--batch-size is {self.batch_size}; --samples are only {self.samples}"
            )
        if self.mechanism == "laplace" and self.batch_size != self.samples:
            raise UsageError(
                f"Laplace noise is added to means over all samples: give --batch-size "
                f"{self.samples}, as many as --samples"
            )
        if self.by_record and self.sampling == "poisson":
            raise UsageError(
                f"{self.algorithm} is audited with public participants: give --sampling balanced"
            )
        if self.distributed and self.per_round != self.devices:
            raise UsageError(
                f"distributed noise is audited with all devices: give --per-round {self.devices}"
            )

    def refuse_unused(self, given: Iterable[str]) -> None:
        """Refuse settings that are given and the algorithm has not, whatever their values are."""
        for name in given:
            having = [other for other, kind in KINDS.items() if name in kind.settings]
            if having and name not in self.kind.settings:
                raise UsageError(
                    f"--{name.replace('_', '-')} is for {', '.join(having)}, not for "
                    f"{self.algorithm}: leave it out"
                )

    @property
    def kind(self) -> Kind:
        """How the algorithm is audited."""
        return kind_of(federated.find_private(self.algorithm))

    @property
    def by_record(self) -> bool:
        """Whether neighbours differ in a record, not in a user."""
        return "samples" in self.kind.settings

    @property
    def gaussian(self) -> bool:
        """Whether what is released is Gaussian given what the observer knows."""
        return self.kind.gaussian(self)

    @property
    def distributed(self) -> bool:
        """Whether devices add noise to their integers, of which only sums are seen."""
        return self.noise == "distributed"

    @property
    def summed(self) -> bool:
        """Whether the observer sees sums of uploads only."""
        return self.distributed or self.aggregate == "secagg"

    @property
    def invited(self) -> int:
        """Devices of a round, before any are kept."""
        kind = federated.find_private(self.algorithm)
        return kind.invited(self.per_round, self.devices, self.privacy)

    @property
    def privacy(self) -> PrivacyOptions:
        """What training would be asked for."""
        names = ("sigma", "delta", "mechanism", "shuffle", "first_stage", "variant")
        given = {name: getattr(self, name) for name in (*names, "sigma_norms", "noise")}
        return PrivacyOptions(**given, convex=True, fast_noise=True)


@dataclass(frozen=True)
class Kind:
    """How algorithms of a kind are audited."""

    default: Mapping[str, Any]  # fields of an instance; where possible the paper claims too much
    gaussian: Callable[[Instance], bool]
    settings: tuple[str, ...] = ()  # fields of an instance that not every algorithm has


_BY_RECORD = ("samples", "batch_size", "steps", "shuffle")
_NOISY_STEPS = (*_BY_RECORD, "aggregate")
KINDS = {
    # Of 50 records, an order uses one in both rounds; the paper counts 2 / 50 accesses of it.
    "cdp": Kind({"sigma": 1.25, "rounds": 2, "samples": 50}, lambda one: True, _NOISY_STEPS),
    # The sum of a round has the noise of 2 devices; the paper counts that of all 16.
    "dp-dsgd": Kind(
        {"sigma": 0.6, "rounds": 8, "devices": 16, "per_round": 2, "aggregate": "secagg"},
        lambda one: True,
        _NOISY_STEPS,
    ),
    # A small part of the samples: epsilon is far above what Theorem 2 holds for.
    "fedsgd-dpc": Kind(
        {"sigma": 0.25, "samples": 20, "shuffle": "poisson"},
        lambda one: one.mechanism == "gaussian" and one.batch_size == one.samples,
        (*_BY_RECORD, "mechanism"),
    ),
    "dp-fedavg": Kind(
        {"sigma": 0.6, "rounds": 4, "devices": 4, "per_round": 2, "sampling": "poisson"},
        lambda one: one.per_round == one.devices,
        ("noise",),
    ),
    # A user adds its noise itself, and what replaces its data moves an update by twice the norm.
    "locks": Kind(
        {"sigma": 1.0, "sigma_norms": 4.0, "sampling": "poisson"},
        lambda one: False,
        ("first_stage", "sigma_norms", "variant"),
    ),
}
"""By the name of an algorithm; one's own is of the kind of the class that it derives from."""

_OF_ONES_OWN = Kind(
    {"sigma": 1.0, "rounds": 2, "devices": 2, "per_round": 2},
    lambda one: one.per_round == one.devices,
)


def kind_of(algorithm: type[PrivateAlgorithm]) -> Kind:
    """Return how an algorithm is audited: without a better kind, as noise on a sum over users."""
    names = [getattr(base, "name", "") for base in algorithm.__mro__]
    return next((KINDS[name] for name in names if name in KINDS), _OF_ONES_OWN)


def default(algorithm: str, **changes: Any) -> Instance:
    """Return the instance of an algorithm that is run by default, with some settings changed."""
    declared = kind_of(federated.find_private(algorithm)).default
    made = make(Instance, {"algorithm": algorithm, **declared, **changes})
    made.refuse_unused(name for name, value in changes.items() if value is not None)
    return made
