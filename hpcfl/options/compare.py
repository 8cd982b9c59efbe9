"""Options of `hpcfl compare`."""

from dataclasses import dataclass

from hpcfl.options.definition import OptionGroup, Section, option

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
        unit="metric",
        section=Section.WHAT,
    )
    by: str = option(
        "auto",
        "What one sample is: a round, or the median of a launch; auto: launches where those of a "
        "side differ more than their rounds do, and else rounds.",
        choices=("auto", "rounds", "launches"),
    )
    significance: float = option(
        0.05,
        "Level of the rank test; intervals have the confidence 1 minus it.",
        above=0,
        below=1,
        unit="probability",
    )
