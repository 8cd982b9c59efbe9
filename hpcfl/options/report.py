"""Options of `hpcfl report` and `hpcfl compare`."""

from hpcfl.options.definition import OptionGroup, again, option
from hpcfl.options.shared import LinkOptions
from hpcfl.options.training import TrainOptions
from hpcfl.values import dataclass

_OWN = {"default_text": "the run's own"}
# Resources that grow in scaling tables and figures, with their names there.
SCALES = {
    "ranks": "ranks that hold devices",
    "nodes": "nodes",
    "server-ranks": "ranks of the server",
    "threads": "threads of a rank",
}
# Metrics that can be compared, each with its unit.
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
class LinkAsked(OptionGroup):
    """Options of the link of the modelled seconds, which replace a run's own."""

    uplink_mbps: float | None = again(LinkOptions, "uplink_mbps", None, **_OWN)
    downlink_mbps: float | None = again(LinkOptions, "downlink_mbps", None, **_OWN)
    helper_mbps: float | None = again(LinkOptions, "helper_mbps", None, **_OWN)
    latency_ms: float | None = again(LinkOptions, "latency_ms", None, **_OWN)


@dataclass(frozen=True, kw_only=True)
class ReportOptions(LinkAsked):
    """Options that choose the runs that `hpcfl report` shows, and what it shows of them."""

    where: str | None = option(
        None,
        "Only runs with these values, such as protocol=sparse|cohort,devices=100: the keys are "
        "protocol, devices and any option that files record.",
    )
    columns: str | None = option(
        None,
        "Columns of the table of runs, in this order, such as protocol,devices,accuracy. An "
        "unknown name lists all of them.",
        default_text="those that have something to tell",
    )
    baseline: str | None = option(
        None,
        "Run to compare with, in every group of runs of one size: a file or a protocol.",
        default_text="the first secagg run, else the first run",
    )
    speed_up: str | None = option(
        None,
        "Print speed-up and parallel efficiency instead, over the number of ranks that hold "
        "devices, whole nodes, ranks of the server, or threads of a rank.",
        choices=(*SCALES,),
    )
    target_accuracy: float | None = again(
        TrainOptions,
        "target_accuracy",
        None,
        help="Show the costs of training to this accuracy.",
        default_text="the run's own",
    )


@dataclass(frozen=True, kw_only=True)
class CompareOptions(OptionGroup):
    """Options of `hpcfl compare`; see ``hpcfl compare --help``."""

    metric: str = option(
        "round_seconds",
        "Seconds of a round, CPU seconds of its slowest device, of the server, or of the slowest "
        "member of a committee or helper, mean bytes that a device or a member sends, seconds of "
        "the link model, or peak of the memory of the server's rank or of the largest other rank. "
        "Members are not among the devices.",
        choices=tuple(METRICS),
    )
