"""The control groups of this process: what a job or a container may use of its host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hpcfl.system.kernel import read

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def folders(controller: str) -> Iterator[Path]:
    """Yield where a controller tells of this process, its own group first, then those above.

    Of both versions of control groups. Within a container the path of a group may be that of the
    host, and the root is its own.
    """
    for line in read(_PROC / "self/cgroup").splitlines():
        _, kinds, path = (*line.split(":", 2), "", "")[:3]
        if kinds and controller not in kinds.split(","):
            continue
        inside = Path(path.lstrip("/"))
        for group in (inside, *inside.parents):
            yield _CGROUPS / kinds / group


def memory_left_bytes() -> int | None:
    """Return how much more memory the tightest of the groups allows; None if none has a limit.

    Of what is in use, files that were read once do not count: their memory is given back first.
    """
    left = []
    for folder in folders("memory"):
        for limit, current, given_back in _FILES:
            most, used = read(folder / limit), read(folder / current)
            if most.isdigit() and used.isdigit():
                statistics = dict(map(str.split, read(folder / "memory.stat").splitlines()))
                left.append(int(most) - int(used) + int(statistics.get(given_back, 0)))
    return min(left, default=None)
