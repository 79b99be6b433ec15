"""One partition in this process: from its assignment to its end. Wires opening, runs, known runs, positions and retention.

opening   look, fence, confirm, restore (turnlog.kafka.opening); nothing is read from the inbound topics yet
backlog   inbound topics are read up to the end seen at assignment; runs decide, timers do not fire yet (J9)
live      timers fire, effects that may not have left are sent again, snapshots, parking, retention
closed    waits for another attempt, or for the operator (`cut`)
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from services.loop.arrivals import Arrival
from services.loop.holes import Holes
from services.loop.known_runs import KnownRuns
from services.loop.positions import Progress, committed, positions
from services.loop.runs import RunSlot
from services.loop.shell import Counters, Shell
from services.loop.table import RunTable
from turnlog.codec import RegistryUnavailable, Unreadable
from turnlog.core.records import Fence, FencePlace, InputRef, JournalRecord
from turnlog.kafka.fenced import FenceMark, Pointer, last_fence_at_or_below, thinned
from turnlog.kafka.jobs import LOADING
from turnlog.kafka.opening import NO_TOKEN, FenceSays, Looked, Opening, Restored, inbound_starts, unread
from turnlog.kafka.ownership import End, Ownership, new_token
from turnlog.kafka.port import LogError, Partition, Received, Retryable

_log = logging.getLogger(__name__)

ENDS_BEFORE_UNREADY = 5
OPERATOR_RETRY_S = 10.0
"""So long what only an operator can mend is left alone: nobody is helped by a fence a tenth of a second."""
NOT_OURS_RETRY_S = 1.0
REGISTRY_RETRY_S = 10.0
FENCES_KEPT = 100
"""Fences that an opening one names, besides the newest: one per hundredth of what is kept."""
DAY_MS = 24 * 3_600_000
CLOCKS_MS = 3_600_000
"""So far apart may the broker's clock and an owner's be."""


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
        self._holes = Holes(shell)
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
        self._epoch = 0
        self._repairs: set[int] = set()
        self._catching_up = self._until_known = False
        self._late_wakes: list[tuple[str, int]] = []
        self._cut_at = -1
        """End of the journal that was seen before it was found cut (J15); -1 if it was not."""
        self._doubtful = False
        """A foreign fence was met: ask whether the partition is ours before the next fence (J7)."""
        self.restore_s = 0.0

    # ------------------------------------------------------------ opening

    @property
    def ready(self) -> bool:
        return self.stage == "live"

    @property
    def timely(self) -> bool:
        """Timers may fire: what arrived before their time has been read."""
        return self.stage == "live" and not self._catching_up

    def begin(self) -> None:
        """Open, or open again."""
        s = self.shell
        self.stage = "opening"
        doubt = self._doubtful
        self._opening = Opening(
            self.index,
            s.topics.places,
            s.clients,
            s.writer,
            s.runner,
            self,
            s.clock,
            confirm_first=doubt,
            least_end=self._cut_at,
        )
        self._opening.begin()

    def refuses(self, looked: Looked) -> str | None:
        """A blob directory of this host alone is of no use to a partition that another host owned (J8)."""
        s = self.shell
        there, here = looked.last_owner.partition("/")[0], s.owner_name.partition("/")[0]
        if s.blobs_shared or not there or there == here:
            return None
        return (
            f"host {there} owned this partition, and the blob directory is this host's ({here}) alone: put it on a file system that all "
            "hosts share and set TURNLOG_BLOBS_SHARED=true"
        )

    def fence_value(self, token: bytes, looked: Looked) -> bytes:
        """The record that opens an ownership."""
        starts = inbound_starts(looked, ())
        refs = tuple(InputRef(topic, self.index, offset) for topic, offset in sorted(starts.items()))
        return self._fence_record(token, looked.epoch, looked.ids, refs, looked.fences)

    def read_fence(self, record: Received) -> FenceSays | None:
        """What a fence says, or None."""
        fence = self._decode_fence(record)
        if fence is None:
            return None
        positions = tuple((ref.topic, ref.offset) for ref in fence.positions)
        fences = (*((at.offset, at.at) for at in fence.earlier), (record.offset, record.timestamp_ms))
        return FenceSays(fence.input_epoch, fence.topic_ids, positions, fences, fence.owner)

    def _fence_record(
        self, token: bytes, epoch: int, ids: tuple[tuple[str, str], ...], refs: tuple[InputRef, ...],
        fences: Sequence[tuple[int, int]],
    ) -> bytes:  # fmt: skip
        s = self.shell
        earlier = tuple(FencePlace(*fence) for fence in thinned(fences, s.bounds.journal_keep_ms // FENCES_KEPT))
        fence = Fence(s.owner_name, ids, epoch, refs, earlier)
        record = JournalRecord("fence", token, "", -1, None, s.now(), s.build, 0, epoch, (), (), fence)
        return s.codec.encode(record)

    def not_ours(self) -> None:
        """Either the group's callback follows, or the member was in between and is asked again."""
        self._close("the group gave it to another member")
        self._doubtful = True
        self._retry_at = self.shell.clock() + NOT_OURS_RETRY_S

    def failed(self, reason: str, *, cut: bool) -> None:
        self._end_count()
        self._close(reason)
        self._retry_at = self.shell.clock() + (OPERATOR_RETRY_S if cut else self.shell.random.uniform(0.2, 1.0))
        log = _log.error if cut else _log.warning
        log("partition %d is not open: %s", self.index, reason)

    def opened(self, token: bytes, fence_offset: int, looked: Looked, restored: Restored) -> None:
        """The journal is read up to the own fence: take over the runs, begin to read."""
        s = self.shell
        self._opening = None
        self._doubtful = False
        self._cut_at = -1
        self._looked, self._restored = looked, restored
        self.restore_s = restored.seconds
        last = self._decode_fence(restored.previous) if restored.previous is not None else None
        self._fences = _known_fences(restored, looked)
        self._ownership = s.writer.open(self.index, token, fence_offset, self)
        self._known = None
        self._epoch = max(
            looked.epoch, last.input_epoch if last is not None else 0
        )  # a lost pointer must not open an old epoch again
        self.table = RunTable(self, s, self._ownership, self._epoch, restored, self.dealt_with)
        for topic, (first, end) in unread(looked).items():
            _log.error(
                "%s[%d]: offsets %d to %d were deleted before they were read: what they said is lost",
                topic,
                self.index,
                first,
                end - 1,
            )
        starts = inbound_starts(looked, [(ref.topic, ref.offset) for ref in last.positions] if last else [])
        self._begin_inbound(starts)

    def _decode_fence(self, record: Received) -> Fence | None:
        try:
            return self.shell.codec.decode(record.value, JournalRecord).opening
        except Unreadable as problem:
            _log.warning("partition %d: the fence at offset %d is unreadable: %s", self.index, record.offset, problem)
            return None

    def _begin_inbound(self, starts: dict[str, int]) -> None:
        """Find the ends off the thread, then read everything from its start."""
        s, own = self.shell, self._ownership
        state = Partition(s.topics.run_state, self.index)
        wanted = [Partition(topic, self.index) for topic in starts]

        def done(ends: dict[Partition, tuple[int, int]] | None, error: BaseException | None) -> None:
            if self.left or self.stage != "opening" or self._ownership is not own or own is None:
                return
            if ends is None:
                return self.failed(f"inbound: {error}", cut=False)
            self._progress = {p.topic: Progress(p, starts[p.topic], ends[p][1]) for p in wanted}
            self._known = KnownRuns(state, *ends[state])
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

        s.runner.submit(LOADING, lambda: {each: s.clients.reader.bounds(each) for each in (*wanted, state)}, done)

    # ------------------------------------------------------------ records

    def take(self, record: Received) -> None:
        """An inbound record of this partition."""
        progress = self._progress.get(record.topic)
        if progress is None or self.table is None or record.offset < progress.next_read:
            return
        progress.read(record.offset)
        s = self.shell
        try:
            found = s.reception.command(record) if record.topic == s.topics.commands else s.reception.result(record)
        except RegistryUnavailable as problem:  # nothing is wrong with the record, and what comes behind it must wait
            self.failed(f"{record.topic} offset {record.offset}: {problem}", cut=False)
            self._retry_at = s.clock() + REGISTRY_RETRY_S
            return
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
            self._repairs.add(wrong)
            self._repair()

    def _repair(self) -> None:
        """Write earlier projections again, byte for byte: an owner that slept wrote older ones over them (J13)."""
        own = self._ownership
        if own is None or own.unsure:
            return  # looked at again with the next tick
        for offset in sorted(self._repairs):
            self._repair_one(offset, own)
        self._repairs.clear()

    def _repair_one(self, offset: int, own: Ownership[Any]) -> None:
        s, where = self.shell, Partition(self.shell.topics.run_state, self.index)

        def done(records: list[Received] | None, error: BaseException | None) -> None:
            if self._ownership is not own:
                return  # the next ownership reads the partition from its start
            if own.unsure or isinstance(error, Retryable):
                self._repairs.add(offset)
                return
            if not records:
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
        if self._repairs:
            self._repair()
        if self._catching_up:
            self._fire_late()
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
        self._holes.look([*self._progress.values(), self._known])
        if self._known.streamed and all(p.caught_up for p in self._progress.values()):
            self.stage = "live"
            self.reason = ""
            self._ends = 0
            table.memory.go_live()
            _log.info(
                "partition %d is live: %d open runs, restored in %.2f s", self.index, len(table.slots), self.restore_s
            )

    def slept(self) -> None:
        """The process stood still: what arrived before a deadline meanwhile counts, so timers wait for it (J16)."""
        if self.stage != "live" or self._catching_up:
            return
        self._catching_up = True
        s, progress = self.shell, self._progress
        wanted = [each.partition for each in progress.values()]

        def done(ends: dict[Partition, tuple[int, int]] | None, error: BaseException | None) -> None:
            if self._progress is not progress:
                return
            for partition, (_, end) in (ends or {}).items():
                progress[partition.topic].until = end
            if error is not None:
                _log.warning("partition %d: the inbound ends are not known: %s", self.index, error)
            self._until_known = True

        self._until_known = False
        s.runner.submit(LOADING, lambda: s.clients.admin.ends(wanted), done)

    def wake(self, run_id: str, due: int) -> None:
        """A timer came due. While there is a backlog it has to wait."""
        if self.table is None or self.stage != "live":
            return  # all timers are set anew when the partition goes live
        if self._catching_up:
            self._late_wakes.append((run_id, due))
        else:
            self.table.wake(run_id, due)

    def _fire_late(self) -> None:
        """The backlog of a sleep has been read: now its timers."""
        if self.table is None or not self._until_known:
            return
        self._holes.look(self._progress.values())
        if not all(p.caught_up for p in self._progress.values()):
            return
        self._catching_up = False
        late, self._late_wakes = self._late_wakes, []
        for run_id, due in late:
            self.table.wake(run_id, due)

    def pointer(self) -> Pointer:
        """What the next commit says of the journal."""
        own, table, looked, restored = self._ownership, self.table, self._looked, self._restored
        assert own is not None
        assert table is not None
        assert looked is not None
        assert restored is not None
        end = own.expected
        floor, effects = table.memory.floor(own.told)
        token = own.token if floor > own.fence_offset else restored.fold.token_at(floor) or NO_TOKEN
        return Pointer(floor, token, end, effects, self._epoch, looked.ids, own.fence_offset)

    def commit(self, *, wait: bool = False) -> None:
        """Commit the positions with the pointer. `wait`: before giving the partition up."""
        if self._ownership is None or self._ownership.ended is not None or not self._progress:
            return
        if self._commit_under_way and not wait:
            return
        pointer = self.pointer()
        now = self.shell.now()
        all_of_them = now - self._all_committed_at > DAY_MS
        moved = pointer != self._committed or any(p.position != p.committed for p in self._progress.values())
        if not wait and not moved and not all_of_them:
            return
        found = positions(self._progress, self.shell.topics.commands, pointer.encode(), all_of_them=all_of_them)
        consumer = self.shell.clients.consumer
        if wait:
            try:
                consumer.commit(found, timeout_s=3.0)
            except LogError as problem:
                _log.warning("partition %d: the last commit failed: %s", self.index, problem)
            return
        self._commit_under_way = True
        progress = self._progress

        def done(error: LogError | None) -> None:
            if self._progress is not progress:
                return  # of an ownership that is over
            self._commit_under_way = False
            if error is None:
                committed(progress, found)
                self._all_committed_at = now if all_of_them else self._all_committed_at
                self._committed = pointer
                self._pointers = [*self._pointers[-1:], pointer]
            else:
                _log.info("partition %d: commit refused: %s", self.index, error)

        consumer.commit_soon(found, done)

    def _trim(self, now: int) -> None:
        """Delete what no restore can need (J14): up to a fence, so that the log always begins with one."""
        s = self.shell
        if (
            now - self._trimmed_at < s.bounds.trim_every_ms
            or len(self._pointers) < 2
            or self._restored is None
            or self.table is None
        ):
            return
        self._trimmed_at = now
        limit = min(self._pointers[-2].floor, self.table.memory.oldest_base(self._pointers[-2].floor))
        offset = last_fence_at_or_below(self._fences, limit, now - s.bounds.journal_keep_ms)
        if offset is not None and offset > self._restored.start:
            where = Partition(s.topics.journal, self.index)
            s.runner.submit(LOADING, lambda: s.clients.admin.delete_records({where: offset}), self._trimmed)
        s.runner.submit(LOADING, self._oldest_record, self._forget)

    def _oldest_record(self) -> int:
        """When the first record that the journal still holds was written, in ms. Off the poll thread."""
        reader, where = self.shell.clients.reader, Partition(self.shell.topics.journal, self.index)
        first = next(record for batch in reader.read(where, *reader.bounds(where)) for record in batch)
        return first.timestamp_ms

    def _forget(self, oldest: int | None, error: BaseException | None) -> None:
        """Free the names of runs that ended long ago and of which the journal holds no step any more: a new run of that name begins anew,
        and a step 0 behind another step would be a broken chain (J12)."""
        if error is not None or oldest is None:
            return _log.warning("partition %d: the journal's begin could not be read: %s", self.index, error)
        if self.table is not None and self._known is not None:
            before = min(self.shell.now() - self.shell.bounds.run_id_keep_ms, oldest - CLOCKS_MS)
            self.table.forget(self._known.expired(before))
        return None

    def _trimmed(self, _: object, error: BaseException | None) -> None:
        if error is not None:
            _log.warning("partition %d: the journal could not be trimmed: %s", self.index, error)

    def _renew_fence(self, now: int) -> None:
        """A fence a day if anything was written, so that fences are never far apart (J4). Runs in memory are kept: nothing is in
        flight, and the fence must land directly behind what memory holds."""
        own, table = self._ownership, self.table
        if (
            own is None
            or table is None
            or self._looked is None
            or now - self._opened_at < self.shell.bounds.reopen_every_ms
        ):
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

        value = self._fence_record(
            token, self._epoch, looked.ids, refs, [(fence.offset, fence.at) for fence in self._fences]
        )
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
        if end is End.CUT and self._ownership is not None and self._progress:
            self._cut_at = self._ownership.expected
            self._remember_cut()
        self._doubtful = end is End.FOREIGN_FENCE
        self._close(reason)
        if end in (End.CUT, End.TOO_LARGE):
            self._retry_at = self.shell.clock() + OPERATOR_RETRY_S
        else:
            self._retry_at = self.shell.clock() + (self.shell.random.uniform(0.2, 1.5) if self._doubtful else 0.05)

    def _remember_cut(self) -> None:
        """Leave a pointer that says how long the log was, so that no restart goes on without an operator (J15)."""
        found = positions(self._progress, self.shell.topics.commands, self.pointer().encode(), all_of_them=False)
        self.shell.clients.consumer.commit_soon(found)

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
        self._commit_under_way = self._reopening = self._catching_up = False
        self._late_wakes = []
        self._repairs.clear()
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

    def publish_all(self) -> None:
        """Before the process ends: readers must not look at old summaries until another takes the partition. Nothing leaves where this
        process knows or suspects that it is not the owner (J6); an owner after it repairs what was written too late (J13)."""
        own, table = self._ownership, self.table
        if own is None or table is None or own.ended is not None or own.unsure:
            return
        if self.index in self.shell.clients.consumer.owned():
            table.effects.publish_all(table.failed)

    def leave(self, *, lost: bool) -> None:
        """The group takes the partition away. Inside a callback: a commit is sent, not waited for (an older pointer is safe)."""
        if not lost:
            self.commit()
        self.left = True
        self._close("revoked")

    def slot(self, run_id: str) -> RunSlot | None:
        return self.table.slots.get(run_id) if self.table is not None else None


def _known_fences(restored: Restored, looked: Looked) -> list[FenceMark]:
    """The fences that the last owner named and those that were met, in order."""
    known = {offset: FenceMark(offset, at, b"") for offset, at in looked.fences}
    known |= {fence.offset: fence for fence in restored.fold.fences}
    return [known[offset] for offset in sorted(known) if offset >= restored.start]
