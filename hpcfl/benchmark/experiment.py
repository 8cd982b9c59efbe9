"""Runs one configuration: rounds of a protocol, each timed, validated and logged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.aggregation.base import Aggregate, AggregationProtocol
from hpcfl.algorithms.aggregation.quantised import QuantisedProtocol
from hpcfl.algorithms.aggregation.ranges import Dealt
from hpcfl.algorithms.noise import NoiseSecrets, insecure_noise, system_noise
from hpcfl.algorithms.quantisation import BLOCK
from hpcfl.benchmark.stopping import StopRule
from hpcfl.comm.transport import Transport
from hpcfl.errors import HpcflError, UsageError
from hpcfl.options.bench import DEFAULT_DIM, DP_FEDAVG, BenchOptions
from hpcfl.options.definition import make, names, stated
from hpcfl.options.protocols import ProtocolOptions, SparseOptions, ThreatOptions, refuse, unused
from hpcfl.options.shared import check_length
from hpcfl.report.formats import counted, named, share
from hpcfl.rounds.build import (
    build,
    check_degree,
    with_room,
    without_dropouts,
)
from hpcfl.rounds.dropouts import DropoutSchedule
from hpcfl.rounds.enrolment import enrol
from hpcfl.rounds.inputs import SyntheticUpdates, Updates
from hpcfl.rounds.loop import REASONS, repeat
from hpcfl.rounds.observer import NOBODY, RoundObserver, Together
from hpcfl.rounds.session import Job, played_in_vain
from hpcfl.rounds.timed import Played, play
from hpcfl.system.launch import netlab_link

if TYPE_CHECKING:
    from hpcfl.algorithms.federated.dpfedavg import DPFedAvg
    from hpcfl.algorithms.noise import IntegerNoise
    from hpcfl.attack.transcript import Recorder
    from hpcfl.options.privacy import PrivacyOptions
    from hpcfl.results.reader import Run


# Options without effect where devices send all coordinates.
OF_SPARSE = (*names(SparseOptions), "locations")


def asked(given: Mapping[str, Any]) -> BenchOptions:
    """Return the options that keywords, or a command line, stand for.

    `given` has values of `BenchOptions` by name, at least ``protocol``. A UsageError says that
    there is no such option, that a value cannot be meant, or that an option would be ignored.
    """
    options = resolved(given)
    refuse(given, unused_by(options), options.protocol)
    return options


def unused_by(options: BenchOptions) -> set[str]:
    """Return the names of options that neither the protocol nor its noise has a use for."""
    noise = [] if options.privacy is None else [ThreatOptions]
    return unused(ProtocolOptions, [*find(options.summed_by, options.security).options, *noise])


def resolved(given: Mapping[str, Any]) -> BenchOptions:
    """Return the same, whether all that is given is used or not."""
    if given.get("resume") is not None and given.get("output") is not None:
        raise UsageError("--resume continues in its own file: leave --output out")
    check_length(given)
    # Within a lab the seconds that are modelled are those of its links.
    given = netlab_link() | stated(BenchOptions, given)
    options = make(BenchOptions, given)
    if options.protocol != DP_FEDAVG:
        find(options.protocol, others=(DP_FEDAVG,))
    complete = without_dropouts(options.summed_by, given)
    return options if complete is given else make(BenchOptions, complete)


@dataclass
class Experiment(Job):
    """A benchmark with one number of devices, checked, with all defaults resolved, ready to run."""

    options: BenchOptions
    protocol: AggregationProtocol
    updates: Updates
    schedule: DropoutSchedule
    asked: BenchOptions  # as they were given
    algorithm: DPFedAvg | None = None  # whose noise devices add to their integers
    # The round seconds that an earlier launch measured, and its rounds, warm-up included.
    measured: list[float] = field(default_factory=list)
    first_round: int = 0

    command = "bench"

    @classmethod
    def prepare(cls, options: BenchOptions, devices: int) -> Experiment:
        """Check the options for a number of devices; a UsageError is the same on every rank."""
        if options.may_vary and options.keep_transcript is not None:
            raise UsageError(
                "--keep-transcript is of the last round, which --rel-ci and --max-seconds leave "
                "open: give --rounds only"
            )
        check_degree(options, devices)
        updates = _updates(options, devices)
        # With the length, a run goes on without the code of a model.
        dim = options.dim if options.model is None else updates.dim
        given = replace(options, devices=(devices,), dim=dim)

        def built(chosen: BenchOptions) -> tuple[AggregationProtocol, DropoutSchedule]:
            return build(chosen.summed_by, chosen, devices, updates.dim, updates.weights)

        protocol, schedule = built(options)
        algorithm = None
        privacy = options.privacy
        if privacy is not None:
            options = with_room(
                options, options.summed_by, lambda one: _add_noise(built(one)[0], one, privacy)
            )
            if options.levels is None:
                options = _with_most_levels(options, privacy, devices, updates)
            protocol, schedule = built(options)
            algorithm = _add_noise(protocol, options, privacy)
        if options.server_ranks > 1:
            _check_server_ranks(options, protocol)
        if options.keep_transcript is not None:
            if options.security == "active":
                raise UsageError(
                    "--keep-transcript is for attacks of a curious server: leave it out, or "
                    "--security active"
                )
            from hpcfl.attack import transcript as recording

            insecure, reduce = options.insecure_seed is not None, options.upload == "reduce"
            recording.check(protocol, insecure=insecure, reduce=reduce)
        chosen = protocol.parameters
        options = replace(
            options,
            dim=updates.dim,
            dropout_phase=schedule.phase,
            levels=chosen.levels,
            group=chosen.group,
            bits=None,
        )
        return cls(options, protocol, updates, schedule, given, algorithm)

    @property
    def name(self) -> str:
        """What is measured, as the results call it."""
        if self.algorithm is None:
            return self.protocol.name
        return f"{self.algorithm.name}-{self.protocol.name}"

    @property
    def own_code(self) -> list[str]:
        """What names code of one's own on a command line."""
        protocol, aggregate = self.asked.protocol, self.asked.aggregate or ""
        own = [protocol] if ":" in protocol else []
        return own + (["--aggregate", aggregate] if ":" in aggregate else [])

    @property
    def devices(self) -> int:
        """Number N of devices."""
        return self.protocol.parameters.devices

    @property
    def dim(self) -> int:
        """Number d of coordinates."""
        return self.updates.dim

    @property
    def rounds(self) -> int:
        """The most rounds that there can be, warm-up included."""
        return self.options.planned_rounds

    def config(self) -> dict[str, Any]:
        """Return every option with its value, for the record; None where it has no effect."""
        config = self.options.recorded() | {"devices": self.devices}
        for name in ("updates", "save_aggregate", "keep_transcript"):
            config[name] = None if config[name] is None else str(config[name])
        if not self.protocol.sparse_upload:
            config |= dict.fromkeys(OF_SPARSE)
        if self.protocol.summed_in is None:
            config |= dict.fromkeys(("group", "clip", "levels"))
        config["threshold"] = self.protocol.parameters.threshold
        config |= self.protocol.settings()
        config["promises"] = [promise.claim for promise in self.protocol.promises()]
        if self.algorithm is not None:
            config |= asdict(self.algorithm.privacy) | self.algorithm.settings()
            config["promises"] = [*config["promises"], *self.algorithm.promises()]
            if self.algorithm.repeated:
                config["rounds_repeated"] = self.algorithm.repeated
        config["scaled_by"] = 1 / self.protocol.divisor
        return config

    def go_on_from(self, earlier: Run) -> int:
        """Go on behind the rounds of an earlier launch; the account counts what it lost."""
        if earlier.status == "complete":
            raise UsageError(
                f"{earlier.path} is complete, with {counted(earlier.rounds, 'round')}: there is "
                "nothing left to measure"
            )
        if self.algorithm is not None:
            self.algorithm.repeated = played_in_vain(earlier, earlier.rounds)
        self.first_round = earlier.rounds
        self.measured = earlier.round_seconds[~earlier.warmup].tolist()
        if StopRule(self.options).resume(self.measured):
            self._refuse_to_save()  # nothing but the end of the file was missing
        return earlier.rounds

    def run(self, transport: Transport, observer: RoundObserver = NOBODY) -> str:
        """Run rounds until there are enough of them; every rank calls this.

        `RoundObserver.finished` takes a :class:`~hpcfl.rounds.timed.Played`, without its aggregate.
        The model that an earlier launch had reached is not kept; its contents, unlike its length,
        make no difference.

        Returns why it stopped, one of :data:`~hpcfl.rounds.loop.REASONS`, the same on every rank.
        Raises an HpcflError if a round cannot end or its aggregate is wrong; the rounds before it
        are stored.
        """
        options = self.options
        rule = StopRule(options)
        reason = rule.resume(self.measured)
        first = transport.tell(self.first_round)
        reason = REASONS[transport.tell(REASONS.index(reason))]
        if reason:
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
        told: set[int] = set()  # the devices of which it was said that their vectors are clipped

        def play_one(index: int) -> Played | None:
            nonlocal last
            last = None  # which would take memory beside this round's
            self.updates.prepare(index, transport.local_devices)
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
            self._warn_of_clipping(transport, watching, told)
            last = played.aggregate
            if last is None:
                return None
            if enrolled is not None:
                enrolled.charge(played.record, index)
            # A warm-up that outlasts the time of the run ends with a measured round.
            played.record.warmup = index < options.warmup and not rule.over
            for start in range(0, model.size if last.has_mean else 0, BLOCK):
                part = slice(start, start + BLOCK)
                model[part] -= last.mean_at(part).astype(np.float32)
            return replace(played, aggregate=None)

        def decide(index: int, played: Played) -> str:
            return "" if played.record.warmup else rule.after(played.record.round_seconds)

        indices = range(first, options.planned_rounds)
        reason = repeat(transport, indices, play_one, decide, watching)
        if reason == "interrupted":
            return reason
        if options.save_aggregate is not None:
            transport.raise_everywhere(self._save_aggregate(last))
        if recorder is not None:
            transport.raise_everywhere(self._save_transcript(recorder))
        return reason

    def _warn_of_clipping(
        self, transport: Transport, observer: RoundObserver, told: set[int]
    ) -> None:
        """Say, at the server, that values were clipped: the sum is right, but not theirs.

        The check of a round is of what was sent. Every rank calls this after a round. Devices that
        are `told` already are not named again.
        """
        if not isinstance(self.protocol, QuantisedProtocol):
            return
        counts = np.zeros((self.devices, 2), np.int64)
        for id in transport.local_devices:
            counts[id] = self.protocol.clipped.pop(id, (0, 0))
        summed = transport.sum_to_server(counts)
        if summed is None:
            return
        found = [id for id in np.flatnonzero(summed[:, 0]).tolist() if id not in told]
        if not found:
            return
        told.update(found)
        clipped, sent = summed[found].sum(axis=0).tolist()
        observer.warned(
            f"{share(clipped / sent)} of the {'rotated ' * self.options.rotate}values of "
            f"{named('device', found)} are beyond --clip {self.options.clip:g} and are cut to it: "
            "the sum is of what is left"
        )

    def _refuse_to_save(self) -> None:
        if self.options.save_aggregate is not None or self.options.keep_transcript is not None:
            raise UsageError(
                "the last round has been measured already, and what --save-aggregate and "
                "--keep-transcript write is not kept: leave them out, or begin anew"
            )

    def _save_aggregate(self, aggregate: Aggregate | None) -> HpcflError | None:
        """Write, at the server, the last round's sum; return what speaks against it."""
        path = self.options.save_aggregate
        if path is None or aggregate is None:
            return None
        from hpcfl.rounds.input_files import save_aggregate

        try:
            weight = self.updates.total_weight or self.devices
            save_aggregate(path, aggregate.sum * weight, aggregate.mean)
        except HpcflError as error:
            return error
        return None

    def _recorder(self) -> Recorder | None:
        """Return what takes down the last round, if that is asked for."""
        if self.options.keep_transcript is None:
            return None
        from hpcfl.attack.transcript import Recorder

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


