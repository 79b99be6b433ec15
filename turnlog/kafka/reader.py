"""Reading partitions from explicit offsets with confluent-kafka, outside any group.

`read` and `read_at` borrow a client from a small pool, so that restores of several partitions run side by side and a
parked run is read back without the 20 ms that a new client needs; `follow` and `poll` have a client of their own.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from confluent_kafka import Consumer as LibraryConsumer
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from turnlog.kafka.consumer import received, serious
from turnlog.kafka.errors import translate, translated
from turnlog.kafka.port import LogError, NotAuthorised, OffsetGone, Partition, Received, Retryable

_log = logging.getLogger(__name__)

_METADATA_S = 10.0
_BATCH = 1000
_IDLE_CLIENTS = 4
_AGAIN_S = 0.1
# A bounded read meets the end of the log when its range ends in a hole: it must not wait 500 ms for news there.
_BOUNDED_READS = {"enable.partition.eof": True, "fetch.wait.max.ms": 10}
# Records that lie closer than this are read through rather than sought one by one (a seek costs about 1 ms, a record 2 µs).
_SEEK_GAP = 200


class KafkaReader:
    """See `port.Reader`. `bounds`, `read` and `read_at` may be called by any threads at once; `follow`, `unfollow` and `poll` by one."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        self._config = config
        self._name = name
        self._idle: list[_Bounded] = []
        self._lock = threading.Lock()
        self._closed = False
        self._follower: _Follower | None = None

    def bounds(self, partition: Partition, *, timeout_s: float = 10.0) -> tuple[int, int]:
        """Asks again until the time is over, each time with another client: right after a broker's start leaders are not known yet,
        and a client that knew the broker before its restart is refused for ever (FENCED_LEADER_EPOCH)."""
        until = time.monotonic() + timeout_s
        while True:
            try:
                with self._borrowed() as client:
                    return client.bounds(partition, max(0.1, until - time.monotonic()))
            except Retryable:
                if time.monotonic() + _AGAIN_S >= until:
                    raise
                time.sleep(_AGAIN_S)

    def read(self, partition: Partition, start: int, end: int, *, timeout_s: float = 60.0) -> Iterator[list[Received]]:
        """Batches of [start, end). The time runs from the first batch asked for, pauses of the caller included."""
        with self._borrowed() as client:
            yield from client.read(partition, start, end, time.monotonic() + timeout_s)

    def read_at(self, partition: Partition, offsets: Sequence[int], *, timeout_s: float = 30.0) -> list[Received]:
        """The records at these ascending offsets; OffsetGone names the first that is missing."""
        until = time.monotonic() + timeout_s
        found: list[Received] = []
        with self._borrowed() as client:
            for group in _near(offsets):
                wanted = set(group)
                for batch in client.read(partition, group[0], group[-1] + 1, until):
                    found += [record for record in batch if record.offset in wanted]
        missing = sorted(set(offsets) - {record.offset for record in found})
        if missing:
            raise OffsetGone(f"no record at {partition.topic}[{partition.index}]@{missing[0]}", "", partition)
        return found

    def follow(self, offsets: Mapping[Partition, int]) -> None:
        if self._follower is None:
            self._follower = _Follower(self._config, self._name)
        self._follower.follow(offsets)

    def unfollow(self, partitions: Iterable[Partition]) -> None:
        if self._follower is not None:
            self._follower.unfollow(partitions)

    def poll(self, timeout_s: float, most: int = 500) -> list[Received]:
        """Next records of the followed partitions; with none followed it returns at once."""
        return [] if self._follower is None else self._follower.poll(timeout_s, most)

    def close(self) -> None:
        """Reads still under way in other threads end with their own client."""
        with self._lock:
            self._closed, idle, self._idle = True, self._idle, []
        for client in idle:
            client.close()
        if self._follower is not None:
            self._follower.close()

    @contextlib.contextmanager
    def _borrowed(self) -> Iterator[_Bounded]:
        with self._lock:
            client = self._idle.pop() if self._idle else None
        if client is None:
            client = _Bounded(self._config, self._name)
        sound = True
        try:
            yield client
        except LogError:
            sound = False  # what it knows of the cluster may be stale: the next one starts afresh
            raise
        finally:
            with self._lock:
                keep = sound and not self._closed and len(self._idle) < _IDLE_CLIENTS
                if keep:
                    self._idle.append(client)
            if not keep:
                client.close()


def _near(offsets: Sequence[int]) -> Iterator[list[int]]:
    """Ascending offsets in groups that are read in one go."""
    group = list(offsets[:1])
    for before, offset in pairwise(offsets):
        if offset - before > _SEEK_GAP:
            yield group
            group = []
        group.append(offset)
    if group:
        yield group


