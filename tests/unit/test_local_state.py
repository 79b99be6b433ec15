"""What a state directory remembers, and what goes wrong before a broker is even started."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections import namedtuple
from pathlib import Path

import pytest

from turnlog.local.broker import EmbeddedBroker, _choose_port, _Plan, _reason, find_running
from turnlog.local.config import log4j_properties, server_properties
from turnlog.local.errors import BrokerDied, DiskFull, ForeignData, LocalError, NoJava, PortTaken
from turnlog.local.java import Java
from turnlog.local.ports import LOOPBACK, free_ports, is_free
from turnlog.local.probe import probe
from turnlog.local.process import ProcessName, size_of, tail
from turnlog.local.state import Identity, RunningBroker, StateDir

Usage = namedtuple("Usage", "total used free")


def test_a_directory_keeps_its_cluster(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    first = state.identity("4.4.0")
    assert state.identity("4.4.0") == first
    assert state.identity("4.5.0") == first  # a newer Kafka may open older data
    assert StateDir(tmp_path / "other").root != tmp_path
    assert len(first.cluster_id) == 22
    assert not first.cluster_id.startswith("-")


def test_data_of_a_newer_kafka_is_refused(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    state.remember(Identity("x" * 22, "4.10.0"))
    with pytest.raises(ForeignData, match=r"written by Kafka 4\.10\.0; this is 4\.4\.0"):
        state.identity("4.4.0")


def test_data_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(ForeignData, match="not of an embedded broker"):
        StateDir(tmp_path).identity("4.4.0")
    (tmp_path / "cluster.json").write_text("{")
    with pytest.raises(ForeignData, match="cannot be read"):
        StateDir(tmp_path).identity("4.4.0")


def test_a_pid_that_lives_again_as_another_process_is_stale(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    me = ProcessName.of(os.getpid())
    assert me is not None
    state.served_by(Identity("x" * 22, "4.4.0"), RunningBroker(me.pid, me.started, 1, "b"), "4.4.0")
    assert find_running(tmp_path) is not None
    state.served_by(Identity("x" * 22, "4.4.0"), RunningBroker(me.pid, "12", 1, "b"), "4.4.0")
    assert find_running(tmp_path) is None
    (tmp_path / "broker.pid").write_text("nonsense")
    assert find_running(tmp_path) is None


def test_too_little_disk_is_told_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 30, 1 << 30, 5 << 20))
    with pytest.raises(DiskFull, match="Only 5 MB free"):
        EmbeddedBroker.start(tmp_path)


def test_a_state_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalError, match="Cannot create"):
        EmbeddedBroker.start(tmp_path / "file" / "below")


def test_ports() -> None:
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not is_free(port)
        with pytest.raises(PortTaken, match=f"Port {port} is taken"):
            _choose_port(port, 0)
        assert _choose_port(None, port) != port  # the last start's port, if it is free
        assert _choose_port(0, port) not in (0, port)
    (free,) = free_ports(1)
    assert _choose_port(None, free) == free
    assert len(set(free_ports(5))) == 5


def test_a_stranger_on_the_port_is_no_broker() -> None:
    assert probe(LOOPBACK, free_ports(1)[0], timeout_s=0.5) is None
    with socket.create_server((LOOPBACK, 0)) as stranger:
        assert probe(LOOPBACK, stranger.getsockname()[1], timeout_s=0.2) is None


@pytest.mark.parametrize(
    ("said", "kind", "message"),
    [
        ("java.net.BindException: Address already in use", PortTaken, "Port 7 is taken"),
        ("java.io.IOException: No space left on device", DiskFull, "is full"),
        ("java.lang.UnsupportedClassVersionError: kafka/Kafka", NoJava, "Java 17 is too old"),
        ("KafkaException: Failed to acquire lock on file .lock", BrokerDied, "Another Kafka uses"),
        ("There is insufficient memory for the Java Runtime", BrokerDied, "64 MB of heap"),
        ("something new", BrokerDied, "ended with signal 9 before it served"),
    ],
)
def test_why_a_broker_ended(said: str, kind: type[LocalError], message: str, tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    plan = _Plan(state, Identity("x", "1"), Java(Path("java"), 17, ""), [], None, "1", {}, 64, None, True, print)
    error = _reason(plan, said, 7, -9)
    assert type(error) is kind
    assert message in str(error)
    assert "what helps: " in str(error)


def test_configuration_files(tmp_path: Path) -> None:
    text = server_properties(
        port=1, advertised_port=2, controller_port=3, data=tmp_path / "a\\b", overrides={"log.segment.bytes": "5"}
    )
    lines = dict(line.split("=", 1) for line in text.splitlines())
    assert lines["listeners"] == "PLAINTEXT://127.0.0.1:1,CONTROLLER://127.0.0.1:3"
    assert lines["advertised.listeners"] == "PLAINTEXT://127.0.0.1:2"
    assert lines["log.dirs"] == f"{tmp_path}/a\\\\b"
    assert lines["log.segment.bytes"] == "5"
    assert lines["log.message.timestamp.type"] == "LogAppendTime"
    assert f"fileName = {tmp_path}/broker.log" in log4j_properties(tmp_path / "broker.log")


def test_tail_is_bounded_and_begins_after_what_was_there(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert tail(log) == ""
    assert size_of(log) == 0
    log.write_text("".join(f"line {n}\n" for n in range(100)))
    assert tail(log, 2) == "line 98\nline 99"
    before = size_of(log)
    with log.open("a") as file:
        file.write("new\n")
    assert tail(log, since=before) == "new"
    assert json.dumps(tail(log, 1, since=10**9)) == '"new"'  # rolled over: all of it counts
