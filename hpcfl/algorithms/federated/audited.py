"""What an algorithm declares for the audit of its noise, and the small instance that is run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcfl.algorithms import federated
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
from hpcfl.options.shared import CommonOptions, ProtocolOptions, SeedOptions
from hpcfl.options.training import TrainOptions
from hpcfl.report.formats import counted

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
    rounds: int = again(
        CommonOptions,
        "rounds",
        1,
        help="Rounds of a run.",
        at_least=1,
        **_SMALL,
    )
    devices: int = again(
        CommonOptions,
        "devices",
        1,
        help="Number of devices.",
        **_SMALL,
    )
    per_round: int = again(
        TrainOptions,
        "per_round",
        1,
        help="Devices in a round (locks: those kept).",
        at_least=1,
    )
    samples: int = again(CommonOptions, "samples", 1, **_SMALL)
    batch_size: int = again(
        TrainOptions,
        "batch_size",
        1,
        help="Samples in a batch.",
        at_least=1,
    )
    steps: int = again(
        TrainOptions,
        "steps",
        1,
        help="Local steps in a round.",
        at_least=1,
        **_SMALL,
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
    # The observer sees what both launches play.
    replayed: int = option(
        0,
        "Number of last rounds that later launches play again.",
        at_least=0,
        unit="rounds",
        section=Section.ADVANCED,
    )
    resumes: int = option(
        1,
        "Number of launches that play them again; one by default.",
        at_least=1,
        unit="launches",
        section=Section.ADVANCED,
        needs="replayed",
    )
    # Where their number is exact, all others' updates are the opposite of the canary's, so that it
    # shows who leaves.
    dropout: float = again(
        ProtocolOptions,
        "dropout",
        0.0,
        help="Fraction of all devices that drops out of every round.",
        why="",
    )
    dropout_model: str = again(ProtocolOptions, "dropout_model", "exact", needs="dropout")
    noise: str = again(PrivacyOptions, "noise", "central")
    absent: int = option(
        0,
        "Devices missing from every sum that were not planned to drop out.",
        at_least=0,
        unit="devices",
        section=Section.ADVANCED,
    )
    # The observer takes an upload from another rank off the victim's, which shows nothing if their
    # noise is apart.
    ranks: int = again(
        CommonOptions,
        "ranks",
        1,
        help="MPI ranks that play the devices; their noise must be independent.",
        at_least=1,
    )

    def __post_init__(self) -> None:
        _ = self.audited  # refuses what promises no privacy
        super().__post_init__()
        if self.batch_size > self.samples:
            raise UsageError(
                f"--batch-size is {self.batch_size}; --samples are only {self.samples}"
            )
        self.refuse_unused(
            name
            for name, about in options_of(Instance).items()
            if getattr(self, name) != about.default
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
        self._check_rounds()

    def refuse_unused(self, given: Iterable[str]) -> None:
        """Refuse what is given and the algorithm has not, whatever its value is."""
        for name in given:
            having = _having(name)
            if having and name not in self.audited.settings:
                raise UsageError(
                    f"--{name.replace('_', '-')} is for {', '.join(having)}, not for "
                    f"{self.algorithm}: leave it out"
                )

    def _check_rounds(self) -> None:
        """Refuse rounds that do not go as planned in ways that are not played."""
        if self.replayed > self.rounds:
            raise UsageError(
                f"--replayed is {self.replayed}; it must be from 0 to the "
                f"{counted(self.rounds, 'round')}"
            )
        by_number = self.sampling == "poisson" and not self.distributed
        if self.dropout and not (
            by_number
            and self.audited.trusted(self)
            and self.per_round == self.invited == self.devices
        ):
            raise UsageError(
                "--dropout is for a trusted server and rounds of all devices: give --sampling "
                f"poisson, and --per-round (and --first-stage) {self.devices}"
            )
        if self.absent >= self.per_round or (self.absent and not self.summed):
            raise UsageError(
                f"--absent is {self.absent}; of sums (--aggregate secagg, --noise distributed) it "
                f"can be 0 to {self.per_round - 1}"
            )
        if self.distributed and self.per_round != self.devices:
            raise UsageError(
                f"distributed noise is audited with all devices: give --per-round {self.devices}"
            )
        if self.ranks > self.devices:
            raise UsageError(f"--ranks is {self.ranks}; it must be from 1 to {self.devices}")
        if self.ranks > 1 and (self.aggregate == "secagg" or self.per_round != self.devices):
            raise UsageError(
                "--ranks is for uploads of all devices, which the observer compares: give "
                f"--aggregate fedavg, and --per-round {self.devices}"
            )

    @property
    def audited(self) -> Audited:
        """What the algorithm declares for its audit."""
        kind = federated.find_private(self.algorithm)
        if kind.audited is None:
            raise UsageError(f"{kind.name} does not declare how its noise is audited")
        return kind.audited

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
    def plays(self) -> int:
        """Rounds that are seen."""
        return self.rounds + self.replayed * self.resumes

    @property
    def opposed(self) -> bool:
        """Whether all others' updates are the opposite of the canary's."""
        return self.dropout > 0 and self.dropout_model == "exact"

    @property
    def by_record(self) -> bool:
        """Whether neighbours differ in a record, not in a user."""
        return self.audited.by_record

    @property
    def gaussian(self) -> bool:
        """Whether what is released is Gaussian given what the observer knows."""
        return self.audited.gaussian(self)

    @property
    def privacy(self) -> PrivacyOptions:
        """What training would be asked for."""
        return PrivacyOptions(
            sigma=self.sigma,
            delta=self.delta,
            mechanism=self.mechanism,
            shuffle=self.shuffle,
            convex=True,
            first_stage=self.first_stage,
            variant=self.variant,
            sigma_norms=self.sigma_norms,
            noise=self.noise,
            fast_noise=self.ranks == 1,
        )


@dataclass(frozen=True)
class Audited:
    """How the noise of an algorithm is audited, as its class declares it.

    The class also plays a round: :meth:`PrivateAlgorithm.audited_round`.

    Attributes
    ----------
    default : mapping
        Fields of an instance; where there is one, such that the paper claims too much.
    gaussian : callable
        Whether what an instance releases is Gaussian given what the observer knows.
    settings : tuple of str
        Those fields of an instance that not every algorithm has, and this one has.
    by_record : bool
        Whether neighbours differ in a record, not in a user.
    trusted : callable
        Whether an instance has a trusted server, so that the model is all that is seen.
    """

    default: Mapping[str, Any]
    gaussian: Callable[[Instance], bool]
    settings: tuple[str, ...] = ()
    by_record: bool = False
    trusted: Callable[[Instance], bool] = lambda instance: False


def _having(setting: str) -> list[str]:
    kinds = {name: federated.find_private(name).audited for name in federated.PRIVATE}
    return [name for name, audited in kinds.items() if audited and setting in audited.settings]


def default(algorithm: str, **changes: Any) -> Instance:
    """Return the instance that an algorithm declares, with some settings changed."""
    audited = federated.find_private(algorithm).audited
    declared = audited.default if audited else {"sigma": 1.0}
    made = make(Instance, {"algorithm": algorithm, **declared, **changes})
    made.refuse_unused(name for name, value in changes.items() if value is not None)
    return made
