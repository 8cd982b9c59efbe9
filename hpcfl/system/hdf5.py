"""Opens all HDF5 files, and describes what is wrong with them."""

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

    Raises a UsageError if another process is writing the file, or its file system has no locks.
    """
    import h5py

    try:
        # h5py's default, because a process cannot open a file with two kinds of locking at once.
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
    """Return the system's message about an error, without HDF5's account of its place."""
    # HDF5 passes on the number of some errors only inside the text.
    found = re.search(r"errno = (\d+)", str(error))
    number = getattr(error, "errno", None) or (found and int(found[1]))
    return os.strerror(number) if number else " ".join(str(error).split())
