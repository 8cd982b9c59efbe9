"""Commands about this machine: `hpcfl doctor`, `hpcfl data` and `hpcfl netlab`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from hpcfl.cli.options import PLACE, Command, Group
from hpcfl.cli.terminal import alone, json_option
from hpcfl.errors import UsageError

MOST_HOSTS = 1000  # of a netlab; a Linux bridge has 1024 ports
RATE = click.FloatRange(0.1, 100_000)


@click.command("doctor", cls=Command)
@click.option("--fix", is_flag=True, help="Let the embedded mpirun start more ranks than cores.")
@json_option
def doctor(fix: bool, as_json: bool) -> None:
    """Check MPI and everything else that hpcfl needs, and say what to do.

    The exit status is 0 if there is no problem; warnings do not count.
    """
    from hpcfl.system import doctor, launch
    from hpcfl.system.mpiconfig import allow_oversubscription

    if (launch.guess_size() or 1) > 1:
        raise UsageError("hpcfl doctor starts mpirun by itself: call it without a launcher")
    if fix:
        changed = allow_oversubscription(Path(sys.prefix))
        for path in changed:
            click.echo(f"fixed: {path}", err=as_json)
        if not changed:
            click.echo("nothing to fix: mpirun's settings are made", err=as_json)
    checks = []
    for check in doctor.examine():
        checks.append(check)
        if not as_json:
            click.echo(f"{check.status:<8} {check.name:<17} {check.found}")
    problems = sum(check.status == doctor.PROBLEM for check in checks)
    if as_json:
        found = {"problems": problems, "checks": [vars(check) for check in checks]}
        click.echo(json.dumps(found, indent=2))
    else:
        remedies = [check for check in checks if check.remedy]
        click.echo("\nTo do:" if remedies else "\nEverything is as it should be.")
        for number, check in enumerate(remedies, 1):
            click.echo(f"  {number}. {check.name}: {check.remedy}")
    if problems:
        sys.exit(1)


@click.group("data", cls=Group)
def data() -> None:
    """Get data sets to train on, and see populations of devices."""


@data.command("fetch")
@click.argument("name", metavar="NAME")
@click.option("--data-dir", type=PLACE, help="Folder of the data sets.  [default: $HPCFL_DATA]")
@click.option("--base-url", metavar="URL", help="Mirror that has the files at URL/FILE.")
@alone
def fetch(name: str, data_dir: Path | None, base_url: str | None) -> None:
    """Download a data set: mnist, cifar10 or adult.

    Checksums ensure that the files are the publisher's own. Files that exist are not downloaded
    again. The sets digits and synthetic need no files; for femnist, the command says how to make
    it.

    \b
    Examples:
      hpcfl data fetch mnist --data-dir ~/data
    """
    from hpcfl.learning.fetch import fetch as fetch_files

    for path in fetch_files(name, data_dir, base_url, progress=sys.stderr.isatty()):
        click.echo(path)


@data.command("population")
@click.argument("name", metavar="NAME|FILE")
@click.argument("availability", metavar="[FILE]", type=PLACE, required=False)
@click.option(
    "--output",
    type=PLACE,
    help="Write the table for --population (.csv), or draw it (.svg, .png, .pdf).",
)
@alone
def population(
    name: str,
    availability: Path | None,
    output: Path | None,
) -> None:
    """Print the quantiles of a population's links and processors.

    NAME is uniform, mobile, iot or silo, of which 10,000 devices are drawn. FILE is a table (.csv,
    .h5) with the columns uplink_mbps, downlink_mbps, latency_ms and compute (factor on CPU seconds
    measured here), or FedScale's file of client capacities; a second FILE then says when FedScale's
    or FLASH's clients are there. A table may say who is there when: mean_on_seconds and
    mean_off_seconds, or on_intervals, such as 0-3600;7200-9000, and period_seconds.

    \b
    Examples:
      hpcfl data population mobile
      hpcfl data population capacities availability --output phones.csv
    """
    from hpcfl.populations import population, traces
    from hpcfl.system import outputs

    drawn = output is not None and output.suffix.lower() in outputs.FIGURE.endings
    if output is not None:
        outputs.check(output, outputs.FIGURE if drawn else outputs.POPULATION)
    if name in population.NAMES or Path(name).suffix.lower() in (".csv", *outputs.HDF5):
        if availability is not None:
            raise UsageError("a second file goes with FedScale's file of capacities")
        known = population.load(name, None, seed=0)
        table = {column: getattr(known, column).tolist() for column in population.COLUMNS}
        if name not in population.NAMES:  # with the columns of availability
            table = population.read(Path(name))
    else:
        table = traces.table(Path(name), availability)
    click.echo(population.quantiles(table).text())
    if output is not None and drawn:
        from hpcfl.plots import populations, style

        style.save(populations.draw(name, table), output)
    elif output is not None:
        population.save(output, table)


@click.command("netlab", cls=Command, context_settings={"allow_interspersed_args": False})
@click.option(
    "--hosts",
    type=click.IntRange(1, MOST_HOSTS),
    required=True,
    help="Hosts, each with a rank of devices.",
)
@click.option(
    "--uplink-mbps", type=RATE, default=100.0, help="Rate of a device's uplink.", show_default=True
)
@click.option(
    "--downlink-mbps", type=RATE, help="Rate of a device's downlink.  [default: that of its uplink]"
)
@click.option(
    "--latency-ms",
    type=click.FloatRange(0, 10_000),
    default=0.0,
    help="One-way delay of a device's link.",
    show_default=True,
)
@click.option(
    "--population",
    metavar="NAME|FILE",
    help="Links of the hosts, in place of equal ones; see hpcfl data population.",
)
@click.option("--server-mbps", type=RATE, help="Rate of the server's link.  [default: not shaped]")
@click.option("--dry-run", is_flag=True, help="Print the script that makes the lab; run nothing.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND [OPTIONS]")
def netlab(
    hosts: int,
    uplink_mbps: float,
    downlink_mbps: float | None,
    latency_ms: float,
    population: str | None,
    server_mbps: float | None,
    dry_run: bool,
    arguments: tuple[str, ...],
) -> int:
    """Run bench, train or sweep over shaped links. Linux only, as root.

    Every device, and the server, gets a network namespace, a host name and a cable to a bridge;
    token-bucket filters shape both directions of a device's link. Open MPI's mpirun starts one rank
    in each and they talk over TCP. Everything is removed at the end, also after Ctrl-C. Results
    record the transport netlab; their round seconds are measured over these links.

    The exit status is that of the run.

    \b
    Examples:
      hpcfl netlab --hosts 25 -- bench sparse
      hpcfl netlab --hosts 10 --uplink-mbps 20 --latency-ms 15 -- train fedavg
    """
    from hpcfl.netlab import lab
    from hpcfl.netlab.lab import Link
    from hpcfl.options.shared import LinkOptions
    from hpcfl.populations.population import load

    if not arguments or arguments[0] not in ("bench", "train", "sweep"):
        raise UsageError(
            "give what to run in the lab after --, one of bench, train and sweep: "
            "hpcfl netlab --hosts 25 -- bench sparse"
        )
    down_mbps = downlink_mbps or uplink_mbps
    equal = LinkOptions(uplink_mbps=uplink_mbps, downlink_mbps=down_mbps, latency_ms=latency_ms)
    known = load(population or "uniform", hosts, 0, equal)
    columns = (known.uplink_mbps, known.downlink_mbps, known.latency_ms)
    links = [
        (Link(1e6 * up, 1e-3 * latency), Link(1e6 * down, 1e-3 * latency))
        for up, down, latency in zip(*(each.tolist() for each in columns), strict=True)
    ]
    asked = lab.Lab(links, Link(1e6 * server_mbps) if server_mbps else None)
    program = [sys.executable, "-m", "hpcfl", *arguments]
    if not dry_run:
        return lab.run(asked, program)
    click.echo(f"# read by: {lab.ISOLATED}")
    click.echo(lab.script(asked, "mpirun", program), nl=False)
    return 0
