"""Where tools run: async ones in one event loop, others in a bounded pool of threads, and those that surely return at once on
the poll thread itself.

A hand-off between threads costs 15 to 50 µs and two waits for the interpreter's lock; the no-op tool of a benchmark costs 3.
So an async tool without any suspension point (known from its code) that has been quick each time runs inline; see `Pace`.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from turnlog.core.events import Outcome
from turnlog.core.records import ToolRequest
from turnlog.tools.context import ToolContext
from turnlog.tools.failures import ToolFailure, Verdict, failed, outcome_of
from turnlog.tools.results import succeeded
from turnlog.tools.signature import BadArguments
from turnlog.tools.toolset import Tool
from turnlog.tools.work import Execution

_log = logging.getLogger("turnlog.tool")

QUICK_S: Final = 0.001
"""A call at most this long is quick."""
SLOW_S: Final = 0.02
STRIKES: Final = 3
STRIKES_WITHIN_S: Final = 60.0
FEW: Final = 200
TOO_SLOW_S: Final = 1.0
"""What takes a tool off the poll thread again; see `Pace`."""
FIRST_PROOF: Final = 3
MOST_PROOF: Final = 100_000

_BAD_ARGUMENTS: Final = Verdict("bad_arguments", retryable=False)


class Engine(Protocol):
    """What the executors ask of the worker. Any thread."""

    def begin(self, execution: Execution) -> bool:
        """Whether it may start now; notes the start."""

    def complete(self, execution: Execution, outcome: Outcome) -> None:
        """It ended. Once for each that began."""


class Pace:
    """Whether a tool may run on the poll thread: after a row of quick calls elsewhere, until it was slow there.

    Slow is one call of a second; or three of 20 ms within a minute if they are more than one in 200 (a busy machine suspends
    anybody for longer now and then). Each relapse makes the next proof ten times longer, so a tool that is slow now and then costs
    the poll thread a few waits in the life of the process.
    """

    __slots__ = ("_needed", "_quick", "_since", "_strikes", "calls", "inline")

    def __init__(self) -> None:
        self.inline = False
        self._quick = 0
        self._needed = FIRST_PROOF
        self.calls = 0
        """Calls on the poll thread since `_since`, counted by who makes them."""
        self._strikes = 0
        self._since = 0.0

    def elsewhere(self, seconds: float) -> None:
        """A call took so long off the poll thread."""
        self._quick = self._quick + 1 if seconds <= QUICK_S else 0
        if self._quick >= self._needed:
            self.inline = True

    def slow(self, seconds: float, now: float) -> None:
        """A call took at least SLOW_S on the poll thread."""
        if now - self._since > STRIKES_WITHIN_S:
            self._since = now
            self._strikes = self.calls = 0
        self._strikes += 1
        often = self._strikes >= STRIKES and self._strikes * FEW >= self.calls
        if often or seconds >= TOO_SLOW_S:
            self.inline = False
            self._quick = self._strikes = self.calls = 0
            self._needed = min(self._needed * 10, MOST_PROOF)


def failure(request: ToolRequest, error: BaseException, worker: str) -> Outcome:
    """The outcome of a call that raised; what its team did not foresee goes to the log with its traceback."""
    if isinstance(error, BadArguments):
        return outcome_of(_BAD_ARGUMENTS, str(error), worker)
    if not isinstance(error, ToolFailure):
        context = {"run": request.run_id, "turn": request.turn, "key": request.call_key, "tool": request.tool}
        _log.warning("tool %s raised", request.tool, exc_info=error, extra=context)
    return failed(error, worker)


def run_inline(tool: Tool, ctx: ToolContext, request: ToolRequest, pace: Pace, worker: str) -> tuple[Outcome, float]:
    """Run an async tool that never suspends to its end, in this thread: its outcome and the seconds it took."""
    begun = time.perf_counter()
    pace.calls += 1
    try:
        running = tool.call(ctx, request.arguments)
        running.send(None)
    except StopIteration as end:
        outcome = succeeded(end.value, tool.name, worker)
    except BaseException as error:  # noqa: BLE001 - whatever a tool raises is the tool's failure, not the worker's
        outcome = failure(request, error, worker)
    else:
        running.close()
        pace.slow(TOO_SLOW_S, begun)
        outcome = failure(request, RuntimeError("a tool that cannot suspend did"), worker)
    seconds = time.perf_counter() - begun
    if seconds >= SLOW_S:
        pace.slow(seconds, begun)
    return outcome, seconds


class LoopExecutor:
    """Runs async tools as tasks of one event loop in one thread, at most `most` at a time; the rest queues in order.

    A tool that blocks holds up the other async tools, never the polling.
    """

    def __init__(self, engine: Engine, worker: str, most: int, pace_of: Callable[[str], Pace]) -> None:
        self._engine = engine
        self._worker = worker
        self._most = most
        self._pace_of = pace_of
        self._queue: deque[Execution] = deque()
        self._running = 0
        self._woken = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True, name="tools-async")
        self._thread.start()

    def submit(self, execution: Execution) -> None:
        """Queue and return. Poll thread. One wake-up serves all that was queued until the loop's thread gets to it."""
        self._queue.append(execution)
        if not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self._fill)

    def abort(self, execution: Execution) -> None:
        """Cancel its task. A tool may refuse to end; then it goes on and `complete` comes when it ends."""
        task = execution.task
        if task is not None:
            self._loop.call_soon_threadsafe(task.cancel)

    def close(self, timeout_s: float) -> None:
        """Cancel what runs and end the thread, waiting at most `timeout_s` for it."""
        self._queue.clear()
        self._loop.call_soon_threadsafe(self._end)
        self._thread.join(timeout_s)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def _end(self) -> None:
        ending = asyncio.ensure_future(self._cancel_all())
        ending.add_done_callback(lambda _: self._loop.stop())

    async def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)
        await self._loop.shutdown_asyncgens()

    def _fill(self) -> None:
        self._woken = False  # before looking: what is queued from here on wakes again
        while self._queue and self._running < self._most:
            execution = self._queue.popleft()
            if self._engine.begin(execution):
                self._running += 1
                execution.task = self._loop.create_task(self._run(execution))

    async def _run(self, execution: Execution) -> None:
        begun = time.perf_counter()
        tool = execution.tool
        try:
            outcome = succeeded(
                await tool.call(execution.context(), execution.request.arguments), tool.name, self._worker
            )
        except BaseException as error:  # noqa: BLE001 - whatever a tool raises is the tool's failure, not the worker's
            outcome = failure(execution.request, error, self._worker)
        finally:
            self._running -= 1
        if tool.never_suspends:
            self._pace_of(tool.name).elsewhere(time.perf_counter() - begun)
        self._engine.complete(execution, outcome)
        if self._queue:
            self._fill()


