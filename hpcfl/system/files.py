"""Reads files that may hold anything.

They are read within bounds, and without running what they say: a damaged or hostile file can claim
sizes that no memory holds, nest for ever, name programs to run, or unpack to a thousand times its
length. What is here raises ValueError (or OSError) for all of that; a reader adds the file's name,
and says what to do. What is no file at all, a pipe or a device, is refused by a UsageError that has
its name already.
"""

from __future__ import annotations

import io
import json
import math
import os
import select
import stat
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import UsageError

# Bytes of a text file that people or programs write by the line: plans, manifests, constants.
LARGEST_TEXT = 2**26
# NumPy's own header has 128 bytes; its text is evaluated, which must not get out of hand.
_LARGEST_HEADER = 1024
_AT_ONCE = 2**20  # bytes
_SIMPLE_KINDS = "biufSU"
_LONGEST_WORD = 200  # letters of a file's own words within an error message
# How long to wait for the writer of a pipe, as of `hpcfl sweep <(make-plan)`.
_PATIENCE_SECONDS = 5.0
_SPECIAL = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def opened(path: Path, *, pipes: bool = False) -> io.BufferedReader:
    """Open a file to be read, which never waits for another process.

    A UsageError refuses a device, a socket and, but for `pipes`, a pipe: what they give may have no
    end, or never begin.
    """
    # Before it is opened too, which alone makes some devices do something.
    _refuse_special(path, path.stat(), pipes)
    return open(path, "rb", opener=partial(_open, path=path, pipes=pipes))


def _open(name: str, flags: int, *, path: Path, pipes: bool) -> int:
    descriptor = os.open(name, flags | os.O_NONBLOCK)
    try:
        _refuse_special(path, os.fstat(descriptor), pipes)
    except UsageError:
        os.close(descriptor)
        raise
    return descriptor


def require(path: Path) -> None:
    """Refuse, by UsageError, a path at which there is no regular file.

    For what a library opens by its name; all else is opened by `opened`.
    """
    if path.is_file():
        return
    if path.exists():
        _refuse_special(path, path.stat(), pipes=False)
    raise UsageError(f"there is no file {path}")


def _refuse_special(path: Path, about: os.stat_result, pipes: bool) -> None:
    kind = _SPECIAL.get(stat.S_IFMT(about.st_mode))
    if kind is not None and not (pipes and stat.S_ISFIFO(about.st_mode)):
        raise UsageError(f"{path} is {kind}, and not a file that can be read: give a regular file")


def contents(path: Path, largest: int) -> bytes:
    """Return all bytes of a file, or of a pipe that somebody writes to: at most so many."""
    with opened(path, pipes=True) as file:
        found = os.fstat(file.fileno())
        if stat.S_ISFIFO(found.st_mode):
            return _drained(path, file.fileno(), largest)
        if found.st_size > largest:
            raise ValueError(f"its {found.st_size} bytes exceed the limit of {largest} bytes")
        # Bit by bit: it may grow, files of /proc have no length, and the bound is rarely met.
        content = bytearray()
        while len(content) <= largest and (more := file.read(_AT_ONCE)):
            content += more
    if len(content) > largest:
        raise ValueError(f"it exceeds the limit of {largest} bytes")
    return bytes(content)


def _drained(path: Path, pipe: int, largest: int) -> bytes:
    """Return what is written to a pipe until its writer closes it."""
    content = bytearray()
    while len(content) <= largest:
        try:
            more = os.read(pipe, _AT_ONCE)
        except BlockingIOError:
            if not select.select([pipe], [], [], _PATIENCE_SECONDS)[0]:
                raise UsageError(
                    f"{path} is a pipe to which nothing was written for {_PATIENCE_SECONDS:g} s: "
                    "give a regular file"
                ) from None
            continue
        if not more:
            break
        content += more
    if len(content) > largest:
        raise ValueError(f"it exceeds the limit of {largest} bytes")
    if not content:
        raise UsageError(f"{path} is a pipe to which nobody writes: give a regular file")
    return bytes(content)


