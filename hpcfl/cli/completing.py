"""What a shell offers to complete: names and files, by the names of options and arguments.

A name has one meaning in all commands, so what completes it is said once. Nothing here loads NumPy:
a shell waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcfl.options.names import MODELS
from hpcfl.system import outputs

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# Names that are defined in modules which load NumPy; tests compare them.
PARTITIONS = ("iid", "shards", "two-digit", "dirichlet:", "writer")
DOWNLOADS = ("mnist", "cifar10", "adult")
PHASES = (
    *("upload", "advertise_keys", "share_keys", "masked_input", "unmask", "share_masks"),
    *("share_input", "sum_shares", "encrypted_input", "decrypt"),
)
# Endings of the files that options and arguments read; what is written says its own.
ENDINGS = {
    **dict.fromkeys(("paths", "a", "b"), outputs.HDF5),
    "plan": (".toml",),
    "transcript": (".npz",),
    "updates": (".npy", ".npz", ".safetensors", *outputs.HDF5),
    **dict.fromkeys(("calibration", "constants"), (".json",)),
    "resume": (*outputs.HDF5, ".npz"),
}


def _protocols(command: str | None) -> Iterable[str]:
    from hpcfl.algorithms.aggregation import PROTOCOLS
    from hpcfl.options.bench import DP_FEDAVG

    return [*PROTOCOLS, *([DP_FEDAVG] if command == "bench" else [])]


def _algorithms(command: str | None) -> Iterable[str]:
    from hpcfl.algorithms.federated import PRIVATE, REGISTRY

    return REGISTRY if command == "train" else PRIVATE


def _presets(command: str | None) -> Iterable[str]:
    from hpcfl.training.presets import PRESETS

    return PRESETS


def _plans(command: str | None) -> Iterable[str]:
    from hpcfl.sweeping.shipped import titles

    return titles()


def _columns(command: str | None) -> Iterable[str]:
    from hpcfl.results.columns import COLUMNS

    return COLUMNS


def _keys(command: str | None) -> Iterable[str]:
    from hpcfl.options.bench import BenchOptions
    from hpcfl.options.definition import names, options_of
    from hpcfl.options.training import TrainOptions

    options = {**options_of(BenchOptions), **options_of(TrainOptions)}
    kept = {*options} - {*names(BenchOptions, recorded="no"), *names(TrainOptions, recorded="no")}
    return [f"{key}=" for key in ("protocol", "devices", *sorted(kept))]


# What completes an option or argument, by its name, for the command of a name.
NAMES: dict[str, Callable[[str | None], Iterable[str]]] = {
    "protocol": _protocols,
    "aggregate": _protocols,
    "baseline": _protocols,
    "algorithm": _algorithms,
    "preset": _presets,
    "plan": _plans,
    "columns": _columns,
    "where": _keys,
    "model": lambda command: tuple(MODELS),
    "partition": lambda command: PARTITIONS,
    "dropout_phase": lambda command: PHASES,
    "name": lambda command: DOWNLOADS,
    "size": lambda command: ("column", "page"),
    "style": lambda command: ("paper", "talk"),
}
# Lists, of which the last one is completed.
LISTS = {"columns", "where"}
# sbatch has other partitions, and --protocol names a class.
OTHERS = {("render", "partition"), ("submit", "partition")}


def complete(
    parameter: click.Parameter, context: click.Context, typed: str
) -> list[CompletionItem] | None:
    """Return what could be meant by the beginning of a value; None where nothing is known of it."""
    from click.shell_completion import CompletionItem

    name, command = str(parameter.name), context.command.name
    endings = ENDINGS.get(name, ())
    kind = getattr(parameter.type, "kind", None)
    if kind is not None:
        endings = kind.endings
    known = NAMES.get(name) if (command, name) not in OTHERS else None
    if known is None and not endings and not isinstance(parameter.type, click.Path):
        return None
    found: list[CompletionItem] = []
    if known is not None:
        before, comma, last = typed.rpartition(",") if name in LISTS else ("", "", typed)
        found = [
            CompletionItem(f"{before}{comma}{one}")
            for one in known(command)
            if one.startswith(last)
        ]
    if endings:
        found += [CompletionItem(one) for one in files(typed, endings)]
    if found or known is not None:
        return found
    # All files, by the shell itself, which also knows ~ and variables.
    return [CompletionItem(typed, type="file")]


def files(typed: str, endings: tuple[str, ...]) -> list[str]:
    """Return the files with such endings, and the folders, whose paths begin as typed.

    What is in a folder is returned in place of the folder if that is all there is: a shell would
    end the word there.
    """
    folder, slash, begin = typed.rpartition("/")
    there = Path(folder + slash or ".")
    try:
        entries = sorted(there.iterdir())
    except OSError:
        return []
    found = [
        f"{folder}{slash}{entry.name}" + "/" * entry.is_dir()
        for entry in entries
        if entry.name.startswith(begin)
        and (begin or not entry.name.startswith("."))
        and (entry.is_dir() or entry.suffix.lower() in endings)
    ]
    if len(found) == 1 and found[0].endswith("/") and found[0] != typed:
        return files(found[0], endings) or found
    return found
