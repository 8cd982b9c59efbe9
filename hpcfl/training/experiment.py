"""Trains a model round by round: every update goes through a real aggregation protocol."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.aggregation.base import TRAINING, Aggregate
from hpcfl.algorithms.aggregation.quantised import QuantisedProtocol
from hpcfl.algorithms.federated.base import FederatedAlgorithm, FirstStage, Spent
from hpcfl.algorithms.federated.sparsification import pairwise_overlap
from hpcfl.benchmark.experiment import OF_SPARSE
from hpcfl.comm.phases import phase_names
from hpcfl.comm.transport import Transport
from hpcfl.errors import HpcflError, UsageError
from hpcfl.options.definition import options_of, part, recorded
from hpcfl.options.privacy import PrivacyOptions
from hpcfl.options.training import TrainOptions
from hpcfl.report.formats import counted
from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.record import SPENT, SPENT_BY_HELPERS, RoundRecord
from hpcfl.results.schema import INCOMPLETE, Metric
from hpcfl.rounds.build import build
from hpcfl.rounds.clock import timed
from hpcfl.rounds.driver import Round, RoundConfig
from hpcfl.rounds.enrolment import Enrolled
from hpcfl.rounds.eventclock import clock_of
from hpcfl.rounds.inputs import Held
from hpcfl.rounds.ledger import Ledger
from hpcfl.rounds.observer import NOBODY, RoundObserver
from hpcfl.rounds.session import Job, played_in_vain
from hpcfl.rounds.timed import Played, play
from hpcfl.training import checkpoint as checkpoints
from hpcfl.training.build import claims
from hpcfl.training.checkpoint import Checkpoint
from hpcfl.training.clients import Clients

if TYPE_CHECKING:
    from hpcfl.learning.training import Trainer
    from hpcfl.results.reader import Run


class Training(Job):
    """A model in training on this rank, from initial weights of shape (d,).

    `asked` are the options as given, `options` those with the final levels and group.
    """

    command = "train"
    code = ("algorithm", "aggregate", "model")
    by_rank = False

    def __init__(
        self,
        options: TrainOptions,
        asked: TrainOptions,
        model: str,
        algorithm: FederatedAlgorithm,
        clients: Clients,
        trainer: Trainer,
        weights: NDArray[np.float32],
    ) -> None:
        self.options: TrainOptions = options
        self.asked: TrainOptions = asked
        self.protocol = protocol = algorithm.federation.protocol
        self.algorithm = algorithm
        self.model = model
        self._clients = clients
        self._trainer = trainer
        self.weights = weights.copy()  # the model, shape (d,)
        self.devices, self.dim = clients.sizes.size, weights.size
        self.rounds, self.first_round = options.rounds, 0
        subject = protocol.name if options.algorithm == "fedavg" else algorithm.name
        self.name, self.recorded_as = f"train-{subject}", protocol.name
        self.phases = algorithm.phases(protocol)
        private = algorithm.name if algorithm.private else None
        self.clock = clock_of(options, self.devices, type(protocol), private)
        if self.clock is not None and algorithm.first_stage is not None:
            raise UsageError(f"--population does not cover the first stage of {algorithm.name}")
        if self.clock is not None and self.clock.loses_devices and options.error_feedback:
            raise UsageError(
                "--error-feedback counts what a late device has sent as sent: leave it out, or "
                "--quorum, --deadline and a table with absences"
            )
        self._bytes_up = 0
        self._accuracy = float("nan")  # after the last round of an earlier launch
        self._survivors: list[int] = []
        self._kept = Path()  # where checkpoints are written
        self._saving = threading.Lock()
        self._run_id = ""
        self._latest = self._checkpoint()

    def config(self) -> dict[str, Any]:
        """Return every option with its value, for the record; None if it has no effect."""
        options = self.options
        config = {"algorithm": options.algorithm, "protocol": options.aggregate} | recorded(options)
        config["data_dir"] = None if options.data_dir is None else str(options.data_dir)
        if not self.algorithm.private:
            config = {name: config[name] for name in config.keys() - options_of(PrivacyOptions)}
        if not self.protocol.sparse_upload:
            config |= dict.fromkeys(OF_SPARSE)
        config |= {"devices": self.devices, "model": self.model, "dim": self.dim}
        config |= self.protocol.settings()
        config |= self.algorithm.settings()
        if self.clock is not None:
            config["population_table"] = self.clock.population.digest
        if self._clients.incomplete:
            config[INCOMPLETE] = self._clients.incomplete
        if self.algorithm.repeated:
            config["rounds_repeated"] = self.algorithm.repeated
        return config | {"promises": claims(self.protocol, self.algorithm)}

    def written(self) -> dict[str, Any]:
        """Return the arguments of `ResultsWriter` for training."""
        return {
            "training": tuple(Metric),
            # The class counts of each device have no noise, so private runs leave them out.
            "partition": None if self.algorithm.private else self._clients.table,
        }

    def go_on_from(self, earlier: Run) -> int:
        """Resume from the checkpoint beside the results; the account counts the lost rounds."""
        if earlier.status == "complete" and earlier.rounds >= self.rounds:
            raise UsageError(
                f"{earlier.path} has {counted(earlier.rounds, 'round')}, and --rounds is "
                f"{self.rounds}: there is nothing left to train"
            )
        found = checkpoints.load(earlier.path, earlier.run_id)
        kept = found.next_round
        if kept > min(earlier.rounds, self.rounds):
            raise UsageError(
                f"the checkpoint of {earlier.path} is behind round {kept}, the file has "
                f"{counted(earlier.rounds, 'round')}, and --rounds is {self.rounds}: give more "
                "--rounds, or begin anew if the file has lost some"
            )
        self.first_round, self.weights = kept, found.weights
        if kept:
            self._bytes_up = int(earlier.training[Metric.BYTES_UP_TOTAL][kept - 1])
            self._accuracy = float(earlier.training[Metric.ACCURACY][kept - 1])
        self._survivors = earlier.survived[:kept].sum(axis=1).tolist()
        repeated = played_in_vain(earlier, kept) if self.algorithm.private else 0
        self.algorithm.resume(self._survivors, repeated)
        self._latest = self._checkpoint()
        return kept

    def begin(self, path: Path, run_id: str) -> None:
        """Write a checkpoint before the first round, so that an early restart resumes from it.

        The restart is then charged for the rounds already played, and draws new noise. Remove a
        checkpoint of another run with the same name.
        """
        self._kept, self._run_id = checkpoints.path_for(path), run_id
        self._latest = self._checkpoint()
        if self.options.checkpoint_every is not None:
            self._save()
        elif self.options.resume is None:
            self._kept.unlink(missing_ok=True)

    def keep(self) -> str:
        """Write a checkpoint of the last finished round; return why that is impossible, else ""."""
        if self.options.error_feedback:
            return "with --error-feedback the run cannot be continued"
        try:
            self._save()
        except HpcflError as problem:
            return str(problem)
        return ""

    def _save(self) -> None:
        """Write the latest checkpoint; the thread that handles signals may do so meanwhile."""
        with self._saving:
            self._latest.save(self._kept)

    def _checkpoint(self) -> Checkpoint:
        return Checkpoint(self.first_round, self.weights.copy(), self._run_id)

    def over(self) -> str:
        return self._reason_to_stop(self._accuracy, 0)

    def run(self, transport: Transport, observer: RoundObserver = NOBODY) -> str:
        # Every rank needs this number to choose the same participants and the right noise.
        self.algorithm.repeated = transport.tell(self.algorithm.repeated)
        self._start, self._since = time.monotonic(), self.first_round
        return super().run(transport, observer)

    def decide(self, index: int, result: Played) -> str:
        elapsed = time.monotonic() - self._start
        reason = self._reason_to_stop(result.figures[Metric.ACCURACY], elapsed)
        # Only now is the round in the results file.
        self._latest = self._checkpoint()
        every = self.options.checkpoint_every
        due = every is not None and (self.first_round - self._since) % every == 0
        if due or (reason and (every is not None or self._kept.exists())):
            self._save()
        return reason

    def play(
        self, transport: Transport, index: int, enrolled: Enrolled | None, observer: RoundObserver
    ) -> Played | None:
        algorithm = self.algorithm
        self._updates, self._cpu = Held(), np.zeros(self.devices)
        participants = algorithm.participants(index)
        first = None
        if algorithm.first_stage is not None:
            first, prepare_seconds, participants = self._invite(
                algorithm.first_stage, transport, index, participants
            )
        played = self._play(
            transport, observer, index, participants, enrolled, with_model=first is None
        )
        slowest = transport.max_to_server(float(self._cpu.max()))
        overlap = self._overlap(transport)
        if slowest is None:
            transport.wait_for_all()
            return None
        record = _for_all(played.record, participants, self.devices)
        if first is not None:
            record = _joined(first, record)
            played = replace(played, prepare_seconds=prepare_seconds)
        played = replace(played, record=record)
        figures = self._conclude(played, participants, index, slowest) | {Metric.OVERLAP: overlap}
        self.first_round = index + 1
        transport.wait_for_all()
        return replace(played, aggregate=None, figures=figures)

    def _play(
        self,
        transport: Transport,
        observer: RoundObserver,
        index: int,
        participants: list[int],
        enrolled: Enrolled | None,
        *,
        with_model: bool,
    ) -> Played:
        """Sum the participants' vectors; with `with_model`, the devices train in this round."""
        algorithm, options = self.algorithm, self.options
        kind = find(options.aggregate, options.security)
        if not participants:
            record = RoundRecord.empty(len(kind.phases()), 0, transport.placement.helpers)
            record.validated = True
            record.event_seconds[:] = 0.0 if self.clock is not None else np.nan
            return Played(record, Aggregate(np.zeros(self.dim), 1.0, 0.0), 0.0)
        if len(participants) < kind.min_devices:
            selected = counted(len(participants), "device")
            raise HpcflError(
                f"round {index} cannot be played: {selected} is selected for it, and {kind.name} "
                f"needs at least {kind.min_devices}; with a larger --per-round chance does that "
                "less often"
            )
        weights = algorithm.weights(participants)
        protocol, schedule = build(
            *(options.aggregate, options, len(participants), self.dim, weights, self.devices)
        )
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
            model=self.weights,
            inputs=lambda slot: self._updates[participants[slot]],
            prepare=partial(self._train, index, participants) if with_model else None,
            dropouts=schedule.draw(index),
            reduce=options.upload == "reduce",
            insecure_seed=options.insecure_seed,
            with_quantisation=True,
            enrolled=enrolled,
            members=participants,
            clock=self.clock,
            observer=observer,
        )

    def _train(
        self, index: int, participants: list[int], live: Mapping[int, Any]
    ) -> dict[int, float]:
        """Let the live devices of this rank train, starting from the model that they received.

        Return the CPU seconds of each.
        """
        algorithm, options, seed = self.algorithm, self.options, self.options.seed
        for slot, device in live.items():
            id = participants[slot]
            samples = self._clients.samples(id)
            received = getattr(device, "model", None)
            if received is None:
                raise without_model(options.aggregate)
            before = time.thread_time()
            # With noisy steps, a device goes through its data in one order, which is the same in
            # all rounds and continues from round to round.
            when = () if algorithm.noisy_steps else (algorithm.play_index(index),)
            seeds = np.random.SeedSequence(seed, spawn_key=(TRAINING, *when, id))
            learn = partial(self._trainer.local_update, received, *samples, seeds, index)
            self._updates[id] = algorithm.contribution(id, index, learn)
            self._cpu[id] = time.thread_time() - before
        return {slot: float(self._cpu[participants[slot]]) for slot in live}

    def _invite(
        self, stage: FirstStage, transport: Transport, index: int, invited: list[int]
    ) -> tuple[RoundRecord, float, list[int]]:
        """Play the first stage, in which the invited devices train.

        Return its record for all n devices, the seconds of training, and the devices kept for the
        second stage, in increasing order.
        """
        count = self.devices
        chosen = transport.select(invited)
        phases = phase_names(stage.steps)
        ledger = Ledger.of(phases, chosen)
        devices = {
            slot: stage.device(invited[slot], index, self.dim) for slot in chosen.local_devices
        }
        server = stage.server(index, self.weights) if chosen.has_server else None
        played = Round(
            *(stage.steps, chosen, ledger),
            RoundConfig(index=index, dim=self.dim, largest_message=8),
            devices=devices,
            server=server,
            inputs=lambda slot: self._updates[invited[slot]],
            prepare=partial(self._train, index, invited),
        )
        record = _for_all(timed(chosen, played), invited, count)
        for slot, device in devices.items():
            if device.kept:
                id = invited[slot]
                self._updates[id] = device.kept_update(self._updates[id])
        told = None
        if server is not None:
            slots = np.array(server.kept, np.int64)
            told = np.array(invited, np.int64)[slots].view(np.uint8)
        kept = transport.broadcast(told).view(np.int64).tolist()
        return record, played.prepare_seconds, kept

    def _overlap(self, transport: Transport) -> float:
        """Return the pairwise overlap of the coordinates chosen in this round, at the server."""
        choices = self.algorithm.take_choices(self.dim)
        if choices is None:
            return float("nan")
        chosen, size = choices
        places = np.concatenate([np.empty(0, np.int64), *chosen])
        counts = transport.sum_to_server(np.bincount(places, minlength=self.dim))
        if counts is None:
            return float("nan")
        return pairwise_overlap(counts, int(counts.sum()) // size, size)

    def _conclude(
        self, played: Played, participants: list[int], index: int, slowest: float
    ) -> dict[str, float]:
        """Update the model at the server and evaluate it; return the round's figures."""
        options = self.options
        assert played.aggregate is not None
        self._survivors.append(int(played.record.survived.sum()))
        self.algorithm.observe(self._survivors[-1])
        update = self.algorithm.update(played.aggregate, participants, index)
        self.weights -= (options.server_learning_rate * update).astype(np.float32)
        spent = self._spent(index) or Spent(float("nan"), float("nan"))

        start = time.monotonic()
        accuracy, loss = self._trainer.evaluate(
            self.weights, self._clients.test_inputs, self._clients.test_labels
        )
        evaluated = time.monotonic() - start

        record = played.record
        modelled = float(part(options, LinkModel).seconds_of(record).sum()) + slowest
        if self.clock is not None:  # whose times have those of training
            modelled = float(record.event_seconds.sum())
        self._bytes_up += int(record.bytes_up.sum())
        return {
            Metric.ACCURACY: accuracy,
            Metric.LOSS: loss,
            Metric.PARTICIPANTS: float(len(participants)),
            Metric.BYTES_UP_TOTAL: float(self._bytes_up),
            Metric.MODELLED_SECONDS: modelled,
            Metric.TRAIN_SECONDS: played.prepare_seconds,
            Metric.TRAIN_CPU_SECONDS: slowest,
            Metric.EVALUATE_SECONDS: evaluated,
            Metric.QUANTISATION_ERROR: played.quantisation_error,
            Metric.CLIPPED_FRACTION: played.clipped_fraction,
            Metric.EPSILON_PAPER: spent.paper,
            Metric.EPSILON_PROVEN: spent.proven,
        }

    def _spent(self, index: int) -> Spent | None:
        """Return the epsilon of all rounds up to this one, with those played in vain."""
        return self.algorithm.spent(self.algorithm.play_index(index) + 1)

    def _reason_to_stop(self, accuracy: float, elapsed: float) -> str:
        target, limit = self.options.target_accuracy, self.options.max_seconds
        if target is not None and accuracy >= target:
            return "target_accuracy"
        if limit is not None and elapsed and elapsed >= limit:
            return "max_seconds"
        if self.first_round >= self.rounds:
            return "rounds"
        spent, epsilon = self._spent(self.first_round), self.options.epsilon
        if spent is None or epsilon is None:
            return ""
        # Noise chosen for this epsilon meets it only up to rounding errors.
        most = spent.paper if self.options.epsilon_by == "paper" else spent.proven
        return "epsilon" if most > epsilon * (1 + 1e-9) else ""


def without_model(name: str) -> UsageError:
    """Return the error for a protocol whose devices receive no model, and so cannot train."""
    return UsageError(
        f"the protocol {name!r} cannot be trained by: before its upload a device must receive the "
        "model in the phase model, float32 of shape (d,), and keep it as model, as "
        "hpcfl.algorithms.aggregation.base.ModelReceiver does"
    )


def _joined(first: RoundRecord, second: RoundRecord) -> RoundRecord:
    """Return the record of two stages; the first stage has the phases `model` and another one."""
    rows: dict[str, Any] = {
        name: np.concatenate([getattr(first, name), getattr(second, name)[1:]])
        for name in (*SPENT, *SPENT_BY_HELPERS)
    }
    return replace(second, **rows, round_seconds=first.round_seconds + second.round_seconds)


def _for_all(record: RoundRecord, participants: list[int], devices: int) -> RoundRecord:
    """Return the record of some devices as a record of all devices, with zeros for the others."""
    if len(participants) == devices:
        return record
    phases = len(record.bytes_up)
    whole = RoundRecord.empty(phases, devices)
    for name in SPENT:
        found = getattr(record, name)
        # Arrays that include the server have it last.
        counted = [*participants, devices][: found.shape[1]]
        getattr(whole, name)[:, counted] = found
    whole.survived[participants] = record.survived
    whole.in_committee[participants] = record.in_committee
    whole.late_phase[participants] = record.late_phase
    whole.late_reason[participants] = record.late_reason
    return replace(
        whole,
        round_seconds=record.round_seconds,
        validated=record.validated,
        warmup=record.warmup,
        promise_failure=record.promise_failure,
        event_seconds=record.event_seconds,
        **{name: getattr(record, name) for name in SPENT_BY_HELPERS},
    )
