"""Compacted topics, and topics searched by key, read once from start to end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from turnlog.codec.errors import Unreadable
from turnlog.core.records import RunSummary
from turnlog.journal.entries import Decoder
from turnlog.kafka.port import Partition, Reader, Received

READ_TIMEOUT_S = 300.0


def all_records(reader: Reader, partitions: Iterable[Partition]) -> Iterator[Received]:
    """Every record of these partitions up to their ends of this moment."""
    for partition in partitions:
        start, end = reader.bounds(partition)
        for batch in reader.read(partition, start, end, timeout_s=READ_TIMEOUT_S):
            yield from batch


def newest(reader: Reader, partitions: Iterable[Partition]) -> dict[bytes, Received]:
    """The last record of each key; keys with a tombstone are absent."""
    found: dict[bytes, Received] = {}
    for received in all_records(reader, partitions):
        key = received.key or b""
        if received.value is None:
            found.pop(key, None)
        else:
            found[key] = received
    return found


def newest_summaries(
    reader: Reader, codec: Decoder, partitions: Iterable[Partition], only: str | None = None
) -> dict[str, RunSummary]:
    """The summary with the highest step of each run: an older one may have been written late (J13). Unreadable ones are left out."""
    key = None if only is None else only.encode()
    found: dict[str, RunSummary] = {}
    for received in all_records(reader, partitions):
        if received.key is None or (key is not None and received.key != key):
            continue
        if received.value is None:
            found.pop(received.key.decode("utf-8", "replace"), None)
            continue
        try:
            summary = codec.decode(received.value, RunSummary)
        except Unreadable:
            continue
        known = found.get(summary.run_id)
        if known is None or summary.step >= known.step:
            found[summary.run_id] = summary
    return found
