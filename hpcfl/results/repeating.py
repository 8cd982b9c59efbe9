"""What is typed to measure a run again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from hpcfl.results.reader import Run


def command(run: Run) -> str:
    """Return the command line of a run with what started its ranks: ``mpirun -n 101 hpcfl ...``."""
    return _started(run.command, run.environment)


def _started(command: str, environment: Mapping[str, Any]) -> str:
    ranks = environment.get("ranks")
    if environment.get("transport") == "netlab":
        return _in_a_lab(command, environment)
    return f"mpirun -n {ranks} {command}" if type(ranks) is int and ranks > 1 else command


def _in_a_lab(command: str, environment: Mapping[str, Any]) -> str:
    """Return the command within ``hpcfl netlab``, with the links of the lab that it ran in."""
    program, _, arguments = command.partition(" ")
    up, down, server = (
        environment.get(f"netlab_{name}_mbps") for name in ("uplink", "downlink", "server_rate")
    )
    options = {"--hosts": environment.get("netlab_hosts"), "--rate": _mbit(up)}
    options["--downlink-rate"] = _mbit(down) if down != up else None
    options["--latency"] = _milliseconds(environment.get("netlab_latency_ms"))
    options["--server-rate"] = _mbit(server)
    words = [str(word) for option in options.items() if option[1] is not None for word in option]
    return f"{program} netlab {shlex.join(words)} -- {arguments}"


def _mbit(rate: Any) -> str | None:
    return f"{rate:g}mbit" if isinstance(rate, int | float) else None


def _milliseconds(delay: Any) -> str | None:
    return f"{delay:g}ms" if isinstance(delay, int | float) and delay else None
