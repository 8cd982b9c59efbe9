"""The archive of a submission: written byte for byte alike, and read whatever it holds.

A ZIP archive in which nothing is packed, so that it never takes more room than it has itself, and
which has no byte besides its files and their names. The names are those of `_ALLOWED`.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from hpcfl.errors import UsageError
from hpcfl.system import files, outputs

MANIFEST = "manifest.json"
JOB = "job-script"
LARGEST_JOB = 2**20  # bytes
LARGEST_MANIFEST = 2**22
# Of the whole archive. What ZIP has for larger ones, and more files, is refused.
LARGEST = 2**31 - 1
MOST_FILES = 1000

_ALLOWED = re.compile(r"manifest\.json|job-script|results/[0-9a-f]{32}\.h5")
_LONGEST_NAME = len("results/") + 32 + len(".h5")
# Of no member is a time, an owner or another mode known.
_TIME = (1980, 1, 1, 0, 0, 0)
_MODE = 0o100644 << 16
_UNIX = 3
_AT_ONCE = 2**20  # bytes

# The ends of a ZIP archive (APPNOTE.TXT 6.3.10, sections 4.3.7, 4.3.12, 4.3.15 and 4.3.16).
_END, _END_SIGNATURE = struct.Struct("<4s4H2LH"), b"PK\x05\x06"
_LOCATOR_BYTES, _LOCATOR = 20, b"PK\x06\x07"  # of the end of an archive beyond 4 GiB
_LOCAL_BYTES, _CENTRAL_BYTES = 30, 46  # of a member besides its name and content


def result_name(run_id: str) -> str:
    """Return the name that the results file of a run has in an archive."""
    return f"results/{run_id}.h5"


@dataclass(frozen=True)
class Member:
    """A file within an archive, as the manifest has it."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Unpacked:
    """What an archive holds."""

    size_bytes: int
    members: Mapping[str, Member]  # by their names, but for the manifest
    manifest: bytes
    results: tuple[Path, ...]  # taken out, in the order of their names

    @property
    def digest(self) -> str:
        """SHA-256 of the manifest, which has those of all other files."""
        return hashlib.sha256(self.manifest).hexdigest()


def digest(source: Path | bytes) -> Member:
    """Return size and digest of a file, or of what will be one."""
    if isinstance(source, bytes):
        return Member(len(source), hashlib.sha256(source).hexdigest())
    with source.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
        return Member(file.tell(), found)


def write(path: Path, sources: Mapping[str, Path | bytes]) -> None:
    """Write an archive of files by their names in it: the same bytes for the same files.

    Raises a UsageError if the archive would be larger than what is read, and as `outputs.writing`.
    """
    sizes = [
        len(source) if isinstance(source, bytes) else source.stat().st_size
        for source in sources.values()
    ]
    names = [len(name) for name in sources]
    if len(sources) > MOST_FILES or _bytes_of(sizes, names) > LARGEST:
        raise UsageError(
            f"a submission has at most {MOST_FILES} files and {LARGEST} bytes, and this one would "
            f"have {len(sources)} files and {_bytes_of(sizes, names)} bytes: give fewer results"
        )
    with outputs.writing(path, outputs.SUBMISSION) as file, ZipFile(file, "w") as archive:
        for name in sorted(sources):
            member = ZipInfo(name, _TIME)
            member.external_attr, member.create_system = _MODE, _UNIX
            source = sources[name]
            content = source if isinstance(source, bytes) else source.read_bytes()
            archive.writestr(member, content)


