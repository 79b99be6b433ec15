"""Groups on a real broker with members that are processes: stopped, killed, doubled (J3, J4). Times are loose upper bounds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, Queue
from typing import IO

import pytest

from tests.broker_fixture import SharedBroker
from tests.conftest import OwnBroker
from turnlog.kafka.client import KafkaCluster
from turnlog.kafka.port import LogError, NewTopic, Partition, Position, Received, Retryable

PATIENCE_S = 30.0


class Process:
    """One `group_member` process and what it says."""

    def __init__(self, root: Path, *words: str) -> None:
        command = [sys.executable, "-m", "tests.integration.group_member", *words]
        self.child = subprocess.Popen(
            command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.said: list[str] = []
        self._lines: Queue[str] = Queue()
        assert self.child.stdout is not None
        threading.Thread(target=self._listen, args=(self.child.stdout,), daemon=True).start()

    def _listen(self, pipe: IO[str]) -> None:
        for line in pipe:
            self._lines.put(line.strip())

    def expect(self, *starts: str, patience_s: float = PATIENCE_S) -> str:
        """The next line that starts with one of these."""
        end = time.monotonic() + patience_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, end - time.monotonic()))
            except Empty:
                raise AssertionError(f"no {starts}; it said {self.said}") from None
            self.said.append(line)
            if line.startswith(starts):
                return line

    def silent_for(self, seconds: float) -> None:
        time.sleep(seconds)
        assert self._lines.empty(), self._lines.get()

    def commit(self, partition: int) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(f"{partition}\n")
        self.child.stdin.flush()

    def signal(self, number: int) -> None:
        os.kill(self.child.pid, number)

    def end(self) -> None:
        self.child.kill()
        self.child.wait()
        for pipe in (self.child.stdin, self.child.stdout):
            if pipe is not None:
                pipe.close()


Start = Callable[[str], Process]


@pytest.fixture
def cluster(broker: SharedBroker) -> KafkaCluster:
    return KafkaCluster({"bootstrap.servers": broker.bootstrap})


@pytest.fixture
def topic(cluster: KafkaCluster, topic_prefix: str) -> Iterator[str]:
    name = topic_prefix + "commands"
    admin = cluster.admin()
    assert admin.create_topics([NewTopic(name, 2, 1, {})]) == {name: None}
    yield name
    admin.delete_topics([name])


@pytest.fixture
def start(broker: SharedBroker, topic: str, repository: Callable[[str], Path]) -> Iterator[Start]:
    """Starts a member with this instance id ("": a dynamic one)."""
    started: list[Process] = []

    def one(instance: str) -> Process:
        started.append(Process(repository("."), broker.bootstrap, f"group-of-{topic}", topic, instance))
        return started[-1]

    yield one
    for process in started:
        process.end()


@pytest.mark.slow
@pytest.mark.parametrize("instances", [("a", "b"), ("", "")], ids=["static", "dynamic"])
def test_a_stopped_member_loses_its_partitions_and_finds_out_when_it_wakes(
    start: Start, instances: tuple[str, str]
) -> None:
    sleeper = start(instances[0])
    assert sleeper.expect("assigned") == "assigned 0 1"
    other = start(instances[1])
    sleeper.expect("revoked")
    other.expect("assigned")
    sleeper.signal(signal.SIGSTOP)
    other.expect("assigned")  # when the session is over
    sleeper.commit(0)
    sleeper.signal(signal.SIGCONT)
    said = sleeper.expect("lost")
    assert said in ("lost 0", "lost 1")
    outcome = next((line for line in sleeper.said if line.startswith(("refused", "committed"))), None)
    assert outcome is None or outcome.startswith("refused")
    # It joins again by itself. But a static member whose commit of the old membership is under way while it joins is fenced by
    # its own new membership: then the error is fatal, as if another process had taken the instance id.
    sleeper.expect("assigned", "fatal") if instances[0] else sleeper.expect("assigned")


def test_a_killed_static_member_that_comes_back_goes_on_at_once(start: Start) -> None:
    killed, other = start("a"), start("b")
    both = {killed.expect("assigned"), other.expect("assigned")}
    if "assigned 0 1" in both:  # who came first had all for a moment
        first, second = (killed, other) if killed.said == ["assigned 0 1"] else (other, killed)
        first.expect("revoked")
        second.expect("assigned") if second.said == [] else None
    time.sleep(1)
    killed.signal(signal.SIGKILL)
    back = start("a")
    began = time.monotonic()
    assert back.expect("assigned") in ("assigned 0", "assigned 1")
    assert time.monotonic() - began < 2.5  # process start included; the session would last 3 s
    other.silent_for(0.5)


def test_of_two_processes_with_one_instance_id_the_former_dies(start: Start) -> None:
    former = start("same")
    former.expect("assigned 0 1")
    latter = start("same")
    latter.expect("assigned 0 1")
    former.expect("fatal")
    assert former.child.wait(10) == 3
    latter.commit(0)
    latter.expect("committed")


class Owner:
    """A member of this process that remembers when it got what."""

    def __init__(self, cluster: KafkaCluster, group: str, topic: str, instance: str | None = None) -> None:
        self.consumer = cluster.consumer(group, instance_id=instance)
        self.consumer.subscribe(topic, self)

    def assigned(self, partitions: object) -> None: ...
    def revoked(self, partitions: object) -> None: ...
    def lost(self, partitions: object) -> None: ...

    def until_it_owns(self, *partitions: int, others: tuple[Owner, ...] = ()) -> float:
        began = time.monotonic()
        while self.consumer.owned() != set(partitions):
            assert time.monotonic() - began < PATIENCE_S, self.consumer.owned()
            for one in (self, *others):
                one.consumer.poll(0.02)
        return time.monotonic() - began

    def until_a_record(self) -> list[Received]:
        end = time.monotonic() + PATIENCE_S
        while not (records := self.consumer.poll(0.05)):
            assert time.monotonic() < end
        return records


def test_the_first_record_of_a_topic_beside_comes_without_the_librarys_second(
    cluster: KafkaCluster, topic: str, topic_prefix: str
) -> None:
    beside = topic_prefix + "tool-results"
    admin = cluster.admin()
    admin.create_topics([NewTopic(beside, 2, 1, {})])
    producer = cluster.producer("p")
    producer.produce(beside, b"v", partition=0)
    assert producer.flush(10) == 0
    producer.close()
    owner = Owner(cluster, f"group-of-{topic}", topic)
    owner.until_it_owns(0, 1)
    began = time.monotonic()
    owner.consumer.add({Partition(beside, 0): 0})
    assert [record.topic for record in owner.until_a_record()] == [beside]
    assert time.monotonic() - began < 0.9  # it was 1.0 to 1.5 s without asking for the topic first
    owner.consumer.close()
    admin.delete_topics([beside])


def test_a_member_that_leaves_hands_over_long_before_its_session_would_end(cluster: KafkaCluster, topic: str) -> None:
    group = f"group-of-{topic}"
    stays, goes = Owner(cluster, group, topic, "a"), Owner(cluster, group, topic, "b")
    while not (len(stays.consumer.owned()) == len(goes.consumer.owned()) == 1):
        stays.consumer.poll(0.02)
        goes.consumer.poll(0.02)
    began = time.monotonic()
    goes.consumer.close(leave=True)
    assert time.monotonic() - began < 2
    assert stays.until_it_owns(0, 1) < 5  # the session lasts 10 s
    stays.consumer.close()


def test_another_thread_may_commit_while_this_one_polls(cluster: KafkaCluster, topic: str) -> None:
    owner = Owner(cluster, f"group-of-{topic}", topic)
    owner.until_it_owns(0, 1)
    problems: list[LogError] = []

    def commits() -> None:
        for offset in range(50):
            try:
                owner.consumer.commit({Partition(topic, 0): Position(offset, "x" * 100)})
            except LogError as error:
                problems.append(error)

    thread = threading.Thread(target=commits)
    thread.start()
    while thread.is_alive():
        owner.consumer.poll(0.5)
    assert problems == []
    assert owner.consumer.committed([Partition(topic, 0)]) == {Partition(topic, 0): Position(49, "x" * 100)}
    owner.consumer.close()


def test_a_commit_gives_up_in_time_when_the_broker_sleeps(own_broker: OwnBroker) -> None:
    broker = own_broker()
    cluster = KafkaCluster({"bootstrap.servers": broker.bootstrap, "session.timeout.ms": "30000"})
    admin = cluster.admin()
    admin.create_topics([NewTopic("commands", 1, 1, {})])
    owner = Owner(cluster, "group", "commands")
    owner.until_it_owns(0)
    broker.pause()
    try:
        began = time.monotonic()
        with pytest.raises(Retryable):
            owner.consumer.commit({Partition("commands", 0): Position(1)}, timeout_s=1.0)
        assert time.monotonic() - began < 3
        assert owner.consumer.poll(0.1) == []
    finally:
        broker.resume()
    owner.consumer.commit({Partition("commands", 0): Position(2)}, timeout_s=20)
    owner.consumer.close()
