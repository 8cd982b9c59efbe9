"""The commands that a cell of a sweep can run: `hpcfl bench` and `hpcfl train`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, ClassVar

from hpcfl.comm.world import World
from hpcfl.errors import HpcflError, UsageError
from hpcfl.options.bench import DEFAULT_DIM, DP_FEDAVG, BenchOptions
from hpcfl.options.definition import Option, OptionGroup, options_of
from hpcfl.options.names import DATASETS, FILES
from hpcfl.options.training import TrainOptions
from hpcfl.rounds.observer import RoundObserver
from hpcfl.values import dataclass, replace


@dataclass(frozen=True)
class Described:
    """The description of a combination of options, whether it can work or not."""

    name: str  # prefix of the name of its results file
    protocol: str  # its name in the results
    devices: int
    dim: int | None  # None for training, where it depends on the data
    rounds: int  # planned number, warm-up included; an upper bound
    algorithm: str | None = None  # of training
    task: str | None = None  # of training: the model and the data set


class Bench:
    """`hpcfl bench`, whose options a plan can combine."""

    name: ClassVar[str] = "bench"
    subject: ClassVar[str] = "protocol"  # a plan's key for the command's positional argument
    group: ClassVar[type[OptionGroup]] = BenchOptions

    def __init__(self) -> None:
        # Options for output files are not allowed: all cells would write to the same place.
        self.keys: dict[str, Option] = {
            about.dashed: about
            for about in options_of(self.group).values()
            if not {"launch", "output"} & {*about.marks}
        }

    def parse(self, arguments: Sequence[str]) -> Any:
        """Return the options for the arguments: the subject, then ``--name=value``."""
        subject, *typed = arguments
        given: dict[str, Any] = {self.subject: subject}
        for text in typed:
            key, equals, value = text.removeprefix("--").partition("=")
            given[self.keys[key].name] = value if equals else True
        return self.resolved(given)

    def used(self, subject: str, options: Mapping[str, str]) -> dict[str, str]:
        """Return a combination's options without the unused ones; all if it cannot work."""
        values = {self.keys[key].name: value for key, value in options.items()}
        try:
            unused = self.unused(self.resolved({self.subject: subject, **values}))
        except UsageError:
            return dict(options)  # the error is reported when the plan's cells are made
        return {key: value for key, value in options.items() if self.keys[key].name not in unused}

    def find(self, name: str) -> None:
        """Raise UsageError if there is no such subject."""
        if name != DP_FEDAVG:
            from hpcfl.algorithms.aggregation import find

            find(name)

    def resolved(self, given: Mapping[str, Any]) -> Any:
        """Return the options for keywords; unused ones are allowed."""
        from hpcfl.benchmark.experiment import resolved

        return resolved(given)

    def unused(self, options: Any) -> Set[str]:
        """Return the names of options that the run does not use."""
        from hpcfl.benchmark.experiment import unused_by

        return unused_by(options)

    def describe(self, options: Any) -> Described:
        """Return the description of the options."""
        from hpcfl.benchmark.experiment import Experiment

        (devices,) = options.devices
        try:
            experiment = Experiment.prepare(options, devices)
            # This name distinguishes dp-fedavg from the protocol that sums its noisy updates.
            name, dim = experiment.name, experiment.updates.dim
        except HpcflError:
            name, dim = options.summed_by, options.dim or DEFAULT_DIM
        return Described(name, name, devices, dim, options.planned_rounds)

    def check(self, options: Any) -> None:
        """Raise HpcflError if the options cannot work, as far as that is known before the run."""
        from hpcfl.benchmark.experiment import Experiment

        (devices,) = options.devices
        Experiment.prepare(options, devices)

    def run(
        self, world: World, options: Any, observer: RoundObserver, command: Sequence[str]
    ) -> None:
        """Run the options; `command` is the equivalent command line. Raise the command's errors."""
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
        assert options.devices is not None  # every plan sets it
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

        # A checkpoint after every round lets a killed cell continue after its last round.
        every = None if options.error_feedback else options.checkpoint_every or 1
        session.run(world, replace(options, checkpoint_every=every), observer, command)


COMMANDS: dict[str, Bench] = {command.name: command for command in (Bench(), Train())}
