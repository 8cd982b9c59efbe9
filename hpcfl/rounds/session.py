"""One run with its results file: what `hpcfl bench` and `hpcfl train` have in common.

A run is built once, as a `Job`, and then plays its rounds. Observers write, print and stop them.
What differs is in the job: where the vectors come from, and what becomes of their sum.
"""

from __future__ import annotations

import shlex
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcfl.algorithms.aggregation.base import AggregationProtocol
from hpcfl.comm.hosts import Hosts
from hpcfl.comm.transport import Transport
from hpcfl.comm.world import World
from hpcfl.errors import HpcflError, UsageError, ValidationError
from hpcfl.options.definition import asked_for, names, options_of
from hpcfl.options.shared import LinkOptions, RunOptions
from hpcfl.report.formats import counted, words
from hpcfl.rounds import memory
from hpcfl.rounds.enrolment import Enrolled, enrol
from hpcfl.rounds.observer import NOBODY, RoundObserver, Together
from hpcfl.rounds.timed import Played
from hpcfl.system.interruption import DEADLINE_SECONDS, Left, current
from hpcfl.system.launch import again
from hpcfl.system.outputs import RESULTS
from hpcfl.system.plugins import blamed

if TYPE_CHECKING:
    from hpcfl.results.reader import Run
    from hpcfl.results.writer import ResultsWriter

# Why rounds end. Ranks are told one of these by its number; the first stands for going on.
REASONS = (
    *("", "rounds", "rel_ci", "max_seconds", "max_rounds", "interrupted"),
    *("target_accuracy", "epsilon"),
)
# What the file says anew when a run goes on.
REPLACED = ("promises", "rounds_repeated")


class Job(ABC):
    """What is played into one results file, as seen from one rank."""

    command: str  # that runs it, ``bench`` or ``train``
    code: tuple[str, ...]  # options that may name code of one's own, the command's argument first
    options: RunOptions  # with all defaults resolved
    asked: RunOptions  # the same as they were given
    protocol: AggregationProtocol  # which sums the vectors of a round
    devices: int  # number N of devices
    dim: int  # number d of coordinates
    rounds: int  # the most that there can be, warm-up included
    first_round: int  # the next one to play, at the server
    name: str  # of what is run, with which names of results files begin
    recorded_as: str  # the protocol, as the files call it
    phases: list[str]  # of a round
    by_rank = True  # whether it is recorded what each rank did with its time, and which died

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Return every option with its value, for the record; None where it has no effect."""

    @abstractmethod
    def go_on_from(self, earlier: Run) -> int:
        """Take up, at the server, an earlier launch; return after how many of its rounds.

        UsageError if there is nothing left to do, or nothing to go on from.
        """

    @abstractmethod
    def over(self) -> str:
        """Return, at the server, why there is no round left to play, one of `REASONS`, "" if not.

        A launch before may have been killed behind the last round.
        """

    @abstractmethod
    def play(
        self, transport: Transport, index: int, enrolled: Enrolled | None, observer: RoundObserver
    ) -> Played | None:
        """Play a round; every rank calls this. Returns its result at the server.

        What devices keep from their enrolment holds secrets: nothing may keep it but the rounds.
        """

    @abstractmethod
    def decide(self, index: int, result: Played) -> str:
        """Return, at the server, why a round that is stored was the last, as `over` does."""

    def run(self, transport: Transport, observer: RoundObserver = NOBODY) -> str:
        """Play rounds until one was the last; every rank calls this.

        `observer.finished` takes the result of each. Returns why it stopped, one of `REASONS`, the
        same on every rank. Raises an HpcflError on every rank if a round cannot end or be stored,
        or its aggregate is wrong. The rounds before it, and a wrong one, have been stored.
        """
        first = transport.tell(self.first_round)
        reason = self.over() if transport.has_server else ""
        reason = REASONS[transport.tell(REASONS.index(reason))]
        if reason:
            return reason
        seed, protocol = self.options.insecure_seed, type(self.protocol)
        enrolled = enrol(protocol, transport, first_round=first, insecure_seed=seed)
        for index in range(first, self.rounds):
            with blamed(f"round {index} of the protocol {self.protocol.name!r}"):
                result = self.play(transport, index, enrolled, observer)
            error: HpcflError | None = None
            if result is not None:
                try:
                    observer.finished(index, result)
                    if not result.right:
                        raise ValidationError(
                            f"the aggregate of round {index} is wrong: it is not the sum of the "
                            "survivors' vectors; the results file keeps the round as evidence"
                        )
                    reason = self.decide(index, result)
                except HpcflError as problem:
                    error = problem
            observer.ended(index)
            # Only the server knows whether any rank was told to leave.
            leaving = transport.max_to_server(float(current().told_to_leave()))
            if not reason and leaving:
                reason = "interrupted"
            reason = REASONS[transport.tell(REASONS.index(reason), error)]
            if reason:
                break
        return reason

    @property
    def own_code(self) -> list[str]:
        """What names code of one's own on a command line: no file decides what is loaded."""
        words = []
        for name in self.code:
            value = getattr(self.asked, name) or ""
            if ":" in value:
                words += [value] if name == self.code[0] else [f"--{name}", value]
        return words

    def written(self) -> dict[str, Any]:
        """Return what `ResultsWriter` takes about figures of training."""
        return {}

    def begin(self, path: Path, run_id: str) -> None:
        """Learn, at the server, where the results are and of which run, before the first round."""
        return

    def keep(self) -> str:
        """Keep now, at the server, what the run can go on with; return why it cannot, "" if it can.

        May be called from another thread.
        """
        return ""


