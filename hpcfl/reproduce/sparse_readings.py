"""What Figures 3, 5 and 6 of SparseSecAgg may have counted: every reading of a round, by formula.

The text says: 32 bits a value, one bit a coordinate for the locations (section VII). It does not
say whether keys, shares and the model sent down count, nor whether devices that drop out do.
Besides, wider words and other codings of the locations are tried, which the text rules out.

A figure's factor is that of a round times the ratio of the rounds that both protocols took to the
target.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from hpcfl.algorithms.locations import expected_bytes
from hpcfl.reproduce.artefact import SHOWN, Line, Result, Setting
from hpcfl.reproduce.seeds import without_training

DROPOUT = 0.3
# Protocol, and how it writes locations, in the rounds that are played for what no formula says.
PLAYED = (("secagg", "bitmap"), ("sparse", "bitmap"), ("sparse", "gaps"))
TOLERANCE = 0.1  # of a figure's factor, as where runs are compared with it
# What is printed: how many times the bytes and the time of sparse secagg takes to the target.
FACTORS = {"figure-3": (7.8, 1.13), "figure-5": (17.9, 1.8), "figure-6": (12.0, 1.2)}

# These have a round in common, that of MNIST's model.
_SAME_ROUND = ("figure-5", "figure-6")

_WORDS = {
    "32 bits a value": (32, 32),
    "64 bits a value": (64, 64),
    "64 bits a value for secagg, 32 for sparse": (64, 32),
}
_LOCATIONS = ("bitmap", "gaps coded", "32 bits a location", "locations left out")
_COUNTED = ("vectors", "all that is sent up", "all that is sent up and down")
_DROPPED = ("", "secagg's dropped devices send again")


@dataclass(frozen=True)
class Reading:
    """A way to count a round."""

    words: str
    locations: str
    counted: str
    dropped: str

    @property
    def name(self) -> str:
        """The reading in words."""
        return ", ".join(filter(None, (self.words, self.locations, self.counted, self.dropped)))

    @property
    def allowed(self) -> bool:
        """Whether the text says nothing else."""
        return self.words == "32 bits a value" and self.locations == "bitmap"

    @property
    def changes(self) -> int:
        """In how many ways it is not the first reading."""
        first = (next(iter(_WORDS)), _LOCATIONS[0], _COUNTED[0], _DROPPED[0])
        mine = (self.words, self.locations, self.counted, self.dropped)
        return sum(a != b for a, b in zip(mine, first, strict=True))


READINGS = tuple(
    itertools.starmap(Reading, itertools.product(_WORDS, _LOCATIONS, _COUNTED, _DROPPED))
)


def inclusion(devices: int, alpha: float = 0.1) -> float:
    """Return the probability that a device sends a coordinate (eq. 14)."""
    return 1 - (1 - alpha / (devices - 1)) ** (devices - 1)


def round_factor(reading: Reading, rounds: Mapping[str, Mapping[str, Any]], dim: int) -> float:
    """Return what secagg sends in a round over what sparse does, a device's mean.

    `rounds` are the played rounds of both, by their protocol: of them are all bytes but those of
    the vectors.
    """
    share = inclusion(rounds["sparse"]["devices"])
    locations = {
        "bitmap": dim / 8,
        "gaps coded": expected_bytes(share, dim, "gaps"),
        "32 bits a location": 4 * share * dim,
        "locations left out": 0.0,
    }[reading.locations]
    dense, sparse = _WORDS[reading.words]
    vectors = {"secagg": dense / 8 * dim, "sparse": sparse / 8 * share * dim + locations}
    if reading.dropped:
        vectors["secagg"] /= 1 - DROPOUT
    sent = {}
    for protocol, vector in vectors.items():
        played = rounds[protocol]
        sent[protocol] = vector
        if reading.counted != "vectors":
            sent[protocol] += played["other_bytes_up"]
        if reading.counted == "all that is sent up and down":
            sent[protocol] += played["bytes_down"]
    return sent["secagg"] / sent["sparse"]


def settings(devices: Sequence[int], dim: int) -> list[Setting]:
    """Return the rounds to play, by protocol and N."""
    return [
        {"protocol": protocol, "devices": count, "dim": dim, "rounds": 1, "locations": locations}
        for count, (protocol, locations) in itertools.product(devices, PLAYED)
    ]


def played(results: Sequence[Result]) -> dict[tuple[int, str, str], Mapping[str, Any]]:
    """Return the rounds that were played, by N, protocol and coding of the locations."""
    return {
        (one.setting["devices"], one.setting["protocol"], one.setting["locations"]): {
            **one.setting,
            **one.found,
        }
        for one in results
        if "locations" in one.setting
    }


@dataclass(frozen=True)
class Runs:
    """The training of one model with N devices, by both protocols, with some seeds."""

    dataset: str
    partition: str
    model: str
    devices: int
    found: tuple[tuple[Mapping[str, Any], Mapping[str, Any]], ...]  # of secagg and of sparse

    @property
    def name(self) -> str:
        """Which runs they are."""
        return f"{self.model}, N = {self.devices}"

    @property
    def reached(self) -> bool:
        """Whether all reached the target."""
        return all(one["reached"] for pair in self.found for one in pair)

    def ratios(self, figure: str) -> list[float]:
        """Return a figure of secagg over that of sparse, seed by seed."""
        return [dense[figure] / sparse[figure] for dense, sparse in self.found]

    @property
    def rounds(self) -> float:
        """The ratio of the rounds to the target, mean over the seeds."""
        return fmean(self.ratios("rounds"))


def undivided(setting: Setting) -> bool:
    """Return whether secagg's sum over the survivors is not divided by their weight."""
    return "server_learning_rate" in setting


