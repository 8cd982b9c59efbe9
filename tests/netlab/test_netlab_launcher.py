import os
import re
import shlex
import subprocess

import pytest
from click.testing import CliRunner
from labs import star

from hpcfl.benchmark import experiment as benchmark
from hpcfl.cli import group
from hpcfl.errors import UsageError
from hpcfl.netlab import launcher, requirements, session
from hpcfl.netlab.links import Link
from hpcfl.system import environment, launch, machine
from hpcfl.system.doctor import Implementation
from hpcfl.training import defaults as training
from hpcfl.training.presets import PRESETS


def test_mpirun_starts_one_rank_on_every_host_and_they_talk_over_the_labs_network():
    given = ["bench", "sparse", "--output", "my results/a'b.h5"]
    command = launcher.launch_command(star(3), "/opt/mpirun", given)
    hostname, run = command[-1].split("; exec ")
    words = shlex.split(run)
    chosen = {
        name: value
        for kind, name, value in zip(words, words[1:], words[2:], strict=False)
        if kind in ("--mca", "--prtemca")
    }

    assert command[:6] == ["ip", "netns", "exec", "hpcfl-netlab-7-9-server", "unshare", "--uts"]
    assert hostname == "hostname server"
    assert words[:3] == ["/opt/mpirun", "-n", "4"]
    assert words[-6:] == ["-m", "hpcfl", *given]
    assert launcher.hostfile(star(2)).splitlines() == [
        f"198.18.0.{number} slots=1" for number in (1, 2, 3)
    ]
    assert chosen["btl"] == "tcp,self"
    assert chosen["btl_tcp_if_include"] == chosen["prte_if_include"] == "198.18.0.0/16"
    assert chosen["plm_ssh_no_tree_spawn"] == "1"


def test_the_agent_enters_the_hosts_namespace_with_a_name_of_its_own(tmp_path):
    (tmp_path / "agent").write_text(launcher.agent(star()))
    (tmp_path / "ip").write_text('#!/bin/sh\nfor word; do echo "$word"; done\n')
    (tmp_path / "ip").chmod(0o755)

    def call(*words):
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        command = ["sh", str(tmp_path / "agent"), *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    assert call("198.18.0.3", "PATH=/x:$PATH", "prted", "--daemon").stdout.splitlines() == [
        *("netns", "exec", "hpcfl-netlab-7-9-device1", "unshare", "--uts", "sh", "-c"),
        "hostname device1; PATH=/x:$PATH prted --daemon",
    ]
    other = call("192.0.2.1", "true")
    assert other.returncode == 255
    assert "no host 192.0.2.1 in this lab" in other.stderr


def test_ranks_are_told_of_their_links(monkeypatch):
    plan = star(2, Link(1e7))
    variables = launcher.launch_environment(plan, {"HOME": "/x"})
    monkeypatch.setenv(launch.NETLAB_VARIABLE, variables[launch.NETLAB_VARIABLE])

    assert variables["HOME"] == "/x"
    assert launch.netlab_facts() == plan.facts()
    link = launch.netlab_link()
    assert (link["uplink_mbps"], link["downlink_mbps"]) == (10, 10)
    # Helpers are hosts of the lab too.
    assert link["helper_mbps"] == 10
    monkeypatch.delenv(launch.NETLAB_VARIABLE)
    assert launch.netlab_facts() == {}


def test_all_ranks_of_a_lab_share_this_machines_cores(monkeypatch):
    monkeypatch.setattr(machine, "usable", lambda _: 2)
    hosts = [(name, (0, 1)) for name in ("server", "device0", "device1", "device2")]

    lab = environment.capture({"transport": "netlab"}, hosts)
    cluster = environment.capture({"transport": "mpi"}, hosts)
    assert (lab["oversubscription_ratio"], cluster["oversubscription_ratio"]) == (2.0, 0.5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--hosts 0 -- bench sparse", "--hosts must be"),
        ("--hosts 2 --rate fast -- bench sparse", "--rate must be"),
        ("--hosts 2 --downlink-rate 1 -- bench", "--downlink-rate must be"),
        ("--hosts 2 --server-rate 1 -- bench", "--server-rate must be"),
        ("--hosts 2 --latency 5 -- bench", "--latency must be"),
        ("--hosts 2", "comes what to run in the lab, one of bench"),
        ("--hosts 2 -- report x", "comes what to run in the lab, one of bench"),
        ("--hosts 2 --check -- bench sparse", "--check times transfers"),
    ],
)
def test_wrong_use_is_refused(arguments, words):
    result = CliRunner().invoke(group, ["netlab", *arguments.split()])

    assert isinstance(result.exception, UsageError)
    assert words in str(result.exception)