def free(group: type[RunOptions]) -> set[str]:
    """Return the options that may differ between two launches of a run.

    The file says for which link its seconds are modelled: that is none of them.
    """
    return {*names(group, "resumable")} - {*names(LinkOptions)}


def restored(
    world: World,
    group: type[RunOptions],
    given: Mapping[str, Any],
    code: Collection[str],
) -> dict[str, Any]:
    """Return, on every rank, what makes the options of a run that goes on, beside what is given.

    The file that ``resume`` names says what the run was asked for. `code` are the options that may
    name code of one's own. Raises what `~hpcfl.results.restoring.together` does, and a UsageError
    if the file is of another command.
    """
    if given.get("output") is not None:
        raise UsageError("--resume continues in its own file: leave --output out")

    def read() -> dict[str, Any]:
        from hpcfl.options.training import TrainOptions
        from hpcfl.results.reader import load
        from hpcfl.results.restoring import together

        path = Path(given["resume"])
        run = load(path)
        trained = bool(run.training)
        if trained != (group is TrainOptions):
            what, command = ("training", "train") if trained else ("benchmark", "bench")
            raise UsageError(f"{path} is of a {what}: hpcfl {command} --resume {path}")
        return together(group, path, run.asked, run.config, given, free(group), code)

    return world.agreed(read)


def run(
    world: World,
    hosts: Hosts,
    transport: Transport,
    job: Job,
    output: Path,
    observer: RoundObserver,
    command: Sequence[str] | None = None,
    done: Callable[[Path], object] = lambda path: None,
    ended: Callable[[Path], object] = lambda path: None,
) -> None:
    """Play a job into a results file; every rank of the transport calls this.

    The `output` is the file, or the folder for it; a run that is resumed does not use it. `command`
    does just this, for the record; by default it is what was typed. At the server, `done` takes the
    path of the file of a run that has finished, and `ended` after that the path of the file,
    whether the run finished or failed.

    Raises an HpcflError on every rank if something cannot work or fails; finished rounds are kept.
    It is `Left` if a signal told the run to leave.
    """
    interruption = current()
    writer, error = None, None
    if transport.has_server:
        try:
            memory.check(job.protocol, hosts.count, world.tolerant)
            writer = _writer(world, hosts, transport, job, output, command)
            job.begin(writer.path, writer.run_id)
        except HpcflError as problem:
            error = problem
            if writer is not None:
                writer.close("failed")
    transport.raise_everywhere(error)
    if writer is None:
        job.run(transport, observer)
        hosts.counters(transport)
        return

    refused = ""

    def told() -> str:
        on = again(world.size, [job.command, *job.own_code, "--resume", str(writer.path)])
        on = interruption.advice or f"continue with {on}"
        return f"stopped by a signal after {counted(writer.written, 'round')}; {refused or on}"

    def mark() -> None:
        nonlocal refused
        writer.mark_interrupted()
        refused = job.keep()
        interruption.resumable = not refused

    def given_up() -> str:
        return f"{told()} (the next round did not end within {DEADLINE_SECONDS:g} s)"

    try:
        with writer, interruption.writing(mark, given_up):
            reason = job.run(transport, Together(_Writing(writer), observer))
            writer.record_end({"stop_reason": reason, **hosts.counters(transport)})
            if reason == "interrupted":
                refused = job.keep()
                raise Left(told(), resumable=not refused)
        done(writer.path)
    finally:
        ended(writer.path)


