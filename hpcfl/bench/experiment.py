"""Runs one configuration: rounds of a protocol, each timed, validated and logged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.aggregation.base import Aggregate, AggregationProtocol, QuantisedProtocol
from hpcfl.algorithms.noise import NoiseSecrets, insecure_noise, system_noise
from hpcfl.algorithms.parameters import Parameters
from hpcfl.bench.stopping import StopRule
from hpcfl.comm.transport import Transport
from hpcfl.errors import HpcflError, UsageError
from hpcfl.results.linkmodel import LinkModel
from hpcfl.rounds.dropouts import DropoutSchedule
from hpcfl.rounds.enrolment import enrol
from hpcfl.rounds.inputs import SyntheticUpdates, Updates
from hpcfl.rounds.loop import REASONS, repeat
from hpcfl.rounds.observer import NOBODY, RoundObserver, Together
from hpcfl.rounds.timed import Played, play

if TYPE_CHECKING:
    from hpcfl.algorithms.federated.dpfedavg import DPFedAvg
    from hpcfl.algorithms.federated.privacy import PrivacyOptions
    from hpcfl.algorithms.noise import IntegerNoise
    from hpcfl.attack.recording import Recorder
    from hpcfl.results.reader import Run

DEFAULT_DIM = 165_000
DEFAULT_LEVELS = 2**20


@dataclass(frozen=True)
class Options:
    """What `hpcfl bench` was asked for, except for the number of devices.

    The attributes are the command's options; see ``hpcfl bench --help``.
    """

    protocol: str
    dim: int | None = None
    rounds: int = 10
    warmup: int = 2
    max_rounds: int | None = None
    rel_ci: float | None = None
    max_seconds: float | None = None
    alpha: float = 0.1
    dropout: float = 0.3
    dropout_model: str = "exact"
    scaling: str = "survivors"
    dropout_phase: str | None = None
    group: str = "fq"
    sampler: str = "gaps"
    locations: str = "auto"
    upload: str = "gather"
    clip: float = 1.0
    levels: int | None = None
    updates: Path | None = None
    save_aggregate: Path | None = None
    keep_transcript: Path | None = None
    uplink_mbps: float = 100.0
    downlink_mbps: float = 100.0
    latency_ms: float = 0.0
    seed: int = 0
    insecure_seed: int | None = None
    degree: int | None = None
    gamma: float = 0.1
    min_cohort: int = 1
    security_bits: int = 40
    correctness_bits: int = 20
    private: PrivacyOptions | None = None
    security: str = "passive"
    kill: tuple[str, ...] = ()

    @classmethod
    def of_command(cls, values: Mapping[str, Any]) -> Options:
        """Return the options that values of the command line stand for.

        Parameters
        ----------
        values : mapping
            By name: those of `Options`, and of ``dp-fedavg`` with what it alone takes: the
            protocol to sum by (``aggregate``), ``noise_multiplier``, ``clip_norm``, ``delta``.

        Raises
        ------
        UsageError
            If what is for dp-fedavg alone is given to another protocol.
        """
        options = dict(values)
        aggregate = options.pop("aggregate", None)
        names = ("noise_multiplier", "clip_norm", "delta")
        given = {name: options.pop(name, None) for name in names}
        given = {name: value for name, value in given.items() if value is not None}
        if options["protocol"] == "dp-fedavg":
            from hpcfl.algorithms.federated.privacy import PrivacyOptions

            noise: dict[str, Any] = {"noise": "distributed", "noise_multiplier": 1.0} | given
            options |= {"protocol": aggregate or "secagg", "private": PrivacyOptions(**noise)}
        elif aggregate is not None or given:
            raise UsageError(
                "--aggregate, --noise-multiplier, --clip-norm and --delta are for dp-fedavg: "
                f"{options['protocol']} adds no noise"
            )
        return cls(**options)

    @property
    def link(self) -> LinkModel:
        """The link that modelled seconds are for."""
        return LinkModel(self.uplink_mbps, self.downlink_mbps, self.latency_ms)

    def stop_rule(self) -> StopRule:
        """Return a new rule of when enough rounds are measured."""
        return StopRule(self.rounds, self.max_rounds, self.rel_ci, self.max_seconds)

    @property
    def planned_rounds(self) -> int:
        """Largest number of rounds, warm-up included."""
        return self.warmup + self.stop_rule().most

    def build(
        self,
        devices: int,
        dim: int,
        weights: NDArray[np.float64] | None = None,
        population: int | None = None,
    ) -> tuple[AggregationProtocol, DropoutSchedule]:
        """Return the protocol and its dropouts for a number of devices.

        Parameters
        ----------
        devices, dim : int
            Number N of devices, and d of coordinates.
        weights : ndarray of float64, shape (N,), optional
            The devices' weights; equal by default.
        population : int, optional
            Number of devices that these are drawn from; all of them by default.

        Raises
        ------
        UsageError
            If the options do not go together.
        """
        parameters = Parameters(
            devices=devices,
            dim=dim,
            alpha=self.alpha,
            dropout=self.dropout,
            group=self.group,
            sampler=self.sampler,
            locations=self.locations,
            clip=self.clip,
            levels=DEFAULT_LEVELS if self.levels is None else self.levels,
            weights=weights,
            seed=self.seed,
            degree=self.degree,
            gamma=self.gamma,
            min_cohort=self.min_cohort,
            security_bits=self.security_bits,
            correctness_bits=self.correctness_bits,
            security=self.security,
            dropout_model=self.dropout_model,
            scaling=self.scaling,
            population=population,
        )
        protocol = find(self.protocol, self.security)(parameters)
        if self.upload == "reduce" and (protocol.sparse_upload or not protocol.summed_in):
            raise UsageError(
                f"{protocol.name} cannot use --upload reduce: MPI can only sum whole vectors of "
                "group elements on the way"
            )
        phase = self.dropout_phase or protocol.upload_phase()
        droppable = [name for name in protocol.phases() if name not in ("model", "result")]
        if phase not in droppable:
            raise UsageError(
                f"{protocol.name} has no phase {phase!r} to drop out before; "
                f"choose one of {', '.join(droppable)}"
            )
        schedule = DropoutSchedule(devices, self.dropout, self.dropout_model, phase, self.seed)
        return protocol, schedule


@dataclass(frozen=True)
class Experiment:
    """One configuration, checked and ready to run.

    Attributes
    ----------
    options : Options
        With all defaults resolved.
    protocol : AggregationProtocol
        With its parameters.
    updates : Updates
        The devices' vectors.
    schedule : DropoutSchedule
        Who disappears when.
    algorithm : DPFedAvg, optional
        Whose noise devices add to their integers.
    """

    options: Options
    protocol: AggregationProtocol
    updates: Updates
    schedule: DropoutSchedule
    algorithm: DPFedAvg | None = None

    @classmethod
    def prepare(cls, options: Options, devices: int) -> Experiment:
        """Check the options for a number of devices.

        Raises
        ------
        UsageError
            If the configuration cannot work; the same on every rank.
        """
        if options.rounds < 1 or options.warmup < 0:
            raise UsageError(
                f"{options.rounds} rounds after {options.warmup} of warm-up are asked for; "
                "at least one measured round is needed"
            )
        _ = options.link  # refuses an impossible link
        if options.stop_rule().may_vary and options.keep_transcript is not None:
            raise UsageError(
                "--keep-transcript is of the last round, which --rel-ci and --max-seconds leave "
                "open: give --rounds only"
            )
        updates = _updates(options, devices)
        protocol, schedule = options.build(devices, updates.dim, updates.weights)
        algorithm = None
        privacy = options.private
        if privacy is not None:
            if options.levels is None:
                options = _with_most_levels(options, privacy, devices, updates)
                protocol, schedule = options.build(devices, updates.dim, updates.weights)
            algorithm = _add_noise(protocol, options, privacy)
        if options.keep_transcript is not None:
            if options.security == "active":
                raise UsageError(
                    "--keep-transcript is for attacks of a curious server: leave it out, or "
                    "--security active"
                )
            from hpcfl.attack import recording

            insecure, reduce = options.insecure_seed is not None, options.upload == "reduce"
            recording.check(protocol, insecure=insecure, reduce=reduce)
        levels = protocol.parameters.levels
        options = replace(options, dim=updates.dim, dropout_phase=schedule.phase, levels=levels)
        return cls(options, protocol, updates, schedule, algorithm)

    @property
    def name(self) -> str:
        """What is measured, as the results call it."""
        if self.algorithm is None:
            return self.protocol.name
        return f"{self.algorithm.name}-{self.protocol.name}"

    @property
    def devices(self) -> int:
        """Number N of devices."""
        return self.protocol.parameters.devices

    def config(self) -> dict[str, Any]:
        """Return every option with its value, for the record; None where it has no effect."""
        config = asdict(self.options)
        del config["private"]
        config["devices"] = self.devices
        for name in ("updates", "save_aggregate", "keep_transcript"):
            config[name] = None if config[name] is None else str(config[name])
        config["kill"] = list(self.options.kill) or None
        if not self.protocol.sparse_upload:
            config |= dict.fromkeys(("alpha", "sampler", "locations"))
        if self.protocol.summed_in is None:
            config |= dict.fromkeys(("group", "clip", "levels"))
        config["threshold"] = self.protocol.parameters.threshold
        config |= self.protocol.settings()
        config["promises"] = [promise.claim for promise in self.protocol.promises()]
        if self.algorithm is not None:
            config |= asdict(self.algorithm.privacy) | self.algorithm.settings()
            config["promises"] = [*config["promises"], *self.algorithm.promises()]
        config["scaled_by"] = 1 / self.protocol.divisor
        return config

    def run(
        self,
        transport: Transport,
        observer: RoundObserver = NOBODY,
        earlier: Run | None = None,
    ) -> str:
        """Run rounds until there are enough of them.

        Parameters
        ----------
        transport : Transport
            How messages move; every rank calls this.
        observer : RoundObserver
            Watches the rounds; `RoundObserver.finished` takes a
            :class:`~hpcfl.rounds.timed.Played`, without its aggregate.
        earlier : Run, optional
            At the server: the run to go on with, behind its finished rounds. The model that it had
            reached is not kept; its contents, unlike its length, make no difference.

        Returns
        -------
        str
            Why it stopped, one of :data:`~hpcfl.rounds.loop.REASONS`; the same on every rank.

        Raises
        ------
        HpcflError
            If a round cannot end or its aggregate is wrong. The rounds before it are stored.
        """
        options = self.options
        rule, reason, first = options.stop_rule(), "", 0
        if earlier is not None:
            first = earlier.rounds
            reason = rule.resume(earlier.round_seconds[~earlier.warmup].tolist())
        first, reason = transport.tell(first), REASONS[transport.tell(REASONS.index(reason))]
        if reason:
            self._refuse_to_save()  # nothing but the end of the file was missing
            return reason
        enrolled = enrol(
            type(self.protocol),
            transport,
            first_round=first,
            insecure_seed=options.insecure_seed,
        )
        recorder = self._recorder()
        watching = observer if recorder is None else Together(observer, recorder)
        model = np.zeros(self.updates.dim, np.float32)
        last: Aggregate | None = None

        def play_one(index: int) -> Played | None:
            nonlocal last
            played = play(
                self.protocol,
                transport,
                index=index,
                model=model,
                inputs=partial(self.updates.vector, index),
                dropouts=self.schedule.draw(index),
                reduce=options.upload == "reduce",
                insecure_seed=options.insecure_seed,
                enrolled=enrolled,
                observer=watching,
            )
            last = played.aggregate
            if last is None:
                return None
            if enrolled is not None:
                enrolled.charge(played.record, index)
            played.record.warmup = index < options.warmup
            model[:] -= last.mean.astype(np.float32)
            return replace(played, aggregate=None)

        def decide(index: int, played: Played) -> str:
            return "" if index < options.warmup else rule.after(played.record.round_seconds)

        indices = range(first, options.planned_rounds)
        reason = repeat(transport, indices, play_one, decide, watching)
        if reason == "interrupted":
            return reason
        if options.save_aggregate is not None:
            transport.raise_everywhere(self._save_aggregate(transport, last))
        if recorder is not None:
            transport.raise_everywhere(self._save_transcript(recorder))
        return reason

    def _refuse_to_save(self) -> None:
        if self.options.save_aggregate is not None or self.options.keep_transcript is not None:
            raise UsageError(
                "the last round has been measured already, and what --save-aggregate and "
                "--keep-transcript write is not kept: leave them out, or begin anew"
            )

    def _save_aggregate(
        self, transport: Transport, aggregate: Aggregate | None
    ) -> HpcflError | None:
        """Write, at the server, the last round's sum; return what speaks against it."""
        path = self.options.save_aggregate
        if path is None or aggregate is None:
            return None
        from hpcfl.rounds.input_files import save_aggregate

        try:
            weight = self.updates.total_weight or self.devices
            save_aggregate(path, aggregate.sum * weight, aggregate.mean)
        except (OSError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or error
            return HpcflError(f"cannot save the aggregate to {path} ({reason})")
        return None

    def _recorder(self) -> Recorder | None:
        """Return what takes down the last round, if that is asked for."""
        if self.options.keep_transcript is None:
            return None
        from hpcfl.attack.recording import Recorder

        return Recorder(self.protocol, self.options.planned_rounds - 1, self.config())

    def _save_transcript(self, recorder: Recorder) -> HpcflError | None:
        """Write, at the server, what was taken down; return what speaks against it."""
        if recorder.transcript is None or self.options.keep_transcript is None:
            return None
        try:
            recorder.transcript.save(self.options.keep_transcript)
        except HpcflError as error:
            return error
        return None


def _add_noise(
    protocol: AggregationProtocol, options: Options, privacy: PrivacyOptions
) -> DPFedAvg:
    """Let the devices of a protocol add the noise of `dp-fedavg`; all are in every round."""
    algorithm = _dp_fedavg(protocol, options, privacy)
    assert isinstance(protocol, QuantisedProtocol)
    protocol.add_noise(_noise_of(algorithm, protocol))
    return algorithm


def _with_most_levels(
    options: Options, privacy: PrivacyOptions, devices: int, updates: Updates
) -> Options:
    """Return the options with as many levels as there is room for beside the noise."""
    from hpcfl.algorithms.federated.levels import largest_levels

    def build(levels: int) -> QuantisedProtocol:
        chosen = replace(options, levels=levels)
        protocol, _ = chosen.build(devices, updates.dim, updates.weights)
        # Refuses what cannot have noise.
        _dp_fedavg(protocol, options, privacy)
        assert isinstance(protocol, QuantisedProtocol)
        return protocol

    def noises(protocol: QuantisedProtocol) -> list[IntegerNoise]:
        return [_noise_of(_dp_fedavg(protocol, options, privacy), protocol)]

    return replace(options, levels=largest_levels(build, noises))


def _noise_of(algorithm: DPFedAvg, protocol: QuantisedProtocol) -> IntegerNoise:
    noise = algorithm.integer_noise(protocol, 0)
    assert noise is not None
    return noise


def _dp_fedavg(
    protocol: AggregationProtocol, options: Options, privacy: PrivacyOptions
) -> DPFedAvg:
    """Return `dp-fedavg` over a protocol; all devices are in every round."""
    from hpcfl.algorithms.federated.base import Federation
    from hpcfl.algorithms.federated.dpfedavg import DPFedAvg
    from hpcfl.algorithms.federated.participation import Participation

    devices = protocol.parameters.devices
    federation = Federation(
        sizes=np.ones(devices, np.int64),
        participation=Participation(devices, devices, "balanced", options.seed),
        rounds=options.planned_rounds,
        seed=options.seed,
        protocol=protocol,
        local=None,
    )
    DPFedAvg.check(federation, privacy)
    return DPFedAvg(federation, privacy, secrets_of_noise(options.insecure_seed))


def secrets_of_noise(insecure_seed: int | None) -> NoiseSecrets:
    """Return where noise comes from, apart from all devices' keys."""
    return system_noise if insecure_seed is None else insecure_noise(insecure_seed)


def _updates(options: Options, devices: int) -> Updates:
    if options.updates is None:
        dim = DEFAULT_DIM if options.dim is None else options.dim
        return SyntheticUpdates(dim, options.seed)
    from hpcfl.rounds.input_files import FileUpdates

    updates = FileUpdates(options.updates, devices)
    if options.dim not in (None, updates.dim):
        raise UsageError(
            f"--dim is {options.dim}, but the rows of {options.updates} have {updates.dim} numbers"
        )
    return updates
