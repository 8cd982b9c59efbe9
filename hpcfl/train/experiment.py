"""Trains a model round by round: every update goes through a real aggregation protocol."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.base import TRAINING, AggregationProtocol
from hpcfl.algorithms.federated.sparsification import (
    SPARSIFIERS,
    Sparsifier,
    pairwise_overlap,
    selection_counts,
)
from hpcfl.bench.experiment import Options
from hpcfl.bench.rounds import Played, keep, play
from hpcfl.comm.transport import Transport
from hpcfl.errors import UsageError
from hpcfl.results.record import RoundRecord
from hpcfl.train.checkpoint import Checkpoint
from hpcfl.train.clients import Clients
from hpcfl.train.sampling import DeviceSampling

if TYPE_CHECKING:
    from hpcfl.learning.training import LocalOptions, Trainer

ALGORITHMS = ("fedavg", *SPARSIFIERS)

FIGURES = (
    "accuracy",
    "loss",
    "participants",
    "bytes_up_total",
    "modelled_seconds",
    "train_seconds",
    "train_cpu_seconds",
    "evaluate_seconds",
    "quantisation_error",
    "clipped_fraction",
    "overlap",
)
DEVICE_FIGURES = ("device_loss",)


@dataclass(frozen=True)
class TrainOptions:
    """What `hpcfl train` was asked for; see ``hpcfl train --help``.

    Attributes
    ----------
    algorithm : str
        The federated algorithm.
    aggregation : Options
        The protocol and its options; its number of rounds is the largest number of rounds.
    local : LocalOptions
        How a device trains.
    """

    algorithm: str
    aggregation: Options
    local: LocalOptions
    dataset: str = "digits"
    data_dir: Path | None = None
    partition: str = "iid"
    model: str | None = None
    per_round: int | None = None
    sampling: str = "exact"
    server_learning_rate: float = 1.0
    server_momentum: float = 0.0
    target_accuracy: float | None = None
    max_seconds: float | None = None
    torch_device: str = "auto"
    error_feedback: bool = False
    device_loss: bool = False
    checkpoint_every: int | None = None
    resume: Path | None = None

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise UsageError(
                f"there is no algorithm {self.algorithm!r}; choose one of {', '.join(ALGORITHMS)}"
            )
        if self.aggregation.rounds < 1:
            raise UsageError(f"--rounds is {self.aggregation.rounds}; it must be at least 1")
        if self.checkpoint_every is not None and self.checkpoint_every < 1:
            raise UsageError(
                f"--checkpoint-every is {self.checkpoint_every}; it must be at least 1"
            )
        if self.target_accuracy is not None and not 0 < self.target_accuracy <= 1:
            raise UsageError(
                f"--target-accuracy is {self.target_accuracy}; it must be above 0, at most 1"
            )
        if not self.server_learning_rate > 0 or not 0 <= self.server_momentum < 1:
            raise UsageError(
                "the server's learning rate must be positive and its momentum at least 0 and "
                f"below 1, not {self.server_learning_rate} and {self.server_momentum}"
            )
        if self.error_feedback and self.algorithm not in SPARSIFIERS:
            raise UsageError(
                f"--error-feedback is for {' and '.join(SPARSIFIERS)}: {self.algorithm} leaves "
                "nothing of an update unsent"
            )
        if self.error_feedback and (self.checkpoint_every is not None or self.resume is not None):
            raise UsageError(
                "--error-feedback cannot be checkpointed: every device keeps what it has not sent, "
                "and a checkpoint holds the server's state alone"
            )

    def check_aggregation(self, protocol: AggregationProtocol) -> None:
        """Refuse a protocol that cannot sum what the algorithm's devices send.

        Raises
        ------
        UsageError
            If updates are sparsified by each device for itself, and masked.
        """
        if self.algorithm in SPARSIFIERS and protocol.summed_in is not None:
            raise UsageError(
                f"{self.algorithm} cannot be aggregated by {protocol.name}: devices choose their "
                "coordinates each for itself, so the masks of a pair would not meet and cancel; "
                "use --aggregate fedavg, or train fedavg with --aggregate sparse, where pairs "
                "choose together"
            )

    def config(self, devices: int, model: str, dim: int) -> dict[str, Any]:
        """Return every option with its value, for the record."""
        flat = {
            name: value
            for name, value in vars(self).items()
            if name not in ("aggregation", "local")
        }
        flat |= asdict(self.aggregation) | asdict(self.local)
        flat |= {"devices": devices, "model": model, "dim": dim}
        return {
            name: str(value) if isinstance(value, Path) else value for name, value in flat.items()
        }


@dataclass(frozen=True)
class RoundResult:
    """What a round of training gave, at the server.

    Attributes
    ----------
    record : RoundRecord
        What the protocol cost, for all n devices.
    figures : dict of str to float
        The names of `FIGURES`: accuracy and loss on the held-out data; bytes that all devices
        sent since the start; modelled seconds of this round (protocol and the slowest device's
        training); elapsed seconds of training (all ranks) and of evaluation; CPU seconds that the
        slowest device trained; root mean square error that clipping and rounding made in a
        coordinate of the aggregate, and the fraction of the values sent that were clipped (NaN for
        protocols that do neither); part of its coordinates that a pair of devices chose both (NaN
        for algorithms that choose none).
    device_figures : dict of str to ndarray of float64, shape (n,)
        The names of `DEVICE_FIGURES` if they were asked for: loss of the model that a round starts
        from, on each device's own data (NaN for those that did not train).
    """

    record: RoundRecord
    figures: dict[str, float]
    device_figures: dict[str, NDArray[np.float64]]


class Training:
    """A model in training on this rank.

    Parameters
    ----------
    options : TrainOptions
        What was asked for.
    clients : Clients
        This rank's data.
    trainer : Trainer
        Trains and evaluates the model on this rank.
    weights : ndarray of float32, shape (d,)
        The weights to start from.
    """

    def __init__(
        self,
        options: TrainOptions,
        clients: Clients,
        trainer: Trainer,
        weights: NDArray[np.float32],
    ) -> None:
        self.weights = weights.copy()
        self._options = options
        self._clients = clients
        self._trainer = trainer
        self._velocity = np.zeros(weights.size)
        self._bytes_up = 0
        self._next_round = 0
        devices = clients.sizes.size
        per_round = options.per_round or devices
        seed = options.aggregation.seed
        self._sampling = DeviceSampling(devices, per_round, options.sampling, seed)
        self._sparsifier: Sparsifier | None = None
        if options.algorithm in SPARSIFIERS:
            self._sparsifier = SPARSIFIERS[options.algorithm](
                options.aggregation.alpha, seed, options.error_feedback
            )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take up the state of an interrupted run, at the server."""
        self._next_round = checkpoint.next_round
        self.weights = checkpoint.weights
        self._velocity = checkpoint.velocity
        self._bytes_up = checkpoint.bytes_up

    def checkpoint(self, config: Mapping[str, Any]) -> Checkpoint:
        """Return the state between two rounds, at the server."""
        return Checkpoint(self._next_round, self.weights, self._velocity, self._bytes_up, config)

    def run(self, transport: Transport, store: Callable[[RoundResult], None] | None) -> None:
        """Train until the target, the rounds or the time are reached.

        Parameters
        ----------
        transport : Transport
            How messages move; every rank with a transport calls this.
        store : callable or None
            Takes every round's result, on the server's rank.

        Raises
        ------
        HpcflError
            If a round cannot end or its aggregate is wrong. The rounds before it are stored.
        """
        start = time.monotonic()
        first = transport.tell(self._next_round)
        for index in range(first, self._options.aggregation.rounds):
            result = self._round(transport, index)
            error, done = None, 0
            if store is not None and result is not None:
                self._next_round = index + 1
                error = keep(partial(store, result), result.record.validated, index)
                done = int(self._is_done(result, time.monotonic() - start))
            transport.wait_for_all()
            transport.agree(error)
            if transport.tell(done):
                return

    def _round(self, transport: Transport, index: int) -> RoundResult | None:
        participants = self._sampling.draw(index)
        sizes = self._clients.sizes[participants]
        protocol, schedule = self._options.aggregation.build(
            len(participants), self.weights.size, sizes / sizes.sum()
        )
        chosen = transport.select(participants)
        options = self._options.aggregation
        updates: dict[int, NDArray[np.float32]] = {}
        cpu = np.zeros(self._clients.sizes.size)
        # Loss, and 1 where there is one: summed over the ranks, of which one has the device.
        losses = np.zeros((2, self._clients.sizes.size))

        def train(live: Mapping[int, Any]) -> None:
            for slot, device in live.items():
                id = participants[slot]
                samples = self._clients.samples(id)
                if self._options.device_loss:
                    losses[:, id] = self._trainer.evaluate(device.model, *samples)[1], 1
                before = time.thread_time()
                seed = np.random.SeedSequence(options.seed, spawn_key=(TRAINING, index, id))
                update = self._trainer.local_update(device.model, *samples, seed, index)
                if self._sparsifier is not None:
                    update = self._sparsifier.sparsify(update, id, index)
                updates[slot] = update
                cpu[id] = time.thread_time() - before

        played = play(
            protocol,
            chosen,
            index=index,
            model=self.weights,
            inputs=updates.__getitem__,
            prepare=train,
            dropouts=schedule.draw(index),
            reduce=options.upload == "reduce",
            insecure_seed=options.insecure_seed,
            with_quantisation=True,
        )
        slowest = transport.max_to_server(float(cpu.max()))
        overlap = self._overlap(transport)
        device_figures = {}
        if self._options.device_loss:
            summed = transport.sum_to_server(losses)
            if summed is not None:
                device_figures["device_loss"] = np.where(summed[1] > 0, summed[0], np.nan)
        if slowest is None:
            return None
        figures = self._conclude(played, participants, slowest) | {"overlap": overlap}
        record = _for_all(played.record, participants, self._clients.sizes.size)
        return RoundResult(record, figures, device_figures)

    def _overlap(self, transport: Transport) -> float:
        """Return the pairwise overlap of the coordinates chosen in this round, at the server."""
        if self._sparsifier is None:
            return float("nan")
        counts = transport.sum_to_server(
            selection_counts(self._sparsifier.selected.values(), self.weights.size)
        )
        self._sparsifier.selected.clear()
        if counts is None:
            return float("nan")
        size = self._sparsifier.count(self.weights.size)
        return pairwise_overlap(counts, int(counts.sum()) // size, size)

    def _conclude(
        self, played: Played, participants: list[int], slowest: float
    ) -> dict[str, float]:
        """Take the server's step and evaluate; return the round's figures."""
        options = self._options
        self._velocity *= options.server_momentum
        self._velocity += played.aggregate
        self.weights -= (options.server_learning_rate * self._velocity).astype(np.float32)

        start = time.monotonic()
        accuracy, loss = self._trainer.evaluate(
            self.weights, self._clients.test_inputs, self._clients.test_labels
        )
        evaluated = time.monotonic() - start

        record = played.record
        modelled = options.aggregation.link.phase_seconds(
            record.bytes_up,
            record.bytes_down,
            record.messages_up,
            record.messages_down,
            record.cpu_seconds,
        )
        self._bytes_up += int(record.bytes_up.sum())
        return {
            "accuracy": accuracy,
            "loss": loss,
            "participants": float(len(participants)),
            "bytes_up_total": float(self._bytes_up),
            "modelled_seconds": float(modelled.sum()) + slowest,
            "train_seconds": played.prepare_seconds,
            "train_cpu_seconds": slowest,
            "evaluate_seconds": evaluated,
            "quantisation_error": played.quantisation_error,
            "clipped_fraction": played.clipped_fraction,
        }

    def _is_done(self, result: RoundResult, elapsed: float) -> bool:
        target, limit = self._options.target_accuracy, self._options.max_seconds
        reached = target is not None and result.figures["accuracy"] >= target
        return reached or (limit is not None and elapsed >= limit)


def _for_all(record: RoundRecord, participants: list[int], devices: int) -> RoundRecord:
    """Return the record of some devices as one of all devices, zero for the others."""
    if len(participants) == devices:
        return record
    phases = len(record.bytes_up)
    whole = RoundRecord.empty(phases, devices)
    for name in ("bytes_up", "bytes_down", "messages_up", "messages_down"):
        getattr(whole, name)[:, participants] = getattr(record, name)
    for name in ("wall_seconds", "cpu_seconds"):
        getattr(whole, name)[:, [*participants, devices]] = getattr(record, name)
    whole.survived[participants] = record.survived
    return replace(
        whole,
        round_seconds=record.round_seconds,
        validated=record.validated,
        warmup=record.warmup,
    )
