"""A test of the noise: how well what is released tells two neighbouring datasets apart.

A small instance of an algorithm is run many times on each of two neighbouring datasets. Rates of
error below what (epsilon, delta)-differential privacy allows are evidence against that epsilon
(Jagielski, Ullman and Oprea 2020, "Auditing differentially private machine learning"): with a rate
TPR of runs on the one that are recognised, and FPR of runs on the other that are taken for it,

    TPR <= exp(epsilon) FPR + delta.

The threshold is chosen on one half of the runs, the rates are bounded on the other (Clopper and
Pearson 1934). The bound holds whatever the mechanism is. For Gaussian noise the rates bound
mu >= Phi^-1(TPR) - Phi^-1(FPR), which is converted to epsilon exactly and needs far fewer runs
(Nasr et al. 2023, "Tight auditing of differentially private machine learning"); for any other
mechanism that conversion proves nothing. Where the observer sees by something else, which is no
likelier on the one dataset, whether the canary is sent at all, it counts only the runs in which it
is: with their part P of all runs, (epsilon, delta) is no less than (epsilon, delta / P) of them.

The datasets differ in a canary: a record, or a user's data, whose gradient is clipped, in
coordinates that nothing else touches. Data and model are made for that; batches, clipping, noise,
contributions, quantisation and the server's step are those of training. Secure aggregation is
played by the sum of its integers, which is all that it lets the server see. The observer knows all
data but the canary, all settings, and who takes part; it knows a device's order of samples or not,
as the instance says.

What does not go as planned is played too: rounds that a killed launch has played and the next one
plays again, of which the observer sees both; devices that are missing from a sum, by a model of
dropouts or unexpectedly; devices on several ranks, which must not have the same noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms import aggregation, federated
from hpcfl.algorithms.aggregation.base import (
    TRAINING,
    Aggregate,
    AggregationProtocol,
    QuantisedProtocol,
)
from hpcfl.algorithms.federated.base import Federation, Spent, Vector
from hpcfl.algorithms.federated.dpfedavg import DPFedAvg
from hpcfl.algorithms.federated.locks import Locks
from hpcfl.algorithms.federated.noisysgd import NoisyGradients
from hpcfl.algorithms.federated.participation import Participation
from hpcfl.algorithms.federated.privacy import PrivacyOptions
from hpcfl.algorithms.federated.private import (
    PrivateAlgorithm,
)
from hpcfl.algorithms.noise import insecure_noise
from hpcfl.algorithms.parameters import Parameters
from hpcfl.errors import UsageError
from hpcfl.learning.private import batches, epoch_steps
from hpcfl.learning.training import LocalOptions
from hpcfl.privacy.accounting import systems
from hpcfl.privacy.accounting.guarantee import REPLACE_RECORD, REPLACE_USER, Account
from hpcfl.rounds.dropouts import MODELS, DropoutSchedule

if TYPE_CHECKING:
    from hpcfl.learning.training import Trainer

Floats = NDArray[np.float64]

# Of the two classes' weights for two features: those of the canary's feature.
_DIM, _CANARY = 4, [0, 2]

# Gradients are this much longer than they are clipped to, so that a model that moves a little
# leaves them clipped.
_SLACK = 8.0

# How far noise moves the model in all, so that the canary's gradient changes little.
_MOVED = 0.01

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

# Orders of samples that are tried for one that uses a record often, and their samples in all.
_ORDERS, _ORDERED = 20000, 10**7

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


@dataclass(frozen=True)
class Bound:
    """A lower bound on epsilon, and the test that gives it.

    Attributes
    ----------
    epsilon : float
    true_positives, false_positives : int
        Of `runs` runs on each dataset, those beyond the threshold.
    runs : int
    threshold : float
        Of the statistic, natural logarithms.
    mu : float, optional
        Lower bound on mu, where epsilon comes of it.
    part : float
        Lower bound on the part of the runs that count.
    """

    epsilon: float
    true_positives: int
    false_positives: int
    runs: int
    threshold: float
    mu: float | None = None
    part: float = 1.0


@dataclass(frozen=True)
class Audit:
    """What came of an audit.

    Attributes
    ----------
    instance : Instance
    neighbours, paper_neighbours : str
        In what the datasets differ, here and where it is proven, and by the paper's claim.
    accesses : tuple of int
        How often the canary is used in every round that its device is in; empty where it is by
        chance.
    delta : float
        What all values are at; 0 for Laplace noise.
    paper, proven : float
        The accounts' epsilons.
    measured : Bound
        For any mechanism.
    gaussian : Bound or None
        By way of mu, where the noise is Gaussian.
    confidence : float
        With which each bound holds.
    """

    instance: Instance
    neighbours: str
    paper_neighbours: str
    accesses: tuple[int, ...]
    delta: float
    paper: float
    proven: float
    measured: Bound
    gaussian: Bound | None
    confidence: float

    @property
    def best(self) -> float:
        """The larger of the lower bounds."""
        return max(self.measured.epsilon, 0.0 if self.gaussian is None else self.gaussian.epsilon)

    @property
    def agrees(self) -> bool:
        """Whether no lower bound is above the proven value."""
        return self.best <= self.proven

    @property
    def exceeds_paper(self) -> bool:
        """Whether a lower bound is above the paper's value."""
        return self.best > self.paper

    def as_dict(self) -> dict[str, Any]:
        """Return the audit for JSON, an infinite epsilon as None."""
        finite = {
            name: value if math.isfinite(value) else None
            for name, value in (("paper", self.paper), ("proven", self.proven))
        }
        return {
            **asdict(self),
            **finite,
            "agrees": self.agrees,
            "exceeds_paper": self.exceeds_paper,
        }


