"""MemoryLog: a Kafka cluster in memory behind Turnlog's port, for tests and simulations. Deterministic: no thread, no wall clock.

    cluster = MemoryCluster(now_ms=clock.now_ms, rng=random.Random(seed))
    cluster.create("journal", partitions=4)
    loop_1 = cluster.host("loop-1")              # a Cluster: give it to the code under test
    ...
    cluster.hold("journal")                      # from now on its appends and their acknowledgements wait
    for _ in range(10_000):
        moves = cluster.choices(faults=True)     # what the network could do next
        ...cluster.do(rng.choice(moves)), or let a host take a turn, or loop_1.crash(), or move the clock...

**Without faults** an append lands inside `produce` and its report is served by the next `poll` or `flush` of the producer. Nothing ever
waits: a `timeout_s` is taken as over when there is nothing (yet); time passes only when the test moves its clock.

**Appends under `hold`.** Every producer has one lane per partition, in the order of `produce`. Moves on a lane:
  land         the first record not in the log is appended
  ack          the first record's report is ready, with the offset of its last landing
  repeat       everything landed but not acknowledged is appended once more, in order: an epoch bump or an expired producer id (J2)
  ack_unknown  as ack, but the report has no offset (J7)
  fail         the producer is finished: every report is an error, further calls raise Fatal; what has not landed becomes a ghost
  vanish       a ghost never lands
Records that were purged by `close`, or whose host crashed, become ghosts: they `land` later, or `vanish`, or stay for ever. The
last four count as faults and are only offered by `choices(faults=True)`.

**The log itself**: `truncate` (the tail is lost), `recreate` (same name, new id, empty), `compact`, `expire` (retention), and DeleteRecords
through `Admin`. **Groups**: `forget` (positions expire), `forget_metadata`, `refuse_commits`; `MemoryHost.freeze` and `thaw` make a zombie
whose session ends while it sleeps; `crash` leaves it to the coordinator. **Back-pressure and refusals**: `queue_limit`, `refuse_appends`.

What it does not model: leaders and replicas, quotas, transactions, authorisation, batches (records land one by one), a record that is
landed but not yet readable. With `rng`, `poll` of a consumer chooses among its partitions at random and may return less than there is.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple

from turnlog.kafka.port import LogError, Partition, Position, UnknownTopic
from turnlog.testing.memory_clients import MemoryAdmin, MemoryConsumer, MemoryReader
from turnlog.testing.memory_group import Group
from turnlog.testing.memory_producer import Lane, MemoryProducer
from turnlog.testing.memory_store import PartitionLog, Topic

MoveKind = Literal["land", "ack", "repeat", "ack_unknown", "fail", "vanish"]
FAULTS: frozenset[MoveKind] = frozenset({"repeat", "ack_unknown", "fail", "vanish"})


class Move(NamedTuple):
    """Something the network may do next. Valid until the next call of anything; `producer` counts producers from 0."""

    kind: MoveKind
    producer: int
    partition: Partition


class MemoryCluster:
    """The cluster and its faults. It is itself a `Cluster`, whose clients live on a host without a name."""

    def __init__(
        self,
        now_ms: Callable[[], int],
        rng: random.Random | None = None,
        *,
        brokers: int = 1,
        session_timeout_ms: int = 10_000,
        max_poll_interval_ms: int = 300_000,
        queue_limit: int = 1_000_000,
    ) -> None:
        self.now_ms = now_ms
        self.rng = rng
        self.brokers = brokers
        self.queue_limit = queue_limit
        self.topics: dict[str, Topic] = {}
        self.producers: list[MemoryProducer] = []
        self._session_timeout_ms = session_timeout_ms
        self._max_poll_interval_ms = max_poll_interval_ms
        self._groups: dict[str, Group] = {}
        self._hosts: dict[str, MemoryHost] = {}
        self._topics_made = 0
        self._holding: set[str] = set()
        self._holding_all = False
        self._refused: dict[str, LogError] = {}

    # --- clients

    def host(self, name: str) -> MemoryHost:
        """The process of that name: its clients can be frozen and crashed together. The same name gives the same host."""
        return self._hosts.setdefault(name, MemoryHost(self, name))

    def producer(self, name: str, *, linger_ms: float = 0.0) -> MemoryProducer:
        return self.host("").producer(name, linger_ms=linger_ms)

    def consumer(self, group: str, *, instance_id: str | None = None) -> MemoryConsumer:
        return self.host("").consumer(group, instance_id=instance_id)

    def reader(self, name: str) -> MemoryReader:
        return MemoryReader(self, name)

    def admin(self) -> MemoryAdmin:
        return MemoryAdmin(self)

    # --- topics and records

    def create(
        self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None, replication: int = 1
    ) -> Topic:
        """A new topic; its id is new too, whatever was called so before."""
        self._topics_made += 1
        topic = Topic(name, f"{self._topics_made:06d}-topic", replication, dict(config or {}))
        topic.logs = [PartitionLog(Partition(name, i)) for i in range(partitions)]
        self.topics[name] = topic
        return topic

    def topic(self, name: str) -> Topic:
        try:
            return self.topics[name]
        except KeyError:
            raise UnknownTopic(f"no topic {name}", "UNKNOWN_TOPIC_OR_PART") from None

    def log(self, where: Partition) -> PartitionLog:
        logs = self.topic(where.topic).logs
        if not 0 <= where.index < len(logs):
            raise UnknownTopic(f"no partition {where.topic}[{where.index}]", "UNKNOWN_TOPIC_OR_PART", where)
        return logs[where.index]

    def recreate(self, name: str) -> None:
        """The topic was deleted and made anew: empty, with another id. Consumers stand outside of it until they are told."""
        old = self.topic(name)
        self.create(name, len(old.logs), old.config, old.replication)

    def truncate(self, where: Partition, end: int) -> None:
        """The tail from `end` on is lost, acknowledged or not (power loss, unclean election)."""
        self.log(where).truncate(end)

    def compact(self, name: str, *, tombstones: bool = False, spare: int = 1) -> None:
        """Compaction runs; the last `spare` offsets (the active segment) are not touched."""
        for log in self.topic(name).logs:
            log.compact(log.end - spare, tombstones=tombstones)

    def expire(self, name: str, before_ms: int) -> None:
        """Time retention: records appended before `before_ms` go, from the begin of the log up to the first younger one."""
        for log in self.topic(name).logs:
            log.drop_before(next((r.offset for r in log if r.timestamp_ms >= before_ms), log.end))

    # --- appends

    def hold(self, *topics: str) -> None:
        """Appends to these topics (none named: to every topic) wait for `do` from now on, and so do their acknowledgements."""
        self._holding.update(topics)
        self._holding_all = self._holding_all or not topics

    def release(self) -> None:
        """Hold nothing any more; what waits lands and is acknowledged, in order. Ghosts stay where they are."""
        self._holding.clear()
        self._holding_all = False
        for lane in list(self._lanes()):
            if not lane.ghost:
                lane.settle()

    def holds(self, topic: str) -> bool:
        return self._holding_all or topic in self._holding

    def choices(self, *, faults: bool = False) -> list[Move]:
        """Every move that is possible now, in an order that depends on history alone."""
        return [
            Move(kind, lane.producer.number, lane.log.where)
            for lane in self._lanes()
            for kind in lane.moves()
            if faults or lane.ghost or kind not in FAULTS
        ]

    def do(self, move: Move) -> None:
        """Let one move of `choices` happen."""
        self.producers[move.producer].lanes[move.partition].do(move.kind)

    def lane(self, producer: int, partition: Partition) -> Lane:
        """What is under way from one producer to one partition, to look at."""
        return self.producers[producer].lanes[partition]

    def _lanes(self) -> Iterator[Lane]:
        for producer in self.producers:
            yield from producer.lanes.values()

    def refuse_appends(self, topic: str, error: LogError | None) -> None:
        """Records for this topic get `error` as their report instead of landing; None ends it."""
        if error is None:
            self._refused.pop(topic, None)
        else:
            self._refused[topic] = error

    def refusal(self, topic: str) -> LogError | None:
        return self._refused.get(topic)

    # --- groups

    def group(self, name: str) -> Group:
        """The group's coordinator; it exists from the first question on."""
        return self._groups.setdefault(
            name,
            Group(
                name,
                self.now_ms,
                session_timeout_ms=self._session_timeout_ms,
                max_poll_interval_ms=self._max_poll_interval_ms,
            ),
        )

    def forget(self, group: str, *partitions: Partition) -> None:
        """Committed positions are gone (none named: all), as after `offsets.retention.minutes`."""
        positions = self.group(group).positions
        for partition in partitions or list(positions):
            positions.pop(partition, None)

    def forget_metadata(self, group: str) -> None:
        """The text beside every position is gone: somebody committed plainly."""
        positions = self.group(group).positions
        positions.update({partition: Position(at.offset) for partition, at in positions.items()})

    def refuse_commits(self, group: str, *errors: LogError) -> None:
        """The next commits of the group are answered with these, one each."""
        self.group(group).refusals.extend(errors)


