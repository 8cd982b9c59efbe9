"""What `hpcfl train` does where nothing is said: by the algorithm, the protocol, or a preset."""

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

# Of which one is given.
LENGTH = {"epochs", "steps"}


def asked(given: Mapping[str, Any], preset: str | None = None) -> TrainOptions:
    """Return the options that keywords, or a command line, stand for, at least ``algorithm``.

    What is not given is taken from the preset, if there is one, and from the algorithm. A
    UsageError says that there is no such option or preset, that a value cannot be meant, or that an
    option would be ignored.
    """
    options = resolved(given, preset)
    check_used(given, options)
    return options


def unused_by(options: TrainOptions) -> set[str]:
    """Return the names of options that neither the algorithm nor the protocol has a use for."""
    groups = *find(options.algorithm).options, *find_protocol(options.aggregate).options
    known = (ProtocolOptions, PrivacyOptions, LocalOptions)
    return set[str]().union(*(unused(group, groups) for group in known))


def check_used(given: Mapping[str, Any], options: TrainOptions) -> None:
    """Refuse, with a UsageError, what neither the algorithm nor the protocol has a use for."""
    refuse(given, unused_by(options), f"{options.algorithm} with {options.aggregate}")
    if given.get("data_dir") is not None and options.dataset not in FILES:
        raise UsageError(
            f"--data-dir is given, but the data set {options.dataset} needs no files: leave it "
            f"out, or give --dataset {', '.join(FILES)}"
        )


def resolved(given: Mapping[str, Any], preset: str | None) -> TrainOptions:
    """Return the same, whether all that is given is used or not."""
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
    """Return what is given, and what a preset, and a lab around the run, say besides."""
    if preset is not None and preset not in PRESETS:
        raise no_such("preset", preset, PRESETS)
    # Within a lab the seconds that are modelled are those of its links.
    values = {**(PRESETS[preset] if preset is not None else {}), **netlab_link()}
    if given.keys() & LENGTH:
        values = {name: value for name, value in values.items() if name not in LENGTH}
    return {**values, **given}
