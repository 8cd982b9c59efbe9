"""Standard output and error that may be closed, or full, while work goes on.

What a reader such as ``head`` no longer takes is dropped; a run that takes hours does not end
because of it. The exit status tells.
"""

from __future__ import annotations

import io
import sys

# As in typing, which costs milliseconds to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# What shells say of a program that died because nobody read its output.
UNREAD_STATUS = 141


class Lossy(io.FileIO):
    """A stream of the process that takes everything, and drops it once the system refuses some."""

    refused: OSError | None = None

    def write(self, data: Any) -> int:
        if self.refused is None:
            try:
                return super().write(data)
            except OSError as error:
                self.refused = error
        return memoryview(data).nbytes

    def status(self, status: Any) -> Any:
        """Return the exit status of a process that was to end with one, and say what is wrong."""
        if self.refused is None or status not in (0, None):
            return status
        if isinstance(self.refused, BrokenPipeError):
            return UNREAD_STATUS
        reason = self.refused.strerror
        print(f"Error: standard output cannot be written ({reason})", file=sys.stderr)
        return 1


def guard() -> Lossy | None:
    """Let nothing that is printed raise an error; return standard output, None if it is closed."""
    found = None
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed from the beginning: what is printed goes nowhere
            continue
        raw = Lossy(stream.fileno(), "wb", closefd=False)
        text = io.TextIOWrapper(
            io.BufferedWriter(raw),
            encoding=stream.encoding,
            errors=stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        setattr(sys, name, text)
        found = raw if name == "stdout" else found
    return found
