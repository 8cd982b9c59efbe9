"""A lab: a server and devices around a bridge, each in a network namespace with a shaped link.

A shell script builds the lab and starts Open MPI's mpirun in it. The script runs in separate
network, mount and process namespaces, so a lab is invisible from outside, and the kernel removes
all of it when the script ends, for whatever reason.

mpirun runs on the server's host. To reach the other hosts it calls a replacement of ssh: a script
that enters the host's namespace and sets a separate host name. Without different host names, Open
MPI would use shared memory between the hosts.
"""

from __future__ import annotations

import ctypes
import ipaddress
import json
import math
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence

from hpcfl.errors import UsageError
from hpcfl.system.launch import NETLAB_VARIABLE, launched_by_mpi
from hpcfl.values import dataclass

TOOLS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux"}
# Open MPI 5 starts processes with PRRTE, whose options are used here.
OLDEST_OPEN_MPI = 5
NETWORK = ipaddress.ip_network("198.18.0.0/16")  # reserved for network benchmarks (RFC 2544)
INTERFACE = "eth0"
# The command that reads the script. --kill-child ends the lab's processes together with unshare.
ISOLATED = "unshare --net --mount --pid --mount-proc --fork --kill-child sh -e"
# The lab's file system: the namespaces, and mpirun's files.
FOLDER = "/run/netns"
# The time that ranks have to end when this process is interrupted.
END_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1

_FAILED = (
    "Error: the lab cannot be built; --dry-run prints the script, which needs veth, bridge, "
    "sch_tbf and sch_netem of the kernel, and in a container the option --privileged"
)

# The header bytes of an Ethernet frame, which a token-bucket filter counts.
HEADER_BYTES = 14
# Payload of an Ethernet frame: the standard, and the maximum between hosts that agree on it.
MTU_BYTES, JUMBO_BYTES = 1500, 9000
FRAME_BYTES = HEADER_BYTES + MTU_BYTES

# Size of the bucket, as time at the link's rate. The kernel's timers wake the filter tens of
# microseconds late, and capacity beyond the bucket is lost meanwhile. A larger bucket would let a
# larger head of every message through unshaped.
BURST_SECONDS = 1e-3
# Size of the queue before the filter, as time at the link's rate, like that of a home router. It is
# well above the size that TCP needs to keep a link of a few ms busy after a loss.
QUEUE_SECONDS = 0.1
QUEUE_BYTES = 64 * FRAME_BYTES


@dataclass(frozen=True)
class Link:
    """One direction of a link."""

    bits_per_second: float  # of Ethernet frames
    latency_seconds: float = 0.0

    @property
    def burst_bytes(self) -> int:
        """Size of the token bucket; with less than two frames nothing would pass."""
        return max(2 * FRAME_BYTES, math.ceil(self.bits_per_second / 8 * BURST_SECONDS))

    @property
    def queue_bytes(self) -> int:
        """Size of the filter's queue."""
        return max(QUEUE_BYTES, math.ceil(self.bits_per_second / 8 * QUEUE_SECONDS))

    def shape(self, tc: str, device: str) -> list[str]:
        """Return the commands of `tc` that shape the outgoing traffic of a network device.

        See tc-tbf(8) and tc-netem(8). The delay is inside the filter: the delay's queue replaces
        the filter's queue.
        """
        add = f"{tc} qdisc add dev {device}"
        bucket = f"burst {self.burst_bytes} limit {self.queue_bytes}"
        commands = [f"{add} root handle 1: tbf rate {self.bits_per_second:.0f}bit {bucket}"]
        if self.latency_seconds:
            delayed = self.bits_per_second / 8 * self.latency_seconds
            frames = math.ceil((self.queue_bytes + delayed) / FRAME_BYTES)
            delay = f"delay {self.latency_seconds * 1e6:.0f}us limit {frames}"
            commands.append(f"{add} parent 1:1 handle 10: netem {delay}")
        return commands


@dataclass(frozen=True)
class Host:
    """A network namespace that looks like a separate machine to MPI."""

    name: str
    address: str
    port: str  # the bridge's end of the host's cable
    uplink: Link | None  # None for an unshaped link
    downlink: Link | None


