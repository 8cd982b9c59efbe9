"""The attack on a recorded round: what the server learns beyond the sums that it is meant to."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.attack.exposed import alone, alone_before
from hpcfl.attack.search import search
from hpcfl.attack.stripping import Adversary, Remainder
from hpcfl.attack.transcript import Transcript, Values
from hpcfl.crypto.groups import Elements, Group
from hpcfl.errors import BelowThresholdError, HpcflError, MessageError, UsageError
from hpcfl.privacy.population import Population
from hpcfl.privacy.threat import Threat

Numbers = NDArray[np.int64]

# What a count may be off from its mean, in standard errors: by chance once in 1.7 million times.
STANDARD_ERRORS = 5
RARE = 1 / 1.7e6

LARGEST = 3
# Values that are searched at once: what takes a few hundred MB.
AT_ONCE = 1 << 22


@dataclass
class Sums:
    """What was found of one size: values for 1, sums of so many values else."""

    size: int
    tested: int = 0  # subsets that were tried
    skipped: int = 0  # coordinates at which there were too many to tell
    small: int = 0  # subsets with a small sum
    found: int = 0  # those that were recognised, which do not overlap
    correct: int = 0  # those of them with the sum of the true values
    beyond: int = 0  # those that are not the whole sum of a coordinate, which is allowed
    by_chance: float = 0.0  # expected small ones of those tried that are not a true sum
    right_by_chance: float = 0.0  # expected ones of these that equal it all the same


@dataclass(frozen=True)
class ExpectedCount:
    """How many values a round exposes alone: for the very round that is attacked, and before it.

    A value is alone if the honest survivor that sent it masked that coordinate with no other one.
    How many are, protocols say themselves: it follows from who is linked with whom and who
    survived, or is a random number of known mean and variance.
    """

    count: float  # its mean, given who colludes, who survived and who is linked with whom
    standard_error: float  # its standard deviation; 0 where nothing is random
    # The part of the sent values, before colluders, dropouts and links are drawn. None where
    # devices dropped out before they shared keys, or where no closed form is known.
    before: float | None
    # Expected values that are still masked and yet equal the true one: few bits are soon guessed.
    by_chance: float = 0.0

    @property
    def low(self) -> float:
        """The least count that agrees with the prediction."""
        return self.count - STANDARD_ERRORS * self.standard_error

    @property
    def high(self) -> float:
        """The largest."""
        chance = most_by_chance(self.by_chance)
        return self.count + STANDARD_ERRORS * self.standard_error + chance


@dataclass(frozen=True)
class Findings:
    """The result of an attack."""

    protocol: str
    devices: int
    dim: int
    round_index: int
    colluding: int  # devices that collude with the server
    dropped: int  # those that shared keys but sent nothing
    honest: int  # honest survivors
    sent: int  # values that these sent
    # Coordinates that they sent, at each of which the server is allowed to learn their sum. All of
    # these sums were found, and equal the true ones.
    allowed: int
    contributors: tuple[int, float, int]  # fewest, mean and most of them in one of these sums
    sums: list[Sums]  # what was recognised, by size
    unresolved: int  # values that are in none of the recognised sums
    untried: int  # those of them at coordinates of which not all subsets were tried
    # Probability, on average, that what is still masked is as small as a value.
    small_by_chance: float
    # Values of which no mask is left, as a comparison with the true ones tells, recognised or not.
    unmasked: int
    # The part of what it sent that was recovered alone and is correct, of the honest survivor with
    # the smallest part, in the median, and with the largest.
    by_device: tuple[float, float, float]
    prediction: ExpectedCount
    # Every value that was recovered alone, shape (n, 3): device, coordinate, quantised value.
    values: Numbers

    @property
    def alone(self) -> Sums:
        """What was found of single values."""
        return self.sums[0]

    @property
    def agrees(self) -> bool:
        """Whether as many values have no mask left as predicted, within the error."""
        return self.prediction.low <= self.unmasked <= self.prediction.high

    @property
    def beyond(self) -> int:
        """Number of correct sums, single values included, beyond those that are allowed."""
        return sum(one.beyond for one in self.sums)

    @property
    def learned(self) -> bool:
        """Whether these are more than chance explains."""
        right = most_by_chance(sum(one.right_by_chance for one in self.sums))
        # With a subset that is right by chance, what it leaves of its component is right, too.
        return self.beyond > 2 * right

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the values themselves, for JSON."""
        found = asdict(self)
        del found["values"]
        found["prediction"] |= {"low": self.prediction.low, "high": self.prediction.high}
        return found | {
            "alone_of_sent": self.alone.correct / self.sent,
            "alone_of_dim": self.alone.correct / (self.honest * self.dim),
            "beyond": self.beyond,
            "agrees": self.agrees,
        }


