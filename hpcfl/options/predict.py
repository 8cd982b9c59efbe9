"""Options of `hpcfl predict`."""

from dataclasses import dataclass, field
from pathlib import Path

from hpcfl.options.bench import DEFAULT_DIM
from hpcfl.options.definition import option
from hpcfl.options.protocols import ProtocolOptions
from hpcfl.options.shared import DEVICES, DIM, LinkOptions


@dataclass(frozen=True, kw_only=True)
class PredictOptions(ProtocolOptions, LinkOptions):
    """What `hpcfl predict` was asked for; see ``hpcfl predict --help``."""

    heading = "Options"
    protocol: str = field(kw_only=False)
    devices: tuple[int, ...] = option((100,), "Numbers N of devices.", **DEVICES)
    dim: tuple[int, ...] = option((DEFAULT_DIM,), "Lengths d of the vectors.", **DIM)
    model: str | None = None  # that says how long vectors are, in place of dim
    calibration: Path | None = option(
        None, "File of 'hpcfl calibrate'.", default_text="this host's"
    )
    # What is predicted are rounds of one kind: devices drop out before their upload, exactly as
    # many as --dropout says, and vectors are gathered. What changes little is no option.
    dropout_model: str = "exact"
    dropout_phase: str | None = None
    upload: str = "gather"
    scaling: str = "survivors"
    clip: float = 1.0
    min_cohort: int = 1
    security_bits: int = 40
    threads: int = 1
