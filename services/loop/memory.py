"""What of a partition's runs is in memory: taking them up after a restore, loading, parking, snapshots and the floor (J8 to J10).

A slot that has only a trail is parked: its records are read and folded when something arrives for it or its time comes. Until
every run with steps from the effects mark on has sent those steps' effects again, the mark stays where the restore found it.
"""

from __future__ import annotations

import heapq
import logging
from typing import TYPE_CHECKING

from services.loop.runs import Loaded, RunSlot, load
from services.loop.shell import Shell
from turnlog.codec import RegistryUnavailable, Unreadable
from turnlog.core.errors import CoreError
from turnlog.core.pending import model_due, next_wake
from turnlog.core.records import InputRef, JournalRecord, Snapshot
from turnlog.core.snapshot import to_json
from turnlog.core.state import RunState
from turnlog.kafka.fenced import SNAPSHOT, RecordHeader, Trail
from turnlog.kafka.jobs import LOADING
from turnlog.kafka.opening import Restored
from turnlog.kafka.port import LogError, OffsetGone, Partition, Received

if TYPE_CHECKING:
    from services.loop.table import RunTable

_log = logging.getLogger(__name__)

LIVE_CHUNK = 200
"""Runs taken up per tick after a restore, so that polling goes on meanwhile."""
FLOOR_EVERY_MS = 1_000
_Folded = tuple[Loaded | None, BaseException | None]
EVERYTHING_LEFT = 1 << 62
"""An effects mark behind every offset: no effect of what is loaded is sent again."""


class Diverged(Exception):
    """A run was recorded otherwise than this build decides, and the settings say that the process must not go on with it."""