@dataclass(frozen=True)
class Lab:
    """A server, and devices with a link each: what goes up, and what goes down."""

    links: Sequence[tuple[Link, Link]]
    server_link: Link | None = None  # None for an unshaped link

    @property
    def hosts(self) -> list[Host]:
        """The server and all devices, in the order of their ranks and addresses."""
        server = Host("server", f"{NETWORK[1]}", "server", self.server_link, self.server_link)
        return [server] + [
            Host(f"device{id}", f"{NETWORK[2 + id]}", f"d{id}", *links)
            for id, links in enumerate(self.links)
        ]

    @property
    def mtu_bytes(self) -> int:
        """Payload of a frame in bytes.

        Every frame takes a few microseconds of CPU time, too much for many fast links. Frames are
        therefore as large as possible while two of them fit into the smallest bucket.
        """
        both = [link for links in self.links for link in links]
        smallest = min(link.burst_bytes for link in filter(None, (*both, self.server_link)))
        return min(max(smallest // 2 - HEADER_BYTES, MTU_BYTES), JUMBO_BYTES)

    def facts(self) -> dict[str, float | int | str | None]:
        """Return the lab's settings for a results file, without measurements.

        Of links that differ, they are those of the slowest.
        """
        server = self.server_link
        up, down = (min(links, key=_rate) for links in zip(*self.links, strict=True))
        latency = max(link.latency_seconds for links in self.links for link in links)
        return {
            "netlab_hosts": len(self.links),
            "netlab_uplink_mbps": up.bits_per_second / 1e6,
            "netlab_downlink_mbps": down.bits_per_second / 1e6,
            "netlab_latency_ms": latency * 1e3,
            "netlab_server_rate_mbps": server.bits_per_second / 1e6 if server else None,
            "netlab_mtu_bytes": self.mtu_bytes,
            "netlab_burst_bytes": up.burst_bytes,
            "netlab_queue_bytes": up.queue_bytes,
        }


def _rate(link: Link) -> float:
    return link.bits_per_second


def script(lab: Lab, mpirun: str, program: Sequence[str]) -> str:
    """Return the script that builds a lab and runs a program on all its hosts."""
    inside = f"hostname server; exec {shlex.join(_mpirun(lab, mpirun, program))}"
    lines = [
        f"trap {shlex.quote(f'echo {shlex.quote(_FAILED)} >&2')} EXIT",
        f"mkdir -p {FOLDER}",
        f"mount -t tmpfs hpcfl-netlab {FOLDER}",
        f"mkdir {FOLDER}/tmp",
        *_file("hosts", "".join(f"{host.address} slots=1\n" for host in lab.hosts)),
        *_file("agent", agent(lab)),
        f"chmod 700 {FOLDER}/agent",
        "ip link add name bridge0 type bridge",
        "ip link set bridge0 up",
        *(line for host in lab.hosts for line in _cable(host, lab.mtu_bytes)),
        "trap - EXIT",
        f"ip netns exec server unshare --uts sh -c {shlex.quote(inside)} < /dev/null",
    ]
    return "\n".join(lines) + "\n"


def _cable(host: Host, mtu: int) -> Iterator[str]:
    """Yield the commands that create a host and its cable to the bridge."""
    name, port = host.name, host.port
    yield f"ip netns add {name}"
    yield (
        f"ip link add name {port} mtu {mtu} type veth peer name {INTERFACE} mtu {mtu} netns {name}"
    )
    yield f"ip link set {port} master bridge0 up"
    # MPI processes on one host communicate over its loopback device.
    yield f"ip -n {name} link set lo up"
    yield f"ip -n {name} address add {host.address}/{NETWORK.prefixlen} dev {INTERFACE}"
    yield f"ip -n {name} link set {INTERFACE} up"
    # Traffic that the bridge sends through a port is the host's downlink.
    yield from host.downlink.shape("tc", port) if host.downlink else []
    yield from host.uplink.shape(f"tc -n {name}", INTERFACE) if host.uplink else []
    # The machine's congestion control must not change measurements. cubic is Linux's default; a
    # kernel without it keeps its own default.
    cubic = "echo cubic > /proc/sys/net/ipv4/tcp_congestion_control"
    yield f"ip netns exec {name} sh -c '{cubic}' 2> /dev/null || true"


def _file(name: str, text: str) -> list[str]:
    return [f"cat > {FOLDER}/{name} <<'END'", *text.splitlines(), "END"]


def agent(lab: Lab) -> str:
    """Return the text of the script that replaces ssh; its arguments are a host and a command."""
    cases = "".join(f"  {host.address}) name={host.name} ;;\n" for host in lab.hosts[1:])
    return (
        "#!/bin/sh\n"
        f'case "$1" in\n{cases}'
        '  *) echo "no host $1 in this lab" >&2; exit 255 ;;\n'
        "esac\n"
        "shift\n"
        # Like ssh, join the arguments with blanks and pass them to the remote shell.
        'exec ip netns exec "$name" unshare --uts sh -c "hostname $name; $*"\n'
    )


def _mpirun(lab: Lab, mpirun: str, program: Sequence[str]) -> list[str]:
    """Return the command that runs a program with one rank on every host."""
    options = {
        "prtemca": {
            "plm": "ssh",
            "plm_ssh_agent": f"{FOLDER}/agent",
            # By default daemons start other daemons, whose traffic would cross devices' links.
            "plm_ssh_no_tree_spawn": "1",
            "prte_if_include": f"{NETWORK}",
        },
        "mca": {
            "pml": "ob1",
            "btl": "tcp,self",
            "btl_tcp_if_include": f"{NETWORK}",
            "mpi_yield_when_idle": "1",
        },
    }
    command = [mpirun, "-n", str(len(lab.hosts)), "--hostfile", f"{FOLDER}/hosts"]
    command += ["--map-by", "node:OVERSUBSCRIBE", "--bind-to", "none"]
    for kind, settings in options.items():
        for name, value in settings.items():
            command += [f"--{kind}", name, value]
    return [*command, "-x", NETLAB_VARIABLE, *program]


def variables(lab: Lab) -> dict[str, str]:
    """Return the environment variables of mpirun, which passes them on to all ranks."""
    return {
        NETLAB_VARIABLE: json.dumps(lab.facts()),
        # A lab runs as root, which Open MPI refuses without both variables.
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "TMPDIR": f"{FOLDER}/tmp",
    }


def run(lab: Lab, program: Sequence[str]) -> int:
    """Run a program on all hosts of a lab, and return its exit status.

    The program inherits this process's output. If this process is interrupted, the ranks are asked
    to end; if this process dies, the lab ends with it.
    """
    check_machine()
    text = script(lab, check_launcher(), program)
    process = subprocess.Popen(
        ISOLATED.split(),
        stdin=subprocess.PIPE,
        text=True,
        env={**os.environ, **variables(lab)},
        # A terminal's Ctrl-C only reaches this process, which then ends mpirun.
        start_new_session=True,
        preexec_fn=_end_with_parent,
    )
    try:
        process.communicate(text)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    status = process.returncode
    return status if status >= 0 else 128 - status


def check_machine() -> None:
    """Raise UsageError if this machine cannot have a lab, without changing anything."""
    if launched_by_mpi():
        raise UsageError("hpcfl netlab starts mpirun by itself: call it without a launcher")
    if platform.system() != "Linux" or os.geteuid() != 0:
        raise UsageError(
            "hpcfl netlab makes network devices, for which it needs Linux and root: "
            'sudo env PATH="$PATH" hpcfl netlab ...'
        )
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            raise UsageError(f"hpcfl netlab needs the command {tool}: install {package}")


def check_launcher() -> str:
    """Return the path of Open MPI's mpirun; raise UsageError if it is missing or too old."""
    from hpcfl.system.doctor import find_launcher

    found = find_launcher()
    version = re.match(r"\d+", found.version) if found else None
    if (
        found is None
        or found.family != "Open MPI"
        or (version is not None and int(version[0]) < OLDEST_OPEN_MPI)
    ):
        raise UsageError(
            f"hpcfl netlab needs the mpirun of Open MPI {OLDEST_OPEN_MPI} or newer first on PATH, "
            "for example that of pip install 'hpcfl[mpi]'; under sudo, pass PATH on"
        )
    return found.path


def _end_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends, even if the parent is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