def unpack(path: Path, folder: Path) -> Unpacked:
    """Read an archive, and take its results files out into a folder.

    Raises ValueError if it is damaged or is not as `write` makes it, UsageError if it is not there,
    and OSError if it cannot be read.
    """
    files.require(path)
    size = path.stat().st_size
    _check_end(path, size)
    try:
        with ZipFile(path) as archive:
            members = archive.infolist()
            _check_members(archive, members, size)
            found, manifest, results = {}, b"", []
            for member in members:
                if member.filename == MANIFEST:
                    if member.file_size > LARGEST_MANIFEST:
                        raise ValueError(
                            f"its {MANIFEST} exceeds the limit of {LARGEST_MANIFEST} bytes"
                        )
                    manifest = archive.read(member)
                    continue
                taken = None if member.filename == JOB else folder / member.filename
                found[member.filename] = _take(archive, member, taken)
                results += [] if taken is None else [taken]
    except (BadZipFile, NotImplementedError) as error:
        raise ValueError(f"it is damaged ({files.brief(error)})") from None
    return Unpacked(size, found, manifest, tuple(results))


def _take(archive: ZipFile, member: ZipInfo, path: Path | None) -> Member:
    """Return size and digest of a member, whose content goes into a file if there is a path."""
    hashed = hashlib.sha256()
    with archive.open(member) as content:
        if path is None:
            while part := content.read(_AT_ONCE):
                hashed.update(part)
            return Member(member.file_size, hashed.hexdigest())
        with outputs.writing(path, outputs.RESULTS) as target:
            while part := content.read(_AT_ONCE):
                hashed.update(part)
                target.write(part)
    return Member(member.file_size, hashed.hexdigest())


def _check_end(path: Path, size: int) -> None:
    """Refuse, by ValueError, what is no ZIP archive, or one whose list of members is too long."""
    if size > LARGEST:
        raise ValueError(f"its {size} bytes exceed the limit of {LARGEST} bytes")
    if size < _END.size:
        raise ValueError("it is not a ZIP archive")
    with path.open("rb") as file:
        file.seek(max(0, size - _END.size - _LOCATOR_BYTES))
        tail = file.read()
    signature, *_, count, list_bytes, list_at, comment = _END.unpack(tail[-_END.size :])
    if signature != _END_SIGNATURE or tail.startswith(_LOCATOR):
        raise ValueError("it is not a ZIP archive as hpcfl submit pack writes them, or is cut off")
    most = count * (_CENTRAL_BYTES + _LONGEST_NAME)
    if count > MOST_FILES or list_bytes > most or comment:
        raise ValueError(f"it claims to have {count} files, in a list of {list_bytes} bytes")
    if list_at + list_bytes + _END.size != size:
        raise ValueError("it has bytes that belong to no file of it, or is cut off")


def _check_members(archive: ZipFile, members: list[ZipInfo], size: int) -> None:
    """Refuse members that `write` does not make, by ValueError, before any is read."""
    names = [member.filename for member in members]
    place = 0
    for member in members:
        name = repr(member.filename)
        if not _ALLOWED.fullmatch(member.filename):
            raise ValueError(f"it has {name}, which is no file of a submission")
        if names.count(member.filename) > 1:
            raise ValueError(f"it has {name} twice")
        packed = member.compress_type != ZIP_STORED or member.compress_size != member.file_size
        if packed or member.flag_bits:
            raise ValueError(f"{name} is packed or encrypted, which hpcfl submit pack never does")
        if member.external_attr != _MODE:
            raise ValueError(f"{name} is a link, or otherwise not a plain file")
        if member.header_offset != place or member.extra or member.comment:
            raise ValueError("it has bytes that belong to no file of it")
        place += _LOCAL_BYTES + len(member.filename) + member.file_size
    sizes = [member.file_size for member in members]
    if _bytes_of(sizes, [len(name) for name in names]) != size:
        raise ValueError("it has bytes that belong to no file of it")
    if MANIFEST not in names:
        raise ValueError(f"it has no {MANIFEST}")


def _bytes_of(sizes: list[int], names: list[int]) -> int:
    """Return how large an archive of members of these sizes and lengths of names is."""
    heads = len(sizes) * (_LOCAL_BYTES + _CENTRAL_BYTES) + 2 * sum(names)
    return sum(sizes) + heads + _END.size
