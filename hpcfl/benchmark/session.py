"""What `hpcfl bench` does: one experiment for each number of devices, each with a results file."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcfl.algorithms.aggregation import find
from hpcfl.benchmark import experiment as experiments
from hpcfl.benchmark.experiment import Experiment, length
from hpcfl.comm.hosts import Hosts
from hpcfl.comm.placement import Placement
from hpcfl.comm.world import World
from hpcfl.errors import AgreedError, HpcflError, UsageError
from hpcfl.options.bench import BenchOptions
from hpcfl.options.definition import asked_for, make, names, options_of
from hpcfl.options.shared import LinkOptions, check_length
from hpcfl.report.formats import counted, named
from hpcfl.rounds import memory, usage
from hpcfl.rounds.observer import NOBODY, Leaving, RoundObserver, Together
from hpcfl.rounds.timed import Played
from hpcfl.system.interruption import DEADLINE_SECONDS, Interruption, Left, current
from hpcfl.system.launch import again, netlab_link
from hpcfl.system.outputs import RESULTS

if TYPE_CHECKING:
    from hpcfl.results.reader import Run
    from hpcfl.results.writer import ResultsWriter

LOOPBACK_DEVICES = 100
# What may differ between the launch that ended early and the one that goes on. The file says for
# which link its seconds are modelled.
_FREE = {*names(BenchOptions, "resumable")} - {*names(LinkOptions)}
# What the file says anew when a run goes on.
REPLACED = ("promises", "rounds_repeated")


def asked(world: World, given: Mapping[str, Any]) -> BenchOptions:
    """Return the options that keywords, or a command line, stand for; every rank calls this.

    With ``resume`` they are those that the file says its run was asked for, but for what may be
    given with another value. Raises what `~hpcfl.benchmark.experiment.asked` does, and a UsageError
    on every rank if something is given that is not as in the file.
    """
    path = given.get("resume")
    if path is None:
        if given.get("protocol") is None:
            raise UsageError(
                "no protocol is given, such as hpcfl bench secagg: hpcfl bench --help lists them"
            )
        return experiments.asked(given)
    if given.get("output") is not None:
        raise UsageError("--resume continues in its own file: leave --output out")
    check_length(given)
    counts = given.get("devices")
    if counts is not None and len(options_of(BenchOptions)["devices"].read(counts)) > 1:
        raise UsageError("--resume takes one number of devices")
    values = world.agreed(lambda: _restored(Path(path), given))
    options = make(BenchOptions, values)
    usage.check(given, options.protocol, options, usage.of_benchmark(options))
    return options


def _restored(path: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return, on rank 0, what a run that goes on is asked for; what the command says if need be."""
    from hpcfl.results.reader import load
    from hpcfl.results.restoring import together
    from hpcfl.results.schema import CHECKPOINT_SUFFIX

    run = load(path)
    if run.training:
        raise UsageError(
            f"{path} is of a training, which goes on from its checkpoint: hpcfl train --resume "
            f"{path.with_suffix(CHECKPOINT_SUFFIX)}"
        )
    if run.asked is None and given.get("protocol") is not None:
        return asked_for(experiments.asked(given)) | {"resume": str(path)}
    # Within a lab the seconds that are modelled are those of its links.
    typed = {**netlab_link(), **given}
    code = ("protocol", "aggregate")
    return together(BenchOptions, path, run.asked, run.config, typed, _FREE, code)


def run(
    world: World,
    options: BenchOptions,
    counts: Sequence[int],
    output: Path,
    report: Callable[[Path], None],
    observer: RoundObserver = NOBODY,
    command: Sequence[str] | None = None,
    resume: Path | None = None,
    ended: Callable[[Path], None] = lambda path: None,
) -> None:
    """Run one experiment for each number of devices; empty `counts` are the default number.

    Within :func:`~hpcfl.system.interruption.noting_signals`, Ctrl-C, SIGTERM and SIGUSR1, on any
    rank, let the round end, and all ranks leave together. `output` is the results file, or the
    folder for several; `report` takes the path of every finished one, on rank 0, and `ended` after
    it that of every one, whether it finished or failed. `command` does just this, for the record;
    by default it is what was typed. `resume` is the results file of a run of the same configuration
    to go on with, instead of writing to `output`.

    Raises an HpcflError on every rank if something cannot work or fails. Finished rounds are kept.
    Its exit status is `~hpcfl.system.interruption.LEFT_STATUS` if the run was told to leave.
    """
    interruption = current()
    typed = list(command or ["hpcfl", *sys.argv[1:]])
    world.raise_everywhere(_read_otherwise(world, options))
    counts = list(counts) or [default_devices(world, options)]
    if max(counts) > memory.MANY:
        world.raise_everywhere(_too_many(world, counts))
    if options.model is not None and options.dim is None:
        # On one rank: what a hundred load of torch takes more memory than a machine has.
        options = replace(options, dim=world.agreed(lambda: {"d": length(options)})["d"])
    experiments = [Experiment.prepare(options, devices) for devices in counts]
    observer = Together(*_killer(options, world, experiments), observer)
    if world.tolerant and options.keep_transcript is not None:
        raise UsageError(
            "--keep-transcript needs what every device knows, also of those that die: start it "
            "without --with-ft"
        )
    if len(counts) > 1:
        _refuse_single_file(options, output, resume)
    world.raise_everywhere(_output_error(world, options, None if resume is not None else output))
    while experiments:
        # Kept no longer than it runs: it may hold the secret that noise comes from.
        experiment = experiments.pop(0)
        error = None
        try:
            watching = Together(observer, Leaving(interruption.told_to_leave))
            _run_one(
                world, experiment, output, typed, report, ended, watching, resume, interruption
            )
        except AgreedError as agreed:
            error = agreed
        world.settle(error)


