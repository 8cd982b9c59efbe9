"""What `hpcfl netlab` does: a lab, and in it a run or a check of the lab itself."""

from __future__ import annotations

from collections.abc import Sequence

from hpcfl.errors import UsageError
from hpcfl.netlab import lab, launcher, requirements
from hpcfl.netlab.links import Link, parse_rate, parse_seconds
from hpcfl.netlab.plan import LabPlan, free_network
from hpcfl.netlab.probe import Transfer, probe


def plan(
    hosts: int,
    rate: str,
    latency: str,
    downlink_rate: str | None,
    server_rate: str | None,
) -> LabPlan:
    """Return the plan of this process's lab; see ``hpcfl netlab --help``."""
    delay = parse_seconds(latency, "--latency")
    uplink = Link(parse_rate(rate, "--rate"), delay)
    downlink = uplink
    if downlink_rate is not None:
        downlink = Link(parse_rate(downlink_rate, "--downlink-rate"), delay)
    server = None if server_rate is None else Link(parse_rate(server_rate, "--server-rate"))
    chosen = free_network(lab.used_networks())
    return LabPlan.star(hosts, uplink, downlink, server, lab.my_owner_name(), chosen)


def run(plan: LabPlan, arguments: Sequence[str]) -> int:
    """Run `hpcfl` with some arguments in a lab; return its exit status."""
    requirements.check_machine()
    mpirun = requirements.check_launcher()
    with lab.lab(plan):
        return launcher.run(plan, mpirun, arguments)


def check(plan: LabPlan) -> list[Transfer]:
    """Return how long transfers of known size take in a lab."""
    requirements.check_machine()
    with lab.lab(plan):
        return probe(plan)


def check_arguments(arguments: Sequence[str]) -> None:
    """Refuse what does not move messages between ranks."""
    if not arguments or arguments[0] not in launcher.COMMANDS:
        raise UsageError(
            f"after -- comes what to run in the lab, one of {', '.join(launcher.COMMANDS)}: "
            "hpcfl netlab --hosts 25 --rate 100mbit -- bench sparse"
        )


def commands(plan: LabPlan, arguments: Sequence[str]) -> list[str]:
    """Return, as lines of a shell, what would be run."""
    import shlex

    lines = []
    for namespace, group in plan.build():
        inside = f"ip netns exec {namespace} " if namespace else ""
        lines += [inside + shlex.join(command) for command in group]
    if arguments:
        check_arguments(arguments)
        lines.append(shlex.join(launcher.launch_command(plan, "mpirun", arguments)))
    return lines
