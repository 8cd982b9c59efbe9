"""A shaped link: what it may carry, and the `tc` commands that make it so."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

# What a token-bucket filter counts of an Ethernet frame beside what it carries.
HEADER_BYTES = 14
# An Ethernet frame carries this much, or up to that much between hosts that agree on it.
MTU_BYTES, JUMBO_BYTES = 1500, 9000
FRAME_BYTES = HEADER_BYTES + MTU_BYTES

# A bucket of this much time at the link's rate. The kernel's timers wake the filter late by tens of
# microseconds, and what it could have sent meanwhile is lost beyond the bucket; a larger bucket
# lets a larger head of every message through unshaped.
BURST_SECONDS = 1e-3
# The queue before the filter drops when it holds this much time at the link's rate, as a home
# router's does. Well above what TCP needs to keep a link of a few ms busy after a loss.
QUEUE_SECONDS = 0.1
QUEUE_BYTES = 64 * FRAME_BYTES


@dataclass(frozen=True)
class Link:
    """One direction of a link."""

    bits_per_second: float  # of Ethernet frames
    latency_seconds: float = 0.0

    @property
    def burst_bytes(self) -> int:
        """Size of the token bucket; at least two frames, without which nothing passes."""
        return max(2 * FRAME_BYTES, math.ceil(self.bits_per_second / 8 * BURST_SECONDS))

    @property
    def queue_bytes(self) -> int:
        """How much may wait for the filter."""
        return max(QUEUE_BYTES, math.ceil(self.bits_per_second / 8 * QUEUE_SECONDS))

    @property
    def queue_frames(self) -> int:
        """How many frames may wait for the filter or be delayed."""
        delayed = self.bits_per_second / 8 * self.latency_seconds
        return math.ceil((self.queue_bytes + delayed) / FRAME_BYTES)

    def shape(self, tc: str, device: str) -> list[str]:
        """Return the commands of `tc` that shape what a network device sends.

        See tc-tbf(8) and tc-netem(8). The filter is outside and the delay inside it: the delay's
        queue takes the place of the filter's own.
        """
        add = f"{tc} qdisc add dev {device}"
        bucket = f"burst {self.burst_bytes} limit {self.queue_bytes}"
        commands = [f"{add} root handle 1: tbf rate {self.bits_per_second:.0f}bit {bucket}"]
        if self.latency_seconds:
            delay = f"delay {self.latency_seconds * 1e6:.0f}us limit {self.queue_frames}"
            commands.append(f"{add} parent 1:1 handle 10: netem {delay}")
        return commands


def mtu_bytes(links: Iterable[Link]) -> int:
    """Return how much a frame carries between hosts with these links.

    Every frame costs the machine's processor a few microseconds, which many fast links do not leave
    it, so frames are as large as lets two of them through the smallest bucket.
    """
    smallest = min(link.burst_bytes for link in links)
    return min(max(smallest // 2 - HEADER_BYTES, MTU_BYTES), JUMBO_BYTES)
