"""The command line of hpcfl."""

from __future__ import annotations

import importlib
import sys
import warnings

import click

from hpcfl.cli.options import Group
from hpcfl.errors import HpcflError, no_such
from hpcfl.system import launch
from hpcfl.system.plugins import explained

COMMANDS = {
    "bench": "Measure an aggregation protocol on vectors.",
    "sweep": "Run a grid of benchmarks and trainings from a plan, and continue where it stopped.",
    "train": "Train a model through an aggregation protocol.",
    "data": "Fetch data sets to train on, and show populations of devices.",
    "predict": "Say what a round would cost, without playing it.",
    "advise": "Say which protocol to take, and what it costs.",
    "calibrate": "Measure what operations and messages cost here, for predict.",
    "report": "Print results files: one in full, or several side by side.",
    "compare": "Say whether one run is slower than another, and by how much.",
    "plot": "Draw figures of results.",
    "privacy": "Say what a protocol hides, and what it exposes.",
    "optimize": "Find the numbers of queries and replies that suit a budget.",
    "attack": "Play the curious server, or a hostile device.",
    "netlab": "Run on one machine with a shaped link for every device (Linux, root).",
    "slurm": "Write job scripts for Slurm.",
    "doctor": "Check MPI and everything else that hpcfl needs.",
}
# Modules of the commands that share one; every other command's module has the command's name.
_HOMES = {
    "advise": "predict",
    "calibrate": "predict",
    "compare": "report",
    "plot": "report",
    "optimize": "privacy",
    "attack": "privacy",
    "data": "machine",
    "doctor": "machine",
    "netlab": "machine",
}


class LazyGroup(Group):
    """A group that imports a command's module only when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        home = importlib.import_module(f"hpcfl.cli.{_HOMES.get(name, name)}")
        found: click.Command = getattr(home, name)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            raise no_such("command", args[0], COMMANDS)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _print_version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        from hpcfl import __version__

        click.echo(f"hpcfl, version {__version__}")
        context.exit()


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "show_default": True}
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version and exit.",
)
def group() -> None:
    """Measure secure aggregation and private federated learning over MPI.

    Rank 0 is the server, the others hold devices. One process alone plays all of them.

    \b
    Examples:
      mpirun -n 101 hpcfl bench sparse       SparseSecAgg with 100 devices
      mpirun -n 101 hpcfl bench secagg       the baseline it is compared with
      hpcfl bench secagg --devices 20        in one process, without MPI
      hpcfl train fedavg --devices 20        a model on scikit-learn's digits
      hpcfl report results/                  all results side by side
      hpcfl plot results/ --kind accuracy    what training reached
      hpcfl doctor                           is MPI set up?
    """


def main() -> None:
    """Run the command line.

    Exit status: 0 done, 1 failed, 2 wrong use, 3 a regression found by `compare`, 75 stopped by a
    signal but resumable, 130 interrupted.
    """
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _say
            status = group.main(prog_name="hpcfl", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        if launch.guess_rank() == 0:
            error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code)
    except HpcflError as error:
        _fail(str(error), error.exit_status)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(130)
    except (Exception, SystemExit) as error:
        known = explained(error)
        if known is not None:
            _fail(str(known), known.exit_status)
        if not isinstance(error, SystemExit):
            from hpcfl.comm.ending import crash

            crash()
        raise
    sys.exit(status if isinstance(status, int) else 0)


def _say(message: Warning | str, category: type[Warning], *where: object, **more: object) -> None:
    """Print a package's warning in one line, without the line of code that caused it."""
    words = " ".join(str(message).split())
    if issubclass(category, RuntimeWarning):
        words = f"numbers are too large, too small or missing, and so may be results ({words})"
    if launch.guess_rank() == 0:
        click.echo(f"warning: {words}", err=True)


def _fail(message: str, status: int) -> None:
    from hpcfl.comm.ending import fail

    fail(message, status)
