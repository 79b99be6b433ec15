"""One partition in this process: from its assignment to its end. Wires opening, runs, known runs, positions and retention.

    opening   look, fence, confirm, restore (turnlog.kafka.opening); nothing is read from the inbound topics yet
    backlog   inbound topics are read up to the end seen at assignment; runs decide, timers do not fire yet (J9)
    live      timers fire, effects that may not have left are sent again, snapshots, parking, retention
    closed    waits for another attempt, or for the operator (`cut`)
"""

from __future__ import annotations

import logging
import random
from typing import Any

from services.loop.arrivals import Arrival
from services.loop.known_runs import KnownRuns
from services.loop.positions import Progress, positions
from services.loop.runs import RunSlot
from services.loop.shell import Counters, Shell
from services.loop.table import RunTable
from turnlog.codec import Unreadable
from turnlog.core.records import Fence, InputRef, JournalRecord
from turnlog.kafka.fenced import FenceMark, Pointer, last_fence_at_or_below
from turnlog.kafka.jobs import LOADING
from turnlog.kafka.opening import NO_TOKEN, Looked, Opening, Restored, inbound_starts
from turnlog.kafka.ownership import End, Ownership, new_token
from turnlog.kafka.port import LogError, Partition, Received

_log = logging.getLogger(__name__)

ENDS_BEFORE_UNREADY = 5
CUT_RETRY_S = 10.0
FENCES_KEPT = 128
DAY_MS = 24 * 3_600_000


