"""The stored side of MemoryLog: topics, partitions, records. Bytes in, bytes out; time and offsets come from the caller."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from turnlog.kafka.port import Headers, OffsetGone, Partition, Received

# What a record costs on the wire beyond key, value and headers: batch header 61 bytes and a few varints.
RECORD_OVERHEAD = 70
# Kafka's default of max.message.bytes: 1 MiB and the batch header.
DEFAULT_MAX_BYTES = 1_048_588


def size_of(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """About what the record takes on the wire."""
    named = sum(len(name) + len(content or b"") for name, content in headers)
    return RECORD_OVERHEAD + len(key or b"") + len(value or b"") + named


class PartitionLog:
    """Records of one partition in the order of their offsets; offsets may have holes, `end` never goes back but by `truncate`."""

    def __init__(self, where: Partition) -> None:
        self.where = where
        self.first = 0
        self.end = 0
        self._offsets: list[int] = []
        self._records: list[Received] = []

    def append(self, key: bytes | None, value: bytes | None, headers: Headers, now_ms: int) -> int:
        offset, self.end = self.end, self.end + 1
        self._offsets.append(offset)
        self._records.append(Received(*self.where, offset, key, value, tuple(headers), now_ms))
        return offset

    def check(self, start: int) -> None:
        """Raises OffsetGone if a reader cannot stand at `start`: the end itself is a place to stand."""
        if not self.first <= start <= self.end:
            text = f"{self.where.topic}[{self.where.index}]@{start} is outside the log, which holds {self.first} to {self.end}"
            raise OffsetGone(text, "OFFSET_OUT_OF_RANGE", self.where)

    def read(self, start: int, most: int, end: int | None = None) -> list[Received]:
        """At most `most` records with start <= offset < end."""
        at = bisect.bisect_left(self._offsets, start)
        until = len(self._offsets) if end is None else bisect.bisect_left(self._offsets, end)
        return self._records[at : min(until, at + most)]

    def __iter__(self) -> Iterator[Received]:
        return iter(self._records)

    def drop_before(self, offset: int) -> None:
        """DeleteRecords and retention: `offset` becomes the first. Raises OffsetGone beyond the end."""
        if offset > self.end:
            self.check(offset)
        self.first = max(self.first, offset)
        self._keep([record for record in self._records if record.offset >= self.first])

    def truncate(self, end: int) -> None:
        """The tail is lost and its offsets will be given again (power loss, unclean election)."""
        self._keep([record for record in self._records if record.offset < end])
        self.end = min(self.end, end)
        self.first = min(self.first, self.end)

    def compact(self, before: int, *, tombstones: bool) -> None:
        """Keep of each key the last record; what lies at or behind `before` is not touched, nor are records without a key.

        With `tombstones` those that are the last of their key go too (`delete.retention.ms` is over).
        """
        last = {record.key: record.offset for record in self._records}
        kept = []
        for record in self._records:
            newest = last[record.key] == record.offset and not (tombstones and record.value is None)
            if record.offset >= before or record.key is None or newest:
                kept.append(record)
        self._keep(kept)

    def _keep(self, records: list[Received]) -> None:
        self._records = records
        self._offsets = [record.offset for record in records]


@dataclass
class Topic:
    """A topic of the cluster; made anew it has another id."""

    name: str
    topic_id: str
    replication: int
    config: Mapping[str, str]
    logs: list[PartitionLog] = field(default_factory=list)

    @property
    def max_bytes(self) -> int:
        return int(self.config.get("max.message.bytes", DEFAULT_MAX_BYTES))
