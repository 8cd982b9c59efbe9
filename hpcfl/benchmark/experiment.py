"""Runs one configuration: rounds of a protocol, each timed, validated and recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
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
from hpcfl.comm.phases import room
from hpcfl.comm.transport import Transport
from hpcfl.errors import UsageError
from hpcfl.options.bench import DEFAULT_DIM, DP_FEDAVG, BenchOptions
from hpcfl.options.definition import make, names, stated
from hpcfl.options.protocols import (
    ProofOptions,
    ProtocolOptions,
    SparseOptions,
    ThreatOptions,
    refuse,
    unused,
)
from hpcfl.options.shared import check_length
from hpcfl.report.formats import counted, named, share
from hpcfl.rounds.build import DropoutSchedule, build, with_group, without_dropouts
from hpcfl.rounds.enrolment import Enrolled
from hpcfl.rounds.eventclock import clock_of
from hpcfl.rounds.inputs import SyntheticUpdates, Updates
from hpcfl.rounds.observer import NOBODY, RoundObserver, Together
from hpcfl.rounds.session import Job, played_in_vain
from hpcfl.rounds.timed import Played, play
from hpcfl.system.launch import netlab_link

if TYPE_CHECKING:
    from hpcfl.algorithms.federated.dpfedavg import DPFedAvg
    from hpcfl.attack.transcript import Recorder
    from hpcfl.results.reader import Run


# Options without effect if devices send all coordinates.
OF_SPARSE = (*names(SparseOptions), "locations")


def asked(given: Mapping[str, Any]) -> BenchOptions:
    """Return the options for keywords or a command line.

    `given` has values of `BenchOptions` by name, at least ``protocol``. Raise UsageError for an
    unknown option, an invalid value, or an option that would be ignored.
    """
    options = resolved(given)
    refuse(given, unused_by(options), options.protocol)
    return options


def unused_by(options: BenchOptions) -> set[str]:
    """Return the names of options that neither the protocol nor its noise uses."""
    noise = [] if options.privacy is None else [ThreatOptions, ProofOptions]
    return unused(ProtocolOptions, [*find(options.summed_by, options.security).options, *noise])


def resolved(given: Mapping[str, Any]) -> BenchOptions:
    """Return the options for `given`, without a check for unused ones."""
    check_length(given)
    # Within a netlab, seconds are modelled for the lab's links.
    given = netlab_link() | stated(BenchOptions, given)
    options = make(BenchOptions, given)
    if options.protocol != DP_FEDAVG:
        find(options.protocol, others=(DP_FEDAVG,))
    complete = without_dropouts(options.summed_by, given)
    return options if complete is given else make(BenchOptions, complete)


class Experiment(Job):
    """A benchmark with one number of devices, checked and with all defaults resolved.

    `algorithm`, if any, defines the noise that devices add to their integers. The results of its
    rounds have no aggregates.
    """

    command = "bench"
    code = ("protocol", "aggregate")

    def __init__(
        self,
        options: BenchOptions,
        asked: BenchOptions,
        protocol: AggregationProtocol,
        updates: Updates,
        schedule: DropoutSchedule,
        algorithm: DPFedAvg | None = None,
    ) -> None:
        self.options: BenchOptions = options
        self.asked: BenchOptions = asked
        self.protocol = protocol
        self.updates = updates
        self.schedule = schedule
        self.algorithm = algorithm
        self.devices, self.dim = protocol.parameters.devices, updates.dim
        self.rounds, self.first_round = options.planned_rounds, 0
        self.name = protocol.name if algorithm is None else f"{algorithm.name}-{protocol.name}"
        self.recorded_as, self.phases = self.name, protocol.phases()
        private = None if algorithm is None else algorithm.name
        self.clock = clock_of(options, self.devices, type(protocol), private)
        # The round times measured by earlier launches.
        self._measured: list[float] = []

    @classmethod
    def prepare(cls, options: BenchOptions, devices: int) -> Experiment:
        """Check the options for a number of devices; raise the same UsageError on every rank."""
        updates = _updates(options, devices)
        # The recorded length lets a run be resumed without the code of a user's model.
        dim = options.dim if options.model is None else updates.dim
        given = replace(options, devices=(devices,), dim=dim)

        def built(chosen: BenchOptions) -> tuple[AggregationProtocol, DropoutSchedule]:
            return build(chosen.summed_by, chosen, devices, updates.dim, updates.weights)

        protocol, schedule = built(options)
        algorithm = None
        if options.privacy is not None:
            options = with_group(options, options.summed_by)
            protocol, algorithm = _with_noise(options, lambda one: built(one)[0])
        if options.server_ranks > 1:
            Dealt.uploads_of(protocol, options.server_ranks)
            if options.upload == "reduce":
                raise UsageError(
                    f"--server-ranks is {options.server_ranks}, and with --upload reduce one rank "
                    "receives all of every upload: leave one of the two out"
                )
        if options.keep_transcript is not None:
            _check_transcript(options, protocol)
        chosen = protocol.parameters
        options = replace(
            options,
            dim=updates.dim,
            dropout_phase=schedule.phase,
            levels=chosen.levels,
            group=chosen.group,
            bits=None,
        )
        return cls(options, given, protocol, updates, schedule, algorithm)

    def config(self) -> dict[str, Any]:
        """Return every option with its value, for the record; None if it has no effect."""
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
        if self.clock is not None:
            config["population_table"] = self.clock.population.digest
        config["scaled_by"] = 1 / self.protocol.divisor
        return config

    def go_on_from(self, earlier: Run) -> int:
        """Continue after the rounds of an earlier launch; the account counts its lost rounds."""
        if earlier.status == "complete":
            raise UsageError(
                f"{earlier.path} is complete, with {counted(earlier.rounds, 'round')}: there is "
                "nothing left to measure"
            )
        if self.algorithm is not None:
            self.algorithm.repeated = played_in_vain(earlier, earlier.rounds)
        self.first_round = earlier.rounds
        self._measured = earlier.round_seconds[~earlier.warmup].tolist()
        saves = self.options.save_aggregate is not None or self.options.keep_transcript is not None
        if saves and StopRule(self.options).resume(self._measured):
            raise UsageError(
                "the last round has been measured already, and what --save-aggregate and "
                "--keep-transcript write is not kept: leave them out, or begin anew"
            )
        return earlier.rounds

    def over(self) -> str:
        return self._rule.resume(self._measured)

    def run(self, transport: Transport, observer: RoundObserver = NOBODY) -> str:
        self._rule = StopRule(self.options)
        # The costs depend on the model's length, not on its contents. It has room for an envelope,
        # so that the server sends it without a copy.
        self._model = room(4 * self.dim).view("<f4")
        if transport.has_server:
            self._model[:] = 0
        self._last: Aggregate | None = None
        # The devices for which a warning of clipped vectors was given.
        self._told: set[int] = set()
        self._recorder: Recorder | None = None
        if self.options.keep_transcript is not None:
            from hpcfl.attack.transcript import Recorder

            self._recorder = Recorder(self.protocol, self.rounds - 1)
            observer = Together(observer, self._recorder)
        return super().run(transport, observer)

    def play(
        self, transport: Transport, index: int, enrolled: Enrolled | None, observer: RoundObserver
    ) -> Played | None:
        options = self.options
        self._last = None  # free the last aggregate's memory
        self.updates.prepare(index, transport.local_devices)
        played = play(
            self.protocol,
            transport,
            index=index,
            model=self._model,
            inputs=partial(self.updates.vector, index),
            dropouts=self.schedule.draw(index),
            reduce=options.upload == "reduce",
            insecure_seed=options.insecure_seed,
            enrolled=enrolled,
            clock=self.clock,
            observer=observer,
        )
        self._warn_of_clipping(transport, observer)
        self._last = played.aggregate
        if self._last is None:
            return None
        # If the run's time ends during the warm-up, the last round of the warm-up is measured.
        played.record.warmup = index < options.warmup and not self._rule.over
        for start in range(0, self.dim if self._last.has_mean else 0, BLOCK):
            part = slice(start, start + BLOCK)
            self._model[part] -= self._last.mean_at(part).astype(np.float32)
        return replace(played, aggregate=None)

    def decide(self, index: int, result: Played) -> str:
        if result.record.warmup:
            return ""
        reason = self._rule.after(result.record.round_seconds)
        if reason:
            self._save()
        return reason

    def _warn_of_clipping(self, transport: Transport, observer: RoundObserver) -> None:
        """Warn, at the server, of clipped values: the validation compares values after clipping.

        Every rank calls this after a round. Each device is named only once.
        """
        if not isinstance(self.protocol, QuantisedProtocol):
            return
        counts = np.zeros((self.devices, 2), np.int64)
        for id in transport.local_devices:
            counts[id] = self.protocol.clipped.pop(id, (0, 0))
        summed = transport.sum_to_server(counts)
        if summed is None:
            return
        found = [id for id in np.flatnonzero(summed[:, 0]).tolist() if id not in self._told]
        if not found:
            return
        self._told.update(found)
        clipped, sent = summed[found].sum(axis=0).tolist()
        observer.warned(
            f"{share(clipped / sent)} of the values of "
            f"{named('device', found)} are beyond {self.protocol.clips} and are cut to it: "
            "the sum is of what is left"
        )

    def _save(self) -> None:
        """Write the last round's sum and transcript, if requested."""
        if self.options.save_aggregate is not None and self._last is not None:
            from hpcfl.rounds.input_files import save_aggregate

            weight = self.updates.total_weight or self.devices
            save_aggregate(self.options.save_aggregate, self._last.sum * weight, self._last.mean)
        if self._recorder is not None and self._recorder.transcript is not None:
            assert self.options.keep_transcript is not None
            self._recorder.transcript.save(self.options.keep_transcript)


