"""Trains a model round by round: every update goes through a real aggregation protocol."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.aggregation.base import TRAINING, Aggregate
from hpcfl.algorithms.aggregation.quantised import QuantisedProtocol
from hpcfl.algorithms.federated.base import FederatedAlgorithm, FirstStage, Spent
from hpcfl.algorithms.federated.sparsification import pairwise_overlap, selection_counts
from hpcfl.comm.phases import phase_names
from hpcfl.comm.transport import Transport
from hpcfl.errors import HpcflError
from hpcfl.options.definition import part
from hpcfl.options.training import TrainOptions
from hpcfl.report import brief, formats
from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.record import RoundRecord
from hpcfl.results.schema import SPENT, SPENT_BY_HELPERS, DeviceMetric, Metric
from hpcfl.rounds import parties
from hpcfl.rounds.clock import timed
from hpcfl.rounds.driver import Round
from hpcfl.rounds.enrolment import Enrolled, enrol
from hpcfl.rounds.inputs import Held
from hpcfl.rounds.ledger import Ledger
from hpcfl.rounds.loop import repeat
from hpcfl.rounds.observer import NOBODY, RoundObserver
from hpcfl.rounds.timed import Played, play
from hpcfl.training import planned
from hpcfl.training.checkpoint import Checkpoint
from hpcfl.training.clients import Clients

if TYPE_CHECKING:
    from hpcfl.learning.training import Trainer


@dataclass(frozen=True, repr=False)
class RoundResult:
    """What a round of training gave, at the server."""

    record: RoundRecord  # what the protocol cost, for all n devices
    figures: dict[str, float]  # a value for each `Metric`
    # A value for each `DeviceMetric`, shape (n,), if they were asked for.
    device_figures: dict[str, NDArray[np.float64]]

    def __repr__(self) -> str:
        accuracy = formats.number(self.figures.get(Metric.ACCURACY))
        return brief.line("RoundResult", f"accuracy {accuracy}", *self.record.words)

    @property
    def right(self) -> bool:
        """Whether the aggregate was found right."""
        return self.record.validated


@dataclass(frozen=True)
class Work:
    """What this rank's devices did in a round."""

    updates: Held
    cpu: NDArray[np.float64]  # seconds of training, shape (n,)
    # Loss, and 1 where there is one, shape (2, n): summed over the ranks, of which one has it.
    losses: NDArray[np.float64]

    @classmethod
    def empty(cls, devices: int) -> Work:
        """Return the work of nobody."""
        return cls(Held(), np.zeros(devices), np.zeros((2, devices)))


@dataclass(frozen=True)
class Invited:
    """The result of the first of two stages of a round."""

    record: RoundRecord  # of all n devices
    kept: list[int]  # the devices of the second stage, increasing
    prepare_seconds: float  # of training


