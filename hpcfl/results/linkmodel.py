"""The time a round would take on devices with slower links than those it was measured on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hpcfl.options.shared import LinkOptions

Moved = TypeVar("Moved", float, NDArray[Any])  # bytes or messages, and the seconds they take

_MODELLED = ("bytes_up", "bytes_down", "messages_up", "messages_down", "cpu_seconds")


@dataclass(frozen=True, kw_only=True)
class LinkModel(LinkOptions):
    """The link between a device and the server; every device has its own.

    The server's link is taken as wide enough for all devices at once. Bandwidths are in Mbit/s
    (10^6 bits a second). The latency, in milliseconds, is paid once in each direction in which a
    phase has anything to move.
    """

    def __str__(self) -> str:
        helpers = ""
        if self.helper_mbps != LinkModel.helper_mbps:
            helpers = f", helpers {self.helper_mbps:g} Mbit/s"
        return (
            f"{self.uplink_mbps:g} Mbit/s up, {self.downlink_mbps:g} Mbit/s down, "
            f"{self.latency_ms:g} ms latency{helpers}"
        )

    def seconds_of(self, spent: Mapping[str, Any]) -> NDArray[np.float64]:
        """Return the modelled seconds of each phase, shape (..., P), of what rounds cost by name.

        The names are those of datasets; helpers, if there are any, work while all others wait.
        """
        found = self.phase_seconds(*(spent[name] for name in _MODELLED))
        up, down, *messages, cpu = (spent[f"helper_{name}"] for name in _MODELLED)
        if up is None or not up.shape[-1]:
            return found
        moved = self.helper_transfer_seconds(up, down) + self.latency_seconds(*messages)
        return np.asarray(found + (cpu + moved).max(axis=-1))

    def phase_seconds(
        self,
        bytes_up: NDArray[np.uint64],
        bytes_down: NDArray[np.uint64],
        messages_up: NDArray[np.uint64],
        messages_down: NDArray[np.uint64],
        cpu_seconds: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Return the same of devices and server alone.

        Bytes and messages have the shape (..., P, N), CPU seconds (..., P, N + 1) with the server
        last. A phase lasts until its slowest device has computed, sent and received, one after the
        other, and the server has then done its own work. Modelled seconds never share a column or a
        name with measured ones.
        """
        transfer = self.transfer_seconds(bytes_up, bytes_down)
        waiting = self.latency_seconds(messages_up, messages_down)
        return (cpu_seconds[..., :-1] + transfer + waiting).max(axis=-1) + cpu_seconds[..., -1]

    def transfer_seconds(self, bytes_up: Moved, bytes_down: Moved) -> Moved:
        """Return how long the bytes of a device are on their way, without latency."""
        return 8e-6 * bytes_up / self.uplink_mbps + 8e-6 * bytes_down / self.downlink_mbps

    def helper_transfer_seconds(self, bytes_up: Moved, bytes_down: Moved) -> Moved:
        """Return the same of a helper, whose link is as wide in both directions."""
        return 8e-6 * (bytes_up + bytes_down) / self.helper_mbps

    def latency_seconds(self, up: Moved, down: Moved) -> Moved:
        """Return the latency of a phase: of either direction, messages or bytes, if not 0."""
        return 1e-3 * self.latency_ms * (1 * (up > 0) + 1 * (down > 0))
