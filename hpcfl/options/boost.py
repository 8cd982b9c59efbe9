"""Options of `hpcfl attack boost`."""

from pathlib import Path

from hpcfl.options.definition import OptionGroup, again, option
from hpcfl.options.training import TrainOptions
from hpcfl.values import dataclass


@dataclass(frozen=True, kw_only=True)
class BoostOptions(OptionGroup):
    """The training that is attacked: `fedavg` without dropouts."""

    aggregate: str = again(TrainOptions, "aggregate", "secagg", help="Protocol of the sums.")
    times: float = option(
        10.0, "Norm of what the hostile device sends, in norms C.", at_least=0, at_most=1000
    )
    devices: int = again(TrainOptions, "devices", 20, at_least=2)
    rounds: int = again(TrainOptions, "rounds", 10, help="Number of rounds.")
    epochs: int = again(TrainOptions, "epochs", 1)
    dataset: str = again(TrainOptions, "dataset", "digits")
    data_dir: Path | None = again(TrainOptions, "data_dir", None)
    seed: int = again(TrainOptions, "seed", 0)
    output: Path | None = option(None, "Folder for the results files of both trainings.")
