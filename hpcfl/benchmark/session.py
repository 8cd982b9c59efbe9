"""The work of `hpcfl bench`: one experiment and one results file per number of devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hpcfl.algorithms.aggregation import find
from hpcfl.benchmark import experiment as experiments
from hpcfl.benchmark.experiment import Experiment, length
from hpcfl.comm.hosts import Hosts
from hpcfl.comm.world import World
from hpcfl.errors import UsageError
from hpcfl.options.bench import BenchOptions
from hpcfl.options.definition import make, options_of
from hpcfl.options.protocols import refuse
from hpcfl.options.shared import check_length
from hpcfl.rounds import memory
from hpcfl.rounds import session as rounds
from hpcfl.rounds.observer import NOBODY, RoundObserver
from hpcfl.system import machine, outputs
from hpcfl.system.launch import netlab_link

LOOPBACK_DEVICES = 100


def asked(world: World, given: Mapping[str, Any]) -> BenchOptions:
    """Return the options for keywords or a command line; every rank calls this.

    With ``resume`` they come from the results file, except for the options that may be given anew.
    Raise the errors of `~hpcfl.benchmark.experiment.asked` and `~hpcfl.rounds.session.restored`.
    """
    if given.get("resume") is None:
        if given.get("protocol") is None:
            raise UsageError(
                "no protocol is given, such as hpcfl bench secagg: hpcfl bench --help lists them"
            )
        return experiments.asked(given)
    check_length(given)
    counts = given.get("devices")
    if counts is not None and len(options_of(BenchOptions)["devices"].read(counts)) > 1:
        raise UsageError("--resume takes one number of devices")
    # Within a netlab, seconds are modelled for the lab's links.
    beside = {**netlab_link(), **given}
    options = make(BenchOptions, rounds.restored(world, BenchOptions, beside, Experiment.code))
    refuse(given, experiments.unused_by(options), options.protocol)
    return options


def run(
    world: World,
    options: BenchOptions,
    report: Callable[[Path], None],
    observer: RoundObserver = NOBODY,
    command: Sequence[str] | None = None,
    ended: Callable[[Path], None] = lambda path: None,
) -> None:
    """Run one experiment for each number of devices; every rank calls this.

    Within :func:`~hpcfl.system.interruption.noting_signals`, after Ctrl-C, SIGTERM or SIGUSR1 on
    any rank, all ranks leave together at the end of the round. On rank 0, `report` takes the path
    of every finished results file. Then `ended` takes the path of every file, finished or failed.
    `command` is the equivalent command line for the record, by default the one that was typed.

    Raise HpcflError on every rank if something fails. Finished rounds are kept. The exit status is
    `~hpcfl.system.interruption.LEFT_STATUS` if the run was told to leave.
    """
    counts = options.devices or (default_devices(world, options),)
    hosts = len({*world.hosts()})
    most, needed = max(counts), memory.DEVICE_BYTES * max(counts) / max(1, hosts)
    # Every protocol needs this memory, so check it before one is made.
    world.first_alone(
        lambda: machine.check_memory(f"{most} devices", needed, "give fewer --devices")
    )
    if options.model is not None and options.dim is None:
        # Only on one rank: torch on a hundred ranks takes more memory than a machine has.
        options = replace(options, dim=world.agreed(lambda: {"d": length(options)})["d"])
    prepared = [Experiment.prepare(options, devices) for devices in counts]
    if world.tolerant and options.keep_transcript is not None:
        raise UsageError(
            "--keep-transcript needs what every device knows, also of those that die: start it "
            "without --with-ft"
        )
    world.first_alone(lambda: _check_outputs(options, len(counts)))
    while prepared:
        # Drop each experiment after its run: it may hold the secret source of the noise.
        run_one = partial(_run_one, world, prepared.pop(0), observer, command, report, ended)
        world.settle_after(run_one)


def _run_one(
    world: World,
    experiment: Experiment,
    observer: RoundObserver,
    command: Sequence[str] | None,
    report: Callable[[Path], None],
    ended: Callable[[Path], None],
) -> None:
    hosts = Hosts(world)
    options, helpers = experiment.options, experiment.protocol.helpers
    transport = world.transport(experiment.devices, True, options.server_ranks, helpers)
    if transport is None:
        return
    rounds.run(
        *(world, hosts, transport, experiment, options.output, observer, command),
        done=report,
        ended=ended,
    )


def default_devices(world: World, options: BenchOptions) -> int:
    """Return the default number of devices.

    It is one per free rank, or in one process the number of rows in a file of updates. Raise
    UsageError if the file cannot be read.
    """
    if options.updates is not None and world.size == 1:
        from hpcfl.rounds.input_files import FileUpdates

        return FileUpdates(options.updates, None).devices
    helpers = find(options.summed_by, options.security).helpers_of(options.helpers)
    return devices_on(world, options.server_ranks + helpers)


def devices_on(world: World, others: int = 1) -> int:
    """Return the default number of devices if `others` ranks are the server's or helpers."""
    return max(1, world.size - others) if world.size > 1 else LOOPBACK_DEVICES


def _check_outputs(options: BenchOptions, runs: int) -> None:
    """Raise UsageError for output paths that cannot be written."""
    if runs > 1 and not outputs.RESULTS.is_folder(options.output):
        raise UsageError(
            f"several numbers of devices give several results files: "
            f"let --output name a folder instead of {options.output}"
        )
    for name, path, kind in (
        ("save-aggregate", options.save_aggregate, outputs.AGGREGATE),
        ("keep-transcript", options.keep_transcript, outputs.TRANSCRIPT),
    ):
        if path is not None and runs > 1:
            raise UsageError(f"--{name} takes one number of devices")
        if path is not None:
            outputs.check(path, kind)
    if options.resume is None:
        outputs.check(options.output, outputs.RESULTS)
