"""`hpcfl netlab`: run on one machine with a shaped link for every device."""

from __future__ import annotations

import sys

import click

from hpcfl.cli.options import Command, option
from hpcfl.errors import UsageError


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
@option("--dry-run", is_flag=True, help="Print the script that makes the lab; run nothing.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND [OPTIONS]")
def command(
    hosts: int,
    rate: str,
    latency: str,
    downlink_rate: str | None,
    server_rate: str | None,
    dry_run: bool,
    arguments: tuple[str, ...],
) -> int:
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
      hpcfl netlab --hosts 10 --rate 10mbit --downlink-rate 50mbit -- bench sparse
      hpcfl netlab --hosts 2 --dry-run -- bench sparse
    """
    from hpcfl.netlab import lab
    from hpcfl.netlab.links import Link, parse_rate, parse_seconds

    if not arguments or arguments[0] not in ("bench", "train", "sweep"):
        raise UsageError(
            "after -- comes what to run in the lab, one of bench, train and sweep: "
            "hpcfl netlab --hosts 25 --rate 100mbit -- bench sparse"
        )
    delay = parse_seconds(latency, "--latency")
    asked = lab.Lab(
        hosts,
        Link(parse_rate(rate, "--rate"), delay),
        Link(parse_rate(downlink_rate or rate, "--downlink-rate"), delay),
        Link(parse_rate(server_rate, "--server-rate")) if server_rate else None,
    )
    program = [sys.executable, "-m", "hpcfl", *arguments]
    if not dry_run:
        return lab.run(asked, program)
    click.echo(f"# read by: {lab.ISOLATED}")
    click.echo(lab.script(asked, "mpirun", program), nl=False)
    return 0
