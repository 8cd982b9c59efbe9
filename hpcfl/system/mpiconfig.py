"""Settings that let the embedded Open MPI run many more ranks than there are cores.

Open MPI comes as a Python package with its own configuration files inside the environment, so
that what is set here holds in this environment and nowhere else.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from hpcfl.errors import HpcflError, UsageError
from hpcfl.system import outputs


class _Setting(NamedTuple):
    file: str
    key: str
    value: str
    synonyms: tuple[str, ...]
    reason: str


_SETTINGS = (
    _Setting(
        *("prte-mca-params.conf", "rmaps_default_mapping_policy", ":oversubscribe"),
        synonyms=("mapby", "map_by"),
        reason="Let mpirun start more ranks than there are cores.",
    ),
    # Open MPI yields by itself when it knows that there are more ranks than cores. It does not
    # know when a hostfile, --host or a Slurm allocation claims enough slots, and 101 ranks that
    # spin on 2 cores are then some hundred times slower in every collective operation. On a
    # machine with enough cores yielding adds 0.06 microseconds to a message.
    _Setting(
        *("openmpi-mca-params.conf", "mpi_yield_when_idle", "1"),
        synonyms=(),
        reason="Let a rank that waits give its core to one that works.",
    ),
)


def has_embedded_open_mpi(prefix: Path) -> bool:
    """Return whether the environment at `prefix` holds Open MPI as a Python package.

    An Open MPI that was installed there by other means is somebody else's to configure.
    """
    return (prefix / "bin" / "prterun").exists() and any(
        prefix.glob("lib*/python3*/site-packages/openmpi-*.dist-info")
    )


def allow_oversubscription(prefix: Path) -> list[Path]:
    """Make a bare ``mpirun -n 101`` work, whatever the number of cores; return the changed files.

    What a file of the environment, as in ``sys.prefix``, holds already stays, a setting of the same
    name with another value included.
    """
    if not has_embedded_open_mpi(prefix):
        raise UsageError(
            f"{prefix} holds no Open MPI of its own: install it with pip install 'hpcfl[mpi]', "
            "or configure the MPI that you use"
        )
    changed = []
    for setting in _SETTINGS:
        path = prefix / "etc" / setting.file
        try:
            if _add(path, setting):
                changed.append(path)
        except (OSError, UnicodeError) as error:
            raise UsageError(f"cannot change {path}: {error}") from error
    return changed


def _add(path: Path, setting: _Setting) -> bool:
    """Append a setting to a file unless it is set there; return whether the file changed."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    names = "|".join(map(re.escape, (setting.key, *setting.synonyms)))
    if re.search(rf"^[ \t]*(?:{names})[ \t]*=", text, re.MULTILINE):
        return False
    if text and not text.endswith("\n"):
        text += "\n"
    text += f"\n# hpcfl: {setting.reason}\n{setting.key} = {setting.value}\n"
    # Not in place: installers may hard-link a file to one that all environments share.
    with outputs.replacing(path) as draft:
        draft.write_text(text, encoding="utf-8")
        if path.exists():
            shutil.copymode(path, draft)
    return True


def main() -> None:
    """Allow oversubscription in the environment of the running interpreter."""
    try:
        changed = allow_oversubscription(Path(sys.prefix))
    except HpcflError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
    for path in changed:
        print(f"mpirun may start more ranks than there are cores: {path}")


if __name__ == "__main__":
    main()
