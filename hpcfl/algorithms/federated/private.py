"""What all differentially private algorithms have in common: noise, its options, its account."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from hpcfl.algorithms.aggregation.base import NOISE
from hpcfl.algorithms.federated.base import FederatedAlgorithm, Federation, Spent
from hpcfl.crypto.keys import SecretSource
from hpcfl.crypto.noise import FastNoise, NoiseSource, SecureNoise
from hpcfl.errors import UsageError

if TYPE_CHECKING:
    from hpcfl.privacy.accounting.systems import System

# How often a slow accountant is asked in a run: for the first numbers of rounds, and some others.
ALWAYS_ASKED, ASKED = 3, 20


@dataclass(frozen=True)
class PrivacyOptions:
    """What `hpcfl train` was asked for of privacy; see ``hpcfl train --help``.

    Attributes
    ----------
    sigma : float, optional
        Standard deviation (Laplace: scale) of the noise on a coordinate; of what, the algorithm
        says.
    noise_multiplier : float, optional
        The same as a multiple of `clip_norm`.
    epsilon : float, optional
        No round begins that would cost more. Without `sigma` and `noise_multiplier` the noise is
        chosen so that this is what all rounds cost.
    epsilon_by : str
        ``"paper"`` or ``"proven"``: whose epsilon that is.
    delta : float
    clip_norm : float
        Norm to which a sample's gradient, or a user's update, is clipped.
    mechanism : str
        ``"gaussian"`` or ``"laplace"`` (fedsgd-dpc).
    noise : str
        ``"central"``, added by a trusted server, or ``"distributed"``, integers of every device
        (dp-fedavg).
    shuffle : str
        How a device goes through its data (cdp, dp-dsgd).
    convex : bool
        Whether no local step expands distances: declared, not checked (cdp).
    quantile : float, optional
        Adapt the clipping norm to this quantile of the updates' norms (dp-fedavg).
    first_stage : int, optional
        Users invited in a round, in expectation; 3/2 of those kept by default (locks).
    variant : str
        ``"trusted"`` or ``"local"`` (locks).
    sigma_norms : float, optional
        Noise on a norm (local) or the sum of norms (trusted); as `sigma` by default (locks).
    fast_noise : bool
        Draw from a generator that is not cryptographic, and repeats itself for the same seed.
    """

    sigma: float | None = None
    noise_multiplier: float | None = None
    epsilon: float | None = None
    epsilon_by: str = "proven"
    delta: float = 1e-5
    clip_norm: float = 1.0
    mechanism: str = "gaussian"
    noise: str = "central"
    shuffle: str = "continuing"
    convex: bool = False
    quantile: float | None = None
    first_stage: int | None = None
    variant: str = "trusted"
    sigma_norms: float | None = None
    fast_noise: bool = False

    def __post_init__(self) -> None:
        for name in ("sigma", "noise_multiplier", "epsilon", "clip_norm", "sigma_norms"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UsageError(
                    f"--{name.replace('_', '-')} is {value}; it must be above 0 and finite"
                )
        if self.sigma is not None and self.noise_multiplier is not None:
            raise UsageError("give either --sigma or --noise-multiplier, and not both")
        if not 0 < self.delta < 1:
            raise UsageError(f"--delta is {self.delta}; it must be above 0 and below 1")
        if self.quantile is not None and not 0 < self.quantile < 1:
            raise UsageError(f"--quantile is {self.quantile}; it must be above 0 and below 1")


class PrivateAlgorithm(FederatedAlgorithm):
    """An algorithm with an account of what it costs in privacy.

    Parameters
    ----------
    federation : Federation
        Who trains what.
    privacy : PrivacyOptions
        The noise, or what it must reach.
    secrets : callable
        Where cryptographic noise comes from.

    Attributes
    ----------
    sigma : float
        The noise: as asked for, or as it takes to have the epsilon after all rounds.
    slow_account : bool
        Whether an accountant of sampled releases is asked, which takes about a second each time.

    Raises
    ------
    UsageError
        If the options do not go together, or no noise reaches the epsilon.
    """

    slow_account: ClassVar[bool] = True

    def __init__(
        self, federation: Federation, privacy: PrivacyOptions, secrets: SecretSource
    ) -> None:
        super().__init__(federation)
        self.privacy = privacy
        self._secrets = secrets
        self._spent: dict[int, Spent] = {0: Spent(0.0, 0.0)}
        self.sigma = self._sigma()

    @abstractmethod
    def account_settings(self, rounds: int) -> dict[str, Any]:
        """Return the account's settings of the first `rounds` rounds, but sigma."""

    def paper(self, rounds: int, sigma: float) -> float:
        """Return the epsilon that the paper claims for a noise of sigma."""
        return self._system().paper(self._account(rounds, sigma)).epsilon

    def proven(self, rounds: int, sigma: float) -> float:
        """Return the epsilon that is proven for a noise of sigma."""
        return self._system().proven(self._account(rounds, sigma)).epsilon

    def spent(self, rounds: int) -> Spent:
        """Return what the first `rounds` rounds cost in privacy, or at most cost.

        Where an accountant takes long, it is asked for some numbers of rounds only; a number in
        between costs at most what the next of those does.
        """
        if self.slow_account and rounds > ALWAYS_ASKED:
            step = math.ceil(self.federation.rounds / ASKED)
            rounds = min(-(-rounds // step) * step, max(rounds, self.federation.rounds))
        if rounds not in self._spent:
            sides = (side(rounds, self.sigma) for side in (self.paper, self.proven))
            self._spent[rounds] = Spent(*sides)
        return self._spent[rounds]

    def _system(self) -> System:
        from hpcfl.privacy.accounting.systems import SYSTEMS

        return SYSTEMS[self.name]

    def _account(self, rounds: int, sigma: float, **settings: Any) -> Any:
        """Return the settings of an account."""
        return self._system().settings(sigma=sigma, **self.account_settings(rounds), **settings)

    def settings(self) -> dict[str, object]:
        # Of no rounds, an account is found at once.
        proven = self._system().proven(self._account(0, self.sigma))
        return {
            "sigma": self.sigma,
            "epsilon_neighbours": proven.adjacency,
            "epsilon_delta": proven.delta,
        }

    def noise(self, round_index: int, device: int) -> NoiseSource:
        """Return where a device's noise comes from, or that of whoever has another number."""
        if not self.privacy.fast_noise:
            return SecureNoise(self._secrets)
        import numpy as np

        spawn_key = (NOISE, round_index, device + 1)
        return FastNoise(np.random.SeedSequence(self.federation.seed, spawn_key=spawn_key))

    def _sigma(self) -> float:
        privacy = self.privacy
        if privacy.sigma is not None:
            return privacy.sigma
        if privacy.noise_multiplier is not None:
            return privacy.noise_multiplier * privacy.clip_norm
        if privacy.epsilon is None:
            raise UsageError(
                f"{self.name} needs its noise: give --sigma, --noise-multiplier, or --epsilon"
            )
        from hpcfl.privacy.accounting.systems import least_noise

        side = self.paper if privacy.epsilon_by == "paper" else self.proven
        planned = self.federation.rounds
        return least_noise(partial(side, planned), privacy.epsilon, privacy.clip_norm)
