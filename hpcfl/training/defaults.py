"""What `hpcfl train` does where nothing is said: by the algorithm, the protocol, or a preset."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from hpcfl.algorithms.aggregation import PROTOCOLS
from hpcfl.algorithms.federated import REGISTRY, find
from hpcfl.errors import UsageError, no_such
from hpcfl.options.definition import make, options_of, stated
from hpcfl.options.names import FILES
from hpcfl.options.privacy import PrivacyOptions
from hpcfl.options.training import LocalOptions, TrainOptions
from hpcfl.rounds import usage
from hpcfl.rounds.build import without_dropouts
from hpcfl.system.launch import netlab_link
from hpcfl.training.presets import PRESETS

OF_ALGORITHMS = frozenset(options_of(PrivacyOptions)) | frozenset(options_of(LocalOptions))
"""Options of which an algorithm says whether it has a use for them."""

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


def unused(options: TrainOptions) -> Set[str]:
    """Return the options that neither the algorithm nor the protocol has a use for."""
    used = find(options.algorithm).uses(options) | usage.of_protocol(options.aggregate, options)
    return (usage.OF_PROTOCOLS | OF_ALGORITHMS) - used


def check_used(given: Mapping[str, Any], options: TrainOptions) -> None:
    """Refuse, with a UsageError, what neither the algorithm nor the protocol has a use for."""

    def used(algorithm: str, protocol: str) -> Set[str]:
        return find(algorithm).uses(options) | usage.of_protocol(protocol, options)

    name, protocol = options.algorithm, options.aggregate
    pairs = {other: (other, protocol) for other in REGISTRY}
    pairs |= {f"--aggregate {other}": (name, other) for other in PROTOCOLS}
    usage.refuse(
        given, unused(options), f"{name} with {protocol}", pairs, lambda one: used(*pairs[one])
    )
    if given.get("data_dir") is not None and options.dataset not in FILES:
        raise UsageError(
            f"--data-dir is given, and the data set {options.dataset} needs no files: leave it "
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
