"""The work of `hpcfl train`: data, model, rounds, and a results file."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation import find as find_protocol
from hpcfl.algorithms.federated import find
from hpcfl.algorithms.federated.base import FederatedAlgorithm
from hpcfl.benchmark.session import devices_on
from hpcfl.comm.hosts import Hosts
from hpcfl.comm.transport import Transport
from hpcfl.comm.world import World
from hpcfl.errors import HpcflError, UsageError
from hpcfl.options.definition import make
from hpcfl.options.names import DATASETS
from hpcfl.options.training import TrainOptions
from hpcfl.rounds import session as rounds
from hpcfl.rounds.observer import NOBODY, RoundObserver
from hpcfl.system import outputs
from hpcfl.training import checkpoint, clients, defaults
from hpcfl.training.build import (
    check_algorithm,
    check_noise,
    make_algorithm,
    make_federation,
    with_precision,
)
from hpcfl.training.experiment import Training, without_model

if TYPE_CHECKING:
    from torch.nn import Module

    from hpcfl.learning.training import Trainer


def asked(world: World, given: Mapping[str, Any], preset: str | None = None) -> TrainOptions:
    """Return the options for keywords or a command line; every rank calls this.

    With ``resume`` they come from the results file, except for the options that may be given anew.
    Raise the errors of `~hpcfl.training.defaults.asked` and `~hpcfl.rounds.session.restored`.
    """
    if given.get("resume") is None:
        if given.get("algorithm") is None:
            raise UsageError(
                "no algorithm is given, such as hpcfl train fedavg: hpcfl train --help lists them"
            )
        return defaults.asked(given, preset)
    beside = defaults.with_preset(given, preset)
    options = make(TrainOptions, rounds.restored(world, TrainOptions, beside, Training.code))
    defaults.check_used(given, options)
    return options


def run(
    world: World,
    options: TrainOptions,
    observer: RoundObserver = NOBODY,
    command: Sequence[str] | None = None,
    ended: Callable[[Path], object] = lambda path: None,
) -> tuple[Path, NDArray[np.float32]] | None:
    """Train a model; return the results file and the model, shape (d,), on rank 0.

    Every rank calls this.

    Within :func:`~hpcfl.system.interruption.noting_signals`, after Ctrl-C, SIGTERM or SIGUSR1 on
    any rank, the training leaves with a checkpoint at the end of the round. If the round does not
    end in time, the checkpoint is that of the round before.

    `command` is the equivalent command line for the record, by default the one that was typed.
    `ended` takes the path of the results file on rank 0, finished or failed. Raise HpcflError on
    every rank if something fails, with exit status `~hpcfl.system.interruption.LEFT_STATUS` if the
    run was told to leave; finished rounds are kept.
    """
    helpers = find_protocol(options.aggregate, options.security).helpers_of(options.helpers)
    options = replace(options, devices=options.devices or devices_on(world, 1 + helpers))
    assert options.devices is not None
    # Refuse wrong options before any data are read.
    check(options, options.devices)
    # Ranks without devices settle before the others.
    count = options.devices
    return world.settle_after(lambda: _run(world, options, count, observer, command, ended))


def check(options: TrainOptions, devices: int) -> None:
    """Raise UsageError for options that cannot work, as far as that is known without the data."""
    name = _model(options)
    _check_convex(options, name)
    protocol = check_algorithm(options, devices, _expected_dim(name, options)).protocol
    if "model" not in protocol.phases():
        raise without_model(protocol.name)


def _model(options: TrainOptions) -> str:
    return options.model or DATASETS[options.dataset].model


def _run(
    world: World,
    options: TrainOptions,
    count: int,
    observer: RoundObserver,
    command: Sequence[str] | None,
    ended: Callable[[Path], object],
) -> tuple[Path, NDArray[np.float32]] | None:
    """Train as `run` does, with checked options."""
    from hpcfl.learning import models
    from hpcfl.learning.training import choose_device, single_thread

    neighbour = world.rank_on_host()
    asked, name = options, _model(options)
    helpers = find_protocol(options.aggregate, options.security).helpers_of(options.helpers)
    if options.resume is None:
        world.first_alone(lambda: _check_outputs(options.output))
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
    except HpcflError as problem:  # the same on every rank, or the server's
        refused = problem
    transport.raise_everywhere(refused)
    assert model is not None
    weights = models.get_flat(model)
    options, algorithm = _algorithm(transport, options, mine.sizes, weights.size)
    where = choose_device(options.torch_device, neighbour)
    trainer = _trainer(model, options, where)
    training = Training(options, asked, name, algorithm, mine, trainer, weights)
    if mine.incomplete:
        observer.warned(mine.incomplete)
    finished: list[Path] = []
    rounds.run(
        *(world, hosts, transport, training, options.output, observer, command),
        done=finished.append,
        ended=ended,
    )
    return (finished[0], training.weights) if finished else None


def _expected_dim(name: str, options: TrainOptions) -> int:
    """Return the number of parameters of a model for the published shape of the data."""
    from hpcfl.learning import models

    kind = DATASETS[options.dataset]
    if ":" not in name:
        return models.find(name).parameters(kind.shape, kind.classes)
    return models.parameter_count(models.build(name, kind.shape, kind.classes, options.seed))


def _check_outputs(output: Path) -> None:
    """Raise UsageError if the results file, or a checkpoint beside it, cannot be written."""
    outputs.check(output, outputs.RESULTS)
    if not outputs.RESULTS.is_folder(output):
        outputs.check(checkpoint.path_for(output), outputs.CHECKPOINT)


def _check_convex(options: TrainOptions, model: str, classes: int | None = None) -> None:
    """Raise UsageError if ``convex`` assumes non-expansive steps that may expand distances.

    The steps use clipped gradients. For a linear model with two classes, a sample's gradient is a
    monotone function of one projection of the model, times a fixed direction, also after clipping.
    With three classes, clipping makes the gradient field non-monotone: the symmetric part of its
    Jacobian has negative eigenvalues. Other models are not convex.
    """
    from hpcfl.learning import models

    if not options.convex or options.steps == 1:
        return
    if models.is_linear(model) and classes in (None, 2):
        return
    what = f"{model} with {classes} classes" if models.is_linear(model) else model
    raise UsageError(
        f"--convex is for linear models of two classes, or --steps 1, and this is {what}, whose "
        "clipped gradient steps may expand distances: leave it out"
    )


def _algorithm(
    transport: Transport, options: TrainOptions, sizes: NDArray[np.int64], dim: int
) -> tuple[TrainOptions, FederatedAlgorithm]:
    """Return the options with the final levels and group, and the algorithm on this rank.

    Only the server computes the noise and the number of levels.
    """
    algorithm, error = None, None
    if transport.has_server:
        try:
            options = with_precision(options, sizes, dim)
            federation = make_federation(options, sizes, dim)
            algorithm = make_algorithm(options, federation)
            # Refuse unsuitable noise here, not in the first round.
            check_noise(algorithm)
        except HpcflError as problem:
            error = problem
    chosen = {
        "sigma": float(getattr(algorithm, "sigma", 1.0)),
        "noise_multiplier": None,
        "levels": options.levels,
        "group": options.group,
        "bits": None,
    }
    message = np.frombuffer(repr(chosen).encode(), np.uint8)
    found = transport.broadcast(message if transport.has_server else None, error)
    if algorithm is not None:
        return options, algorithm
    told = replace(options, **ast.literal_eval(found.tobytes().decode()))
    return told, make_algorithm(told, make_federation(told, sizes, dim))


def _trainer(model: Module, options: TrainOptions, where: str) -> Trainer:
    """Return the trainer of the model that the algorithm needs."""
    from hpcfl.learning.private import PrivateOptions, PrivateTrainer
    from hpcfl.learning.training import Trainer

    if not find(options.algorithm).noisy_steps:
        return Trainer(model, options, where)
    laplace = options.mechanism == "laplace"
    private = PrivateOptions(
        clip=options.clip_norm, clip_norm="l1" if laplace else "l2", shuffle=options.shuffle
    )
    return PrivateTrainer(model, options, private, where)
