"""Runs what may be broken in a process of its own with a time limit."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

VERSION_SECONDS = 20.0
END_SECONDS = 10.0


@dataclass(frozen=True)
class Ran:
    """How a command ended; `status` is None if it could not be started or took too long."""

    status: int | None
    output: str = ""
    errors: str = ""

    @property
    def reason(self) -> str:
        """What the command itself said about its failure, in one line."""
        lines = [line.strip() for line in (self.errors + "\n" + self.output).splitlines()]
        lines = [line for line in lines if line.strip("-=*+| ")]
        if not lines:
            return f"exit status {self.status}"
        # A Python traceback ends with what went wrong, a launcher's help text begins with it.
        traceback = any(line.startswith("Traceback") for line in lines)
        return lines[-1 if traceback else 0][:200]


def run(command: list[str], limit_seconds: float, variables: Mapping[str, str] = os.environ) -> Ran:
    """Run a command to its end or to its time limit, and then end all it has started."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=variables,
            start_new_session=True,
        )
    except OSError as error:
        return Ran(None, errors=f"{command[0]} cannot be started: {error.strerror}")
    try:
        output, errors = process.communicate(timeout=limit_seconds)
        return Ran(process.returncode, output, errors)
    except subprocess.TimeoutExpired:
        return Ran(None, errors=f"no end within {limit_seconds:g} seconds")
    finally:
        if process.poll() is None:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    # A launcher that is asked to end takes its ranks along; one that is killed leaves them behind.
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=END_SECONDS)
            return