def paired(results: Sequence[Result]) -> list[Runs]:
    """Return the training among the results, where both protocols were run."""
    groups: dict[tuple[str, str, str, int], dict[int, dict[str, Mapping[str, Any]]]] = {}
    for one in results:
        setting = one.setting
        if "target" in setting and not undivided(setting):
            where = setting["dataset"], setting["partition"]
            group = (*where, setting["model"], setting["devices"])
            seeds = groups.setdefault(group, {})
            seeds.setdefault(setting.get("seed", 0), {})[setting["protocol"]] = one.found
    found = []
    for group, seeds in groups.items():
        pairs = tuple((of["secagg"], of["sparse"]) for of in seeds.values() if len(of) == 2)
        if pairs:
            found.append(Runs(*group, pairs))
    return found


def factors_of(results: Sequence[Result]) -> dict[Reading, float]:
    """Return what a round's factor is in every reading, with the most devices that were played."""
    at = played(results)
    if not at:
        return {}
    most = max(devices for devices, _, _ in at)
    pair = {protocol: at[most, protocol, "bitmap"] for protocol in ("secagg", "sparse")}
    return {one: round_factor(one, pair, _dim(at)) for one in READINGS}


def lines(
    results: Sequence[Result], figure: str, reached: Sequence[Runs], trained: Sequence[Runs]
) -> list[Line]:
    """Show what is printed of a figure in every reading, as far as rounds were played.

    `reached` are the figure's runs that reached its target, `trained` all that say how long the
    training of a model takes.
    """
    factors = factors_of(results)
    if not factors or not reached:
        return []
    at = played(results)
    return [
        *_factor_lines(factors, max(devices for devices, _, _ in at), _dim(at), FACTORS[figure][0]),
        *_times(at, reached, trained),
        *_undivided_lines(results, factors[READINGS[0]], reached),
        _together(factors[READINGS[0]], *FACTORS[figure]),
    ]


def _factor_lines(
    factors: Mapping[Reading, float], devices: int, dim: int, paper: float
) -> list[Line]:
    """Return the readings of a round with one change at the most."""
    return [
        Line(
            f"bytes of a round, N = {devices}, d = {dim}: {one.name}",
            "",
            f"{factor:.3g} x; {paper:g} x takes {paper / factor:.2f} times as many rounds of "
            "secagg",
            SHOWN,
        )
        for one, factor in factors.items()
        if one.changes <= 1
    ]


def why_bytes(factors: Mapping[Reading, float], figure: str, runs: Runs) -> str:
    """Return what a figure's factor in bytes takes beside these runs, and the readings near it."""
    if not factors:
        return "the rounds that say what it takes were not played (--scale more)"
    paper, plain = FACTORS[figure][0], factors[READINGS[0]]
    near = [one for one, factor in factors.items() if _near(factor * runs.rounds, paper)]
    least = min((one.changes for one in near), default=0)
    told = "; ".join(f"{one.name} ({factors[one]:.3g} x)" for one in near if one.changes == least)
    contradict = "" if any(one.allowed for one in near) else ", all of which contradict the text"
    low, high = sorted(FACTORS[name][0] for name in _SAME_ROUND)
    return (
        f"a round is {plain:.2f} x as the text counts it (32 bits a value, a bitmap), so that "
        f"{paper:g} x takes {paper / plain:.2f} times as many rounds of secagg as of sparse; "
        f"{runs.rounds:.2f} times as many were found. Of {len(READINGS)} ways to count a round "
        f"{len(near) or 'none'} come to within {TOLERANCE:.0%}"
        + (f"{contradict}; with the least changes: {told}" if near else "")
        + f". Whichever way it is, {low:g} and {high:g} x, of the same model and N = 100, take "
        f"ratios of rounds that differ {high / low:.2f}-fold"
    )


