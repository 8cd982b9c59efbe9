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
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from hpcfl.errors import HpcflError
from hpcfl.netlab import requirements
from hpcfl.netlab.plan import PREFIX, Plan, owner_name, owner_of

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
def lab(plan: Plan) -> Iterator[Plan]:
    """Build the lab of a plan, and take it down at the end, also after a signal or an error.

    What runs within it is ended with it. Labs whose process was killed are removed first.
    """
    with interruptible():
        try:
            sweep()
            requirements.check_kernel(f"{plan.owner}try", plan.uplink)
            plan.folder.mkdir(mode=0o700)
            for namespace, commands in plan.build():
                _run_within(namespace, commands)
            yield plan
        finally:
            with _undisturbed():
                remove(plan.owner)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let the first SIGINT, SIGTERM or SIGHUP raise InterruptedLab; later ones change nothing."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        for other in _SIGNALS:
            signal.signal(other, signal.SIG_IGN)
        raise InterruptedLab(number)

    before = {number: signal.signal(number, interrupt) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def sweep() -> list[str]:
    """Remove the labs of processes that no longer exist; return their prefixes."""
    removed = []
    for owner in sorted({_prefix(name) for name in _names() if owner_of(name)}):
        process, start = owner_of(owner) or (0, 0)
        if start_ticks(process) != start:
            remove(owner)
            removed.append(owner)
    return removed


def remove(owner: str) -> None:
    """End everything that runs in a lab, and remove its namespaces and files."""
    namespaces = [name for name in _names() if name.startswith(owner)]
    _end_processes(namespaces)
    for name in namespaces:
        if (NAMESPACES / name).exists():
            _quietly(["ip", "netns", "delete", name])
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
    answer = _output(["ip", "-json", "-4", "address", "show"])
    used = [
        f"{address['local']}/{address['prefixlen']}"
        for device in json.loads(answer or "[]")
        for address in device.get("addr_info", [])
        if "local" in address
    ]
    for route in json.loads(_output(["ip", "-json", "-4", "route", "show"]) or "[]"):
        if route.get("dst", "default") != "default":
            used.append(route["dst"])
    return used


def _names() -> list[str]:
    """Return the names of all labs' namespaces and folders on this machine."""
    names = [path.name for path in NAMESPACES.glob(f"{PREFIX}*")]
    return names + [f"{path.name}-" for path in FOLDERS.glob(f"{PREFIX}*")]


def _prefix(name: str) -> str:
    return owner_name(*(owner_of(name) or (0, 0)))


def _end_processes(namespaces: list[str]) -> None:
    end = time.monotonic() + END_SECONDS
    number = signal.SIGTERM
    while processes := processes_in(namespaces):
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)
        if number == signal.SIGTERM:
            while time.monotonic() < end and processes_in(namespaces):
                time.sleep(0.1)
            number = signal.SIGKILL
        elif time.monotonic() > end + END_SECONDS:
            break  # stuck in the kernel: its namespace goes when it does
        else:
            time.sleep(0.05)


def _run_within(namespace: str, commands: list[list[str]]) -> None:
    """Run commands in one shell within a namespace, or in the machine's own if it is ""."""
    inside = ["ip", "netns", "exec", namespace] if namespace else []
    script = "".join(f"{shlex.join(command)}\n" for command in commands)
    done = subprocess.run(
        [*inside, "sh", "-e"],
        input=script,
        capture_output=True,
        text=True,
        check=False,
        # A terminal's Ctrl-C is for this process alone, which then takes the lab down.
        start_new_session=True,
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise HpcflError(
            f"the lab cannot be built in {namespace or 'this machine'}: {reason}; "
            "--dry-run prints the commands"
        )


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _quietly(command: list[str]) -> None:
    subprocess.run(command, capture_output=True, check=False, start_new_session=True)
