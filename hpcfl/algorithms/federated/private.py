"""The common part of differentially private algorithms: noise, its options and its account."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.base import NOISE, AggregationProtocol
from hpcfl.algorithms.aggregation.quantised import QuantisedProtocol
from hpcfl.algorithms.federated.base import FederatedAlgorithm, Federation, Spent
from hpcfl.algorithms.noise import NoiseSecrets
from hpcfl.crypto.noise import FastNoise, NoiseSource, SecureNoise
from hpcfl.errors import UsageError
from hpcfl.options.privacy import NoiseOptions, PrivacyOptions
from hpcfl.options.training import TrainOptions

if TYPE_CHECKING:
    from hpcfl.privacy.accounting.account import Account

# How often a slow account is computed: for the first numbers of rounds, and for some others.
ALWAYS_ASKED, ASKED = 3, 20

# The "device" number for the noise of integers, which is divided among devices later.
INTEGERS = -2


class PrivateAlgorithm(FederatedAlgorithm):
    """An algorithm with an account of its privacy cost.

    Every class declares its `account`. `sigma` is the noise: the requested one, or the noise that
    gives the requested epsilon after all rounds. `survivors` are, at the server, the numbers of
    devices in the sums so far. UsageError if options conflict, or no noise reaches the epsilon.
    """

    private = True
    options = (*FederatedAlgorithm.options, NoiseOptions)
    account: ClassVar[type[Account]]

    def __init__(
        self, federation: Federation, privacy: PrivacyOptions, secrets: NoiseSecrets
    ) -> None:
        super().__init__(federation)
        self.privacy = privacy
        self._secrets = secrets
        self.survivors: list[int] = []
        self._spent: dict[tuple[int, tuple[int, ...]], Spent] = {}
        self.sigma = self._sigma()

    @classmethod
    def make(cls, federation: Federation, options: TrainOptions, secrets: NoiseSecrets) -> Self:
        return cls(federation, options, secrets)

    @staticmethod
    def _check_trusted_server(protocol: AggregationProtocol, by_chance: bool) -> None:
        """Refuse rounds that reveal more than the sum that a trusted server adds noise to.

        `by_chance` says whether participants are drawn at random and must stay secret.
        """
        if protocol.devices_learn_sum:
            raise UsageError(
                f"devices of {protocol.name} learn the sum before the server adds its noise to it: "
                "use another --aggregate"
            )
        parameters = protocol.parameters
        # Each requested device, or each invited one if they are fewer, stays independently.
        empty = 2 * math.exp(-parameters.devices * (1 - parameters.dropout))
        if by_chance and parameters.drop_by_chance and empty > 2.0**-parameters.security_bits:
            raise UsageError(
                "a round that ends because all of its users drop out reveals that they were few, "
                "and who takes part must stay secret: give a larger --per-round, or "
                "--dropout-model exact"
            )

    def account_settings(
        self, rounds: int, sigma: float, survivors: Sequence[int] = ()
    ) -> dict[str, Any]:
        """Return the account's settings for `rounds` rounds, including those played in vain.

        `survivors` are the known numbers of devices in the rounds' sums, if an account depends on
        them. For other rounds it assumes the fewest that the protocol accepts.
        """
        return {
            "sigma": sigma,
            "rounds": rounds,
            "devices": self.federation.devices,
            "per_round": self.federation.protocol.parameters.devices,
            "clip_norm": self.privacy.clip_norm,
            "delta": self.privacy.delta,
        }

    def account_for(self, rounds: int, sigma: float, survivors: Sequence[int] = ()) -> Any:
        """Return the account of `rounds` rounds; see `account_settings`."""
        return self.account(**self.account_settings(rounds, sigma, survivors))

    def paper(self, rounds: int, sigma: float) -> float:
        """Return the epsilon that the paper claims for the noise `sigma`."""
        return float(self.account_for(rounds, sigma).paper().epsilon)

    def proven(self, rounds: int, sigma: float, survivors: Sequence[int] = ()) -> float:
        """Return the epsilon that is proven for the noise `sigma`; see `account_settings`."""
        return float(self.account_for(rounds, sigma, survivors).proven().epsilon)

    def spent(self, rounds: int) -> Spent:
        """Return the privacy cost of `rounds` rounds, or an upper bound of it.

        A slow account is computed for some numbers of rounds only. A number in between costs at
        most as much as the next of those.
        """
        if rounds == 0:
            return Spent(0.0, 0.0)
        if self.privacy.fast_noise:
            return Spent(math.inf, math.inf)
        if self.slow_account and rounds > ALWAYS_ASKED:
            step = math.ceil(self.federation.rounds / ASKED)
            rounds = min(-(-rounds // step) * step, max(rounds, self.federation.rounds))
        survivors = tuple(self.survivors) if self.counts_survivors else ()
        if (rounds, survivors) not in self._spent:
            proven = self.proven(rounds, self.sigma, survivors)
            self._spent[rounds, survivors] = Spent(self.paper(rounds, self.sigma), proven)
        return self._spent[rounds, survivors]

    @property
    def slow_account(self) -> bool:
        """Whether the account is for sampled releases and takes about a second."""
        return True

    @property
    def counts_survivors(self) -> bool:
        """Whether the account depends on the number of devices in a sum."""
        return False

    def observe(self, survivors: int) -> None:
        self.survivors.append(survivors)

    def resume(self, survivors: Sequence[int], repeated: int) -> None:
        super().resume(survivors, repeated)
        self.survivors = list(survivors)

    def weights(self, participants: list[int]) -> NDArray[np.float64]:
        """Return equal weights: accounts bound every device's influence, or noise, alike."""
        return np.full(len(participants), 1 / len(participants))

    @property
    def _surviving(self) -> float:
        """Expected fraction of the vectors in a sum, with the scaling by devices."""
        parameters = self.federation.protocol.parameters
        return 1.0 if parameters.scaling == "paper" else 1 - parameters.dropout

    @property
    def exact_dropouts(self) -> bool:
        """Whether an additional user can make another one drop out, which changes the sum.

        If exactly floor(theta N) of N participants drop out, one more user can cause one more
        dropout, and the sum moves by up to 2 C (docs/privacy.md has the proof). If devices drop out
        at random, an additional user does not affect the others, and the sum moves by C.
        """
        return False

    def _exactly_so_many_drop_out(self) -> bool:
        parameters = self.federation.protocol.parameters
        return parameters.dropout > 0 and parameters.dropout_model == "exact"

    def promises(self) -> list[str]:
        if self.privacy.fast_noise:
            return [
                "fast_noise takes the noise from the recorded seed, so that anybody can draw it "
                "again and take it off: nothing is differentially private, and epsilon is infinite"
            ]
        if not self.exact_dropouts:
            return []
        return [
            "exactly so many users drop out, so that one user more can make another one leave, and "
            "the sum is accounted for as one that moves by twice the clipping norm: with "
            "--dropout-model bernoulli it moves by that norm"
        ]

    def settings(self) -> dict[str, object]:
        # The account of zero rounds is fast.
        proven = self.account_for(0, self.sigma).proven()
        return {
            "sigma": self.sigma,
            "epsilon_neighbours": proven.adjacency,
            "epsilon_delta": proven.delta,
        }

    def _honest(
        self, protocol: QuantisedProtocol, rounds: int, survivors: Sequence[int]
    ) -> tuple[int, ...]:
        """Return for each round the number of honest devices with noise in every coordinate.

        For future rounds, and for rounds of a killed launch, it is the fewest that the protocol
        accepts.
        """
        known = [protocol.honest_among(count) for count in survivors[:rounds]]
        accepted = protocol.honest_in_sum()
        return (*known, *[accepted] * (rounds - len(known)))

    def _integer_secret(self, round_index: int) -> bytes:
        """Return the key from which this rank's devices draw integer noise in a round."""
        return self._secrets(self.play_index(round_index), INTEGERS)(16)

    def noise(self, round_index: int, device: int) -> NoiseSource:
        """Return the noise source of a device, or of another owner by its number."""
        play = self.play_index(round_index)
        if not self.privacy.fast_noise:
            return SecureNoise(self._secrets(play, device))
        spawn_key = (NOISE, play, device + 1)
        return FastNoise(np.random.SeedSequence(self.federation.seed, spawn_key=spawn_key))

    def _sigma(self) -> float:
        privacy = self.privacy
        if privacy.sigma is not None:
            return privacy.sigma
        if privacy.noise_multiplier is not None:
            return privacy.noise_multiplier * privacy.clip_norm
        if privacy.epsilon is None:
            raise UsageError(
                f"{self.name} needs to know how much noise to add: give --sigma, "
                "--noise-multiplier, or --epsilon"
            )
        from hpcfl.privacy.accounting.account import least_noise

        side = self.paper if privacy.epsilon_by == "paper" else self.proven
        planned = self.federation.rounds
        return least_noise(partial(side, planned), privacy.epsilon, privacy.clip_norm)
