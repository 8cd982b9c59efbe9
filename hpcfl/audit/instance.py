"""The small instance of an algorithm that an audit runs, and its observer's view."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcfl.algorithms import federated
from hpcfl.algorithms.federated.private import PrivateAlgorithm
from hpcfl.errors import UsageError
from hpcfl.options.definition import OptionGroup, again, described, make, option
from hpcfl.options.privacy import PrivacyOptions
from hpcfl.options.training import TrainOptions
from hpcfl.values import dataclass, field, fields

# Instances are small, because one runs thousands of times, one device after the other.
_SMALL: dict[str, Any] = {"at_least": 1, "at_most": 10_000}


@dataclass(frozen=True, kw_only=True)
class Instance(OptionGroup):
    """The settings of the runs: small settings of training, with the clipping norm 1.

    Raise UsageError if the settings are incompatible, or cannot be audited.
    """

    algorithm: str = field(kw_only=False)  # name, or MODULE:CLASS
    sigma: float = field(
        kw_only=False,
        metadata=described(
            "Standard deviation (or Laplace scale) of the noise, as in hpcfl train; the clipping "
            "norm is 1.",
            at_least=1e-9,  # in clipping norms; accounts overflow outside these limits
            at_most=1e9,
        ),
    )
    rounds: int = option(1, "Rounds of a run.", **_SMALL)
    devices: int = option(1, "Number of devices.", **_SMALL)
    per_round: int = again(TrainOptions, "per_round", 1, help="Devices in a round.")
    samples: int = option(1, "Samples of a device.", **_SMALL)
    batch_size: int = again(TrainOptions, "batch_size", 1, help="Samples in a batch.", at_least=1)
    steps: int = again(TrainOptions, "steps", 1, help="Local steps in a round.", **_SMALL)
    shuffle: str = again(PrivacyOptions, "shuffle", "fresh")
    mechanism: str = again(
        PrivacyOptions, "mechanism", "gaussian", help="Kind of noise (fedsgd-dpc)."
    )
    noise: str = "central"  # added by the server, or by the devices ("distributed")
    delta: float = 1e-5  # for all epsilons
    # The server sees every upload ("fedavg") or only sums ("secagg").
    aggregate: str = "fedavg"
    sampling: str = "balanced"  # method of drawing the devices of a round

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.algorithm == "locks":
            raise UsageError("locks cannot be audited: its users are kept by their norms")
        for one in fields(Instance):
            having = [other for other, kind in KINDS.items() if one.name in kind.settings]
            given = getattr(self, one.name) != one.default
            if given and having and one.name not in self.kind.settings:
                raise UsageError(
                    f"--{one.name.replace('_', '-')} is for {', '.join(having)}, not for "
                    f"{self.algorithm}: leave it out"
                )
        if self.batch_size > self.samples:
            raise UsageError(
                f"--batch-size is {self.batch_size}; --samples are only {self.samples}"
            )
        if self.by_record and self.sampling == "poisson":
            raise UsageError(
                f"the audit of {self.algorithm} assumes that participants are public: give "
                "--sampling balanced"
            )

    @property
    def kind(self) -> Kind:
        """The kind of the algorithm's audit."""
        return kind_of(federated.find_private(self.algorithm))

    @property
    def by_record(self) -> bool:
        """Whether neighbouring datasets differ in a record rather than a user."""
        return "samples" in self.kind.settings

    @property
    def gaussian(self) -> bool:
        """Whether the released results are Gaussian given the observer's knowledge."""
        if self.by_record:
            sampled = self.shuffle == "poisson" and self.batch_size < self.samples
            return self.mechanism == "gaussian" and not sampled
        return self.per_round == self.devices

    @property
    def distributed(self) -> bool:
        """Whether devices add noise to their integers, so that the observer only sees sums."""
        return self.noise == "distributed"

    @property
    def summed(self) -> bool:
        """Whether the observer sees only sums of uploads."""
        return self.distributed or self.aggregate == "secagg"

    @property
    def privacy(self) -> PrivacyOptions:
        """What training would be asked for."""
        names = ("sigma", "delta", "mechanism", "shuffle", "noise")
        given = {name: getattr(self, name) for name in names}
        return PrivacyOptions(**given, convex=True, fast_noise=True)


@dataclass(frozen=True)
class Kind:
    """The way in which algorithms of a kind are audited."""

    default: Mapping[str, Any]  # fields of the default instance; it refutes the paper if possible
    settings: tuple[str, ...] = ()  # fields of an instance that only some algorithms have


_BY_RECORD = ("samples", "batch_size", "steps", "shuffle")
_NOISY_STEPS = (*_BY_RECORD, "aggregate")
# By name of an algorithm; a user's algorithm has the kind of its base class.
KINDS = {
    # Some order of 50 records uses one in both rounds; the paper counts 2 / 50 uses of it.
    "cdp": Kind({"sigma": 1.25, "rounds": 2, "samples": 50}, _NOISY_STEPS),
    # The sum of a round has the noise of 2 devices; the paper counts the noise of all 16.
    "dp-dsgd": Kind(
        {"sigma": 0.6, "rounds": 8, "devices": 16, "per_round": 2, "aggregate": "secagg"},
        _NOISY_STEPS,
    ),
    # A small fraction of the samples: epsilon is far above the range of Theorem 2.
    "fedsgd-dpc": Kind(
        {"sigma": 0.25, "samples": 20, "shuffle": "poisson"}, (*_BY_RECORD, "mechanism")
    ),
    "dp-fedavg": Kind(
        {"sigma": 0.6, "rounds": 4, "devices": 4, "per_round": 2, "sampling": "poisson"}, ("noise",)
    ),
}
_OF_ONES_OWN = Kind({"sigma": 1.0, "rounds": 2, "devices": 2, "per_round": 2})


def kind_of(algorithm: type[PrivateAlgorithm]) -> Kind:
    """Return the kind of an algorithm; the fallback is noise on a sum over users."""
    names = [getattr(base, "name", "") for base in algorithm.__mro__]
    return next((KINDS[name] for name in names if name in KINDS), _OF_ONES_OWN)


def default(algorithm: str, **changes: Any) -> Instance:
    """Return an algorithm's default instance, with some settings changed."""
    declared = kind_of(federated.find_private(algorithm)).default
    return make(Instance, {"algorithm": algorithm, **declared, **changes})
