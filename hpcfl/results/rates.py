"""The rates of rounds of long vectors, beside those of :mod:`hpcfl.rounds.rates`."""

from __future__ import annotations

import numpy as np

from hpcfl.results.reader import Run
from hpcfl.results.statistics import median


def figures(run: Run) -> dict[str, float | None]:
    """Return the rates of the measured rounds, None if the bounds were not measured in the job."""
    bounds = ("mpi_bytes_per_second", "keystream_bytes_per_second")
    found = {name: run.environment.get(name) for name in bounds}
    found |= dict.fromkeys(("upload_bytes_per_second", "keystream_share"))
    rate, kept = found["keystream_bytes_per_second"], run.measured
    if rate is not None and kept.any():
        upload = int(run.bytes_up.sum(axis=(0, 2)).argmax())
        sent, cpu = run.bytes_up[kept, upload], run.cpu_seconds[kept, upload, :-1]
        elapsed = run.wall_seconds[kept, upload, -1]
        found["upload_bytes_per_second"] = median(sent.sum(axis=1) / elapsed)
        if masked := run.environment.get("keystream_bytes"):
            found["keystream_share"] = float(masked / rate / np.median(cpu[sent > 0]))
    return found
