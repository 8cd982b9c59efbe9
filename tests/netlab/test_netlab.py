"""Plans of labs, the commands that start ranks in them, and real labs, which need root."""

import contextlib
import ipaddress
import json
import os
import shlex
import signal
import subprocess
import time

import pytest
from click.testing import CliRunner
from labs import hpcfl, star

from hpcfl.benchmark import experiment as benchmark
from hpcfl.cli import group
from hpcfl.errors import HpcflError, UsageError
from hpcfl.netlab import lab, launcher
from hpcfl.netlab.links import FRAME_BYTES, Link, mtu_bytes, parse_rate, parse_seconds
from hpcfl.netlab.plan import NETWORKS, LabPlan, free_network, owner_name, owner_of
from hpcfl.results import load
from hpcfl.system import launch

LIMIT_SECONDS = 200


def test_rates_and_latencies_are_those_of_tc():
    assert [parse_rate(text, "--x") for text in ("100mbit", "500kbit", "1.5Gbit")] == [
        1e8,
        5e5,
        1.5e9,
    ]
    assert [parse_seconds(text, "--x") for text in ("10ms", "500us", "0")] == [0.01, 5e-4, 0]
    for parse, texts in (
        (parse_rate, ("100", "fast", "100mbps", "-1mbit", "", "1bit", "900gbit")),
        (parse_seconds, ("10", "ms", "-1ms", "60s")),
    ):
        for text in texts:
            with pytest.raises(UsageError, match="--x must be"):
                parse(text, "--x")


def test_a_link_is_a_token_bucket_of_a_millisecond_with_a_delay_inside():
    plain, delayed = Link(1e8, 0.02).shape("d3")

    assert plain == shlex.split(
        "tc qdisc add dev d3 root handle 1: tbf rate 100000000bit burst 12500 limit 1250000"
    )
    assert delayed[:12] == shlex.split(
        "tc qdisc add dev d3 parent 1:1 handle 10: netem delay 20000us"
    )
    assert int(delayed[13]) * FRAME_BYTES >= 1_250_000 + 1e8 / 8 * 0.02
    assert Link(1e5).burst_bytes == 2 * FRAME_BYTES  # a slow link still lets two frames pass
    for rate, mtu in ((1e5, 1500), (1e8, 6236), (1e9, 9000)):
        assert mtu_bytes([Link(1e10), Link(rate)]) == mtu


def test_a_plan_gives_every_host_a_namespace_an_address_and_a_shaped_cable():
    plan = star(30, Link(1e7), Link(5e7), server=Link(1e9))
    ((outside, made), (bridge, cables), *_) = plan.build()
    network = ipaddress.ip_network(plan.network)

    assert outside == ""
    assert all(command[:3] == ["ip", "netns", "add"] for command in made)
    assert {command[-1] for command in made} == {bridge, *(host.namespace for host in plan.hosts)}
    assert all(host.namespace.startswith("hpcfl-netlab-7-9-") for host in plan.hosts)
    assert len({host.address for host in plan.hosts}) == len({h.name for h in plan.hosts}) == 31
    assert all(ipaddress.ip_address(host.address) in network for host in plan.hosts)
    pairs = [command for command in cables if "veth" in command]
    assert [command[-1] for command in pairs] == [host.namespace for host in plan.hosts]
    assert max(len(command[4]) for command in pairs) <= 15  # as names of network devices have
    rates = {}
    for namespace, commands in plan.build():
        for command in commands:
            if "tbf" in command:
                rates[namespace, command[4]] = command[command.index("rate") + 1]
    assert rates[plan.devices[3].namespace, "eth0"] == "10000000bit"
    assert rates[bridge, "d3"] == "50000000bit"
    assert rates[plan.server.namespace, "eth0"] == rates[bridge, "server"] == "1000000000bit"
    assert len(rates) == 62
    with pytest.raises(UsageError, match="--hosts must be from 1 to 1000"):
        star(1001)


def test_names_and_networks_of_others_are_left_alone():
    assert owner_of(owner_name(12, 345) + "device3") == (12, 345)
    assert owner_of("hpcfl-netlab-x-device3") is None
    assert free_network(["192.0.2.0/24", "198.18.5.1/24"]) == NETWORKS[1]
    with pytest.raises(UsageError, match="uses addresses of all"):
        free_network(["0.0.0.0/0"])


def test_mpirun_starts_one_rank_on_every_host_and_tells_it_of_its_links(tmp_path, monkeypatch):
    plan, given = star(2, Link(1e7, 0.01), Link(8e7, 0.01)), ["bench", "sparse", "--output", "a'b"]
    command = launcher.launch_command(plan, "/opt/mpirun", given)
    words = shlex.split(command[-1].removeprefix("hostname server; exec "))

    assert command[:6] == ["ip", "netns", "exec", "hpcfl-netlab-7-9-server", "unshare", "--uts"]
    assert words[:3] == ["/opt/mpirun", "-n", "3"]
    assert words[-6:] == ["-m", "hpcfl", *given]
    assert "--mca btl_tcp_if_include 198.18.0.0/16" in " ".join(words)
    assert launcher.hostfile(plan).splitlines() == [f"198.18.0.{n} slots=1" for n in (1, 2, 3)]

    (tmp_path / "agent").write_text(launcher.agent(plan))
    (tmp_path / "ip").write_text('#!/bin/sh\nfor word; do echo "$word"; done\n')
    (tmp_path / "ip").chmod(0o755)
    agent = ["sh", str(tmp_path / "agent"), "198.18.0.3", "prted", "--daemon"]
    path = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(agent, env=path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        *("netns", "exec", "hpcfl-netlab-7-9-device1", "unshare", "--uts", "sh", "-c"),
        "hostname device1; prted --daemon",
    ]

    variables = launcher.launch_environment(plan, {})
    monkeypatch.setenv(launch.NETLAB_VARIABLE, variables[launch.NETLAB_VARIABLE])
    assert launch.netlab_facts() == json.loads(json.dumps(plan.facts()))
    found = benchmark.asked({"protocol": "secagg"})
    assert (found.uplink_mbps, found.downlink_mbps, found.latency_ms) == (10, 80, 10)


