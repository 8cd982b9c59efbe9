"""What simulated rounds would cost with secure aggregation, as metrics of pfl-research."""

from __future__ import annotations

from functools import cache
from typing import Any

from pfl.callback.base import TrainingProcessCallback
from pfl.metrics import Metrics, StringMetricName

import hpcfl


class SecureRoundCost(TrainingProcessCallback[Any]):
    """Adds the predicted costs of a secure round to the metrics of each central iteration.

    The number of devices is the one that pfl reports for the iteration. Bytes are those of the
    protocol's messages; CPU seconds and seconds are *predicted*, for the machine that `hpcfl
    calibrate` measured, and the link of the options. `dim` is the number of model parameters, and
    `options` are those of :func:`hpcfl.predict`.
    """

    def __init__(self, protocol: str, dim: int, **options: Any) -> None:
        @cache
        def predicted(devices: int) -> Any:
            (found,) = hpcfl.predict(protocol, devices=devices, dim=dim, **options)
            return found

        self._protocol = protocol
        self._predicted = predicted

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Return the costs of a round with as many devices as the iteration had."""
        counts = [
            value
            for name, value in aggregate_metrics.to_simple_dict().items()
            if name.endswith("number of devices") and "train" in name
        ]
        metrics = Metrics()
        if counts:
            costs = self._predicted(int(counts[0]))
            for name, value in (
                ("upload of a device (bytes)", costs.bytes_up),
                ("download of a device (bytes)", costs.bytes_down),
                ("CPU of a device (s)", costs.device_cpu_seconds),
                ("CPU of the server (s)", costs.server_cpu_seconds),
                ("modelled round (s)", costs.modelled_seconds),
            ):
                metrics[StringMetricName(f"{self._protocol} | {name}")] = value
        return False, metrics