def audit(instance: Instance, runs: int, seed: int = 0, confidence: float = 0.99) -> Audit:
    """Run an instance on two neighbouring datasets, and bound epsilon from below.

    Parameters
    ----------
    instance : Instance
        What is run.
    runs : int
        Runs on each dataset, at least 20; one half chooses the threshold.
    seed : int
        Of all randomness; the same gives the same result.
    confidence : float
        Above 0 and below 1, for each of the bounds.

    Raises
    ------
    UsageError
        If an option is out of range, or does not go with the algorithm.
    HpcflError
        If the account needs a package that is not installed.
    """
    if runs < 20:
        raise UsageError(f"--runs is {runs}; it must be at least 20")
    if not 0 < confidence < 1:
        raise UsageError(f"--confidence is {confidence}; it must be above 0 and below 1")
    if not 0 <= seed < 2**63:
        raise UsageError(f"--seed is {seed}; it must be from 0 to 2**63 - 1")
    game = Game(instance, seed)
    spent = game.account()
    without, with_ = (
        np.array([game.play(canary, run) for run in range(runs)]) for canary in (False, True)
    )
    return Audit(
        instance,
        game.neighbours,
        game.paper_neighbours,
        game.accesses,
        game.delta,
        spent.paper,
        spent.proven,
        lower_bound(without[:, 0], with_[:, 0], game.delta, confidence),
        _where_sent(without, with_, game.delta, confidence) if instance.gaussian else None,
        confidence,
    )


