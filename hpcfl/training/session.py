"""What `hpcfl train` does: data, model, rounds, and a results file."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation import find as find_protocol
from hpcfl.algorithms.aggregation.base import AggregationProtocol
from hpcfl.algorithms.federated import find
from hpcfl.algorithms.federated.base import FederatedAlgorithm
from hpcfl.benchmark.session import devices_on
from hpcfl.comm.hosts import Hosts
from hpcfl.comm.transport import Transport
from hpcfl.comm.world import World
from hpcfl.crypto.groups import GROUPS
from hpcfl.errors import AgreedError, HpcflError, UsageError
from hpcfl.options.definition import asked_for, make
from hpcfl.options.names import DATASETS
from hpcfl.options.training import TrainOptions
from hpcfl.report import brief
from hpcfl.report.formats import counted, number
from hpcfl.results.restoring import chosen
from hpcfl.results.schema import INCOMPLETE, DeviceMetric, Metric
from hpcfl.rounds import memory
from hpcfl.rounds.build import build
from hpcfl.rounds.observer import NOBODY, Leaving, RoundObserver, Together
from hpcfl.rounds.parties import rehearse
from hpcfl.system import outputs
from hpcfl.system.interruption import Left, current
from hpcfl.system.launch import again
from hpcfl.training import checkpoint, clients, defaults, planned
from hpcfl.training.build import (
    check_algorithm,
    claims,
    make_algorithm,
    make_config,
    make_federation,
    with_precision,
)
from hpcfl.training.experiment import RoundResult, Training

if TYPE_CHECKING:
    from torch.nn import Module

    from hpcfl.learning.training import Trainer
    from hpcfl.results.writer import ResultsWriter


@dataclass(frozen=True, repr=False)
class Trained:
    """The result of a run, on rank 0."""

    path: Path  # the results file
    model: str
    weights: NDArray[np.float32]  # after the last round, shape (d,)
    results: list[RoundResult]
    config: Mapping[str, object]  # every option with its value, as the results file has it
    notes: tuple[str, ...] = ()  # what to know of the epsilons, in sentences
    stop_reason: str = ""  # what ended the run, one of `~hpcfl.rounds.loop.REASONS`

    def __repr__(self) -> str:
        accuracy = [result.figures[Metric.ACCURACY] for result in self.results[-1:]]
        return brief.line(
            "Trained",
            f"{self.model}, {counted(self.weights.size, 'parameter')}",
            counted(len(self.results), "round"),
            *(f"accuracy {number(value)}" for value in accuracy),
            end=self.path.name,
        )


def asked(world: World, given: Mapping[str, Any], preset: str | None = None) -> TrainOptions:
    """Return the options that keywords, or a command line, stand for; every rank calls this.

    With ``resume`` they are those that the checkpoint says its run was asked for, but for what may
    be given with another value. Raises what `~hpcfl.training.defaults.asked` does, and a UsageError
    on every rank if something is given that is not as in the checkpoint.
    """
    path = given.get("resume")
    if path is None:
        if given.get("algorithm") is None:
            raise UsageError(
                "no algorithm is given, such as hpcfl train fedavg: hpcfl train --help lists them"
            )
        return defaults.asked(given, preset)
    beside = defaults.with_preset(given, preset)
    options = make(TrainOptions, world.agreed(lambda: checkpoint.restored(Path(path), beside)))
    defaults.check_used(given, options)
    return options


def run(
    world: World,
    options: TrainOptions,
    devices: int | None,
    output: Path,
    observer: RoundObserver = NOBODY,
    command: Sequence[str] | None = None,
    begun: Callable[[Path], object] = lambda path: None,
) -> Trained | None:
    """Train a model, and return the result on rank 0; every rank calls this.

    Within :func:`~hpcfl.system.interruption.noting_signals`, Ctrl-C, SIGTERM and SIGUSR1, on any
    rank, let the round end, and the training leave with a checkpoint. Where the round does not end
    in time, the checkpoint is of the round before.

    There is one device on every rank but the server's, if no number is given. `output` is the
    results file, or the folder for it; `command`, for the record, what does just this (by default
    what was typed). `begun` takes the path of the results file on rank 0. An HpcflError on every
    rank says that something cannot work or fails, with exit status
    `~hpcfl.system.interruption.LEFT_STATUS` if it was told to leave; finished rounds are kept.
    """
    helpers = find_protocol(options.aggregate, options.security).helpers_of(options.helpers)
    count = devices or devices_on(world, 1 + helpers)
    # Wrong options are refused before any data are read.
    check(options, count)
    trained, failed = None, None
    try:
        trained = _run(world, options, count, output, observer, command, begun)
    except AgreedError as agreed:
        failed = agreed
    # Ranks that hold no device have come here before the others.
    world.settle(failed)
    return trained


def check(options: TrainOptions, devices: int) -> None:
    """Refuse, with a UsageError, what cannot work, as far as it is known without the data."""
    name = _model(options)
    _check_convex(options, name)
    check_algorithm(options, devices, _expected_dim(name, options))
    protocol = _protocol(options, devices)
    rehearse(protocol, reduce=options.upload == "reduce", learns=True)


def _model(options: TrainOptions) -> str:
    return options.model or DATASETS[options.dataset].model


def _protocol(options: TrainOptions, devices: int) -> AggregationProtocol:
    """Return the protocol as it is if the data are as they are published."""
    per_round, dim = options.per_round or devices, _expected_dim(_model(options), options)
    return build(options.aggregate, options, per_round, dim, population=devices)[0]


def _run(
    world: World,
    options: TrainOptions,
    count: int,
    output: Path,
    observer: RoundObserver,
    command: Sequence[str] | None,
    begun: Callable[[Path], object],
) -> Trained | None:
    """Do the same with options that can work."""
    from hpcfl.learning import models
    from hpcfl.learning.training import choose_device, single_thread

    interruption = current()
    neighbour = world.rank_on_host()
    wanted = asked_for(replace(options, devices=count))
    name, protocol = _model(options), _protocol(options, count)
    helpers = protocol.helpers
    world.first_alone(lambda: _check_outputs(output))
    mine = clients.load(
        world,
        world.placement(count, helpers=helpers),
        options.dataset,
        options.data_dir,
        options.partition,
        options.seed,
        options.data_fraction,
    )
    hosts = Hosts(world)
    transport = world.transport(count, helpers=helpers)
    if transport is None:
        return None

    refused, model = None, None
    try:
        _check_convex(options, name, mine.classes)
        single_thread()
        model = models.build(name, mine.input_shape, mine.classes, options.seed)
        if transport.has_server and ":" in name:
            _try_out(name, options, mine)
    except HpcflError as problem:  # the same on every rank, or the server's
        refused = problem
    transport.raise_everywhere(refused)
    assert model is not None
    weights = models.get_flat(model)
    options, algorithm = _algorithm(transport, options, mine.sizes, weights.size)
    where = choose_device(options.torch_device, neighbour)
    trainer = _trainer(model, options, where)
    training = Training(options, algorithm, mine, trainer, weights)

    results: list[RoundResult] = []
    error, writer = None, None
    config: dict[str, Any] = {}
    kept = None
    if transport.has_server:
        from hpcfl.results.writer import ResultsWriter, check_room, default_path, predicted_bytes

        path = output
        if outputs.RESULTS.is_folder(path):
            what = protocol.name if options.algorithm == "fedavg" else find(options.algorithm).name
            path = default_path(path, f"train-{what}", count, weights.size)
        config = make_config(options, count, name, weights.size)
        config |= protocol.settings()
        config |= algorithm.settings()
        if mine.incomplete:
            config[INCOMPLETE] = mine.incomplete
            observer.warned(mine.incomplete)
        kept = checkpoint.Checkpoints(checkpoint.path_for(path))
        try:
            memory.check(protocol, hosts.memory(transport.placement))
            if options.resume is not None:
                # An account counts on the precision of all rounds.
                private = find(options.algorithm).private
                free = () if private else chosen(wanted)
                state = checkpoint.load(options.resume, config, free)
                _check_unfinished(state, options)
                if private:
                    state = state.claimed(_rounds_at_risk(state, options))
                    training.restore(state)
                    state.save(options.resume)
                    kept = checkpoint.Checkpoints(kept.path, options.resume, state)
                    config["rounds_repeated"] = state.repeated
                else:
                    training.restore(state)
                # What chance draws for the rounds to come depends on where the run goes on.
                planned.check(options, algorithm, weights.size)
            config["promises"] = claims(protocol, algorithm)
            if options.max_seconds is None and options.target_accuracy is None:
                phases = len(algorithm.phases(protocol))
                check_room(path, predicted_bytes(phases, count, options.rounds, helpers=helpers))
            writer = ResultsWriter(
                path,
                protocol=protocol.name,
                command=shlex.join(command or ["hpcfl", *sys.argv[1:]]),
                config=config,
                asked=wanted,
                environment=hosts.environment(world.facts(), transport.placement),
                at_end={"stop_reason": "", **hosts.unknown()},
                phases=algorithm.phases(protocol),
                devices=count,
                rounds=options.rounds,
                training=tuple(Metric),
                device_training=tuple(DeviceMetric) if options.device_loss else (),
                # A measurement without noise, of every device.
                partition=None if find(options.algorithm).private else mine.table,
                helpers=helpers,
                committee=protocol.has_committee,
            )
        except HpcflError as problem:
            error = problem
    transport.raise_everywhere(error)
    watching = Together(observer, Leaving(interruption.told_to_leave))
    if writer is None or kept is None:
        training.run(transport, watching)
        hosts.counters(transport)
        return None
    keeping = _Keeping(world, training, options, config, wanted, writer, kept, results)
    with (
        writer,
        interruption.writing(writer.mark_interrupted, keeping.given_up, keeping.how_on),
    ):
        begun(writer.path)
        keeping.begin()
        observer.begins(protocol, training.rounds_left, transport.placement)
        reason = training.run(transport, Together(keeping, watching))
        keeping.end(reason, hosts.counters(transport))
    notes = _notes(algorithm)
    return Trained(writer.path, name, training.weights, results, config, notes, reason)


def _expected_dim(name: str, options: TrainOptions) -> int:
    """Return the number of parameters that a model has, if the data are as they are published."""
    from hpcfl.learning import models

    kind = DATASETS[options.dataset]
    if ":" not in name:
        return models.find(name).parameters(kind.shape, kind.classes)
    return models.parameter_count(models.build(name, kind.shape, kind.classes, options.seed))


def _check_outputs(output: Path) -> None:
    """Refuse a results file, or a checkpoint beside it, that cannot be written."""
    outputs.check(output, outputs.RESULTS)
    if not outputs.RESULTS.is_folder(output):
        outputs.check(checkpoint.path_for(output), outputs.CHECKPOINT)


class _Keeping(RoundObserver):
    """Writes results and checkpoints, at the server."""

    def __init__(
        self,
        world: World,
        training: Training,
        options: TrainOptions,
        config: Mapping[str, Any],
        asked: Mapping[str, Any],
        writer: ResultsWriter,
        kept: checkpoint.Checkpoints,
        results: list[RoundResult],
    ) -> None:
        self._training = training
        self._options = options
        self._config = config
        self._asked = asked
        self._writer = writer
        self._kept = kept
        self._results = results
        self._latest = self._state()
        # Code of one's own is named anew.
        own = [options.algorithm] if ":" in options.algorithm else []
        for option, named in (("--aggregate", options.aggregate), ("--model", options.model or "")):
            own += [option, named] if ":" in named else []
        alone = again(world.size, ["train", *own, "--resume", str(kept.path)])
        self._again = current().advice or f"continue with {alone}"

    def begin(self) -> None:
        """Keep what must be kept before the first round."""
        if self._options.resume is None and find(self._options.algorithm).private:
            _claim_first_rounds(self._kept, self._latest, self._options)

    def finished(self, index: int, result: RoundResult) -> None:
        self._writer.append(result.record, result.figures | result.device_figures)
        self._results.append(result)
        self._latest = self._state()
        every = self._options.checkpoint_every
        if every is not None and len(self._results) % every == 0:
            self._kept.save(self._state(at_risk=every))

    def _state(self, at_risk: int = 0) -> checkpoint.Checkpoint:
        return self._training.checkpoint(self._config, self._asked, at_risk)

    def how_on(self) -> str:
        """Say where the finished rounds are, and what there will be to go on from."""
        path, options = self._kept.path, self._options
        told = f"stopped by a signal after {counted(len(self._results), 'round')}, which are in "
        told += str(self._writer.path)
        if options.error_feedback:
            return f"{told}; with --error-feedback the run cannot be continued"
        if path.exists() or current().advice:
            return f"{told}; {self._again}"
        return (
            f"{told}; {self._again} if there is a checkpoint now (to be sure of it, "
            "send SIGUSR1 instead, or give --checkpoint-every)"
        )

    def given_up(self) -> str:
        """Keep what there was before the round that does not end; say how to go on."""
        # It is played again by whoever resumes, with new noise.
        return str(self._left(replace(self._latest, at_risk=1)))

    def end(self, reason: str, counters: Mapping[str, NDArray[np.float64]]) -> None:
        """Write what is known at the end of the rounds; raises `Left` if a signal ended them."""
        self._writer.record_end({"stop_reason": reason, **counters})
        if reason == "interrupted":
            raise self._left(self._state())
        every = self._options.checkpoint_every
        if every is not None and self._results and len(self._results) % every == 0:
            # The last one, after which nothing is played any more.
            self._kept.save(self._state())

    def _left(self, state: checkpoint.Checkpoint) -> Left:
        """Keep the state of a training that was told to leave; return what to tell every rank."""
        told = f"stopped by a signal after {counted(state.next_round, 'round')}"
        if self._options.error_feedback:
            sentence = f"{told}; with --error-feedback the run cannot be continued"
            return Left(sentence, resumable=False)
        try:
            self._kept.save(state)
        except HpcflError as problem:
            return Left(f"{told}, but {problem}", resumable=False)
        return Left(f"{told}; {self._again}")


def _notes(algorithm: FederatedAlgorithm) -> tuple[str, ...]:
    """Return what to know of the epsilons of a run that has ended."""
    if not algorithm.repeated:
        return tuple(algorithm.promises())
    rounds = algorithm.repeated
    return (
        *algorithm.promises(),
        f"{rounds} {'round' if rounds == 1 else 'rounds'} that earlier launches may have played in "
        "vain, after the checkpoints that the run went on from, are counted besides",
    )


def _claim_first_rounds(
    kept: checkpoint.Checkpoints, start: checkpoint.Checkpoint, options: TrainOptions
) -> None:
    """Write a checkpoint before the first round, of the rounds up to the first one after it.

    Whoever starts again after an early death goes on from it, is charged for those rounds, and
    draws anew; without it the same would be drawn once more, and charged once.
    """
    if options.checkpoint_every is not None:
        kept.save(replace(start, at_risk=_rounds_at_risk(start, options)))


def _rounds_at_risk(state: checkpoint.Checkpoint, options: TrainOptions) -> int:
    """Return how many rounds are played, at most, before there is a checkpoint of this launch."""
    remaining = options.rounds - state.next_round
    return min(options.checkpoint_every or remaining, remaining)


def _check_convex(options: TrainOptions, model: str, classes: int | None = None) -> None:
    """Refuse to count on steps that never expand distances where they may.

    The steps are those of clipped gradients. Of a linear model with two classes, a sample's
    gradient is a monotone function of one projection of the model, times a fixed direction, and
    remains so when it is clipped. With three classes clipping turns the gradient field into one
    that is not monotone: the symmetric part of its Jacobian has negative eigenvalues. Other models
    are not convex.
    """
    from hpcfl.learning import models

    if not find(options.algorithm).counts_on_convex or not options.convex or options.steps == 1:
        return
    if models.is_linear(model) and classes in (None, 2):
        return
    what = f"{model} with {classes} classes" if models.is_linear(model) else model
    raise UsageError(
        f"--convex is for linear models of two classes, or --steps 1, and this is {what}, whose "
        "clipped gradient steps may expand distances: leave it out"
    )


def _check_unfinished(state: checkpoint.Checkpoint, options: TrainOptions) -> None:
    rounds = options.rounds
    if state.next_round >= rounds:
        raise UsageError(
            f"{options.resume} has {counted(state.next_round, 'round')} behind it, and --rounds is "
            f"{rounds}: there is nothing left to train"
        )


def _algorithm(
    transport: Transport, options: TrainOptions, sizes: NDArray[np.int64], dim: int
) -> tuple[TrainOptions, FederatedAlgorithm]:
    """Return the algorithm on this rank, and the options with levels and group settled.

    The server alone finds out how much noise there is, and how many levels.
    """
    algorithm, error = None, None
    if transport.has_server:
        try:
            options = with_precision(options, sizes, dim)
            federation = make_federation(options, sizes, dim)
            algorithm = make_algorithm(options, federation)
            # Refused here, and not in the first round.
            planned.check(options, algorithm, dim)
        except HpcflError as problem:
            error = problem
    sigma = getattr(algorithm, "sigma", 1.0)
    groups = list(GROUPS)
    chosen = np.array([sigma, options.levels or 0, groups.index(options.group)], np.float64)
    found = transport.broadcast(chosen.view(np.uint8), error).view(np.float64).tolist()
    if algorithm is not None:
        return options, algorithm
    told = replace(
        options,
        sigma=found[0],
        noise_multiplier=None,
        levels=int(found[1]),
        group=groups[int(found[2])],
        bits=None,
    )
    return told, make_algorithm(told, make_federation(told, sizes, dim))


def _try_out(name: str, options: TrainOptions, data: clients.Clients) -> None:
    """Let a user's model take a training step as devices do; UsageError if it fails.

    On the smallest batch of any device, where the batch normalisation of one sample fails.
    """
    from hpcfl.learning import models
    from hpcfl.learning.training import smallest_batch

    algorithm, remedy = find(options.algorithm), "change the model"
    size = 1 if algorithm.noisy_steps else smallest_batch(options, data.sizes)
    step = f"in a training step on a batch of {counted(size, 'sample')}"
    if algorithm.noisy_steps:
        step = f"where {algorithm.name} takes the gradient of every sample by itself"
    else:
        remedy += ", or choose another --batch-size"
    inputs, labels = np.zeros((size, *data.input_shape), np.float32), np.zeros(size, np.int64)
    seeds = np.random.SeedSequence(options.seed)
    try:
        # Another one, whose running statistics are nobody's.
        model = models.build(name, data.input_shape, data.classes, options.seed)
        trainer = _trainer(model, replace(options, steps=1, epochs=None), "cpu")
        trainer.local_update(models.get_flat(model), inputs, labels, seeds, 0)
    except Exception as error:
        raise UsageError(
            f"the model {name} fails {step}: {models.cause(error)}; {remedy}"
        ) from error


def _trainer(model: Module, options: TrainOptions, where: str) -> Trainer:
    """Return what trains the model, as the algorithm has it."""
    from hpcfl.learning.private import PrivateOptions, PrivateTrainer
    from hpcfl.learning.training import Trainer

    if not find(options.algorithm).noisy_steps:
        return Trainer(model, options, where)
    laplace = options.mechanism == "laplace"
    private = PrivateOptions(
        clip=options.clip_norm,
        clip_norm="l1" if laplace else "l2",
        shuffle=options.shuffle,
    )
    return PrivateTrainer(model, options, private, where)
