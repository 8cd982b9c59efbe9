"""Errors for users, each with a sentence that states the problem and the remedy."""

from __future__ import annotations

import errno
from collections.abc import Iterable

# Messages of NumPy, HDF5, torch and the system's threads when memory is short.
_OUT_OF_MEMORY = (
    *("array is too big", "Maximum allowed dimension exceeded", "memory allocation failed"),
    *("can't allocate memory", "can't start new thread", "failed to map segment"),
    "cannot allocate memory",
)


class HpcflError(Exception):
    """Base of all errors that are reported as a sentence, without a traceback."""

    exit_status = 1


def explained(error: BaseException) -> HpcflError | None:
    """Return the error that explains a limit of the machine; None for a bug in hpcfl.

    The limits are too little memory, too large a number, and errors of the system about files.
    """
    words = " ".join(str(error).split())[:200]
    said = f" ({words})" if words else ""
    of_memory = isinstance(error, (RuntimeError, ValueError, OSError, ImportError))
    if (
        isinstance(error, MemoryError)
        or getattr(error, "errno", None) == errno.ENOMEM
        or (of_memory and any(sign in words for sign in _OUT_OF_MEMORY))
    ):
        return HpcflError(
            f"there is not enough memory{said}: give fewer devices, coordinates or rounds, or use "
            "a machine with more of it"
        )
    if isinstance(error, OverflowError) or "without overflow" in words:  # torch's
        return UsageError(f"a number is too large for this machine{said}: give a smaller one")
    if isinstance(error, OSError) and error.strerror:
        named = "" if error.filename is None else f"{error.filename}: "
        return HpcflError(f"{named}{error.strerror}")
    return None


class UsageError(HpcflError):
    """Options, files or a launch cannot work; this is found before anything is measured."""

    exit_status = 2


def no_such(
    what: str,
    name: str,
    known: Iterable[str],
    *,
    also: str = "",
    listed: bool = True,
    place: str = "",
) -> UsageError:
    """Return the error for an unknown name, with the known name that may be meant.

    `what` is the kind of thing named, such as ``protocol``, or the option, with its dashes, whose
    value is `name`. `also` says what else is allowed, and `listed` whether all known names are
    listed if none is similar. The message begins with `place`, which says where `name` was typed.
    """
    import difflib  # not loaded on ranks that hold devices

    known = [*known]
    # A number is not a misspelt form of another one.
    near = [] if name.isdigit() else difflib.get_close_matches(name, known, n=1)
    said = f"{what} is {name!r}" if what.startswith("--") else f"there is no {what} {name!r}"
    if near:
        hints = [f"did you mean {near[0]!r}?"]
    elif listed:
        hints = [f"choose one of {', '.join(known)}" + (f", {also}" if also else "")]
    else:
        hints = [also] if also else []
    return UsageError("; ".join([f"{place}{said}", *hints]))


class MissingPackageError(UsageError):
    """A package that only a part of hpcfl needs is missing; an extra of hpcfl installs it."""

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(f"{what} needs {package}: pip install 'hpcfl[{extra}]'")


class AgreedError(HpcflError):
    """An error of the server that is sent to every rank; all ranks raise it."""

    def __init__(self, message: str, exit_status: int = 1) -> None:
        super().__init__(message)
        self.exit_status = exit_status


class AgreedUsageError(AgreedError, UsageError):
    """A `UsageError` of the server that every rank raises."""


class MessageError(HpcflError):
    """A message does not have the form that its phase requires.

    `sender` is, for example, ``"device 7"`` or ``"the server"``.
    """

    def __init__(self, phase: str, sender: str, reason: str) -> None:
        super().__init__(f"malformed {phase} message from {sender}: {reason}")
        self.phase = phase
        self.sender = sender
        self.reason = reason


class RefusedError(HpcflError):
    """A device refuses to answer, because the answer could reveal more than a sum."""


class BelowThresholdError(HpcflError):
    """Fewer devices are left than the secret-sharing threshold, so the round cannot finish."""


class PromiseError(BelowThresholdError):
    """A round cannot keep its promises; it ends before anything is revealed."""


class OwnCodeError(HpcflError):
    """A user's own code raised an exception, or made hpcfl raise one."""


class ValidationError(HpcflError):
    """A decoded aggregate differs from the sum that validation computes independently."""
