"""Opens all HDF5 files, also where a file system has no locks."""

from __future__ import annotations

import errno
import os
import re
import warnings
from pathlib import Path
from typing import Any

from hpcfl.errors import UsageError

_HELD = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES)


def opened(path: Path, mode: str, *, lock: bool = True, **more: Any) -> Any:
    """Open a file as `h5py.File` does, without a lock where the file system has none.

    A UsageError says that another process is writing the file.
    """
    import h5py

    try:
        # In this way h5py opens by default: a process cannot open a file in two ways at a time.
        return h5py.File(path, mode, locking="best-effort" if lock else False, **more)
    except OSError as error:
        if "unable to lock file" not in str(error):
            raise
        if error.errno in _HELD:
            raise UsageError(
                f"{path} is being written by another process: wait until that has ended"
            ) from None
        if mode != "r":
            warnings.warn(
                f"the file system of {path.parent.absolute()} has no locks: let no two runs write "
                "to one results file there",
                stacklevel=2,
            )
        # A new file was made before it could not be locked.
        return h5py.File(path, "w" if mode == "x" else mode, locking=False, **more)


def locked(path: Path) -> bool:
    """Return whether a file is open for writing and locked, by this process or another one."""
    import fcntl

    try:
        with path.open("rb") as content:
            fcntl.flock(content, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in _HELD
    return False


def reason(error: BaseException) -> str:
    """Return what the system says is wrong, without HDF5's account of where."""
    # HDF5 hands some errors on in words alone.
    found = re.search(r"errno = (\d+)", str(error))
    number = getattr(error, "errno", None) or (found and int(found[1]))
    return os.strerror(number) if number else " ".join(str(error).split())
