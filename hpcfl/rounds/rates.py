"""The bounds of a round of long vectors, measured in the same job: plain MPI, and the keystream."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from hpcfl.algorithms.aggregation.base import AggregationProtocol
from hpcfl.comm.transport import Transport
from hpcfl.crypto import keystream
from hpcfl.errors import UsageError

LONG_BYTES = 1 << 24  # uploads for which the rates are worth the second that they take


def measure(transport: Transport, protocol: AggregationProtocol) -> dict[str, Any]:
    """Return, at the server, facts of the environment if uploads are long; every rank calls this.

    Beside the rates, these are the bytes of keystream that a device adds to its vector in a round.
    """
    if protocol.largest_message < LONG_BYTES:
        return {}
    mine = keystream.bytes_per_second() if transport.local_devices else np.nan
    rates, plain = transport.collect(np.array([mine])), transport.plain_bytes_per_second()
    if rates is None:
        return {}
    from hpcfl.algorithms.aggregation import work  # loads all protocols

    group, terms = protocol.summed_in, {}
    with suppress(UsageError):  # a user's protocol may have no terms
        terms = work.terms(protocol)["device"]
    words = group.dtype.itemsize * terms.get("masked values", 0.0) if group else 0.0
    return {
        "mpi_bytes_per_second": plain,
        "keystream_bytes_per_second": float(np.nanmedian(rates)),
        "keystream_bytes": terms.get("masked values, bytes", words) or None,
    }