def test_wrong_use_is_refused_and_a_dry_run_prints_the_commands(monkeypatch):
    monkeypatch.setattr(lab, "used_networks", lambda: ["198.18.0.0/16"])
    for arguments, words in (
        ("--hosts 0 -- bench sparse", "--hosts must be"),
        ("--hosts 2 --downlink-rate 1 -- bench", "--downlink-rate must be"),
        ("--hosts 2 -- report x", "comes what to run in the lab"),
    ):
        result = CliRunner().invoke(group, ["netlab", *arguments.split()])
        assert words in str(result.exception)
    dry = CliRunner().invoke(group, shlex.split("netlab --hosts 2 --dry-run -- bench sparse"))
    assert dry.output.splitlines()[0].startswith("ip netns add ")
    assert dry.output.splitlines()[-1].endswith("hpcfl bench sparse'")
    assert sum(" tbf " in line for line in dry.output.splitlines()) == 4
    monkeypatch.setattr(launcher.os, "geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="needs Linux and root"):
        launcher.check_machine()


def finish(job):
    try:
        return job.communicate(timeout=LIMIT_SECONDS)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGTERM)  # so that it takes its lab down


@pytest.mark.full
@pytest.mark.usefixtures("needs_lab")
def test_a_bench_in_a_lab_says_so_and_takes_what_its_links_take(tmp_path):
    path = tmp_path / "lab.h5"
    bench = ("fedavg", "--dim", 100_000, "--dropout", 0, "--rounds", 2, "--warmup", 0)
    links = ("--rate", "16mbit", "--downlink-rate", "8mbit")
    job = hpcfl("netlab", "--hosts", 3, *links, "--", "bench", *bench, "--output", path)
    _, errors = finish(job)

    assert job.returncode == 0, errors
    run = load(path)
    assert run.validated.all()
    assert run.environment["transport"] == "netlab"
    assert run.environment["netlab_uplink_mbps"] == 16
    assert run.environment["hosts"] == ["server", "device0", "device1", "device2"]
    # 0.4 MB down, then 0.4 MB up; the links are a lower bound, which no load can break.
    assert run.round_seconds.min() >= 0.9 * (8 * 400_000 / 8e6 + 8 * 400_000 / 16e6)
    failed = hpcfl("netlab", "--hosts", 1, "--", "bench", "nonsense")
    assert "nonsense" in finish(failed)[1]
    assert failed.returncode == 2


@pytest.mark.full
@pytest.mark.usefixtures("needs_lab")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_ended_run_leaves_nothing_once_the_next_has_begun(number, tmp_path):
    path = tmp_path / "long.h5"
    bench = ("fedavg", "--dim", 100_000, "--dropout", 0, "--rounds", 100_000, "--output", path)
    job = hpcfl("netlab", "--hosts", 2, "--rate", "16mbit", "--", "bench", *bench)
    end = time.monotonic() + LIMIT_SECONDS
    while not path.exists() and job.poll() is None and time.monotonic() < end:
        time.sleep(0.1)
    prefix = f"hpcfl-netlab-{job.pid}-"
    started = any(name.startswith(prefix) for name in os.listdir(lab.NAMESPACES))
    job.send_signal(number)
    _, errors = finish(job)
    assert started
    if number == signal.SIGINT:
        assert job.returncode == 128 + number
        assert "interrupted by SIGINT" in errors
    else:
        assert any(one.startswith(prefix) for one in lab.sweep())
    assert not any(name.startswith(prefix) for name in lab._names())


@pytest.mark.full
@pytest.mark.usefixtures("needs_lab")
def test_a_lab_is_taken_down_with_all_that_runs_in_it(monkeypatch):
    plan = star(2, owner=lab.my_owner_name())
    with lab.lab(plan):
        stubborn = "trap '' TERM; echo ready; while :; do sleep 1; done"
        inside = ["ip", "netns", "exec", plan.devices[0].namespace, "sh", "-c", stubborn]
        process = subprocess.Popen(inside, stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "ready\n"
    assert process.wait(10) == -signal.SIGKILL
    groups = [*plan.build(), (plan.server.namespace, [["ip", "link", "set", "no0", "up"]])]
    monkeypatch.setattr(LabPlan, "build", lambda self: groups)
    with pytest.raises(HpcflError, match=r"cannot be built.*no0"), lab.lab(plan):
        pytest.fail("it was built")
    assert [name for name in lab._names() if name.startswith(plan.owner)] == []
