"""What memory a round takes, and whether it is there: known before devices agree on keys.

Counted are arrays as long as a vector, and the rows that devices exchange: enough to refuse a run
that cannot be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcfl.comm import envelope, rows
from hpcfl.comm.phases import Pattern
from hpcfl.comm.transport import WINDOW_BYTES
from hpcfl.errors import UsageError
from hpcfl.rounds.inputs import SyntheticUpdates
from hpcfl.system import machine

if TYPE_CHECKING:
    from hpcfl.algorithms.aggregation.base import AggregationProtocol
    from hpcfl.comm.hosts import HostMemory

# Of an interpreter with MPI, numpy and the cipher.
START_BYTES = 70_000_000
# Of a device whose vector is short, wherever it is: what the server keeps of it, and the ledger.
DEVICE_BYTES = 500
# Fewer devices fit anywhere.
MANY = 1_000_000
# What a process holds at the peak of an exchange of rows, as a multiple of these.
ROWS_AT_PEAK = 2.5
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


@dataclass(frozen=True)
class Memory:
    """Resident bytes of ranks at the peak of a round, start-up included."""

    server: float  # of the server's rank; in one process that of all
    device: float | None  # of a rank with devices, as many as any has; None in one process
    ranks: int

    @property
    def together(self) -> float:
        """That of all ranks, should they come to their peaks at the same time."""
        return self.server + (self.ranks - 1) * (self.device or 0.0)


def predict_memory(protocol: AggregationProtocol, ranks: int, servers: int = 1) -> Memory:
    """Return about what so many ranks hold in `hpcfl bench`; 1: one process.

    Of several ranks of a server it is the first's, which puts the sum together.
    """
    parameters, group = protocol.parameters, protocol.summed_in
    devices, vector = parameters.devices, 4.0 * parameters.dim
    held = devices if ranks == 1 else -(-devices // (ranks - servers - protocol.helpers))
    upload = float(protocol.largest_message)
    independent = SyntheticUpdates(parameters.dim, 0, devices).independent
    vectors = vector * (held if independent else 1)
    rows = ROWS_AT_PEAK * row_bytes(protocol, held)
    # The sum while uploads are added to it; the decoded one, and the one that it is checked with.
    total = 8.0 * parameters.dim
    checked = 2.0 * (8 if group is None else group.dtype.itemsize) * parameters.dim
    turned = 20.0 * parameters.dim * parameters.rotate
    # A device's copy of the model, its upload, and what it makes of its vector.
    working = vector + max(rows, upload + turned)
    if ranks == 1:
        return Memory(START_BYTES + vector + vectors + max(total + working, checked), None, 1)
    windows = min(2.0 * WINDOW_BYTES, upload * devices)
    frames = min(2.0 * WINDOW_BYTES, upload * held)
    return Memory(
        START_BYTES + vector + max(total + windows, checked + turned),
        START_BYTES + vectors + max(working + frames, checked),
        ranks,
    )


def check_devices(counts: Sequence[int], hosts: int) -> None:
    """Refuse, by UsageError, more devices than hosts like this one have memory for.

    With any protocol: before one is made.
    """
    most = max(counts)
    what = f"{most} devices" if hosts == 1 else f"{most} devices on {hosts} hosts, on each,"
    machine.check_memory(what, DEVICE_BYTES * most / hosts, "give fewer --devices")


def check_vectors(
    protocol: AggregationProtocol, hosts: list[HostMemory], ranks: int, servers: int = 1
) -> None:
    """Refuse a round that does not fit into the memory of all hosts together, by UsageError."""
    known = [host.available_bytes for host in hosts if host.available_bytes is not None]
    parameters = protocol.parameters
    # What an interpreter takes is taken already.
    needed = predict_memory(protocol, ranks, servers).together - ranks * START_BYTES
    needed += DEVICE_BYTES * parameters.devices
    if len(known) == len(hosts) and needed > sum(known):
        raise UsageError(
            f"a round of {parameters.devices} devices with vectors of {parameters.dim} takes about "
            f"{needed / 1e9:.1f} GB of memory on {ranks} {'ranks' if ranks > 1 else 'rank'}, and "
            f"{sum(known) / 1e9:.1f} GB are free: give fewer --devices, a smaller --dim, or more "
            "hosts"
        )


def check(protocol: AggregationProtocol, hosts: list[HostMemory], tolerant: bool = False) -> None:
    """Refuse a round whose rows do not fit into the memory of a host, by UsageError.

    `tolerant`: deaths of ranks are survived.
    """
    peak = ROWS_AT_PEAK + TOLERANT * tolerant
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
