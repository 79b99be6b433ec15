"""The producer of MemoryLog: a lane per partition, on which appends and acknowledgements move when the cluster lets them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from turnlog.kafka.partitioner import partition_of
from turnlog.kafka.port import (
    Delivered,
    Fatal,
    Headers,
    LogError,
    OnDelivery,
    Partition,
    QueueFull,
    Retryable,
    TooLarge,
    UnknownTopic,
)
from turnlog.testing.memory_store import PartitionLog, size_of

if TYPE_CHECKING:
    from turnlog.testing.memory_log import MemoryCluster, MoveKind

# message.max.bytes of the real producer.
CLIENT_MAX_BYTES = 1024 * 1024


@dataclass
class Sent:
    """A record under way. `offsets` are its landings; more than one means repeats (J2)."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    on_delivery: OnDelivery | None
    offsets: list[int] = field(default_factory=list)


class Lane:
    """What one producer has under way to one partition, oldest first. A ghost lane belongs to a producer that is no more."""

    def __init__(self, producer: MemoryProducer, log: PartitionLog) -> None:
        self.producer = producer
        self.log = log
        self.sent: deque[Sent] = deque()
        self.ghost = False

    def moves(self) -> list[MoveKind]:
        landed, waiting = self._landed(), any(not sent.offsets for sent in self.sent)
        moves: list[MoveKind] = ["land"] if waiting else []
        if self.ghost:
            return [*moves, "vanish"] if waiting else []
        if landed:
            moves += ["ack", "repeat", "ack_unknown"]
        return [*moves, "fail"] if self.sent else moves

    def do(self, kind: MoveKind) -> None:
        match kind:
            case "land":
                self._land(next(sent for sent in self.sent if not sent.offsets))
            case "ack" | "ack_unknown":
                sent = self.sent.popleft()
                self._report(sent, sent.offsets[-1] if kind == "ack" else None, None)
            case "repeat":
                for sent in self._landed():
                    self._append(sent)
            case "vanish":
                self.sent.popleft()
            case "fail":
                self.producer.fail(
                    Fatal(f"producer {self.producer.name}: out of sequence", "OUT_OF_ORDER_SEQUENCE_NUMBER")
                )

    def settle(self) -> None:
        """Land and acknowledge everything."""
        while self.sent:
            self.do("ack" if self.sent[0].offsets else "land")

    def end(self, error: LogError) -> None:
        """The producer gives up: what is under way gets `error`; what has not landed may still land."""
        for sent in self.sent:
            self._report(sent, None, error)
        self.sent = deque(sent for sent in self.sent if not sent.offsets)
        self.ghost = True

    def _landed(self) -> list[Sent]:
        return [sent for sent in self.sent if sent.offsets]

    def _land(self, sent: Sent) -> None:
        problem = self._refusal(sent)
        if problem is None:
            self._append(sent)
            return
        self.sent.remove(sent)
        self._report(sent, None, problem)

    def _refusal(self, sent: Sent) -> LogError | None:
        cluster, where = self.producer.cluster, self.log.where
        if (refused := cluster.refusal(where.topic)) is not None:
            return refused
        topic = cluster.topics.get(where.topic)
        if topic is None or where.index >= len(topic.logs):
            return UnknownTopic(f"append to {where.topic}: deleted", "UNKNOWN_TOPIC_OR_PART", where)
        if size_of(sent.key, sent.value, sent.headers) > topic.max_bytes:
            return TooLarge(f"append to {where.topic}: more than {topic.max_bytes} bytes", "MSG_SIZE_TOO_LARGE", where)
        return None

    def _append(self, sent: Sent) -> None:
        cluster = self.producer.cluster
        self.log = cluster.log(self.log.where)  # the topic may have been made anew meanwhile
        sent.offsets.append(self.log.append(sent.key, sent.value, sent.headers, cluster.now_ms()))
        if self.ghost:
            self.sent.remove(sent)

    def _report(self, sent: Sent, offset: int | None, error: LogError | None) -> None:
        if not self.ghost:
            self.producer.reports.append((sent.on_delivery, Delivered(*self.log.where, offset, error)))