@pytest.mark.parametrize(
    ("system", "user", "missing", "rank", "words"),
    [
        ("Darwin", 0, "", "", r"this is Darwin: use a Linux machine, or .*--uplink-mbps"),
        ("Linux", 1000, "", "", r"must be root: sudo env PATH"),
        ("Linux", 0, "ip", "", "needs the command ip: install iproute2"),
        ("Linux", 0, "tc", "", "needs the command tc: install iproute2"),
        ("Linux", 0, "", "0", "call it without a launcher"),
    ],
)
def test_a_machine_that_cannot_have_a_lab_is_refused(
    monkeypatch, system, user, missing, rank, words
):
    monkeypatch.setattr(requirements.platform, "system", lambda: system)
    monkeypatch.setattr(requirements.os, "geteuid", lambda: user)
    monkeypatch.setattr(requirements.shutil, "which", lambda name: {missing: None}.get(name, name))
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", rank)

    with pytest.raises(UsageError, match=words):
        requirements.check_machine()


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (None, "there is none on PATH"),
        (Implementation("MPICH", "4.2", "/x/mpirun"), "/x/mpirun is MPICH 4.2"),
        (Implementation("Open MPI", "4.1.6", "/x/mpirun"), "is Open MPI 4.1.6"),
    ],
)
def test_other_launchers_are_refused(monkeypatch, found, words):
    monkeypatch.setattr("hpcfl.system.doctor.find_launcher", lambda: found)

    with pytest.raises(UsageError, match=re.escape(words)):
        requirements.check_launcher()


@pytest.mark.parametrize(
    ("failing", "words"),
    [
        ("netns add", "make network namespaces: no; in a container, start it with --privileged"),
        ("veth", "modprobe veth"),
        ("bridge", "modprobe bridge"),
        ("tbf", "modprobe sch_tbf"),
        ("netem", "modprobe sch_netem; or leave --latency out"),
    ],
)
def test_what_a_kernel_lacks_is_named(monkeypatch, failing, words):
    def run(command, **options):
        fails = failing in " ".join(command)
        return subprocess.CompletedProcess(command, int(fails), "", "no\n" if fails else "")

    monkeypatch.setattr(requirements.subprocess, "run", run)

    with pytest.raises(UsageError, match=re.escape(words)):
        requirements.check_kernel("trial", Link(1e8, 0.01))


def test_a_dry_run_prints_what_would_be_run(monkeypatch):
    monkeypatch.setattr(session.lab, "used_networks", lambda: ["198.18.0.0/16"])
    result = CliRunner().invoke(
        group, ["netlab", "--hosts", "2", "--dry-run", "--", "bench", "sparse", "--dim", "10"]
    )

    lines = result.output.splitlines()
    assert result.exit_code == 0
    assert lines[0].startswith("ip netns add ")
    assert sum(" tbf " in line for line in lines) == 4
    assert "198.19.0.2/16" in result.output
    assert lines[-1].endswith("hpcfl bench sparse --dim 10'")


def test_seconds_are_modelled_over_the_links_of_the_lab(monkeypatch):
    plan = star(2, Link(50e6, 0.015), Link(80e6, 0.015))
    monkeypatch.setenv(
        launch.NETLAB_VARIABLE, launcher.launch_environment(plan, {})[launch.NETLAB_VARIABLE]
    )
    asked = {
        "bench": (benchmark.asked, {"protocol": "secagg"}),
        "train": (training.asked, {"algorithm": "fedavg"}),
    }

    for ask, what in asked.values():
        found = ask(what)
        assert (found.uplink_mbps, found.downlink_mbps, found.latency_ms) == (50, 80, 15)
        # What is typed is meant.
        assert ask(what | {"uplink_mbps": 5}).uplink_mbps == 5
    preset = next(iter(PRESETS))
    assert training.asked({"algorithm": "fedavg"}, preset).uplink_mbps == 50
