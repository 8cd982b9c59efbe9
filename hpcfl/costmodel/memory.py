"""Predicts the memory that ranks hold at the peak of a round: what vectors take, and a start-up.

Counted are arrays as long as a vector, and the rows that devices exchange. Smaller things, and what
allocators keep, are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcfl.algorithms.aggregation.base import AggregationProtocol
from hpcfl.comm.transport import WINDOW_BYTES
from hpcfl.rounds.inputs import SyntheticUpdates
from hpcfl.rounds.memory import row_bytes

# Of an interpreter with MPI, numpy and the cipher.
START_BYTES = 70_000_000


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


def predict_memory(protocol: AggregationProtocol, ranks: int) -> Memory:
    """Return what so many ranks hold in `hpcfl bench`, with synthetic vectors; 1: one process."""
    parameters = protocol.parameters
    devices, vector = parameters.devices, 4.0 * parameters.dim
    held = devices if ranks == 1 else -(-devices // (ranks - 1 - protocol.helpers))
    upload = float(protocol.largest_message)
    independent = SyntheticUpdates(parameters.dim, 0, devices).independent
    vectors = vector * (held if independent else 1)
    rows = protocol.rows_at_peak * row_bytes(protocol, held)
    # The model that the next round begins with, and the server's sum with what makes it.
    server = vector + protocol.sum_bytes
    working = float(protocol.working_bytes)
    if ranks == 1:
        received = vector  # the model, until the last device has made its upload
        upload_phase = received + max(upload, working)
        most = server + vectors + max(upload_phase, float(protocol.checking_bytes))
        return Memory(START_BYTES + max(most, rows), None, 1)
    long = upload > WINDOW_BYTES
    whole = long and not protocol.uploads_in_parts
    windows = 2 * upload if whole else min(2.0 * WINDOW_BYTES, upload * devices)
    frames = upload * min(2, held) if long else min(2.0 * WINDOW_BYTES, upload * held)
    devices_rank = vectors + max(vector, frames + working, float(protocol.checking_bytes))
    return Memory(
        START_BYTES + server + max(vector, windows), START_BYTES + max(devices_rank, rows), ranks
    )
