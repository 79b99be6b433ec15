"""Journal records with what they are worth: the verdict of rule J1 and, where somebody needs it, the decoded value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Final, NamedTuple, Protocol, TypeVar

from turnlog.codec.errors import Unreadable
from turnlog.core.records import JournalRecord
from turnlog.kafka.fenced import FENCE, PartitionFold, RecordHeader, Verdict, header_of
from turnlog.kafka.port import Received

T = TypeVar("T")

COUNTS: Final = frozenset({Verdict.STEP, Verdict.SNAPSHOT})

REASONS: Final[dict[Verdict, str]] = {
    Verdict.REPEAT: "the run's last step again",
    Verdict.VOID: "written under a fence that is not in force",
    Verdict.EARLIER: "of a run whose first records are no longer in the log",
    Verdict.UNREADABLE: "its headers are not those of a journal record",
}


class Decoder(Protocol):
    """What is needed of a codec here. Raises `Unreadable`."""

    def decode(self, data: bytes | None, kind: type[T], /) -> T: ...


class Entry(NamedTuple):
    """A journal record with its verdict. `why` explains what does not count, or why a record that counts could not be read."""

    offset: int
    timestamp_ms: int
    verdict: Verdict
    run_id: str
    """The key; empty on a fence."""
    step: int
    """By its header; -1 on a fence and where there is none."""
    fence: bytes
    size: int
    digest: bytes
    """SHA-256 of the value."""
    record: JournalRecord | None
    """Decoded only where it counts, and on fences."""
    why: str = ""
    differs: str = ""
    """How headers and key contradict the value; empty if they repeat it, as they must."""

    @property
    def counts(self) -> bool:
        return self.verdict in COUNTS


def judged(fold: PartitionFold, batch: Iterable[Received], codec: Decoder, only: str | None = None) -> Iterator[Entry]:
    """The records of a batch as entries; with `only`, those of other runs are passed over, unread and unjudged."""
    key = None if only is None else only.encode("utf-8", "surrogatepass")
    for received in batch:
        if key is None or received.key == key or _is_fence(received):
            yield _entry(fold, received, codec)


def _is_fence(received: Received) -> bool:
    return any(name == "kind" and value == FENCE.encode() for name, value in received.headers)


def _entry(fold: PartitionFold, received: Received, codec: Decoder) -> Entry:
    header = header_of(received.headers)
    verdict = fold.take(received)
    value = received.value or b""
    run_id = "" if verdict is Verdict.FENCE else (received.key or b"").decode("utf-8", "replace")
    entry = Entry(
        received.offset, received.timestamp_ms, verdict, run_id, header.step if header else -1, header.fence if header else b"",
        len(value), sha256(value).digest(), None, REASONS.get(verdict, ""),
    )  # fmt: skip
    if verdict is Verdict.BROKEN:
        trail = fold.trails.get(run_id)
        return entry._replace(why=trail.broken if trail else "the run's chain is broken")
    if verdict in COUNTS or verdict is Verdict.FENCE:
        return _decoded(entry, header, received, codec)
    return entry


def _decoded(entry: Entry, header: RecordHeader | None, received: Received, codec: Decoder) -> Entry:
    try:
        record = codec.decode(received.value, JournalRecord)
    except Unreadable as problem:
        return entry._replace(why=str(problem))
    differs = "" if header is None else "; ".join(_differences(header, entry.run_id, record))
    return entry._replace(record=record, differs=differs)


def _differences(header: RecordHeader, key: str, record: JournalRecord) -> Iterator[str]:
    pairs: tuple[tuple[str, object, object], ...] = (
        ("kind", header.kind, record.kind),
        ("fence", header.fence.hex(), record.fence.hex()),
        ("step", header.step, record.step),
        ("prev", (header.prev or b"").hex(), (record.prev or b"").hex()),
        ("key", key, record.run_id),
    )
    for name, outside, inside in pairs:
        if outside != inside:
            yield f"{name} is {outside!r} in the headers and {inside!r} in the value"
