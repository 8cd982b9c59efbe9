"""The Python interface of `hpcfl`, for notebooks, scripts and the command line.

    import hpcfl
    run = hpcfl.bench("secagg", devices=20, dim=10_000, rounds=10)
    run.table()

A single process plays the server and all devices. In a script that `mpirun` starts, every rank
calls the same functions; rank 0 is the server and receives the results, the others receive None.
Options are those of the commands, with underscores. No function prints, handles signals, or ends
the process; errors are :class:`~hpcfl.errors.HpcflError`, on every rank.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hpcfl.comm.world import connect
from hpcfl.errors import HpcflError, UsageError
from hpcfl.options.advise import AdviseOptions
from hpcfl.options.bench import DP_FEDAVG, BenchOptions
from hpcfl.options.definition import Group, OptionGroup, make, options_of, part
from hpcfl.options.exposure import ExposureOptions
from hpcfl.options.predict import PredictOptions
from hpcfl.options.protocols import ProtocolOptions, refuse, unused
from hpcfl.options.shared import SeedOptions, check_length
from hpcfl.options.training import TrainOptions
from hpcfl.report import brief
from hpcfl.results import comparison, frames, pooling, reader, tables
from hpcfl.results.comparison import Comparison
from hpcfl.results.selection import select
from hpcfl.results.summary import Summary, summarise
from hpcfl.rounds.observer import NOBODY, RoundObserver
from hpcfl.values import dataclass

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from hpcfl.advice.advisor import Advice
    from hpcfl.algorithms.aggregation.base import AggregationProtocol
    from hpcfl.algorithms.federated.base import FederatedAlgorithm
    from hpcfl.costmodel.calibration import Calibration
    from hpcfl.costmodel.model import Prediction
    from hpcfl.privacy.exposure import Exposure
    from hpcfl.report.table import Table

Progress = Callable[[int, Any], object]
F = TypeVar("F", bound=Callable[..., Any])


def _takes(group: type[OptionGroup]) -> Callable[[F], F]:
    """Return a decorator that puts options into a function's signature, for help and completion."""

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        *own, _ = signature.parameters.values()
        own += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=about.default)
            for name, about in options_of(group).items()
            if name not in signature.parameters
        ]
        function.__dict__["__signature__"] = signature.replace(parameters=own)
        return function

    return decorate


@dataclass(frozen=True, eq=False, repr=False)
class Run(reader.Run):
    """The run in a results file, with its tables and figures.

    Attributes
    ----------
    weights : ndarray of float32, shape (d,), or None
        The model after the last round of a training that `train` has just run; not in the file.
    """

    weights: NDArray[Any] | None

    def summary(self, **link: float | None) -> Summary:
        """Return the costs of the measured rounds.

        `link` is ``uplink_mbps``, ``downlink_mbps``, ``helper_mbps`` and ``latency_ms`` for the
        modelled seconds; the defaults are the run's own.
        """
        return summarise(self, self.link(**link))

    def table(self, **link: float | None) -> Table:
        """Return the costs of the measured rounds, one row per phase; `link` is as in `summary`."""
        return tables.phases(self.summary(**link))

    def plot(self, kind: str, **options: Any) -> Figure:
        """Draw a figure, as `hpcfl plot --kind` does; see :data:`hpcfl.plots.KINDS`."""
        return plot([self], kind, **options)

    def _repr_html_(self) -> str:
        return self.table().html()


