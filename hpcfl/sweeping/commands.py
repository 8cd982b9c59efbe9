"""What a cell of a sweep can be: a run of `hpcfl bench`, or one of `hpcfl train`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from hpcfl.comm.world import World
from hpcfl.errors import HpcflError, UsageError
from hpcfl.options.bench import DEFAULT_DIM, DP_FEDAVG, BenchOptions
from hpcfl.options.definition import Option, OptionGroup, options_of
from hpcfl.options.names import DATASETS, FILES
from hpcfl.options.training import TrainOptions
from hpcfl.rounds.observer import RoundObserver


@dataclass(frozen=True)
class Described:
    """What a combination of options stands for, whether it can work or not."""

    name: str  # begins the name of its results file
    protocol: str  # as its results call it
    devices: int
    dim: int | None  # None for training: the data decide it
    rounds: int  # planned, warm-up included; the most there can be
    algorithm: str | None = None  # of training
    task: str | None = None  # what is trained, and on what data


class Bench:
    """`hpcfl bench`, whose options a plan can combine."""

    name: ClassVar[str] = "bench"
    subject: ClassVar[str] = "protocol"  # key of a plan for what is typed after the command
    group: ClassVar[type[OptionGroup]] = BenchOptions

    def __init__(self) -> None:
        # Nothing that writes files can be set: every cell would write to the same place.
        self.keys: dict[str, Option] = {
            about.dashed: about
            for about in options_of(self.group).values()
            if not {"launch", "output"} & {*about.marks}
        }

    def parse(self, arguments: Sequence[str]) -> Any:
        """Return the options that the subject, then ``--name=value``, stand for."""
        subject, *typed = arguments
        given: dict[str, Any] = {self.subject: subject}
        for text in typed:
            key, equals, value = text.removeprefix("--").partition("=")
            given[self.keys[key].name] = value if equals else True
        return self.resolved(given)

    def used(self, subject: str, options: Mapping[str, str]) -> dict[str, str]:
        """Return those of a combination's options that it has a use for; all if it cannot work."""
        values = {self.keys[key].name: value for key, value in options.items()}
        try:
            unused = self.unused(self.resolved({self.subject: subject, **values}))
        except UsageError:
            return dict(options)  # what is wrong is said when the plan's cells are made
        return {key: value for key, value in options.items() if self.keys[key].name not in unused}

    def find(self, name: str) -> None:
        """Refuse, with a UsageError, a subject that there is not."""
        if name != DP_FEDAVG:
            from hpcfl.algorithms.aggregation import find

            find(name)

    def resolved(self, given: Mapping[str, Any]) -> Any:
        """Return the options that keywords stand for, whether all that is given is used or not."""
        from hpcfl.benchmark.experiment import resolved

        return resolved(given)

    def unused(self, options: Any) -> Set[str]:
        """Return the names of options that nothing in the run has a use for."""
        from hpcfl.benchmark.experiment import unused_by

        return unused_by(options)

    def describe(self, options: Any) -> Described:
        """Return what the options stand for."""
        from hpcfl.benchmark.experiment import Experiment

        (devices,) = options.devices
        try:
            experiment = Experiment.prepare(options, devices)
            # The name tells dp-fedavg from the protocol within which it adds its noise.
            name, dim = experiment.name, experiment.updates.dim
        except HpcflError:
            name, dim = options.summed_by, options.dim or DEFAULT_DIM
        return Described(name, name, devices, dim, options.planned_rounds)

    def check(self, options: Any) -> None:
        """Refuse, with an HpcflError, what cannot work, as far as it is known before it runs."""
        from hpcfl.benchmark.experiment import Experiment

        (devices,) = options.devices
        Experiment.prepare(options, devices)

    def run(
        self, world: World, options: Any, observer: RoundObserver, command: Sequence[str]
    ) -> None:
        """Run the options, which `command` stands for; errors are those of the command."""
        from hpcfl.benchmark import session

        session.run(world, options, lambda path: None, observer, command)


class Train(Bench):
    """`hpcfl train`."""

    name, subject, group = "train", "algorithm", TrainOptions

    def __init__(self) -> None:
        super().__init__()
        from hpcfl.training.presets import PRESETS

        about = Option("Settings of a paper.", choices=(*PRESETS,), name="preset", optional=True)
        self.keys["preset"] = about

    def find(self, name: str) -> None:
        from hpcfl.algorithms.federated import find

        find(name)

    def resolved(self, given: Mapping[str, Any]) -> TrainOptions:
        from hpcfl.training.defaults import resolved

        rest = {name: value for name, value in given.items() if name != "preset"}
        return resolved(rest, given.get("preset"))

    def unused(self, options: TrainOptions) -> Set[str]:
        from hpcfl.training.defaults import unused_by

        return unused_by(options) | (set() if options.dataset in FILES else {"data_dir"})

    def describe(self, options: TrainOptions) -> Described:
        assert options.devices is not None  # which every plan says
        model = options.model or DATASETS[options.dataset].model
        subject = options.aggregate if options.algorithm == "fedavg" else options.algorithm
        return Described(
            *(f"train-{subject}", options.aggregate, options.devices, None, options.rounds),
            *(options.algorithm, f"{model} on {options.dataset}"),
        )

    def check(self, options: TrainOptions) -> None:
        from hpcfl.learning import datasets, models
        from hpcfl.training.session import check

        assert options.devices is not None
        check(options, options.devices)
        models.require_torch()
        datasets.check(options.dataset, options.data_dir)

    def run(
        self, world: World, options: TrainOptions, observer: RoundObserver, command: Sequence[str]
    ) -> None:
        from hpcfl.training import session

        # So that a cell that is killed goes on behind its last round.
        every = None if options.error_feedback else options.checkpoint_every or 1
        session.run(world, replace(options, checkpoint_every=every), observer, command)


COMMANDS: dict[str, Bench] = {command.name: command for command in (Bench(), Train())}
