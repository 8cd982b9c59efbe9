"""Options of `hpcfl advise`."""

from pathlib import Path

from hpcfl.options.bench import DEFAULT_DIM
from hpcfl.options.definition import again, option
from hpcfl.options.predict import PredictOptions
from hpcfl.options.protocols import ProtocolOptions
from hpcfl.options.shared import DEVICES, DIM, LinkOptions, PopulationOptions
from hpcfl.values import dataclass

# Criteria to minimise, each with the figure of a prediction that measures it.
CRITERIA = {"time": "modelled_seconds", "upload": "bytes_up", "device-cpu": "mean_cpu_seconds"}


@dataclass(frozen=True, kw_only=True)
class AdviseOptions(LinkOptions, PopulationOptions):
    """Options of `hpcfl advise`; see ``hpcfl advise --help``."""

    heading = "Options"
    criterion: str = option("time", "Cost to minimise.", choices=tuple(CRITERIA))
    alpha: float | None = again(
        ProtocolOptions,
        "alpha",
        None,
        help="Let devices send this fraction of the coordinates. Without it, protocols that send "
        "a part are left out, because their mean is an estimate.",
        default_text="all coordinates",
    )
    devices: int = option(100, "Number N of devices.", **DEVICES)
    dim: int = option(DEFAULT_DIM, "Length d of the vectors.", **DIM)
    dropout: float = again(ProtocolOptions, "dropout", 0.1, default_text="0.1")
    helpers: int = again(
        ProtocolOptions,
        "helpers",
        0,
        help="Helpers that are not run by the server.",
        at_least=0,
        default_text="none",
    )
    gamma: float = again(
        ProtocolOptions,
        "gamma",
        0.1,
        help="Fraction of the devices that may collude with the server.",
    )
    security: str = again(
        ProtocolOptions,
        "security",
        "passive",
        help="Protect against a curious server (passive), or one that cheats (active).",
    )
    helper_mbps: float = again(LinkOptions, "helper_mbps", 1000.0)
    calibration: Path | None = again(PredictOptions, "calibration", None)
    deadline: float | None = None
