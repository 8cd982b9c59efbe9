"""The cells of a sweep: one run each, identified by a hash of its command-line arguments."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable

from hpcfl.sweeping.commands import COMMANDS, Bench
from hpcfl.sweeping.plan import Setting
from hpcfl.values import dataclass

_ID_DIGITS = 16
# Options that do not change a training, and therefore not its hash.
_NOT_IDENTITY = ("--data-dir=", "--checkpoint-every=")


@dataclass(frozen=True)
class Cell:
    """One run of a sweep."""

    index: int  # position in the order of running, from 0
    id: str  # hash of its options and `repeat`, 16 hex digits
    file: str  # name of its results file within the sweep's folder
    arguments: tuple[str, ...]  # command-line arguments after the command
    protocol: str  # its name in the results
    devices: int
    dim: int | None  # None for training, where it depends on the data
    rounds: int  # planned number, warm-up included; an upper bound
    repeat: int  # number of the run among those of this configuration, from 0
    algorithm: str | None = None  # of training; None for a benchmark
    task: str | None = None  # of training: the model and the data set

    @property
    def command(self) -> Bench:
        """The command that runs the cell."""
        return COMMANDS["bench" if self.algorithm is None else "train"]

    @property
    def title(self) -> str:
        """A short title: protocol, N, d and the number of the repeat."""
        what, size = self.protocol, f", d = {self.dim}"
        if self.algorithm is not None:
            what, size = f"{self.algorithm} by {self.protocol}", f", {self.task}"
        repeat = f", repeat {self.repeat}" if self.repeat else ""
        return f"{what}, N = {self.devices}{size}{repeat}"


def resolve(settings: Iterable[Setting]) -> list[Cell]:
    """Return the cells of a plan, in its order, without duplicate configurations.

    A configuration that cannot work is also a cell; it fails when it is about to run. Options
    without effect, such as ``alpha`` for `secagg`, do not make a separate cell. Raise UsageError
    for options that cannot be parsed.
    """
    cells: dict[str, Cell] = {}
    for setting in settings:
        command = COMMANDS[setting.command]
        about = command.describe(command.parse(setting.arguments))
        size = about.devices if about.dim is None else f"{about.devices}x{about.dim}"
        # The name of a user's protocol is MODULE:CLASS, where MODULE may be a path.
        name = re.sub(r"[^\w.-]", "_", about.name)
        typed = [text for text in setting.arguments if not text.startswith(_NOT_IDENTITY)]
        for repeat in range(setting.repeats):
            identity = json.dumps([setting.command, *typed, repeat])
            id = hashlib.sha256(identity.encode()).hexdigest()[:_ID_DIGITS]
            known = {of: value for of, value in vars(about).items() if of != "name"}
            known |= {"arguments": setting.arguments, "repeat": repeat}
            cells.setdefault(id, Cell(len(cells), id, f"{name}-{size}-{id}.h5", **known))
    return list(cells.values())
