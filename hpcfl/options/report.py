"""Options of `hpcfl report`."""

from __future__ import annotations

from dataclasses import dataclass

from hpcfl.options.definition import OptionGroup, again
from hpcfl.options.shared import LinkOptions

_OWN = {"default_text": "the run's own"}


@dataclass(frozen=True, kw_only=True)
class ReportOptions(OptionGroup):
    """The link whose seconds are modelled, in place of a run's own."""

    uplink_mbps: float | None = again(LinkOptions, "uplink_mbps", None, **_OWN)
    downlink_mbps: float | None = again(LinkOptions, "downlink_mbps", None, **_OWN)
    latency_ms: float | None = again(LinkOptions, "latency_ms", None, **_OWN)
