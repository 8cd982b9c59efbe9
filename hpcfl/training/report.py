"""The text at the end of a training run."""

from __future__ import annotations

import math

from hpcfl.report import formats
from hpcfl.report.formats import counted
from hpcfl.results.reader import Run
from hpcfl.results.schema import Metric
from hpcfl.results.tables import STOPPED, render_promises


def render_end(run: Run) -> str:
    """Return the accuracy and the costs of a finished run, and the path of its results."""
    figures, config, reason = run.training, run.config, run.environment["stop_reason"]
    results = f"\nResults: {run.path}"
    if not run.rounds:
        return (
            f"no round is within epsilon {config['epsilon']:g}: give more noise or a larger "
            f"--epsilon\n{results}"
        )
    last = {name: float(values[-1]) for name, values in figures.items() if values.ndim == 1}
    modelled = float(figures[Metric.MODELLED_SECONDS].sum())
    lines = [
        f"\n{config['model']}, {counted(config['dim'], 'parameter')}: accuracy "
        f"{last[Metric.ACCURACY]:.4f} after {counted(run.rounds, 'round')}, all aggregates "
        "validated",
        *([f"stopped because {STOPPED[reason]}"] if reason in STOPPED else []),
        f"sent up by all devices: {last[Metric.BYTES_UP_TOTAL] / 1e6:.3f} MB",
        f"modelled: {formats.number(modelled, 3)} s, training included",
    ]
    if "epsilon_delta" in config:
        lines.append(
            f"epsilon at delta {config['epsilon_delta']:g}: "
            f"{last[Metric.EPSILON_PAPER]:.4g} as the paper counts, "
            f"{last[Metric.EPSILON_PROVEN]:.4g} proven "
            f"(neighbours: {config['epsilon_neighbours']})"
        )
    if "noise_in_sum" in config:
        lines.append(
            f"noise in a sum: {config['noise_in_sum']:.4g} times the norm to which "
            "updates are clipped, rounding to integers included"
        )
    if "rounds_repeated" in config:
        lines.append(
            f"counted besides: {counted(config['rounds_repeated'], 'round')} that earlier launches "
            "may have played in vain, after the checkpoints that the run went on from"
        )
    if not math.isnan(last[Metric.CLIPPED_FRACTION]):
        clipped = float(figures[Metric.CLIPPED_FRACTION].max())
        error = float(figures[Metric.QUANTISATION_ERROR].max())
        lines.append(
            f"clipped: at most {clipped:.2%} of the values of a round; "
            f"quantisation error of a coordinate: at most {error:.2e} (root mean square)"
        )
    return "\n".join([*lines, render_promises(run), results])
