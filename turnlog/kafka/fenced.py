"""The reader's rule of the fenced journal (docs/journal.md): which records of a partition count, from headers and hashes alone.

Pure: no client, no codec. The loop's restore, `turnlog verify`, clients that watch and the models in `tests/simulation` use this
one class, so that there is one answer to "is this record valid". The chains of a partition are named by their key (a run id
in the journal, a call key in a claims log).

Headers of a record (all but `fence` are text):
    kind   fence, step or snapshot
    fence  16 bytes: the token of the ownership it was written under
    step   number of the step; of a snapshot, of the step it stands at
    prev   32 bytes: SHA-256 of the previous step's value; absent at step 0. Of a snapshot: hash of the step it stands at
    wake   when the chain next needs its owner though nothing arrives, ms since the epoch; absent if never
    end    present on the step that ends the chain: until when (ms) late news may still be recorded, 0 if none can come
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Sequence
from enum import Enum
from hashlib import sha256
from typing import NamedTuple

from turnlog.kafka.port import Headers, Received

FENCE, STEP, SNAPSHOT = "fence", "step", "snapshot"
TOKEN_BYTES = 16


class RecordHeader(NamedTuple):
    """What the headers of a journal record say. `end` is -1 where the header is absent."""

    kind: str
    fence: bytes
    step: int
    prev: bytes | None
    wake: int
    end: int


def headers_of(header: RecordHeader) -> list[tuple[str, bytes]]:
    """The Kafka headers that say this."""
    headers = [("kind", header.kind.encode()), ("fence", header.fence), ("step", b"%d" % header.step)]
    if header.prev is not None:
        headers.append(("prev", header.prev))
    if header.wake:
        headers.append(("wake", b"%d" % header.wake))
    if header.end >= 0:
        headers.append(("end", b"%d" % header.end))
    return headers


def header_of(headers: Headers) -> RecordHeader | None:
    """What these Kafka headers say, or None if they are not those of a journal record."""
    found = dict(headers)
    try:
        kind = (found["kind"] or b"").decode()
        token = found["fence"] or b""
        if kind not in (FENCE, STEP, SNAPSHOT) or len(token) != TOKEN_BYTES:
            return None
        step = int(found["step"] or b"")
        return RecordHeader(
            kind, token, step, found.get("prev"), int(found.get("wake") or 0), int(found.get("end") or -1)
        )
    except (KeyError, ValueError):
        return None


def value_digest(value: bytes) -> bytes:
    """SHA-256 of a record's exact value bytes: what the next step's `prev` names."""
    return sha256(value).digest()


class Verdict(Enum):
    """What a record is to a reader that has followed the partition so far."""

    FENCE = "fence"
    """Opens an ownership; what names another fence from here on is void."""
    STEP = "step"
    """Valid: the chain's next step (or the first one met)."""
    SNAPSHOT = "snapshot"
    """Valid: the chain's new base."""
    REPEAT = "repeat"
    """The same step with the same bytes once more (J2): skipped."""
    VOID = "void"
    """Written under a fence that is no longer, or not yet, in force."""
    BROKEN = "broken"
    """Under the fence in force, but neither follows nor repeats: that chain stops for good (J1)."""
    EARLIER = "earlier"
    """Of a chain whose step 0 or snapshot was not met: lies before what the reader follows."""
    UNREADABLE = "unreadable"
    """No journal record at all: its headers are missing or malformed."""


