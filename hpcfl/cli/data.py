"""``hpcfl data``: get the data sets that ``hpcfl train`` trains on."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click


@click.group("data")
def command() -> None:
    """Get the data sets that `hpcfl train` trains on."""


@command.command("fetch")
@click.argument("name", metavar="NAME")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the data sets.  [default: the environment variable HPCFL_DATA]",
)
@click.option("--base-url", metavar="URL", help="Mirror that has the files at URL/FILE.")
def fetch(name: str, data_dir: Path | None, base_url: str | None) -> None:
    """Download a data set: mnist, cifar10 or adult.

    Only the publisher's own files are kept, by their checksums; files that are there already are
    not downloaded again. The sets digits and synthetic need no files; for femnist, the command
    says how it is made.

    \b
    Examples:
      hpcfl data fetch mnist --data-dir ~/data
      hpcfl data fetch adult --data-dir ~/data --base-url https://mirror.example.org/adult
    """
    from hpcfl.system.launch import leave_to_first_rank

    if leave_to_first_rank():
        return  # started by mpirun all the same: one download is enough

    from hpcfl.learning.fetch import fetch as fetch_files

    progress = _Progress() if sys.stderr.isatty() else None
    try:
        paths = fetch_files(name, data_dir, base_url, progress)
    finally:
        if progress is not None:
            progress.close()  # an error must not be written into its line
    for path in paths:
        click.echo(path)


class _Progress:
    """Shows how much has come, on one line of the terminal."""

    def __init__(self) -> None:
        self.total = 0
        self._done = 0
        self._shown = 0.0

    def update(self, size: int) -> None:
        self._done += size
        if time.monotonic() - self._shown > 0.1:
            self._shown = time.monotonic()
            of_total = f" of {self.total / 1e6:.1f}" if self.total else ""
            click.echo(f"\r{self._done / 1e6:.1f}{of_total} MB ", nl=False, err=True)

    def reset(self) -> None:
        self._done = 0

    def close(self) -> None:
        if self._shown:
            click.echo(f"\r{'':40}\r", nl=False, err=True)  # clears the line
        self.total, self._done, self._shown = 0, 0, 0.0