class _Writing(RoundObserver):
    def __init__(self, writer: ResultsWriter) -> None:
        self._writer = writer

    def finished(self, index: int, result: Played) -> None:
        self._writer.append(result.record, result.figures)


def _writer(
    world: World,
    hosts: Hosts,
    transport: Transport,
    job: Job,
    output: Path,
    command: Sequence[str] | None,
) -> ResultsWriter:
    """Return the results file, begun or opened to go on with."""
    from hpcfl.results.writer import ResultsWriter, default_path

    place, options, protocol = transport.placement, job.options, job.protocol
    earlier = None if options.resume is None else _earlier(options.resume, job)
    kept = None if earlier is None else job.go_on_from(earlier)
    config = job.config()
    about: dict[str, Any] = {
        "command": shlex.join(command or ["hpcfl", *sys.argv[1:]]),
        "environment": hosts.environment(world.facts(), place),
        "at_end": {"stop_reason": "", **hosts.unknown()},
        "rounds": job.rounds,
        "ranks": place.ranks * job.by_rank,
    }
    if earlier is not None:
        changed = {*REPLACED, *free(type(options))}
        replaced = {name: value for name, value in config.items() if name in changed}
        return ResultsWriter.resume(
            earlier.path,
            config=replaced,
            asked=asked_for(job.asked),
            kept=kept,
            **about,
        )
    path = output
    if RESULTS.is_folder(output):
        path = default_path(output, job.name, job.devices, job.dim)
    return ResultsWriter(
        path,
        protocol=job.recorded_as,
        config=config,
        asked=asked_for(job.asked),
        phases=job.phases,
        devices=job.devices,
        helpers=place.helpers,
        committee=protocol.has_committee,
        failures=world.tolerant and job.by_rank,
        **job.written(),
        **about,
    )


def _earlier(path: Path, job: Job) -> Run:
    """Return the launch to go on with.

    A UsageError says that it is of another configuration, or must not go on.
    """
    from hpcfl.results.reader import load
    from hpcfl.results.schema import stored

    earlier = load(path)
    group = type(job.options)
    # What files hold only if it is given has its default in those that do not.
    known = options_of(group)
    unsaid = {name: known[name].default for name in names(group, "recorded if given")}
    wanted = stored({**unsaid, **job.config(), "protocol": job.recorded_as})
    found = stored({**unsaid, **earlier.config, "protocol": earlier.protocol})
    may_differ = {*free(group), *REPLACED}
    other = [name for name in wanted if name not in may_differ and found.get(name) != wanted[name]]
    if other:
        name = other[0]
        before, now = (words(values.get(name), nothing="none") for values in (found, wanted))
        raise UsageError(
            f"{path} is of a run with {name} {before}, not {now}: leave it out, or give the same"
        )
    if not earlier.validated.all():
        wrong = int(earlier.validated.argmin())
        raise UsageError(
            f"round {wrong} of {path} has a wrong aggregate: the file is kept as evidence, and "
            "it cannot be continued"
        )
    return earlier


def played_in_vain(earlier: Run, kept: int) -> int:
    """Return how many rounds all earlier launches may have played that are not among those kept.

    A launch that did not end by itself may have had the sum of one more than its file has.
    """
    before = int(str(earlier.config.get("rounds_repeated", 0)))
    in_flight = not earlier.environment.get("stop_reason")
    return before + earlier.rounds - kept + in_flight
