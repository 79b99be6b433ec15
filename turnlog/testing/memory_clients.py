"""Consumer, reader and admin of MemoryLog."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from turnlog.kafka.port import (
    Fatal,
    LogError,
    NewTopic,
    NotOwner,
    OffsetGone,
    Partition,
    Position,
    Rebalance,
    Received,
    Refused,
    Retryable,
    TopicInfo,
    UnknownTopic,
)
from turnlog.testing.memory_group import Group, Member

if TYPE_CHECKING:
    from turnlog.testing.memory_log import MemoryCluster

_BATCH = 500


class Cursor:
    """Positions in several partitions and the choice of what is delivered next."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self.positions: dict[Partition, int] = {}
        self.paused: set[Partition] = set()

    def drop(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            self.positions.pop(partition, None)
            self.paused.discard(partition)

    def next(self, most: int) -> list[Received]:
        """Up to `most` records. A partition whose position is outside the log is dropped with OffsetGone."""
        found: list[Received] = []
        for where in self._order():
            found += self._take(where, self._some(most - len(found)))
            if len(found) >= most:
                break
        return found

    def _order(self) -> list[Partition]:
        """Oldest position first without chance, else any order."""
        ready = [where for where in sorted(self.positions) if where not in self.paused]
        if self._cluster.rng is not None:
            self._cluster.rng.shuffle(ready)
        return ready

    def _some(self, most: int) -> int:
        return most if self._cluster.rng is None else self._cluster.rng.randint(min(1, most), most)

    def _take(self, where: Partition, most: int) -> list[Received]:
        start = self.positions[where]
        try:
            log = self._cluster.log(where)
            log.check(start)
        except (OffsetGone, UnknownTopic):
            self.drop([where])
            raise
        records = log.read(start, most)
        if records:
            self.positions[where] = records[-1].offset + 1
        return records


class MemoryConsumer:
    """See `port.Consumer`. One step of a rebalance per `poll`, so that a test sees every state between."""

    def __init__(self, cluster: MemoryCluster, group: Group, instance_id: str | None) -> None:
        self._cluster = cluster
        self._group = group
        self._instance_id = instance_id
        self._topic = ""
        self._rebalance: Rebalance | None = None
        self._member: Member | None = None
        self._cursor = Cursor(cluster)
        self._answers: list[tuple[Callable[[LogError | None], None], LogError | None]] = []
        self._fatal: Fatal | None = None
        self._found: list[Received] = []
        self._inside = ""  # the callback under way
        self._closed = False

    def subscribe(self, topic: str, rebalance: Rebalance) -> None:
        self._topic, self._rebalance = topic, rebalance
        self._join()

    def _join(self) -> None:
        partitions = len(self._cluster.topic(self._topic).logs)
        self._member = self._group.join(self._instance_id, partitions)

    def owned(self) -> frozenset[int]:
        return frozenset(self._member.held) if self._member is not None else frozenset()

    # --- records

    def poll(self, timeout_s: float, most: int = 500) -> list[Received]:
        del timeout_s
        if self._closed:
            raise Fatal(f"consumer of {self._group.name} is closed", "_DESTROY")
        self._answer()
        if self._member is not None and self._turn(self._member):
            return []
        return self._cursor.next(most)

    def _answer(self) -> None:
        answers, self._answers = self._answers, []
        for on_done, problem in answers:
            on_done(problem)

    def _turn(self, member: Member) -> bool:
        """One step of membership; whether there was one."""
        self._group.tick()
        if self._group.fenced(member):
            self._fatal = Fatal(f"{self._group.name}: instance id {self._instance_id} was taken", "FENCED_INSTANCE_ID")
        if self._fatal is not None:
            raise self._fatal
        member.polled_ms = self._cluster.now_ms()
        if not self._group.knows(member):
            self._lose(member)
            return True
        if gone := self._group.to_revoke(member):
            self._give_up(member, gone, "revoked")
            return True
        member.generation = self._group.generation
        if new := self._group.to_assign(member):
            member.held.update(new)
            self._call("assigned", new)
            return True
        return False

    def _lose(self, member: Member) -> None:
        if member.held:
            self._give_up(member, sorted(member.held), "lost")
        self._join()

    def _give_up(self, member: Member, gone: list[int], how: str) -> None:
        member.held.difference_update(gone)
        try:
            self._call(how, gone)
        finally:
            self._cursor.drop(Partition(self._topic, i) for i in gone)

    def _call(self, how: str, partitions: list[int]) -> None:
        self._inside = how
        try:
            getattr(self._rebalance, how)(partitions)
        finally:
            self._inside = ""

    def add(self, offsets: Mapping[Partition, int]) -> None:
        if self._inside in ("revoked", "lost"):
            raise Refused("add inside revoked or lost: remove only")
        for partition in offsets:
            self._cluster.log(partition)
        self._cursor.positions.update(offsets)
        self._cursor.paused.difference_update(offsets)

    def remove(self, partitions: Iterable[Partition]) -> None:
        if self._inside == "assigned":
            raise Refused("remove inside assigned: add only")
        self._cursor.drop(partitions)

    def pause(self, partitions: Iterable[Partition]) -> None:
        self._cursor.paused.update(p for p in partitions if p in self._cursor.positions)

    def resume(self, partitions: Iterable[Partition]) -> None:
        self._cursor.paused.difference_update(partitions)

    # --- positions

    def commit(self, positions: Mapping[Partition, Position], *, timeout_s: float = 10.0) -> None:
        del timeout_s
        if self._fatal is not None:
            raise self._fatal
        if self._closed:
            raise NotOwner(f"consumer of {self._group.name} is closed", "_DESTROY")
        if positions:
            self._group.commit(self._member, dict(positions))

    def commit_soon(
        self, positions: Mapping[Partition, Position], on_done: Callable[[LogError | None], None] | None = None
    ) -> None:
        problem: LogError | None = None
        try:
            self.commit(positions)
        except LogError as error:
            problem = error
        if positions and on_done is not None:
            self._answers.append((on_done, problem))

    def committed(
        self, partitions: Iterable[Partition], *, timeout_s: float = 10.0
    ) -> dict[Partition, Position | None]:
        del timeout_s
        return {partition: self._group.positions.get(partition) for partition in partitions}

    # --- the end

    def close(self, *, leave: bool = False) -> None:
        member = self._member
        if self._closed:
            return
        if member is not None and self._group.knows(member):
            if member.held:
                self._give_up_at_close(member)
            if leave or self._instance_id is None:
                self._group.leave(member)
            else:
                self.silence()
        self._answer()
        self._closed = True

    def _give_up_at_close(self, member: Member) -> None:
        held = sorted(member.held)
        stays = set(member.held) if self._instance_id is not None else set()
        self._give_up(member, held, "revoked")
        member.held |= stays  # a static member's partitions wait for it in the group

    def silence(self) -> None:
        """No heartbeats from now on."""
        if self._member is not None and self._member.silent_since_ms is None:
            self._member.silent_since_ms = self._cluster.now_ms()

    def revive(self) -> None:
        """Heartbeats again; too late if the session ended meanwhile."""
        self._group.tick()
        if self._member is not None:
            self._member.silent_since_ms = None
            self._member.polled_ms = max(self._member.polled_ms, self._cluster.now_ms())


class MemoryReader:
    """See `port.Reader`."""

    def __init__(self, cluster: MemoryCluster, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self._cursor = Cursor(cluster)

    def bounds(self, partition: Partition, *, timeout_s: float = 10.0) -> tuple[int, int]:
        del timeout_s
        log = self._cluster.log(partition)
        return log.first, log.end

    def read(self, partition: Partition, start: int, end: int, *, timeout_s: float = 60.0) -> Iterator[list[Received]]:
        """As the real one; but if the log ends before `end` the time counts as over at once."""
        del timeout_s
        while start < end:
            log = self._cluster.log(partition)
            log.check(start)
            batch = log.read(start, _BATCH if self._cluster.rng is None else self._cluster.rng.randint(1, _BATCH), end)
            if not batch:
                if log.end < end:
                    text = f"read {partition.topic}[{partition.index}] up to {end}: the log ends at {log.end}"
                    raise Retryable(text, "_TIMED_OUT", partition)
                return
            yield batch
            start = batch[-1].offset + 1

    def read_at(self, partition: Partition, offsets: Sequence[int], *, timeout_s: float = 30.0) -> list[Received]:
        del timeout_s
        log = self._cluster.log(partition)
        found = [record for offset in offsets for record in log.read(offset, 1, offset + 1)]
        missing = sorted(set(offsets) - {record.offset for record in found})
        if missing:
            raise OffsetGone(f"no record at {partition.topic}[{partition.index}]@{missing[0]}", "", partition)
        return found

    def follow(self, offsets: Mapping[Partition, int]) -> None:
        for partition in offsets:
            self._cluster.log(partition)
        self._cursor.positions.update(offsets)

    def unfollow(self, partitions: Iterable[Partition]) -> None:
        self._cursor.drop(partitions)

    def poll(self, timeout_s: float, most: int = 500) -> list[Received]:
        del timeout_s
        return self._cursor.next(most)

    def close(self) -> None:
        self._cursor.drop(list(self._cursor.positions))


class MemoryAdmin:
    """See `port.Admin`."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster

    def topics(
        self, names: Sequence[str] | None = None, *, with_config: bool = False, timeout_s: float = 30.0
    ) -> dict[str, TopicInfo]:
        del timeout_s
        wanted = list(self._cluster.topics) if names is None else names
        found = {name: self._cluster.topics[name] for name in wanted if name in self._cluster.topics}
        return {
            name: TopicInfo(name, t.topic_id, len(t.logs), t.replication, dict(t.config) if with_config else {})
            for name, t in found.items()
        }

    def create_topics(self, topics: Sequence[NewTopic], *, timeout_s: float = 30.0) -> dict[str, LogError | None]:
        del timeout_s
        return {topic.name: self._create(topic) for topic in topics}

    def _create(self, topic: NewTopic) -> LogError | None:
        if topic.name in self._cluster.topics:
            return Refused(f"create {topic.name}: it exists", "TOPIC_ALREADY_EXISTS")
        if topic.replication > self._cluster.brokers:
            text = f"create {topic.name}: {topic.replication} replicas on {self._cluster.brokers} brokers"
            return Refused(text, "INVALID_REPLICATION_FACTOR")
        self._cluster.create(topic.name, topic.partitions, topic.config, topic.replication)
        return None

    def delete_topics(self, names: Sequence[str]) -> None:
        unknown = [name for name in names if self._cluster.topics.pop(name, None) is None]
        if unknown:
            raise UnknownTopic(f"delete {unknown[0]}: no such topic", "UNKNOWN_TOPIC_OR_PART")

    def delete_records(self, before: Mapping[Partition, int]) -> None:
        for partition, offset in before.items():
            self._cluster.log(partition).drop_before(offset)

    def group_positions(self, group: str, partitions: Sequence[Partition]) -> dict[Partition, Position | None]:
        positions = self._cluster.group(group).positions
        return {partition: positions.get(partition) for partition in partitions}

    def reset_positions(self, group: str, positions: Mapping[Partition, Position]) -> None:
        coordinator = self._cluster.group(group)
        coordinator.tick()
        if coordinator.members:
            raise NotOwner(f"reset positions of {group}: it has members", "UNKNOWN_MEMBER_ID")
        coordinator.positions.update(positions)

    def ends(self, partitions: Sequence[Partition]) -> dict[Partition, tuple[int, int]]:
        logs = {partition: self._cluster.log(partition) for partition in partitions}
        return {partition: (log.first, log.end) for partition, log in logs.items()}

    def brokers(self) -> int:
        return self._cluster.brokers

    def close(self) -> None:
        """Nothing to release."""
