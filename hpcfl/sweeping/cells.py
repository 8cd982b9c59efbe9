"""The cells of a sweep: one run each, known by a hash of what is typed for it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from hpcfl.sweeping.commands import COMMANDS, Bench
from hpcfl.sweeping.plan import Setting

_ID_DIGITS = 16
# Where the data lie and how often the state is kept make no other training.
_NOT_IDENTITY = ("--data-dir=", "--checkpoint-every=")


@dataclass(frozen=True)
class Cell:
    """One run of a sweep."""

    index: int  # in the order of running, from 0
    id: str  # hash of its options and `repeat`, 16 hex digits
    file: str  # name of its results within the sweep's folder
    arguments: tuple[str, ...]  # what is typed after the command for this configuration
    protocol: str  # as its results call it
    devices: int
    dim: int | None  # None for training: the data decide it
    rounds: int  # planned, warm-up included; the most there can be
    repeat: int  # which run of the same configuration it is, from 0
    algorithm: str | None = None  # of training; None for a benchmark
    task: str | None = None  # of training: what is trained, and on what data

    @property
    def command(self) -> Bench:
        """What runs it."""
        return COMMANDS["bench" if self.algorithm is None else "train"]

    @property
    def title(self) -> str:
        """A few words for it: protocol, N, d and which repeat."""
        what, size = self.protocol, f", d = {self.dim}"
        if self.algorithm is not None:
            what, size = f"{self.algorithm} by {self.protocol}", f", {self.task}"
        repeat = f", repeat {self.repeat}" if self.repeat else ""
        return f"{what}, N = {self.devices}{size}{repeat}"


def resolve(settings: Iterable[Setting]) -> list[Cell]:
    """Return the cells of a plan, in its order, each configuration once.

    A configuration that cannot work is a cell as well: what speaks against it is found when it is
    to run. Options without effect make no other cell, such as ``alpha`` of `secagg`. Options that
    cannot be understood are a UsageError.
    """
    cells: dict[str, Cell] = {}
    for setting in settings:
        command = COMMANDS[setting.command]
        about = command.describe(command.parse(setting.arguments))
        size = about.devices if about.dim is None else f"{about.devices}x{about.dim}"
        # A protocol of one's own is called MODULE:CLASS, which may be a path.
        name = re.sub(r"[^\w.-]", "_", about.name)
        typed = [text for text in setting.arguments if not text.startswith(_NOT_IDENTITY)]
        for repeat in range(setting.repeats):
            identity = json.dumps([setting.command, *typed, repeat])
            id = hashlib.sha256(identity.encode()).hexdigest()[:_ID_DIGITS]
            known = {of: value for of, value in vars(about).items() if of != "name"}
            known |= {"arguments": setting.arguments, "repeat": repeat}
            cells.setdefault(id, Cell(len(cells), id, f"{name}-{size}-{id}.h5", **known))
    return list(cells.values())
