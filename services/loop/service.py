"""The loop process: one thread that polls, decides, appends and releases; everything that blocks runs elsewhere.

One round: read what is there, settle acknowledgements, take model replies and finished jobs, fire timers, then decide for every
run that something arrived for. How long a round may wait depends on what is under way: an append is waited for in the
producer, everything else in the consumer.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Sequence

from services.loop.owner import PartitionOwner
from services.loop.shell import Shell
from turnlog.kafka.broker_watch import NO_BROKER_KNOWN
from turnlog.kafka.port import Fatal, LogError, NotOwner, OffsetGone, Received, UnknownTopic

_log = logging.getLogger(__name__)

TICK_S = 0.1
APPEND_WAIT_S = 0.002
ASK_WAIT_S = 0.002
IDLE_WAIT_S = 0.1
STREAM_BATCH = 5_000
DRAIN_S = 5.0
FLUSH_S = 2.0
"""How long a process that ends waits for its last effects, a lane: what is not acknowledged by then, the next owner sends again."""
STANDBY_S = 15.0
"""A member that the group gave nothing for so long stands by for others: that is ready, too."""
STALL_S = 1.0
"""A process that did nothing for this long slept: what arrived meanwhile is read before timers fire (J16)."""


class InstanceTaken(Exception):
    """Another process joined the group with this instance id: this one must go (J3)."""


class LoopService:
    """See the module. `round` and everything below run on one thread; `stop` may be called from a signal handler."""

    def __init__(self, shell: Shell, on_change: Callable[[LoopService], None] | None = None) -> None:
        self.shell = shell
        self.owners: dict[int, PartitionOwner] = {}
        self._on_change = on_change
        self._stopping = False
        self._tick_at = 0.0
        self._round_at = self._began_at = shell.clock()

    # ------------------------------------------------------------ the group's callbacks (inside consumer.poll)

    def assigned(self, partitions: Sequence[int]) -> None:
        for index in partitions:
            _log.info("partition %d assigned", index)
            owner = self.owners[index] = PartitionOwner(index, self.shell)
            owner.begin()

    def revoked(self, partitions: Sequence[int]) -> None:
        self._gone(partitions, lost=False)

    def lost(self, partitions: Sequence[int]) -> None:
        self._gone(partitions, lost=True)

    def _gone(self, partitions: Sequence[int], *, lost: bool) -> None:
        for index in partitions:
            owner = self.owners.pop(index, None)
            if owner is not None:
                _log.info("partition %d %s", index, "lost" if lost else "revoked")
                owner.leave(lost=lost)

    # ------------------------------------------------------------ the loop

    def start(self, answer_s: float = 30.0) -> None:
        """Follow the tables and join the group. Raises LogError; after Retryable it may be called again."""
        s = self.shell
        found = s.clients.admin.topics([s.topics.agents, s.topics.manifests], timeout_s=answer_s)
        missing = sorted({s.topics.agents, s.topics.manifests} - set(found))
        if missing:
            raise UnknownTopic(f"topics do not exist: {', '.join(missing)}; create them with `turnlog topics create`")
        s.tables.begin({name: info.partitions for name, info in found.items()})
        s.clients.consumer.subscribe(s.topics.commands, self)

    def stop(self) -> None:
        self._stopping = True

    @property
    def unready(self) -> str | None:
        """Why this process does not do all of its work; None when it does."""
        if not self.shell.tables.caught_up:
            return "agents and tools are still being read"
        if not self.owners and self.shell.clock() - self._began_at < STANDBY_S:
            return "the group has given no partition yet"
        behind = [
            f"{o.index} {o.stage}" + (f" ({o.reason})" if o.reason else "") for o in self.owners.values() if not o.ready
        ]
        return "partitions: " + "; ".join(behind) if behind else None

    def run(self) -> None:
        """Rounds until `stop`, then drain. Raises InstanceTaken, and LogError where going on makes no sense."""
        while not self._stopping:
            self.round()
        self.drain()

    def round(self) -> None:
        """One turn of the loop; see the module."""
        s = self.shell
        self._notice_stall(s.clock())
        for record in self._poll():
            owner = self.owners.get(record.partition)
            if owner is not None:
                owner.take(record)
        s.writer.settle()
        self._mail()
        s.runner.deliver()
        now = s.clock()
        if now >= self._tick_at:
            self._tick_at = now + TICK_S
            self._tick()
        self._wake()
        for owner in self.owners.values():
            if owner.table is not None:
                owner.table.pump_all()
        s.outbox.poll()

    def _notice_stall(self, now: float) -> None:
        if now - self._round_at > STALL_S:
            for owner in self.owners.values():
                owner.slept()
        self._round_at = now

    def _poll(self) -> list[Received]:
        s = self.shell
        wait = 0.0
        if len(s.writer):
            s.writer.poll(0.0 if s.mailbox else APPEND_WAIT_S)
        elif not s.mailbox:
            wait = self._patience()
        try:
            return s.clients.consumer.poll(wait)
        except OffsetGone as problem:
            self._cut(problem)
        except Fatal as problem:
            for owner in list(self.owners.values()):
                owner.leave(lost=True)
            self.owners.clear()
            if problem.code == NO_BROKER_KNOWN:
                raise  # a process that begins anew finds them again
            raise InstanceTaken(str(problem)) from problem
        except NotOwner as problem:
            _log.warning("%s", problem)
        return []

    def _patience(self) -> float:
        """How long nothing but a new record can make work."""
        s = self.shell
        if s.asks > 0 or s.runner.busy():
            return ASK_WAIT_S
        wait = max(0.0, min(IDLE_WAIT_S, self._tick_at - s.clock()))
        if s.wakes:
            wait = min(wait, max(0.0, (s.wakes[0][0] - s.now()) / 1000))
        return wait

    def _cut(self, problem: OffsetGone) -> None:
        index = problem.partition.index if problem.partition is not None else None
        for owner in list(self.owners.values()):
            if index is None or owner.index == index:
                owner.cut(str(problem))

    def _mail(self) -> None:
        mailbox = self.shell.mailbox
        while mailbox:
            table, run_id, turn, attempt, reply = mailbox.popleft()
            table.reply(run_id, turn, attempt, reply)

    def _wake(self) -> None:
        s = self.shell
        if not s.wakes:
            return
        now = s.now()
        while s.wakes and s.wakes[0][0] <= now:
            due, index, run_id = heapq.heappop(s.wakes)
            owner = self.owners.get(index)
            if owner is not None and owner.table is not None:
                owner.wake(run_id, due)

    def _tick(self) -> None:
        s = self.shell
        s.tables.poll()
        self._follow_states()
        for owner in list(self.owners.values()):
            owner.tick()
        if self._on_change is not None:
            self._on_change(self)

    def _follow_states(self) -> None:
        """Read `run-state`: in bulk while an index is streamed, a little per tick afterwards."""
        reader = self.shell.clients.reader
        until = self.shell.clock() + TICK_S
        while True:
            try:
                records = reader.poll(0.0, STREAM_BATCH)
            except OffsetGone as problem:
                return self._cut(problem)  # the index of known runs is not what it was
            except LogError as problem:
                _log.warning("run-state: %s", problem)
                return
            for record in records:
                owner = self.owners.get(record.partition)
                if owner is not None:
                    owner.follow(record)
            if not records or self.shell.clock() >= until:
                return

    # ------------------------------------------------------------ the end

    def drain(self) -> None:
        """Stop taking in, wait for what is under way, publish what summaries still lack, commit, leave the group for good (its partitions
        move within a heartbeat)."""
        s = self.shell
        slept = s.clock() - self._round_at > STALL_S
        for owner in self.owners.values():
            if owner.table is not None:
                owner.table.hold = True
        until = s.clock() + DRAIN_S
        while len(s.writer) and s.clock() < until:
            s.writer.poll(0.01)
            s.writer.settle()
        if not slept:  # else the partitions may be somebody else's by now
            for owner in self.owners.values():
                owner.publish_all()
        s.outbox.flush(max(0.1, min(FLUSH_S, until - s.clock())))
        for owner in list(self.owners.values()):  # while a commit is waited for, partitions may be taken away
            if s.clock() < until:  # else the cluster is away: an older pointer is safe
                owner.commit(wait=True)
        try:
            s.clients.consumer.close(leave=True)
        except LogError as problem:
            _log.warning("leaving the group: %s", problem)
        self.close()

    def close(self) -> None:
        """Close every client; nothing is promised any more."""
        s = self.shell
        s.runner.close()
        s.providers.close()
        s.writer.close()
        s.outbox.close()
        s.clients.reader.close()
        s.clients.admin.close()
