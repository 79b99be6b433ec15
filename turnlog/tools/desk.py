"""The desk: what becomes of a request that was read. It is refused, answered from what is known, joined to a call under way, or run.

The poll thread serves requests and watches deadlines; calls end in whatever thread ran them, which publishes the result itself.

Two orders make the look-up free of locks: only the poll thread adds to `_running`, and a call that ends is put into `_known`
before it leaves `_running`. So who looks into `_running` first and `_known` second cannot miss it in between.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from turnlog.core.events import Outcome
from turnlog.core.records import ToolResult
from turnlog.tools.context import ToolContext
from turnlog.tools.counts import Counts
from turnlog.tools.execution import LoopExecutor, Pace, PoolExecutor, run_inline
from turnlog.tools.failures import timed_out, unknown_tool
from turnlog.tools.known import Known, KnownResults
from turnlog.tools.offsets import OffsetTracker
from turnlog.tools.toolset import Tool, Toolset
from turnlog.tools.work import Execution, Owed

_log = logging.getLogger(__name__)
T = TypeVar("T")


class WireCodec(Protocol):
    """What the worker asks of `turnlog.codec.Codec`."""

    def encode(self, record: Any) -> bytes: ...
    def decode(self, data: bytes | None, expected: type[T]) -> T: ...


@dataclass(frozen=True)
class WorkerLimits:
    """Every bound of one worker."""

    tasks: int = 256
    """Async calls at once."""
    threads: int = 16
    """Other calls at once."""
    under_way: int = 2000
    """Requests taken and not acknowledged, and their bytes: beyond, partitions are paused."""
    under_way_bytes: int = 64 * 1024 * 1024
    known: int = 20_000
    """Results remembered to answer repeated requests, and their bytes."""
    known_bytes: int = 64 * 1024 * 1024
    commit_every_s: float = 0.1
    drain_s: float = 10.0
    """How long a rebalance or the end waits for calls that run."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0:
                raise ValueError(f"{name} must be above 0, got {value}")


