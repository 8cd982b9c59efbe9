"""Options of aggregation protocols, in groups; each protocol declares the groups that it uses.

A protocol's class lists its groups in `options`; `refuse` rejects all other options.
"""

from collections.abc import Iterable, Mapping, Set
from typing import Any

from hpcfl.errors import UsageError
from hpcfl.options.definition import OptionGroup, option, options_of
from hpcfl.values import dataclass

DEFAULT_LEVELS = 2**20
# Bits of the groups that vectors can be summed in.
WIDTHS = range(8, 33, 4)


def group_of(family: str, bits: int | str) -> str:
    """Return the name of the group of `bits` bits in a family, ``ring`` or ``field``."""
    return "fq" if (family, str(bits)) == ("field", "32") else f"{family}{bits}"


_GROUPS = ["fq", *(group_of(family, bits) for family in ("ring", "field") for bits in WIDTHS)]
GROUP_NAMES = tuple(dict.fromkeys(_GROUPS))


class _Group(OptionGroup):
    heading = "Protocol"


@dataclass(frozen=True, kw_only=True)
class CommonOptions(_Group):
    """Options of every protocol."""

    dropout: float = option(
        0.3,
        "Fraction of the devices that drop out of a round; more than half must stay.",
        at_least=0,
        below=0.5,
        default_text="0.3; what a --quorum leaves out; 0 for protocols without dropouts",
        marks=("label",),
    )
    dropout_model: str = option(
        "exact",
        "Drop out exactly that fraction, rounded down, or each device with that probability.",
        choices=("exact", "bernoulli"),
        marks=("label",),
    )
    dropout_phase: str | None = option(
        None, "Phase before which devices drop out.", default_text="their upload"
    )
    scaling: str = option(
        "survivors",
        "Divide a sum by its devices' weight, or let devices divide by the planned survival rate.",
        choices=("survivors", "paper"),
    )
    security: str = option(
        "passive",
        "Protect against a curious server, or also against one that cheats: keys are signed, and "
        "devices agree on the survivors.",
        choices=("passive", "active"),
        marks=("label",),
    )
    upload: str = option(
        "gather",
        "Gather the vectors, or sum them on the way by MPI_Reduce.",
        choices=("gather", "reduce"),
    )
    # The probability that a round fails because too many devices drop out is at most 2 to the power
    # of minus this.
    correctness_bits: int = 20
    # Encoding of the positions of coordinates: bitmap, gaps, or auto for the shorter of the two.
    locations: str = "auto"


@dataclass(frozen=True, kw_only=True)
class SparseOptions(_Group):
    """Options of protocols whose devices send some of their coordinates."""

    alpha: float = option(
        0.1,
        "Fraction of the coordinates that a device sends.",
        above=0,
        at_most=1,
        marks=("label",),
    )


