"""Builds the federation and the algorithm from the options of `hpcfl train`, before any round."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms import federated
from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.aggregation.base import AggregationProtocol
from hpcfl.algorithms.aggregation.quantised import QuantisedProtocol
from hpcfl.algorithms.federated.base import FederatedAlgorithm, FederatedAveraging, Federation
from hpcfl.algorithms.federated.dpfedavg import DPFedAvg
from hpcfl.algorithms.federated.levels import largest_levels
from hpcfl.algorithms.federated.participation import Participation
from hpcfl.algorithms.federated.private import PrivateAlgorithm
from hpcfl.benchmark.experiment import secrets_of_noise
from hpcfl.errors import UsageError
from hpcfl.options.protocols import DEFAULT_LEVELS, WIDTHS
from hpcfl.options.training import TrainOptions
from hpcfl.report.formats import counted
from hpcfl.rounds.build import build, with_group

# Levels leave room for slightly more noise than was computed, because fewer levels may need more.
# If that is not enough, noise and levels are computed again, at most _TRIES times.
_MORE_NOISE, _TRIES = 1.01, 8
# Few bits leave room for few levels, and rounding to few levels needs more noise. The noise in a
# sum may be at most this multiple of the noise with 32 bits.
NOISE_OF_FEW_BITS = 1.05


def make_federation(options: TrainOptions, sizes: NDArray[np.int64], dim: int) -> Federation:
    """Return the federation of devices with `sizes` samples and a model of `dim` parameters."""
    devices, kind = sizes.size, federated.find(options.algorithm)
    per_round = options.per_round or devices
    invited = kind.invited(per_round, devices, options)
    participation = Participation(devices, invited, options.sampling, options.seed)
    most = most_in_round(options, per_round, devices)

    def built(weights: NDArray[np.float64] | None = None) -> AggregationProtocol:
        return build(options.aggregate, options, per_round, dim, weights, devices, most)[0]

    protocol = built()
    if isinstance(protocol, QuantisedProtocol):
        protocol.check_levels(devices=most)
        if not kind.private and np.ptp(sizes) > 0:
            protocol = built(heaviest(options, protocol, sizes))
    return Federation(sizes, participation, options.rounds, options.seed, protocol, options)


def most_in_round(options: TrainOptions, per_round: int, devices: int) -> int:
    """Return the largest number of devices in a round; all for Poisson sampling."""
    return devices if options.sampling == "poisson" else per_round


def heaviest(
    options: TrainOptions, protocol: QuantisedProtocol, sizes: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the weights of a round whose sums can weigh as much as those of any round."""
    devices = protocol.parameters.devices
    if options.sampling == "poisson":
        return np.eye(1, devices)[0]  # a sum may have all devices of its round
    in_sum, _ = protocol.most_in_sum(devices)
    ordered = np.sort(sizes)
    found = np.concatenate([ordered[: devices - in_sum], ordered[ordered.size - in_sum :]])
    return found / found.sum()


def check_algorithm(options: TrainOptions, devices: int, dim: int) -> Federation:
    """Raise UsageError for incompatible options before any data are read; return the federation."""
    kind = federated.find(options.algorithm)
    summing = find(options.aggregate)
    leaves_out = kind.leaves_out or (kind is FederatedAveraging and summing.same_coordinates)
    if options.error_feedback and not leaves_out:
        raise UsageError(
            f"--error-feedback is for {' and '.join(federated.SPARSIFIED)}, and for fedavg with "
            f"--aggregate common: with {options.algorithm} and {options.aggregate} no device keeps "
            "what it has not sent"
        )
    federation = make_federation(options, np.ones(devices, np.int64), dim)
    kind.check(federation, options)
    return federation


def check_noise(algorithm: FederatedAlgorithm) -> None:
    """Raise UsageError if sums have no room for the noise beside the vectors.

    The first round is checked: no round has more noise, because learning rates never rise.
    """
    protocol = algorithm.federation.protocol
    if isinstance(protocol, QuantisedProtocol):
        noise = algorithm.integer_noise(protocol, 0)
        if noise is not None:
            type(protocol)(protocol.parameters).add_noise(noise)