@dataclass(frozen=True)
class Entries:
    """Values of some coordinates, ordered by coordinate."""

    coordinates: Numbers
    devices: Numbers  # from whom a value is
    bounds: Numbers  # its largest possible magnitude
    elements: Elements  # what is left of it
    truth: Numbers  # what it is


def attack(transcript: Transcript, largest: int = LARGEST) -> Findings:
    """Recover what the server can of the values that honest survivors sent.

    Sums of up to `largest` values are recognised. It refuses a transcript that does not fit
    together, or in which the sums that are left are not those of the true values.
    """
    try:
        adversary = Adversary(transcript)
        remainders = [adversary.strip(id) for id in sorted(transcript.truth)]
    except (MessageError, BelowThresholdError) as error:
        raise UsageError(f"the transcript does not fit together: {error}") from None
    for one in remainders:
        if one.coordinates.size != transcript.truth[one.device].size:
            raise UsageError(
                "the transcript does not fit together: the true values of device "
                f"{one.device} are not as many as it sent"
            )
    sent = sum(one.coordinates.size for one in remainders)
    if not sent:
        raise UsageError("no honest survivor sent anything: there is nothing to recover")

    group, dim = adversary.protocol.summed_in, transcript.parameters.dim
    bounds = {one.device: adversary.bound(one.device) for one in remainders}
    contributors = np.zeros(dim, np.int64)
    sums = [Sums(size) for size in range(1, largest + 1)]
    values = [np.empty((0, 3), np.int64)]
    alone = np.zeros(transcript.parameters.devices, np.int64)
    unresolved, untried, unmasked = sent, 0, 0
    reach = sum(one.coordinates.size * (2 * bounds[one.device] + 1) for one in remainders)
    for entries in _parts(remainders, transcript.truth, bounds, dim):
        counts = np.bincount(entries.coordinates, minlength=dim)
        contributors += counts
        _check_sums(entries, group, dim)
        trials = search(entries.coordinates, entries.elements, entries.bounds, group, largest)
        _, bare = _judge(entries, np.arange(entries.truth.size)[:, np.newaxis], group)
        unmasked += int(np.count_nonzero(bare))
        left_alone = np.zeros(entries.truth.size, np.bool_)
        for trial, tally in zip(trials, sums, strict=True):
            _, right = _judge(entries, trial.sets, group)
            whole = counts[entries.coordinates[trial.sets[:, 0]]] == tally.size
            tally.tested += trial.tested
            tally.skipped += trial.skipped
            tally.small += trial.small
            tally.found += len(trial.sets)
            tally.correct += int(np.count_nonzero(right))
            tally.beyond += int(np.count_nonzero(right & ~whole))
            # Those that are components are not uniform.
            uniform = trial.tested - int(np.count_nonzero(right))
            tally.by_chance += trial.by_chance * uniform / max(1, trial.tested)
            tally.right_by_chance += uniform / group.modulus
            unresolved -= trial.sets.size
            left_alone[trial.untried] = True
            left_alone[trial.sets] = False
        untried += int(np.count_nonzero(left_alone))
        singles = trials[0].sets[:, 0]
        found, right = _judge(entries, trials[0].sets, group)
        values.append(
            np.stack([entries.devices[singles], entries.coordinates[singles], found], axis=1)
        )
        np.add.at(alone, entries.devices[singles[right]], 1)
    reached = contributors[contributors > 0]
    parts = [alone[one.device] / max(1, one.coordinates.size) for one in remainders]
    return Findings(
        protocol=transcript.kind.name,
        devices=transcript.parameters.devices,
        dim=dim,
        round_index=transcript.round_index,
        colluding=int(transcript.colluding.sum()),
        dropped=int(transcript.dropped.sum()),
        honest=len(remainders),
        sent=sent,
        allowed=reached.size,
        contributors=(int(reached.min()), float(reached.mean()), int(reached.max())),
        sums=sums,
        unresolved=unresolved,
        untried=untried,
        small_by_chance=reach / (sent * group.modulus),
        unmasked=unmasked,
        by_device=(float(min(parts)), float(np.median(parts)), float(max(parts))),
        prediction=predict(adversary, transcript),
        values=np.concatenate(values),
    )