def _check_transcript(options: BenchOptions, protocol: AggregationProtocol) -> None:
    """Raise UsageError if the transcript of a run could not be attacked."""
    from hpcfl.attack import transcript as recording

    if options.may_vary or options.security == "active" or options.server_ranks > 1:
        raise UsageError(
            "--keep-transcript writes the last round, so the number of rounds must be known, and "
            "what one passive server sees: leave out --rel-ci, --max-seconds, --security active "
            "and --server-ranks"
        )
    insecure, reduce = options.insecure_seed is not None, options.upload == "reduce"
    recording.check(protocol, insecure=insecure, reduce=reduce)


def _with_noise(
    options: BenchOptions, built: Callable[[BenchOptions], AggregationProtocol]
) -> tuple[AggregationProtocol, DPFedAvg]:
    """Return a protocol whose devices all add the noise of `dp-fedavg` in every round.

    It has the requested number of levels, or the most that fit beside the noise.
    """
    from hpcfl.algorithms.federated.levels import largest_levels

    def noisy(levels: int) -> tuple[AggregationProtocol, DPFedAvg]:
        protocol = built(replace(options, levels=levels))
        algorithm = _dp_fedavg(protocol, options)
        assert isinstance(protocol, QuantisedProtocol)
        noise = algorithm.integer_noise(protocol, 0)
        assert noise is not None
        protocol.add_noise(noise)
        return protocol, algorithm

    if options.levels is not None:
        return noisy(options.levels)
    one = built(replace(options, levels=1))
    _dp_fedavg(one, options)  # raises UsageError if the protocol cannot have noise
    assert isinstance(one, QuantisedProtocol)
    return noisy(largest_levels(one, noisy))


