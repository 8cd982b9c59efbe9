"""`hpcfl bench` on a rank that holds devices: nothing of the command line's packages is loaded.

With a hundred ranks on a machine, what one loads is loaded a hundred times. Whatever is not plainly
options and values is left to the command line, which says what is wrong with it.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from hpcfl.errors import HpcflError
from hpcfl.options.bench import BenchOptions
from hpcfl.options.definition import options_of
from hpcfl.system.plugins import explained

# Flags of the command line that change only what rank 0 prints.
_PRINTED = ("--json",)


def read(arguments: Sequence[str]) -> dict[str, Any] | None:
    """Return the options that are typed after ``hpcfl bench`` as texts, None for the unusual.

    These are the protocol, unless a run is resumed, and ``--name value`` or ``--name=value``, in
    any order.
    """
    known = {f"--{about.dashed}": about for about in options_of(BenchOptions).values()}
    found: dict[str, Any] = {}
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if name in _PRINTED and not equals:
            continue
        if not name.startswith("-"):
            if "protocol" in found:
                return None
            found["protocol"] = argument
            continue
        about = known.get(name)
        if about is None or about.type is bool:
            return None
        if not equals:
            value = next(rest, "--")
        if (not equals and value.startswith("-")) or (about.choices and value not in about.choices):
            return None
        if about.type == tuple[str, ...]:
            found[about.name] = (*found.get(about.name, ()), value)
        else:
            found[about.name] = value
    return found if {"protocol", "resume"} & found.keys() else None


def main(found: dict[str, Any]) -> NoReturn:
    """Play this rank's part in what was asked for, and end as the command line does on rank 0."""
    from hpcfl.comm import ending

    try:
        _run(found)
    except HpcflError as error:
        ending.fail(str(error), error.exit_status)
    except KeyboardInterrupt:
        sys.exit(130)
    except (Exception, SystemExit) as error:
        known = explained(error)
        if known is not None:
            ending.fail(str(known), known.exit_status)
        if not isinstance(error, SystemExit):
            ending.crash()
        raise
    ending.leave()


def _run(found: dict[str, Any]) -> None:
    from hpcfl.benchmark import session
    from hpcfl.comm.world import connect
    from hpcfl.system.interruption import noting_signals

    world = connect()
    options = session.asked(world, found)
    gc.freeze()
    gc.enable()
    with noting_signals(to_the_end=True):
        session.run(world, options, lambda path: None)
