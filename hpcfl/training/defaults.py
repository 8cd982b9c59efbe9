"""The defaults of `hpcfl train`: from the algorithm, the protocol, or a preset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcfl.algorithms.aggregation import find as find_protocol
from hpcfl.algorithms.federated import find
from hpcfl.errors import UsageError, no_such
from hpcfl.options.definition import make, stated
from hpcfl.options.names import FILES
from hpcfl.options.privacy import PrivacyOptions
from hpcfl.options.protocols import ProtocolOptions, refuse, unused
from hpcfl.options.training import LocalOptions, TrainOptions
from hpcfl.rounds.build import without_dropouts
from hpcfl.system.launch import netlab_link
from hpcfl.training.presets import PRESETS

# Two options for the length of local training, of which only one applies.
LENGTH = {"epochs", "steps"}


def asked(given: Mapping[str, Any], preset: str | None = None) -> TrainOptions:
    """Return the options for keywords or a command line with at least ``algorithm``.

    Other options come from the preset, if there is one, and from the algorithm's defaults. Raise
    UsageError for an unknown option or preset, an invalid value, or an option that would be
    ignored.
    """
    options = resolved(given, preset)
    check_used(given, options)
    return options


def unused_by(options: TrainOptions) -> set[str]:
    """Return the names of options that neither the algorithm nor the protocol uses."""
    groups = *find(options.algorithm).options, *find_protocol(options.aggregate).options
    known = (ProtocolOptions, PrivacyOptions, LocalOptions)
    return set[str]().union(*(unused(group, groups) for group in known))


def check_used(given: Mapping[str, Any], options: TrainOptions) -> None:
    """Raise UsageError for given options that neither the algorithm nor the protocol uses."""
    refuse(given, unused_by(options), f"{options.algorithm} with {options.aggregate}")
    if given.get("data_dir") is not None and options.dataset not in FILES:
        raise UsageError(
            f"--data-dir is given, but the data set {options.dataset} needs no files: leave it "
            f"out, or give --dataset {', '.join(FILES)}"
        )


def resolved(given: Mapping[str, Any], preset: str | None) -> TrainOptions:
    """Return the options for `given`, without a check for unused ones."""
    given = stated(TrainOptions, given)
    values = with_preset(given, preset)
    defaults = find(values["algorithm"]).defaults(values)
    if values.keys() & LENGTH:
        defaults = {name: value for name, value in defaults.items() if name not in LENGTH}
    values = defaults | values
    if values.get("steps") is not None:
        values.setdefault("epochs", None)
    aggregate = make(TrainOptions, values).aggregate
    return make(TrainOptions, {**values, **without_dropouts(aggregate, given)})


def with_preset(given: Mapping[str, Any], preset: str | None) -> dict[str, Any]:
    """Return the given options, with those of a preset and of a netlab as defaults."""
    if preset is not None and preset not in PRESETS:
        raise no_such("preset", preset, PRESETS)
    # Within a netlab, seconds are modelled for the lab's links.
    values = {**(PRESETS[preset] if preset is not None else {}), **netlab_link()}
    if given.keys() & LENGTH:
        values = {name: value for name, value in values.items() if name not in LENGTH}
    return {**values, **given}
