"""Rounds under attack: whatever was promised of a round that was accepted must hold of it.

    python tests/security/promise_campaign.py --rounds 10000 --seed 1

Every round is one of `STRATEGIES`, over all protocols, with an adversary that chooses its victims
after it has seen what there is to see. What is promised is read from what `hpcfl bench` prints, and
recomputed, by code of its own, from what happened: where a number is a probability, exactly, with
fractions. A promise may fail as often as it says: with security bits that are chosen small, so that
failures can be seen at all, their number is compared with the binomial distribution.

The code of this file plays rounds of earlier versions as well; in commit 27b6567 it finds that
promises are broken (from a checkout of it beside this one):

    PYTHONPATH=../hpcfl-27b6567 python tests/security/promise_campaign.py --rounds 300 --seed 1
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import comb
from typing import Any

import hostile_rounds
import numpy as np
from hostile_rounds import Outcome, Plan, make, missing_honest, play, violations

from hpcfl.algorithms.noise import IntegerNoise
from hpcfl.errors import UsageError

Generator = np.random.Generator
# Each protocol that hides anything, and how it is run where little depends on it.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "secagg": ("secagg", {}),
    "secagg --degree 6": ("secagg", {"degree": 6}),
    "secagg-graph": ("secagg-graph", {"degree": 8}),
    "sparse": ("sparse", {"alpha": 0.5}),
    "cohort": ("cohort", {"alpha": 0.5}),
    "secagg --security active": ("secagg", {"security": "active"}),
    "sparse --security active": ("sparse", {"security": "active", "alpha": 0.5}),
}
SMALL_THRESHOLD = 4
# How often promises may fail here: 2 to the minus this.
BITS = 12


@dataclass
class Finding:
    """One round of the campaign.

    Attributes
    ----------
    strategy, case : str
        What was done, and to which protocol.
    accepted : bool
        Whether the round ended with a sum.
    broken : list of str
        What was promised of it and does not hold.
    chance : float
        With what probability something may be broken by the promise's own words.
    """

    strategy: str
    case: str
    accepted: bool
    broken: list[str]
    chance: float = 0.0


def _made(case: str, devices: int, **options: Any) -> Any:
    name, fixed = CASES[case]
    protocol = make(name, devices, **{"dropout": 0.2, "gamma": 0.1, **fixed, **options})
    if "degree" in fixed:
        protocol.topology.threshold = SMALL_THRESHOLD
    return protocol


def _finding(strategy: str, case: str, outcome: Outcome, *more: str) -> Finding:
    broken = violations(outcome) if outcome.accepted else []
    return Finding(strategy, case, outcome.accepted, [*broken, *filter(None, more)])


def one_hostile_device(generator: Generator, seed: int) -> Finding:
    """Let one device do what it likes, beside dropouts as planned: nobody else may be missing."""
    case = str(generator.choice(list(CASES)))
    devices = int(generator.integers(10, 15))
    me = int(generator.integers(devices))
    others = [id for id in range(devices) if id != me]
    count = int(generator.choice([1, 2, devices // 2, devices - 1]))
    victims = generator.choice(others, count, replace=False)
    tricks = ["spoil", "spoil", "spoil", "contradict", "other", "lie", "complain"]
    trick = str(generator.choice(tricks))
    plan = Plan(
        hostile=(me,),
        victims=tuple(victims.tolist()),
        spoil=str(generator.choice(list(hostile_rounds.SPOILS))) if trick == "spoil" else "",
        contradict=trick == "contradict",
        other=trick == "other",
        lie=trick == "lie",
        complain=trick == "complain",
        vanish=str(generator.choice(["", "", "masked_input", "unmask"])),
        seed=seed,
    )
    planned = generator.permutation(others)[: int(generator.choice([0, math.floor(0.2 * devices)]))]
    phase = str(generator.choice(["advertise_keys", "share_keys", "masked_input"]))
    outcome = play(_made(case, devices), plan, dropouts=dict.fromkeys(planned.tolist(), phase))
    missing = missing_honest(outcome)
    ended = "" if outcome.accepted else f"the round ended: {outcome.error}"
    lost = f"honest devices {missing} were lost" if outcome.accepted and missing else ""
    return _finding("one hostile device", case, outcome, ended, lost)


def removed_devices(generator: Generator, seed: int) -> Finding:
    """Let one device spoil its rows to those that share a victim's cohorts, or its links."""
    case = str(generator.choice(["cohort", "secagg-graph"]))
    devices = 20
    protocol = _made(case, devices, alpha=0.4, min_cohort=1)
    victim, me = 0, devices - 1

    def mates(server: Any) -> list[int]:
        order = server._links.order.tolist()
        place, reach = order.index(victim), 7
        near = [order[(place + k) % len(order)] for k in range(-reach, reach + 1) if k]
        return [id for id in near if id not in (victim, me)]

    plan = Plan(hostile=(me,), spoil="foreign", seed=seed)

    def choose(server: Any) -> Mapping[int, str]:
        plan.victims = tuple(mates(server))
        return {}

    outcome = play(protocol, plan, choose=choose)
    missing = missing_honest(outcome)
    lost = f"honest devices {missing} were lost" if outcome.accepted and missing else ""
    return _finding("removed devices", case, outcome, lost)


