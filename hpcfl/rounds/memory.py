"""Checks, before devices agree on keys, whether there is enough memory for a round.

The estimate counts the rows that devices exchange and the arrays as long as a vector. That is
enough to refuse an impossible run.
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

# The bytes that the server and the ledger keep for each device, apart from its vector.
DEVICE_BYTES = 500
# The peak memory of a process in an exchange of rows, as a multiple of the rows, and the addition
# if deaths are survived, where rows are kept until all ranks have received theirs. Measured: 900
# devices on one rank took 2.1 times their rows in total.
ROWS_AT_PEAK, TOLERANT = 2.5, 0.8
# The bytes per coordinate that a rank holds besides its devices' vectors: the model, the sum, and
# the sum for validation.
COORDINATE_BYTES = 20
# The same of every further rank on a host: its model, and a vector.
RANK_BYTES = 8


def row_bytes(protocol: AggregationProtocol, devices: int) -> int:
    """Return the bytes in transit when some devices exchange rows.

    The largest exchange of the protocol counts; 0 for a protocol without exchanges.
    """
    widths = [step.row_bytes for step in protocol.steps if step.pattern is Pattern.ROUTE]
    widest = max((rows.LABEL_BYTES + envelope.BYTES + width for width in widths), default=0)
    return devices * protocol.rows_of_device * widest


def check(
    protocol: AggregationProtocol,
    hosts: int,
    tolerant: bool = False,
    ranks: int = 1,
    held: bool = False,
) -> None:
    """Raise UsageError if a round does not fit into the memory of hosts like this one.

    `tolerant` says that the run survives deaths of ranks, of which there are `ranks` on all hosts,
    and `held` that uploads wait until it is known which of them are late.
    """
    devices, dim = protocol.parameters.devices, protocol.parameters.dim
    here = math.ceil(devices / hosts)
    independent = 4 * dim * devices <= INDEPENDENT_BYTES
    exchanged = (ROWS_AT_PEAK + TOLERANT * tolerant) * row_bytes(protocol, here)
    others = min(math.ceil(ranks / hosts) - 1, here)
    vectors = (COORDINATE_BYTES + RANK_BYTES * others + 4 * (here if independent else 1)) * dim
    vectors += held * here * protocol.largest_message
    machine.check_memory(
        f"the {here} devices on a host, with the rows that they exchange,",
        exchanged + vectors,
        "link each device with fewer others (secagg-graph), or use more hosts, fewer devices, or a "
        "smaller --dim",
    )
