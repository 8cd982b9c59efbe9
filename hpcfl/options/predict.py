"""Options of `hpcfl predict`."""

from pathlib import Path

from hpcfl.options.bench import DEFAULT_DIM
from hpcfl.options.definition import option
from hpcfl.options.protocols import ProtocolOptions
from hpcfl.options.shared import DEVICES, DIM, LinkOptions, PopulationOptions
from hpcfl.values import dataclass, field


@dataclass(frozen=True, kw_only=True)
class PredictOptions(ProtocolOptions, LinkOptions, PopulationOptions):
    """Options of `hpcfl predict`; see ``hpcfl predict --help``."""

    heading = "Options"
    protocol: str = field(kw_only=False)
    devices: tuple[int, ...] = option((100,), "Numbers N of devices.", **DEVICES)
    dim: tuple[int, ...] = option((DEFAULT_DIM,), "Lengths d of the vectors.", **DIM)
    model: str | None = None  # sets the length of the vectors, in place of `dim`
    calibration: Path | None = option(
        None, "File of 'hpcfl calibrate'.", default_text="this host's"
    )
    # Predicted rounds are of one kind: exactly the fraction --dropout of the devices drops out
    # before the upload, and vectors are gathered. The others change predictions little.
    dropout_model: str = "exact"
    dropout_phase: str | None = None
    upload: str = "gather"
    scaling: str = "survivors"
    clip: float = 1.0
    min_cohort: int = 1
    security_bits: int = 40
    threads: int = 1
    deadline: float | None = None