def early_leavers(generator: Generator, seed: int) -> Finding:
    """Let honest devices vanish early while colluders stay, and so weigh more."""
    case, devices, gamma = "secagg-graph", 120, Fraction(1, 4)
    options = {"dropout": 0.3, "gamma": 0.25, "security_bits": 15, "correctness_bits": 4}
    protocol = make("secagg-graph", devices, 12, **options)
    colluding = math.floor(gamma * devices)
    ids = generator.permutation(devices)
    plan = Plan(hostile=tuple(ids[:colluding].tolist()), seed=seed)
    gone = ids[colluding : colluding + math.floor(Fraction("0.3") * devices)]
    phase = str(generator.choice(["advertise_keys", "share_keys", "masked_input"]))
    outcome = play(protocol, plan, dropouts=dict.fromkeys(gone.tolist(), phase))
    worse = ""
    if outcome.accepted:
        printed = printed_ring(protocol)
        ring = len(hostile_rounds.ring_of(outcome) or [])
        degree, threshold = protocol.topology.degree, outcome.server._links.threshold
        absent = ring - len(outcome.survivors)
        true = ring_bound(ring, colluding, absent, degree, threshold)
        if true > printed * Fraction(11, 10):
            worse = f"printed {_bits(printed)}, and it is {_bits(true)}"
    return _finding("early leavers", case, outcome, worse)


def smallest_cohorts(devices: int, dim: int, **options: Any) -> Any:
    """Return the protocol with the smallest cohorts that the program accepts."""
    for size in range(2, devices + 1):
        try:
            return make("cohort", devices, dim, alpha=size / devices, **options)
        except UsageError:
            continue
    raise AssertionError("no cohorts at all are accepted")


