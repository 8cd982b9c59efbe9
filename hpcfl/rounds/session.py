"""One run with its results file: the common part of `hpcfl bench` and `hpcfl train`.

A run is built once, as a `Job`, and then plays its rounds. Observers write, print and stop them.
The jobs differ in the source of the vectors and in the use of their sum.
"""

from __future__ import annotations

import shlex
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcfl.algorithms.aggregation.base import AggregationProtocol
from hpcfl.comm import scratch
from hpcfl.comm.hosts import Hosts
from hpcfl.comm.placement import Placement
from hpcfl.comm.transport import Transport
from hpcfl.comm.world import World
from hpcfl.crypto import native
from hpcfl.errors import HpcflError, UsageError, ValidationError
from hpcfl.options.definition import asked_for, names, options_of
from hpcfl.options.shared import LinkOptions, RunOptions
from hpcfl.report.formats import counted, words
from hpcfl.results.record import RoundRecord
from hpcfl.rounds import memory, rates
from hpcfl.rounds.enrolment import Enrolled, enrol
from hpcfl.rounds.eventclock import EventClock
from hpcfl.rounds.observer import NOBODY, RoundObserver, Together
from hpcfl.rounds.timed import Played
from hpcfl.system.interruption import DEADLINE_SECONDS, Left, current
from hpcfl.system.launch import again, netlab_facts
from hpcfl.system.outputs import RESULTS
from hpcfl.system.plugins import blamed

if TYPE_CHECKING:
    from hpcfl.results.reader import Run
    from hpcfl.results.writer import ResultsWriter

# The reasons to stop. Ranks are told a reason by its index; the first one means to continue.
REASONS = (
    *("", "rounds", "rel_ci", "max_seconds", "max_rounds", "interrupted"),
    *("target_accuracy", "epsilon"),
)
# The entries of the configuration that a resumed run writes again.
REPLACED = ("promises", "rounds_repeated")


class Job(ABC):
    """A run for one results file, as seen from one rank."""

    command: str  # ``bench`` or ``train``
    code: tuple[str, ...]  # options that may name a user's code, the command's argument first
    options: RunOptions  # with all defaults resolved
    asked: RunOptions  # the same as they were given
    protocol: AggregationProtocol  # which sums the vectors of a round
    devices: int  # number N of devices
    dim: int  # number d of coordinates
    rounds: int  # maximum number of rounds, including the warm-up
    first_round: int  # the next one to play, at the server
    name: str  # the beginning of the names of results files
    recorded_as: str  # the name of the protocol in results files
    phases: list[str]  # of a round
    clock: EventClock | None = None  # of a population
    by_rank = True  # whether each rank's use of time, and deaths of ranks, are recorded

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Return every option with its value, for the record; None if it has no effect."""

    @abstractmethod
    def go_on_from(self, earlier: Run) -> int:
        """Resume, at the server, an earlier launch; return the number of its rounds to keep.

        Raise UsageError if no round is left to play, or if the launch cannot be resumed.
        """

    @abstractmethod
    def over(self) -> str:
        """Return, at the server, why no round is left to play, one of `REASONS`; "" if one is left.

        An earlier launch may have been killed after its last round.
        """

    @abstractmethod
    def play(
        self, transport: Transport, index: int, enrolled: Enrolled | None, observer: RoundObserver
    ) -> Played | None:
        """Play a round; every rank calls this. Return its result at the server.

        `enrolled` holds the devices' secrets: a job must not keep it after the round.
        """

    @abstractmethod
    def decide(self, index: int, result: Played) -> str:
        """Return, at the server, why a stored round was the last one, as `over` does."""

    def run(self, transport: Transport, observer: RoundObserver = NOBODY) -> str:
        """Play rounds until the last one; every rank calls this.

        `observer.finished` takes the result of each. Return the reason for the stop, one of
        `REASONS`, the same on every rank. Raise HpcflError on every rank if a round fails, cannot
        be stored, or has a wrong aggregate. Earlier rounds and a wrong one have then been stored.
        """
        native.facts()  # compiled code is loaded here, not in the first round
        first = transport.tell(self.first_round)
        reason = self.over() if transport.has_server else ""
        reason = REASONS[transport.tell(REASONS.index(reason))]
        if reason:
            return reason
        seed, protocol = self.options.insecure_seed, self.protocol
        once = bool(protocol.enrolment_phases())
        if once and transport.has_server:
            observer.enrolling(transport.placement.devices)
        enrolled = enrol(
            protocol,
            transport,
            insecure_seed=seed,
            keep_transport_keys=protocol.parameters.transport_keys == "run",
        )
        if once and enrolled is not None:
            problem: HpcflError | None = None
            try:
                if transport.has_server:
                    observer.enrolled(enrolled.record)
            except HpcflError as raised:
                problem = raised
            transport.raise_everywhere(problem)
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
            # Only the server learns whether any rank was told to leave.
            leaving = transport.max_to_server(float(current().told_to_leave()))
            if not reason and leaving:
                reason = "interrupted"
            reason = REASONS[transport.tell(REASONS.index(reason), error)]
            if reason:
                break
        return reason

    @property
    def own_code(self) -> list[str]:
        """The command-line words that name a user's code: a file never decides what is loaded."""
        words = []
        for name in self.code:
            value = getattr(self.asked, name) or ""
            if ":" in value:
                words += [value] if name == self.code[0] else [f"--{name}", value]
        return words

    def written(self) -> dict[str, Any]:
        """Return the arguments of `ResultsWriter` for figures of training."""
        return {}

    def begin(self, path: Path, run_id: str) -> None:
        """Take, at the server, the results file's path and run id, before the first round."""
        return

    def keep(self) -> str:
        """Save, at the server, the state to resume from; return why that is impossible, else "".

        This may be called from another thread.
        """
        return ""


