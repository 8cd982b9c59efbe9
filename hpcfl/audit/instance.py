"""What an audit runs: a small instance of an algorithm, and what an algorithm declares for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcfl.algorithms import federated
from hpcfl.errors import UsageError
from hpcfl.options.privacy import PrivacyOptions

# Settings that an algorithm has only if it declares them.
_DECLARED = (
    *("samples", "batch", "steps", "shuffle", "aggregate", "secret_order", "mechanism"),
    *("first_stage", "sigma_norms", "variant", "dropout", "noise", "absent", "ranks"),
)

# Multiples of the clipping norm that noise can be: beyond, accounts overflow.
_LEAST_NOISE, _MOST_NOISE = 1e-9, 1e9


def _option(name: str) -> str:
    return "--batch-size" if name == "batch" else f"--{name.replace('_', '-')}"


@dataclass(frozen=True)
class Instance:
    """What is run; the settings are those of training, and small; the clipping norm is 1.

    Raises
    ------
    UsageError
        If the settings do not go together, or cannot be audited.
    """

    algorithm: str  # its name, or MODULE:CLASS
    sigma: float  # the noise, as of `PrivacyOptions`
    rounds: int = 1
    devices: int = 1
    per_round: int = 1  # locks: those that are kept
    samples: int = 1  # of a device
    batch: int = 1
    steps: int = 1  # of a round
    delta: float = 1e-5
    aggregate: str = "fedavg"  # every upload is seen, or by "secagg" only sums
    shuffle: str = "fresh"
    # The observer does not know the order of a device's samples, which is another in every run.
    # Else one is taken that uses some record often, and that is the canary.
    secret_order: bool = False
    mechanism: str = "gaussian"
    sampling: str = "balanced"  # who takes part, as of `Participation`
    first_stage: int = 1
    sigma_norms: float | None = None
    variant: str = "local"
    # Rounds at the end that a launch that goes on from a checkpoint plays again, so many times; the
    # observer sees all.
    replayed: int = 0
    resumes: int = 1
    # Rate of the devices that drop out. Where that is "exact", all others' updates are the opposite
    # of the canary's, so that it shows who leaves.
    dropout: float = 0.0
    dropout_model: str = "exact"
    noise: str = "central"
    absent: int = 0  # devices that are unexpectedly missing from every sum
    # Ranks that the devices are divided among. The observer takes an upload from another rank off
    # the victim's, which shows nothing if their noise is apart.
    ranks: int = 1

    def __post_init__(self) -> None:
        _ = self.audited  # refuses what promises no privacy
        for name in ("rounds", "devices", "per_round", "samples", "batch", "steps"):
            if getattr(self, name) < 1:
                raise UsageError(f"{_option(name)} is {getattr(self, name)}; it must be at least 1")
        if self.batch > self.samples:
            raise UsageError(f"--batch-size is {self.batch}; --samples are only {self.samples}")
        for name in _DECLARED:
            unused = name not in self.audited.settings
            if unused and getattr(self, name) != getattr(Instance, name):
                raise UsageError(
                    f"{_option(name)} is for {', '.join(_having(name))}, not for {self.algorithm}: "
                    "leave it out"
                )
        if self.aggregate not in ("fedavg", "secagg"):
            raise UsageError(
                f"--aggregate is {self.aggregate!r}; an audit sees all uploads (fedavg) or their "
                "sum (secagg)"
            )
        if self.mechanism == "laplace" and self.batch != self.samples:
            raise UsageError(
                f"Laplace noise is added to means over all samples: give --batch-size "
                f"{self.samples}, as many as --samples"
            )
        if self.by_record and self.sampling == "poisson":
            raise UsageError(
                f"{self.algorithm} is audited with public participants: give --sampling balanced"
            )
        if self.secret_order:
            from hpcfl.learning.private import epoch_steps

            if self.shuffle != "fresh" or self.steps > epoch_steps(self.samples, self.batch):
                raise UsageError(
                    "--secret-order is for cdp and dp-dsgd with --shuffle fresh and at most an "
                    "epoch of --steps: only there a round tells nothing of the next one's order"
                )
        _ = self.privacy  # refuses what is out of range
        self._check_rounds()
        for name in ("sigma", "sigma_norms"):
            noise = getattr(self, name)
            if noise is not None and not _LEAST_NOISE <= noise <= _MOST_NOISE:
                raise UsageError(
                    f"{_option(name)} is {noise:g}; an audit can have "
                    f"{_LEAST_NOISE:g} to {_MOST_NOISE:g}"
                )

    def _check_rounds(self) -> None:
        """Refuse rounds that do not go as planned in ways that are not played."""
        if not 0 <= self.replayed <= self.rounds:
            raise UsageError(
                f"--replayed is {self.replayed}; it must be from 0 to the {self.rounds} rounds"
            )
        if self.resumes < 1:
            raise UsageError(f"--resumes is {self.resumes}; it must be at least 1")
        if self.dropout_model not in ("exact", "bernoulli"):
            raise UsageError(f"--dropout-model is {self.dropout_model!r}; choose exact, bernoulli")
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
        if not 0 <= self.absent < self.per_round or (self.absent and not self.summed):
            raise UsageError(
                f"--absent is {self.absent}; of sums (--aggregate secagg, --noise distributed) it "
                f"can be 0 to {self.per_round - 1}"
            )
        if self.distributed and self.per_round != self.devices:
            raise UsageError(
                f"distributed noise is audited with all devices: give --per-round {self.devices}"
            )
        if not 1 <= self.ranks <= self.devices:
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
    secret : mapping
        Settings of the account that hold if nobody knows the order of a device's samples.
    """

    default: Mapping[str, Any]
    gaussian: Callable[[Instance], bool]
    settings: tuple[str, ...] = ()
    by_record: bool = False
    trusted: Callable[[Instance], bool] = lambda instance: False
    secret: Mapping[str, Any] = field(default_factory=dict)


def _having(setting: str) -> list[str]:
    kinds = {name: federated.find_private(name).audited for name in federated.PRIVATE}
    return [name for name, audited in kinds.items() if audited and setting in audited.settings]


def default(algorithm: str, **changes: Any) -> Instance:
    """Return the instance that an algorithm declares, with some settings changed."""
    audited = federated.find_private(algorithm).audited
    return Instance(algorithm, **{**(audited.default if audited else {"sigma": 1.0}), **changes})
