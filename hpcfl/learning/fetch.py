"""Downloads data sets, and keeps only files that are the publishers' own, by their checksums."""

from __future__ import annotations

import os
import re
import tarfile
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hpcfl.errors import HpcflError, MissingPackageError, UsageError, no_such
from hpcfl.learning import cifar10
from hpcfl.learning.base import advice, find_data_dir, sha256
from hpcfl.options.names import DATASETS
from hpcfl.system import outputs

CHUNK = 2**16
TIMEOUT = 30  # seconds without an answer


@dataclass(frozen=True)
class Download:
    """A file of a publisher."""

    url: str  # all but its name
    file: str
    digest: str  # SHA-256
    folder: str  # where it belongs in the folder of the data sets
    # For an archive: the files to take out of it, by their name in it, with their SHA-256. They go
    # into the folder, without the folders of the archive, and the archive is not kept.
    members: Mapping[str, str] = field(default_factory=dict)

    def targets(self) -> dict[str, str]:
        """Return the names of the files that are kept, with their SHA-256."""
        if not self.members:
            return {self.file: self.digest}
        return {Path(member).name: digest for member, digest in self.members.items()}


def _mnist(file: str, digest: str) -> Download:
    # The publisher's own page no longer serves the files; this copy of them is the one that
    # PyTorch's maintainers keep.
    return Download("https://ossci-datasets.s3.amazonaws.com/mnist", file, digest, "mnist")


def _adult(file: str, digest: str) -> Download:
    url = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult"
    return Download(url, file, digest, "adult")


DOWNLOADS: dict[str, tuple[Download, ...]] = {
    "mnist": (
        _mnist(
            "train-images-idx3-ubyte.gz",
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        ),
        _mnist(
            "train-labels-idx1-ubyte.gz",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        ),
        _mnist(
            "t10k-images-idx3-ubyte.gz",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        ),
        _mnist(
            "t10k-labels-idx1-ubyte.gz",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
    "cifar10": (
        Download(
            "https://www.cs.toronto.edu/~kriz",
            "cifar-10-python.tar.gz",
            "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            "cifar10/cifar-10-batches-py",
            {f"cifar-10-batches-py/{name}": digest for name, digest in cifar10.DIGESTS.items()},
        ),
    ),
    "adult": (
        _adult("adult.data", "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d"),
        _adult("adult.test", "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05"),
    ),
}


def fetch(
    name: str,
    data_dir: Path | None,
    base_url: str | None = None,
    progress: bool = False,
    downloads: Mapping[str, tuple[Download, ...]] = DOWNLOADS,
) -> list[Path]:
    """Download what is missing or damaged of a data set; return its files.

    Each appears whole or not at all. What a mirror at `base_url` sends must be the publisher's
    files all the same. A UsageError says that there is nothing to download, or that pooch is not
    installed; an HpcflError that a file cannot be had, is not the publisher's, or cannot be
    written.
    """
    if name not in downloads:
        raise UsageError(_why_not(name, data_dir))
    folder = find_data_dir(name, data_dir)
    outputs.check(folder, outputs.FOLDER)
    for download in downloads[name]:
        if not _is_there(download, folder):
            for file in download.targets():
                outputs.check(folder / download.folder / file, outputs.DATA)
            url = f"{(base_url or download.url).rstrip('/')}/{download.file}"
            _fetch_one(download, folder, url, progress)
    return [
        folder / download.folder / file
        for download in downloads[name]
        for file in download.targets()
    ]


def _why_not(name: str, data_dir: Path | None) -> str:
    """Return the sentence for a data set that cannot be downloaded."""
    if name == "femnist":
        folder = data_dir or os.environ.get("HPCFL_DATA") or "DIR"
        return f"femnist is not a file to download: {advice(name, folder)}"
    if name not in DATASETS:
        return str(no_such("data set to download called", name, DOWNLOADS))
    of = DATASETS[name].folder
    if of is None:
        return f"the data set {name} needs no files: there is nothing to download"
    return f"{name} is made of {of}: hpcfl data fetch {of} gets its files"


def _is_there(download: Download, data_dir: Path) -> bool:
    """Return whether all the files are there and are the publisher's."""
    folder = data_dir / download.folder
    try:
        return all(sha256(folder / file) == digest for file, digest in download.targets().items())
    except OSError:
        return False


def _fetch_one(download: Download, data_dir: Path, url: str, progress: bool) -> None:
    folder = data_dir / download.folder
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        # In the same file system as the folder, so that a file can be moved there in one step.
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=data_dir) as temporary:
            got = _download(url, download, Path(temporary), progress)
            for file in _unpack(got, download) if download.members else [got]:
                folder.mkdir(parents=True, exist_ok=True)
                file.chmod(0o644)  # temporary files are for their owner alone
                file.replace(folder / file.name)
    except OSError as error:
        reason = f"{error.strerror or error}: {error.filename or data_dir}"
        raise HpcflError(f"{download.file} cannot be stored in {folder} ({reason})") from None


def _download(url: str, download: Download, temporary: Path, progress: bool) -> Path:
    """Download a file into a temporary folder and check it; return its path."""
    try:
        import pooch
        import requests

        if progress:
            import tqdm  # noqa: F401  # what pooch shows progress with
    except ImportError as error:
        raise MissingPackageError("hpcfl data fetch", "pooch and tqdm", "train") from error
    pooch.get_logger().setLevel("WARNING")  # it would report every file on its own
    downloader = pooch.HTTPDownloader(
        progressbar=progress,
        chunk_size=CHUNK,
        timeout=TIMEOUT,
        # A server that unpacked .gz files on the way would send other bytes than the publisher's.
        headers={"Accept-Encoding": "identity"},
    )
    known = f"sha256:{download.digest}"
    shown = re.sub(r"//[^/]*@", "//", url)  # without the password for a mirror
    try:
        path = pooch.retrieve(url, known, download.file, temporary, downloader=downloader)
    except requests.RequestException as error:
        raise HpcflError(f"{shown} cannot be downloaded ({_in_short(error)})") from None
    except ValueError:  # pooch's for a wrong checksum
        raise HpcflError(
            f"what {shown} sent is not the publisher's {download.file} (SHA-256 "
            f"{download.digest}) and was not kept: try again, or a mirror with --base-url"
        ) from None
    return Path(path)


def _in_short(error: Exception) -> str:
    """Return what a failed request says, without the objects that urllib3 prints."""
    response = getattr(error, "response", None)
    if response is not None:
        return f"the server answered {response.status_code} {response.reason}"
    cause: BaseException = error
    while (inner := cause.__cause__ or cause.__context__) is not None:
        cause = inner
    return getattr(cause, "strerror", None) or str(cause) or type(error).__name__


def _unpack(archive: Path, download: Download) -> list[Path]:
    """Take the members out of an archive, next to it; check them and return their paths."""
    inside = archive.parent / "unpacked"
    try:
        with tarfile.open(archive) as file:
            for member in download.members:
                file.extract(member, inside, filter="data")
    except (tarfile.TarError, KeyError, EOFError, zlib.error) as error:
        raise HpcflError(f"{download.file} cannot be unpacked ({error})") from None
    archive.unlink()
    for member, digest in download.members.items():
        if not (inside / member).is_file() or sha256(inside / member) != digest:
            raise HpcflError(f"{member} in {download.file} is not the publisher's file")
    return [inside / member for member in download.members]