class MemoryHost:
    """One process's view of the cluster: a `Cluster` whose clients share their fate."""

    def __init__(self, cluster: MemoryCluster, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self._producers: list[MemoryProducer] = []
        self._consumers: list[MemoryConsumer] = []

    def producer(self, name: str, *, linger_ms: float = 0.0) -> MemoryProducer:
        del linger_ms  # there is no time in here
        producer = MemoryProducer(self._cluster, name, len(self._cluster.producers))
        self._cluster.producers.append(producer)
        self._producers.append(producer)
        return producer

    def consumer(self, group: str, *, instance_id: str | None = None) -> MemoryConsumer:
        consumer = MemoryConsumer(self._cluster, self._cluster.group(group), instance_id)
        self._consumers.append(consumer)
        return consumer

    def reader(self, name: str) -> MemoryReader:
        return self._cluster.reader(name)

    def admin(self) -> MemoryAdmin:
        return self._cluster.admin()

    def freeze(self) -> None:
        """SIGSTOP: no heartbeats; the test must not run the host's code until `thaw`. What it sent is under way all the same."""
        for consumer in self._consumers:
            consumer.silence()

    def thaw(self) -> None:
        """SIGCONT. Heartbeats go on, if the session did not end meanwhile; else the next `poll` says `lost`, or raises Fatal."""
        for consumer in self._consumers:
            consumer.revive()

    def crash(self) -> None:
        """kill -9: no callback runs any more, members stay until their session ends, what has not landed becomes ghosts.

        The host can be used again at once, by new clients.
        """
        self.freeze()
        for producer in self._producers:
            producer.abandon()
        self._producers, self._consumers = [], []
