"""What is made of the options of `hpcfl train` before any round: who trains, how, the record."""

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

# Levels have room for a little more noise than was found, as it may be with fewer of them. If that
# is not enough, noise and levels are found anew, so often.
_MORE_NOISE, _TRIES = 1.01, 8
# Few bits have room for few levels, and rounding to few takes more noise: so many times that of 32
# bits at most, in a sum.
NOISE_OF_FEW_BITS = 1.05


def make_federation(options: TrainOptions, sizes: NDArray[np.int64], dim: int) -> Federation:
    """Return who trains what, for devices with so many samples and a model of `dim`."""
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
    """Return how many devices a round may have: by chance all, where each joins by chance."""
    return devices if options.sampling == "poisson" else per_round


def heaviest(
    options: TrainOptions, protocol: QuantisedProtocol, sizes: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the weights in a round whose sums weigh at least as much as those of any round."""
    devices = protocol.parameters.devices
    if options.sampling == "poisson":
        return np.eye(1, devices)[0]  # by chance those in a sum are all that there are
    in_sum, _ = protocol.most_in_sum(devices)
    ordered = np.sort(sizes)
    found = np.concatenate([ordered[: devices - in_sum], ordered[ordered.size - in_sum :]])
    return found / found.sum()


def check_algorithm(options: TrainOptions, devices: int, dim: int) -> Federation:
    """Refuse what does not go together, before any data are read; return who is to train what."""
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
    """Refuse, by UsageError, noise for which sums have no room beside the vectors.

    That of the first round is looked at: as learning rates never rise, no round has more.
    """
    protocol = algorithm.federation.protocol
    if isinstance(protocol, QuantisedProtocol):
        noise = algorithm.integer_noise(protocol, 0)
        if noise is not None:
            type(protocol)(protocol.parameters).add_noise(noise)


def claims(protocol: AggregationProtocol, algorithm: FederatedAlgorithm) -> list[str]:
    """Return what a run promises, in sentences that are true of every round.

    The protocol is that of the expected number of devices. Where chance says how many a round has,
    each is played with the thresholds of its own number, and checked against those: so what is said
    of another number is said to be of that.
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

    A UsageError says that no noise reaches the epsilon, or that the accounts refuse the options.
    """
    secrets = secrets_of_noise(options.insecure_seed)
    return federated.find(options.algorithm).make(federation, options, secrets)


def planned_algorithm(options: TrainOptions, devices: int, dim: int) -> FederatedAlgorithm:
    """Return the algorithm of devices with as much data each, for a model of `dim`, without data.

    Raises what `check_algorithm`, `with_precision` and `make_algorithm` do.
    """
    check_algorithm(options, devices, dim)
    sizes = np.ones(devices, np.int64)
    told = with_precision(options, sizes, dim)
    return make_algorithm(told, make_federation(told, sizes, dim))


def planned_in_fewest_bits(
    options: TrainOptions, devices: int, dim: int
) -> tuple[FederatedAlgorithm, str | None]:
    """Return the same of a private algorithm that sends as few bits a value as will do, and them.

    They have room for the noise, which is hardly more than with 32. None if the protocol has no
    bits to choose. `options` are those of `dp-fedavg`.
    Raises what `planned_algorithm` does.
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
    """Return the options with a number of levels, and a group if only its bits are asked for.

    Where an account pays for rounding to integers they are the most that there is room for beside
    the noise. How much noise that is hardly depends on them, but where they are few: it is found
    with half as many as there is room for without any, and anew until both go together. Raises what
    `make_algorithm` does.
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
            refusal = error  # as with so few levels it takes more noise
            continue
        return chosen
    raise UsageError(
        f"no number of levels leaves room for the noise in the group {options.group}: lower "
        "--clip, the noise, or the number of devices"
    ) from refusal