def predict(adversary: Adversary, transcript: Transcript) -> ExpectedCount:
    """Return how many values of honest survivors are alone in a round."""
    protocol, config = adversary.protocol, transcript.config
    count, error = alone(protocol, adversary.seen)
    phase, before = config["dropout_phase"], None
    if phase in ("masked_input", "unmask"):
        parameters = transcript.parameters
        dropout = parameters.dropout if phase == "masked_input" else 0.0
        colluding = Threat.of(parameters).colluding
        model = config["dropout_model"]
        before = alone_before(protocol, Population(parameters.devices, colluding, dropout, model))
    sent = sum(values.size for values in transcript.truth.values())
    by_chance = max(0.0, sent - count) / adversary.protocol.summed_in.modulus
    return ExpectedCount(count, error, before, by_chance)


def most_by_chance(expected: float) -> int:
    """Return what a Poisson count with this mean exceeds once in 1.7 million times at most.

    By Chernoff's bound, as the normal distribution is too narrow for a count of few.
    """
    if not expected:
        return 0
    count = math.ceil(expected)
    while expected - count * (1 + math.log(expected / count)) < -math.log(RARE):
        count += 1
    return count - 1


def _parts(
    remainders: list[Remainder], truth: Mapping[int, Values], bounds: Mapping[int, int], dim: int
) -> Iterator[Entries]:
    """Yield all values, so many coordinates at a time that they fit into memory."""
    orders = [np.argsort(one.coordinates, kind="stable") for one in remainders]
    by_place = [one.coordinates[order] for one, order in zip(remainders, orders, strict=True)]
    step = max(1, AT_ONCE // len(remainders))
    for start in range(0, dim, step):
        stop = min(start + step, dim)
        chosen = [
            order[slice(*np.searchsorted(places, [start, stop]))]
            for places, order in zip(by_place, orders, strict=True)
        ]
        pairs = list(zip(remainders, chosen, strict=True))
        coordinates = np.concatenate([one.coordinates[k] for one, k in pairs])
        order = np.argsort(coordinates, kind="stable")
        if order.size:
            sizes = [k.size for k in chosen]
            devices = np.array([one.device for one in remainders], np.int64)
            reach = np.array([bounds[one.device] for one in remainders], np.int64)
            yield Entries(
                coordinates[order],
                np.repeat(devices, sizes)[order],
                np.repeat(reach, sizes)[order],
                np.concatenate([one.elements[k] for one, k in pairs])[order],
                np.concatenate([truth[one.device][k] for one, k in pairs])[order].astype(np.int64),
            )


def _judge(entries: Entries, sets: Numbers, group: Group) -> tuple[Numbers, NDArray[np.bool_]]:
    """Return the sums of some sets of entries, and which of them are the true ones."""
    found = group.decode(group.reduce(entries.elements[sets].sum(axis=1, dtype=np.int64)))
    return found, found == entries.truth[sets].sum(axis=1)


def _check_sums(entries: Entries, group: Group, dim: int) -> None:
    """Refuse a transcript in which not even the sums that the server may learn are right."""
    difference = np.zeros(dim, np.int64)
    np.add.at(difference, entries.coordinates, entries.elements.astype(np.int64) - entries.truth)
    wrong = np.flatnonzero(group.reduce(difference))
    if wrong.size:
        raise HpcflError(
            f"the sum at coordinate {wrong[0]} is not that of the true values: the transcript is "
            "not of one round, or damaged"
        )
