"""What an audit runs: a small instance of an algorithm, and how its runs depart from plan."""

from __future__ import annotations

from dataclasses import dataclass

from hpcfl.algorithms import federated
from hpcfl.errors import UsageError
from hpcfl.learning.private import epoch_steps
from hpcfl.options.privacy import PrivacyOptions
from hpcfl.rounds.dropouts import MODELS

# Settings that only some algorithms have.
_ONLY = {
    "samples": federated.NOISY,
    "batch": federated.NOISY,
    "steps": federated.NOISY,
    "shuffle": federated.NOISY,
    "aggregate": ("cdp", "dp-dsgd"),
    "secret_order": ("cdp", "dp-dsgd"),
    "mechanism": ("fedsgd-dpc",),
    "first_stage": ("locks",),
    "sigma_norms": ("locks",),
    "variant": ("locks",),
    "dropout": ("dp-fedavg", "locks"),
    "noise": ("dp-fedavg",),
    "absent": ("cdp", "dp-dsgd", "dp-fedavg"),
    "ranks": federated.NOISY,
}

# Multiples of the clipping norm that noise can be: beyond, accounts overflow.
_LEAST_NOISE, _MOST_NOISE = 1e-9, 1e9


@dataclass(frozen=True)
class Instance:
    """What is run; the settings are those of training, and small.

    Attributes
    ----------
    algorithm : str
        One of `federated.PRIVATE`.
    sigma : float
        The noise, as of `PrivacyOptions`; the clipping norm is 1.
    rounds, devices, per_round : int
        Rounds, devices, and devices in a round (locks: kept in a round).
    samples, batch, steps : int
        Samples of a device, in a batch, and steps of a round (not of user-level algorithms).
    delta : float
    aggregate : str
        ``"fedavg"``, every upload is seen, or ``"secagg"``, only sums.
    shuffle : str
        How a device goes through its data.
    secret_order : bool
        The observer does not know the order of a device's samples, which is another in every run.
        Else one is taken that uses some record often, and that is the canary.
    mechanism : str
        ``"gaussian"`` or ``"laplace"`` (fedsgd-dpc).
    sampling : str
        Who takes part, as of `Participation`.
    first_stage : int
        Users invited in a round (locks).
    sigma_norms : float, optional
        Noise of norms (locks).
    variant : str
        ``"trusted"`` or ``"local"`` (locks).
    replayed : int
        Rounds at the end that a launch that goes on from a checkpoint plays again; the observer
        sees both.
    resumes : int
        How often that happens, where there are such rounds.
    dropout : float
        Rate of the devices of a round that drop out (dp-fedavg with central noise, locks with a
        trusted server); all are in every round then.
    dropout_model : str
        ``"exact"`` or ``"bernoulli"``. Where it is exact, all others' updates are the opposite of
        the canary's, so that it shows who leaves.
    noise : str
        ``"central"`` or ``"distributed"`` (dp-fedavg).
    absent : int
        Devices that are unexpectedly missing from every sum.
    ranks : int
        Ranks that the devices are divided among (cdp, dp-dsgd, fedsgd-dpc). The observer takes an
        upload from another rank off the victim's, which shows nothing if their noise is apart.

    Raises
    ------
    UsageError
        If the settings do not go together, or cannot be audited.
    """

    algorithm: str
    sigma: float
    rounds: int = 1
    devices: int = 1
    per_round: int = 1
    samples: int = 1
    batch: int = 1
    steps: int = 1
    delta: float = 1e-5
    aggregate: str = "fedavg"
    shuffle: str = "fresh"
    secret_order: bool = False
    mechanism: str = "gaussian"
    sampling: str = "balanced"
    first_stage: int = 1
    sigma_norms: float | None = None
    variant: str = "local"
    replayed: int = 0
    resumes: int = 1
    dropout: float = 0.0
    dropout_model: str = "exact"
    noise: str = "central"
    absent: int = 0
    ranks: int = 1

    def __post_init__(self) -> None:
        if self.algorithm not in federated.PRIVATE:
            raise UsageError(
                f"{self.algorithm!r} promises no privacy; choose one of "
                f"{', '.join(federated.PRIVATE)}"
            )
        for name in ("rounds", "devices", "per_round", "samples", "batch", "steps"):
            if getattr(self, name) < 1:
                shown = "batch-size" if name == "batch" else name.replace("_", "-")
                raise UsageError(f"--{shown} is {getattr(self, name)}; it must be at least 1")
        if self.batch > self.samples:
            raise UsageError(f"--batch-size is {self.batch}; --samples are only {self.samples}")
        for name, algorithms in _ONLY.items():
            if self.algorithm not in algorithms and getattr(self, name) != getattr(Instance, name):
                shown = "batch-size" if name == "batch" else name.replace("_", "-")
                raise UsageError(
                    f"--{shown} is for {', '.join(algorithms)}, not for {self.algorithm}: "
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
        if self.algorithm == "dp-fedavg" and self.sampling == "balanced" and not self.distributed:
            raise UsageError(
                "dp-fedavg is audited with devices that are drawn anew for every round: give "
                "--sampling poisson, or exact"
            )
        if self.by_record and self.sampling == "poisson":
            raise UsageError(
                f"{self.algorithm} is audited with public participants: give --sampling balanced"
            )
        if self.secret_order and not (
            self.algorithm in ("cdp", "dp-dsgd")
            and self.shuffle == "fresh"
            and self.steps <= epoch_steps(self.samples, self.batch)
        ):
            raise UsageError(
                "--secret-order is for cdp and dp-dsgd with --shuffle fresh and at most an epoch "
                "of --steps: only there a round tells nothing of the next one's order"
            )
        if self.algorithm in ("cdp", "dp-dsgd") and self.shuffle == "poisson":
            raise UsageError(
                f"{self.algorithm} is accounted for shuffled epochs: give --shuffle fresh, or "
                "continuing"
            )
        self._check_rounds()
        _ = self.privacy  # refuses what is out of range
        for name in ("sigma", "sigma_norms"):
            noise = getattr(self, name)
            if noise is not None and not _LEAST_NOISE <= noise <= _MOST_NOISE:
                raise UsageError(
                    f"--{name.replace('_', '-')} is {noise:g}; an audit can have "
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
        if self.dropout_model not in MODELS:
            raise UsageError(f"--dropout-model is {self.dropout_model!r}; choose exact, bernoulli")
        by_number = self.sampling == "poisson" and not self.distributed
        trusted = self.algorithm == "dp-fedavg" or self.variant == "trusted"
        if self.dropout and not (
            by_number and trusted and self.per_round == self.invited == self.devices
        ):
            raise UsageError(
                "--dropout is for a trusted server and rounds of all devices: give --sampling "
                f"poisson, and --per-round (and --first-stage) {self.devices}"
            )
        if self.noise not in ("central", "distributed"):
            raise UsageError(f"--noise is {self.noise!r}; choose central, or distributed")
        summed = self.distributed or self.aggregate == "secagg"
        if not 0 <= self.absent < self.per_round or (self.absent and not summed):
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
    def distributed(self) -> bool:
        """Whether devices add noise to their integers, of which only sums are seen (dp-fedavg)."""
        return self.noise == "distributed"

    @property
    def invited(self) -> int:
        """Devices of a round, before any are kept."""
        return self.first_stage if self.algorithm == "locks" else self.per_round

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
        return self.algorithm in federated.NOISY

    @property
    def privacy(self) -> PrivacyOptions:
        """What training would be asked for."""
        locks = self.algorithm == "locks"
        return PrivacyOptions(
            sigma=self.sigma,
            delta=self.delta,
            mechanism=self.mechanism,
            shuffle=self.shuffle,
            convex=True,
            first_stage=self.first_stage if locks else None,
            variant=self.variant,
            sigma_norms=self.sigma_norms,
            noise=self.noise,
            fast_noise=self.ranks == 1,
        )

    @property
    def gaussian(self) -> bool:
        """Whether what is released is Gaussian given what the observer knows."""
        if self.algorithm == "fedsgd-dpc":
            return self.mechanism == "gaussian" and self.batch == self.samples
        if self.algorithm == "dp-fedavg":
            return self.per_round == self.devices and not self.dropout
        if self.algorithm == "locks":
            return self.variant == "local" and self.first_stage == self.devices
        return not self.secret_order


DEFAULTS = {
    # Of 50 records, an order uses one in both rounds; the paper counts 2 / 50 accesses of it.
    "cdp": Instance("cdp", sigma=1.25, rounds=2, samples=50),
    # The sum of a round has the noise of 2 devices; the paper counts that of all 16.
    "dp-dsgd": Instance(
        "dp-dsgd", sigma=0.6, rounds=8, devices=16, per_round=2, aggregate="secagg"
    ),
    # A small part of the samples: epsilon is far above what Theorem 2 holds for.
    "fedsgd-dpc": Instance("fedsgd-dpc", sigma=0.25, samples=20, shuffle="poisson"),
    "dp-fedavg": Instance(
        "dp-fedavg", sigma=0.6, rounds=4, devices=4, per_round=2, sampling="poisson"
    ),
    # A user adds its noise itself, and what replaces its data moves an update by twice the norm.
    "locks": Instance("locks", sigma=1.0, sigma_norms=4.0, sampling="poisson"),
}
"""An instance of every algorithm: where there is one, such that its paper claims too much."""