class _Client:
    """What both kinds share: one library consumer that never joins its group."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        self._name = name
        self._known_topics: set[str] = set()
        try:
            self._client = LibraryConsumer({**config, "error_cb": self._on_error})
        except KafkaException as error:
            raise translated(error, f"reader {name}") from error

    def _learn(self, topic: str) -> None:
        """Without this the first fetch of a topic starts 1.0 to 1.5 s late (consumer.py)."""
        if topic in self._known_topics:
            return
        found = self._client.list_topics(topic, timeout=_METADATA_S).topics[topic]
        if found.error is not None:
            raise translate(found.error, f"look up {topic}")
        self._known_topics.add(topic)

    def _problem(self, message: Message, error: KafkaError) -> LogError | None:
        where = Partition(message.topic() or "", message.partition() or 0)
        problem = translate(error, f"read {where.topic}[{where.index}]", where)
        # The library looks for the coordinator of the group id it insists on; that we may not use the group is no matter.
        if serious(problem) and not (isinstance(problem, NotAuthorised) and problem.code.startswith("GROUP_")):
            return problem
        _log.warning("%s", problem)
        return None

    def close(self) -> None:
        self._client.close()

    def _on_error(self, error: KafkaError) -> None:
        _log.warning("%s", translate(error, f"reader {self._name}"))


class _Bounded(_Client):
    """Reads one range at a time."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        super().__init__({**config, **_BOUNDED_READS}, name)

    def bounds(self, partition: Partition, timeout_s: float) -> tuple[int, int]:
        try:
            self._learn(partition.topic)
            return self._client.get_watermark_offsets(TopicPartition(*partition), timeout=timeout_s)
        except KafkaException as error:
            raise translated(error, f"bounds of {partition.topic}[{partition.index}]", partition) from error

    def read(self, partition: Partition, start: int, end: int, until: float) -> Iterator[list[Received]]:
        if start >= end:
            return
        try:
            self._learn(partition.topic)
            self._client.assign([TopicPartition(*partition, start)])
            yield from self._batches(partition, end, until)
        except KafkaException as error:
            raise translated(error, f"read {partition.topic}[{partition.index}]", partition) from error
        finally:
            self._client.unassign()

    def _batches(self, partition: Partition, end: int, until: float) -> Iterator[list[Received]]:
        while True:
            left = until - time.monotonic()
            if left <= 0:
                raise Retryable(
                    f"read {partition.topic}[{partition.index}] up to {end}: the time is over", "_TIMED_OUT", partition
                )
            first = self._client.poll(min(left, 1.0))
            if first is None:
                continue
            batch, at = self._sorted_out([first, *self._client.consume(_BATCH - 1, 0)], end)
            if batch:
                yield batch
            if at >= end:
                return

    def _sorted_out(self, messages: Sequence[Message], end: int) -> tuple[list[Received], int]:
        """The records below `end`, and how far the log is known now (its end where the library met it)."""
        records: list[Message] = []
        at = -1
        for message in messages:
            error = message.error()
            offset = message.offset()
            if error is None:
                records.append(message)
                at = (offset or 0) + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                at = max(at, -1 if offset is None else offset)
            elif (problem := self._problem(message, error)) is not None:
                raise problem
        batch = received(records)
        while batch and batch[-1].offset >= end:
            batch.pop()
        return batch, at


class _Follower(_Client):
    """Follows partitions as they grow."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        super().__init__(config, name)
        self._followed: set[Partition] = set()
        self._failures: list[LogError] = []

    def follow(self, offsets: Mapping[Partition, int]) -> None:
        self.unfollow(offsets)
        try:
            for partition in offsets:
                self._learn(partition.topic)
            self._client.incremental_assign([TopicPartition(*p, offset) for p, offset in offsets.items()])
        except KafkaException as error:
            raise translated(error, "follow") from error
        self._followed.update(offsets)

    def unfollow(self, partitions: Iterable[Partition]) -> None:
        gone = self._followed.intersection(partitions)
        if gone:
            self._client.incremental_unassign([TopicPartition(*p) for p in gone])
            self._followed -= gone

    def poll(self, timeout_s: float, most: int) -> list[Received]:
        if self._failures:
            raise self._failures.pop(0)
        if not self._followed:
            return []
        try:
            first = self._client.poll(timeout_s)
            if first is None:
                return []
            messages = [first, *self._client.consume(most - 1, 0)] if most > 1 else [first]
        except KafkaException as error:
            raise translated(error, "follow") from error
        return received(messages if all(m.error() is None for m in messages) else self._sound(messages))

    def _sound(self, messages: Sequence[Message]) -> list[Message]:
        """Without the errors, which the next poll raises (this one, if there is nothing else)."""
        records = []
        for message in messages:
            error = message.error()
            if error is None:
                records.append(message)
            elif (problem := self._problem(message, error)) is not None:
                self._failures.append(problem)
        if not records and self._failures:
            raise self._failures.pop(0)
        return records