class Trail:
    """What must be kept of a chain that is open: enough to load it and to go on with it (J10)."""

    __slots__ = (
        "step",
        "digest",
        "base",
        "base_bytes",
        "base_mark",
        "since",
        "since_bytes",
        "wake",
        "end",
        "broken",
        "overtaken",
    )

    def __init__(
        self, step: int, digest: bytes, base: int, base_bytes: int, base_mark: int, wake: int, end: int
    ) -> None:
        self.step = step
        self.digest = digest
        self.base = base
        self.base_bytes = base_bytes
        self.base_mark = base_mark
        """Bytes of the partition known to lie before the base; the distance to the end is counted from it."""
        self.since = array("q")
        self.since_bytes = 0
        self.wake = wake
        self.end = end
        """-1 while the chain goes on; else until when late news may be recorded."""
        self.broken = ""
        self.overtaken: list[int] = []
        """Steps before the base whose effects may not have left: a snapshot says nothing of them."""

    def add_step(self, offset: int, size: int, digest: bytes, wake: int, end: int) -> None:
        self.step += 1
        self.digest = digest
        self.since.append(offset)
        self.since_bytes += size
        self.wake = wake
        self.end = end

    def moved(self, offset: int) -> None:
        """The last step stands here too: its writer knows the last of its places, and marks its effects by that."""
        if self.since:
            self.since[-1] = offset
        elif self.step == 0:
            self.base = offset

    def rebase(self, offset: int, size: int, mark: int) -> None:
        """A snapshot at `offset` stands for everything up to the current step."""
        self.base = offset
        self.base_bytes = size
        self.base_mark = mark
        self.since = array("q")
        self.since_bytes = 0

    @property
    def last(self) -> int:
        """Offset of the last record that counts."""
        return self.since[-1] if self.since else self.base

    @property
    def offsets(self) -> list[int]:
        """What must be read to load the chain, ascending."""
        return [self.base, *self.since]


class FenceMark(NamedTuple):
    """A fence that was met: where, when (LogAppendTime, ms) and whose."""

    offset: int
    at: int
    token: bytes


class PartitionFold:
    """Follows one partition in offset order and says of every record what it is.

    `token` is the fence in force at the first offset (None: the log is read from its start, which is a fence, J14). Chains
    that ended are forgotten once met unless their end lies at or behind `keep_ended_from` (their effects may have to be sent
    again, J9). Nothing here depends on what comes later, so a verdict never changes.
    """

    __slots__ = (
        "token",
        "trails",
        "counts",
        "keep_ended_from",
        "first_token",
        "fences",
        "mark",
        "last_fence",
        "_earlier",
    )

    def __init__(self, token: bytes | None = None, *, keep_ended_from: int | None = None) -> None:
        self.token = token
        self.trails: dict[str, Trail] = {}
        self.counts: dict[Verdict, int] = dict.fromkeys(Verdict, 0)
        self.keep_ended_from = keep_ended_from
        self.first_token = token
        self.fences: list[FenceMark] = []
        self.mark = 0
        """Bytes of values met so far."""
        self.last_fence: Received | None = None
        self._earlier: dict[str, list[int]] = {}
        """Steps from `keep_ended_from` on, by chain, whose base was not met yet: a snapshot that follows overtakes them."""

    def take(self, record: Received) -> Verdict:
        """The verdict on the next record of the partition; folds it."""
        header = header_of(record.headers)
        verdict = Verdict.UNREADABLE if header is None else self._judge(record, header)
        self.mark += len(record.value or b"")
        self.counts[verdict] += 1
        return verdict

    def _judge(self, record: Received, header: RecordHeader) -> Verdict:
        if header.kind == FENCE:
            self.token = header.fence
            self.fences.append(FenceMark(record.offset, record.timestamp_ms, header.fence))
            self.last_fence = record
            return Verdict.FENCE
        if header.fence != self.token:
            return Verdict.VOID
        if record.value is None or not record.key:
            return Verdict.UNREADABLE
        key = record.key.decode("utf-8", "replace")
        if header.kind == SNAPSHOT:
            return self._snapshot(key, record.offset, len(record.value), header)
        return self._step(key, record.offset, record.value, header)

    def _step(self, key: str, offset: int, value: bytes, header: RecordHeader) -> Verdict:
        trail = self.trails.get(key)
        if trail is None:
            if header.step != 0:
                if self.keep_ended_from is not None and offset >= self.keep_ended_from:
                    self._earlier.setdefault(key, []).append(offset)
                return Verdict.EARLIER
            trail = Trail(0, sha256(value).digest(), offset, len(value), self.mark, header.wake, header.end)
            self._keep(key, trail, offset)
            return Verdict.STEP
        digest = sha256(value).digest()
        if header.step == trail.step and digest == trail.digest:
            trail.moved(offset)
            return Verdict.REPEAT
        if trail.broken or header.step != trail.step + 1 or header.prev != trail.digest:
            trail.broken = (
                trail.broken or f"step {header.step} at offset {offset} neither follows nor repeats step {trail.step}"
            )
            return Verdict.BROKEN
        trail.add_step(offset, len(value), digest, header.wake, header.end)
        self._keep(key, trail, offset)
        return Verdict.STEP

    def _snapshot(self, key: str, offset: int, size: int, header: RecordHeader) -> Verdict:
        trail = self.trails.get(key)
        if header.prev is None:
            return Verdict.UNREADABLE
        if trail is None:
            trail = self.trails[key] = Trail(header.step, header.prev, offset, size, self.mark, header.wake, header.end)
            trail.overtaken = self._earlier.pop(key, [])
            return Verdict.SNAPSHOT
        if trail.broken or (trail.step, trail.digest) != (header.step, header.prev):
            trail.broken = (
                trail.broken or f"snapshot of step {header.step} at offset {offset} does not fit step {trail.step}"
            )
            return Verdict.BROKEN
        if self.keep_ended_from is not None:
            trail.overtaken += [each for each in trail.offsets if each >= self.keep_ended_from]
        trail.rebase(offset, size, self.mark)
        return Verdict.SNAPSHOT

    def _keep(self, key: str, trail: Trail, offset: int) -> None:
        """Hold the trail of an open chain; forget one that ended for good and has nothing left to send."""
        closed = trail.end == 0
        if closed and not (self.keep_ended_from is not None and offset >= self.keep_ended_from):
            self.trails.pop(key, None)
        else:
            self.trails[key] = trail

    def token_at(self, offset: int) -> bytes | None:
        """The fence in force at this offset, as far back as the fold began."""
        token = self.first_token
        for fence in self.fences:
            if fence.offset > offset:
                break
            token = fence.token
        return token

    def floor(self, end: int) -> int:
        """The least base of the chains that are held; `end` if none is."""
        return min((trail.base for trail in self.trails.values()), default=end)


