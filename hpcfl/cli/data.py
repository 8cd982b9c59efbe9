"""``hpcfl data``: get the data sets that ``hpcfl train`` trains on."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hpcfl.cli.options import PLACE, Group, option
from hpcfl.cli.terminal import alone


@click.group("data", cls=Group)
def command() -> None:
    """Get the data sets that `hpcfl train` trains on."""


@command.command("fetch")
@click.argument("name", metavar="NAME")
@option("--data-dir", type=PLACE, help="Folder of the data sets.  [default: $HPCFL_DATA]")
@option("--base-url", metavar="URL", help="Mirror that has the files at URL/FILE.")
@alone
def fetch(name: str, data_dir: Path | None, base_url: str | None) -> None:
    """Download a data set: mnist, cifar10 or adult.

    Only the publisher's own files are kept, by their checksums; files that are there already are
    not downloaded again. The sets digits and synthetic need no files; for femnist, the command
    says how it is made.

    \b
    Examples:
      hpcfl data fetch mnist --data-dir ~/data
      hpcfl data fetch adult --data-dir ~/data \\
          --base-url https://mirror.example.org/adult
    """
    from hpcfl.learning.fetch import fetch as fetch_files

    for path in fetch_files(name, data_dir, base_url, progress=sys.stderr.isatty()):
        click.echo(path)