class MemoryProducer:
    """See `port.Producer`. `number` names it in moves."""

    def __init__(self, cluster: MemoryCluster, name: str, number: int) -> None:
        self.cluster = cluster
        self.name = name
        self.number = number
        self.lanes: dict[Partition, Lane] = {}
        self.reports: deque[tuple[OnDelivery | None, Delivered]] = deque()
        self._fatal: Fatal | None = None
        self._closed = False
        self._unkeyed = 0

    def produce(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Headers = (),
        on_delivery: OnDelivery | None = None,
    ) -> None:
        self._check(size_of(key, value, headers), topic)
        if topic not in self.cluster.topics:
            self._report_unknown(topic, partition, on_delivery)
            return
        sent = Sent(key, value, tuple(headers), on_delivery)
        lane = self._lane(topic, key, partition)
        lane.sent.append(sent)
        if not self.cluster.holds(topic):
            lane.settle()

    def _report_unknown(self, topic: str, partition: int | None, on_delivery: OnDelivery | None) -> None:
        error = UnknownTopic(f"append to {topic}: no such topic", "_UNKNOWN_TOPIC")
        self.reports.append((on_delivery, Delivered(topic, -1 if partition is None else partition, None, error)))

    def _check(self, size: int, topic: str) -> None:
        if self._closed:
            raise Fatal(f"producer {self.name} is closed", "_DESTROY")
        if self._fatal is not None:
            raise self._fatal
        if size > CLIENT_MAX_BYTES:
            raise TooLarge(f"append to {topic}: {size} bytes are more than {CLIENT_MAX_BYTES}", "MSG_SIZE_TOO_LARGE")
        if len(self) >= self.cluster.queue_limit:
            raise QueueFull(f"producer {self.name}: the local queue is full", "_QUEUE_FULL")

    def _lane(self, topic: str, key: bytes | None, partition: int | None) -> Lane:
        if partition is None:
            partition = self._choose(key, len(self.cluster.topic(topic).logs))
        where = Partition(topic, partition)
        log = self.cluster.log(where)
        if where not in self.lanes:
            self.lanes[where] = Lane(self, log)
        return self.lanes[where]

    def _choose(self, key: bytes | None, partitions: int) -> int:
        if key is not None:
            return partition_of(key, partitions)
        self._unkeyed += 1  # the real one takes any
        return self._unkeyed % partitions

    def poll(self, timeout_s: float = 0.0) -> int:
        del timeout_s
        served = 0
        # Reports that a callback causes are served by the next poll: else one that produces again would never end.
        for _ in range(len(self.reports)):
            on_delivery, report = self.reports.popleft()
            if on_delivery is not None:
                on_delivery(report)
            served += 1
        if not served and self._fatal is not None and not len(self):
            raise self._fatal
        return served

    def flush(self, timeout_s: float) -> int:
        while self.reports:
            self.poll(timeout_s)
        return len(self)

    def __len__(self) -> int:
        return sum(len(lane.sent) for lane in self.lanes.values() if not lane.ghost) + len(self.reports)

    def close(self) -> None:
        self._end(Retryable(f"producer {self.name}: purged", "_PURGE_INFLIGHT"))
        while self.reports:
            self.poll()
        self._closed = True

    def fail(self, error: Fatal) -> None:
        """A fatal error, as if met on its own."""
        self._fatal = error
        self._end(error)

    def abandon(self) -> None:
        """Its process died."""
        self._end(Retryable("", ""))
        self.reports.clear()
        self._closed = True

    def _end(self, error: LogError) -> None:
        for lane in self.lanes.values():
            if not lane.ghost:
                lane.end(error)