class Training:
    """A model in training on this rank, from the weights given, shape (d,)."""

    def __init__(
        self,
        options: TrainOptions,
        algorithm: FederatedAlgorithm,
        clients: Clients,
        trainer: Trainer,
        weights: NDArray[np.float32],
    ) -> None:
        self._options = options
        self._algorithm = algorithm
        self._clients = clients
        self._trainer = trainer
        self._state = np.concatenate([weights, algorithm.first_state])
        self._dim = weights.size
        self._velocity = np.zeros(weights.size)
        self._bytes_up = 0
        self._next_round = 0
        self._survivors: list[int] = []
        self._enrolled: Enrolled | None = None

    @property
    def weights(self) -> NDArray[np.float32]:
        """The model, shape (d,)."""
        return self._state[: self._dim]

    @property
    def rounds_left(self) -> int:
        """Rounds that are planned and have not been played, at the server."""
        return self._options.rounds - self._next_round

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take up the state of an interrupted run, at the server."""
        self._next_round = checkpoint.next_round
        self._state = checkpoint.weights
        self._velocity = checkpoint.velocity[: self._dim]
        self._bytes_up = checkpoint.bytes_up
        self._survivors = list(checkpoint.survivors)
        self._algorithm.resume(self._survivors, checkpoint.repeated)

    def checkpoint(
        self, config: Mapping[str, Any], asked: Mapping[str, Any], at_risk: int = 0
    ) -> Checkpoint:
        """Return the state between two rounds, at the server; see `Checkpoint`."""
        # Nothing but the model has a velocity.
        velocity = np.append(self._velocity, np.zeros(self._state.size - self._dim))
        return Checkpoint(
            self._next_round,
            self._state.copy(),
            velocity,
            self._bytes_up,
            config,
            asked,
            self._algorithm.repeated,
            at_risk,
            tuple(self._survivors),
        )

    def run(self, transport: Transport, observer: RoundObserver = NOBODY) -> str:
        """Train until the target, the rounds or the time are reached; every rank calls this.

        Returns why it stopped, one of :data:`~hpcfl.rounds.loop.REASONS`, the same on every rank.
        An HpcflError says that a round cannot end or its aggregate is wrong; the rounds before are
        stored. The observer's `finished` takes a `RoundResult`.
        """
        start = time.monotonic()
        first = transport.tell(self._next_round)
        # Who takes part, and what noise there is, every rank finds by itself.
        self._algorithm.repeated = transport.tell(self._algorithm.repeated)
        options = self._options
        self._enrolled = enrol(
            find(options.aggregate, options.security),
            transport,
            first_round=first,
            insecure_seed=options.insecure_seed,
        )
        if transport.tell(int(transport.has_server and self._would_overspend(first))):
            return "epsilon"

        def decide(index: int, result: RoundResult) -> str:
            return self._reason_to_stop(index, result, time.monotonic() - start)

        play_one = partial(self._round, transport, observer)
        return repeat(transport, range(first, options.rounds), play_one, decide, observer)

    def _round(
        self, transport: Transport, observer: RoundObserver, index: int
    ) -> RoundResult | None:
        algorithm = self._algorithm
        work = Work.empty(self._clients.sizes.size)
        participants = algorithm.participants(index)
        first = None
        stage = algorithm.first_stage
        if stage is not None:
            first = self._invite(stage, transport, index, participants, work)
            participants = first.kept
        played = self._play(transport, observer, index, participants, work, first is None)
        slowest = transport.max_to_server(float(work.cpu.max()))
        overlap = self._overlap(transport)
        device_figures: dict[str, NDArray[np.float64]] = {}
        if self._options.device_loss:
            summed = transport.sum_to_server(work.losses)
            if summed is not None:
                device_figures[DeviceMetric.DEVICE_LOSS] = np.where(
                    summed[1] > 0, summed[0], np.nan
                )
        if slowest is None:
            transport.wait_for_all()
            return None
        record = _for_all(played.record, participants, self._clients.sizes.size)
        if self._enrolled is not None:
            self._enrolled.charge(record, index)
        if first is not None:
            record = _joined(first.record, record)
            played = replace(played, prepare_seconds=first.prepare_seconds)
        played = replace(played, record=record)
        figures = self._conclude(played, participants, index, slowest) | {Metric.OVERLAP: overlap}
        self._next_round = index + 1
        transport.wait_for_all()
        return RoundResult(record, figures, device_figures)

    def _play(
        self,
        transport: Transport,
        observer: RoundObserver,
        index: int,
        participants: list[int],
        work: Work,
        with_model: bool,
    ) -> Played:
        """Sum the participants' vectors; what is not yet in `work` is made on the way."""
        algorithm, options = self._algorithm, self._options
        kind = find(options.aggregate, options.security)
        if not participants:
            record = RoundRecord.empty(len(kind.phases()), 0, transport.placement.helpers)
            record.validated = True
            return Played(record, Aggregate(np.zeros(self._state.size), 1.0, 0.0), 0.0)
        if len(participants) < kind.min_devices:
            selected = formats.counted(len(participants), "device")
            raise HpcflError(
                f"round {index} cannot be played: {selected} is selected for it, and {kind.name} "
                f"needs at least {kind.min_devices}; with a larger --per-round chance does that "
                "less often"
            )
        protocol, schedule = planned.summing(options, algorithm, participants, self._state.size)
        if isinstance(protocol, QuantisedProtocol):
            noise = algorithm.integer_noise(protocol, index)
            if noise is not None:
                protocol.add_noise(noise)
        if not with_model:
            protocol.steps = tuple(step for step in protocol.steps if step.phase != "model")
        return play(
            protocol,
            transport.select(participants),
            index=index,
            model=self._state,
            inputs=lambda slot: work.updates[participants[slot]],
            prepare=partial(self._train, index, participants, work) if with_model else None,
            dropouts=schedule.draw(index),
            reduce=options.upload == "reduce",
            insecure_seed=options.insecure_seed,
            with_quantisation=True,
            enrolled=self._enrolled,
            members=participants,
            observer=observer,
        )

    def _train(
        self, index: int, participants: list[int], work: Work, live: Mapping[int, Any]
    ) -> None:
        """Let the live devices of this rank train from the model that they received."""
        algorithm, options, seed = self._algorithm, self._options, self._options.seed
        for slot, device in live.items():
            id = participants[slot]
            samples = self._clients.samples(id)
            received = getattr(device, "model", None)
            if received is None:
                raise parties.without_model(options.aggregate, device)
            model, state = received[: self._dim], received[self._dim :]
            if self._options.device_loss:
                work.losses[:, id] = self._trainer.evaluate(model, *samples)[1], 1
            before = time.thread_time()
            # Of a device that goes through its data in an order of its own, the order is the same
            # in all rounds, and goes on.
            when = () if algorithm.noisy_steps else (algorithm.play_index(index),)
            seeds = np.random.SeedSequence(seed, spawn_key=(TRAINING, *when, id))
            learn = partial(self._trainer.local_update, model, *samples, seeds, index)
            work.updates[id] = algorithm.contribution(id, index, state, learn)
            work.cpu[id] = time.thread_time() - before

    def _invite(
        self,
        stage: FirstStage,
        transport: Transport,
        index: int,
        invited: list[int],
        work: Work,
    ) -> Invited:
        """Play the first stage, in which those invited train, and learn who is kept."""
        count = self._clients.sizes.size
        chosen = transport.select(invited)
        phases = phase_names(stage.steps)
        ledger = Ledger.of(phases, chosen)
        devices = {
            slot: stage.device(invited[slot], index, self._state.size)
            for slot in chosen.local_devices
        }
        server = stage.server(index, self._state) if chosen.has_server else None
        played = Round(
            stage.steps,
            chosen,
            ledger,
            index=index,
            devices=devices,
            server=server,
            inputs=lambda slot: work.updates[invited[slot]],
            prepare=partial(self._train, index, invited, work),
            dropouts={},
            dim=self._state.size,
            largest_message=8,
        )
        record = _for_all(timed(chosen, played), invited, count)
        for slot, device in devices.items():
            if device.kept:
                id = invited[slot]
                work.updates[id] = device.kept_update(work.updates[id])
        told = None
        if server is not None:
            slots = np.array(server.kept, np.int64)
            told = np.array(invited, np.int64)[slots].view(np.uint8)
        kept = transport.broadcast(told).view(np.int64).tolist()
        return Invited(record, kept, played.prepare_seconds)

    def _overlap(self, transport: Transport) -> float:
        """Return the pairwise overlap of the coordinates chosen in this round, at the server."""
        choices = self._algorithm.take_choices(self._dim)
        if choices is None:
            return float("nan")
        chosen, size = choices
        counts = transport.sum_to_server(selection_counts(chosen, self._dim))
        if counts is None:
            return float("nan")
        return pairwise_overlap(counts, int(counts.sum()) // size, size)

    def _conclude(
        self, played: Played, participants: list[int], index: int, slowest: float
    ) -> dict[str, float]:
        """Take the server's step and evaluate; return the round's figures."""
        options = self._options
        state = self._state[self._dim :]
        assert played.aggregate is not None
        self._survivors.append(int(played.record.survived.sum()))
        self._algorithm.observe(self._survivors[-1])
        update = self._algorithm.update(played.aggregate, state, participants, index)
        self._velocity *= options.server_momentum
        self._velocity += update[: self._dim]
        self.weights[:] -= (options.server_learning_rate * self._velocity).astype(np.float32)
        state -= update[self._dim :].astype(np.float32)
        spent = self._spent(index) or Spent(float("nan"), float("nan"))

        start = time.monotonic()
        accuracy, loss = self._trainer.evaluate(
            self.weights, self._clients.test_inputs, self._clients.test_labels
        )
        evaluated = time.monotonic() - start

        record = played.record
        modelled = part(options, LinkModel).seconds_of(vars(record))
        self._bytes_up += int(record.bytes_up.sum())
        return {
            Metric.ACCURACY: accuracy,
            Metric.LOSS: loss,
            Metric.PARTICIPANTS: float(len(participants)),
            Metric.BYTES_UP_TOTAL: float(self._bytes_up),
            Metric.MODELLED_SECONDS: float(modelled.sum()) + slowest,
            Metric.TRAIN_SECONDS: played.prepare_seconds,
            Metric.TRAIN_CPU_SECONDS: slowest,
            Metric.EVALUATE_SECONDS: evaluated,
            Metric.QUANTISATION_ERROR: played.quantisation_error,
            Metric.CLIPPED_FRACTION: played.clipped_fraction,
            Metric.EPSILON_PAPER: spent.paper,
            Metric.EPSILON_PROVEN: spent.proven,
        }

    def _spent(self, index: int) -> Spent | None:
        """Return what the rounds up to this one have cost, with those played in vain."""
        return self._algorithm.spent(self._algorithm.play_index(index) + 1)

    def _would_overspend(self, index: int) -> bool:
        """Return whether a round would cost more privacy than there is to spend."""
        options = self._options
        spent = self._spent(index)
        if spent is None or options.epsilon is None:
            return False
        # What the noise was chosen for is met to the last digits.
        limit = options.epsilon * (1 + 1e-9)
        return (spent.paper if options.epsilon_by == "paper" else spent.proven) > limit

    def _reason_to_stop(self, index: int, result: RoundResult, elapsed: float) -> str:
        target, limit = self._options.target_accuracy, self._options.max_seconds
        if target is not None and result.figures[Metric.ACCURACY] >= target:
            return "target_accuracy"
        if limit is not None and elapsed >= limit:
            return "max_seconds"
        if index + 1 == self._options.rounds:
            return "rounds"
        return "epsilon" if self._would_overspend(index + 1) else ""


def _joined(first: RoundRecord, second: RoundRecord) -> RoundRecord:
    """Return the record of two stages, of which the first has the phases `model` and another."""
    rows: dict[str, Any] = {
        name: np.concatenate([getattr(first, name), getattr(second, name)[1:]])
        for name in (*SPENT, *SPENT_BY_HELPERS)
    }
    return replace(second, **rows, round_seconds=first.round_seconds + second.round_seconds)


def _for_all(record: RoundRecord, participants: list[int], devices: int) -> RoundRecord:
    """Return the record of some devices as one of all devices, zero for the others."""
    if len(participants) == devices:
        return record
    phases = len(record.bytes_up)
    whole = RoundRecord.empty(phases, devices)
    for name in SPENT:
        found = getattr(record, name)
        # Where the server is counted, it is last.
        counted = [*participants, devices][: found.shape[1]]
        getattr(whole, name)[:, counted] = found
    whole.survived[participants] = record.survived
    whole.in_committee[participants] = record.in_committee
    return replace(
        whole,
        round_seconds=record.round_seconds,
        validated=record.validated,
        warmup=record.warmup,
        promise_failure=record.promise_failure,
        **{name: getattr(record, name) for name in SPENT_BY_HELPERS},
    )