def _read_otherwise(world: World, options: BenchOptions) -> UsageError | None:
    """Return, on rank 0, which ranks read other vectors than it does; every rank calls this.

    Rounds would be right all the same: what ranks add is checked against what the same ranks read.
    """
    if options.updates is None or world.size == 1:
        return None
    from hpcfl.rounds.input_files import FileUpdates

    read, failed = "", ""
    try:
        read = FileUpdates(options.updates, None).digest()
    except HpcflError as error:
        failed = str(error)
    told = world.collect("\n".join([platform.node(), read, failed]).encode())
    if told is None:
        return None
    hosts, found, reasons = zip(*(one.decode().split("\n", 2) for one in told), strict=True)
    others = [rank for rank, one in enumerate(found) if one != found[0]]
    if not others:
        return None  # if nobody can read them, all say so
    where = ", ".join(dict.fromkeys(hosts[rank] for rank in others))
    failed = next((f" ({reason})" for reason in reasons if reason), "")
    return UsageError(
        f"{named('rank', others)} (on {where}) and rank 0 (on {hosts[0]}) do not read the same "
        f"from {options.updates}{failed}: let it name the same file on every rank"
    )


def _too_many(world: World, counts: Sequence[int]) -> HpcflError | None:
    """Return, on rank 0, that there are more devices than memory on all hosts."""
    try:
        memory.check_devices(counts, len({*world.hosts()}))
    except HpcflError as error:
        return error if world.rank == 0 else None
    return None


def _killer(
    options: BenchOptions, world: World, experiments: Sequence[Experiment]
) -> list[RoundObserver]:
    if not options.kill:
        return []
    from hpcfl.rounds.kill import Killer, plan

    return [Killer(plan(options.kill, world, experiments), world.rank)]


def default_devices(world: World, options: BenchOptions) -> int:
    """Return how many devices are run if nobody says otherwise.

    One on each rank that is left; in one process as many as a file of updates is for. UsageError if
    that cannot be read.
    """
    if options.updates is not None and world.size == 1:
        from hpcfl.rounds.input_files import FileUpdates

        return FileUpdates(options.updates, None).devices
    helpers = find(options.summed_by, options.security).helpers_of(options.helpers)
    return devices_on(world, options.server_ranks + helpers)


def devices_on(world: World, others: int = 1) -> int:
    """Return how many devices there are by default where so many ranks are the server's or help."""
    return max(1, world.size - others) if world.size > 1 else LOOPBACK_DEVICES


def _run_one(
    world: World,
    experiment: Experiment,
    output: Path,
    command: Sequence[str],
    report: Callable[[Path], None],
    ended: Callable[[Path], None],
    observer: RoundObserver,
    resume: Path | None,
    interruption: Interruption,
) -> None:
    hosts = Hosts(world)
    servers = experiment.options.server_ranks
    helpers = experiment.protocol.helpers
    transport = world.transport(experiment.devices, True, servers, helpers)
    if transport is None:
        return
    writer, earlier, error = None, None, None
    if transport.has_server:
        try:
            if resume is not None:
                earlier = _earlier(resume, experiment)
                experiment.go_on_from(earlier)
            place = transport.placement
            free = hosts.memory(place)
            memory.check(experiment.protocol, free, world.tolerant)
            memory.check_vectors(experiment.protocol, free, place.ranks, place.servers)
            writer = _writer(world, experiment, output, command, hosts, place, earlier)
        except HpcflError as problem:
            error = problem
    transport.raise_everywhere(error)
    if writer is None:
        experiment.run(transport, observer)
        hosts.counters(transport)
        return

    def left() -> str:
        on = interruption.advice or f"continue with {_how_on(world, experiment, writer.path)}"
        return f"stopped by a signal after {counted(writer.written, 'round')}; {on}"

    def given_up() -> str:
        return f"{left()} (the next round did not end within {DEADLINE_SECONDS:g} s)"

    left_over = experiment.options.warmup + experiment.options.rounds - writer.written
    observer.begins(experiment.protocol, max(0, left_over), transport.placement)
    try:
        with writer, interruption.writing(writer.mark_interrupted, given_up, left):
            reason = experiment.run(transport, Together(_Writing(writer), observer), earlier)
            writer.record_end({"stop_reason": reason, **hosts.counters(transport)})
            if reason == "interrupted":
                raise Left(left())
        report(writer.path)
    finally:
        ended(writer.path)


