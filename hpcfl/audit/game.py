"""The game of an audit: an instance run with the canary, and with what its neighbour has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hpcfl.algorithms import federated
from hpcfl.algorithms.federated.audited import Instance
from hpcfl.algorithms.federated.base import Federation, Spent
from hpcfl.algorithms.federated.participation import Participation
from hpcfl.algorithms.federated.private import PrivateAlgorithm
from hpcfl.algorithms.noise import insecure_noise
from hpcfl.audit.devices import Devices, local_options
from hpcfl.audit.rounds import DIM, Stage, make_protocol
from hpcfl.privacy.accounting.account import REPLACE_RECORD, REPLACE_USER, Account


class Game:
    """Runs an instance with the canary and with what its neighbour has instead.

    It raises UsageError if the settings do not go together.
    """

    def __init__(self, instance: Instance, seed: int) -> None:
        self.instance = instance
        self._seed = seed
        self._kind = federated.find_private(instance.algorithm)
        self._schedule = self._participation(seed)
        times = self._schedule.before(instance.plays)
        victim = int(times.argmax())
        federation = self._federation(self._schedule, seed)
        self._kind.check(federation, instance.privacy)
        self._algorithm = self._make(federation)
        found = self._account()
        self.delta, self.neighbours = found.proven().delta, found.proven().adjacency
        self.paper_neighbours = found.paper().adjacency
        replaced = self.neighbours in (REPLACE_RECORD, REPLACE_USER)
        self.devices = Devices(instance, victim, int(times.max()), replaced, seed)

    def account(self) -> Spent:
        """Return what the accounts say of all rounds that are seen, if noise is secret."""
        instance = self.instance
        secret, where = replace(instance.privacy, fast_noise=False), self._algorithm.federation
        algorithm = self._kind(where, secret, insecure_noise(where.seed))
        if instance.replayed:
            self._go_on(algorithm, instance.resumes)
        for _ in range(instance.replayed or instance.rounds):
            algorithm.observe(instance.per_round - instance.absent)
        return algorithm.spent(instance.plays)

    def _account(self) -> Account:
        settings = self._algorithm.account_settings(self.instance.plays, self.instance.sigma)
        return self._kind.account.of(**settings)

    def _go_on(self, algorithm: PrivateAlgorithm, launch: int) -> None:
        """Let a launch go on from the checkpoint after which those before played in vain."""
        instance = self.instance
        survivors = [instance.per_round - instance.absent] * (instance.rounds - instance.replayed)
        algorithm.resume(survivors, instance.replayed * launch)

    def play(self, canary: bool, run: int) -> tuple[float, bool]:
        """Return what is seen of one run: its score, and whether the canary is sent.

        The score is a log-likelihood ratio, large for a run with the canary. It is sent if the
        observer sees in every round that the canary, or what its neighbour has instead, may be in
        what is released.
        """
        seeds = np.random.SeedSequence(self._seed, spawn_key=(run, int(canary)))
        seed = int(seeds.generate_state(1, np.uint64)[0])
        # Chance that protects is drawn anew for every run; a public schedule is what it is.
        secret = not self.instance.by_record
        participation = self._participation(seed) if secret else self._schedule
        federation = self._federation(participation, seed)
        rounds, again = self.instance.rounds, self.instance.replayed
        checkpoint = np.zeros(DIM, np.float32)
        score, sent = 0.0, True
        for launch in range(1 + (self.instance.resumes if again else 0)):
            ranks = [self._make(federation) for _ in range(self.instance.ranks)]
            if launch:
                self._go_on(ranks[0], launch)
            stage = Stage(self.instance, self.devices, canary, seed, ranks)
            model = checkpoint.copy()
            for index in range(rounds - again if launch else 0, rounds):
                if index == rounds - again:
                    checkpoint = model.copy()
                more = ranks[0].audited_round(stage, index, model)
                score, sent = score + (more or 0.0), sent and more is not None
        return score, sent

    def _make(self, federation: Federation) -> PrivateAlgorithm:
        return self._kind(federation, self.instance.privacy, insecure_noise(federation.seed))

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
