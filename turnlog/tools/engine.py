"""The tool worker's poll thread: requests of one toolset in, results out, and the commit that follows them.

Who runs where
- The poll thread (`run`) reads requests, keeps positions, serves delivery reports, watches deadlines. It never waits for work:
  only tools that surely return at once run on it (`execution.Pace`).
- Tools run in the event loop's thread or in the pool; the thread in which a call ended publishes its result itself.

What is guaranteed
1. Every request record gets exactly one of: a result, a refusal (too late), a dead letter. Only when that is acknowledged (or
   was a refusal) is its offset settled, and only the lowest offset not settled is ever committed. So after any crash whatever
   was not answered is delivered again: **at least once**, with the same `ctx.key`.
2. Order of effects: tool runs, result acknowledged, position committed. A crash between the first and the second repeats
   the tool; between the second and the third it repeats the tool too (in a new process; this one answers from what it knows).
3. A request after its `not_after` never starts a tool. A started call is answered `timed_out` at its deadline, an async tool is
   cancelled then; a thread goes on, so a timed-out call may still take effect.
4. While a call runs here, a duplicate of its key does not start a second run here. Another worker may run it at the same time
   after a rebalance whose drain ran out of time.
5. Nothing that is wrong with one record stops its partition.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from turnlog.codec import RegistryUnavailable, Unreadable
from turnlog.core.records import ToolRequest
from turnlog.kafka.port import Cluster, Consumer, Fatal, LogError, OffsetGone, Partition, Position, Reader, Received
from turnlog.obs import Health, Metrics
from turnlog.tools.counts import Counts
from turnlog.tools.dead_letters import dead_letter
from turnlog.tools.desk import Desk, WireCodec, WorkerLimits
from turnlog.tools.gate import Gate
from turnlog.tools.offsets import OffsetTracker
from turnlog.tools.outbox import Outbox
from turnlog.tools.toolset import Toolset
from turnlog.tools.work import Owed

_log = logging.getLogger(__name__)

_BATCH: Final = 500
_IDLE_S: Final = 0.2
_BUSY_S: Final = 0.05  # deliveries or calls under way: reports move commits only, nobody waits for those
_AGAIN_S: Final = 0.005
_UNREAD_PAUSE_S: Final = 1.0
_LIVE_S: Final = 60.0


@dataclass(frozen=True)
class WorkerTopics:
    """Full names of the topics, and of the group."""

    requests: str
    results: str
    dead_letters: str
    group: str


class Worker:
    """One member of a toolset's group. `run` is its poll thread; `stop` may be called by any thread or signal handler."""

    def __init__(
        self,
        toolset: Toolset,
        topics: WorkerTopics,
        cluster: Cluster,
        codec: WireCodec,
        *,
        health: Health,
        metrics: Metrics,
        limits: WorkerLimits | None = None,
        instance_id: str | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._toolset, self._topics, self._cluster, self._codec = toolset, topics, cluster, codec
        self._limits = limits = limits or WorkerLimits()
        self._now_ms = now_ms
        self._stop = threading.Event()
        self._hurry = threading.Event()
        self._counts = Counts(metrics, toolset)
        self._outbox = Outbox(lambda: cluster.producer(f"worker.{toolset.name}"), self._settle, self._refused)
        name = f"{socket.gethostname()}/{os.getpid()}"
        self._desk = Desk(toolset, codec, limits, self._counts, name, send=self._outbox.send, settle=self._settle)
        self._consumer: Consumer = cluster.consumer(topics.group, instance_id=instance_id)
        self._reader: Reader | None = None

        self._trackers: dict[int, OffsetTracker] = {}
        self._to_open: set[int] = set()
        self._unread: deque[Owed] = deque()  # the registry did not answer
        self._unread_at = 0.0
        self._taken = 0  # records under way, those of partitions given up included
        self._taken_bytes = 0
        self._next_commit = 0.0
        self._gate = Gate(limits.under_way, limits.under_way_bytes)
        self._watch(health, metrics)

    def _watch(self, health: Health, metrics: Metrics) -> None:
        name = self._toolset.name
        self._ready = health.require(f"worker {name}", "joining its group")
        self._threads = health.require(f"threads {name}")
        self._threads.met()
        self._alive = health.heartbeat(f"poll {name}", _LIVE_S + self._limits.drain_s)
        metrics.reading("under_way", "Requests taken and not settled.", lambda: self._taken, toolset=name)
        metrics.reading("overruns", "Calls that run past their time.", lambda: self._desk.overruns, toolset=name)

    # ------------------------------------------------------------------ life

    def stop(self) -> None:
        """Drain, commit, leave the group; `run` returns. A second call ends the drain at once."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    def run(self) -> None:
        """Serve until `stop`. Raises Fatal when the consumer or producer is finished (the instance id was taken, or the cluster
        refuses this producer again and again): start a new process."""
        try:
            self._consumer.subscribe(self._topics.requests, self)
            while not self._stop.is_set():
                self.step()
        except Fatal:
            self.lost(list(self._trackers))
            raise
        finally:
            self._leave()

    def step(self) -> None:
        """One round of the poll thread: read, serve, tend. Waits for records at most as long as nothing else is due."""
        self._alive.beat()
        try:
            records = self._consumer.poll(self._patience(), min(self._gate.room(self._taken), _BATCH))
        except OffsetGone as gone:
            self._reopen(gone)
        except Fatal:
            raise
        except LogError as problem:
            self._trouble(problem)
        else:
            if not self._to_open and not self._unread:
                self._ready.met()
            for record in records:
                self._take(record)
        self._tend()

    def _trouble(self, problem: LogError) -> None:
        self._ready.unmet(str(problem))
        self._stop.wait(_BUSY_S)

    def _patience(self) -> float:
        """How long a poll may wait. Results leave without it; what it delays is reports, commits and deadlines."""
        if self._outbox.stuck or self._to_open:
            return _AGAIN_S
        now = time.monotonic()
        wait = _BUSY_S if self._outbox.outstanding or self._desk.running or self._unread else _IDLE_S
        if self._uncommitted():
            wait = min(wait, self._next_commit - now)
        due = self._desk.due_in(now)
        return max(0.0, wait if due is None else min(wait, due))

    def _tend(self) -> None:
        """Everything but reading."""
        now = time.monotonic()
        self._outbox.tend(now)
        self._desk.tend(now)
        if self._to_open:
            self._open()
        if self._unread and now >= self._unread_at:
            self._read_again(now)
        if now >= self._next_commit and (moved := self._uncommitted()):
            self._next_commit = now + self._limits.commit_every_s
            self._commit_soon(moved)
        if self._desk.overruns or self._threads.reason is not None:
            self._judge_threads()
        self._turn_gate()

    def _judge_threads(self) -> None:
        blocked = self._desk.blocked_threads
        if blocked < self._limits.threads:
            self._threads.met()
        else:
            self._threads.unmet(f"all {blocked} threads are kept by calls past their time: restart this worker")

    def _turn_gate(self) -> None:
        change = self._gate.update(self._taken, self._taken_bytes)
        if change is not None:
            turn = self._consumer.pause if change == "pause" else self._consumer.resume
            turn([self._partition(i) for i in self._trackers])

    def _leave(self) -> None:
        """Drain within the deadline, commit, leave the group at once, end the threads."""
        self._give_up(list(self._trackers))
        self._ready.unmet("leaving")
        closing = [self._consumer.close, self._outbox.close, *([self._reader.close] if self._reader else [])]
        for close in closing:
            try:
                close()
            except LogError as problem:
                _log.warning("%s", problem)
        self._desk.close(2.0)

    # ------------------------------------------------------------------ partitions

    def assigned(self, partitions: Sequence[int]) -> None:
        """They are ours; opened in this round, after the callback, because that asks the coordinator."""
        self._to_open.update(partitions)

    def revoked(self, partitions: Sequence[int]) -> None:
        """The one place where polling waits: the group waits too, until running calls are answered or the drain is over."""
        self._to_open.difference_update(partitions)
        self._give_up([i for i in partitions if i in self._trackers])
        self._consumer.remove([self._partition(i) for i in partitions])

    def lost(self, partitions: Sequence[int]) -> None:
        """Somebody else has them: calls that run are still answered, nothing is committed."""
        self._to_open.difference_update(partitions)
        for i in partitions:
            tracker = self._trackers.pop(i, None)
            if tracker is not None:
                self._drop(tracker)
        self._consumer.remove([self._partition(i) for i in partitions])

    def _partition(self, index: int) -> Partition:
        return Partition(self._topics.requests, index)

    def _open(self) -> None:
        """Begin to read where the group stands, or at the log's start."""
        wanted = sorted(self._to_open)
        try:
            found = self._consumer.committed([self._partition(i) for i in wanted], timeout_s=5.0)
            opened = [self._tracker(i, found.get(self._partition(i))) for i in wanted]
            self._consumer.add({self._partition(t.partition): t.position for t in opened})
        except LogError as problem:
            self._trouble(problem)
            return
        self._trackers.update({tracker.partition: tracker for tracker in opened})
        self._to_open.clear()
        if self._gate.closed:
            self._consumer.pause([self._partition(i) for i in wanted])
        _log.info("partitions %s of %s are ours", wanted, self._topics.requests)

    def _tracker(self, index: int, committed: Position | None) -> OffsetTracker:
        if committed is None:
            return OffsetTracker(index, self._bounds(index)[0])
        return OffsetTracker(index, committed.offset, committed.offset)

    def _bounds(self, index: int) -> tuple[int, int]:
        if self._reader is None:
            self._reader = self._cluster.reader(f"{self._topics.group}.start")
        return self._reader.bounds(self._partition(index), timeout_s=5.0)

    def _reopen(self, gone: OffsetGone) -> None:
        """A position is outside the log: requests expired unread, or the topic was made anew. The loop's timers answer for
        those; here reading goes on at the log's start."""
        self._counts.gone.count += 1
        _log.error("%s: requests were lost before they were read; reading on from the log's start", gone)
        for i, tracker in list(self._trackers.items()):
            try:
                start, end = self._bounds(i)
                if not start <= tracker.next <= end:
                    self._drop(tracker)
                    self._trackers[i] = OffsetTracker(i, start)
                    self._consumer.add({self._partition(i): start})
            except LogError as problem:
                self._trouble(problem)

    def _give_up(self, partitions: list[int]) -> None:
        """Part with partitions in good order: drop what has not started, wait for the rest, commit."""
        trackers = [self._trackers[i] for i in partitions]
        for tracker in trackers:
            self._drop(tracker)
        self._drain(trackers)
        for tracker in trackers:
            del self._trackers[tracker.partition]
        moved = {self._partition(t.partition): Position(t.position) for t in trackers if t.position > t.committed}
        try:
            if moved:
                self._consumer.commit(moved, timeout_s=5.0)
        except LogError as problem:
            self._counts.commit_failures.count += 1
            _log.error("the last commit failed, the next owner gets answered requests again: %s", problem)
        if trackers:
            _log.info("partitions %s of %s given up", sorted(partitions), self._topics.requests)

    def _drain(self, trackers: list[OffsetTracker]) -> None:
        end = time.monotonic() + self._limits.drain_s
        while any(t.under_way for t in trackers) and not self._hurry.is_set() and (now := time.monotonic()) < end:
            self._alive.beat()
            self._outbox.tend(now, _AGAIN_S)
            self._desk.tend(now)
        if left := sum(t.under_way for t in trackers):
            _log.warning("%d calls did not end within the drain: they will be delivered again", left)

    def _drop(self, tracker: OffsetTracker) -> None:
        """Forget the partition's requests that no tool runs for yet; the next owner gets them."""
        dropped = self._desk.drop(tracker)
        dropped += [owed for owed in self._unread if owed.tracker is tracker]
        self._unread = deque(owed for owed in self._unread if owed.tracker is not tracker)
        tracker.dropped += len(dropped)
        for owed in dropped:
            self._forget(owed)

    # ------------------------------------------------------------------ positions

    def _uncommitted(self) -> list[OffsetTracker]:
        return [t for t in self._trackers.values() if t.position > t.sent and t.position > 0]

    def _commit_soon(self, moved: Iterable[OffsetTracker]) -> None:
        going = [(tracker, tracker.position) for tracker in moved]
        for tracker, position in going:
            tracker.sent = position

        def done(problem: LogError | None) -> None:
            for tracker, position in going:
                if problem is None:
                    tracker.committed = max(tracker.committed, position)
                elif tracker.sent == position:
                    tracker.sent = tracker.committed  # again with the next round
            if problem is not None:
                self._counts.commit_failures.count += 1
                _log.warning("%s", problem)

        self._consumer.commit_soon({self._partition(t.partition): Position(p) for t, p in going}, done)

    def _settle(self, owed: Owed) -> None:
        owed.tracker.settle(owed.record.offset)
        self._forget(owed)

    def _forget(self, owed: Owed) -> None:
        self._taken -= 1
        self._taken_bytes -= owed.size
        self._desk.release(owed)

    # ------------------------------------------------------------------ requests

    def _take(self, record: Received) -> None:
        tracker = self._trackers.get(record.partition)
        if tracker is None or not tracker.take(record.offset):
            self._counts.skipped.count += 1
            return
        owed = Owed(record, tracker)
        self._taken += 1
        self._taken_bytes += owed.size
        self._counts.requests.count += 1
        self._read(owed)

    def _read(self, owed: Owed) -> None:
        record = owed.record
        try:
            request = self._codec.decode(record.value, ToolRequest)
        except Unreadable as problem:
            self._bury(owed, problem.reason, problem.detail)
            return
        except RegistryUnavailable as problem:
            self._ready.unmet(str(problem))
            self._unread.append(owed)
            return
        if record.key != request.call_key.encode() or not request.call_key.startswith(request.run_id + ":"):
            self._bury(owed, "key_mismatch", "the record's key, call_key and run_id must name the same call")
            return
        if request.reply_topic != self._topics.results:
            self._bury(
                owed, "bad_reply_topic", f"results go to {self._topics.results}, never to {request.reply_topic!r}"
            )
            return
        now = time.monotonic()
        owed.request = request
        owed.arrived = now
        owed.expires = now + (request.not_after - self._now_ms()) / 1000
        self._desk.serve(owed, now)

    def _read_again(self, now: float) -> None:
        self._unread_at = now + _UNREAD_PAUSE_S
        for _ in range(len(self._unread)):
            self._read(self._unread.popleft())

    # ------------------------------------------------------------------ dead letters

    def _refused(self, owed: Owed, problem: LogError) -> None:
        """Kafka will never take this. A result's request becomes a dead letter; a dead letter is at least in the log."""
        where = owed.record
        if owed.topic != self._topics.dead_letters:
            self._bury(owed, "reply_refused", f"the result was refused by {owed.topic}: {problem}")
            return
        self._counts.lost_letters.count += 1
        _log.error("no dead letter for %s[%d]@%d: %s", where.topic, where.partition, where.offset, problem)
        self._settle(owed)

    def _bury(self, owed: Owed, reason: str, detail: str) -> None:
        """Send the request to `dead-letters`; its offset is settled when that is acknowledged."""
        self._counts.dead_letter(reason)
        record = owed.record
        where = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
        _log.warning("dead letter: %s: %s", reason, detail, extra=where)
        owed.value = self._codec.encode(dead_letter(record, reason, detail, "tool_worker", self._now_ms()))
        owed.topic = self._topics.dead_letters
        owed.partition = None
        self._outbox.send(owed)
