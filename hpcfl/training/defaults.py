"""What `hpcfl train` does where nothing is said: by the algorithm, the protocol, or a preset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcfl.algorithms.federated import find
from hpcfl.errors import UsageError
from hpcfl.options.definition import make, stated
from hpcfl.options.training import TrainOptions
from hpcfl.rounds.build import without_dropouts
from hpcfl.system.launch import netlab_link
from hpcfl.training.presets import PRESETS


def asked(given: Mapping[str, Any], preset: str | None = None) -> TrainOptions:
    """Return the options that keywords, or a command line, stand for, at least ``algorithm``.

    What is not given is taken from the preset, if there is one, and from the algorithm. A
    UsageError says that there is no such option or preset, or that a value cannot be meant.
    """
    if preset is not None and preset not in PRESETS:
        raise UsageError(f"there is no preset {preset!r}; choose one of {', '.join(PRESETS)}")
    # Within a lab the seconds that are modelled are those of its links.
    values = {**(PRESETS[preset] if preset is not None else {}), **netlab_link()}
    given = stated(TrainOptions, given)
    length = {"epochs", "steps"}
    if given.keys() & length:
        values = {name: value for name, value in values.items() if name not in length}
    values |= given
    defaults = find(values["algorithm"]).defaults(values)
    if values.keys() & length:
        defaults = {name: value for name, value in defaults.items() if name not in length}
    values = defaults | values
    if values.get("steps") is not None:
        values.setdefault("epochs", None)
    aggregate = make(TrainOptions, values).aggregate
    return make(TrainOptions, {**values, **without_dropouts(aggregate, given)})