def _how_on(world: World, experiment: Experiment, path: Path) -> str:
    """Return the command that continues a run."""
    # Code of one's own is named anew.
    protocol, aggregate = experiment.asked.protocol, experiment.asked.aggregate or ""
    own = [protocol] if ":" in protocol else []
    own += ["--aggregate", aggregate] if ":" in aggregate else []
    return again(world.size, ["bench", *own, "--resume", str(path)])


class _Writing(RoundObserver):
    def __init__(self, writer: ResultsWriter) -> None:
        self._writer = writer

    def finished(self, index: int, result: Played) -> None:
        self._writer.append(result.record)


def _earlier(path: Path, experiment: Experiment) -> Run:
    """Return the run to go on with.

    A UsageError says that it is of another configuration, has come to its end, or must not go on.
    """
    from hpcfl.report.formats import words
    from hpcfl.results.reader import load
    from hpcfl.results.schema import stored

    run = load(path)
    # What files hold only if it is given has its default in those that do not.
    known = options_of(BenchOptions)
    unsaid = {name: known[name].default for name in names(BenchOptions, "recorded if given")}
    wanted = stored({**unsaid, **experiment.config(), "protocol": experiment.name})
    found = stored({**unsaid, **run.config, "protocol": run.protocol})
    # What noise costs counts the launches before.
    free = {*_FREE, *REPLACED} if experiment.algorithm is not None else _FREE
    other = [name for name in wanted if name not in free and found.get(name) != wanted[name]]
    if other:
        name = other[0]
        before, now = (words(values.get(name), nothing="none") for values in (found, wanted))
        raise UsageError(
            f"{path} is of a run with {name} {before}, not {now}: leave it out, or give the same"
        )
    if run.status == "complete":
        raise UsageError(
            f"{path} is complete, with {counted(run.rounds, 'round')}: there is nothing left to "
            "measure"
        )
    if not run.validated.all():
        wrong = int(run.validated.argmin())
        raise UsageError(
            f"round {wrong} of {path} has a wrong aggregate: the file is kept as evidence, and "
            "it cannot be continued"
        )
    return run


def _writer(
    world: World,
    experiment: Experiment,
    output: Path,
    command: Sequence[str],
    hosts: Hosts,
    placement: Placement,
    earlier: Run | None,
) -> ResultsWriter:
    import shlex

    from hpcfl.results.writer import ResultsWriter, check_room, default_path, predicted_bytes

    protocol = experiment.protocol
    captured = hosts.environment(world.facts(), placement)
    at_end = {"stop_reason": "", **hosts.unknown()}
    if earlier is not None:
        return ResultsWriter.resume(
            earlier.path,
            command=shlex.join(command),
            config={k: v for k, v in experiment.config().items() if k in REPLACED},
            environment=captured,
            rounds=experiment.options.planned_rounds,
            at_end=at_end,
            ranks=placement.ranks,
        )
    path, options = output, experiment.options
    if RESULTS.is_folder(output):
        path = default_path(output, experiment.name, experiment.devices, experiment.updates.dim)
    if options.max_seconds is None:
        # With a limit, nobody knows how many rounds there will be.
        needed = predicted_bytes(
            len(protocol.phases()),
            experiment.devices,
            options.warmup + options.rounds,
            failures=world.tolerant,
            ranks=placement.ranks,
            helpers=placement.helpers,
            committee=protocol.has_committee,
        )
        check_room(path, needed)
    return ResultsWriter(
        path,
        protocol=experiment.name,
        command=shlex.join(command),
        config=experiment.config(),
        asked=asked_for(experiment.asked),
        environment=captured,
        at_end=at_end,
        phases=protocol.phases(),
        devices=experiment.devices,
        rounds=options.planned_rounds,
        failures=world.tolerant,
        ranks=placement.ranks,
        helpers=placement.helpers,
        committee=protocol.has_committee,
    )


def _refuse_single_file(options: BenchOptions, output: Path, resume: Path | None) -> None:
    if resume is not None:
        raise UsageError("--resume takes one number of devices")
    if not RESULTS.is_folder(output):
        raise UsageError(
            f"several numbers of devices give several results files: "
            f"let --output name a folder instead of {output}"
        )
    if options.save_aggregate is not None:
        raise UsageError("--save-aggregate takes one number of devices")
    if options.keep_transcript is not None:
        raise UsageError("--keep-transcript takes one number of devices")


def _output_error(world: World, options: BenchOptions, output: Path | None) -> HpcflError | None:
    """Return, on rank 0, what is wrong with the places that results go to."""
    if world.rank != 0:
        return None
    from hpcfl.system import outputs

    try:
        if options.save_aggregate is not None:
            outputs.check(options.save_aggregate, outputs.AGGREGATE)
        if options.keep_transcript is not None:
            outputs.check(options.keep_transcript, outputs.TRANSCRIPT)
        if output is not None:
            outputs.check(output, outputs.RESULTS)
    except HpcflError as error:
        return error
    return None