def why_time(figure: str, runs: Runs) -> str:
    """Return for how long a device would have to train to make a figure's factor in time."""
    paper = FACTORS[figure][1]
    training = fmean(_training(runs))
    secagg, sparse = (
        fmean(without_training(pair[which]) / pair[which]["rounds"] for pair in runs.found)
        for which in (0, 1)
    )
    here = f"a device trains for {training:.2g} s of a round here"
    # Solved for t: rounds (t + secagg) / (t + sparse) = paper.
    least, slope = runs.rounds * secagg - paper * sparse, paper - runs.rounds
    if least * slope <= 0:
        return f"{here}, and by formula {paper:g} x is out of reach with any other time"
    return (
        f"{here}, the protocols take {secagg:.2g} and {sparse:.2g} s; by formula it is {paper:g} x "
        f"with {least / slope:.2g} s of training, and the paper does not say how long its devices "
        "trained"
    )


def _training(runs: Runs) -> list[float]:
    """Return for how long a device trained in a round, run by run."""
    return [
        one["modelled_seconds_of_training"] / one["rounds"] for pair in runs.found for one in pair
    ]


def _base(
    at: Mapping[tuple[int, str, str], Mapping[str, Any]], trained: Sequence[Runs]
) -> Runs | None:
    """Return the runs of the model whose rounds were played, with the fewest devices."""
    like = [runs for runs in trained if runs.found[0][0]["dim"] == _dim(at)]
    return min(like, key=lambda runs: runs.devices, default=None)


def _times(
    at: Mapping[tuple[int, str, str], Mapping[str, Any]],
    reached: Sequence[Runs],
    trained: Sequence[Runs],
) -> list[Line]:
    """Show the modelled time for every N: rounds that were played, and training.

    The training of a device in a round is that of the runs of the same model with the fewest
    devices, mean of both protocols, which train alike; it goes with the samples of a device, 1 / N.
    """
    base = _base(at, trained)
    if base is None:
        return []
    training = fmean(_training(base))
    same_model = [runs.rounds for runs in reached if runs.model == base.model]
    rounds = fmean(same_model or [runs.rounds for runs in reached])
    found = []
    for devices in sorted({devices for devices, _, _ in at}):
        seconds = training * base.devices / devices
        alone = [at[devices, name, "bitmap"]["modelled_seconds"] for name in ("secagg", "sparse")]
        ratio = rounds * (seconds + alone[0]) / (seconds + alone[1])
        what = (
            f"modelled time, {base.model}, N = {devices}: a round's {seconds:.2g} s of training "
            f"for both, {alone[0]:.2g} and {alone[1]:.2g} s of the protocols, {rounds:.2f} times "
            "as many rounds of secagg"
        )
        found.append(Line(what, "", f"{ratio:.3g} x", SHOWN))
    return found


def _undivided_lines(
    results: Sequence[Result], factor: float, reached: Sequence[Runs]
) -> list[Line]:
    """Return what a sum that is not divided, as eq. 10 prints it, makes of secagg's rounds."""
    lines = []
    for one in results:
        if not ("target" in one.setting and undivided(one.setting) and one.found["reached"]):
            continue
        for runs in reached:
            if (runs.model, runs.devices) == (one.setting["model"], one.setting["devices"]):
                sparse = runs.found[0][1]["rounds"]
                ratio = one.found["rounds"] / sparse
                lines.append(
                    Line(
                        f"{runs.name}, secagg's sum not divided by 1 - theta (eq. 10): rounds of "
                        "secagg / sparse, and bytes with a round as the text counts it",
                        "",
                        f"{one.found['rounds']} / {sparse}, {ratio * factor:.3g} x",
                        SHOWN,
                    )
                )
    return lines


def _together(factor: float, paper_bytes: float, paper_time: float) -> Line:
    """Return what the printed bytes and time say together, whatever the rounds were."""
    rounds = paper_bytes / factor
    return Line(
        "what is printed, taken together: ratio of the rounds that the bytes imply, and of a "
        "round's time that the time then implies",
        "",
        f"{rounds:.2f} and {paper_time / rounds:.2f}",
        SHOWN,
    )


def _dim(at: Mapping[tuple[int, str, str], Mapping[str, Any]]) -> int:
    return int(next(iter(at.values()))["dim"])


def _near(found: float, paper: float) -> bool:
    return abs(found / paper - 1) <= TOLERANCE
