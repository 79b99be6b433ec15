"""The embedded broker as a process: it serves, survives, is found again, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.conftest import OwnBroker
from turnlog.local.broker import EmbeddedBroker, find_running
from turnlog.local.errors import AlreadyRunning, BrokerDied
from turnlog.local.ports import LOOPBACK, free_ports
from turnlog.local.probe import probe
from turnlog.local.process import ProcessName
from turnlog.local.state import stop_running


def test_a_broker_serves_is_found_and_survives_its_kill(own_broker: OwnBroker) -> None:
    broker = own_broker()
    seen = probe(LOOPBACK, broker.port)
    assert seen is not None
    assert seen.brokers == ((LOOPBACK, broker.port),)

    found = find_running(broker.state_dir)
    assert found is not None
    assert (found.pid, found.bootstrap) == (broker.pid, broker.bootstrap)
    with pytest.raises(AlreadyRunning, match=str(broker.pid)) as second:
        EmbeddedBroker.start(broker.state_dir)
    assert second.value.bootstrap == broker.bootstrap

    first_pid = broker.pid
    broker.kill()
    assert find_running(broker.state_dir) is None
    broker.restart()
    again = probe(LOOPBACK, broker.port)
    assert again is not None
    assert again.cluster_id == seen.cluster_id
    assert broker.pid != first_pid
    assert "started" in broker.log_path.read_text()


def test_a_restart_gives_way_to_a_broker_that_took_the_folder_meanwhile(own_broker: OwnBroker) -> None:
    broker = own_broker()
    broker.kill()
    with EmbeddedBroker.start(broker.state_dir) as other:
        with pytest.raises(AlreadyRunning, match=str(other.pid)):
            broker.restart()
        assert find_running(broker.state_dir) is not None
        assert other.alive


def test_clients_are_told_the_advertised_port(own_broker: OwnBroker) -> None:
    (proxy_port,) = free_ports(1)
    broker = own_broker(advertised_port=proxy_port)
    assert broker.bootstrap == f"{LOOPBACK}:{proxy_port}"
    seen = probe(LOOPBACK, broker.port)
    assert seen is not None
    assert seen.brokers == ((LOOPBACK, proxy_port),)


def test_a_paused_broker_answers_nothing_until_resumed(own_broker: OwnBroker) -> None:
    broker = own_broker()
    broker.pause()
    assert probe(LOOPBACK, broker.port, timeout_s=0.5) is None
    broker.resume()
    assert probe(LOOPBACK, broker.port, timeout_s=10) is not None


def test_a_broker_started_from_a_thread_outlives_the_thread(own_broker: OwnBroker) -> None:
    """The kernel's parent-death signal follows the thread that forked; ours must not."""
    started: list[EmbeddedBroker] = []
    thread = threading.Thread(target=lambda: started.append(own_broker()))
    thread.start()
    thread.join()
    time.sleep(0.2)  # a kill by the kernel would be immediate
    assert started[0].alive


OWNER = """
import sys, time
from pathlib import Path
from turnlog.local.broker import EmbeddedBroker
broker = EmbeddedBroker.start(Path(sys.argv[1]), port=0, heap_mb=512)
print(broker.pid, flush=True)
time.sleep(600)
"""


def test_a_broker_dies_with_its_owner_and_the_next_one_recovers(tmp_path: Path, own_broker: OwnBroker) -> None:
    state = tmp_path / "broker0"  # what own_broker takes first
    with subprocess.Popen([sys.executable, "-c", OWNER, str(state)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert ProcessName.of(pid) is not None
        owner.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 5
    while ProcessName.of(pid) is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert ProcessName.of(pid) is None

    said: list[str] = []
    broker = own_broker(progress=said.append)
    assert f"pid {pid}) did not stop in order" in said[0]
    assert broker.alive


def test_another_process_can_stop_it(own_broker: OwnBroker) -> None:
    broker = own_broker()
    stopper = threading.Thread(target=lambda: stop_running(broker.state_dir))
    stopper.start()
    while broker.alive:  # reaps it: to the stopper, our zombie is gone
        time.sleep(0.05)
    stopper.join()
    assert find_running(broker.state_dir) is None
    assert not stop_running(broker.state_dir)


def test_a_setting_that_kafka_refuses_is_reported_with_its_words(own_broker: OwnBroker) -> None:
    with pytest.raises(BrokerDied, match="before it served") as died:
        own_broker(overrides={"num.io.threads": "none"})
    assert "num.io.threads" in died.value.detail
    assert not any("broker.pid" in name for name in os.listdir(died.value.remedy.rsplit(" ", 1)[-1]))