def text(path: Path, largest: int = LARGEST_TEXT) -> str:
    """Return the text of a file in UTF-8; see :func:`contents`."""
    return contents(path, largest).decode("utf-8")


def parse_json(content: str | bytes) -> Any:
    """Return what a JSON text says.

    One that gives two values to a name, of which one would be lost, is refused.
    """
    try:
        return json.loads(content, object_pairs_hook=_without_repeats)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"it has {shorten(twice)} twice")
    return found


def shorten(value: object) -> str:
    """Return a value as Python writes it, cut to what an error message can hold."""
    try:
        written = repr(value)
    except (ValueError, RecursionError):  # a number of very many digits, a deep list
        written = f"a {type(value).__name__}"
    return _cut(written)


def brief(error: Exception) -> str:
    """Return an error's words on one line, cut to what an error message can hold."""
    return _cut(" ".join(str(error).split()) or type(error).__name__)


def _cut(written: str) -> str:
    half = _LONGEST_WORD // 2
    return written if len(written) <= _LONGEST_WORD else f"{written[:half]}...{written[-half:]}"


def integer(content: Mapping[str, Any], name: str, least: int = 0) -> int:
    """Return a whole number of a JSON object, which must be at least `least` and below 2**63."""
    value = content.get(name)
    if type(value) is not int or not least <= value < 2**63:
        raise ValueError(f"its {name} is {shorten(value)}, not a whole number from {least} on")
    return value


def load_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a ``.npz`` file as `numpy.savez` writes it: not packed, no objects.

    Each array's checksum is compared, and its shape with the bytes that are there; not more memory
    is taken than the file is long.
    """
    from zipfile import ZIP_STORED, BadZipFile, ZipFile

    found: dict[str, NDArray[Any]] = {}
    try:
        with opened(path) as file, ZipFile(file) as archive:
            members = archive.infolist()
            # Each by itself could be within the file, and all of them at the same place.
            if sum(member.file_size for member in members) > os.fstat(file.fileno()).st_size:
                raise ValueError("it claims more than it holds")
            for member in members:
                name = member.filename.removesuffix(".npy")
                if member.compress_type != ZIP_STORED or name in found:
                    raise ValueError(f"its member {shorten(name)} is packed or there twice")
                found[name] = parse_npy(archive.read(member))
    except (BadZipFile, EOFError, LookupError, RuntimeError) as error:
        raise ValueError(f"it is not a .npz file, or a damaged one ({brief(error)})") from None
    except MemoryError:
        raise ValueError("it does not fit into the memory") from None
    return found


def parse_npy(content: bytes) -> NDArray[Any]:
    """Return the array of a ``.npy`` file in memory: of numbers, flags or text."""
    file = io.BytesIO(content)
    shape, column_major, dtype = npy_header(file)
    size = math.prod(shape) * dtype.itemsize
    if size != len(content) - file.tell():
        raise ValueError(f"an array of shape {shorten(shape)} does not fit its bytes")
    values = np.frombuffer(content, dtype, offset=file.tell()) if size else np.empty(0, dtype)
    return values.reshape(shape, order="F" if column_major else "C").copy()


def npy_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return the header of a ``.npy`` file: shape, whether Fortran's order, and type.

    The file is left where the values begin.
    """
    try:
        version = np.lib.format.read_magic(file)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        if read is None:
            raise ValueError(f"its format is {version[0]}.{version[1]}, not 1.0 or 2.0")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that Python 2 wrote it
            shape, column_major, dtype = read(file, max_header_size=_LARGEST_HEADER)
    except ValueError:
        raise
    except Exception as error:  # the header is text that NumPy evaluates
        raise ValueError(f"its header cannot be understood ({type(error).__name__})") from None
    if dtype.kind not in _SIMPLE_KINDS or dtype.itemsize == 0:
        raise ValueError(f"it holds {shorten(str(dtype))}, not numbers, flags or text")
    if not all(type(length) is int and 0 <= length < 2**63 for length in shape):
        raise ValueError(f"its shape is {shorten(shape)}")
    return shape, column_major, dtype
