"""Reading one journal partition, or one run of it, from the log.

A run's records lie among those of all other runs of its partition, and Kafka has no index by key: reading one run passes over
the whole partition, but decodes only that run's records and the fences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from turnlog.codec.errors import Unreadable
from turnlog.core.records import JournalRecord
from turnlog.journal.entries import Decoder, Entry, judged
from turnlog.kafka.fenced import FENCE, PartitionFold, Verdict, header_of
from turnlog.kafka.partitioner import partition_of
from turnlog.kafka.port import Partition, Reader, Received

READ_TIMEOUT_S = 600.0
_WINDOW = 2_000

Progress = Callable[[int], None]
"""Told how many records were passed over since the last time."""


def no_progress(_: int) -> None:
    """For callers that do not want any."""


class JournalReader:
    """The journal of one installation. `partitions` is the topic's partition count; nothing is cached between calls."""

    def __init__(self, reader: Reader, codec: Decoder, topic: str, partitions: int) -> None:
        self._reader = reader
        self._codec = codec
        self.topic = topic
        self.partitions = partitions

    def partition_of(self, run_id: str) -> Partition:
        """Where a run's records lie: murmur2 of its id."""
        return Partition(self.topic, partition_of(run_id.encode("utf-8", "surrogatepass"), self.partitions))

    def all_partitions(self) -> list[Partition]:
        return [Partition(self.topic, index) for index in range(self.partitions)]

    def bounds(self, partition: Partition) -> tuple[int, int]:
        """(first offset, end) now."""
        return self._reader.bounds(partition)

    def entries(
        self, partition: Partition, *, only: str | None = None, progress: Progress = no_progress
    ) -> Iterator[Entry]:
        """The partition's records with their verdicts, from its start to its end of this moment; with `only` those of one run,
        and the fences."""
        start, end = self.bounds(partition)
        fold = PartitionFold(keep_ended_from=0)
        for batch in self._reader.read(partition, start, end, timeout_s=READ_TIMEOUT_S):
            yield from judged(fold, batch, self._codec, only)
            progress(len(batch))

    def run(self, run_id: str) -> list[Entry]:
        """Every record of one run, whatever its verdict, and all fences of its partition. Empty if there is none of the run."""
        found = list(self.entries(self.partition_of(run_id), only=run_id))
        return found if any(entry.run_id == run_id for entry in found) else []

    def token_before(self, partition: Partition, before: int) -> bytes | None:
        """The fence in force just before offset `before`. None if there is none."""
        fence = self._fence_before(partition, before)
        header = None if fence is None else header_of(fence.headers)
        return None if header is None else header.fence

    def last_epoch(self, partition: Partition) -> int:
        """The input epoch that the partition's last fence names (J15); 0 without a fence that this build can read."""
        fence = self._fence_before(partition, self.bounds(partition)[1])
        try:
            return 0 if fence is None else self._codec.decode(fence.value, JournalRecord).input_epoch
        except Unreadable:
            return 0

    def _fence_before(self, partition: Partition, before: int) -> Received | None:
        """The last fence below an offset, looked for backwards in growing windows."""
        start, _ = self.bounds(partition)
        end, window = before, _WINDOW
        while end > start:
            begin = max(start, end - window)
            found = None
            for batch in self._reader.read(partition, begin, end, timeout_s=READ_TIMEOUT_S):
                for received in batch:
                    header = header_of(received.headers)
                    found = received if header is not None and header.kind == FENCE else found
            if found is not None:
                return found
            end, window = begin, window * 4
        return None


class Owner(NamedTuple):
    """Who opened an ownership of the partition, where and when."""

    name: str
    token: bytes
    offset: int
    at: int


def owners(entries: Iterable[Entry]) -> list[Owner]:
    """The ownerships opened among these entries, oldest first."""
    found = []
    for entry in entries:
        if entry.verdict is Verdict.FENCE:
            opening = entry.record.opening if entry.record is not None else None
            found.append(Owner(opening.owner if opening else "", entry.fence, entry.offset, entry.timestamp_ms))
    return found
