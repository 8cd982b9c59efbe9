"""Whether what is asked for fits into memory, before any of it is done."""

from __future__ import annotations

from hpcfl.errors import UsageError


def check_memory(what: str, needed_bytes: float, advice: str) -> None:
    """Refuse, by UsageError, what takes more memory than this process may still have."""
    # Not at the top: ranks with devices, which come here with others, need nothing of it.
    from hpcfl.system import environment

    free = environment.memory_available_bytes()
    if free is not None and needed_bytes > free:
        raise UsageError(
            f"{what} take about {needed_bytes / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are "
            f"free: {advice}"
        )
