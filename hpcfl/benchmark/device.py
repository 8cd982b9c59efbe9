"""`hpcfl bench` on ranks that hold devices: rank 0 reads the command line and tells the others.

Each of a hundred ranks on a machine would load the packages of the command line. This module loads
none of them.
"""

from __future__ import annotations

import gc
import sys
from contextlib import suppress
from typing import Any, NoReturn

from hpcfl.errors import HpcflError
from hpcfl.system.plugins import explained


def main() -> NoReturn:
    """Play this rank's part in rank 0's command, and end as the command line does."""
    from hpcfl.comm import ending

    try:
        _run()
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


def release() -> None:
    """Tell, from rank 0, the ranks that wait in `main` that they have nothing to do."""
    from hpcfl.comm.world import connect

    with suppress(HpcflError):
        connect().agreed(lambda: None)


def _run() -> None:
    from hpcfl.benchmark import session
    from hpcfl.comm.world import connect
    from hpcfl.system.interruption import noting_signals

    world = connect()
    given = world.agreed(dict[str, Any])
    if given is None:
        return
    options = session.asked(world, given)
    gc.freeze()
    gc.enable()
    with noting_signals(to_the_end=True):
        session.run(world, options, lambda path: None)
