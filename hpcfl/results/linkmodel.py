"""Model of the time that a round would take over slower links than those of the measurement."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hpcfl.options.shared import LinkOptions
from hpcfl.values import dataclass

Moved = TypeVar("Moved", float, NDArray[Any])  # bytes or messages, and the seconds they take


@dataclass(frozen=True, kw_only=True)
class LinkModel(LinkOptions):
    """The link of each device, or helper, to the server.

    The server's link is assumed to carry the traffic of all devices at once. Bandwidths are in
    Mbit/s (10^6 bits per second). Each phase adds the latency, in milliseconds, once for each
    direction in which it sends data.
    """

    def __str__(self) -> str:
        helpers = ""
        if self.helper_mbps != LinkModel.helper_mbps:
            helpers = f", helpers {self.helper_mbps:g} Mbit/s"
        return (
            f"{self.uplink_mbps:g} Mbit/s up, {self.downlink_mbps:g} Mbit/s down, "
            f"{self.latency_ms:g} ms latency{helpers}"
        )

    def seconds_of(self, spent: Any) -> NDArray[np.float64]:
        """Return the modelled seconds of each phase, shape (..., P), of a round or a run.

        A phase takes the time of the slowest device, which computes, sends and receives in
        sequence, then that of the server, then that of the slowest helper, for which all others
        wait. Modelled and measured seconds never share a column or a name.
        """
        own, server = spent.cpu_seconds[..., :-1], spent.cpu_seconds[..., -1]
        moved = self.transfer_seconds(spent.bytes_up, spent.bytes_down)
        moved = moved + self.latency_seconds(spent.messages_up, spent.messages_down)
        found = (own + moved).max(axis=-1) + server
        moved = self.helper_transfer_seconds(spent.helper_bytes_up, spent.helper_bytes_down)
        moved += self.latency_seconds(spent.helper_messages_up, spent.helper_messages_down)
        return np.asarray(found + (spent.helper_cpu_seconds + moved).max(axis=-1, initial=0.0))

    def transfer_seconds(self, bytes_up: Moved, bytes_down: Moved) -> Moved:
        """Return the transfer time of a device's bytes, without latency."""
        return 8e-6 * bytes_up / self.uplink_mbps + 8e-6 * bytes_down / self.downlink_mbps

    def helper_transfer_seconds(self, bytes_up: Moved, bytes_down: Moved) -> Moved:
        """Return the transfer time of a helper's bytes, at one bandwidth in both directions."""
        return 8e-6 * (bytes_up + bytes_down) / self.helper_mbps

    def latency_seconds(self, up: Moved, down: Moved) -> Moved:
        """Return the latency of a phase, once for each direction with messages or bytes."""
        return 1e-3 * self.latency_ms * (1 * (up > 0) + 1 * (down > 0))
