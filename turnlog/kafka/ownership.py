"""The writer's half of the fenced log: one ownership of one partition, from its acknowledged fence to its end (J5 to J7, J15).

An ownership appends records under its token and learns from the acknowledged offsets whether it is still alone:

    offset == expected    the record is valid; `valid` is told at once, unless a gap is being read
    offset >  expected    somebody else wrote: the gap is read to its end, and nothing is released meanwhile
    offset <  expected    the log was cut: stop, say so (J15)
    error, or no offset   nobody knows: every ownership of this producer is over (J7)

The mechanism knows keys, tokens and offsets, and nothing of runs: a claims log uses it as it is.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from turnlog.kafka.fenced import FENCE, TOKEN_BYTES, RecordHeader, header_of, headers_of
from turnlog.kafka.port import Cluster, Delivered, LogError, Partition, Producer, QueueFull, Received, TooLarge

_log = logging.getLogger(__name__)

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class End(Enum):
    """Why an ownership is over."""

    FOREIGN_FENCE = "foreign fence"
    """Another ownership opened behind this one: confirm, then open again or leave (J7)."""
    PRODUCER = "producer"
    """The fate of a record is unknown: a new producer, then open again."""
    TOO_LARGE = "too large"
    """The same, because the topic takes smaller records than it must: without an operator it will come again."""
    CUT = "cut"
    """The log is shorter than it was: an operator must look (J15)."""
    LEFT = "left"
    """Given up by its owner."""


class Owner(Protocol[T_contra]):
    """Who holds the ownership. Called on the poll thread, from `FencedWriter.settle`."""

    def valid(self, ticket: T_contra, offset: int) -> None:
        """The record of this ticket is in the journal for good: its effects may leave."""

    def over(self, end: End, reason: str) -> None:
        """Nothing of what was appended and not yet told valid may be released; it may or may not be in the log."""


class _Appended(NamedTuple):
    owner: Ownership[Any]
    ticket: Any


ReadGap = Callable[[Partition, int, int, Callable[[list[Received] | None, BaseException | None], None]], None]
"""Reads [start, end) off the thread and answers on it."""


class Ownership(Generic[T]):
    """See the module. Made by `FencedWriter.open` once its fence is acknowledged at `fence_offset`."""

    __slots__ = (
        "partition",
        "token",
        "fence_offset",
        "expected",
        "in_flight",
        "ended",
        "ignored",
        "_owner",
        "_read_gap",
        "_held",
        "_gap",
    )

    def __init__(
        self, partition: Partition, token: bytes, fence_offset: int, owner: Owner[T], read_gap: ReadGap
    ) -> None:
        self.partition = partition
        self.token = token
        self.fence_offset = fence_offset
        self.expected = fence_offset + 1
        self.in_flight = 0
        self.ended: End | None = None
        self.ignored = 0
        """Records of others met in gaps: void, or repeats (J2)."""
        self._owner = owner
        self._read_gap = read_gap
        self._held: deque[tuple[T, int]] = deque()
        self._gap: tuple[int, int] | None = None

    @property
    def unsure(self) -> bool:
        """A gap is being read: nothing of the partition may be released."""
        return self._gap is not None

    @property
    def told(self) -> int:
        """Everything below is known: records of this ownership that lie there were told valid. Behind it, while unsure, may be some
        that are acknowledged only."""
        return self._gap[0] if self._gap is not None else self.expected

    def acknowledged(self, ticket: T, report: Delivered) -> None:
        """One delivery report, in the order of the appends."""
        self.in_flight -= 1
        if self.ended is not None:
            return
        offset = report.offset
        if offset is None:
            return  # the writer ends all of its ownerships
        if offset < self.expected:
            return self.end(
                End.CUT,
                f"{self.partition.topic}[{self.partition.index}] acknowledged offset {offset}, expected {self.expected}",
            )
        start, self.expected = self.expected, offset + 1
        if offset > start:
            self._missing(start, offset)
        if self._gap is not None:
            self._held.append((ticket, offset))
        else:
            self._owner.valid(ticket, offset)

    def _missing(self, start: int, end: int) -> None:
        """Records of others lie in [start, end). A gap met while one is read is read afterwards, together with what lies between."""
        if self._gap is not None:
            self._gap = (self._gap[0], end)
            return
        self._gap = (start, end)
        self._read(start, end)

    def _read(self, start: int, end: int) -> None:
        self._read_gap(self.partition, start, end, lambda records, error: self._gap_read(end, records, error))

    def _gap_read(self, end: int, records: list[Received] | None, error: BaseException | None) -> None:
        if self.ended is not None or self._gap is None:
            return
        if records is None:
            return self.end(End.PRODUCER, f"the gap up to {end} could not be read: {error}")
        for record in records:
            header = header_of(record.headers)
            if header is not None and header.kind == FENCE and header.fence != self.token:
                return self.end(End.FOREIGN_FENCE, f"a fence of another ownership at offset {record.offset}")
        mine = sum(1 for record in records if (h := header_of(record.headers)) is not None and h.fence == self.token)
        self.ignored += len(records)
        _log.warning(
            "%s[%d]: read %d records of a gap, %d of them repeats of our own", *self.partition, len(records), mine
        )
        if self._gap[1] > end:
            return self._read(end, self._gap[1])
        self._gap = None
        while self._held and self.ended is None:
            self._owner.valid(*self._held.popleft())

    def end(self, end: End, reason: str) -> None:
        """End this ownership once; what it has in flight may still land, and the next fence voids it."""
        if self.ended is None:
            self.ended = end
            self._held.clear()
            self._owner.over(end, reason)


class FencedWriter:
    """The producer of one fenced topic, and the ownerships that write through it. It writes nothing else (J2)."""

    def __init__(self, cluster: Cluster, topic: str, read_gap: ReadGap) -> None:
        self.topic = topic
        self._cluster = cluster
        self._read_gap = read_gap
        self._producer: Producer = cluster.producer("journal")
        self._life = 0
        self._reports: deque[tuple[int, Any, Delivered]] = deque()
        self._ownerships: dict[Ownership[Any], None] = {}
        self.renewed = 0

    def __len__(self) -> int:
        """Records without an acknowledgement that was looked at."""
        return len(self._producer) + len(self._reports)

    def append_fence(
        self, index: int, value: bytes, token: bytes, done: Callable[[int | None, LogError | None], None]
    ) -> None:
        """Append a fence; `done` gets its offset, or None and why. Nothing names the token before that (J4)."""
        header = RecordHeader(FENCE, token, -1, None, 0, -1)
        self._produce(index, None, value, headers_of(header), done)

    def open(self, index: int, token: bytes, fence_offset: int, owner: Owner[T]) -> Ownership[T]:
        """The ownership that the acknowledged fence opened."""
        ownership = Ownership(Partition(self.topic, index), token, fence_offset, owner, self._read_gap)
        self._ownerships[ownership] = None
        return ownership

    def append(self, ownership: Ownership[T], ticket: T, key: bytes, value: bytes, header: RecordHeader) -> None:
        """Append a step or snapshot. At most one per key may be unacknowledged (J5); the caller holds that.

        A full local queue is waited out here (reports are collected, not handled). Raises TooLarge before anything is sent.
        """
        ownership.in_flight += 1
        try:
            self._produce(ownership.partition.index, key, value, headers_of(header), _Appended(ownership, ticket))
        except LogError:
            ownership.in_flight -= 1
            raise

    def _produce(
        self, index: int, key: bytes | None, value: bytes, headers: list[tuple[str, bytes]], ticket: Any
    ) -> None:
        life, reports = self._life, self._reports

        def report(delivered: Delivered) -> None:
            reports.append((life, ticket, delivered))

        while True:
            try:
                self._producer.produce(self.topic, value, key=key, partition=index, headers=headers, on_delivery=report)
                return
            except QueueFull:
                self._producer.poll(0.05)

    def poll(self, timeout_s: float) -> None:
        """Collect delivery reports, waiting for the first at most `timeout_s`. Raises nothing: a fatal producer is renewed."""
        try:
            self._producer.poll(timeout_s)
        except LogError as problem:
            self.renew(f"the journal's producer failed: {problem}")

    def settle(self) -> int:
        """Handle the reports collected so far; owners are called from here. Returns how many."""
        count = 0
        while self._reports:
            life, ticket, report = self._reports.popleft()
            count += 1
            if life != self._life:  # of an ownership that is over, whatever offset it carries (J6)
                if not isinstance(ticket, _Appended):
                    ticket(None, report.error)
                continue
            lost = report.error is not None or report.offset is None
            if lost:  # before anything else is told: nothing of this producer may be released any more
                self._renew_for(report.error)
            if isinstance(ticket, _Appended):
                ticket.owner.acknowledged(ticket.ticket, report)
            else:
                ticket(None if lost else report.offset, report.error)
        return count

    def _renew_for(self, error: LogError | None) -> None:
        if isinstance(error, TooLarge):  # of a whole batch: which of its records it was is not said
            what = f"it refused a record as too large: raise its max.message.bytes, as `turnlog topics check` says ({error})"
            return self.renew(what, End.TOO_LARGE)
        return self.renew(f"the fate of a record is unknown: {error or 'acknowledged without an offset'}")

    def renew(self, reason: str, end: End = End.PRODUCER) -> None:
        """End every ownership of this producer, close it, make another (J7)."""
        _log.error("%s[*]: %s; a new producer is made", self.topic, reason)
        self._life += 1
        self.renewed += 1
        old, self._producer = self._producer, self._cluster.producer("journal")
        old.close()
        ended, self._ownerships = self._ownerships, {}
        for ownership in ended:
            ownership.end(end, reason)

    def leave(self, ownership: Ownership[Any]) -> None:
        """The owner gives the partition up; reports that still come are for nobody."""
        self._ownerships.pop(ownership, None)
        ownership.end(End.LEFT, "left")

    def flush(self, timeout_s: float) -> int:
        """Wait until everything has a report or the time is over; returns what has none."""
        try:
            return self._producer.flush(timeout_s)
        except LogError:
            return len(self._producer)

    def close(self) -> None:
        self._life += 1
        self._reports.clear()
        self._producer.close()


def new_token() -> bytes:
    """16 random bytes that name an ownership."""
    return os.urandom(TOKEN_BYTES)
