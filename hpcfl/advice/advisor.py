"""Finds the protocols that meet the user's requirements, cheapest first.

A protocol qualifies under two conditions. It can be built for the setting: the number of helpers
and the kind of server. And the fraction of an honest device's values that the server and its
colluders learn individually (by formula) is 0, or at most `MOST_EXPOSED` if the user accepts
partial uploads. Costs come from :mod:`hpcfl.costmodel`. This module has no knowledge about single
protocols; it relies on what they declare.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Any

from hpcfl.algorithms.aggregation import PROTOCOLS, active_variant, find
from hpcfl.algorithms.aggregation.base import AggregationProtocol
from hpcfl.algorithms.aggregation.graph import GraphSecAgg
from hpcfl.algorithms.aggregation.quantised import QuantisedProtocol
from hpcfl.algorithms.aggregation.work import notes
from hpcfl.costmodel.calibration import Calibration
from hpcfl.costmodel.model import Prediction, predict
from hpcfl.errors import UsageError
from hpcfl.options.advise import CRITERIA, AdviseOptions
from hpcfl.options.definition import OptionGroup, options_of, part
from hpcfl.options.protocols import DEFAULT_LEVELS, MaskingOptions, ProtocolOptions
from hpcfl.options.shared import LinkOptions, PopulationOptions
from hpcfl.privacy.masking import Masking
from hpcfl.privacy.population import Population, count_of
from hpcfl.results.linkmodel import LinkModel
from hpcfl.rounds.build import build
from hpcfl.rounds.eventclock import EventClock, clock_of
from hpcfl.values import asdict, dataclass, replace

# Of two protocols whose predicted costs differ by this factor, the cheaper one also measured as
# cheaper in all but one of a hundred pairs (docs/prediction.md).
TOLD_APART = 1.2
# Largest acceptable exposed fraction of an honest device's sent values, for partial uploads.
MOST_EXPOSED = 0.5
# Most devices for which exposure is computed: its table of probabilities is this long.
_MOST_DEVICES = 10**6


@dataclass(frozen=True)
class Choice:
    """A protocol that qualifies, and the predicted costs of a round."""

    protocol: str
    options: tuple[str, ...]  # command-line options to give with its name
    exchanges: int  # of a round in a framework, which waits for all replies each time
    prediction: Prediction
    exposed_alone: float  # fraction of an honest device's values learned individually
    promises: tuple[str, ...]
    left_out: tuple[str, ...]  # notes on what the costs leave out

    def cost(self, criterion: str) -> float:
        """Return the cost by a criterion, in seconds or bytes."""
        return float(getattr(self.prediction, CRITERIA[criterion]))

    def as_dict(self) -> dict[str, Any]:
        """Return all fields and costs, for JSON."""
        found = {name: value for name, value in vars(self).items() if name != "prediction"}
        found["costs"] = {name: self.cost(name) for name in CRITERIA}
        found["modelled_within"] = list(self.prediction.modelled_within)
        return found | {"prediction": self.prediction.as_dict()}


@dataclass(frozen=True)
class Refusal:
    """A protocol that does not qualify, and why."""

    protocol: str
    reason: str


@dataclass(frozen=True)
class Advice:
    """The protocols that qualify, best first, and the protocols that do not."""

    asked: AdviseOptions
    choices: tuple[Choice, ...]
    refusals: tuple[Refusal, ...]

    @property
    def as_good(self) -> tuple[str, ...]:
        """The protocols whose costs predictions cannot distinguish from the best one's."""
        if not self.choices:
            return ()
        best, *others = (choice.cost(self.asked.criterion) for choice in self.choices)
        # Bytes are exact.
        apart = 1.0 if self.asked.criterion == "upload" else TOLD_APART
        return tuple(
            choice.protocol
            for choice, cost in zip(self.choices[1:], others, strict=True)
            if cost <= apart * best
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the request and all results, for JSON."""
        out = options_of(PopulationOptions) if self.asked.population is None else {}
        asked = {name: _plain(value) for name, value in vars(self.asked).items() if name not in out}
        return {
            "asked": asked,
            "best": self.choices[0].protocol if self.choices else None,
            "as_good": list(self.as_good),
            "told_apart": TOLD_APART,
            "qualify": [choice.as_dict() for choice in self.choices],
            "do_not": [asdict(refusal) for refusal in self.refusals],
        }


def advise(asked: AdviseOptions, calibration: Calibration) -> Advice:
    """Return the protocols that meet the requirements, cheapest first.

    Every protocol that comes with hpcfl is either a choice or a refusal. Raise UsageError if the
    options do not go together.
    """
    clock = clock_of(asked, asked.devices)
    choices, refusals = [], []
    for name in PROTOCOLS:
        try:
            choices.append(_choice(name, asked, calibration, clock))
        except UsageError as error:
            refusals.append(Refusal(name, str(error)))
    # Equal costs are sorted by name.
    choices.sort(key=lambda choice: (choice.cost(asked.criterion), choice.protocol))
    return Advice(asked, tuple(choices), tuple(refusals))


def _choice(name: str, asked: AdviseOptions, known: Calibration, run: EventClock | None) -> Choice:
    """Return a protocol's costs if it qualifies; otherwise raise UsageError with the reason."""
    kind = find(name)
    if asked.security == "active":
        if active_variant(kind) is None:
            raise UsageError("it has no variant against a server that cheats")
        kind = find(name, asked.security)
    _check_parties(kind, asked)
    wanted = _options(kind, asked)
    protocol, _ = build(name, wanted, asked.devices, asked.dim)
    exposed = exposed_alone(protocol, asked)
    # With partial uploads, chance exposes some values.
    if exposed > (0.0 if asked.alpha is None else MOST_EXPOSED):
        raise UsageError(
            f"the server and the devices that collude with it learn {100 * exposed:.3g} % of the "
            "values of an honest device by themselves"
        )
    # Files of runs with a population are read for no other devices and links.
    groups = () if run is None else (PopulationOptions, LinkOptions)
    of_devices = (text for group in groups for text in _typed(part(asked, group)))
    # Costs are against a curious server, because only these are calibrated.
    counted, _ = build(name, replace(wanted, security="passive"), asked.devices, asked.dim)
    return Choice(
        name,
        (*_typed(wanted), *of_devices),
        counted.exchanges(),
        predict(counted, known, part(asked, LinkModel), run),
        exposed,
        tuple(promise.claim for promise in protocol.promises()),
        tuple(notes(counted)),
    )


def _check_parties(kind: type[AggregationProtocol], asked: AdviseOptions) -> None:
    """Raise UsageError if a protocol lacks helpers, uploads partially or fails on dropouts."""
    if kind.default_helpers and not asked.helpers:
        raise UsageError("it needs at least 1 helper, and there are none")
    if kind.sparse_upload and asked.alpha is None:
        raise UsageError(
            "it sends a part of the coordinates, and so estimates the mean: give --alpha for that"
        )
    leaves = asked.dropout or asked.quorum < 1 or asked.deadline is not None
    if leaves and not kind.tolerates_dropouts:
        raise UsageError("it loses a round in which any device drops out")


def exposed_alone(protocol: AggregationProtocol, asked: AdviseOptions) -> float:
    """Return the fraction of an honest survivor's sent values that are exposed individually.

    It is computed by formula. More than a million devices are replaced by a million with the same
    numbers of senders per coordinate and of neighbours, which determine the exposure.
    """
    devices = min(asked.devices, _MOST_DEVICES)
    alpha = min(1.0, (asked.alpha or 1.0) * (asked.devices / devices))
    degree = protocol.settings().get("degree")
    if degree is not None and degree >= devices - 1:
        if isinstance(protocol, GraphSecAgg):
            raise UsageError("it would link every device with all others, which is secagg")
        degree = None
    masking = type(protocol).masking(devices, MaskingOptions(alpha=alpha, degree=degree))
    return _exposed(masking, _population(protocol, devices, asked))


def _population(protocol: AggregationProtocol, devices: int, asked: AdviseOptions) -> Population:
    """Return the population of `devices` devices: colluding with the server, or missing.

    A server that cheats leaves out as many devices as the protocol allows, but no colluder.
    """
    colluding = count_of(Fraction(repr(asked.gamma)), devices)
    if asked.security == "active" and isinstance(protocol, QuantisedProtocol):
        left_out = asked.devices - protocol.survivors_in_sum
        # The half makes rate * devices round down to `left_out`.
        return Population(devices, colluding, (left_out + 0.5) / asked.devices, "targeted")
    return Population(devices, colluding, asked.dropout)


@lru_cache(maxsize=4096)
def _exposed(masking: Masking, population: Population) -> float:
    found = masking.against(population).alone_of_sent(population)
    # A smaller result is indistinguishable from zero.
    return found if found > 1e-9 else 0.0


def _options(kind: type[AggregationProtocol], asked: AdviseOptions) -> ProtocolOptions:
    """Return the options of a round, limited to those that the protocol has."""
    wanted: dict[str, Any] = {"dropout": asked.dropout, "gamma": asked.gamma}
    wanted |= {"security": asked.security}
    if kind.family:
        wanted["bits"] = "auto"
    if kind.most_helpers:
        wanted["helpers"] = min(asked.helpers, max(kind.default_helpers, 1))
    if kind.sparse_upload:
        wanted["alpha"] = asked.alpha
    if kind.family:
        wanted["levels"] = DEFAULT_LEVELS
    has = {name for group in kind.options for name in options_of(group)}
    return ProtocolOptions(**{name: value for name, value in wanted.items() if name in has})


def _typed(options: OptionGroup) -> Iterator[str]:
    """Yield the command-line arguments that set these options."""
    plain = type(options)()
    for key, value in vars(options).items():
        if value != getattr(plain, key):
            yield f"--{key.replace('_', '-')} {value}"


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float | str | None) else str(value)
