"""A group member with confluent-kafka: classic protocol, cooperative-sticky, static membership where an instance id is given.

What a real cluster taught us (tests/integration/test_kafka_rebalance.py holds each line):

- The group's assignment and what the client fetches are two things. Answering an assignment with `incremental_assign([])`
  is accepted: the group counts the partition as ours, and nothing of it is fetched until the owner adds it with an offset.
- During a revocation the library wants exactly one `incremental_unassign`; what the owner removes inside its callback is
  collected and goes out in that one call, together with the subscribed topic's partition.
- A topic the client never heard of costs 1.0 to 1.5 s until its first record (the library scans for unknown topics once a
  second); asked for by name beforehand it costs 4 ms. So `add` asks once per topic.
- The library lets one thread at a time into a consumer (confluent-kafka 2.16): a call of another thread waits, asleep, for the poll that is
  under way to end, and beside a thread that polls again at once it may wait for ever (300 commits beside a loop of 10 ms polls: stuck
  within the first 20). So commits of other threads are handed to the polling one, and positions are asked of an admin client.
- A static member that slept through its session joins again by itself; a commit of the old membership that is answered meanwhile
  fences it by its own instance id, and the error is fatal: not every fatal error means a second process.
- A static member that closes stays in the group: its partitions wait for it until the session ends. One that unsubscribes
  first does leave: the others have its partitions after one heartbeat.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import methodcaller
from queue import Empty, SimpleQueue
from typing import Any

from confluent_kafka import Consumer as LibraryConsumer
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from turnlog.kafka.errors import translate, translated
from turnlog.kafka.port import (
    Fatal,
    LogError,
    NotOwner,
    Partition,
    Position,
    Rebalance,
    Received,
    Refused,
    Retryable,
)

_log = logging.getLogger(__name__)

OnCommit = Callable[[LogError | None], None]
AskPositions = Callable[[str, Sequence[Partition], float], dict[Partition, Position | None]]
_CommitKey = tuple[tuple[str, int, int], ...]

# How long `close(leave=True)` polls for the revocation that lets the member go.
_LEAVE_S = 5.0
_METADATA_S = 10.0
# How long a commit of another thread may wait for the polling one. 50 wake-ups a second cost 0.1 % of a core.
_SLICE_S = 0.02


def received(messages: Iterable[Message]) -> list[Received]:
    """The library's messages as ours. They must carry no error."""
    return [
        Received(
            message.topic() or "",
            message.partition() or 0,
            message.offset() or 0,
            message.key(),
            message.value(),
            _headers(message),
            message.timestamp()[1],
        )
        for message in messages
    ]


_read_headers: Callable[[Message], Any] = methodcaller("headers")
"""Not `message.headers()`: for a name that is no UTF-8 the library sets an exception and yet returns a list, with a null pointer where
the name belongs. The interpreter's quick call of such a method looks at the list alone; the call in here looks at both."""


def _headers(message: Message) -> tuple[tuple[str, bytes | None], ...]:
    """The headers of a message; none where a name is no UTF-8, which a client in C may write: the library cannot give us those."""
    try:
        return tuple(_read_headers(message) or ())
    except (SystemError, UnicodeDecodeError):
        where = (message.topic(), message.partition(), message.offset())
        _log.warning("%s[%s] offset %s: its headers are dropped, a name in them is no UTF-8", *where)
        return ()


def serious(error: LogError) -> bool:
    """Whether a reader must hear of it; the rest the library repairs itself (coordinator, leader, connection)."""
    return not isinstance(error, Retryable | NotOwner)


