"""The game of an audit: an instance run with the canary, and with what its neighbour has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from hpcfl.algorithms import federated
from hpcfl.algorithms.federated.base import Federation, Spent
from hpcfl.algorithms.federated.participation import Participation
from hpcfl.algorithms.noise import insecure_noise
from hpcfl.audit.devices import Devices, local_options
from hpcfl.audit.instance import Instance
from hpcfl.audit.rounds import Run, make_protocol
from hpcfl.privacy.accounting.account import REPLACE_RECORD, REPLACE_USER


class Game:
    """Runs an instance with the canary and with what its neighbour has instead.

    It raises UsageError if the settings do not go together.
    """

    def __init__(self, instance: Instance, seed: int) -> None:
        self.instance = instance
        self._seed = seed
        self._kind = federated.find_private(instance.algorithm)
        self._schedule = self._participation(seed)
        times = self._schedule.before(instance.rounds)
        self._kind.check(self._federation(self._schedule, seed), instance.privacy)
        account = self._algorithm().account_for(instance.rounds, instance.sigma)
        proven = account.proven()
        self.delta, self.neighbours = proven.delta, proven.adjacency
        self.paper_neighbours = account.paper().adjacency
        replaced = self.neighbours in (REPLACE_RECORD, REPLACE_USER)
        self.devices = Devices(instance, int(times.argmax()), int(times.max()), replaced, seed)

    def _algorithm(self, **privacy: Any) -> Any:
        federation = self._federation(self._schedule, self._seed)
        options = replace(self.instance.privacy, **privacy)
        return self._kind(federation, options, insecure_noise(self._seed))

    def account(self) -> Spent:
        """Return what the accounts say of all rounds, if noise is secret."""
        algorithm = self._algorithm(fast_noise=False)
        for _ in range(self.instance.rounds):
            algorithm.observe(self.instance.per_round)
        spent: Spent = algorithm.spent(self.instance.rounds)
        return spent

    def play(self, canary: bool, run: int) -> float:
        """Return what is seen of one run: a log-likelihood ratio, large with the canary."""
        seeds = np.random.SeedSequence(self._seed, spawn_key=(run, int(canary)))
        seed = int(seeds.generate_state(1, np.uint64)[0])
        # Chance that protects is drawn anew for every run; a public schedule is what it is.
        secret = not self.instance.by_record
        participation = self._participation(seed) if secret else self._schedule
        federation = self._federation(participation, seed)
        algorithm = self._kind(federation, self.instance.privacy, insecure_noise(seed))
        return Run(self.instance, algorithm, self.devices, canary, seed).play()

    def _participation(self, seed: int) -> Participation:
        instance = self.instance
        return Participation(instance.devices, instance.invited, instance.sampling, seed)

    def _federation(self, participation: Participation, seed: int) -> Federation:
        instance = self.instance
        samples = instance.samples if instance.by_record else 1
        return Federation(
            np.full(instance.devices, samples, np.int64),
            participation,
            instance.rounds,
            seed,
            make_protocol(instance, seed),
            local_options(instance),
        )
