"""Downloads data sets, and keeps only files with the publishers' checksums."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from hpcfl.errors import HpcflError, MissingPackageError, UsageError, no_such
from hpcfl.learning.base import advice, find_data_dir
from hpcfl.learning.images import CIFAR10_DIGESTS
from hpcfl.values import dataclass

TIMEOUT = 30  # seconds without an answer


@dataclass(frozen=True)
class Download:
    """A publisher's files for one folder."""

    url: str  # of the folder with the files
    files: dict[str, str]  # SHA-256 by file name


DOWNLOADS = {
    # The publisher's page no longer serves the files; this is the copy of PyTorch's maintainers.
    "mnist": Download(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        {
            "train-images-idx3-ubyte.gz": (
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
            ),
            "train-labels-idx1-ubyte.gz": (
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"
            ),
            "t10k-images-idx3-ubyte.gz": (
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
            ),
            "t10k-labels-idx1-ubyte.gz": (
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"
            ),
        },
    ),
    "cifar10": Download(
        "https://www.cs.toronto.edu/~kriz",
        {
            "cifar-10-python.tar.gz": (
                "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"
            )
        },
    ),
    "adult": Download(
        "https://archive.ics.uci.edu/ml/machine-learning-databases/adult",
        {
            "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
            "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
        },
    ),
}


def fetch(
    name: str, data_dir: Path | None, base_url: str | None = None, progress: bool = False
) -> list[Path]:
    """Download the missing or damaged files of a data set, and return the paths of all its files.

    A mirror at `base_url` must serve the publisher's files. Raise UsageError if there is nothing to
    download or pooch is not installed. Raise HpcflError if a file cannot be downloaded, is not the
    publisher's, or cannot be written.
    """
    if name == "femnist":
        place = data_dir or Path(os.environ.get("HPCFL_DATA", "DIR"))
        raise UsageError(f"femnist is not a file to download: {advice(name, place)}")
    if name not in DOWNLOADS:
        raise no_such("data set to download called", name, DOWNLOADS)
    folder = find_data_dir(name, data_dir) / name
    url = (base_url or DOWNLOADS[name].url).rstrip("/")
    try:
        import pooch
        import requests

        if progress:
            import tqdm  # noqa: F401  # pooch needs it to show progress
    except ImportError as error:
        raise MissingPackageError("hpcfl data fetch", "pooch and tqdm", "train") from error
    pooch.get_logger().setLevel("WARNING")  # by default it reports every file
    downloader = pooch.HTTPDownloader(
        progressbar=progress,
        timeout=TIMEOUT,
        # A server that decompressed .gz files in transit would send bytes with another checksum.
        headers={"Accept-Encoding": "identity"},
    )
    members = [f"cifar-10-batches-py/{file}" for file in CIFAR10_DIGESTS]
    paths: list[str] = []
    for file, digest in DOWNLOADS[name].files.items():
        unpack = pooch.Untar(members, ".") if file.endswith(".tar.gz") else None
        try:
            found = pooch.retrieve(
                f"{url}/{file}", f"sha256:{digest}", file, folder, unpack, downloader
            )
        except requests.RequestException as error:
            raise HpcflError(f"{file} cannot be downloaded: {error}") from None
        except OSError as error:
            raise HpcflError(
                f"{file} cannot be stored in {folder}: {error.strerror or error}"
            ) from None
        except ValueError:  # a wrong checksum
            raise HpcflError(
                f"the downloaded {file} is not the publisher's (SHA-256 {digest}) and was deleted: "
                "try again, or give a mirror with --base-url"
            ) from None
        with contextlib.suppress(PermissionError):
            (folder / file).chmod(0o644)  # pooch makes files that only their owner can read
        paths += found if unpack else [found]
    return [Path(path) for path in paths]