class Runs(tuple[Run, ...]):
    """Several runs, side by side."""

    def table(
        self,
        baseline: str | None = None,
        *,
        columns: Sequence[str] | None = None,
        target_accuracy: float | None = None,
    ) -> Table:
        """Return the costs of rounds, one row per configuration, with ratios to a baseline.

        Runs of one configuration on equal machines are pooled, and so are trainings that differ
        only in their seed. Ratios compare runs of the same N, d, dropout and links.

        Parameters
        ----------
        baseline : str, optional
            Protocol or file of the baseline; by default secagg, or else the first run.
        columns : sequence of str, optional
            Names of :data:`hpcfl.results.columns.COLUMNS` or of options, in the wanted order.
        target_accuracy : float, optional
            Accuracy that training must reach; by default each run's own.
        """
        pools = pooling.group(self, trainings=True)
        found = pooling.summarised(pools, target_accuracy)
        asked = None if columns is None else ",".join(columns)
        return tables.comparison([summary for _, summary in found], baseline, asked)

    def to_frame(
        self,
        columns: Sequence[str] | None = None,
        *,
        target: float | None = None,
        **link: float | None,
    ) -> pd.DataFrame:
        """Return a pandas DataFrame with one row per run, to filter and to group.

        `columns` are names as in ``hpcfl report --columns``; by default all but row numbers and
        ratios, and the options for which a run has a value. `target` is the `target_accuracy` of
        `table`, and `link` is as in `Run.summary`.
        """
        return frames.of_each_run(self, columns, target, **link)

    def rounds_frame(self, **link: float | None) -> pd.DataFrame:
        """Return a pandas DataFrame with one row per run and round, warm-up included.

        A resumed training is one run. Bytes are sums over all devices. A column of seconds names
        its phase and party. `link` is as in `Run.summary`.
        """
        return frames.of_each_round(self, **link)

    def plot(self, kind: str, **options: Any) -> Figure:
        """Draw a figure of all runs, as `hpcfl plot --kind` does."""
        return plot(self, kind, **options)

    def __repr__(self) -> str:
        return brief.lines("Runs", self)

    def _repr_html_(self) -> str:
        return self.table().html() if self else ""


@_takes(BenchOptions)
def bench(
    protocol: str | type[AggregationProtocol] | None = None,
    *,
    progress: Progress | None = None,
    **options: Any,
) -> Run | None:
    """Measure an aggregation protocol, as `hpcfl bench` does; return the run at the server.

    Parameters
    ----------
    protocol : str or type
        Name of a protocol, ``"MODULE:CLASS"``, or your own class. With ``resume=FILE``, the options
        come from the file, and only your own class must be given.
    progress : callable, optional
        Called at the server with the number of every finished round and its
        :class:`~hpcfl.rounds.timed.Played`.
    **options
        Those of ``hpcfl bench --help``. Unknown or incompatible options raise a UsageError. If a
        round fails, an HpcflError is raised, and the rounds before it are in the file.
    """
    from hpcfl.benchmark import session

    world, options = connect(), _named(options)
    named = {} if protocol is None else {"protocol": _name(protocol)}
    wanted = session.asked(world, {**named, **options})
    if len(wanted.devices) > 1:
        raise UsageError("give one number of devices; hpcfl.sweep takes several")
    found: list[Path] = []
    session.run(
        world,
        wanted,
        found.append,
        _observer(progress),
        _command("bench", named.get("protocol"), options),
    )
    return load(found[0]) if found else None


