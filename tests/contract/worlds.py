"""Two worlds that the contract suite runs in: a real Kafka, and MemoryLog. A test sees only the port and the few verbs here."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from turnlog.kafka.client import KafkaCluster
from turnlog.kafka.port import Cluster, Consumer, NewTopic, Partition, Received, Retryable, UnknownTopic
from turnlog.testing import MemoryCluster

SESSION_MS = 3_000
QUEUE_LIMIT = 100
PATIENCE_S = 30.0


class World(Protocol):
    """Where a test happens. Names it gives are unlike all others."""

    @property
    def cluster(self) -> Cluster: ...
    def topic(self, partitions: int = 1, config: Mapping[str, str] | None = None) -> str: ...
    def now_ms(self) -> int: ...
    def step(self) -> None:
        """A moment passes."""

    def unreachable(self) -> Cluster:
        """A cluster whose appends are not answered."""

    def impatient(self) -> Cluster:
        """The same cluster for members that leave their group when they do not poll for about a second."""

    def small(self) -> Cluster:
        """The same cluster with room for QUEUE_LIMIT records in a producer's local queue."""

    def compact(self, topic: str) -> None:
        """Compaction has run when this returns, whatever it left."""


class MemoryWorld:
    """MemoryLog with a clock that moves by 50 ms whenever a test waits."""

    def __init__(self) -> None:
        self._ms = 1_700_000_000_000
        self._names = itertools.count()
        self.cluster = self._make()

    def _make(self, max_poll_interval_ms: int = 300_000) -> MemoryCluster:
        return MemoryCluster(self.now_ms, session_timeout_ms=SESSION_MS, max_poll_interval_ms=max_poll_interval_ms)

    def topic(self, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        name = f"topic-{next(self._names)}"
        self.cluster.create(name, partitions, config)
        return name

    def now_ms(self) -> int:
        return self._ms

    def step(self) -> None:
        self._ms += 50

    def unreachable(self) -> MemoryCluster:
        self.cluster.hold()
        return self.cluster

    def impatient(self) -> MemoryCluster:
        other = self._make(max_poll_interval_ms=1_000)
        other.topics = self.cluster.topics
        return other

    def small(self) -> MemoryCluster:
        self.cluster.queue_limit = QUEUE_LIMIT
        return self.cluster

    def compact(self, topic: str) -> None:
        self.cluster.compact(topic)


class KafkaWorld:
    """A real broker; topics are deleted at the end."""

    def __init__(self, bootstrap: str) -> None:
        # The propagation time is how long the library believes that an unknown topic is only being created (30 s).
        self._config = {
            "bootstrap.servers": bootstrap,
            "session.timeout.ms": str(SESSION_MS),
            "heartbeat.interval.ms": "200",
            "topic.metadata.propagation.max.ms": "1000",
        }
        self.cluster = KafkaCluster(self._config)
        self._admin = self.cluster.admin()
        self._made: list[str] = []

    def _make(self, **options: str) -> KafkaCluster:
        return KafkaCluster({**self._config, **{name.replace("_", "."): value for name, value in options.items()}})

    def topic(self, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        name = f"contract-{uuid.uuid4().hex[:10]}"
        (problem,) = self._admin.create_topics([NewTopic(name, partitions, 1, dict(config or {}))]).values()
        if problem is not None:
            raise problem
        self._made.append(name)
        wait_for(self, lambda: self._serves(name, partitions), f"the topic {name}")
        return name

    def _serves(self, name: str, partitions: int) -> bool:
        try:
            return bool(self._admin.ends([Partition(name, i) for i in range(partitions)]))
        except (Retryable, UnknownTopic):
            time.sleep(0.02)
            return False

    def now_ms(self) -> int:
        return int(time.time() * 1000)

    def step(self) -> None:
        """Polls wait; nothing to do."""

    def unreachable(self) -> KafkaCluster:
        return self._make(bootstrap_servers="127.0.0.1:1")

    def impatient(self) -> KafkaCluster:
        return self._make(session_timeout_ms="1000", max_poll_interval_ms="1000")

    def small(self) -> KafkaCluster:
        return self._make(queue_buffering_max_messages=str(QUEUE_LIMIT))

    def compact(self, topic: str) -> None:
        """A compacted log is a shorter one: wait for a hole. Needs small segments and dirty ratio in the topic's configuration."""
        reader = self.cluster.reader("compaction")
        where = Partition(topic, 0)
        first, end = reader.bounds(where)
        until = time.monotonic() + 60
        while sum(len(batch) for batch in reader.read(where, first, end)) == end - first:
            assert time.monotonic() < until, "the broker did not compact"
            time.sleep(0.5)
        reader.close()

    def close(self) -> None:
        existing = self._admin.topics(self._made)
        self._admin.delete_topics(list(existing))


def wait_for(world: World, condition: Callable[[], bool], what: str) -> None:
    """Ask again and again, time passing in between, until it holds. `condition` polls by itself."""
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, f"still waiting for {what}"
        world.step()


def append(world: World, topic: str, values: Sequence[bytes], *, partition: int = 0) -> list[int]:
    """Appended and acknowledged; their offsets."""
    producer = world.cluster.producer("append")
    offsets: list[int] = []
    for value in values:
        producer.produce(topic, value, partition=partition, on_delivery=lambda d: offsets.append(d.offset or 0))
    assert producer.flush(10) == 0
    producer.close()
    return offsets


def read_all(world: World, topic: str, partition: int = 0) -> list[Received]:
    reader = world.cluster.reader("read-all")
    where = Partition(topic, partition)
    found = [record for batch in reader.read(where, *reader.bounds(where)) for record in batch]
    reader.close()
    return found


@dataclass
class Member:
    """A group member that writes down what happens to it, and adds what it is given from where the test says."""

    consumer: Consumer
    topic: str
    beside: tuple[str, ...] = ()
    start: int | None = 0  # None: the test adds by itself
    events: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    records: list[Received] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.consumer.subscribe(self.topic, self)

    def assigned(self, partitions: Sequence[int]) -> None:
        self.events.append(("assigned", tuple(sorted(partitions))))
        self.waiting += partitions

    def revoked(self, partitions: Sequence[int]) -> None:
        self._gone("revoked", partitions)

    def lost(self, partitions: Sequence[int]) -> None:
        self._gone("lost", partitions)

    def _gone(self, how: str, partitions: Sequence[int]) -> None:
        self.events.append((how, tuple(sorted(partitions))))
        self.waiting = [i for i in self.waiting if i not in partitions]
        self.consumer.remove([Partition(topic, i) for topic in self.beside for i in partitions])

    def turn(self, timeout_s: float = 0.05) -> None:
        self.records += self.consumer.poll(timeout_s)
        if self.waiting and self.start is not None:
            new, self.waiting = self.waiting, []
            self.consumer.add({Partition(topic, i): self.start for topic in (self.topic, *self.beside) for i in new})

    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records]


def turns(*members: Member) -> Callable[[], None]:
    """One turn of each."""

    def all_of_them() -> None:
        for member in members:
            member.turn()

    return all_of_them


def settle(world: World, condition: Callable[[], bool], *members: Member, what: str = "the group") -> None:
    """Let the members poll until the condition holds."""
    both = turns(*members)

    def ask() -> bool:
        both()
        return condition()

    wait_for(world, ask, what)
