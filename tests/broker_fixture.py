"""Where tests get their Kafka from: a named cluster, else Docker, else the embedded broker. Never nowhere.

TURNLOG_TEST_BOOTSTRAP=host:port    a broker that is already there; nothing on it is deleted
TURNLOG_TEST_DOCKER=0               do not try Docker
"""

from __future__ import annotations

import os
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnlog.local.broker import EmbeddedBroker
from turnlog.local.config import SETTINGS
from turnlog.local.jars import KAFKA_LOCK, Lock
from turnlog.local.ports import LOOPBACK, free_ports
from turnlog.local.probe import probe

DOCKER_PATIENCE_S = 60.0
DOCKER_SOCKET = Path("/var/run/docker.sock")


@dataclass(frozen=True)
class SharedBroker:
    """The broker that tests share, each under its own topic prefix."""

    bootstrap: str
    source: str


@contextmanager
def shared_broker(folder: Path) -> Iterator[SharedBroker]:
    """The first of the three that is to be had, for as long as the block lasts. Raises what the last one raised."""
    if named := os.environ.get("TURNLOG_TEST_BOOTSTRAP"):
        yield SharedBroker(named, "TURNLOG_TEST_BOOTSTRAP")
        return
    container = _DockerBroker.start_within(DOCKER_PATIENCE_S) if docker_answers() else None
    if container is not None:
        try:
            yield SharedBroker(container.bootstrap, "Docker")
        finally:
            container.stop()
        return
    with EmbeddedBroker.start(folder, port=0) as broker:
        yield SharedBroker(broker.bootstrap, "embedded")


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
            return b"OK" in daemon.recv(4096)
    except OSError:
        return False


class _DockerBroker:
    """The same Kafka with the same settings, from its image."""

    def __init__(self, container: Any, bootstrap: str) -> None:
        self._container = container
        self.bootstrap = bootstrap

    @classmethod
    def start_within(cls, patience_s: float) -> _DockerBroker | None:
        """None if the image is not up in time, or not at all. A pull cannot be cancelled; one that ends later is stopped."""
        started: list[_DockerBroker] = []
        too_late = threading.Event()

        def run() -> None:
            try:
                broker = cls._start()
            except Exception as error:  # noqa: BLE001 - every kind of failure means the same: no broker from Docker
                warnings.warn(f"no broker from Docker: {error}", stacklevel=1)
                return
            started.append(broker)
            if too_late.is_set():
                broker.stop()

        thread = threading.Thread(target=_without_warnings(run), name="docker-broker", daemon=True)
        thread.start()
        thread.join(patience_s)
        too_late.set()
        return started[0] if started else None

    @classmethod
    def _start(cls) -> _DockerBroker:
        from testcontainers.core.container import DockerContainer

        (port,) = free_ports(1)
        container = DockerContainer(f"apache/kafka:{Lock.read(KAFKA_LOCK).version}").with_bind_ports(9092, port)
        for name, value in _container_settings(port).items():
            container = container.with_env("KAFKA_" + name.upper().replace(".", "_"), value)
        container.start()
        broker = cls(container, f"{LOOPBACK}:{port}")
        patience = threading.Event()
        for _ in range(int(DOCKER_PATIENCE_S * 5)):
            seen = probe(LOOPBACK, port)
            if seen is not None and seen.brokers:
                return broker
            patience.wait(0.2)
        container.stop()
        raise TimeoutError("the container does not serve")

    def stop(self) -> None:
        self._container.stop()


def _container_settings(port: int) -> dict[str, str]:
    return {
        **SETTINGS,
        "listeners": "PLAINTEXT://0.0.0.0:9092,CONTROLLER://127.0.0.1:9093",
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{port}",
        "controller.quorum.voters": "1@127.0.0.1:9093",
    }


def _without_warnings(call: Callable[[], None]) -> Callable[[], None]:
    """The Docker libraries warn of their own doings; warnings are errors here, and that one is not ours to mend."""

    def quiet() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call()

    return quiet
