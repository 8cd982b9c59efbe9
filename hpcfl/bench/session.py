"""What `hpcfl bench` does: one experiment for each number of devices, each with a results file."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcfl import disturbances
from hpcfl.bench.experiment import Experiment, Options
from hpcfl.comm.world import World
from hpcfl.errors import AgreedError, HpcflError, UsageError

if TYPE_CHECKING:
    from hpcfl.results.writer import ResultsWriter

LOOPBACK_DEVICES = 100


def run(
    world: World,
    options: Options,
    counts: Sequence[int],
    output: Path,
    report: Callable[[Path], None],
    progress: Callable[[], None] = lambda: None,
    command: Sequence[str] | None = None,
) -> None:
    """Run one experiment for each number of devices.

    Parameters
    ----------
    world : World
        The processes at hand.
    options : Options
        What to run.
    counts : sequence of int
        Numbers of devices; empty for the default, a device on every rank but the server's.
    output : path
        Results file, or the folder for results files.
    report : callable
        Takes the path of every finished results file; called on rank 0.
    progress : callable
        Called after every round.
    command : sequence of str, optional
        The command that does just this, for the record; by default what was typed.

    Raises
    ------
    HpcflError
        On every rank, if something cannot work or fails. Finished rounds are kept.
    """
    typed = shlex.join(command or ["hpcfl", *sys.argv[1:]])
    counts = list(counts) or [default_devices(world)]
    experiments = [Experiment.prepare(options, devices) for devices in counts]
    if len(counts) > 1:
        _refuse_single_file(options, output)
    world.agree(_output_error(world, options, output))
    for experiment in experiments:
        error = None
        try:
            _run_one(world, experiment, output, typed, report, progress)
        except AgreedError as agreed:
            error = agreed
        world.settle(error)


def default_devices(world: World) -> int:
    """Return how many devices are run if nobody says otherwise."""
    return world.size - 1 if world.size > 1 else LOOPBACK_DEVICES


def _run_one(
    world: World,
    experiment: Experiment,
    output: Path,
    command: str,
    report: Callable[[Path], None],
    progress: Callable[[], None],
) -> None:
    hosts = world.hosts()
    transport = world.transport(experiment.devices)
    if transport is None:
        return
    writer, error = None, None
    if transport.has_server:
        try:
            writer = _writer(world, experiment, output, command, hosts)
        except HpcflError as problem:
            error = problem
    transport.agree(error)
    if writer is None:
        experiment.run(transport, None)
        return
    with writer:
        reason = experiment.run(transport, writer.append, progress)
        writer.record_end({"stop_reason": reason, **disturbances.after(disturbances.counters())})
    report(writer.path)


def _writer(
    world: World, experiment: Experiment, output: Path, command: str, hosts: list[str]
) -> ResultsWriter:
    from hpcfl import environment
    from hpcfl.results.writer import ResultsWriter, default_path

    protocol = experiment.protocol
    path = output
    if not _is_file(output):
        path = default_path(output, experiment.name, experiment.devices, experiment.updates.dim)
    return ResultsWriter(
        path,
        protocol=experiment.name,
        command=command,
        config=experiment.config(),
        environment=environment.capture(world.facts(), hosts)
        | disturbances.before(disturbances.counters()),
        at_end={"stop_reason": str} | dict.fromkeys(disturbances.AFTER, float),
        phases=protocol.phases(),
        devices=experiment.devices,
        rounds=experiment.options.planned_rounds,
    )


def _is_file(output: Path) -> bool:
    return output.suffix in (".h5", ".hdf5")


def _refuse_single_file(options: Options, output: Path) -> None:
    if _is_file(output):
        raise UsageError(
            f"several numbers of devices give several results files: "
            f"let --output name a folder instead of {output}"
        )
    if options.save_aggregate is not None:
        raise UsageError("--save-aggregate takes one number of devices")
    if options.keep_transcript is not None:
        raise UsageError("--keep-transcript takes one number of devices")


def _output_error(world: World, options: Options, output: Path) -> HpcflError | None:
    """Return, on rank 0, what is wrong with the places that results go to."""
    if world.rank != 0:
        return None
    from hpcfl.results.writer import check_writable

    try:
        check_writable(output)
        if options.save_aggregate is not None:
            _check_file(options.save_aggregate, "aggregate")
        if options.keep_transcript is not None:
            _check_file(options.keep_transcript, "transcript")
    except HpcflError as error:
        return error
    return None


def _check_file(path: Path, what: str) -> None:
    existed = path.exists()
    try:
        path.open("ab").close()
        if not existed:
            path.unlink()
    except OSError as error:
        raise UsageError(f"the {what} cannot be saved to {path}: {error.strerror}") from None
