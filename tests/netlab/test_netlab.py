"""The script of a lab, and real labs, which need root."""

import json
import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest
from commandline import invoke
from labs import hpcfl, star

from hpcfl.benchmark import experiment as benchmark
from hpcfl.errors import UsageError
from hpcfl.netlab import lab
from hpcfl.netlab.lab import FRAME_BYTES, Link
from hpcfl.results import load
from hpcfl.system import launch

LIMIT_SECONDS = 200


def test_a_link_is_a_token_bucket_of_a_millisecond_with_a_delay_inside():
    plain, delayed = Link(1e8, 0.02).shape("tc -n x", "d3")

    assert plain == (
        "tc -n x qdisc add dev d3 root handle 1: tbf rate 100000000bit burst 12500 limit 1250000"
    )
    before, _, limit = delayed.rpartition(" ")
    assert before == "tc -n x qdisc add dev d3 parent 1:1 handle 10: netem delay 20000us limit"
    assert int(limit) * FRAME_BYTES >= 1_250_000 + 1e8 / 8 * 0.02
    assert Link(1e5).burst_bytes == 2 * FRAME_BYTES  # a slow link still lets two frames pass
    for rate, mtu in ((1e5, 1500), (1e8, 6236), (1e9, 9000)):
        assert star(1, Link(1e10), Link(rate)).mtu_bytes == mtu


def test_the_script_gives_every_host_a_namespace_an_address_and_a_shaped_cable():
    asked = star(30, Link(1e7), Link(5e7), server=Link(1e9))
    built = lab.script(asked, "/opt/mpirun", ["hpcfl", "bench", "--output", "a'b"])
    names = ["server", *(f"device{id}" for id in range(30))]

    assert re.findall(r"^ip netns add (\S+)$", built, re.MULTILINE) == names
    addresses = re.findall(r"^ip -n (\S+) address add (\S+)/16 dev eth0$", built, re.MULTILINE)
    assert addresses == [(name, f"198.18.0.{k}") for k, name in enumerate(names, 1)]
    hosts = [f"198.18.0.{k} slots=1" for k in range(1, 32)]
    assert "\n".join(["<<'END'", *hosts, "END"]) in built
    shaped = re.findall(r"^tc(?: -n (\S+))? qdisc add dev (\S+) .*rate (\d+)bit", built, re.M)
    rates = {place: int(rate) for *place, rate in shaped for place in [tuple(place)]}
    assert len(rates) == 62
    assert rates["device3", "eth0"] == 1e7
    assert rates["", "d3"] == 5e7
    assert rates["server", "eth0"] == rates["", "server"] == 1e9
    inside = shlex.split(built.splitlines()[-1])[-3].removeprefix("hostname server; exec ")
    words = shlex.split(inside)
    assert words[:3] == ["/opt/mpirun", "-n", "31"]
    assert "--mca btl_tcp_if_include 198.18.0.0/16" in " ".join(words)
    assert words[-4:] == ["hpcfl", "bench", "--output", "a'b"]


def test_mpirun_enters_a_host_by_its_address_and_ranks_know_their_links(tmp_path, monkeypatch):
    asked = star(2, Link(1e7, 0.01), Link(8e7, 0.01))
    (tmp_path / "agent").write_text(lab.agent(asked))
    (tmp_path / "ip").write_text('#!/bin/sh\nfor word; do echo "$word"; done\n')
    (tmp_path / "ip").chmod(0o755)
    agent = ["sh", str(tmp_path / "agent"), "198.18.0.3", "prted", "--daemon"]
    path = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(agent, env=path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        *("netns", "exec", "device1", "unshare", "--uts", "sh", "-c"),
        "hostname device1; prted --daemon",
    ]

    variable = launch.NETLAB_VARIABLE
    monkeypatch.setenv(variable, lab.variables(asked)[variable])
    assert launch.netlab_facts() == json.loads(json.dumps(asked.facts()))
    found = benchmark.asked({"protocol": "secagg"})
    assert (found.uplink_mbps, found.downlink_mbps, found.latency_ms) == (10, 80, 10)


