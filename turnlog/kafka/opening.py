"""Opening an ownership: look, fence, confirm, restore (J4, J9, J15). The blocking halves are jobs; the order is `Opening`'s.

look      committed positions and pointer, bounds, topic ids; J15: is the log still the one the pointer speaks of?
fence     append the fence, learn its offset
confirm   a commit is accepted and the partition is assigned to this member before and after; also before the fence where a
          foreign fence was met, so that who lost the partition does not void its new owner's steps (J7)
restore   read the journal from the floor to the own fence, and say of every record what it is
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from turnlog.kafka.fenced import FENCE, PartitionFold, Pointer, Verdict, header_of
from turnlog.kafka.jobs import OPENING, Runner
from turnlog.kafka.ownership import FencedWriter, new_token
from turnlog.kafka.port import (
    Admin,
    Consumer,
    LogError,
    NotOwner,
    OffsetGone,
    Partition,
    Position,
    Reader,
    Received,
    Retryable,
    UnknownTopic,
)  # fmt: skip

_log = logging.getLogger(__name__)

NO_TOKEN = bytes(16)
ID_CHARS = 8
RECENT_BYTES = 64 * 1024 * 1024
"""Values of this many bytes are kept from the restore's own reading, newest last, so that runs which are loaded at once are not
read a second time."""
CONFIRM_S = 60.0
"""The deadline of a confirmation: longer than a rebalance may take."""
CONFIRM_PAUSE_S = 0.1
LOOK_S = 5.0
"""How long the look's question for topic ids may stay without an answer, as after a broker's stall: the next attempt asks again."""


class LogCut(Exception):
    """The log was cut or made anew (J15): nothing may be appended before an operator has looked (`turnlog topics adopt`)."""


class Places(NamedTuple):
    """The topics of an ownership: the journal, the topic whose assignment is the ownership, and all inbound topics with it."""

    journal: str
    ownership: str
    inbound: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        return (self.journal, *self.inbound)


class FenceSays(NamedTuple):
    """What the last fence of the journal says: input epoch, topic ids, inbound positions of its moment, and (offset, ms) of the
    fences up to itself, oldest first."""

    epoch: int
    ids: tuple[tuple[str, str], ...]
    positions: tuple[tuple[str, int], ...]
    fences: tuple[tuple[int, int], ...] = ()
    owner: str = ""


ReadFence = Callable[[Received], FenceSays | None]
"""Decodes a fence; None for one that cannot be read. Called off the poll thread."""


class Looked(NamedTuple):
    """What was found before the fence. `positions`: where to begin reading each inbound topic (None: no position is known).
    `start`, `end`: bounds of the journal. Where the pointer is lost, epoch and positions are those of the last fence. `fences`: what
    is known of earlier ones (J14)."""

    pointer: Pointer | None
    positions: dict[str, int | None]
    starts: dict[str, int]
    start: int
    end: int
    ids: tuple[tuple[str, str], ...]
    epoch: int = 0
    fences: tuple[tuple[int, int], ...] = ()
    last_owner: str = ""


class Restored(NamedTuple):
    """What the journal holds up to the own fence. `recent` has the newest valid records by offset; `effects`: steps from this
    offset on may have effects that never left; `previous` is the last fence before the own one."""

    fold: PartitionFold
    recent: dict[int, Received]
    effects: int
    valid: int
    seconds: float
    start: int
    previous: Received | None


def look(clients: Clients, places: Places, index: int, read_fence: ReadFence, least_end: int = -1) -> Looked:
    """Read positions, pointer, bounds and ids, and hold them against each other. `least_end`: the journal is known to have ended
    there once. Raises LogCut, Retryable, UnknownTopic.

    Without a pointer (offsets expire, and go with their topic) the journal's last fence is looked for, which reads it whole.
    """
    inbound = [Partition(topic, index) for topic in places.inbound]
    committed = clients.consumer.committed(inbound)
    ids = _topic_ids(clients.admin, places)
    bounds = {
        partition: clients.reader.bounds(partition) for partition in (Partition(topic, index) for topic in places.all)
    }
    journal = Partition(places.journal, index)
    start, end = bounds[journal]
    position = committed.get(Partition(places.ownership, index))
    pointer = Pointer.decode(position.metadata) if position is not None else None
    if pointer is not None:  # before anything is read: what the pointer names is not there in a log that was cut
        _check_ids(pointer.ids, dict(ids))
    ended = max(least_end, pointer.end if pointer is not None else 0)
    if end < ended:
        raise LogCut(f"{journal.topic}[{journal.index}] ends at {end}, but it ended at {ended} before")
    last = _last_fence(clients.reader, journal, start, end, read_fence) if pointer is None else None
    known = pointer or last
    named = _named_fence(clients.reader, journal, start, pointer, read_fence) if pointer is not None else last
    _check_ids(last.ids if last is not None else (), dict(ids))
    positions = _positions(committed, inbound, dict(last.positions) if last is not None else {}, bounds)
    starts = {topic: bounds[Partition(topic, index)][0] for topic in places.inbound}
    fences = tuple(fence for fence in named.fences if fence[0] >= start) if named is not None else ()
    return Looked(
        pointer,
        positions,
        starts,
        start,
        end,
        ids,
        known.epoch if known is not None else 0,
        fences,
        named.owner if named else "",
    )


def _topic_ids(admin: Admin, places: Places) -> tuple[tuple[str, str], ...]:
    found = admin.topics(list(places.all), timeout_s=LOOK_S)
    missing = [topic for topic in places.all if topic not in found]
    if missing:
        raise UnknownTopic(f"topics do not exist: {', '.join(missing)}; create them with `turnlog topics create`")
    return tuple(sorted((topic, info.topic_id[:ID_CHARS]) for topic, info in found.items()))


def _check_ids(known: tuple[tuple[str, str], ...], ids: dict[str, str]) -> None:
    anew = [topic for topic, before in known if topic in ids and ids[topic] != before]
    if anew:
        raise LogCut(f"topics were made anew since this partition was open: {', '.join(sorted(anew))}")


def _positions(
    committed: Mapping[Partition, Position | None], inbound: Sequence[Partition], fence: Mapping[str, int],
    bounds: Mapping[Partition, tuple[int, int]],
) -> dict[str, int | None]:  # fmt: skip
    """Per inbound topic the committed position, else the last fence's. Raises LogCut where the topic ends below it."""
    positions: dict[str, int | None] = {}
    for partition in inbound:
        at = committed.get(partition)
        known = positions[partition.topic] = fence.get(partition.topic) if at is None else at.offset
        if known is not None and bounds[partition][1] < known:
            raise LogCut(
                f"{partition.topic}[{partition.index}] ends at {bounds[partition][1]}, below its known position {known}"
            )
    return positions


