"""Whether the rows that devices exchange fit into memory: known before they agree on keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcfl.comm import envelope, rows
from hpcfl.comm.phases import Pattern
from hpcfl.errors import UsageError

if TYPE_CHECKING:
    from hpcfl.algorithms.aggregation.base import AggregationProtocol
    from hpcfl.comm.hosts import HostMemory

# What comes to the rows where deaths are survived, as a multiple of them: they are kept until all
# ranks have received theirs. 900 devices on one rank took 2.1 times their rows in all.
TOLERANT = 0.8


def row_bytes(protocol: AggregationProtocol, devices: int) -> int:
    """Return how much memory the rows that some devices exchange take, while they are on their way.

    Of the step in which they exchange most; 0 where they exchange nothing.
    """
    widths = [step.row_bytes for step in protocol.steps if step.pattern is Pattern.ROUTE]
    widest = max((rows.LABEL_BYTES + envelope.BYTES + width for width in widths), default=0)
    return devices * protocol.rows_of_device * widest


def check(protocol: AggregationProtocol, hosts: list[HostMemory], tolerant: bool = False) -> None:
    """Refuse a round whose rows do not fit into the memory of a host, by UsageError.

    `tolerant`: deaths of ranks are survived.
    """
    peak = protocol.rows_at_peak + TOLERANT * tolerant
    for host in hosts:
        here = min(host.devices, protocol.parameters.devices)
        needed = peak * row_bytes(protocol, here)
        if host.available_bytes is not None and needed > host.available_bytes:
            raise UsageError(
                f"the {here} devices on {host.name} exchange rows that take about "
                f"{needed / 1e9:.1f} GB, and {host.available_bytes / 1e9:.1f} GB of memory are "
                "free there: link each device with fewer others (secagg-graph), use more hosts, or "
                "fewer devices"
            )
