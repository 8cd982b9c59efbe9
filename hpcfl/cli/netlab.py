"""`hpcfl netlab`: run on one machine with a shaped link for every device."""

from __future__ import annotations

from typing import Any

import click

from hpcfl.cli.options import Command, option


@click.command("netlab", cls=Command, context_settings={"allow_interspersed_args": False})
@option(
    "--hosts", type=int, metavar="HOSTS", required=True, help="Hosts, each with a rank of devices."
)
@option(
    "--rate", metavar="RATE", default="100mbit", help="Rate of a device's link in each direction."
)
@option(
    "--latency",
    metavar="TIME",
    default="0",
    show_default=False,
    help="One-way delay of a device's link, such as 10ms.  [default: none]",
)
@option("--downlink-rate", metavar="RATE", help="Rate of a device's downlink.  [default: --rate]")
@option("--server-rate", metavar="RATE", help="Rate of the server's link.  [default: not shaped]")
@option("--check", is_flag=True, help="Time transfers of known size instead of a run.")
@option("--dry-run", is_flag=True, help="Print the commands instead of running them.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND [OPTIONS]")
def command(check: bool, dry_run: bool, arguments: tuple[str, ...], **about: Any) -> int:
    """Run bench, train or sweep over links such as devices have. Linux only, as root.

    Every device, and the server, gets a network namespace, a host name and a cable to a bridge;
    token-bucket filters shape both directions of a device's link. Open MPI's mpirun starts one rank
    in each and they talk over TCP. Everything is removed at the end, also after Ctrl-C. Results say
    transport netlab; their round seconds are measured, at that rate.

    The exit status is that of the run.

    \b
    Examples:
      hpcfl netlab --hosts 25 --rate 100mbit -- bench sparse
      hpcfl netlab --hosts 10 --rate 20mbit --latency 15ms -- train fedavg
      hpcfl netlab --hosts 25 --rate 100mbit --check
      hpcfl netlab --hosts 2 --dry-run -- bench sparse
    """
    from hpcfl.errors import UsageError
    from hpcfl.netlab import session

    if check and arguments:
        raise UsageError("--check times transfers and runs nothing else: leave the command out")
    if check and dry_run:
        raise UsageError("give only one of --check and --dry-run")
    if not (check or dry_run):
        session.check_arguments(arguments)
    plan = session.plan(**about)
    if dry_run:
        for line in session.commands(plan, arguments):
            click.echo(line)
        return 0
    if not check:
        return session.run(plan, arguments)

    click.echo("device      direction      bytes   seconds   size/rate   ratio")
    for done in session.check(plan):
        click.echo(
            f"{done.device:<11} {done.direction:<9} {done.size_bytes:>10} {done.seconds:9.4f} "
            f"{done.ideal_seconds:11.4f} {done.seconds / done.ideal_seconds:7.3f}"
        )
    return 0
