"""The narrow port to Kafka: everything Turnlog's shells ask of a log, and nothing else.

Two implementations stand behind it: `turnlog.kafka.client` (confluent-kafka, a real cluster) and
`turnlog.testing.memory_log` (a faithful cluster in memory). `tests/contract` runs one suite on both.

Rules of the port
- Every client belongs to the thread that polls it; only `Consumer.commit`, `commit_soon` and `committed`, `Producer.produce` and the
  calls of `Reader` (but `follow`, `unfollow`, `poll`) and `Admin` may come from another thread. A commit of another thread goes out
  with the polling one, so it needs that one to poll (up to 20 ms each way). Callbacks run inside `poll` of the client they were given to.
- Nothing is retried silently beyond what the client library does for one request; nothing raises a library's own error.
- Offsets are those of the log; `None` means "not known".

Errors, sorted by what the caller must do (the tree of `LogError`):

    LogError
    ├── Retryable            ask again later: timeout, no leader, coordinator moving; a record purged by its own producer
    │   ├── Rebalancing      again after the rebalance: REBALANCE_IN_PROGRESS, ILLEGAL_GENERATION (J4)
    │   └── QueueFull        the local queue is full: poll, then produce again (back-pressure, not a failure)
    ├── Refused              this request will never succeed: too large, unknown topic, not authorised, invalid
    │   ├── TooLarge
    │   ├── NotAuthorised
    │   └── UnknownTopic
    ├── NotOwner             this member no longer owns what it asked for: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID
    ├── OffsetGone           a position is outside the log: the log was cut or made anew (J15)
    └── Fatal                the client is finished: close it and make another (J7)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

Headers = Sequence[tuple[str, bytes | None]]


class LogError(Exception):
    """A failure reported by the log. `code` is Kafka's own name for it, for logs and metrics; `partition` where it concerns one."""

    def __init__(self, message: str, code: str = "", partition: Partition | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.partition = partition


class Retryable(LogError):
    """The request may succeed later, unchanged."""


class Rebalancing(Retryable):
    """The group is rebalancing: ask again after the rebalance (J4)."""


class QueueFull(Retryable):
    """The producer's local queue is full: serve `poll`, then produce again."""


class Refused(LogError):
    """The request will never succeed as it is."""


class TooLarge(Refused):
    """The record is larger than the topic or the client allows."""


class NotAuthorised(Refused):
    """The cluster denies this principal the operation; the message names the right that is missing where known."""


class UnknownTopic(Refused):
    """The topic or partition does not exist."""


class NotOwner(LogError):
    """The member is no longer (or not yet) the owner of what it asked for."""


class OffsetGone(LogError):
    """The position asked for is not in the log: cut, trimmed or made anew."""


class Fatal(LogError):
    """The client instance can do nothing any more; a fatal error of the consumer means its instance id was taken (J3)."""


class Partition(NamedTuple):
    """One partition of one topic."""

    topic: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody asks of a partition


class Received(NamedTuple):
    """A record as it was read. `timestamp_ms` is LogAppendTime, milliseconds since the epoch (J16)."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


class Position(NamedTuple):
    """A committed position: the next offset to read and the text stored with it."""

    offset: int
    metadata: str = ""


class Delivered(NamedTuple):
    """What became of a produced record. `offset` is None when the log does not say where it is (J7)."""

    topic: str
    partition: int
    offset: int | None
    error: LogError | None


OnDelivery = Callable[[Delivered], None]


class Producer(Protocol):
    """Appends records. Idempotent, acks=all, unlimited delivery time, one request in flight (docs/journal.md, client settings).

    Records of one producer to one partition land in the order of `produce`. What was purged or cut off may still land.
    """

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
        """Queue one record; without `partition`, murmur2 of the key (Java's default) chooses. Raises QueueFull, TooLarge, Fatal, and
        UnknownTopic for a partition that a known topic does not have; a topic that does not exist shows in the report."""

    def poll(self, timeout_s: float = 0.0) -> int:
        """Serve delivery callbacks, waiting at most `timeout_s` for the first; returns how many ran."""

    def flush(self, timeout_s: float) -> int:
        """Serve callbacks until nothing is queued or the time is over; returns what is still queued."""

    def __len__(self) -> int:
        """Records queued or in flight."""

    def close(self) -> None:
        """Purge, poll, close. Purged records get a delivery error; they may land all the same (the fence voids them)."""


class Rebalance(Protocol):
    """Callbacks of a group member, called inside `Consumer.poll` and `close`, never with nothing. They must return at once: no restore
    in here. Both `revoked` and `lost` mean that the partition is not this member's any more; after `revoked` commits may still be
    accepted, but a member that slept may get its losses as `revoked` too."""

    def assigned(self, partitions: Sequence[int]) -> None: ...
    def revoked(self, partitions: Sequence[int]) -> None: ...
    def lost(self, partitions: Sequence[int]) -> None: ...


class Consumer(Protocol):
    """A member of a group: classic protocol, cooperative-sticky, optional static membership, no auto-commit.

    It subscribes to exactly one topic (J3); `assigned(i)` says that partition `i` is this member's:
    the owner then calls `add` with explicit offsets for it and for the co-partitioned topics. Until `add` names a partition,
    nothing of it is delivered. `auto.offset.reset=error`: a position outside the log raises OffsetGone from `poll`.
    """

    def subscribe(self, topic: str, rebalance: Rebalance) -> None: ...

    def poll(self, timeout_s: float, most: int = 500) -> list[Received]:
        """Wait at most `timeout_s` for the first record, return it with whatever else is fetched already (`poll`, then
        `consume(n, 0)`). Raises OffsetGone, Fatal, NotAuthorised, UnknownTopic; transient errors are logged and return []."""

    def add(self, offsets: Mapping[Partition, int]) -> None:
        """Begin (or begin anew) to deliver these partitions from these offsets (`incremental_assign`)."""

    def remove(self, partitions: Iterable[Partition]) -> None:
        """Stop delivering these partitions; unknown ones are ignored. In `revoked`/`lost` the subscribed topic's partition is
        removed together with the others, in one call, by the owner."""

    def pause(self, partitions: Iterable[Partition]) -> None: ...
    def resume(self, partitions: Iterable[Partition]) -> None: ...

    def owned(self) -> frozenset[int]:
        """Partitions of the subscribed topic that the group assigns to this member now."""

    def commit(self, positions: Mapping[Partition, Position], *, timeout_s: float = 10.0) -> None:
        """Commit and wait. Raises Retryable (again after the rebalance; or the time is over, and it may still happen), NotOwner, Fatal.
        On the polling thread rebalance callbacks may run meanwhile."""

    def commit_soon(
        self, positions: Mapping[Partition, Position], on_done: Callable[[LogError | None], None] | None = None
    ) -> None:
        """Commit without waiting; `on_done` runs inside a later `poll`."""

    def committed(
        self, partitions: Iterable[Partition], *, timeout_s: float = 10.0
    ) -> dict[Partition, Position | None]: ...

    def close(self, *, leave: bool = False) -> None:
        """Stop; `revoked` runs once more for what is still owned. A static member stays in the group by design, so that its restart is
        no rebalance; with `leave` it goes for good, and others have its partitions a heartbeat later."""


class Reader(Protocol):
    """Reads partitions from explicit offsets, outside any group. For restore, snapshots, audits, tables."""

    def bounds(self, partition: Partition, *, timeout_s: float = 10.0) -> tuple[int, int]:
        """(first offset, end offset) of the partition now. Raises UnknownTopic, Retryable."""

    def read(self, partition: Partition, start: int, end: int, *, timeout_s: float = 60.0) -> Iterable[list[Received]]:
        """Batches of [start, end) in order; ends at `end` also over holes of compaction and deletion.
        Raises OffsetGone when `start` lies before the log's begin, Retryable when the time is over."""

    def read_at(self, partition: Partition, offsets: Sequence[int], *, timeout_s: float = 30.0) -> list[Received]:
        """The records at these ascending offsets (all must exist). Raises OffsetGone."""

    def follow(self, offsets: Mapping[Partition, int]) -> None:
        """Add partitions to follow continuously from these offsets (for tables and projections)."""

    def unfollow(self, partitions: Iterable[Partition]) -> None: ...

    def poll(self, timeout_s: float, most: int = 500) -> list[Received]:
        """Next records of the followed partitions."""

    def close(self) -> None: ...


class TopicInfo(NamedTuple):
    """What the cluster says of one topic."""

    name: str
    topic_id: str
    partitions: int
    replication: int
    config: Mapping[str, str]


class NewTopic(NamedTuple):
    """A topic to create."""

    name: str
    partitions: int
    replication: int
    config: Mapping[str, str]


class Admin(Protocol):
    """Administration. Owns its client for its whole life (an AdminClient must outlive its futures)."""

    def topics(
        self, names: Sequence[str] | None = None, *, with_config: bool = False, timeout_s: float = 30.0
    ) -> dict[str, TopicInfo]:
        """Existing topics by name; absent names are absent from the answer. Raises Retryable that names the cluster's address where
        nobody answers within `timeout_s`, NotAuthorised where the cluster does not let us in."""

    def create_topics(self, topics: Sequence[NewTopic], *, timeout_s: float = 30.0) -> dict[str, LogError | None]:
        """Per topic None or why not; an existing topic is Refused with code TOPIC_ALREADY_EXISTS."""

    def delete_topics(self, names: Sequence[str]) -> None: ...
    def delete_records(self, before: Mapping[Partition, int]) -> None: ...
    def group_positions(self, group: str, partitions: Sequence[Partition]) -> dict[Partition, Position | None]: ...
    def reset_positions(self, group: str, positions: Mapping[Partition, Position]) -> None:
        """Set positions of a group without members (`topics adopt`)."""

    def ends(self, partitions: Sequence[Partition]) -> dict[Partition, tuple[int, int]]: ...
    def brokers(self) -> int: ...
    def close(self) -> None: ...


class Cluster(Protocol):
    """Makes clients. One per process; holds addresses and credentials, never prints them."""

    def producer(self, name: str, *, linger_ms: float = 0.0) -> Producer: ...
    def consumer(self, group: str, *, instance_id: str | None = None) -> Consumer: ...
    def reader(self, name: str) -> Reader: ...
    def admin(self) -> Admin: ...
