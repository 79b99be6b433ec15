"""Runs Kafka's image until SIGTERM: `python -m tests.docker_broker PORT`.

A process of its own, so that a pull which takes too long can be given up, and so that what the Docker libraries warn of is
not an error of our tests.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from turnlog.local.config import SETTINGS
from turnlog.local.jars import KAFKA_LOCK, Lock
from turnlog.local.ports import LOOPBACK


def settings(port: int) -> dict[str, str]:
    """Those of the embedded broker, with addresses as they are inside and outside a container."""
    return {
        **SETTINGS,
        "listeners": f"PLAINTEXT://0.0.0.0:9092,CONTROLLER://{LOOPBACK}:9093",
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{port}",
        "controller.quorum.voters": f"1@{LOOPBACK}:9093",
    }


def main(port: int) -> None:
    # One image less to pull: we stop our container ourselves.
    os.environ["TESTCONTAINERS_RYUK_DISABLED"] = "true"
    from testcontainers.core.container import DockerContainer

    asked_to_stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked_to_stop.set())
    container = DockerContainer(f"apache/kafka:{Lock.read(KAFKA_LOCK).version}").with_bind_ports(9092, port)
    for name, value in settings(port).items():
        container = container.with_env("KAFKA_" + name.upper().replace(".", "_"), value)
    container.start()
    try:
        asked_to_stop.wait()
    finally:
        container.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]))
