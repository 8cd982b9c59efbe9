"""The rounds of a run that are planned, as far as they decide whether a sum can wrap around.

What a round is differs from what the run was set up for: it may have other devices, whose weights
differ. A number of levels, chosen or asked for, must suit them all before a results file is begun.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hpcfl.algorithms.aggregation.base import AggregationProtocol
from hpcfl.algorithms.aggregation.quantised import QuantisedProtocol
from hpcfl.algorithms.federated.base import FederatedAlgorithm
from hpcfl.options.training import TrainOptions
from hpcfl.rounds.build import DropoutSchedule, build


def summing(
    options: TrainOptions, algorithm: FederatedAlgorithm, participants: list[int], dim: int
) -> tuple[AggregationProtocol, DropoutSchedule]:
    """Return what sums the vectors of a round's participants, and who of them drops out."""
    return build(
        options.aggregate,
        options,
        len(participants),
        dim,
        algorithm.weights(participants),
        algorithm.federation.devices,
    )


def protocols(
    options: TrainOptions, algorithm: FederatedAlgorithm, dim: int
) -> Iterator[tuple[int, AggregationProtocol]]:
    """Yield the protocols of planned rounds, those with the largest sums, and the rounds' numbers.

    UsageError if one of them refuses the options.
    """
    for index in _extreme_rounds(options, algorithm):
        protocol, _ = summing(options, algorithm, algorithm.participants(index), dim)
        yield index, protocol


def check(options: TrainOptions, algorithm: FederatedAlgorithm, dim: int) -> None:
    """Refuse, by UsageError, levels with which the sum of a planned round could wrap around."""
    for index, protocol in protocols(options, algorithm, dim):
        if isinstance(protocol, QuantisedProtocol):
            noise = algorithm.integer_noise(protocol, index)
            if noise is not None:
                protocol.add_noise(noise)


def _extreme_rounds(options: TrainOptions, algorithm: FederatedAlgorithm) -> list[int]:
    """Return the numbers of rounds among which those with the largest sums are."""
    protocol = algorithm.federation.protocol
    if not isinstance(protocol, QuantisedProtocol) or algorithm.first_stage is not None:
        # Sums of real numbers do not wrap around, and who is kept of those invited is not known.
        return []
    # Noise falls or rises from round to round: one of the ends has the most.
    found = {0, options.rounds - 1}
    if _rounds_differ(algorithm, protocol):
        found |= _heaviest_rounds(options, algorithm, protocol)
    # Smaller rounds are not played.
    return [n for n in sorted(found) if len(algorithm.participants(n)) >= protocol.min_devices]


def _rounds_differ(algorithm: FederatedAlgorithm, protocol: QuantisedProtocol) -> bool:
    """Return whether sums of some rounds can be larger than those of others, but for the noise."""
    participation = algorithm.federation.participation
    if participation.per_round == participation.devices:
        return False
    of_a_part = protocol.most_in_sum(participation.per_round)[1] < 1
    weights = algorithm.weights(list(range(participation.devices)))
    return participation.mode == "poisson" or (of_a_part and bool(np.ptp(weights) > 0))


def _heaviest_rounds(
    options: TrainOptions, algorithm: FederatedAlgorithm, protocol: QuantisedProtocol
) -> set[int]:
    """Return, for every number of devices, the round in which those of a sum weigh most."""
    heaviest: dict[int, tuple[float, int]] = {}
    for index in range(options.rounds):
        participants = algorithm.participants(index)
        if len(participants) < protocol.min_devices:
            continue
        weights = np.sort(algorithm.weights(participants))
        in_sum, _ = protocol.most_in_sum(weights.size)
        share = float(weights[-in_sum:].sum()), index
        heaviest[weights.size] = max(share, heaviest.get(weights.size, share))
    return {index for _, index in heaviest.values()}
