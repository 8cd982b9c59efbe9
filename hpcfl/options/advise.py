"""Options of `hpcfl advise`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hpcfl.options.bench import DEFAULT_DIM
from hpcfl.options.definition import again, option
from hpcfl.options.privacy import PrivacyOptions
from hpcfl.options.shared import DEVICES, DIM, ROUNDS, LinkOptions, ProtocolOptions
from hpcfl.system import outputs

# What can be least, and the figure of a prediction that it is.
CRITERIA = {
    "time": "modelled_seconds",
    "upload": "bytes_up",
    "device-cpu": "device_cpu_seconds",
}
# What a map can have on its upright axis; the other one is d.
AXES = ("devices", "uplink-mbps")


@dataclass(frozen=True, kw_only=True)
class AdviseOptions(LinkOptions):
    """What `hpcfl advise` was asked for; see ``hpcfl advise --help``."""

    devices: int = option(100, "Number N of devices.", **DEVICES)
    dim: int = option(DEFAULT_DIM, "Length d of the vectors.", **DIM)
    dropout: float = again(ProtocolOptions, "dropout", 0.1, default_text="0.1")
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
        help="Protect against a server that is curious (passive), or that cheats (active).",
    )
    helpers: int = option(0, "Helpers that somebody else than the server runs.", at_least=0)
    alpha: float | None = option(
        None,
        "Let devices send this fraction of the coordinates; protocols that send a part are left "
        "out otherwise, as the mean is then an estimate.",
        above=0,
        at_most=1,
        default_text="all coordinates",
    )
    accuracy: float = option(
        2.0**-20,
        "Largest error that rounding makes in a coordinate of a device, in units of the largest "
        "magnitude.",
        above=0,
        below=1,
        default_text="2^-20",
    )
    max_exposed: float = option(
        0.0,
        "Largest share of the values of an honest device that the server and those that collude "
        "may learn by themselves.",
        at_least=0,
        at_most=1,
    )
    epsilon: float | None = option(
        None,
        "Differential privacy of a device's vectors over all rounds, with noise that devices add "
        "themselves: the server need not be trusted with it.",
        above=0,
        default_text="no noise",
    )
    delta: float = again(PrivacyOptions, "delta", 1e-5, help="Delta beside --epsilon.")
    rounds: int = option(100, "Rounds that --epsilon is for.", **ROUNDS)
    criterion: str = option("time", "What is to be least.", choices=tuple(CRITERIA))
    calibration: Path | None = option(
        None, "File of 'hpcfl calibrate'.", default_text="this host's"
    )
    plot: Path | None = option(
        None,
        "Also draw who is first, as a map over d and --over: .png, .svg or .pdf.",
        writes=outputs.FIGURE,
    )
    over: str = option("devices", "The upright axis of the map.", choices=AXES)