def _last_fence(reader: Reader, journal: Partition, start: int, end: int, read_fence: ReadFence) -> FenceSays | None:
    last: Received | None = None
    for batch in reader.read(journal, start, end, timeout_s=3_600.0):
        for record in batch:
            header = header_of(record.headers)
            if header is not None and header.kind == FENCE:
                last = record
    return read_fence(last) if last is not None else None


def _named_fence(
    reader: Reader, journal: Partition, start: int, pointer: Pointer, read_fence: ReadFence
) -> FenceSays | None:
    """The fence that the pointer names; None where it was trimmed (then the restore meets all there are)."""
    if pointer.fence < start:
        return None
    try:
        return read_fence(reader.read_at(journal, [pointer.fence])[0])
    except OffsetGone:
        return None


def confirm(consumer: Consumer, places: Places, index: int, position: Position) -> bool:
    """Whether the partition is this member's: assigned before and after a commit that was accepted. Raises Retryable (ask again
    after the rebalance), NotOwner, Fatal."""
    if index not in consumer.owned():
        return False
    try:
        consumer.commit({Partition(places.ownership, index): position})
    except NotOwner:
        return False
    return index in consumer.owned()


def restore(reader: Reader, journal: Partition, looked: Looked, fence_offset: int, token: bytes) -> Restored:
    """Read from the floor (or the log's start, without a usable pointer) to the own fence. Raises LogCut, OffsetGone, Retryable."""
    began = time.monotonic()
    pointer = looked.pointer
    usable = pointer is not None and pointer.floor >= looked.start
    start = pointer.floor if pointer is not None and usable else looked.start
    effects = pointer.effects if pointer is not None and usable else looked.start
    fold = PartitionFold(pointer.token if pointer is not None and usable else None, keep_ended_from=effects)
    recent = _Recent(RECENT_BYTES)
    valid = 0
    previous: Received | None = None
    for batch in _read_untrimmed(reader, journal, start, fence_offset + 1):
        for record in batch:
            if record.offset == fence_offset:
                previous = fold.last_fence
            verdict = fold.take(record)
            if verdict is Verdict.STEP or verdict is Verdict.SNAPSHOT:
                valid += 1
                recent.keep(record)
    if fold.token != token:
        raise LogCut(
            f"{journal.topic}[{journal.index}]: the own fence at offset {fence_offset} was not found when read back"
        )
    return Restored(fold, recent.records, effects, valid, time.monotonic() - began, looked.start, previous)