def free(group: type[RunOptions]) -> set[str]:
    """Return the options that may differ between two launches of a run.

    Options of the link may not: the file has one link for its modelled seconds.
    """
    return {*names(group, "resumable")} - {*names(LinkOptions)}


def restored(
    world: World, group: type[RunOptions], given: Mapping[str, Any], code: Collection[str]
) -> dict[str, Any]:
    """Return, on every rank, the options of a resumed run by name: the file's and the `given` ones.

    The file that ``resume`` names has the options of the run. `code` are the options that may name
    a user's code. Raise the errors of `~hpcfl.results.restoring.together`, and UsageError if the
    file comes from another command.
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

    `output` is the file or its folder; a resumed run ignores it. `command` is the equivalent
    command line for the record, by default the one that was typed. At the server, `done` takes the
    path of the file if the run finished. Then `ended` takes the path in any case.

    Raise HpcflError on every rank if something fails; finished rounds are kept. The error is `Left`
    if a signal told the run to leave.
    """
    interruption = current()
    writer, error = None, None
    scratch.release()  # that of a sweep's cell before
    if transport.has_server:
        try:
            ranks, held = transport.placement.ranks, job.clock is not None
            memory.check(job.protocol, hosts.count, world.tolerant, ranks, held)
        except HpcflError as problem:
            error = problem
    transport.raise_everywhere(error)
    measured = rates.measure(transport, job.protocol)
    if transport.has_server:
        from hpcfl.system.disturbances import warnings

        try:
            environment = measured | _environment(world, hosts, transport.placement, job)
            writer = _writer(world, hosts, transport, job, output, command, environment)
            job.begin(writer.path, writer.run_id)
            for sentence in warnings(environment):
                observer.warned(sentence)
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

    def enrolled(self, record: RoundRecord) -> None:
        self._writer.enrolled(record)

    def finished(self, index: int, result: Played) -> None:
        self._writer.append(result.record, result.figures)


def _environment(world: World, hosts: Hosts, place: Placement, job: Job) -> dict[str, Any]:
    """Return the environment for the record.

    Where ranks share cores, it names the command that has the same results with fewer ranks.
    """
    found = hosts.environment(world.facts(), place)
    enough = place.servers + place.helpers + (found["cores_usable"] or place.ranks)
    if place.ranks > enough and not (hosts.count > 1 or world.tolerant or netlab_facts()):
        typed = [job.command, getattr(job.asked, job.code[0]), "--devices", str(job.devices)]
        found["sooner"] = again(enough, typed)
    return found


def _writer(
    world: World,
    hosts: Hosts,
    transport: Transport,
    job: Job,
    output: Path,
    command: Sequence[str] | None,
    environment: Mapping[str, Any],
) -> ResultsWriter:
    """Return the writer of a new results file, or of the one to resume."""
    from hpcfl.results.writer import ResultsWriter, default_path

    place, options, protocol = transport.placement, job.options, job.protocol
    earlier = None if options.resume is None else _earlier(options.resume, job)
    kept = None if earlier is None else job.go_on_from(earlier)
    if earlier is not None and job.clock is not None:
        job.clock.seconds = float(earlier.event_seconds[:kept].sum())
    config = job.config()
    about: dict[str, Any] = {
        "command": shlex.join(command or ["hpcfl", *sys.argv[1:]]),
        "environment": environment,
        "at_end": {"stop_reason": "", **hosts.unknown()},
        "rounds": job.rounds,
        "ranks": place.ranks * job.by_rank,
    }
    if earlier is not None:
        changed = {*REPLACED, *free(type(options))}
        replaced = {name: value for name, value in config.items() if name in changed}
        return ResultsWriter.resume(
            earlier.path, config=replaced, asked=asked_for(job.asked), kept=kept, **about
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
        once=protocol.enrolment_phases(),
        devices=job.devices,
        helpers=place.helpers,
        committee=protocol.has_committee,
        population=None if job.clock is None else job.clock.population,
        failures=world.tolerant and job.by_rank,
        **job.written(),
        **about,
    )


def _earlier(path: Path, job: Job) -> Run:
    """Return the launch to resume.

    Raise UsageError if it has another configuration or must not continue.
    """
    from hpcfl.results.reader import load
    from hpcfl.results.schema import stored

    earlier = load(path)
    group = type(job.options)
    # Files hold some options only if they were given; in other files these have their defaults.
    known = options_of(group)
    unsaid = {name: known[name].default for name in names(group, "recorded if given")}
    wanted = stored({**unsaid, **job.config(), "protocol": job.recorded_as, "phases": job.phases})
    found = stored(
        {**unsaid, **earlier.config, "protocol": earlier.protocol, "phases": earlier.phases}
    )
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
    """Return how many rounds earlier launches may have played that the run does not keep.

    A launch that was killed may have had the sum of one more round than its file has.
    """
    before = int(str(earlier.config.get("rounds_repeated", 0)))
    in_flight = not earlier.environment.get("stop_reason")
    return before + earlier.rounds - kept + in_flight
