"""Checks a lab itself: how long a transfer of known size takes, without MPI.

Every receiver starts its clock when it asks for the bytes, on the machine's one monotonic clock.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from hpcfl.errors import HpcflError
from hpcfl.netlab.plan import Host, LabPlan

PROBE_SECONDS = 0.5
LIMIT_SECONDS = 120.0
_PORT = 7117

# Starts a server of bytes, or takes from or gives it some, and prints the seconds that it took.
# As one program, so that nothing but Python is needed in a namespace.
_PROGRAM = """
import socket, socketserver, sys, threading, time
role, address, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
block = bytes(1 << 16)

def send(to, left):
    while left:
        left -= to.send(block[:left])

def receive(source, left):
    while left:
        got = source.recv(min(left, 1 << 16))
        if not got:
            raise SystemExit("the other end is gone")
        left -= len(got)

class Serve(socketserver.BaseRequestHandler):
    def handle(self):
        asked = self.request.recv(1)
        if asked == b"d":
            send(self.request, size)
        elif asked == b"u":
            receive(self.request, size)
            self.request.sendall(b".")

if role == "serve":
    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address, daemon_threads, request_queue_size = True, True, 1024
    with Server((address, PORT), Serve) as server:
        print("ready", flush=True)
        server.serve_forever()
else:
    with socket.create_connection((address, PORT), timeout=LIMIT) as end:
        print("ready", flush=True)
        sys.stdin.readline()
        start = time.monotonic()
        end.sendall(role[0].encode())
        if role == "up":
            send(end, size)
            receive(end, 1)
        else:
            receive(end, size)
        print(time.monotonic() - start, flush=True)
""".replace("PORT", str(_PORT)).replace("LIMIT", str(LIMIT_SECONDS))


@dataclass(frozen=True)
class Transfer:
    """What a transfer between a device and the server took, until the receiver had all of it."""

    device: str
    direction: str  # "up" to the server, or "down"
    size_bytes: int  # headers not counted
    seconds: float
    ideal_seconds: float  # size over the link's rate, and the latency


def transfer(
    plan: LabPlan, devices: Sequence[Host], direction: str, size_bytes: int
) -> list[Transfer]:
    """Let devices of a lab that has been built exchange bytes with the server, all at once."""
    running: list[subprocess.Popen[str]] = []
    # The way to the server and back, for an upload until it is confirmed.
    link = plan.uplink if direction == "up" else plan.downlink
    ideal = 8 * size_bytes / link.bits_per_second + 2 * link.latency_seconds
    try:
        running.append(_start(plan.server, "serve", plan, size_bytes))
        _expect_ready(running[0])
        clients = [_start(device, direction, plan, size_bytes) for device in devices]
        running += clients
        for client in clients:
            _expect_ready(client)
        for client in clients:
            assert client.stdin is not None
            client.stdin.write("go\n")
            client.stdin.flush()
        return [
            Transfer(device.name, direction, size_bytes, _seconds(client), ideal)
            for device, client in zip(devices, clients, strict=True)
        ]
    except OSError as error:
        raise HpcflError(f"a transfer within the lab failed: {error}") from None
    finally:
        for process in running:
            process.kill()
            process.communicate()


def probe(plan: LabPlan) -> list[Transfer]:
    """Return how long transfers take: one device alone, then all at once, in both directions."""
    return [
        done
        for devices in (plan.devices[:1], plan.devices)
        for direction, link in (("up", plan.uplink), ("down", plan.downlink))
        for done in transfer(
            plan, devices, direction, int(link.bits_per_second / 8 * PROBE_SECONDS)
        )
    ]


def _start(host: Host, role: str, plan: LabPlan, size_bytes: int) -> subprocess.Popen[str]:
    program = [sys.executable, "-S", "-c", _PROGRAM, role, plan.server.address, str(size_bytes)]
    return subprocess.Popen(
        ["ip", "netns", "exec", host.namespace, *program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _expect_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    if process.stdout.readline().strip() != "ready":
        process.kill()
        raise _failure(process.communicate()[1])


def _seconds(process: subprocess.Popen[str]) -> float:
    try:
        output, errors = process.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        raise HpcflError(f"a transfer within the lab took over {LIMIT_SECONDS:g} s") from None
    if process.returncode:
        raise _failure(errors)
    return float(output)


def _failure(errors: str) -> HpcflError:
    words = (errors.strip().splitlines() or ["no reason given"])[-1]
    return HpcflError(f"a transfer within the lab failed: {words}")
