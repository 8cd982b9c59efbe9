"""Whether there is memory for a round, found out before devices agree on keys.

Counted are the rows that devices exchange, and arrays as long as a vector: enough to refuse a run
that cannot be.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hpcfl.comm import envelope, rows
from hpcfl.comm.phases import Pattern
from hpcfl.rounds.inputs import INDEPENDENT_BYTES
from hpcfl.system import machine

if TYPE_CHECKING:
    from hpcfl.algorithms.aggregation.base import AggregationProtocol

# Of a device whose vector is short, wherever it is: what the server keeps of it, and the ledger.
DEVICE_BYTES = 500
# What a process holds at the peak of an exchange of rows, as a multiple of these; and what comes to
# it where deaths are survived, as rows are kept until all ranks have received theirs: 900 devices
# on one rank took 2.1 times their rows in all.
ROWS_AT_PEAK, TOLERANT = 2.5, 0.8
# What a rank holds besides its devices' vectors, in bytes for each coordinate: the model, the sum,
# and the sum that it is checked with.
COORDINATE_BYTES = 20


def row_bytes(protocol: AggregationProtocol, devices: int) -> int:
    """Return how much memory the rows that some devices exchange take, while they are on their way.

    Of the step in which they exchange most; 0 where they exchange nothing.
    """
    widths = [step.row_bytes for step in protocol.steps if step.pattern is Pattern.ROUTE]
    widest = max((rows.LABEL_BYTES + envelope.BYTES + width for width in widths), default=0)
    return devices * protocol.rows_of_device * widest


def check(protocol: AggregationProtocol, hosts: int, tolerant: bool = False) -> None:
    """Refuse, by UsageError, a round that does not fit into the memory of hosts like this one.

    `tolerant`: deaths of ranks are survived.
    """
    devices, dim = protocol.parameters.devices, protocol.parameters.dim
    here = math.ceil(devices / hosts)
    independent = 4 * dim * devices <= INDEPENDENT_BYTES
    exchanged = (ROWS_AT_PEAK + TOLERANT * tolerant) * row_bytes(protocol, here)
    vectors = (COORDINATE_BYTES + 4 * (here if independent else 1)) * dim
    machine.check_memory(
        f"the {here} devices on a host, with the rows that they exchange,",
        exchanged + vectors,
        "link each device with fewer others (secagg-graph), or use more hosts, fewer devices, or a "
        "smaller --dim",
    )