class Pointer(NamedTuple):
    """What every commit of the ownership topic carries in its metadata (J9).

    floor    restore reads the journal from here
    token    the fence in force at the floor
    end      end of the journal when this was written; a shorter log was cut (J15)
    effects  effects of steps before this offset are acknowledged
    epoch    input epoch (J15)
    ids      topic ids, first 8 characters each, by topic
    fence    offset of the fence that was in force when this was written; -1 if not known
    """

    floor: int
    token: bytes
    end: int
    effects: int
    epoch: int
    ids: tuple[tuple[str, str], ...]
    fence: int = -1

    def encode(self) -> str:
        body = {
            "v": 1, "floor": self.floor, "token": self.token.hex(), "end": self.end, "effects": self.effects,
            "epoch": self.epoch, "ids": dict(self.ids), "fence": self.fence,
        }  # fmt: skip
        return json.dumps(body, separators=(",", ":"))

    @staticmethod
    def decode(text: str) -> Pointer | None:
        """The pointer in this metadata, or None if there is none that this build can read (then the log is read from its start)."""
        try:
            body = json.loads(text)
            if body["v"] != 1:
                return None
            ids = tuple(sorted((str(k), str(v)) for k, v in body["ids"].items()))
            return Pointer(
                int(body["floor"]), bytes.fromhex(body["token"]), int(body["end"]), int(body["effects"]), int(body["epoch"]), ids,
                int(body.get("fence", -1)),
            )  # fmt: skip
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


def last_fence_at_or_below(fences: Iterable[FenceMark], offset: int, before_ms: int) -> int | None:
    """Where the log may be cut (J14): the last fence at or below `offset` that was written before `before_ms`; None if none."""
    return max((fence.offset for fence in fences if fence.offset <= offset and fence.at <= before_ms), default=None)


def thinned(fences: Sequence[tuple[int, int]], every_ms: int, newest: int = 8) -> list[tuple[int, int]]:
    """Of (offset, ms) in order: the newest, and before those one per `every_ms`: enough to cut a log by age, however often it was
    opened."""
    kept: list[tuple[int, int]] = []
    for place, fence in enumerate(fences):
        if place >= len(fences) - newest or not kept or fence[1] - kept[-1][1] >= every_ms:
            kept.append(fence)
    return kept