def chosen_departures(generator: Generator, seed: int) -> Finding:
    """Once the ring is known, cut off whoever stands between the colluders and a victim."""
    devices, gamma = 40, 0.2
    options = {"dropout": 0.1, "gamma": gamma, "security_bits": BITS, "correctness_bits": 4}
    protocol = smallest_cohorts(devices, 40, min_cohort=2, **options)
    colluding = tuple(generator.permutation(devices)[: math.floor(gamma * devices)].tolist())
    plan = Plan(hostile=colluding, seed=seed)
    budget = int(generator.integers(0, devices // 2))

    def choose(server: Any) -> Mapping[int, str]:
        order = server._links.order.tolist()
        size = protocol.cohort_size
        cohorts = [[order[(s + k) % devices] for k in range(size)] for s in range(devices)]
        honest = min(([id for id in cohort if id not in colluding] for cohort in cohorts), key=len)
        return dict.fromkeys(honest[1 : 1 + budget], "masked_input")

    outcome = play(protocol, plan, choose=choose)
    found = _finding("chosen departures", "cohort", outcome)
    found.chance = 2.0**-BITS
    return found


def ground_keys(generator: Generator, seed: int) -> Finding:
    """Let the last device try keys until the ring suits it, knowing those of all others."""
    devices, gamma, tries = 40, 0.3, 1 << BITS
    protocol = make("cohort", devices, 80, alpha=0.3, dropout=0.0, gamma=gamma)
    colluding = tuple(range(devices - math.floor(gamma * devices), devices))
    plan = Plan(hostile=colluding, seed=seed)
    size = protocol.cohort_size

    def worst(order: list[int]) -> int:
        """Return how many honest devices the cohort has that has the fewest."""
        flags = np.array([id not in colluding for id in order] * 2, np.int64)
        sums = np.concatenate([[0], np.cumsum(flags)])
        return int((sums[size : size + devices] - sums[:devices]).min())

    def wrap(id: int, player: Any, others: dict[int, Any]) -> Any:
        return Grinder(player, others, protocol, worst, tries) if id == colluding[-1] else player

    outcome = play(protocol, plan, wrap=wrap)
    found = _finding("ground keys", "cohort", outcome)
    if outcome.accepted:
        # Any floor rests on this: by chance, a cohort seldom has more colluders than so many.
        most = size - worst(hostile_rounds.ring_of(outcome) or [])
        allowed = most_colluding(devices, len(colluding), size, Fraction(1, 2**BITS))
        if most > allowed:
            found.broken.append(f"a cohort of {size} holds {most} colluders, not {allowed}")
    found.chance = 2.0**-BITS
    return found


class Grinder:
    """A device that tries keys; it knows all others', and how the ring followed from keys alone."""

    def __init__(
        self,
        inner: Any,
        devices: dict[int, Any],
        protocol: Any,
        worst: Callable[[list[int]], int],
        tries: int,
    ) -> None:
        self._inner, self._devices, self._protocol = inner, devices, protocol
        self._worst, self._tries = worst, tries

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def send_advertise_keys(self) -> Any:
        from hpcfl.algorithms.aggregation.topology import ring_order

        inner = self._inner
        own = getattr(inner, "_inner", inner)
        public = {
            id: device._transport_pair.public + device._mask_pair.public
            for id, device in self._devices.items()
            if hasattr(device, "_mask_pair")
        }
        context = self._protocol.round_context(own._round)
        count = self._protocol.parameters.devices
        best = None
        for _ in range(self._tries):
            payload = inner.send_advertise_keys()
            keys = {**public, own.id: payload.tobytes()}
            try:
                order = ring_order(count, keys, bytes(16), context)
            except TypeError:
                order = ring_order(keys, context)
            rank = self._worst([int(id) for id in order])
            if best is None or rank < best[0]:
                best = rank, payload, own._transport_pair, own._mask_pair
        _, payload, own._transport_pair, own._mask_pair = best
        return payload


def few_noises(generator: Generator, seed: int) -> Finding:
    """Let devices vanish, so that less noise is in the sum than was promised."""
    case = str(generator.choice(["secagg", "secagg-graph"]))
    devices = 12
    protocol = _made(case, devices, dropout=0.2, gamma=0.17)
    protocol.add_noise(IntegerNoise(3, bytes(16)))
    promised = protocol.honest_in_sum()
    colluding = tuple(range(math.floor(0.17 * devices)))
    gone = generator.permutation(np.arange(2, devices))[: int(generator.integers(0, 6))]
    outcome = play(
        protocol,
        Plan(hostile=colluding, seed=seed),
        dropouts=dict.fromkeys(gone.tolist(), "masked_input"),
    )
    short = ""
    if outcome.accepted:
        there = len({*outcome.survivors} - {*colluding})
        if there < promised:
            short = f"the noise of {there} honest devices is in the sum, and {promised} promised"
    return _finding("few noises", case, outcome, short)


def drawn_from_many(generator: Generator, seed: int) -> Finding:
    """Draw the devices of a round from many: more of them may collude than on average."""
    case, devices, population, gamma = "secagg", 12, 120, 0.25
    options = {"dropout": 0.0, "gamma": gamma, "population": population, "security_bits": BITS}
    protocol = make("secagg", devices, **options)
    protocol.add_noise(IntegerNoise(3, bytes(16)))
    promised = protocol.honest_in_sum()
    colluders = set(range(math.floor(gamma * population)))
    drawn = generator.permutation(population)[:devices].tolist()
    plan = Plan(hostile=tuple(k for k, id in enumerate(drawn) if id in colluders), seed=seed)
    outcome = play(protocol, plan)
    short = ""
    if outcome.accepted:
        there = len({*outcome.survivors} - {*plan.hostile})
        if there < promised:
            short = f"the noise of {there} honest devices is in the sum, and {promised} promised"
    found = _finding("drawn from many", case, outcome, short)
    # It says itself how likely it is that as many collude as open a secret.
    whole, colluding, needed = comb(population, devices), len(colluders), devices // 2 + 1
    opened = sum(
        comb(colluding, c) * comb(population - colluding, devices - c)
        for c in range(needed, devices + 1)
    )
    found.chance = 2.0**-BITS + opened / whole
    return found


def replays(generator: Generator, seed: int) -> Finding:
    """Let a device send what another, or it itself in another round, has sent."""
    case = str(generator.choice([case for case in CASES if "active" not in case]))
    devices = int(generator.integers(10, 14))
    protocol = _made(case, devices)
    me = devices - 1
    before = play(protocol, Plan(seed=seed), index=0)
    what = str(generator.choice(["send_advertise_keys", "send_share_keys", "send_unmask"]))

    def wrap(id: int, player: Any, others: dict[int, Any]) -> Any:
        source = others[0] if generator.integers(2) else before.devices[me]
        return Replayer(player, source, what) if id == me else player

    outcome = play(protocol, Plan(hostile=(me,), seed=seed), index=1, wrap=wrap)
    missing = missing_honest(outcome)
    ended = "" if outcome.accepted else f"the round ended: {outcome.error}"
    lost = f"honest devices {missing} were lost" if outcome.accepted and missing else ""
    return _finding("replays", case, outcome, ended, lost)


class Replayer:
    """A device that sends again, in one step, what another device sends there."""

    def __init__(self, inner: Any, source: Any, what: str) -> None:
        self._inner, self._source, self._what = inner, source, what

    def __getattr__(self, name: str) -> Any:
        if name != self._what:
            return getattr(self._inner, name)
        if name == "send_share_keys":
            return self._rows
        if name == "send_advertise_keys":
            pairs = self._source._transport_pair.public + self._source._mask_pair.public
            self._inner.send_advertise_keys()
            return lambda: np.frombuffer(pairs, np.uint8)
        return lambda: np.roll(self._inner.send_unmask(), 4)

    def _rows(self) -> Any:
        receivers, rows = self._inner.send_share_keys()
        return receivers, np.roll(rows, 1, axis=0)


def bad_values(generator: Generator, seed: int) -> Finding:
    """Let a device's vector hold what is not a number, or is infinite."""
    case = str(generator.choice(list(CASES)))
    devices = int(generator.integers(10, 14))
    me = int(generator.integers(devices))
    value = float(generator.choice([np.nan, np.inf, -np.inf]))

    def wrap(id: int, player: Any, others: dict[int, Any]) -> Any:
        return BadValues(player, value) if id == me else player

    outcome = play(_made(case, devices), Plan(hostile=(me,), seed=seed), wrap=wrap)
    missing = missing_honest(outcome)
    ended = "" if outcome.accepted else f"the round ended: {outcome.error}"
    used = "its vector was used" if outcome.accepted and me in outcome.survivors else ""
    lost = f"honest devices {missing} were lost" if outcome.accepted and missing else ""
    return _finding("bad values", case, outcome, ended, used, lost)


class BadValues:
    """A device whose vector is spoiled."""

    def __init__(self, inner: Any, value: float) -> None:
        self._inner, self._value = inner, value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def send_masked_input(self, vector: Any) -> Any:
        spoiled = vector.copy()
        spoiled[:] = self._value
        return self._inner.send_masked_input(spoiled)


STRATEGIES: dict[str, Callable[[Generator, int], Finding]] = {
    strategy.__name__: strategy
    for strategy in (
        *(one_hostile_device, removed_devices, early_leavers, chosen_departures),
        *(ground_keys, few_noises, drawn_from_many, replays, bad_values),
    )
}
# Of a hundred rounds; those with many devices take longest.
WEIGHTS = (40, 8, 2, 8, 2, 10, 10, 10, 10)


# What is printed, and what it should be


def printed_ring(protocol: Any) -> Fraction:
    """Return what is printed as the probability that a ring's promises fail, both together."""
    text = " ".join(getattr(one, "claim", one) for one in protocol.promises())
    found = re.search(
        r"revealed with a probability of at most (\S+), the honest are not all linked with (\S+),",
        text,
    )
    assert found is not None, text
    return _power(found[1]) + _power(found[2])


def _power(text: str) -> Fraction:
    return Fraction(0) if text == "0" else Fraction(2 ** float(text.removeprefix("2^")))


def _bits(chance: Fraction) -> str:
    return f"2^{math.log2(chance):.1f}" if chance else "0"


def ring_bound(ring: int, colluding: int, absent: int, degree: int, threshold: int) -> Fraction:
    """Return the bound of what happened: a secret is revealed, or the honest are split; exactly."""
    degree = min(degree, ring - 1)
    others = comb(ring - 1, degree)
    revealed = Fraction(
        sum(
            comb(colluding, c) * comb(ring - 1 - colluding, degree - c)
            for c in range(threshold, min(colluding, degree) + 1)
        ),
        others,
    )
    if degree == ring - 1:
        return revealed
    half = degree // 2
    gone = min(ring, colluding + absent)
    split = Fraction(comb(gone, half), comb(ring, half))
    return min(Fraction(1), (ring - colluding) * revealed + ring * split)


def most_colluding(devices: int, colluding: int, size: int, failure: Fraction) -> int:
    """Return the most colluders of any cohort, but for a probability; exactly."""
    whole = comb(devices, size)
    beyond = Fraction(0)
    for count in range(min(colluding, size), -1, -1):
        beyond += Fraction(
            devices * comb(colluding, count) * comb(devices - colluding, size - count), whole
        )
        if beyond > failure:
            return count
    return 0


def too_many(failures: int, chances: list[float], alarm: float = 1e-9) -> bool:
    """Return whether so many failures are less likely than `alarm`, each having its chance."""
    mean = sum(chances)
    if failures <= mean:
        return False
    # Chernoff's bound for independent events of any chances.
    if mean == 0:
        return True
    exponent = failures - mean - failures * math.log(failures / mean)
    return exponent < math.log(alarm)


def run(rounds: int, seed: int) -> list[Finding]:
    """Return what was found in so many rounds."""
    generator = np.random.default_rng(seed)
    names, weights = list(STRATEGIES), np.array(WEIGHTS) / sum(WEIGHTS)
    # Each strategy at least once, however few rounds there are.
    chosen = [*names, *generator.choice(names, max(0, rounds - len(names)), p=weights).tolist()]
    return [STRATEGIES[name](generator, seed * 10**6 + k) for k, name in enumerate(chosen[:rounds])]


def broken(findings: list[Finding]) -> list[Finding]:
    """Return the rounds whose promises failed, of strategies in which they failed too often."""
    found = []
    for strategy in {one.strategy for one in findings}:
        rows = [one for one in findings if one.strategy == strategy]
        failed = [one for one in rows if one.broken]
        if too_many(len(failed), [one.chance for one in rows if one.accepted]):
            found += failed
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    findings = run(arguments.rounds, arguments.seed)
    print(f"{'strategy':<20}{'rounds':>8}{'accepted':>10}{'failed':>8}{'may fail':>10}")
    for strategy in dict.fromkeys(one.strategy for one in findings):
        rows = [one for one in findings if one.strategy == strategy]
        accepted = [one for one in rows if one.accepted]
        failed = sum(bool(one.broken) for one in rows)
        expected = sum(one.chance for one in accepted)
        print(f"{strategy:<20}{len(rows):>8}{len(accepted):>10}{failed:>8}{expected:>10.2f}")
    failed = broken(findings)
    for one in failed[:20]:
        print(f"{one.strategy}, {one.case}: {'; '.join(one.broken)}"[:300])
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