def _read_untrimmed(reader: Reader, journal: Partition, start: int, end: int) -> Iterator[list[Received]]:
    """The owner before may have trimmed the log since it was looked at: that is no cut, and looking again helps."""
    try:
        yield from reader.read(journal, start, end, timeout_s=3_600.0)
    except OffsetGone as problem:
        if reader.bounds(journal)[0] > start:
            raise Retryable(f"trimmed while it was read: {problem}") from problem
        raise


class _Recent:
    """The newest records up to a bound of bytes."""

    def __init__(self, most: int) -> None:
        self.records: dict[int, Received] = {}
        self._most = most
        self._bytes = 0

    def keep(self, record: Received) -> None:
        self.records[record.offset] = record
        self._bytes += len(record.value or b"")
        while self._bytes > self._most:
            oldest = next(iter(self.records))
            self._bytes -= len(self.records.pop(oldest).value or b"")


class Opener(Protocol):
    """Who opens. Called on the poll thread."""

    def read_fence(self, record: Received) -> FenceSays | None:
        """See `ReadFence`; may run on another thread."""

    def refuses(self, looked: Looked) -> str | None:
        """Why this process must not open the partition, before anything is appended; None if it may."""

    def fence_value(self, token: bytes, looked: Looked) -> bytes: ...
    def opened(self, token: bytes, fence_offset: int, looked: Looked, restored: Restored) -> None: ...
    def not_ours(self) -> None: ...
    def failed(self, reason: str, *, cut: bool) -> None:
        """It did not work; the caller decides when to try again. `cut`: not soon, an operator must do something first."""


class Clients(NamedTuple):
    """What the jobs use; all of it may be called from another thread."""

    consumer: Consumer
    admin: Admin
    reader: Reader


