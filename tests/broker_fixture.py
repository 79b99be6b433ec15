"""Where tests get their Kafka from: a named cluster, else Docker, else the embedded broker. Never nowhere.

TURNLOG_TEST_BOOTSTRAP=host:port    a broker that is already there; nothing on it is deleted
TURNLOG_TEST_DOCKER=0               do not try Docker
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from turnlog.local.broker import EmbeddedBroker
from turnlog.local.ports import LOOPBACK, free_ports
from turnlog.local.probe import probe
from turnlog.local.process import Child, tail

DOCKER_PATIENCE_S = 60.0
DOCKER_SOCKET = Path("/var/run/docker.sock")


@dataclass(frozen=True)
class SharedBroker:
    """The broker that tests share, each under its own topic prefix. `source` says where it came from and why."""

    bootstrap: str
    source: str


@contextmanager
def shared_broker(folder: Path) -> Iterator[SharedBroker]:
    """The first of the three that is to be had, for as long as the block lasts. Raises what the last one raised."""
    if named := os.environ.get("TURNLOG_TEST_BOOTSTRAP"):
        yield SharedBroker(named, "named by TURNLOG_TEST_BOOTSTRAP")
        return
    container, reason = _from_docker(folder / "docker.log") if docker_answers() else (None, "no daemon")
    if container is not None:
        child, bootstrap = container
        try:
            yield SharedBroker(bootstrap, "Docker")
        finally:
            child.stop(30)
        return
    with EmbeddedBroker.start(folder, port=0) as broker:
        yield SharedBroker(broker.bootstrap, f"embedded (Docker: {reason})")


def docker_answers() -> bool:
    """Whether a Docker daemon listens, found out in a second: the client library would try for a minute."""
    if os.environ.get("TURNLOG_TEST_DOCKER") == "0":
        return False
    if os.environ.get("DOCKER_HOST"):
        return True
    try:
        with socket.socket(socket.AF_UNIX) as daemon:
            daemon.settimeout(1.0)
            daemon.connect(str(DOCKER_SOCKET))
            daemon.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b"200" in daemon.recv(4096).partition(b"\r\n")[0]
    except OSError:
        return False


def _from_docker(log: Path) -> tuple[tuple[Child, str] | None, str]:
    """The container's keeper and the broker's address, or None and why it was not up within its time."""
    (port,) = free_ports(1)
    child = Child.start([sys.executable, "-m", "tests.docker_broker", str(port)], name="docker", output=log)
    deadline = time.monotonic() + DOCKER_PATIENCE_S
    while child.alive and time.monotonic() < deadline:
        seen = probe(LOOPBACK, port)
        if seen is not None and seen.brokers:
            return (child, f"{LOOPBACK}:{port}"), ""
        time.sleep(0.2)
    if child.alive:
        child.stop(10)
        return None, f"not up within {DOCKER_PATIENCE_S:.0f} s"
    return None, tail(log, 1)[:200]