class RunMemory:
    """See the module. Belongs to one `RunTable`; everything on the poll thread but `_fold` (which only reads)."""

    def __init__(self, table: RunTable, shell: Shell, epoch: int, restored: Restored) -> None:
        self._table = table
        self._shell = shell
        self._epoch = epoch
        self._recent = restored.recent
        self._mark = restored.effects
        self._unresumed = {
            key
            for key, trail in restored.fold.trails.items()
            if (trail.last >= restored.effects or trail.overtaken) and not trail.broken
        }
        """Runs whose effects from the mark on have not been sent again yet."""
        self._takeup: list[RunSlot] = []
        self._far: list[tuple[RunSlot, Trail]] = []
        self._reading = False
        self._parked_at = self._floor_at = shell.now()
        self.written = restored.fold.mark
        """Bytes of the partition's values so far, counted from the floor of the restore."""

    # ------------------------------------------------------------ after a restore

    def go_live(self) -> None:
        """Timers may fire, effects of steps from the mark on are sent again where still needed (J9)."""
        for slot in self._table.slots.values():
            if slot.trail is None or slot.problem:
                continue
            if slot.run_id in self._unresumed or slot.state is not None:
                slot.wake = 0  # timers that came due during the backlog were dropped: set anew
                self._takeup.append(slot)
            elif slot.wake:
                heapq.heappush(self._shell.wakes, (slot.wake, self._table.index, slot.run_id))

    def tick(self, now: int) -> None:
        """Runs still to be taken up, parking, the floor. Only while live."""
        takeup, self._takeup = self._takeup[:LIVE_CHUNK], self._takeup[LIVE_CHUNK:]
        held = [slot for slot in takeup if self._table.slots.get(slot.run_id) is slot and not slot.problem]
        self.load(*held)
        for slot in held:
            if slot.state is not None:
                self.send_again(slot)
                self._table.take_up(slot)
        if now - self._parked_at >= self._shell.bounds.park_after_ms // 6:
            self._parked_at = now
            self._recent.clear()
            self._park(now)
        if now - self._floor_at >= min(FLOOR_EVERY_MS, self._shell.bounds.park_after_ms // 6):
            self._floor_at = now
            self._move_floor()

    def send_again(self, slot: RunSlot) -> None:
        """Send what a restored run's last steps may have left unsent. Never beside an unacknowledged step, whose draft would say
        what is still needed: it is done when that step is valid."""
        if slot.in_flight or slot.state is None or slot.trail is None or not self._table.live:
            return
        self._unresumed.discard(slot.run_id)
        slot.trail.overtaken = []
        if slot.unsent:
            unsent, slot.unsent = slot.unsent, []
            try:
                self._table.effects.send_again(slot, slot.state, unsent, slot.trail)
            except Exception as problem:  # noqa: BLE001 - of one run, and not of its partition
                return self._table.failed(slot, problem, unsent[0].offset)
            self._table.let_go(slot)

    def give_up(self, slot: RunSlot) -> None:
        """The run is stopped: what its last valid steps recorded still leaves, but nothing is asked for any more."""
        self._unresumed.discard(slot.run_id)
        unsent, slot.unsent = slot.unsent, []
        self._table.effects.facts_again(slot, unsent)

    # ------------------------------------------------------------ loading

    def load(self, *slots: RunSlot) -> None:
        """Read these runs' records and fold each; from the restore's own reading where they are still there."""
        parked = [
            (slot, slot.trail) for slot in slots if slot.trail is not None and not slot.loading and slot.state is None
        ]
        self._shell.counters.loads += len(parked)
        for slot, trail in parked:
            recent = [self._recent[offset] for offset in _offsets(trail) if offset in self._recent]
            if len(recent) == len(_offsets(trail)):
                self._loaded(slot, *self._folded(slot, trail, recent))
            else:
                slot.loading = True
                self._far.append((slot, trail))
        self._load_far()

    def _load_far(self) -> None:
        """One sorted read for all that came together while the last was under way: a seek costs a millisecond, a record some
        microseconds. Never two reads of a partition, so that a gap read need not wait behind thousands of runs."""
        held = [(slot, trail) for slot, trail in self._far if self._table.slots.get(slot.run_id) is slot]
        if self._reading or not held:
            return
        self._reading = True
        runs, self._far = held[:LIVE_CHUNK], held[LIVE_CHUNK:]
        where = Partition(self._shell.topics.journal, self._table.index)
        reader = self._shell.clients.reader

        def job() -> list[_Folded]:
            found = {
                record.offset: record
                for record in reader.read_at(where, sorted({o for _, trail in runs for o in _offsets(trail)}))
            }
            return [self._folded(slot, trail, [found[offset] for offset in _offsets(trail)]) for slot, trail in runs]

        def done(folded: list[_Folded] | None, error: BaseException | None) -> None:
            self._reading = False
            self._load_far()
            for (slot, _), each in zip(runs, folded or [(None, error)] * len(runs), strict=True):
                slot.loading = False
                if self._table.slots.get(slot.run_id) is slot:
                    self._loaded(slot, *each)

        self._shell.runner.submit(LOADING, job, done)

    def _folded(self, slot: RunSlot, trail: Trail, records: list[Received]) -> _Folded:
        try:
            return self._fold(slot, trail, records), None
        except Exception as problem:  # noqa: BLE001 - whatever one run's history breaks, it stops that run and not its batch
            return None, problem

    def _fold(self, slot: RunSlot, trail: Trail, records: list[Received]) -> Loaded:
        s = self._shell
        effects = self._mark if slot.run_id in self._unresumed else EVERYTHING_LEFT
        return load(slot.run_id, trail, records, s.codec, s.validate, s.blobs, self._epoch, effects)

    def _loaded(self, slot: RunSlot, loaded: Loaded | None, error: BaseException | None) -> None:
        table = self._table
        if loaded is None:
            return self._not_loaded(slot, error)
        slot.unsent = loaded.unsent
        if loaded.divergence is not None and not self._go_on_diverged(slot, loaded):
            return
        slot.state = loaded.state
        slot.seen = {**loaded.seen, **slot.seen}
        slot.inputs = loaded.inputs
        slot.touched = self._shell.now()
        try:
            table.set_wake(slot, slot.trail.end if loaded.state.ended and slot.trail else next_wake(loaded.state))
        except Exception as problem:  # noqa: BLE001 - of one run, and not of its partition
            return table.failed(slot, problem)
        self.send_again(slot)
        if table.live:
            table.take_up(slot)
        table.pump(slot)

    def _not_loaded(self, slot: RunSlot, error: BaseException | None) -> None:
        if isinstance(error, OffsetGone):  # what an open run needs is never trimmed (J14): the log was cut
            self._table.cut(f"a record of run {slot.run_id} is gone: {error}")
        elif isinstance(error, LogError | RegistryUnavailable):
            _log.warning("run could not be loaded, trying again: %s", error, extra={"run": slot.run_id})
            self._takeup.append(slot)
        else:
            self._table.stop(slot, str(error) if isinstance(error, CoreError | Unreadable) else repr(error), [])

    def _go_on_diverged(self, slot: RunSlot, loaded: Loaded) -> bool:
        self._shell.counters.divergences += 1
        text = loaded.divergence.describe() if loaded.divergence is not None else ""
        _log.error("%s", text, extra={"run": slot.run_id})
        if self._shell.verify == "warn":
            return True
        if self._shell.verify == "fail":
            raise Diverged(text)
        self._table.stop(slot, f"diverged: {text}", [])
        return False

    # ------------------------------------------------------------ parking, snapshots, the floor

    def _park(self, now: int) -> None:
        """Drop idle runs from memory: a trail is enough to come back (J10)."""
        before = now - self._shell.bounds.park_after_ms
        for slot in self._table.slots.values():
            idle = slot.touched < before and not slot.in_flight and not slot.inbox and not slot.unsent
            if (
                idle
                and slot.state is not None
                and slot.effects == 0
                and not model_due(slot.state)
                and slot.dirty is None
            ):
                slot.state = None

    def snapshot_due(self, slot: RunSlot) -> bool:
        """The steps since the base have outgrown it."""
        trail = slot.trail
        if trail is None or trail.end >= 0 or slot.in_flight:
            return False
        return trail.since_bytes > max(4 * trail.base_bytes, self._shell.bounds.snapshot_bytes)

    def snapshot(self, slot: RunSlot) -> None:
        """Write the run's state as its new base (J8)."""
        s, trail, state, table = self._shell, slot.trail, slot.state, self._table
        if trail is None or state is None or table.hold or slot.in_flight:
            return
        try:
            value = self._snapshot_value(slot, trail, state)
        except Exception as problem:  # noqa: BLE001 - a full blob store, or whatever else: the run goes on from its old base
            _log.error("no snapshot could be written: %s", problem, extra={"run": slot.run_id})
            return
        wake = s.now() if model_due(state) else next_wake(state)
        header = RecordHeader(SNAPSHOT, table.token, trail.step, trail.digest, wake, trail.end)
        if table.append_snapshot(slot, value, header):
            s.counters.snapshots += 1

    def _snapshot_value(self, slot: RunSlot, trail: Trail, state: RunState) -> bytes:
        """The record; a large state is in the blob store before the record that names it. Raises what the store raises."""
        s = self._shell
        text = to_json(state)
        size = len(text)
        data = Snapshot(text, None, size)
        if size > s.bounds.blob_bytes:
            data = Snapshot(None, s.blobs.put(text.encode()), size)
        refs = tuple(InputRef(topic, self._table.index, offset) for topic, offset in sorted(slot.seen.items()))
        at = max(s.now(), state.at)
        return s.codec.encode(
            JournalRecord(
                SNAPSHOT, self._table.token, slot.run_id, trail.step, trail.digest, at, s.build, state.rules, self._epoch, refs, (),
                None, data,
            )
        )  # fmt: skip

    def _move_floor(self) -> None:
        """Snapshot the runs with the oldest bases anew when the floor lies too far behind the end (J8)."""
        found = [
            (slot.trail.base, slot.trail, slot)
            for slot in self._table.slots.values()
            if slot.trail is not None and slot.trail.end < 0 and not slot.problem
        ]
        far = max(self._shell.bounds.floor_bytes, 4 * sum(trail.base_bytes for _, trail, _ in found))
        old = heapq.nsmallest(LIVE_CHUNK, found, key=lambda each: each[0])
        late = [slot for _, trail, slot in old if self.written - trail.base_mark > far]
        self.load(*late)
        for slot in late:
            self.snapshot(slot)

    def floor(self, end: int) -> tuple[int, int]:
        """(floor, effects mark) for the pointer: the least base of all runs held, and the first step with an unacknowledged effect."""
        effects = self._table.effects.unacked.least(end)
        if self._unresumed or not self._table.live:
            effects = min(effects, self._mark)
        return min(self.oldest_base(end), effects), effects

    def oldest_base(self, default: int) -> int:
        return min((slot.trail.base for slot in self._table.slots.values() if slot.trail is not None), default=default)


def _offsets(trail: Trail) -> list[int]:
    """Everything that must be read to load the run and to send its last effects again, ascending."""
    return [*trail.overtaken, *trail.offsets]
