"""Builds the protocol and its dropout schedule from the options, before any round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.aggregation.base import DROPOUTS, AggregationProtocol
from hpcfl.algorithms.aggregation.quantised import QuantisedProtocol
from hpcfl.algorithms.parameters import Parameters
from hpcfl.crypto.groups import GROUPS
from hpcfl.errors import UsageError, no_such
from hpcfl.options.definition import make, values_of
from hpcfl.options.protocols import DEFAULT_LEVELS, WIDTHS, ProtocolOptions, group_of
from hpcfl.options.shared import PopulationOptions, SeedOptions
from hpcfl.privacy.population import count_of
from hpcfl.values import dataclass, replace

Chosen = TypeVar("Chosen", bound=ProtocolOptions)


@dataclass(frozen=True)
class DropoutSchedule:
    """Draws the devices that drop out; all ranks draw the same."""

    devices: int
    rate: float  # theta
    model: str  # "exact": floor(theta N) devices a round; "bernoulli": each with probability theta
    phase: str  # before which devices drop out: they send and receive nothing from then on
    seed: int  # of the run

    def draw(self, round_index: int) -> dict[int, str]:
        """Return, for each device that drops out, the phase before which it does."""
        seeds = np.random.SeedSequence(self.seed, spawn_key=(DROPOUTS, round_index))
        generator = np.random.default_rng(seeds)
        if self.model == "exact":
            ids = generator.permutation(self.devices)[: count_of(self.rate, self.devices)]
        else:
            ids = np.flatnonzero(generator.random(self.devices) < self.rate)
        return dict.fromkeys(sorted(ids.tolist()), self.phase)


def build(
    name: str,
    options: ProtocolOptions,
    devices: int,
    dim: int,
    weights: NDArray[np.float64] | None = None,
    population: int | None = None,
    most: int | None = None,
) -> tuple[AggregationProtocol, DropoutSchedule]:
    """Return a protocol and its dropout schedule for N = `devices` and d = `dim`.

    `weights` are the devices' weights, shape (N,), equal by default. `population` is the number of
    devices from which the N are drawn, N by default. `most` is the largest number of devices of any
    round: default levels and bits have room for it. Raise UsageError for incompatible options.
    """
    values = values_of(options, ProtocolOptions)
    seed = options.seed if isinstance(options, SeedOptions) else 0
    kind = find(name, options.security)

    def at(group: str, levels: int) -> AggregationProtocol:
        chosen = values | {"group": group, "bits": None, "levels": levels}
        return kind(
            Parameters(devices, dim, seed=seed, weights=weights, population=population, **chosen)
        )

    protocol = at(*_precision(options, name, at, most))
    upload = next(step for step in protocol.steps if step.upload)
    whole_words = protocol.summed_in is not None and protocol.summed_in.whole_words
    summed = whole_words and not protocol.sparse_upload and upload.receive_sum is not None
    if options.upload == "reduce" and (not summed or protocol.helpers):
        raise UsageError(
            f"{protocol.name} cannot use --upload reduce: MPI sums whole vectors of group elements "
            "of 8, 16 or 32 bits on the way to the server, and helpers' ranks would take part"
        )
    phase = options.dropout_phase or protocol.upload_phase()
    droppable = [name for name in protocol.phases() if name not in ("model", "result")]
    if phase not in droppable:
        raise no_such("phase", phase, droppable, place=f"{protocol.name}: ")
    # In a population, devices drop out because they are late.
    alike = not isinstance(options, PopulationOptions) or options.population is None
    rate = options.dropout if alike else 0.0
    return protocol, DropoutSchedule(devices, rate, options.dropout_model, phase, seed)


def with_group(options: Chosen, name: str) -> Chosen:
    """Return the options with the protocol's group of `bits` bits; UsageError for "auto"."""
    if options.bits is None:
        return options
    if options.bits == "auto":
        raise UsageError("--bits auto does not allow for noise: give a number of bits")
    # The protocol itself refuses a group that it does not support.
    group = options.group if options.group != "fq" else group_of(find(name).family, options.bits)
    return replace(options, group=group, bits=None)


def _precision(
    options: ProtocolOptions,
    name: str,
    at: Callable[[str, int], AggregationProtocol],
    most: int | None,
) -> tuple[str, int]:
    """Return the group and the levels; `at` makes the protocol for such a pair.

    Requested values are returned even if they have no room for all sums: the protocol refuses them.
    """
    levels = options.levels or DEFAULT_LEVELS
    automatic = options.bits == "auto"
    family = find(name).family
    if not family:
        return options.group, levels
    group = group_of(family, max(WIDTHS)) if automatic else with_group(options, name).group
    if not automatic and (options.levels or GROUPS[group].bits == 32):
        return group, levels
    one = at(group, 1)
    assert isinstance(one, QuantisedProtocol)
    if not automatic:
        return group, min(levels, one.largest_levels(devices=most))
    names = (group_of(family, bits) for bits in WIDTHS)
    enough = (name for name in names if one.largest_levels(GROUPS[name], devices=most) >= levels)
    return next(enough, group), levels


def without_dropouts(name: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the given options, with another default of dropouts where theirs does not fit.

    It is 0 if the protocol tolerates none; see also `with_quorum`.
    """
    try:
        tolerant = find(name).tolerates_dropouts
    except UsageError:
        tolerant = True  # An unknown protocol is refused when the run is prepared.
    if not tolerant:
        return {"dropout": 0.0} | dict(given)
    return with_quorum(given)


def with_quorum(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the given options; with a population, dropouts are by default what a quorum leaves.

    Nobody knows how many devices a deadline alone leaves: the default of options stays.
    """
    if given.get("population") is None:
        return given
    quorum = make(PopulationOptions, {"quorum": given.get("quorum")}).quorum
    if quorum == 1 and given.get("deadline") is not None:
        return given
    return {"dropout": round(1 - quorum, 9)} | dict(given)