def _check_server_ranks(options: BenchOptions, protocol: AggregationProtocol) -> None:
    """Refuse a server of several ranks where its work cannot be dealt out, by UsageError."""
    Dealt.uploads_of(protocol, options.server_ranks)
    for name, given in (
        ("upload reduce", options.upload == "reduce"),
        ("keep-transcript", options.keep_transcript is not None),
    ):
        if given:
            raise UsageError(
                f"--server-ranks is {options.server_ranks}, and with --{name} one rank receives "
                "all of every upload: leave one of the two out"
            )


def _add_noise(
    protocol: AggregationProtocol, options: BenchOptions, privacy: PrivacyOptions
) -> DPFedAvg:
    """Let the devices of a protocol add the noise of `dp-fedavg`; all are in every round."""
    algorithm = _dp_fedavg(protocol, options, privacy)
    weights = protocol.parameters.weights
    if weights is not None and np.ptp(weights) > 0:
        raise UsageError(
            f"{options.updates} has unequal weights, and {DP_FEDAVG} hides users who count alike: "
            "leave the weights out"
        )
    assert isinstance(protocol, QuantisedProtocol)
    protocol.add_noise(_noise_of(algorithm, protocol))
    return algorithm


def _with_most_levels(
    options: BenchOptions, privacy: PrivacyOptions, devices: int, updates: Updates
) -> BenchOptions:
    """Return the options with as many levels as there is room for beside the noise."""
    from hpcfl.algorithms.federated.levels import largest_levels

    def quantised(levels: int) -> QuantisedProtocol:
        chosen = replace(options, levels=levels)
        protocol, _ = build(options.summed_by, chosen, devices, updates.dim, updates.weights)
        # Refuses what cannot have noise.
        _dp_fedavg(protocol, options, privacy)
        assert isinstance(protocol, QuantisedProtocol)
        return protocol

    def noises(protocol: QuantisedProtocol) -> list[IntegerNoise]:
        return [_noise_of(_dp_fedavg(protocol, options, privacy), protocol)]

    return replace(options, levels=largest_levels(quantised, noises))


def _noise_of(algorithm: DPFedAvg, protocol: QuantisedProtocol) -> IntegerNoise:
    noise = algorithm.integer_noise(protocol, 0)
    assert noise is not None
    return noise


def _dp_fedavg(
    protocol: AggregationProtocol, options: BenchOptions, privacy: PrivacyOptions
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


def length(options: BenchOptions) -> int:
    """Return the length d of vectors that are drawn; UsageError if a model does not say it."""
    if options.dim is not None:
        return options.dim
    if options.model is None:
        return DEFAULT_DIM
    from hpcfl.learning.models import parameters

    return parameters(options.model)


def _updates(options: BenchOptions, devices: int) -> Updates:
    if options.updates is None:
        return SyntheticUpdates(length(options), options.seed, devices)
    from hpcfl.rounds.input_files import FileUpdates

    updates = FileUpdates(options.updates, devices)
    if options.dim not in (None, updates.dim):
        raise UsageError(
            f"--dim is {options.dim}, but the rows of {options.updates} have {updates.dim} numbers"
        )
    return updates