@_takes(TrainOptions)
def train(
    algorithm: str | type[FederatedAlgorithm] | None = None,
    *,
    preset: str | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Run | None:
    """Train a model through an aggregation protocol, as `hpcfl train` does.

    Return the run at the server, with the final `weights`. `preset` is a name in
    :data:`~hpcfl.training.presets.PRESETS`. All else is as in `bench`; the results that `progress`
    receives also have `figures`.
    """
    from hpcfl.training import session

    world, options = connect(), _named(options)
    named = {} if algorithm is None else {"algorithm": _name(algorithm)}
    wanted = session.asked(world, {**named, **options}, preset)
    given = options if preset is None else {"preset": preset, **options}
    trained = session.run(
        world, wanted, _observer(progress), _command("train", named.get("algorithm"), given)
    )
    return None if trained is None else _extended(reader.load(trained[0]), trained[1])


def sweep(
    grid: Mapping[str, Any],
    *,
    output: str | os.PathLike[str] = "results/sweep",
    seed: int | None = 0,
    progress: Progress | None = None,
) -> Runs | None:
    """Run the combinations of options of `bench` or `train` that are not yet in the folder.

    `grid` has the values of options by name, including ``protocol`` or ``algorithm``. Values in
    lists are combined, and each combination runs ``repeats`` times. `seed` shuffles the order; with
    None the order is that of the grid, in which the server always gets the runs. If combinations
    fail, the others still run, and an HpcflError names the first failure.
    """
    from hpcfl.sweeping import cells, plan, session, states
    from hpcfl.sweeping.manifest import arrange

    folder, world = Path(output), connect()
    if seed is not None:
        seed = make(SeedOptions, {"seed": seed}).seed
    dashed = {str(name).replace("_", "-"): _plain(value) for name, value in dict(grid).items()}
    resolved = cells.resolve(plan.combine({"grid": dashed}, "hpcfl.sweep", world.size))
    todo = session.plan_cells(world, folder, lambda: arrange("hpcfl.sweep", resolved, seed), None)
    outcomes = session.run(world, todo, folder, observer=_observer(progress))
    failed = [one for one in outcomes if one.state == session.FAILED]
    error = None
    if failed:
        error = HpcflError(
            f"{len(failed)} of {len(outcomes)} combinations failed; the first, "
            f"{failed[0].cell.title}: {failed[0].sentence}"
        )
    world.settle(error)
    if world.rank != 0:
        return None
    found = (states.look(folder, cell).run for cell in resolved)
    return Runs(_extended(run) for run in found if run is not None)


class Predictions(tuple["Prediction", ...]):
    """Predicted costs of rounds, one for each number of devices and of coordinates."""

    asked: PredictOptions
    calibration: Calibration

    def table(self) -> Table:
        """Return the predictions side by side."""
        from hpcfl.costmodel import tables as of_predictions

        return of_predictions.side_by_side(self, self.asked, self.calibration)

    def _repr_html_(self) -> str:
        return self.table().html()


@_takes(PredictOptions)
def predict(protocol: str | type[AggregationProtocol], **options: Any) -> Predictions:
    """Predict the costs of rounds, as `hpcfl predict` does, from the data of `hpcfl calibrate`."""
    from hpcfl.algorithms.aggregation import find
    from hpcfl.costmodel import model
    from hpcfl.costmodel.calibration import default_path
    from hpcfl.costmodel.calibration import load as load_calibration
    from hpcfl.learning.models import parameters
    from hpcfl.results.linkmodel import LinkModel
    from hpcfl.rounds.build import build
    from hpcfl.rounds.eventclock import clock_of

    name, given = _name(protocol), _named(options)
    if name == DP_FEDAVG:
        raise UsageError(
            f"{DP_FEDAVG} adds its noise within a protocol: give that protocol, such as secagg"
        )
    asked = _resolved(PredictOptions, name, given)
    kind = find(name)  # refuses a wrong name before a calibration is asked for
    lengths = asked.dim if asked.model is None else (parameters(asked.model),)
    known = load_calibration(asked.calibration or default_path())
    link = part(asked, LinkModel)
    found = []
    for count in asked.devices:
        clock = clock_of(asked, count, kind)
        for length in lengths:
            built, _ = build(name, asked, count, length)
            found.append(model.predict(built, known, link, clock))
    predictions = Predictions(found)
    predictions.asked, predictions.calibration = asked, known
    return predictions


@_takes(AdviseOptions)
def advise(**options: Any) -> Advice:
    """Return the protocols that meet the requirements, and their costs, as `hpcfl advise` does."""
    from hpcfl.advice import advisor
    from hpcfl.costmodel.calibration import default_path
    from hpcfl.costmodel.calibration import load as load_calibration
    from hpcfl.rounds.build import with_quorum

    asked = make(AdviseOptions, with_quorum(options))
    return advisor.advise(asked, load_calibration(asked.calibration or default_path()))


@_takes(ExposureOptions)
def exposure(
    protocol: str | type[AggregationProtocol],
    *,
    progress: Callable[[int], object] = lambda done: None,
    **options: Any,
) -> Exposure:
    """Return what a round exposes, as `hpcfl privacy exposure` does.

    `progress` is called with the number of coordinates simulated since its last call.
    """
    from hpcfl.algorithms.aggregation import find
    from hpcfl.privacy import exposure as exposures
    from hpcfl.privacy.population import Population

    name = _name(protocol)
    asked = _resolved(ExposureOptions, name, _named(options))
    kind = find(name)
    if asked.dropout and not kind.tolerates_dropouts:
        raise UsageError(f"{kind.name} refuses rounds with dropouts: give --dropout 0")
    return exposures.exposure(
        kind.name,
        kind.masking(asked.devices, asked),
        Population(asked.devices, asked.colluders, asked.dropout, asked.dropout_model),
        samples=exposures.default_samples(asked.devices),
        seed=asked.seed,
        progress=progress,
    )


def load(path: str | os.PathLike[str]) -> Run:
    """Return the run in a results file; a file that cannot be read raises an HpcflError."""
    return _extended(reader.load(Path(path)))


def load_many(*paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> Runs:
    """Return the runs in results files, folders and patterns such as ``results/*-100x*.h5``."""
    several = [[one] if isinstance(one, str | os.PathLike) else [*one] for one in paths]
    return Runs(map(load, reader.find([path for some in several for path in some])))


def compare(
    a: reader.Run | Sequence[reader.Run],
    b: reader.Run | Sequence[reader.Run],
    metric: str = "round_seconds",
) -> Comparison:
    """Compare the measured rounds of B with those of A, as `hpcfl compare` does.

    Each side is a run, or several launches of one configuration, which are pooled.
    """

    def side(runs: reader.Run | Sequence[reader.Run], name: str) -> pooling.Pool:
        several = [runs] if isinstance(runs, reader.Run) else [*runs]
        if not several or not all(isinstance(run, reader.Run) for run in several):
            raise UsageError(f"{name} must be a run or several, as hpcfl.load returns them")
        return comparison.one_configuration(several, name)

    return comparison.compare(side(a, "A"), side(b, "B"), metric)


def plot(runs: Iterable[reader.Run], kind: str, **options: Any) -> Figure:
    """Draw a figure of one of the :data:`hpcfl.plots.KINDS`, with the options of `hpcfl plot`.

    An unknown kind or option, or a run without the data for the figure, raises a UsageError.
    """
    from hpcfl.plots import chosen

    drawing = chosen(kind, options)
    runs = [*runs]
    if not runs:
        raise UsageError("there is nothing to draw: no run is given")
    if drawing.asked.where is not None:
        runs = select(runs, drawing.asked.where)
    for run in runs:
        reason = drawing.lacking(run)
        if reason is not None:
            raise UsageError(f"{run.path} {reason}")
    return drawing.draw(runs)


def _resolved(group: type[Group], protocol: str, given: Mapping[str, Any]) -> Group:
    """Return the options of a query about a protocol; refuse options that the protocol ignores."""
    from hpcfl.algorithms.aggregation import find
    from hpcfl.rounds.build import without_dropouts

    check_length(given)
    asked = make(group, without_dropouts(protocol, {"protocol": protocol, **given}))
    # The exposure of every protocol depends on dropouts and colluders.
    asked_of_all = {"dropout", "gamma"} if group is ExposureOptions else set[str]()
    refuse(given, unused(ProtocolOptions, find(protocol).options) - asked_of_all, protocol)
    return asked


class _Reporting(RoundObserver):
    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def finished(self, index: int, result: Any) -> None:
        self._progress(index, result)


def _observer(progress: Progress | None) -> RoundObserver:
    return NOBODY if progress is None else _Reporting(progress)


def _named(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with classes and functions replaced by the names that users type."""
    return {name: _name(value) if _is_code(value) else value for name, value in options.items()}


def _is_code(value: Any) -> bool:
    return isinstance(value, type) or inspect.isfunction(value)


def _name(named: Any) -> str:
    if _is_code(named):
        return f"{named.__module__}:{named.__qualname__}"
    if not isinstance(named, str):
        raise UsageError(f"{named!r} is neither a name nor a class")
    return named


def _plain(value: Any) -> Any:
    """Return a grid value, or a list of them, in the form of a plan file."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if _is_code(value):
        return _name(value)
    if hasattr(value, "tolist"):  # NumPy's arrays and numbers
        value = value.tolist()
    return [*map(_plain, value)] if isinstance(value, list | tuple | range) else value


def _command(command: str, what: str | None, options: Mapping[str, Any]) -> list[str]:
    """Return the equivalent command line, which is recorded."""
    typed = ["hpcfl", command, *filter(None, [what])]
    for name, value in options.items():
        dashed = f"--{name.replace('_', '-')}"
        if value is True:
            typed.append(dashed)
        elif isinstance(value, tuple | list):
            typed += [f"{dashed}={one}" for one in value]
        elif value is not None and value is not False:
            typed.append(f"{dashed}={value}")
    return typed


def _extended(run: reader.Run, weights: Any = None) -> Run:
    return Run(**vars(run), weights=weights)
