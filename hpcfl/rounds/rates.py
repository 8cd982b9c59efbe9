"""The bounds of a round of long vectors, measured in the same job: plain MPI, and the keystream."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcfl.algorithms.aggregation import work
from hpcfl.algorithms.aggregation.base import AggregationProtocol
from hpcfl.comm.transport import Transport
from hpcfl.crypto import keystream
from hpcfl.errors import UsageError

# Uploads of which the rates are worth the tenths of a second that they take.
LONG_BYTES = 1 << 24


def measure(transport: Transport, protocol: AggregationProtocol) -> dict[str, Any]:
    """Return, at the server, the rates for long uploads, by their names in the environment.

    The dict is empty elsewhere, and for shorter uploads; every rank calls this.
    """
    if protocol.largest_message < LONG_BYTES:
        return {}
    mine = keystream.bytes_per_second() if transport.local_devices else np.nan
    everybodys, plain = transport.collect(np.array([mine])), transport.plain_bytes_per_second()
    if everybodys is None:
        return {}
    return {
        "mpi_bytes_per_second": plain,
        "keystream_bytes_per_second": float(np.nanmedian(everybodys[everybodys != 0])),
        "keystream_bytes": _masked(protocol),
    }


def _masked(protocol: AggregationProtocol) -> float | None:
    """Return the bytes of keystream that a device adds to its vector, None if that is unknown."""
    group = protocol.summed_in
    try:
        terms = work.terms(protocol)["device"]
    except UsageError:
        return None
    words = 0 if group is None else group.dtype.itemsize * terms.get("masked values", 0.0)
    return terms.get("masked values, bytes", words) or None
