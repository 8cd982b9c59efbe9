"""What a lab consists of: names, addresses, and the commands that build it. Nothing is run here."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hpcfl.errors import UsageError
from hpcfl.netlab.links import Link, mtu_bytes

PREFIX = "hpcfl-netlab-"
# A bridge of Linux has 1024 ports.
MOST_HOSTS = 1000
# The first is set apart for benchmarks of networks (RFC 2544), the others for private use.
NETWORKS = ("198.18.0.0/16", "198.19.0.0/16", "10.213.0.0/16", "172.29.0.0/16")
INTERFACE = "eth0"
BRIDGE = "bridge0"

_OWNER = re.compile(rf"{PREFIX}(\d+)-(\d+)-")


@dataclass(frozen=True)
class Host:
    """A network namespace that looks like a machine of its own to MPI."""

    name: str
    namespace: str
    address: str
    port: str  # the bridge's end of its cable
    uplink: Link | None  # None for as fast as the machine is
    downlink: Link | None


@dataclass(frozen=True)
class LabPlan:
    """A server and devices around a bridge."""

    owner: str  # prefix of all names; tells the process that the lab belongs to
    network: str
    uplink: Link
    downlink: Link
    server: Host
    devices: tuple[Host, ...]

    @classmethod
    def star(
        cls,
        devices: int,
        uplink: Link,
        downlink: Link,
        server_link: Link | None,
        owner: str,
        network: str,
    ) -> LabPlan:
        """Return the plan of a lab whose devices have equal links."""
        if not 1 <= devices <= MOST_HOSTS:
            raise UsageError(f"--hosts must be from 1 to {MOST_HOSTS}, not {devices}")
        addresses = ipaddress.ip_network(network)
        at_server = (str(addresses[1]), "server", server_link, server_link)
        return cls(
            owner,
            network,
            uplink,
            downlink,
            Host("server", f"{owner}server", *at_server),
            tuple(
                # Device 0 is rank 1, and so on: a rank's address says who it is.
                Host(
                    f"device{id}",
                    f"{owner}device{id}",
                    str(addresses[2 + id]),
                    f"d{id}",
                    uplink,
                    downlink,
                )
                for id in range(devices)
            ),
        )

    @property
    def hosts(self) -> tuple[Host, ...]:
        """The server and all devices, in the order of ranks."""
        return (self.server, *self.devices)

    @property
    def bridge_namespace(self) -> str:
        """The namespace of the bridge, in which no process runs."""
        return f"{self.owner}bridge"

    @property
    def folder(self) -> Path:
        """Where the lab's files are; only root can write there."""
        return Path("/run") / self.owner.rstrip("-")

    @property
    def mtu_bytes(self) -> int:
        """How much a frame carries."""
        links = (self.uplink, self.downlink, self.server.uplink, self.server.downlink)
        return mtu_bytes(link for link in links if link is not None)

    def build(self) -> list[tuple[str, list[list[str]]]]:
        """Return the commands to run, in order, each group with the namespace to run it in.

        "" is the machine's own.
        """
        length = ipaddress.ip_network(self.network).prefixlen
        namespaces = [self.bridge_namespace, *(host.namespace for host in self.hosts)]
        cables = [["ip", "link", "add", "name", BRIDGE, "type", "bridge"]]
        cables.append(["ip", "link", "set", BRIDGE, "up"])
        mtu = ("mtu", str(self.mtu_bytes))
        for host in self.hosts:
            inside = ("name", INTERFACE, *mtu, "netns", host.namespace)
            cables += [
                ["ip", "link", "add", "name", host.port, *mtu, "type", "veth", "peer", *inside],
                ["ip", "link", "set", host.port, "master", BRIDGE, "up"],
                # What the bridge sends through a port is what the host receives: its downlink.
                *(host.downlink.shape(host.port) if host.downlink else []),
            ]
        return [
            ("", [["ip", "netns", "add", name] for name in namespaces]),
            (self.bridge_namespace, cables),
            *((host.namespace, _configure(host, length)) for host in self.hosts),
        ]

    def facts(self) -> dict[str, float | int | str | None]:
        """Return what a results file says about the lab, without a measured number."""
        server = self.server.uplink
        return {
            "netlab_hosts": len(self.devices),
            "netlab_uplink_mbps": self.uplink.bits_per_second / 1e6,
            "netlab_downlink_mbps": self.downlink.bits_per_second / 1e6,
            "netlab_latency_ms": self.uplink.latency_seconds * 1e3,
            "netlab_server_rate_mbps": server.bits_per_second / 1e6 if server else None,
            "netlab_mtu_bytes": self.mtu_bytes,
            "netlab_burst_bytes": self.uplink.burst_bytes,
            "netlab_queue_bytes": self.uplink.queue_bytes,
        }


def _configure(host: Host, prefix_length: int) -> list[list[str]]:
    """Return the commands to run within a host's namespace."""
    return [
        # MPI's processes on one host talk over its loopback device.
        ["ip", "link", "set", "lo", "up"],
        ["ip", "address", "add", f"{host.address}/{prefix_length}", "dev", INTERFACE],
        ["ip", "link", "set", INTERFACE, "up"],
        *(host.uplink.shape(INTERFACE) if host.uplink else []),
        # What the machine prefers must not change what is measured; cubic is Linux's default.
        # Not every kernel has it, and then its own default stays.
        ["sh", "-c", "echo cubic > /proc/sys/net/ipv4/tcp_congestion_control || true"],
    ]


def owner_name(process: int, start_ticks: int) -> str:
    """Return the prefix of a process's lab; a process number alone may come back."""
    return f"{PREFIX}{process}-{start_ticks}-"


def owner_of(name: str) -> tuple[int, int] | None:
    """Return the process and its start, in clock ticks, that a lab's namespace belongs to."""
    found = _OWNER.match(name)
    return (int(found[1]), int(found[2])) if found else None


def free_network(used: Iterable[str]) -> str:
    """Return the first of some networks that overlaps none of the machine's own."""
    taken = [ipaddress.ip_network(network, strict=False) for network in used]
    for candidate in NETWORKS:
        network = ipaddress.ip_network(candidate)
        if not any(network.overlaps(other) for other in taken):
            return candidate
    raise UsageError(f"the machine itself uses addresses of all of {', '.join(NETWORKS)}")
