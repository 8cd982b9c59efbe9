"""Builds a lab's namespaces, and takes them down whatever happens."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from hpcfl.errors import HpcflError
from hpcfl.netlab.plan import PREFIX, LabPlan, owner_name, owner_of

NAMESPACES = Path("/run/netns")
FOLDERS = Path("/run")
# Processes that are told to end get this long before they are killed.
END_SECONDS = 5.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class InterruptedLab(HpcflError):
    """A signal ended the lab, which has been taken down."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}; the lab is taken down")
        self.exit_status = 128 + number


def my_owner_name() -> str:
    """Return the prefix of all names in this process's lab."""
    process = os.getpid()
    start = start_ticks(process)
    return owner_name(process, 0 if start is None else start)


@contextlib.contextmanager
def lab(plan: LabPlan) -> Iterator[LabPlan]:
    """Build the lab of a plan, and take it down at the end, also after a signal or an error.

    What runs within it is ended with it. Labs whose process was killed are removed first.
    """
    with _handling(_interrupt):
        try:
            sweep()
            plan.folder.mkdir(mode=0o700)
            for namespace, commands in plan.build():
                _run_within(namespace, commands)
            yield plan
        finally:
            with _handling(signal.SIG_IGN):
                remove(plan.owner)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise InterruptedLab at the first signal; later ones change nothing."""
    for other in _SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    raise InterruptedLab(number)


@contextlib.contextmanager
def _handling(handler: signal.Handlers | Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


def sweep() -> list[str]:
    """Remove the labs of processes that no longer exist; return their prefixes."""
    owners = {found for name in _names() if (found := owner_of(name))}
    removed = [owner_name(*owner) for owner in sorted(owners) if start_ticks(owner[0]) != owner[1]]
    for prefix in removed:
        remove(prefix)
    return removed


def remove(owner: str) -> None:
    """End everything that runs in a lab, and remove its namespaces and files."""
    namespaces = [name for name in _names() if name.startswith(owner)]
    _end_processes(namespaces)
    for name in namespaces:
        if (NAMESPACES / name).exists():
            run(["ip", "netns", "delete", name])
    shutil.rmtree(FOLDERS / owner.rstrip("-"), ignore_errors=True)


def processes_in(namespaces: list[str]) -> list[int]:
    """Return the processes that run within network namespaces."""
    wanted = set()
    for name in namespaces:
        with contextlib.suppress(OSError):
            found = os.stat(NAMESPACES / name)
            wanted.add((found.st_dev, found.st_ino))
    processes = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError):  # it ended meanwhile
            found = os.stat(f"/proc/{entry}/ns/net")
            if (found.st_dev, found.st_ino) in wanted:
                processes.append(int(entry))
    return processes


def start_ticks(process: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if there is none."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    # "pid (name) state ppid ...", and the name may itself hold blanks and brackets.
    return int(text.rpartition(")")[2].split()[19])


def used_networks() -> list[str]:
    """Return the IPv4 networks that the machine has addresses in or routes to."""

    def show(what: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(run(["ip", "-json", "-4", what, "show"]).stdout)
        return found

    addresses = [one for device in show("address") for one in device.get("addr_info", [])]
    used = [f"{one['local']}/{one['prefixlen']}" for one in addresses if "local" in one]
    return used + [one["dst"] for one in show("route") if one.get("dst", "default") != "default"]


def _names() -> list[str]:
    """Return the names of all labs' namespaces and folders on this machine."""
    names = [path.name for path in NAMESPACES.glob(f"{PREFIX}*")]
    return names + [f"{path.name}-" for path in FOLDERS.glob(f"{PREFIX}*")]


def _end_processes(namespaces: list[str]) -> None:
    """Tell processes to end, and kill those that have not ended after a while."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        end = time.monotonic() + END_SECONDS
        for process in processes_in(namespaces):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)
        while processes_in(namespaces) and time.monotonic() < end:
            time.sleep(0.05)


def _run_within(namespace: str, commands: list[list[str]]) -> None:
    """Run commands in one shell within a namespace, or in the machine's own if it is ""."""
    inside = ["ip", "netns", "exec", namespace] if namespace else []
    script = "".join(f"{shlex.join(command)}\n" for command in commands)
    done = run([*inside, "sh", "-e"], script)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise HpcflError(
            f"the lab cannot be built in {namespace or 'this machine'}: {reason}; --dry-run prints "
            "the commands, which need veth, bridge, sch_tbf and sch_netem of the kernel, and in a "
            "container the option --privileged"
        )


def run(command: list[str], text: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command with a text as its input, out of reach of a terminal's Ctrl-C.

    That is for this process alone, which then takes the lab down.
    """
    return subprocess.run(
        command, input=text, capture_output=True, text=True, check=False, start_new_session=True
    )
