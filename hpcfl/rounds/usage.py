"""No option is ignored: one that is given, and that nothing in the run has a use for, is refused.

Protocols and algorithms say in their `uses` which options they have a use for. What counts is that
an option is given, not its value: who gives it expects it to do something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any

from hpcfl.algorithms.aggregation import PROTOCOLS, find
from hpcfl.algorithms.noise import OF_NOISE
from hpcfl.errors import UsageError
from hpcfl.options.bench import BenchOptions
from hpcfl.options.definition import options_of
from hpcfl.options.shared import LinkOptions, RoundOptions, check_group

OF_PROTOCOLS = frozenset(options_of(RoundOptions)) | frozenset(options_of(LinkOptions))
"""Options of which a protocol says whether it has a use for them."""


def of_protocol(name: str, options: RoundOptions) -> Set[str]:
    """Return the options that a protocol has a use for, of `OF_PROTOCOLS`.

    All of them where there is no such protocol, which is refused when the run is prepared.
    """
    try:
        return find(name, options.security).uses(options)
    except UsageError:
        return OF_PROTOCOLS


def of_benchmark(options: BenchOptions) -> Set[str]:
    """Return the options that a benchmark has a use for, of `OF_PROTOCOLS`."""
    used = of_protocol(options.summed_by, options)
    return used if options.privacy is None else used | OF_NOISE


def check(given: Mapping[str, Any], name: str, options: RoundOptions, used: Set[str]) -> None:
    """Refuse, with a UsageError, a given option of protocols that is not `used` by one."""
    others = (other for other in PROTOCOLS if other != name)
    refuse(given, OF_PROTOCOLS - used, name, others, lambda other: of_protocol(other, options))


def refuse(
    given: Mapping[str, Any],
    unused: Set[str],
    whose: str,
    others: Iterable[str],
    uses: Callable[[str], Set[str]],
) -> None:
    """Refuse, with a UsageError, an option that is given and `unused`; say which `others` use it.

    A flag that is not set counts as not given: it cannot be typed. A group and the bits of another
    one are refused, too: only what is given tells that the group is not just the default.
    """
    check_group(given.get("group"), given.get("bits"))
    for name, value in given.items():
        if name not in unused or value is None or value is False:
            continue
        having = [other for other in others if name in uses(other)]
        hint = f" (it is for {', '.join(having)})" if having else ""
        raise UsageError(
            f"--{name.replace('_', '-')} is given, and {whose} has no use for it with these "
            f"options{hint}: leave it out"
        )