@dataclass(frozen=True, kw_only=True)
class GraphOptions(_Group):
    """Options of protocols with masks between pairs of devices."""

    degree: int | None = option(
        None,
        "Neighbours with whom a device shares keys and masks, an even number; or all, if fewer.",
        at_least=2,
        default_text="all, or as many as the protocol chooses",
        marks=("label",),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.degree is not None and self.degree % 2:
            raise UsageError(f"--degree is {self.degree}; it must be an even number")


@dataclass(frozen=True, kw_only=True)
class MaskingOptions(SparseOptions, GraphOptions):
    """Options that decide which devices mask a coordinate with each other."""


@dataclass(frozen=True, kw_only=True)
class CohortOptions(_Group):
    """Options of protocols in which a cohort of devices sends each coordinate."""

    min_cohort: int = option(
        1,
        "Honest survivors promised in every cohort; devices do not unmask a smaller one.",
        at_least=1,
        marks=("label",),
    )


@dataclass(frozen=True, kw_only=True)
class ThreatOptions(_Group):
    """Options of protocols and noise whose promises depend on who colludes."""

    gamma: float = option(
        0.1,
        "Fraction of all devices that may collude with the server: promises hold against them.",
        at_least=0,
        below=0.5,
        marks=("label",),
    )
    security_bits: int = option(
        40,
        "A promise of secrecy fails with a probability of at most 2 to the power of minus this.",
        at_least=1,
        at_most=1000,
    )


@dataclass(frozen=True, kw_only=True)
class QuantisedOptions(_Group):
    """Options of protocols that sum integers in a group."""

    bits: str | None = option(
        None,
        "Bits of a sent value, as with --group ringB (fieldB if vectors are coded). auto: the "
        "fewest with which no sum can wrap around (without noise).",
        choices=("auto", *map(str, WIDTHS)),
        default_text="as --group says",
        marks=("unrecorded",),
    )
    group: str = option(
        "fq",
        "Integers modulo 2^32 - 5, 2^B or, where vectors are coded, the largest prime of B bits.",
        choices=GROUP_NAMES,
        marks=("label",),
    )
    levels: int | None = option(
        None,
        "Quantisation levels per unit.",
        at_least=1,
        default_text="2^20, or as many as the bits have room for; if an account charges for "
        "rounding, the most with which no sum can wrap around",
        marks=("label",),
    )
    clip: float = option(1.0, "Largest magnitude of a coordinate.", above=0, marks=("label",))

    def __post_init__(self) -> None:
        super().__post_init__()
        groups = [group_of(family, str(self.bits)) for family in ("ring", "field")]
        if self.bits is not None and self.group not in ("fq", *groups):
            raise UsageError(
                f"--group {self.group} and --bits {self.bits} disagree: give one of them"
            )


@dataclass(frozen=True, kw_only=True)
class TransportOptions(_Group):
    """Of protocols whose devices send each other encrypted shares."""

    transport_keys: str = option(
        "round",
        "Agree on the keys that encrypt shares in every round, or once a run: faster, but whoever "
        "learns a device's key learns all vectors that the device uploads in the run.",
        choices=("round", "run"),
        marks=("label", "recorded if given"),
    )


@dataclass(frozen=True, kw_only=True)
class CommitteeOptions(_Group):
    """Options of protocols with a committee."""

    committee: int | None = option(
        None,
        "Devices in the committee of a round.",
        at_least=2,
        default_text="the fewest with which a device sends at most twice what it would if all "
        "were members",
        marks=("label", "recorded if given"),
    )


@dataclass(frozen=True, kw_only=True)
class HelperOptions(_Group):
    """Options of protocols with helpers."""

    helpers: int | None = option(
        None,
        "Helpers, each on a rank of its own.",
        at_least=1,
        default_text="the protocol's own number",
        marks=("label", "recorded if given"),
    )


@dataclass(frozen=True, kw_only=True)
class ProofOptions(_Group):
    """Options of protocols whose devices prove that their vectors are short."""

    heading = "Privacy"  # that of the option in private algorithms

    clip_norm: float | None = option(
        None,
        "Norm to which an update is clipped (dp-fedavg, pine).",
        above=0,
        default_text="1; for pine (sqrt(d) + 6) / 100, above the norms of random vectors",
        marks=("label", "recorded if given"),
    )


@dataclass(frozen=True, kw_only=True)
class ThreadOptions(_Group):
    """Options of protocols that mask whole vectors."""

    threads: int = option(
        1,
        "Threads of a rank that mask and unmask.",
        at_least=1,
        marks=("label", "recorded if given"),
    )


@dataclass(frozen=True, kw_only=True)
class ProtocolOptions(
    MaskingOptions,
    CohortOptions,
    ThreatOptions,
    QuantisedOptions,
    TransportOptions,
    CommitteeOptions,
    HelperOptions,
    ProofOptions,
    ThreadOptions,
    CommonOptions,
):
    """Options of all protocols."""


def unused(known: type[OptionGroup], declared: Iterable[type[OptionGroup]]) -> set[str]:
    """Return the names of the options in `known` that are in none of the groups `declared`."""
    return {*options_of(known)}.difference(*map(options_of, declared))


def refuse(given: Mapping[str, Any], unused: Set[str], whose: str) -> None:
    """Raise UsageError if an `unused` option is given.

    The value does not matter, because whoever gives an option expects it to have an effect. None
    and False count as not given: nobody can type a flag that is not set.
    """
    for name, value in given.items():
        if name in unused and value is not None and value is not False:
            dashed = name.replace("_", "-")
            raise UsageError(f"{whose} does not use --{dashed}: leave it out")