class Desk:
    """`send` publishes what an Owed holds (any thread); `settle` says that a request needs nothing more (poll thread)."""

    def __init__(
        self,
        toolset: Toolset,
        codec: WireCodec,
        limits: WorkerLimits,
        counts: Counts,
        worker: str,
        *,
        send: Callable[[Owed], None],
        settle: Callable[[Owed], None],
    ) -> None:
        self._toolset, self._encode, self._limits, self._counts, self._worker = (
            toolset,
            codec.encode,
            limits,
            counts,
            worker,
        )
        self._send, self._settle = send, settle
        self._lock = threading.Lock()
        self._running: dict[str, Execution] = {}
        self._known = KnownResults(limits.known, limits.known_bytes)
        self._returned: deque[Owed] = deque()  # to be served again by the poll thread
        self._deadlines: list[tuple[float, int]] = []  # a heap; its second is the key into _watched
        self._watched: dict[int, tuple[Owed, Execution]] = {}
        self._serial = 0
        self._overruns: set[Execution] = set()
        self._paces = {tool.name: Pace() for tool in toolset}
        self._async = LoopExecutor(self, worker, limits.tasks, self._paces.__getitem__)
        self._pool = PoolExecutor(self, worker, limits.threads)

    # ------------------------------------------------------------------ poll thread

    def serve(self, owed: Owed, now: float) -> None:
        """Answer, join, refuse or start. Returns at once."""
        request = owed.request
        if owed.expires <= now:
            self._refuse_late(owed)
            return
        tool = self._toolset.get(request.tool)
        if tool is None:
            self._counts.unknown_tool.count += 1
            self._answer(owed, unknown_tool(request.tool[:200], self._toolset.name, self._worker))
            return
        if request.call_key in self._running and self._joined(owed):
            return
        if request.call_key in self._known and self._answered(owed):
            return
        if tool.never_suspends and (pace := self._paces[tool.name]).inline:
            self._run_here(owed, tool, pace, now)
        else:
            self._start(owed, tool)

    def _answered(self, owed: Owed) -> bool:
        """Answer from a result published before; False if that was the failure of another attempt."""
        with self._lock:
            known = self._known.get(owed.request.call_key)
        if known is None or not known.answers(owed.request.attempt):
            return False
        self._counts.known.count += 1
        self._answer(owed, known.outcome)
        return True

    def _joined(self, owed: Owed) -> bool:
        """Wait for the call of the same key that is under way; False if it ended this moment."""
        with self._lock:
            execution = self._running.get(owed.request.call_key)
            if execution is None:
                return False
            execution.owed.append(owed)
        self._counts.joined.count += 1
        self._watch(min(owed.expires, owed.arrived + execution.tool.timeout_s), owed, execution)
        return True

    def _run_here(self, owed: Owed, tool: Tool, pace: Pace, now: float) -> None:
        """The short way for tools that surely return at once: nothing can join, nothing can end meanwhile."""
        request = owed.request
        deadline = time.time() + min(tool.timeout_s, owed.expires - now)
        outcome, seconds = run_inline(tool, ToolContext.of(request, deadline), request, pace, self._worker)
        with self._lock:
            self._known.put(request.call_key, Known(request.attempt, outcome))
            self._counts.ran(tool, outcome.status == "ok", seconds)
        self._answer(owed, outcome)

    def _start(self, owed: Owed, tool: Tool) -> None:
        execution = self._running[owed.request.call_key] = Execution(tool, owed)
        self._watch(min(owed.expires, owed.arrived + tool.timeout_s), owed, execution)
        if tool.is_async:
            self._async.submit(execution)
        else:
            self._pool.submit(execution)

    def _refuse_late(self, owed: Owed) -> None:
        self._counts.late.count += 1
        self._settle(owed)

    def tend(self, now: float) -> None:
        """Serve what came back, answer those whose time is over."""
        for _ in range(len(self._returned)):
            self.serve(self._returned.popleft(), now)
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now:
            watched = self._watched.pop(heapq.heappop(deadlines)[1], None)
            if watched is not None:
                self._check(*watched, now)

    def due_in(self, now: float) -> float | None:
        """Seconds until `tend` has something to do; None when nothing is foreseen."""
        if self._returned:
            return 0.0
        return max(0.0, self._deadlines[0][0] - now) if self._deadlines else None

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def overruns(self) -> int:
        """Calls that run past the time of everybody who waited for them."""
        return len(self._overruns)

    @property
    def blocked_threads(self) -> int:
        """Threads of the pool that such calls keep."""
        return sum(not execution.tool.is_async for execution in list(self._overruns))

    def drop(self, tracker: OffsetTracker) -> list[Owed]:
        """Forget the partition's requests that no tool runs for yet, and return them. They stay unsettled."""
        dropped = [owed for owed in self._returned if owed.tracker is tracker]
        with self._lock:
            self._returned = deque(owed for owed in self._returned if owed.tracker is not tracker)
            for execution in [e for e in self._running.values() if e.started is None]:
                dropped += [owed for owed in execution.owed if owed.tracker is tracker]
                execution.owed = [owed for owed in execution.owed if owed.tracker is not tracker]
                self._abandon_if_unwanted(execution)
        return dropped

    def close(self, timeout_s: float) -> None:
        """End the threads. A tool that runs in the pool keeps its thread until the process ends."""
        self._pool.close()
        self._async.close(timeout_s)

    def _abandon_if_unwanted(self, execution: Execution) -> None:
        if not execution.owed:
            execution.abandoned = True
            self._running.pop(execution.key, None)

    # ------------------------------------------------------------------ any thread

    def begin(self, execution: Execution) -> bool:
        now = time.monotonic()
        with self._lock:
            if execution.abandoned:
                return False
            if execution.expires <= now:
                execution.abandoned = True
                self._returned.extend(execution.owed)
                execution.owed = []
                self._running.pop(execution.key, None)
                return False
            execution.started = now
        execution.deadline = time.time() + min(execution.tool.timeout_s, execution.expires - now)
        return True

    def complete(self, execution: Execution, outcome: Outcome) -> None:
        """Answer everybody who waits. Another attempt than the one that failed is served anew: it is a wish to try again."""
        known = Known(execution.attempt, outcome)
        ok = outcome.status == "ok"
        with self._lock:
            if ok or not execution.overrun:  # what came of a cancelled call is no answer to anybody
                self._known.put(execution.key, known)
            waiting, execution.owed = execution.owed, []
            self._running.pop(execution.key, None)
            self._overruns.discard(execution)
            self._counts.ran(execution.tool, ok, time.monotonic() - (execution.started or 0.0))
            self._returned.extend(owed for owed in waiting if not known.answers(owed.request.attempt))
        for owed in waiting:
            if known.answers(owed.request.attempt):
                self._answer(owed, outcome)

    def _answer(self, owed: Owed, outcome: Outcome) -> None:
        """Publish the result for one request record, with its own attempt and token."""
        request = owed.request
        owed.value = self._encode(
            ToolResult(request.run_id, request.call_key, request.attempt, request.reply_token, *outcome)
        )
        owed.topic = request.reply_topic
        owed.partition = request.reply_partition
        self._send(owed)

    # ------------------------------------------------------------------ deadlines (poll thread)

    def _watch(self, when: float, owed: Owed, execution: Execution) -> None:
        self._serial += 1
        owed.watched = self._serial
        self._watched[self._serial] = (owed, execution)
        heapq.heappush(self._deadlines, (when, self._serial))
        if len(self._deadlines) > 1000 + 2 * len(self._watched):  # most were answered long before their time
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._watched]
            heapq.heapify(self._deadlines)

    def release(self, owed: Owed) -> None:
        """The request is settled: keep nothing of it (its bytes would stay until its deadline)."""
        if owed.watched:
            self._watched.pop(owed.watched, None)

    def _check(self, owed: Owed, execution: Execution, now: float) -> None:
        """A time came that may be the end of `owed`'s patience."""
        with self._lock:
            if owed not in execution.owed:
                return
            due, started = execution.due(owed), execution.started
            if due <= now:
                execution.owed.remove(owed)
                if started is None:
                    self._abandon_if_unwanted(execution)
        if due > now:
            self._watch(due, owed, execution)
        elif started is None:
            self._refuse_late(owed)
        else:
            self._counts.timeouts.count += 1
            self._answer(owed, timed_out(due - max(started, owed.arrived), self._worker))
            self._overrun_if_unwanted(execution)

    def _overrun_if_unwanted(self, execution: Execution) -> None:
        """Nobody waits any more: cancel what can be cancelled, note the rest."""
        with self._lock:
            if execution.owed or self._running.get(execution.key) is not execution:
                return
            execution.overrun = True
            self._overruns.add(execution)
        if execution.tool.is_async:
            self._async.abort(execution)
            return
        context = {"key": execution.key, "run": execution.request.run_id, "turn": execution.request.turn}
        _log.error("tool %s is past its time, and a thread cannot be stopped", execution.tool.name, extra=context)