class PartitionOwner:
    """See the module. All methods on the poll thread. `left` is final: the partition is somebody else's."""

    def __init__(self, index: int, shell: Shell) -> None:
        self.index = index
        self.shell = shell
        self.stage = "closed"
        self.reason = ""
        self.table: RunTable | None = None
        self.left = False
        self._opening: Opening | None = None
        self._ownership: Ownership[Any] | None = None
        self._progress: dict[str, Progress] = {}
        self._known: KnownRuns | None = None
        self._restored: Restored | None = None
        self._looked: Looked | None = None
        self._retry_at = 0.0
        self._ends = 0
        self._fences: list[FenceMark] = []
        self._pointers: list[Pointer] = []
        self._committed: Pointer | None = None
        self._committed_at = 0
        self._commit_under_way = False
        self._all_committed_at = 0
        self._trimmed_at = 0
        self._opened_at = 0
        self._reopening = False
        self.restore_s = 0.0

    # ------------------------------------------------------------ opening

    @property
    def ready(self) -> bool:
        return self.stage == "live"

    def begin(self) -> None:
        """Open, or open again."""
        s = self.shell
        self.stage = "opening"
        self._opening = Opening(self.index, s.topics.places, s.clients, s.writer, s.runner, self, s.clock)
        self._opening.begin()

    def fence_value(self, token: bytes, looked: Looked) -> bytes:
        """The record that opens an ownership."""
        s = self.shell
        starts = inbound_starts(looked, ())
        refs = tuple(InputRef(topic, self.index, offset) for topic, offset in sorted(starts.items()))
        return self._fence_record(token, looked.epoch, looked.ids, refs)

    def _fence_record(self, token: bytes, epoch: int, ids: tuple[tuple[str, str], ...], refs: tuple[InputRef, ...]) -> bytes:
        s = self.shell
        fence = Fence(s.owner_name, ids, epoch, refs)
        record = JournalRecord("fence", token, "", -1, None, s.now(), s.build, 0, epoch, (), (), fence)
        return s.codec.encode(record)

    def not_ours(self) -> None:
        self._close("the group gave it to another member")

    def failed(self, reason: str, *, cut: bool) -> None:
        self._end_count()
        self._close(reason)
        self._retry_at = self.shell.clock() + (CUT_RETRY_S if cut else random.uniform(0.2, 1.0))
        log = _log.error if cut else _log.warning
        log("partition %d is not open: %s%s", self.index, reason, "; see `turnlog topics adopt`" if cut else "")

    def opened(self, token: bytes, fence_offset: int, looked: Looked, restored: Restored) -> None:
        """The journal is read up to the own fence: take over the runs, begin to read."""
        s = self.shell
        self._opening = None
        self._looked, self._restored = looked, restored
        self.restore_s = restored.seconds
        last = self._read_previous_fence(restored)
        self._fences = self._known_fences(restored, last)
        self._ownership = s.writer.open(self.index, token, fence_offset, self)
        self._known = None
        self.table = RunTable(self, s, self._ownership, looked.epoch, restored, self.dealt_with)
        starts = inbound_starts(looked, [(ref.topic, ref.offset) for ref in last.positions] if last else [])
        self._begin_inbound(starts)

    def _read_previous_fence(self, restored: Restored) -> Fence | None:
        if restored.previous is None:
            return None
        try:
            return self.shell.codec.decode(restored.previous.value, JournalRecord).opening
        except Unreadable as problem:
            _log.warning("partition %d: the fence at offset %d is unreadable: %s", self.index, restored.previous.offset, problem)
            return None

    def _known_fences(self, restored: Restored, last: Fence | None) -> list[FenceMark]:
        met = {fence.offset: fence for fence in restored.fold.fences}
        return [met[offset] for offset in sorted(met) if offset >= restored.start]

    def _begin_inbound(self, starts: dict[str, int]) -> None:
        """Find the ends off the thread, then read everything from its start."""
        s = self.shell
        state = Partition(s.topics.run_state, self.index)
        wanted = [Partition(topic, self.index) for topic in starts]

        def done(ends: dict[Partition, tuple[int, int]] | None, error: BaseException | None) -> None:
            if self.left or self.stage != "opening":
                return
            if ends is None:
                return self.failed(f"inbound: {error}", cut=False)
            self._progress = {p.topic: Progress(p, starts[p.topic], ends[p][1]) for p in wanted}
            self._known = KnownRuns(ends[state][1], ends[state][0])
            try:
                s.clients.reader.follow({state: ends[state][0]})
                s.clients.consumer.add({Partition(t, self.index): p.next_read for t, p in self._progress.items()})
            except LogError as problem:
                return self.failed(f"inbound: {problem}", cut=False)
            self.stage = "backlog"
            now = s.now()
            self._opened_at = self._committed_at = self._trimmed_at = now
            self._all_committed_at = 0
            self._advance()

        s.runner.submit(LOADING, lambda: s.clients.admin.ends([*wanted, state]), done)

    # ------------------------------------------------------------ records

    def take(self, record: Received) -> None:
        """An inbound record of this partition."""
        progress = self._progress.get(record.topic)
        if progress is None or self.table is None or record.offset < progress.next_read:
            return
        progress.read(record.offset)
        s = self.shell
        found = s.reception.command(record) if record.topic == s.topics.commands else s.reception.result(record)
        if isinstance(found, Arrival):
            self.table.arrive(found)
        else:
            self.table.reject(found)

    def dealt_with(self, record: Received) -> None:
        """The record needs no attention any more."""
        progress = self._progress.get(record.topic)
        if progress is not None:
            progress.done(record.offset)

    def follow(self, record: Received) -> None:
        """A record of the partition's `run-state`."""
        if self._known is None:
            return
        wrong = self._known.take(record)
        if wrong is not None:
            self._repair(wrong)

    def _repair(self, offset: int) -> None:
        """Write an earlier projection again, byte for byte: an owner that slept wrote an older one over it (J13)."""
        s, where = self.shell, Partition(self.shell.topics.run_state, self.index)
        if self._ownership is None or self._ownership.unsure:
            return

        def done(records: list[Received] | None, error: BaseException | None) -> None:
            if not records or self._ownership is None or self._ownership.ended is not None:
                _log.warning("partition %d: a projection could not be repaired: %s", self.index, error)
                return
            good = records[0]
            s.counters.repairs += 1
            s.outbox.send(where.topic, good.value, good.key, lambda: None, partition=self.index, headers=good.headers)

        s.runner.submit(LOADING, lambda: s.clients.reader.read_at(where, [offset]), done)

    @property
    def known(self) -> KnownRuns | None:
        return self._known

    # ------------------------------------------------------------ time

    def tick(self) -> None:
        """Everything that is due by the clock; a few times a second."""
        if self._opening is not None:
            self._opening.tick()
        if self.stage == "closed":
            if self._retry_at and self.shell.clock() >= self._retry_at and not self.left:
                self._retry_at = 0.0
                self.begin()
            return
        table = self.table
        if table is None or self.stage == "opening":
            return
        self._advance()
        table.tick(live=self.stage == "live")
        now = self.shell.now()
        if now - self._committed_at >= self.shell.bounds.commit_every_ms:
            self._committed_at = now
            self.commit()
        if self.stage == "live":
            self._renew_fence(now)
            self._trim(now)

    def _advance(self) -> None:
        """From backlog to live once everything that was there at assignment has been taken in."""
        table = self.table
        if self.stage != "backlog" or table is None or self._known is None:
            return
        if self._known.streamed and all(p.caught_up for p in self._progress.values()):
            self.stage = "live"
            self.reason = ""
            self._ends = 0
            table.go_live()
            _log.info("partition %d is live: %d open runs, restored in %.2f s", self.index, len(table.slots), self.restore_s)

    def pointer(self) -> Pointer:
        """What the next commit says of the journal."""
        assert self._ownership is not None and self.table is not None and self._looked is not None and self._restored is not None
        end = self._ownership.expected
        floor, effects = self.table.floor(end)
        own = self._ownership
        token = own.token if floor > own.fence_offset else self._restored.fold.token_at(floor) or NO_TOKEN
        return Pointer(floor, token, end, effects, self._looked.epoch, self._looked.ids)

    def commit(self, *, wait: bool = False) -> None:
        """Commit the positions with the pointer. `wait`: before giving the partition up."""
        if self._ownership is None or self._ownership.ended is not None or not self._progress or self._commit_under_way:
            return
        pointer = self.pointer()
        now = self.shell.now()
        if not wait and pointer == self._committed and all(p.position == p.committed for p in self._progress.values()):
            return
        all_of_them = now - self._all_committed_at > DAY_MS
        if all_of_them:
            self._all_committed_at = now
        found = positions(self._progress, self.shell.topics.commands, pointer.encode(), all_of_them=all_of_them)
        consumer = self.shell.clients.consumer
        if wait:
            try:
                consumer.commit(found, timeout_s=3.0)
            except LogError as problem:
                _log.warning("partition %d: the last commit failed: %s", self.index, problem)
            return
        self._commit_under_way = True

        def done(error: LogError | None) -> None:
            self._commit_under_way = False
            if error is None:
                self._committed = pointer
                self._pointers = [*self._pointers[-1:], pointer]
            else:
                _log.info("partition %d: commit refused: %s", self.index, error)

        consumer.commit_soon(found, done)

    def _trim(self, now: int) -> None:
        """Delete what no restore can need (J14): up to a fence, so that the log always begins with one."""
        s = self.shell
        if now - self._trimmed_at < s.bounds.trim_every_ms or len(self._pointers) < 2 or self._restored is None or self.table is None:
            return
        self._trimmed_at = now
        limit = min(self._pointers[-2].floor, self.table.oldest_base(self._pointers[-2].floor))
        offset = last_fence_at_or_below(self._fences, limit, now - s.bounds.journal_keep_ms)
        if offset is not None and offset > self._restored.start:
            where = Partition(s.topics.journal, self.index)
            s.runner.submit(LOADING, lambda: s.clients.admin.delete_records({where: offset}), self._trimmed)
        if self._known is not None:
            self.table.forget(self._known.expired(now - s.bounds.run_id_keep_ms))

    def _trimmed(self, _: object, error: BaseException | None) -> None:
        if error is not None:
            _log.warning("partition %d: the journal could not be trimmed: %s", self.index, error)

    def _renew_fence(self, now: int) -> None:
        """A fence a day if anything was written, so that fences are never far apart (J4). Runs in memory are kept: nothing is in
        flight, and the fence must land directly behind what memory holds."""
        own, table = self._ownership, self.table
        if own is None or table is None or self._looked is None or now - self._opened_at < self.shell.bounds.reopen_every_ms:
            return
        if own.expected == own.fence_offset + 1:
            self._opened_at = now
            return
        table.hold = True
        if own.in_flight or self._reopening or own.unsure:
            return
        self._reopening = True
        token, expected, looked = new_token(), own.expected, self._looked
        refs = tuple(InputRef(p.partition.topic, self.index, p.position) for p in self._progress.values())

        def done(offset: int | None, error: LogError | None) -> None:
            self._reopening = False
            if own.ended is not None or self.table is not table:
                return
            if offset != expected:
                return self.over(End.FOREIGN_FENCE, f"the daily fence landed at {offset}, expected {expected}")
            self._fences.append(FenceMark(offset, now, token))
            if self._restored is not None:
                self._restored.fold.fences.append(FenceMark(offset, now, token))
            self.shell.writer.leave(own)
            self._ownership = self.shell.writer.open(self.index, token, offset, self)
            self._opened_at = now
            table.renewed(self._ownership)

        value = self._fence_record(token, looked.epoch, looked.ids, refs)
        self.shell.writer.append_fence(self.index, value, token, done)

    # ------------------------------------------------------------ acknowledgements and the end

    def valid(self, ticket: Any, offset: int) -> None:
        if self.table is not None:
            self.table.valid(ticket, offset)

    def over(self, end: End, reason: str) -> None:
        if end is End.LEFT:
            return
        Counters.count(self.shell.counters.ownership_ends, end.name.lower())
        _log.warning("partition %d: ownership over (%s): %s", self.index, end.value, reason)
        self._end_count()
        self._close(reason)
        if end is End.CUT:
            self._retry_at = self.shell.clock() + CUT_RETRY_S
        else:
            self._retry_at = self.shell.clock() + (random.uniform(0.2, 1.5) if end is End.FOREIGN_FENCE else 0.05)

    def cut(self, reason: str) -> None:
        """A consumer reports that its position is gone: the log was cut or made anew (J15)."""
        self.over(End.CUT, reason)

    def _end_count(self) -> None:
        self._ends += 1
        if self._ends >= ENDS_BEFORE_UNREADY:
            _log.error("partition %d: %d ownerships ended without progress", self.index, self._ends)

    def _close(self, reason: str) -> None:
        """Drop everything that belongs to the ownership; the partition stays assigned."""
        self.stage = "closed"
        self.reason = reason
        if self._opening is not None:
            self._opening.give_up()
            self._opening = None
        if self._ownership is not None:
            self.shell.writer.leave(self._ownership)
            self._ownership = None
        if self.table is not None:
            self.table.close()
            self.table = None
        self._commit_under_way = self._reopening = False
        self._pointers = []
        self._committed = None
        consumer, reader = self.shell.clients.consumer, self.shell.clients.reader
        try:
            consumer.remove([Partition(topic, self.index) for topic in self.shell.topics.places.inbound])
            reader.unfollow([Partition(self.shell.topics.run_state, self.index)])
        except LogError as problem:
            _log.warning("partition %d: %s", self.index, problem)
        self._progress = {}
        self._known = None

    def leave(self, *, lost: bool) -> None:
        """The group takes the partition away. Inside a callback: a commit is sent, not waited for (an older pointer is safe)."""
        if not lost:
            self.commit()
        self.left = True
        self._close("revoked")

    def slot(self, run_id: str) -> RunSlot | None:
        return self.table.slots.get(run_id) if self.table is not None else None