def _dp_fedavg(protocol: AggregationProtocol, options: BenchOptions) -> DPFedAvg:
    """Return `dp-fedavg` over a protocol; raise UsageError if the two do not fit together."""
    from hpcfl.algorithms.federated.base import Federation
    from hpcfl.algorithms.federated.dpfedavg import DPFedAvg
    from hpcfl.algorithms.federated.participation import Participation

    devices, weights = protocol.parameters.devices, protocol.parameters.weights
    if weights is not None and np.ptp(weights) > 0:
        raise UsageError(
            f"{options.updates} has unequal weights, and {DP_FEDAVG} hides users who count alike: "
            "leave the weights out"
        )
    federation = Federation(
        sizes=np.ones(devices, np.int64),
        participation=Participation(devices, devices, "balanced", options.seed),
        rounds=options.planned_rounds,
        seed=options.seed,
        protocol=protocol,
        local=None,
    )
    privacy = options.privacy
    assert privacy is not None
    DPFedAvg.check(federation, privacy)
    return DPFedAvg(federation, privacy, secrets_of_noise(options.insecure_seed))


def secrets_of_noise(insecure_seed: int | None) -> NoiseSecrets:
    """Return the source of the noise, which is independent of the devices' keys."""
    return system_noise if insecure_seed is None else insecure_noise(insecure_seed)


def length(options: BenchOptions) -> int:
    """Return the length d of random vectors; raise UsageError if a model does not define it."""
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