class Opening:
    """One attempt to open partition `index`. `give_up` makes whatever still comes back count for nothing."""

    def __init__(
        self, index: int, places: Places, clients: Clients, writer: FencedWriter, runner: Runner, opener: Opener,
        clock: Callable[[], float], *, confirm_first: bool = False, least_end: int = -1,
    ) -> None:  # fmt: skip
        self.index = index
        self.stage = "look"
        self._places = places
        self._clients = clients
        self._writer = writer
        self._runner = runner
        self._opener = opener
        self._clock = clock
        self._confirm_until = 0.0
        self._confirm_again_at = 0.0
        self._given_up = False
        self._token = new_token()
        self._looked: Looked | None = None
        self._fence_offset = -1
        self._confirm_first = confirm_first
        self._least_end = least_end

    def begin(self) -> None:
        c, opener = self._clients, self._opener
        self._job(lambda: look(c, self._places, self.index, opener.read_fence, self._least_end), self._on_looked)

    def give_up(self) -> None:
        self._given_up = True

    def _job(self, job: Callable[[], object], then: Callable[..., None]) -> None:
        def done(result: object, error: BaseException | None) -> None:
            if self._given_up:
                return
            if error is not None:
                return self._on_error(error)
            then(result)

        self._runner.submit(OPENING, job, done)

    def tick(self) -> None:
        """Ask again for the confirmation that a rebalance held up, when its time has come."""
        if self._confirm_again_at and self._clock() >= self._confirm_again_at:
            self._confirm_again_at = 0.0
            self._confirm()

    def _on_error(self, error: BaseException) -> None:
        if self.stage == "confirm" and isinstance(error, Retryable) and self._clock() < self._confirm_until:
            self._confirm_again_at = self._clock() + CONFIRM_PAUSE_S
            return
        if not isinstance(error, LogError | LogCut):
            _log.error("opening partition %d failed at %s", self.index, self.stage, exc_info=error)
        cut = isinstance(error, LogCut | OffsetGone)
        self._opener.failed(f"{self.stage}: {error}" + ("; see `turnlog topics adopt`" if cut else ""), cut=cut)

    def _on_looked(self, looked: Looked) -> None:
        self._looked = looked
        refused = self._opener.refuses(looked)
        if refused is not None:
            return self._opener.failed(refused, cut=True)
        if self._confirm_first:
            self._begin_confirm()
        else:
            self._fence(looked)

    def _fence(self, looked: Looked) -> None:
        self.stage = "fence"
        self._writer.append_fence(
            self.index, self._opener.fence_value(self._token, looked), self._token, self._on_fence
        )

    def _on_fence(self, offset: int | None, error: LogError | None) -> None:
        if self._given_up:
            return
        if offset is None or self._looked is None:
            return self._opener.failed(f"fence: {error or 'its fate is unknown'}", cut=False)
        self._fence_offset = offset
        self._begin_confirm()

    def _begin_confirm(self) -> None:
        self.stage = "confirm"
        self._confirm_until = self._clock() + CONFIRM_S
        self._confirm()

    def _confirm(self) -> None:
        assert self._looked is not None
        position = self._pointer_position(self._looked)
        self._job(lambda: confirm(self._clients.consumer, self._places, self.index, position), self._on_confirmed)

    def _pointer_position(self, looked: Looked) -> Position:
        """The old position and pointer once more: an older pointer is safe, an erased one is not."""
        pointer = looked.pointer or Pointer(looked.start, NO_TOKEN, looked.end, looked.start, looked.epoch, looked.ids)
        known = looked.positions[self._places.ownership]
        offset = looked.starts[self._places.ownership] if known is None else known
        return Position(offset, pointer.encode())

    def _on_confirmed(self, ours: bool) -> None:
        if not ours:
            return self._opener.not_ours()
        looked = self._looked
        assert looked is not None
        if self._fence_offset < 0:
            return self._fence(looked)
        self.stage = "restore"
        journal = Partition(self._places.journal, self.index)
        offset, token = self._fence_offset, self._token
        self._job(lambda: restore(self._clients.reader, journal, looked, offset, token), self._on_restored)

    def _on_restored(self, restored: Restored) -> None:
        assert self._looked is not None
        self.stage = "open"
        self._opener.opened(self._token, self._fence_offset, self._looked, restored)


def unread(looked: Looked) -> dict[str, tuple[int, int]]:
    """Per inbound topic the offsets [from, to) that were not dealt with and are gone: retention passed them while nobody read."""
    known = {topic: (looked.positions[topic], start) for topic, start in looked.starts.items()}
    return {topic: (at, start) for topic, (at, start) in known.items() if at is not None and at < start}


def inbound_starts(looked: Looked, fence_positions: Sequence[tuple[str, int]]) -> dict[str, int]:
    """Where to begin each inbound topic: its committed offset, else that of the last fence, else its beginning; never before it."""
    last = dict(fence_positions)
    found = {}
    for topic, start in looked.starts.items():
        known = looked.positions[topic]
        offset = last.get(topic, start) if known is None else known
        found[topic] = max(offset, start)
    return found
