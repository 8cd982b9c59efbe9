"""Goes on with lines of scaling, by prediction, to clusters that nobody here has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hpcfl.benchmark.experiment import Experiment
from hpcfl.costmodel.calibration import Calibration
from hpcfl.costmodel.model import check_modelled, predict
from hpcfl.costmodel.network import Network
from hpcfl.errors import UsageError
from hpcfl.options.bench import DP_FEDAVG, BenchOptions
from hpcfl.options.definition import make
from hpcfl.report.formats import counted
from hpcfl.results.scaling import Line, Point, Study, compared, holding


def continued(
    study: Study, calibration: Calibration, network: Network, places: Sequence[int]
) -> Study:
    """Return a study with modelled points at the places that were measured, and at further ones.

    The modelled points are compared among each other, so that an error of the model which is the
    same everywhere is none of the modelled speed-up. Further places with more ranks to hold devices
    than there are devices are left out, with a note: nobody could run them. A UsageError says what
    is not modelled.
    """
    if study.against not in ("ranks", "nodes"):
        raise UsageError(
            f"--continue-to is for ranks and nodes: the model has no further {study.against}"
        )
    lines = tuple(_continued(line, study, calibration, network, places) for line in study.lines)
    about = (
        f"modelled: not measured, but predicted for as many cores as ranks, like those that were "
        f"calibrated ({calibration.about.get('cpu_model', '?')}), and {network}; each against the "
        "modelled base"
    )
    too_far = filter(None, (_too_far(line, study, places) for line in study.lines))
    return replace(study, lines=lines, notes=(*study.notes, about, *too_far))


def _too_far(line: Line, study: Study, places: Sequence[int]) -> str:
    """Return in words which places a line does not reach; "" for none."""
    beyond = [x for x in sorted({*places}) if not _reached(line, study, x)]
    if not beyond:
        return ""
    there, named = counted(line.points[0].devices, "device"), ", ".join(f"{x:,}" for x in beyond)
    return (
        f"{line.name} does not go on to {named} {study.against}: it has {there}, which no more "
        "ranks can hold"
    )


def _reached(line: Line, study: Study, x: int) -> bool:
    """Return whether a line can have a place: with a device for every rank that is to hold some."""
    if line.mode == "weak":
        return True  # it has as many more
    run = line.run
    ranks = _ranks(line, study, x)
    return ranks - run.server_ranks - run.helpers <= line.points[0].devices


def _ranks(line: Line, study: Study, x: int) -> int:
    """Return how many ranks, the server's and helpers' among them, a place of a line has."""
    if study.ranks_of_node is not None:
        return x * study.ranks_of_node
    return x + line.run.server_ranks + line.run.helpers


def _continued(
    line: Line, study: Study, calibration: Calibration, network: Network, places: Sequence[int]
) -> Line:
    options = _options(line)
    first, run = line.points[0], line.run
    beside = run.server_ranks + run.helpers
    per_rank = run.devices / holding(run)
    found = []
    further = {x for x in places if _reached(line, study, x)}
    for x in sorted(further | {point.x for point in line.points}):
        ranks = _ranks(line, study, x)
        weak = line.mode == "weak"
        devices = round(per_rank * (ranks - beside)) if weak else first.devices
        protocol = Experiment.prepare(replace(options, devices=(devices,)), devices).protocol
        predicted = predict(protocol, calibration, None, ranks, network, run.server_ranks)
        seconds = predicted.measured_seconds
        assert seconds is not None  # with a network it is always known
        found.append(Point(x, ranks, devices, first.dim, seconds))
    return replace(line, modelled=compared(found))


def _options(line: Line) -> BenchOptions:
    """Return what was asked for; a UsageError says why that is not modelled."""
    run = line.run
    what = f"{line.name} cannot be continued: "
    if run.asked is None or "protocol" not in run.asked:
        raise UsageError(f"{what}{run.path} does not record what was asked for")
    if run.asked["protocol"] == DP_FEDAVG:
        raise UsageError(f"{what}the model is of protocols alone, without noise")
    if run.config.get("threads", 1) != 1:
        raise UsageError(f"{what}the model is of one thread a rank")
    # What was summed makes no difference, how long it was does.
    known = {name: value for name, value in run.asked.items() if name not in ("updates", "model")}
    options = make(BenchOptions, known | {"dim": run.dim, "devices": [run.devices]})
    try:
        check_modelled(options)
    except UsageError as error:
        raise UsageError(f"{what}{error}") from None
    return options