class Game:
    """Runs an instance with the canary and with what its neighbour has instead.

    Parameters
    ----------
    instance : Instance
    seed : int

    Attributes
    ----------
    accesses, delta, neighbours, paper_neighbours
        As of `Audit`.

    Raises
    ------
    UsageError
        If the settings do not go together.
    """

    def __init__(self, instance: Instance, seed: int) -> None:
        self.instance = instance
        self._seed = seed
        self._schedule = self._participation(seed)
        times = self._schedule.before(instance.plays)
        self._victim = int(times.argmax())
        federation = self._federation(self._schedule, seed)
        kind = federated.find(instance.algorithm)
        kind.check(federation, instance.privacy)
        self._algorithm = self._make(federation)
        found = self._account()
        self.delta, self.neighbours = found.proven.delta, found.proven.adjacency
        self.paper_neighbours = found.paper.adjacency
        self._replaced = self.neighbours in (REPLACE_RECORD, REPLACE_USER)
        self._position, self._order = 0, seed
        self.accesses: tuple[int, ...] = ()
        if instance.by_record and instance.shuffle != "poisson" and not instance.secret_order:
            self._position, self._order, self.accesses = self._worst_record(int(times.max()))
        self._trainer = self._make_trainer()

    def account(self) -> Spent:
        """Return what the accounts say of all rounds that are seen."""
        instance = self.instance
        algorithm = self._make(self._algorithm.federation)
        if instance.replayed:
            self._go_on(algorithm, instance.resumes)
        for _ in range(instance.replayed or instance.rounds):
            algorithm.observe(instance.per_round - instance.absent)
        spent = algorithm.spent(instance.plays)
        if instance.secret_order and instance.aggregate == "fedavg":
            amplified = self._account(secret_shuffle=True)
            spent = replace(spent, proven=amplified.proven.epsilon)
        return spent

    def _account(self, **more: Any) -> Account:
        name, rounds = self.instance.algorithm, self.instance.plays
        settings = self._algorithm.account_settings(rounds, self.instance.sigma) | more
        return systems.account(name, **settings)

    def _go_on(self, algorithm: PrivateAlgorithm, launch: int) -> None:
        """Let a launch go on from the checkpoint after which those before played in vain."""
        instance = self.instance
        survivors = [instance.per_round - instance.absent] * (instance.rounds - instance.replayed)
        algorithm.resume(survivors, instance.replayed * launch)

    def play(self, canary: bool, run: int) -> tuple[float, bool]:
        """Return what is seen of one run.

        Returns
        -------
        score : float
            Log-likelihood ratio, large for a run with the canary.
        sent : bool
            Whether the observer sees in every round that the canary, or what its neighbour has
            instead, may be in what is released.
        """
        seeds = np.random.SeedSequence(self._seed, spawn_key=(run, int(canary)))
        seed = int(seeds.generate_state(1, np.uint64)[0])
        # Chance that protects is drawn anew for every run; a public schedule is what it is.
        secret = not self.instance.by_record
        participation = self._participation(seed) if secret else self._schedule
        federation = self._federation(participation, seed)
        rounds, again = self.instance.rounds, self.instance.replayed
        checkpoint = np.zeros(_DIM, np.float32)
        score, sent = 0.0, True
        for launch in range(1 + (self.instance.resumes if again else 0)):
            ranks = [self._make(federation) for _ in range(self.instance.ranks)]
            if launch:
                self._go_on(ranks[0], launch)
            model = checkpoint.copy()
            for index in range(rounds - again if launch else 0, rounds):
                if index == rounds - again:
                    checkpoint = model.copy()
                more = self._round(ranks, index, model, canary, seed)
                score, sent = score + (more or 0.0), sent and more is not None
        return score, sent

    def _round(
        self,
        ranks: list[PrivateAlgorithm],
        index: int,
        model: Vector,
        canary: bool,
        seed: int,
    ) -> float | None:
        """Play a round; move the model and return the round's score, None if nothing is sent."""
        algorithm = ranks[0]
        if isinstance(algorithm, NoisyGradients):
            return self._noisy_round(ranks, index, model, canary, seed)
        if isinstance(algorithm, Locks):
            return self._locks_round(algorithm, index, model, canary, seed)
        assert isinstance(algorithm, DPFedAvg)
        return self._dp_fedavg_round(algorithm, index, model, canary, seed)

    def _noisy_round(
        self, ranks: list[PrivateAlgorithm], index: int, model: Vector, canary: bool, seed: int
    ) -> float:
        """Play a round of a record-level algorithm; move the model and return the round's score.

        A round without the canary's device tells nothing of it.
        """
        instance = self.instance
        algorithm = ranks[0]
        assert isinstance(algorithm, NoisyGradients)
        participants = algorithm.participants(index)
        if self._victim not in participants:
            return 0.0
        eta = self._trainer.options.rate(index)
        summed = instance.aggregate == "secagg"
        present = self._present(participants)
        other = next((id for id in participants if self._rank(id) != self._rank(self._victim)), -1)
        seen = present if summed else [self._victim, *([other] if instance.ranks > 1 else [])]
        updates = {}
        for id in seen:
            learn = self._learn(id, index, model, canary, seed)
            updates[id] = ranks[self._rank(id)].contribution(id, index, model[:0], learn)
        total: Floats = np.stack(list(updates.values())).sum(axis=0, dtype=np.float64)
        if summed:
            total = self._integer_sum(algorithm, updates, participants, index)
        model -= (total / len(seen)).astype(np.float32)
        if instance.ranks > 1:
            # In the canary's coordinates, the other device has nothing but its noise.
            total = updates[self._victim].astype(np.float64) - updates[other]
        std = instance.sigma * math.sqrt(instance.steps * len(seen))
        if instance.shuffle == "poisson" or instance.secret_order:
            chance, times = instance.steps * instance.batch / instance.samples, 1
        else:
            turn = algorithm.participations(self._victim, index)
            chance, times = 1.0, self.accesses[turn]
        return self._ratio(total / eta, times / instance.batch, std, chance)

    def _rank(self, id: int) -> int:
        """Return the rank of a device, of those that have devices."""
        return id * self.instance.ranks // self.instance.devices

    def _present(self, participants: list[int]) -> list[int]:
        """Return who of a round is in the sum: all but those that are unexpectedly missing."""
        others = [id for id in participants if id != self._victim]
        missing = others[: self.instance.absent]
        return [id for id in participants if id not in missing]

    def _integer_sum(
        self,
        algorithm: PrivateAlgorithm,
        updates: dict[int, NDArray[np.floating]],
        participants: list[int],
        index: int,
    ) -> Floats:
        """Return the sum of vectors as a protocol that sums integers has it, noise included."""
        protocol = self._protocol()
        assert isinstance(protocol, QuantisedProtocol)
        noise = algorithm.integer_noise(protocol, index)
        if noise is not None:
            protocol.add_noise(noise)
        integers = [
            protocol.quantise(update, participants.index(id), index)
            for id, update in updates.items()
        ]
        return protocol.decode(np.sum(integers, axis=0)) * len(participants)

    def _dp_fedavg_round(
        self, algorithm: DPFedAvg, index: int, model: Vector, canary: bool, seed: int
    ) -> float:
        """Play a round of `dp-fedavg`; move the model and return the round's score."""
        instance = self.instance
        participants = self._there(algorithm.participants(index), canary)
        updates: dict[int, NDArray[np.floating]] = {}
        for id in self._present(participants):
            learn = self._learn(id, index, model, canary, seed)
            updates[id] = algorithm.contribution(id, index, model[:0], learn)
        if instance.distributed:
            total = self._integer_sum(algorithm, updates, participants, index)
            model -= (total / instance.per_round).astype(np.float32)
            std = instance.sigma * math.sqrt(len(updates) / instance.per_round)
            return self._ratio(total, 1.0, std, 1.0)
        total = self._summed(updates, algorithm.play_index(index), seed)
        mean = total / max(1, len(participants))
        moved = algorithm.update(Aggregate(mean, 1.0, 1.0), model[:0], participants, index)
        model -= moved.astype(np.float32)
        seen = moved * instance.per_round * (1 - instance.dropout)
        if instance.opposed:
            return self._crowd_ratio(seen)
        chance = instance.per_round / instance.devices * (1 - instance.dropout)
        return self._ratio(seen, 1.0, instance.sigma, chance)

    def _there(self, participants: list[int], canary: bool) -> list[int]:
        """Return a round's participants: without the canary, its user is not there, or replaced."""
        if canary or self._replaced or self.instance.distributed:
            return participants
        return [id for id in participants if id != self._victim]

    def _summed(self, updates: dict[int, NDArray[np.floating]], play: int, seed: int) -> Floats:
        """Return the sum of the updates of those who do not drop out."""
        instance = self.instance
        schedule = DropoutSchedule(
            len(updates), instance.dropout, instance.dropout_model, "upload", seed
        )
        dropped = schedule.draw(play)
        total = np.zeros(_DIM)
        for slot, update in enumerate(updates.values()):
            if slot not in dropped:
                total += update
        return total

    def _crowd_ratio(self, seen: Floats) -> float:
        """Return the log-likelihood ratio of a sum in which all others oppose the canary.

        With the canary it is one more who drops out, or as many; among them is the canary, or not.
        """
        instance, others = self.instance, self.instance.devices - 1
        along = (seen[_CANARY[1]] - seen[_CANARY[0]]) / math.sqrt(2)

        def log_density(sum_: float) -> float:
            return -(((along - sum_) / instance.sigma) ** 2) / 2

        def dropped(devices: int) -> int:
            schedule = DropoutSchedule(devices, instance.dropout, "exact", "upload", 0)
            return len(schedule.draw(0))

        there = log_density(1.0 - (others - dropped(others + 1)))
        gone = dropped(others + 1) / (others + 1)
        if gone:
            absent = log_density(-float(others - dropped(others + 1) + 1))
            there = float(np.logaddexp(math.log1p(-gone) + there, math.log(gone) + absent))
        return there - log_density(-float(others - dropped(others)))

    def _locks_round(
        self, algorithm: Locks, index: int, model: Vector, canary: bool, seed: int
    ) -> float | None:
        """Play a round of `locks`; move the model and return its score, None if nothing is sent."""
        instance = self.instance
        updates, devices = {}, {}
        server = algorithm.first_stage_server(index, model)
        for id in self._there(algorithm.participants(index), canary):
            learn = self._learn(id, index, model, canary, seed)
            updates[id] = algorithm.contribution(id, index, model[:0], learn)
            devices[id] = algorithm.first_stage_device(id, index, _DIM)
            server.receive_norms(id, devices[id].send_norms(updates[id]))
        server.finish_norms()
        sent = {}
        for id, device in devices.items():
            device.receive_norms(server.send_norms(id))
            if device.kept:
                sent[id] = device.kept_update(updates[id])
        mean = self._summed(sent, algorithm.play_index(index), seed) / max(1, len(sent))
        moved = algorithm.update(Aggregate(mean, 1.0, 1.0), model[:0], list(sent), index)
        model -= moved.astype(np.float32)
        if instance.variant == "local":
            if self._victim not in sent:
                return None
            own = sent[self._victim].astype(np.float64) / server.factors[self._victim]
            return self._ratio(own, 1.0, instance.sigma, 1.0)
        # Scaled to the norm 1, an update is in the sum if its user is invited, and then kept.
        kept = min(1.0, 1 / algorithm.scale)
        chance = instance.first_stage / instance.devices * kept
        scaled = moved * instance.first_stage * (1 - instance.dropout) / algorithm.scale
        if instance.opposed:
            return self._crowd_ratio(scaled)
        return self._ratio(scaled, 1.0, instance.sigma, chance * (1 - instance.dropout))

    def _ratio(self, seen: Floats, length: float, noise: float, chance: float) -> float:
        """Return the log-likelihood ratio of the canary's coordinates, seen with noise.

        Parameters
        ----------
        seen : ndarray of float64, shape (d,)
        length : float
            Norm of what the canary adds.
        noise : float
            Standard deviation, or scale of Laplace noise.
        chance : float
            With which it adds anything.
        """
        values = seen[_CANARY]
        laplace = self.instance.mechanism == "laplace"
        shift = length * np.array([-1.0, 1.0]) / (2.0 if laplace else math.sqrt(2.0))

        def log_density(mean: Floats) -> float:
            away = (values - mean) / noise
            return -float(np.abs(away).sum() if laplace else (away**2).sum() / 2)

        def log_mixture(mean: Floats) -> float:
            there = log_density(mean)
            if chance >= 1:
                return there
            absent = log_density(np.zeros(2))
            return float(np.logaddexp(math.log1p(-chance) + absent, math.log(chance) + there))

        return log_mixture(shift) - log_mixture(-shift if self._replaced else np.zeros(2))

    def _learn(self, id: int, index: int, model: Vector, canary: bool, seed: int) -> Any:
        """Return what trains on a device's data."""
        inputs, labels = self._data(id, canary)
        instance = self.instance
        if instance.by_record:
            secret = instance.secret_order or instance.shuffle == "poisson"
            order = seed if secret else self._order
            seeds = np.random.SeedSequence(order, spawn_key=(TRAINING, id))
        else:
            seeds = np.random.SeedSequence(seed, spawn_key=(TRAINING, index, id))
        return partial(self._trainer.local_update, model, inputs, labels, seeds, index)

    def _data(self, id: int, canary: bool) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return a device's samples.

        The canary's gradient is along the first feature, with the label 0 one way, with the label 1
        the other, all others' along the second. A record of zeros has none: it is a record that is
        left out, with the number of samples, which is public, left as it is.
        """
        samples = self.instance.samples if self.instance.by_record else 1
        inputs = np.zeros((samples, 2), np.float32)
        labels = np.zeros(samples, np.int64)
        inputs[:, 1] = self._feature
        if self.instance.opposed:
            # Along the canary's update, the other way.
            inputs, labels = inputs[:, ::-1].copy(), labels + 1
        if id == self._victim:
            inputs[self._position] = 0
            if canary or self._replaced:
                inputs[self._position, 0] = self._feature
            labels[self._position] = 0 if canary else 1
        return inputs, labels

    @property
    def _travel(self) -> float:
        """How far the model can be expected to move along a coordinate, in learning rates."""
        instance = self.instance
        steps = instance.plays * (instance.steps if instance.by_record else 1)
        return (1 + instance.sigma * math.sqrt(steps)) * math.sqrt(steps)

    @property
    def _feature(self) -> float:
        """Size of a feature: with two classes, an untrained model's gradient is 0.7 times it."""
        return _SLACK if self.instance.by_record else _MOVED / self._travel

    @property
    def _local(self) -> LocalOptions:
        """How a device trains; a user's update is made long by the learning rate."""
        instance = self.instance
        by_record = instance.by_record
        all_samples = instance.mechanism == "laplace" and instance.batch == instance.samples
        return LocalOptions(
            epochs=None,
            steps=instance.steps if by_record else 1,
            batch_size=instance.batch if by_record and not all_samples else 0,
            learning_rate=_MOVED / self._travel if by_record else _SLACK / self._feature,
            momentum=0.0,
        )

    def _make_trainer(self) -> Trainer:
        from torch import nn

        from hpcfl.learning.private import PrivateOptions, PrivateTrainer
        from hpcfl.learning.training import Trainer

        model = nn.Sequential(nn.Flatten(), nn.Linear(2, 2, bias=False))
        if not self.instance.by_record:
            return Trainer(model, self._local)
        norm = "l1" if self.instance.mechanism == "laplace" else "l2"
        private = PrivateOptions(clip_norm=norm, shuffle=self.instance.shuffle)
        return PrivateTrainer(model, self._local, private)

    def _make(self, federation: Federation) -> PrivateAlgorithm:
        kind = federated.find(self.instance.algorithm)
        assert issubclass(kind, PrivateAlgorithm)
        return kind(federation, self.instance.privacy, insecure_noise(federation.seed))

    def _participation(self, seed: int) -> Participation:
        instance = self.instance
        return Participation(instance.devices, instance.invited, instance.sampling, seed)

    def _federation(self, participation: Participation, seed: int) -> Federation:
        instance = self.instance
        samples = instance.samples if instance.by_record else 1
        sizes = np.full(instance.devices, samples, np.int64)
        return Federation(
            sizes,
            participation,
            instance.rounds,
            seed,
            self._protocol(seed),
            self._local,
        )

    def _protocol(self, seed: int = 0) -> AggregationProtocol:
        instance = self.instance
        parameters = Parameters(
            instance.per_round,
            _DIM,
            dropout=instance.dropout,
            dropout_model=instance.dropout_model,
            gamma=0.0,
            seed=seed,
            levels=2**24,
        )
        return aggregation.find("secagg" if instance.distributed else instance.aggregate)(
            parameters
        )

    def _worst_record(self, turns: int) -> tuple[int, int, tuple[int, ...]]:
        """Return a record, an order that uses it often, and its accesses in each of its rounds.

        Of records that are used as often, one that is used in a round that is played in vain.
        """
        instance = self.instance
        in_vain = slice(instance.rounds - instance.replayed, instance.rounds)
        epoch = epoch_steps(instance.samples, instance.batch)
        most = turns * -(-instance.steps // epoch)
        if instance.shuffle == "continuing":
            most = -(-turns * instance.steps // epoch)
        best: tuple[int, int, tuple[int, ...]] = (0, 0, (0,) * turns)
        for order in range(min(_ORDERS, 1 + _ORDERED // (turns * instance.samples))):
            seeds = np.random.SeedSequence(order, spawn_key=(TRAINING, self._victim))
            used = np.zeros((turns, instance.samples), np.int64)
            for turn in range(turns):
                for batch in batches(
                    instance.shuffle, instance.samples, instance.batch, instance.steps, turn, seeds
                ):
                    used[turn, batch] += 1
            position = int(((turns + 1) * used.sum(axis=0) + used[in_vain].sum(axis=0)).argmax())
            if used[:, position].sum() > sum(best[2]):
                best = (position, order, tuple(used[:, position].tolist()))
            if sum(best[2]) >= most:
                break
        return best


def lower_bound(without: Floats, with_: Floats, delta: float, confidence: float) -> Bound:
    """Return a lower bound on epsilon from a statistic's values on two neighbouring datasets.

    Parameters
    ----------
    without, with_ : ndarray of float64, shape (runs,)
        Large values speak for the second dataset. The first half of each chooses the threshold.
    delta, confidence : float
    """

    def epsilon(true: Any, false: Any, runs: int) -> Floats:
        least, most = _rates(true, false, runs, confidence)
        with np.errstate(divide="ignore"):
            return np.maximum(0.0, np.log(np.maximum(0.0, least - delta)) - np.log(most))

    threshold, true, false, runs = _test(without, with_, epsilon)
    return Bound(float(epsilon(true, false, runs)), int(true), int(false), runs, threshold)


def _where_sent(without: Floats, with_: Floats, delta: float, confidence: float) -> Bound:
    """Return the bound by way of mu, from the runs in which the canary is sent.

    Parameters
    ----------
    without, with_ : ndarray of float64, shape (runs, 2)
        Score, and whether the run counts.
    delta, confidence : float
    """
    first, second = (one[one[:, 1] > 0, 0] for one in (without, with_))
    counted, most = first.size + second.size, len(without) + len(with_)
    if counted == most:
        return gaussian_bound(first, second, delta, confidence)
    fewest = min(first.size, second.size)
    if fewest < 2:
        return Bound(0.0, 0, 0, 0, 0.0, 0.0, 0.0)
    # Three probabilities are bounded, not two.
    error = (1 - confidence) / 3
    part = float(clopper_pearson(counted, most, error)[0])
    of_them = min(delta / part, 1 - 1e-12)
    found = gaussian_bound(first[:fewest], second[:fewest], of_them, 1 - 2 * error)
    return replace(found, part=part)


def gaussian_bound(without: Floats, with_: Floats, delta: float, confidence: float) -> Bound:
    """Return a lower bound on epsilon by way of mu, as of `lower_bound`; for Gaussian noise only.

    Nasr et al. (2023), Section 4.
    """
    from scipy.special import ndtri

    from hpcfl.privacy.accounting.zcdp import exact_epsilon

    def mu(true: Any, false: Any, runs: int) -> Floats:
        least, most = _rates(true, false, runs, confidence)
        with np.errstate(invalid="ignore"):
            return np.nan_to_num(np.maximum(0.0, ndtri(least) - ndtri(most)), nan=0.0)

    threshold, true, false, runs = _test(without, with_, mu)
    least = float(mu(true, false, runs))
    epsilon = exact_epsilon(least**2 / 2, delta)
    return Bound(epsilon, int(true), int(false), runs, threshold, least)


def _rates(true: Any, false: Any, runs: int, confidence: float) -> tuple[Floats, Floats]:
    """Return the least true and the largest false positive rate, jointly with the confidence."""
    each = (1 - confidence) / 2
    return clopper_pearson(true, runs, each)[0], clopper_pearson(false, runs, each)[1]


def _test(
    without: Floats, with_: Floats, value: Callable[[Any, Any, int], Floats]
) -> tuple[float, int, int, int]:
    """Choose the threshold of the largest value on the first half, and count on the second.

    Returns
    -------
    threshold : float
    true, false, runs : int
        True positives, false positives, and runs on each dataset.
    """
    half = without.size // 2
    negatives, positives = np.sort(without[:half]), np.sort(with_[:half])
    candidates = np.unique(np.concatenate([negatives, positives]))
    true = half - np.searchsorted(positives, candidates)
    false = half - np.searchsorted(negatives, candidates)
    threshold = float(candidates[int(np.argmax(value(true, false, half)))])
    hits, alarms = (int(np.sum(one[half:] >= threshold)) for one in (with_, without))
    return threshold, hits, alarms, without.size - half


def clopper_pearson(count: Any, runs: int, error: float) -> tuple[Floats, Floats]:
    """Return lower and upper bounds of a probability, each wrong with at most `error`.

    Parameters
    ----------
    count : int or ndarray of int
        Successes.
    runs : int
        Independent trials, at least 1.
    error : float
        Above 0 and below 1, for one side.

    Returns
    -------
    lower, upper : ndarray of float64
        Clopper and Pearson (1934): with the lower, at least `count` successes have the probability
        `error`; with the upper, at most `count`.
    """
    from scipy.special import betaincinv

    count = np.asarray(count, np.float64)
    some, not_all = count > 0, count < runs
    lower = betaincinv(np.where(some, count, 1), runs - count + 1, error)
    upper = betaincinv(count + 1, np.where(not_all, runs - count, 1), 1 - error)
    return np.where(some, lower, 0.0), np.where(not_all, upper, 1.0)