def test_wrong_use_is_refused_and_a_dry_run_prints_the_script(monkeypatch):
    result = invoke("netlab", "--hosts", 2, "--", "report", "x")
    assert "give what to run in the lab" in str(result.exception)
    links = "--uplink-mbps 20 --downlink-mbps 50 --latency-ms 10"
    dry = invoke(*f"netlab --hosts 2 {links} --dry-run -- bench sparse".split())
    assert dry.output.startswith(f"# read by: {lab.ISOLATED}\n")
    assert "hpcfl bench sparse" in dry.output.splitlines()[-1]
    assert "dev d1 root handle 1: tbf rate 50000000bit" in dry.output
    assert "dev eth0 root handle 1: tbf rate 20000000bit" in dry.output
    assert "delay 10000us" in dry.output
    monkeypatch.setattr(lab.os, "geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="needs Linux and root"):
        lab.check_machine()


@pytest.mark.full
@pytest.mark.usefixtures("needs_lab")
def test_a_bench_in_a_lab_says_so_and_takes_what_its_links_take(tmp_path):
    path = tmp_path / "lab.h5"
    bench = ("fedavg", "--dim", 100_000, "--dropout", 0, "--rounds", 2, "--warmup", 0)
    links = ("--uplink-mbps", 16, "--downlink-mbps", 8)
    job = hpcfl("netlab", "--hosts", 3, *links, "--", "bench", *bench, "--output", path)
    _, errors = job.communicate(timeout=LIMIT_SECONDS)

    assert job.returncode == 0, errors
    run = load(path)
    assert run.validated.all()
    assert run.environment["transport"] == "netlab"
    assert run.environment["netlab_uplink_mbps"] == 16
    assert run.environment["hosts"] == ["server", "device0", "device1", "device2"]
    # 0.4 MB down, then 0.4 MB up; the links are a lower bound, which no load can break.
    assert run.round_seconds.min() >= 0.9 * (8 * 400_000 / 8e6 + 8 * 400_000 / 16e6)
    failed = hpcfl("netlab", "--hosts", 1, "--", "bench", "nonsense")
    assert "nonsense" in failed.communicate(timeout=LIMIT_SECONDS)[1]
    assert failed.returncode == 2


@pytest.mark.full
@pytest.mark.usefixtures("needs_lab")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_whatever_ends_a_lab_nothing_of_it_is_left(number, tmp_path):
    path = tmp_path / "long.h5"
    bench = ("fedavg", "--dim", 100_000, "--dropout", 0, "--rounds", 100_000, "--output", path)
    job = hpcfl("netlab", "--hosts", 2, "--uplink-mbps", 16, "--", "bench", *bench)
    end = time.monotonic() + LIMIT_SECONDS
    while not path.exists() and job.poll() is None and time.monotonic() < end:
        time.sleep(0.1)
    running = in_it(path)
    job.send_signal(number)
    job.wait(LIMIT_SECONDS)

    assert len(running) >= 3
    assert job.returncode == (130 if number == signal.SIGINT else -number)
    while in_it(path) and time.monotonic() < end:
        time.sleep(0.1)
    assert not in_it(path)
    assert not {*Path("/run/netns").glob("device*")}


def in_it(path):
    """Return the processes that were started to write a results file."""
    lines = subprocess.check_output(["ps", "-eww", "-o", "args="], text=True).splitlines()
    return [line for line in lines if f"{path}" in line and "hpcfl netlab" not in line]


@pytest.mark.full
@pytest.mark.usefixtures("needs_lab")
def test_what_cannot_be_built_is_said(monkeypatch, capfd):
    monkeypatch.setattr(Link, "shape", lambda link, tc, device: ["ip link set no0 up"])

    assert lab.run(star(), ["true"]) != 0
    assert '"no0"' in (said := capfd.readouterr().err)
    assert "the lab cannot be built" in said
