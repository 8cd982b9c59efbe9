"""The rates of rounds of long vectors, beside those of plain MPI and of the keystream."""

from __future__ import annotations

import numpy as np

from hpcfl.results.reader import Run
from hpcfl.results.statistics import median

# Facts of the environment that are figures as they are; see :mod:`hpcfl.rounds.rates`.
MEASURED = ("mpi_bytes_per_second", "keystream_bytes_per_second")


def figures(run: Run) -> dict[str, float | None]:
    """Return the rates of the measured rounds, None if the bounds were not measured in the job."""
    found: dict[str, float | None] = {name: run.environment.get(name) for name in MEASURED}
    found |= dict.fromkeys(("upload_bytes_per_second", "keystream_share"))
    rate, kept = found["keystream_bytes_per_second"], run.measured
    if rate is None or not kept.any():
        return found
    sent = run.bytes_up[kept]
    upload = int(sent.sum(axis=(0, 2)).argmax())
    seconds = run.wall_seconds[kept][:, upload, -1]
    found["upload_bytes_per_second"] = median(sent[:, upload].sum(axis=1) / seconds)
    masked, spent = run.environment.get("keystream_bytes"), run.cpu_seconds[kept][:, upload, :-1]
    if masked:
        of_devices = spent[sent[:, upload] > 0]
        found["keystream_share"] = float(masked / rate / np.median(of_devices))
    return found
