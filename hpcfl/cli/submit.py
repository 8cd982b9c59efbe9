"""`hpcfl submit`: results in one archive that others can check and compare."""

from __future__ import annotations

from pathlib import Path

import click

from hpcfl.cli.options import Choice, Group, Output, argument, option, same
from hpcfl.cli.terminal import alone, json_option, show
from hpcfl.options.shared import RunOptions
from hpcfl.report.formats import counted
from hpcfl.submission.classes import CLASSES
from hpcfl.system import outputs


@click.group("submit", cls=Group)
def command() -> None:
    """Pack results for a comparison, and verify what others have packed.

    \b
    Examples:
      hpcfl submit classes
      hpcfl submit pack results/small --class small --job job.sbatch \\
          --output secagg.zip
      hpcfl submit verify secagg.zip
    """


@command.command("classes")
@json_option("Print the classes and all that they fix as JSON.")
@alone
def classes_command(as_json: bool) -> None:
    """Show the classes: their sizes, and the command that makes one launch of each."""
    from hpcfl.submission.describe import as_dict, description

    show(as_json, as_dict, description)


@command.command("pack")
@argument("paths", nargs=-1, required=True, metavar="RESULTS...", type=click.Path(path_type=Path))
@option(
    "--class",
    "class_name",
    required=True,
    type=Choice(*CLASSES),
    help="What was measured; hpcfl submit classes shows them.",
)
@option(
    "--job",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The job script that made the results, which becomes a part of the submission.",
)
@same(
    RunOptions,
    "output",
    "The submission (.zip).",
    required=True,
    type=Output(outputs.SUBMISSION),
)
@alone
def pack_command(paths: tuple[Path, ...], class_name: str, job: Path, output: Path) -> None:
    """Put the results of one configuration, and how they were made, into one archive.

    RESULTS are results files, or folders of them: the launches of one configuration on one kind of
    machine. They are checked as verify does it, and nothing is written if a check fails, with exit
    status 1. The archive tells the names of the machine's hosts, and what the job script says.

    \b
    Examples:
      hpcfl submit pack results/small --class small --job job.sbatch \\
          --output secagg.zip
    """
    outputs.check(output, outputs.SUBMISSION)

    from hpcfl.submission.pack import pack

    packed = pack(paths, CLASSES[class_name], job, output)
    for line in (*(one.line for one in packed.checks), *(one.line for one in packed.labels)):
        click.echo(line)
    if not packed.accepted:
        refused = sum(not one.passed for one in packed.checks)
        click.echo(
            f"nothing was written: {refused} of {counted(len(packed.checks), 'check')} failed"
        )
        raise SystemExit(1)
    click.echo(f"Digest: {packed.digest}")
    click.echo(f"Submission: {output}")


@command.command("verify")
@argument("path", metavar="ARCHIVE", type=click.Path(path_type=Path))
@json_option("Print checks, labels and scores as JSON.")
@alone
def verify_command(path: Path, as_json: bool) -> None:
    """Check a submission, and print its scores.

    Everything is worked out from the results files in it. A submission is refused, with exit status
    1, if a check fails. Labels are no reason to refuse it: they say what its times have in them.
    Scores are medians over launches, with intervals.

    \b
    Examples:
      hpcfl submit verify secagg.zip
      hpcfl submit verify secagg.zip --json > secagg.json
    """
    from hpcfl.submission.describe import verdict
    from hpcfl.submission.verify import verify

    found = verify(path)
    show(as_json, found.as_dict, lambda: verdict(found))
    if not found.accepted:
        raise SystemExit(1)