class PoolExecutor:
    """Runs other tools in at most `most` daemon threads, made as they are needed; the rest queues in order.

    A thread cannot be killed: a tool past its deadline keeps its thread until it returns.
    """

    def __init__(self, engine: Engine, worker: str, most: int) -> None:
        self._engine = engine
        self._worker = worker
        self._most = most
        self._queue: queue.SimpleQueue[Execution | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._lock = threading.Lock()

    def submit(self, execution: Execution) -> None:
        """Queue and return. Poll thread."""
        self._queue.put(execution)
        with self._lock:
            if self._idle < self._queue.qsize() and len(self._threads) < self._most:
                name = f"tools-{len(self._threads)}"
                self._threads.append(threading.Thread(target=self._serve, daemon=True, name=name))
                self._threads[-1].start()

    def close(self) -> None:
        """End the threads that are idle; the others end after their call, or with the process."""
        for _ in self._threads:
            self._queue.put(None)

    def _serve(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            execution = self._queue.get()
            with self._lock:
                self._idle -= 1
            if execution is None:
                return
            if self._engine.begin(execution):
                self._engine.complete(execution, self._run(execution))

    def _run(self, execution: Execution) -> Outcome:
        tool = execution.tool
        try:
            value: Any = tool.call(execution.context(), execution.request.arguments)
            return succeeded(value, tool.name, self._worker)
        except BaseException as error:  # noqa: BLE001 - SystemExit in a tool must not end the pool's thread
            return failure(execution.request, error, self._worker)
