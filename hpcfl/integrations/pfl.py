"""What simulated rounds would cost with secure aggregation, as metrics of pfl-research."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from pfl.aggregate.base import get_num_devices_weight_name
from pfl.callback.base import TrainingProcessCallback
from pfl.common_types import Population
from pfl.metrics import Metrics, StringMetricName

import hpcfl

DEVICES = get_num_devices_weight_name(Population.TRAIN)


class SecureRoundCost(TrainingProcessCallback[Any]):
    """Adds the predicted costs of a secure round to the metrics of each central iteration.

    The round has as many devices as pfl reports for the iteration. Costs are those of
    :func:`hpcfl.predict`, which takes the `options`; `dim` is the number of model parameters. CPU
    times are predicted for the machine that `hpcfl calibrate` measured, and the seconds of a round
    are modelled for the link in the options.
    """

    def __init__(self, protocol: str, dim: int, **options: Any) -> None:
        self._protocol = protocol
        self._predicted = cache(partial(hpcfl.predict, protocol, dim=dim, **options))

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Return the costs of a round with as many devices as the iteration had."""
        metrics = Metrics()
        if DEVICES in aggregate_metrics:  # not in iterations that only evaluate
            (costs,) = self._predicted(devices=int(aggregate_metrics[DEVICES]))
            found = {
                "bytes up of a device": costs.bytes_up,
                "bytes down of a device": costs.bytes_down,
                "predicted CPU seconds of a device": costs.device_cpu_seconds,
                "predicted CPU seconds of the server": costs.server_cpu_seconds,
                "modelled seconds of a round": costs.modelled_seconds,
            }
            for name, value in found.items():
                metrics[StringMetricName(f"{self._protocol} | {name}")] = value
        return False, metrics
