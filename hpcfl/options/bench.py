"""Options of `hpcfl bench`."""

from pathlib import Path
from typing import Any

from hpcfl.errors import UsageError
from hpcfl.options.definition import again, option, recorded
from hpcfl.options.privacy import PrivacyOptions
from hpcfl.options.shared import DEVICES, DIM, ROUNDS, RunOptions
from hpcfl.values import asdict, dataclass, field

DEFAULT_DIM = 165_000
# Default limit of the number of rounds, as a multiple of the least number, if it may vary.
DEFAULT_FACTOR = 10
DP_FEDAVG = "dp-fedavg"
_NOISE = ("noise_multiplier", "clip_norm")


@dataclass(frozen=True, kw_only=True)
class BenchOptions(RunOptions):
    """Options of `hpcfl bench`; see ``hpcfl bench --help``."""

    heading = "Options"
    protocol: str = field(kw_only=False)
    devices: tuple[int, ...] = option(
        (),
        "Number of devices; several numbers are run one after the other.",
        default_text="one on every rank but the server's, 100 in one process",
        **DEVICES,
    )
    dim: int | None = option(None, "Length d of the vectors.", default_text=f"{DEFAULT_DIM}", **DIM)
    model: str | None = option(
        None,
        "Set d to the number of parameters of a model of hpcfl train, such as 2nn or "
        "softmax@digits, or of MODULE:FUNCTION, which returns a torch module, arrays, or d.",
        marks=("recorded if given",),
    )
    rounds: int = option(10, "Measured rounds.", marks=("repeat",), **ROUNDS)
    rel_ci: float | None = option(
        None,
        "Stop once the 95 % interval of the median round is within this share of it, such as 0.05.",
        above=0,
        below=1,
        marks=("repeat",),
    )
    max_rounds: int | None = option(
        None,
        "Largest number of measured rounds; --rounds is then the smallest.",
        default_text="--rounds; ten times as many with --rel-ci or --max-seconds",
        marks=("repeat",),
        **ROUNDS,
    )
    max_seconds: float | None = option(
        None,
        "Stop after the round in which this much time has passed, even if --rounds are more.",
        above=0,
        marks=("repeat",),
    )
    # Without warm-up, the first measured round includes one-time costs.
    warmup: int = option(
        2, "Unmeasured warm-up rounds.", marks=("repeat if any",), **ROUNDS | {"at_least": 0}
    )
    server_ranks: int = option(
        1,
        "Ranks of the server: each adds up and unmasks a range of the coordinates (secagg, "
        "secagg-graph, common).",
        at_least=1,
        marks=("label", "recorded if given"),
    )
    updates: Path | None = option(None, "Vectors from a .npy or HDF5 file, one row per device.")
    save_aggregate: Path | None = option(
        None,
        "Write the last round's decoded sum, as .npy or HDF5.",
        marks=("output", "resumable", "repeat"),
    )
    keep_transcript: Path | None = option(
        None,
        "Write the last round's messages, the keys of a fraction --gamma of the devices and the "
        "values of all honest devices to an .npz file, for 'hpcfl attack'. Needs --insecure-seed.",
        marks=("output", "resumable", "repeat if given"),
    )
    aggregate: str | None = option(
        None,
        f"Protocol that sums the vectors of {DP_FEDAVG}.",
        default_text="secagg",
        marks=("unrecorded",),
    )
    noise_multiplier: float | None = again(
        PrivacyOptions,
        "noise_multiplier",
        None,
        help="Noise on a coordinate in units of --clip-norm (dp-fedavg).",
        default_text="1",
        marks=("unrecorded",),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        noise = any(one is not None for one in (self.aggregate, self.noise_multiplier))
        if noise and self.protocol != DP_FEDAVG:
            raise UsageError(
                "--aggregate and --noise-multiplier are for dp-fedavg: "
                f"{self.protocol} adds no noise"
            )
        if self.max_rounds is not None and self.max_rounds < self.rounds:
            raise UsageError(
                f"--max-rounds is {self.max_rounds}; it must be at least --rounds, {self.rounds}"
            )

    @property
    def may_vary(self) -> bool:
        """Whether the number of rounds depends on the measurements."""
        return self.rel_ci is not None or self.max_seconds is not None

    @property
    def most_rounds(self) -> int:
        """Largest number of measured rounds."""
        if self.max_rounds is not None:
            return self.max_rounds
        return DEFAULT_FACTOR * self.rounds if self.may_vary else self.rounds

    @property
    def planned_rounds(self) -> int:
        """Largest number of rounds, warm-up included."""
        return self.warmup + self.most_rounds

    @property
    def summed_by(self) -> str:
        """The aggregation protocol; dp-fedavg adds its noise within one."""
        return (self.aggregate or "secagg") if self.protocol == DP_FEDAVG else self.protocol

    @property
    def privacy(self) -> PrivacyOptions | None:
        """The options of dp-fedavg's noise; None for all other protocols."""
        if self.protocol != DP_FEDAVG:
            return None
        noise: dict[str, Any] = {"noise": "distributed", "noise_multiplier": 1.0}
        given = {name: getattr(self, name) for name in _NOISE}
        return PrivacyOptions(**noise | {k: v for k, v in given.items() if v is not None})

    def recorded(self) -> dict[str, Any]:
        """Return the values that results files record, by name."""
        return {"protocol": self.summed_by, **recorded(self)}

    def identity(self) -> dict[str, Any]:
        """Return the values that identify a configuration, by name."""
        privacy = self.privacy
        return self.recorded() | {"private": None if privacy is None else asdict(privacy)}
