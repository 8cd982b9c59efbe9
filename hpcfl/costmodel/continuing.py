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
from hpcfl.results.scaling import Line, Point, Study, compared, holding


def continued(
    study: Study, calibration: Calibration, network: Network, places: Sequence[int]
) -> Study:
    """Return a study with modelled points at the places that were measured, and at further ones.

    The modelled points are compared among each other, so that an error of the model which is the
    same everywhere is none of the modelled speed-up. A UsageError says what is not modelled.
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
    return replace(study, lines=lines, notes=(*study.notes, about))


def _continued(
    line: Line, study: Study, calibration: Calibration, network: Network, places: Sequence[int]
) -> Line:
    options = _options(line)
    first, run = line.points[0], line.run
    beside = run.server_ranks + run.helpers
    per_rank = run.devices / holding(run)
    found = []
    for x in sorted({*places, *(point.x for point in line.points)}):
        ranks = x + beside if study.ranks_of_node is None else x * study.ranks_of_node
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