class KafkaConsumer:
    """See `port.Consumer`. All but `commit`, `commit_soon` and `committed` belongs to the one thread that polls."""

    def __init__(self, config: Mapping[str, Any], group: str, positions: AskPositions) -> None:
        """`positions` answers `committed`."""
        self._group = group
        self._positions = positions
        self._topic = ""
        self._owned: frozenset[int] = frozenset()
        self._fetching: set[Partition] = set()
        self._known_topics: set[str] = set()
        self._collecting: dict[Partition, int] | None = None  # inside a callback: what to add, or (as keys) to remove
        self._assigning = False
        self._changes = 0  # moves with everything that makes fetched records stale
        self._failures: deque[LogError] = deque()
        self._early: deque[Message] = deque()  # came while a commit waited for its answer
        self._fatal: Fatal | None = None
        self._thread: int | None = None  # the one that polls
        self._waiting: dict[_CommitKey, deque[OnCommit | None]] = {}
        self._handed_over: deque[tuple[Mapping[Partition, Position], OnCommit | None]] = deque()
        self._closed = False
        callbacks = {"error_cb": self._on_error, "on_commit": self._on_commit}
        try:
            self._client = LibraryConsumer({**config, **callbacks})
        except KafkaException as error:
            raise translated(error, f"consumer of {group}") from error

    # --- membership

    def subscribe(self, topic: str, rebalance: Rebalance) -> None:
        """Join the group for `topic`. Callbacks come from later `poll`s (and from `close`), never with an empty list."""
        self._topic = topic
        self._learn({topic})

        def assigned(_client: LibraryConsumer, partitions: list[TopicPartition]) -> None:
            self._on_assigned([p.partition for p in partitions], rebalance)

        def revoked(_client: LibraryConsumer, partitions: list[TopicPartition]) -> None:
            self._on_gone([p.partition for p in partitions], rebalance.revoked)

        def lost(_client: LibraryConsumer, partitions: list[TopicPartition]) -> None:
            self._on_gone([p.partition for p in partitions], rebalance.lost)

        try:
            self._client.subscribe([topic], on_assign=assigned, on_revoke=revoked, on_lost=lost)
        except KafkaException as error:
            raise translated(error, f"subscribe to {topic}") from error

    def owned(self) -> frozenset[int]:
        return self._owned

    def _on_assigned(self, new: list[int], rebalance: Rebalance) -> None:
        self._owned |= frozenset(new)
        self._collecting, self._assigning = {}, True
        try:
            if new:
                rebalance.assigned(new)
        finally:
            collected, self._collecting = self._collecting, None
            self._assign(collected)

    def _on_gone(self, gone: list[int], tell: Callable[[list[int]], None]) -> None:
        self._owned -= frozenset(gone)
        self._collecting, self._assigning = dict.fromkeys((Partition(self._topic, i) for i in gone), 0), False
        try:
            if gone:
                tell(gone)
        finally:
            collected, self._collecting = self._collecting, None
            self._unassign(collected)

    # --- what is delivered

    def add(self, offsets: Mapping[Partition, int]) -> None:
        """Deliver these partitions from these offsets; what was fetched of them before is dropped. Raises UnknownTopic, Retryable.

        Inside `assigned` the partitions join the one assignment call that follows the callback.
        """
        self._learn({partition.topic for partition in offsets})
        if self._collecting is not None:
            if not self._assigning:
                raise Refused("add inside revoked or lost: remove only")
            self._collecting.update(offsets)
            return
        again = self._fetching.intersection(offsets)
        if again:
            self._unassign(again)
        self._assign(offsets)

    def remove(self, partitions: Iterable[Partition]) -> None:
        if self._collecting is None:
            self._unassign(partitions)
        elif self._assigning:
            raise Refused("remove inside assigned: add only")
        else:
            self._collecting.update(dict.fromkeys(partitions, 0))

    def pause(self, partitions: Iterable[Partition]) -> None:
        self._client.pause(self._fetched(partitions))

    def resume(self, partitions: Iterable[Partition]) -> None:
        self._client.resume(self._fetched(partitions))

    def _assign(self, offsets: Mapping[Partition, int]) -> None:
        try:
            self._client.incremental_assign([TopicPartition(p.topic, p.index, offset) for p, offset in offsets.items()])
        except KafkaException as error:
            raise translated(error, "add partitions") from error
        self._fetching.update(offsets)
        self._changes += 1

    def _unassign(self, partitions: Iterable[Partition]) -> None:
        gone = self._fetching.intersection(partitions)
        try:
            self._client.incremental_unassign([TopicPartition(p.topic, p.index) for p in gone])
        except KafkaException as error:
            raise translated(error, "remove partitions") from error
        self._fetching -= gone
        self._early = deque(m for m in self._early if Partition(m.topic() or "", _known(m.partition())) not in gone)
        self._changes += 1

    def _fetched(self, partitions: Iterable[Partition]) -> list[TopicPartition]:
        return [TopicPartition(p.topic, p.index) for p in partitions if p in self._fetching]

    def _learn(self, topics: set[str]) -> None:
        """Put the topics into the client's metadata now: what it must find out by itself it finds out 1.5 s later."""
        for topic in topics - self._known_topics:
            try:
                found = self._client.list_topics(topic, timeout=_METADATA_S).topics[topic]
            except KafkaException as error:
                raise translated(error, f"look up {topic}") from error
            if found.error is not None:
                raise translate(found.error, f"look up {topic}")
            self._known_topics.add(topic)

    # --- records

    def poll(self, timeout_s: float, most: int = 500) -> list[Received]:
        """Records in the order of each partition. An error met beside records is raised by the next call, so nothing is lost."""
        if self._failures or self._fatal is not None:
            raise self._failures.popleft() if self._failures else self._fatal or Fatal("")
        self._thread = threading.get_ident()
        if self._early:
            early = [self._early.popleft() for _ in range(min(most, len(self._early)))]
            return received(self._sifted(early))
        before = self._changes
        try:
            first = self._wait(timeout_s)
            if first is None:
                return []
            # Not consume(most, timeout): that waits for `most` records or the end of the time.
            messages = [first, *self._client.consume(most - 1, 0)] if most > 1 else [first]
        except KafkaException as error:
            raise translated(error, f"poll of {self._group}") from error
        if self._changes != before or any(message.error() is not None for message in messages):
            messages = self._sifted(messages)
        return received(messages)

    def _wait(self, timeout_s: float) -> Message | None:
        """The first record, in slices of time: between them leave the commits of other threads. Ends early after a rebalance callback."""
        before = self._changes
        until = time.monotonic() + timeout_s
        left = timeout_s
        while True:
            if self._handed_over:
                self._send_handed_over()
            first = self._client.poll(min(left, _SLICE_S))
            if first is not None or self._changes != before or self._fatal is not None:
                return first
            left = until - time.monotonic()
            if left <= 0:
                return None

    def _sifted(self, messages: list[Message]) -> list[Message]:
        """Without errors (kept for the next poll) and without records of partitions that a callback took away meanwhile."""
        records = []
        for message in messages:
            error = message.error()
            where = Partition(message.topic() or "", _known(message.partition()))
            if error is not None:
                known = where if where.topic else None  # some errors concern the group, not a partition
                self._note(translate(error, f"read {where.topic}[{where.index}]" if known else self._group, known))
            elif where in self._fetching:
                records.append(message)
        if not records and self._failures:
            raise self._failures.popleft()
        return records

    def _note(self, problem: LogError) -> None:
        if isinstance(problem, Fatal):
            self._fatal = problem
        if serious(problem):
            self._failures.append(problem)
        else:
            _log.warning("%s", problem)

    def give_up(self, problem: Fatal) -> None:
        """From now on every poll raises this. Any thread."""
        self._fatal = problem

    # --- positions

    def commit(self, positions: Mapping[Partition, Position], *, timeout_s: float = 10.0) -> None:
        """Commit and wait for the coordinator's answer. Any thread.

        When the time is over it is Retryable, and the commit may still happen. From another thread it takes the polling one to go on
        polling. On the polling thread rebalance callbacks may run meanwhile (records wait for the next poll); inside a callback
        only the library's blocking commit is left, which knows no time: none in there while the cluster may be out of reach.
        """
        if not positions:
            return
        if self._thread in (None, threading.get_ident()):
            inside = self._collecting is not None
            problem = self._commit_blocking(positions) if inside else self._commit_here(positions, timeout_s)
        else:
            problem = self._commit_over_there(positions, timeout_s)
        if problem is not None:
            raise problem

    def _commit_blocking(self, positions: Mapping[Partition, Position]) -> LogError | None:
        try:
            answers = self._client.commit(offsets=_offsets(positions), asynchronous=False)
        except KafkaException as error:
            return translated(error, f"commit of {self._group}")
        return first_error(answers, f"commit of {self._group}")

    def _commit_here(self, positions: Mapping[Partition, Position], timeout_s: float) -> LogError | None:
        """Not the library's blocking commit: with a silent broker that did not return within two minutes."""
        outcome: list[LogError | None] = []
        self.commit_soon(positions, outcome.append)
        until = time.monotonic() + timeout_s
        while not outcome and (left := until - time.monotonic()) > 0:
            message = self._client.poll(min(left, _SLICE_S))
            if message is not None:
                self._early.append(message)
        return outcome[0] if outcome else self._no_answer(timeout_s)

    def _no_answer(self, timeout_s: float) -> Retryable:
        return Retryable(f"commit of {self._group}: no answer within {timeout_s:g} s", "_TIMED_OUT")

    def _commit_over_there(self, positions: Mapping[Partition, Position], timeout_s: float) -> LogError | None:
        answer: SimpleQueue[LogError | None] = SimpleQueue()
        self._handed_over.append((positions, answer.put))
        if self._closed:
            return NotOwner(f"commit of {self._group}: the consumer was closed", "_DESTROY")
        try:
            return answer.get(timeout=timeout_s)
        except Empty:
            return self._no_answer(timeout_s)

    def commit_soon(
        self, positions: Mapping[Partition, Position], on_done: Callable[[LogError | None], None] | None = None
    ) -> None:
        """Send the commit and return. `on_done` runs inside a later `poll` (or `close`), once; two commits of the same positions
        are answered in their order. Any thread; from another one it leaves with the next poll."""
        if not positions:
            return
        if self._thread not in (None, threading.get_ident()):
            self._handed_over.append((positions, on_done))
            return
        offsets = _offsets(positions)
        key = _commit_key(offsets)
        self._waiting.setdefault(key, deque()).append(on_done)
        try:
            self._client.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            self._answer(key, translated(error, f"commit of {self._group}"))

    def committed(
        self, partitions: Iterable[Partition], *, timeout_s: float = 10.0
    ) -> dict[Partition, Position | None]:
        """What the group has committed, None where nothing is (never, or expired). Any thread."""
        return self._positions(self._group, list(partitions), timeout_s)

    def _on_commit(self, error: KafkaError | None, offsets: list[TopicPartition]) -> None:
        doing = f"commit of {self._group}"
        problem = translate(error, doing) if error is not None else first_error(offsets, doing)
        self._answer(_commit_key(offsets), problem)

    def _answer(self, key: _CommitKey, problem: LogError | None) -> None:
        waiting = self._waiting.get(key)
        on_done = waiting.popleft() if waiting else None
        if not waiting:
            self._waiting.pop(key, None)
        if on_done is not None:
            on_done(problem)

    def _send_handed_over(self) -> None:
        while self._handed_over:
            self.commit_soon(*self._handed_over.popleft())

    # --- the end

    def close(self, *, leave: bool = False) -> None:
        """Stop; `revoked` runs once more for what is still owned. Commits nothing.

        A static member stays in the group: whoever comes back with its instance id within the session timeout goes on at once,
        and nobody else gets its partitions before. With `leave` it gives them up now, and others have them a heartbeat later.
        """
        try:
            if leave and self._fatal is None:
                self._leave()
            self._client.close()
        except KafkaException as error:
            raise translated(error, f"close member of {self._group}") from error
        self._closed = True
        gone = Retryable(f"commit of {self._group}: the consumer was closed", "_DESTROY")
        for key, waiting in list(self._waiting.items()):
            for _ in range(len(waiting)):
                self._answer(key, gone)
        while self._handed_over:
            _, on_done = self._handed_over.popleft()
            if on_done is not None:
                on_done(gone)

    def _leave(self) -> None:
        self._client.unsubscribe()
        end = time.monotonic() + _LEAVE_S
        while (self._owned or not self._left()) and time.monotonic() < end:
            self._client.poll(0.02)

    def _left(self) -> bool:
        return not self._client.assignment()

    def _on_error(self, error: KafkaError) -> None:
        problem = translate(error, f"consumer of {self._group}")
        if isinstance(problem, Fatal):
            self._fatal = problem
            _log.error("%s", problem)
        else:
            _log.warning("%s", problem)


def _known(index: int | None) -> int:
    return -1 if index is None else index


def _offsets(positions: Mapping[Partition, Position]) -> list[TopicPartition]:
    return [TopicPartition(p.topic, p.index, at.offset, at.metadata) for p, at in positions.items()]


def _commit_key(offsets: Iterable[TopicPartition]) -> _CommitKey:
    return tuple(sorted((o.topic, o.partition, o.offset) for o in offsets))


def position_of(answer: TopicPartition) -> Position | None:
    """A committed position as the library tells it: -1001 means none."""
    return Position(answer.offset, answer.metadata or "") if answer.offset >= 0 else None


def first_error(answers: Iterable[TopicPartition] | None, doing: str) -> LogError | None:
    """The first of the partitions' own errors."""
    for answer in answers or ():
        if answer.error is not None:
            return translate(answer.error, doing, Partition(answer.topic, answer.partition))
    return None
