import ipaddress
import json

import pytest
from labs import star

from hpcfl.errors import UsageError
from hpcfl.netlab.links import FRAME_BYTES, HEADER_BYTES, Link, mtu_bytes, parse_rate, parse_seconds
from hpcfl.netlab.plan import NETWORKS, free_network, owner_name, owner_of


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        *((parse_rate, "100mbit", 1e8), (parse_rate, "500kbit", 5e5)),
        *((parse_rate, "1.5Gbit", 1.5e9), (parse_rate, "200000bit", 2e5)),
        *((parse_seconds, "10ms", 0.01), (parse_seconds, "500us", 5e-4)),
        *((parse_seconds, "1s", 1), (parse_seconds, "0", 0)),
        *((parse_rate, text, None) for text in ("100", "fast", "100mbps", "-1mbit", "", "1bit")),
        *((parse_rate, "900gbit", None), (parse_seconds, "10", None), (parse_seconds, "ms", None)),
        *((parse_seconds, "-1ms", None), (parse_seconds, "60s", None)),
    ],
)
def test_rates_and_latencies_are_those_of_tc(parse, text, value):
    if value is None:
        with pytest.raises(UsageError, match="--option must be"):
            parse(text, "--option")
    else:
        assert parse(text, "--option") == pytest.approx(value)


def test_a_link_is_a_token_bucket_with_a_bucket_of_a_millisecond():
    [command] = Link(1e8).shape("eth0")

    assert command[:8] == ["tc", "qdisc", "add", "dev", "eth0", "root", "handle", "1:"]
    assert command[8:11] == ["tbf", "rate", "100000000bit"]
    assert command[11:] == ["burst", "12500", "limit", "1250000"]
    # A slow link still lets two frames pass.
    assert Link(1e5).burst_bytes == 2 * FRAME_BYTES


@pytest.mark.parametrize(("rate", "mtu"), [(1e5, 1500), (2e7, 1500), (1e8, 6236), (1e9, 9000)])
def test_frames_are_as_large_as_lets_two_pass_at_once(rate, mtu):
    assert mtu_bytes([Link(1e10), Link(rate)]) == mtu
    assert 2 * (mtu + HEADER_BYTES) <= Link(rate).burst_bytes


def test_every_cable_carries_frames_that_the_slowest_link_lets_pass():
    plan = star(2, Link(1e8), Link(1e9), server=Link(2e7))
    cables = [one for _, group in plan.build() for one in group if "veth" in one]

    assert len(cables) == 3
    assert all([*one].count("1500") == 2 for one in cables)


def test_latency_is_a_delay_inside_the_bucket_that_holds_what_is_on_its_way():
    plain, delayed = Link(1e8, 0.02).shape("d3")

    assert plain == Link(1e8).shape("d3")[0]
    assert delayed[:9] == ["tc", "qdisc", "add", "dev", "d3", "parent", "1:1", "handle", "10:"]
    assert delayed[9:12] == ["netem", "delay", "20000us"]
    assert int(delayed[13]) * FRAME_BYTES >= 1_250_000 + 1e8 / 8 * 0.02


def test_devices_send_through_their_own_end_and_receive_through_the_bridge_port():
    """The server is shaped only if asked."""
    for server in (None, Link(1e9)):
        plan = star(2, Link(1e7), Link(5e7), server=server)
        shaped = {
            (namespace, command[4]): command[command.index("rate") + 1]
            for namespace, commands in plan.build()
            for command in commands
            if "tbf" in command
        }
        bridge = plan.bridge_namespace
        both = [(plan.server.namespace, "eth0"), (bridge, "server")] if server else []

        assert shaped == {
            (plan.devices[0].namespace, "eth0"): "10000000bit",
            (plan.devices[1].namespace, "eth0"): "10000000bit",
            (bridge, "d0"): "50000000bit",
            (bridge, "d1"): "50000000bit",
            **dict.fromkeys(both, "1000000000bit"),
        }


def test_every_host_has_its_own_namespace_address_and_cable():
    plan = star(30)
    ((_, made), (bridge, cables), *hosts) = plan.build()

    assert {command[-1] for command in made} == {bridge, *(host.namespace for host in plan.hosts)}
    assert len({host.address for host in plan.hosts}) == 31
    assert len({host.name for host in plan.hosts}) == 31
    network = ipaddress.ip_network(plan.network)
    assert all(ipaddress.ip_address(host.address) in network for host in plan.hosts)
    pairs = [command for command in cables if "veth" in command]
    assert [command[-1] for command in pairs] == [host.namespace for host in plan.hosts]
    # Names of network devices have at most 15 characters.
    assert max(len(command[4]) for command in pairs) <= 15
    for host, (namespace, commands) in zip(plan.hosts, hosts, strict=True):
        assert namespace == host.namespace
        assert f"{host.address}/16" in [word for command in commands for word in command]


def test_nothing_is_made_outside_of_the_labs_own_namespaces():
    for namespace, commands in star(3, Link(1e8, 0.01), server=Link(1e9)).build():
        if namespace:
            assert namespace.startswith("hpcfl-netlab-7-9-")
        else:
            assert all(command[:3] == ["ip", "netns", "add"] for command in commands)


@pytest.mark.parametrize("devices", [0, -1, 1001])
def test_a_number_of_hosts_that_no_bridge_has_is_refused(devices):
    with pytest.raises(UsageError, match="--hosts must be from 1 to 1000"):
        star(devices)


def test_a_network_that_the_machine_uses_is_left_alone():
    assert free_network([]) == NETWORKS[0]
    assert free_network(["192.0.2.0/24", "198.18.5.1/24"]) == NETWORKS[1]
    assert free_network(["198.18.0.0/15"]) == NETWORKS[2]
    with pytest.raises(UsageError, match="free one of them"):
        free_network(["0.0.0.0/0"])


def test_owners_are_told_by_process_and_start():
    assert owner_of(owner_name(12, 345) + "device3") == (12, 345)
    assert owner_of("hpcfl-netlab-x-device3") is None
    assert owner_of("other-12-345-device3") is None


def test_facts_are_numbers_with_units_that_json_carries():
    plan = star(2, Link(1e7, 0.01), Link(5e7, 0.01), Link(1e9))
    facts = json.loads(json.dumps(plan.facts()))

    assert facts["netlab_hosts"] == 2
    assert facts["netlab_uplink_mbps"] == 10
    assert facts["netlab_downlink_mbps"] == 50
    assert facts["netlab_latency_ms"] == 10
    assert facts["netlab_server_rate_mbps"] == 1000
    assert star(2).facts()["netlab_server_rate_mbps"] is None
