"""Opens all HDF5 files, and words what is wrong with them."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any

from hpcfl.errors import UsageError

_HELD = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES)


def opened(path: Path, mode: str, *, lock: bool = True, **more: Any) -> Any:
    """Open a file as `h5py.File` does.

    A UsageError says that another process is writing the file, or that its file system has no
    locks.
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
        raise UsageError(
            f"the file system of {path} has no locks: choose another place, or set "
            "HDF5_USE_FILE_LOCKING=FALSE and let no two runs write to one file"
        ) from None


def reason(error: BaseException) -> str:
    """Return what the system says is wrong, without HDF5's account of where."""
    # HDF5 hands some errors on in words alone.
    found = re.search(r"errno = (\d+)", str(error))
    number = getattr(error, "errno", None) or (found and int(found[1]))
    return os.strerror(number) if number else " ".join(str(error).split())
