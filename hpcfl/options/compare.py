"""Options of `hpcfl compare`."""

from dataclasses import dataclass

from hpcfl.errors import UsageError
from hpcfl.options.definition import OptionGroup, option

# What can be compared, each with its unit.
METRICS = {
    "round_seconds": "s",
    "device_cpu_seconds": "s",
    "server_cpu_seconds": "s",
    "member_cpu_seconds": "s",
    "helper_cpu_seconds": "s",
    "bytes_up": "B",
    "member_bytes_up": "B",
    "modelled_seconds": "s",
    "server_peak_bytes": "B",
    "device_peak_bytes": "B",
}


@dataclass(frozen=True, kw_only=True)
class CompareOptions(OptionGroup):
    """How two configurations are compared; see ``hpcfl compare --help``."""

    metric: str = option(
        "round_seconds",
        "Seconds of a round, CPU seconds of its slowest device, of the server, or of the slowest "
        "member of a committee or helper, mean bytes that a device or a member sends, seconds of "
        "the link model, or peak of the memory of the server's rank or of the largest other rank. "
        "Members are not among the devices.",
        choices=tuple(METRICS),
    )
    by: str = option(
        "auto",
        "What one sample is: a round, or the median of a launch; auto: launches where those of a "
        "side differ more than their rounds do, and else rounds.",
        choices=("auto", "rounds", "launches"),
    )
    significance: float = 0.05  # level of the rank test; intervals have the confidence 1 minus it

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.significance < 1:
            raise UsageError(f"the significance is {self.significance}; it must be from 0 to 1")