def claims(protocol: AggregationProtocol, algorithm: FederatedAlgorithm) -> list[str]:
    """Return the promises of a run, in sentences that hold for every round.

    `protocol` has the expected number of devices. If the number is random, each round uses the
    thresholds for its own number and is checked against them. The sentences then say that they are
    about a round with the expected number.
    """
    found = [promise.claim for promise in protocol.promises()]
    participation = algorithm.federation.participation
    drawn = participation.mode == "poisson" and participation.per_round < participation.devices
    if found and (drawn or algorithm.first_stage is not None):
        expected = counted(protocol.parameters.devices, "device")
        found = [f"of a round of {expected}, as many as are expected: {claim}" for claim in found]
        found.append(
            "chance says how many devices a round has, and each promises this with the numbers "
            "that follow from its own: the sum of a smaller round may be one of fewer devices' "
            "vectors, and fewer of it may collude"
        )
    return [*found, *algorithm.promises()]


def make_algorithm(options: TrainOptions, federation: Federation) -> FederatedAlgorithm:
    """Return the algorithm of one rank.

    Raise UsageError if no noise reaches the epsilon, or if the accounts refuse the options.
    """
    secrets = secrets_of_noise(options.insecure_seed)
    return federated.find(options.algorithm).make(federation, options, secrets)


def planned_algorithm(options: TrainOptions, devices: int, dim: int) -> FederatedAlgorithm:
    """Return the algorithm for devices with equally much data and a model of `dim` parameters.

    No data are read. Raise the errors of `check_algorithm`, `with_precision`, `make_algorithm`.
    """
    check_algorithm(options, devices, dim)
    sizes = np.ones(devices, np.int64)
    told = with_precision(options, sizes, dim)
    return make_algorithm(told, make_federation(told, sizes, dim))


def planned_in_fewest_bits(
    options: TrainOptions, devices: int, dim: int
) -> tuple[FederatedAlgorithm, str | None]:
    """Return `planned_algorithm` with the fewest sufficient bits per value, and these bits.

    They have room for the noise, which is at most `NOISE_OF_FEW_BITS` times that of 32 bits. The
    bits are None if the protocol has no choice of bits. `options` are those of `dp-fedavg`.
    Raise the errors of `planned_algorithm`.
    """
    if not find(options.aggregate).family:
        return planned_algorithm(options, devices, dim), None

    def at(bits: int) -> DPFedAvg:
        found = planned_algorithm(replace(options, bits=str(bits)), devices, dim)
        assert isinstance(found, DPFedAvg)
        return found

    *fewer, most = WIDTHS
    finest = at(most)
    for bits in fewer:
        with suppress(UsageError):
            found = at(bits)
            if found.noise_in_sum <= NOISE_OF_FEW_BITS * finest.noise_in_sum:
                return found, str(bits)
    return finest, str(most)


def with_precision(options: TrainOptions, sizes: NDArray[np.int64], dim: int) -> TrainOptions:
    """Return the options with a number of levels, and with a group if only its bits are given.

    For private algorithms, the levels are the most that fit beside the noise. The noise hardly
    depends on the number of levels unless they are few. So it is first computed for half of the
    levels that would fit without noise, and again until both fit together. Raise the errors of
    `make_algorithm`.
    """
    if not federated.find(options.algorithm).private:
        plan = make_federation(options, sizes, dim).protocol.parameters
        return replace(options, levels=plan.levels, group=plan.group, bits=None)

    options = with_group(options, options.aggregate)
    if options.levels is not None:
        return options

    def at(levels: int) -> TrainOptions:
        return replace(options, levels=levels)

    def made(chosen: TrainOptions) -> FederatedAlgorithm:
        return make_algorithm(chosen, make_federation(chosen, sizes, dim))

    def check(levels: int) -> None:
        check_noise(made(replace(noisy, levels=levels)))

    one = make_federation(at(1), sizes, dim).protocol
    if not isinstance(one, QuantisedProtocol):
        return at(DEFAULT_LEVELS)
    most = most_in_round(options, one.parameters.devices, sizes.size)
    roomy = one.largest_levels(devices=most)
    algorithm = made(at(max(1, roomy // 2)))
    refusal = None
    for _ in range(_TRIES):
        assert isinstance(algorithm, PrivateAlgorithm)
        noisy = replace(options, sigma=_MORE_NOISE * algorithm.sigma, noise_multiplier=None)
        chosen = at(min(largest_levels(one, check), roomy))
        algorithm = made(chosen)
        try:
            check_noise(algorithm)
        except UsageError as error:
            refusal = error  # so few levels need more noise
            continue
        return chosen
    raise UsageError(
        f"no number of levels leaves room for the noise in the group {options.group}: lower "
        "--clip, the noise, or the number of devices"
    ) from refusal
