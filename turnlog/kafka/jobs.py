"""Blocking work off the poll thread: two lanes of a few threads each.

The poll thread submits a job and goes on polling; what the job returned (or raised) comes back through the mailbox and is
handed to `then` on the poll thread. Jobs of a lane may pass each other. In simulations `StepRunner` takes the place of the threads:
jobs run when the simulation says so, on its own thread.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

Job = Callable[[], Any]
Then = Callable[[Any, BaseException | None], None]

OPENING, LOADING = "opening", "loading"
LANES = {OPENING: 4, LOADING: 2}
"""`opening`: checks and restores, minutes at worst. `loading`: gap reads and single chains, which nothing may delay for long. The
number is that of threads: partitions open side by side, for most of it is waiting for Kafka."""


class Runner(Protocol):
    """Runs jobs somewhere; `deliver` hands finished ones to their `then` on the caller's thread."""

    def submit(self, lane: str, job: Job, then: Then) -> None: ...
    def deliver(self) -> int: ...
    def busy(self) -> bool: ...
    def close(self) -> None: ...


class ThreadRunner:
    """Daemon threads, as many a lane as LANES says."""

    def __init__(self) -> None:
        self._lanes: dict[str, queue.SimpleQueue[tuple[Job, Then] | None]] = {
            lane: queue.SimpleQueue() for lane in LANES
        }
        self._done: deque[tuple[Then, Any, BaseException | None]] = deque()
        self._open = 0
        for lane, threads in LANES.items():
            for _ in range(threads):
                threading.Thread(target=self._work, args=(lane,), daemon=True, name=lane).start()

    def submit(self, lane: str, job: Job, then: Then) -> None:
        self._open += 1
        self._lanes[lane].put((job, then))

    def _work(self, lane: str) -> None:
        while (item := self._lanes[lane].get()) is not None:
            job, then = item
            try:
                result, error = job(), None
            except BaseException as problem:  # noqa: BLE001 - handed to `then`, which sorts it
                result, error = None, problem
            self._done.append((then, result, error))

    def deliver(self) -> int:
        """Run what is due on this thread; returns how many."""
        count = 0
        while self._done:
            then, result, error = self._done.popleft()
            self._open -= 1
            count += 1
            then(result, error)
        return count

    def busy(self) -> bool:
        """A job is queued, running or waits to be delivered."""
        return self._open > 0

    def close(self) -> None:
        for lane, threads in LANES.items():
            for _ in range(threads):
                self._lanes[lane].put(None)


class StepRunner:
    """Jobs wait until `run_one` is called: a simulation chooses when blocking work ends."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Job, Then]] = deque()
        self._done: deque[tuple[Then, Any, BaseException | None]] = deque()

    def submit(self, lane: str, job: Job, then: Then) -> None:
        self.waiting.append((job, then))

    def run_one(self, place: int = 0) -> bool:
        """Run the oldest job, or the one in that place; its result waits for `deliver`. False if there was none."""
        if not self.waiting:
            return False
        job, then = self.waiting[place]
        del self.waiting[place]
        try:
            self._done.append((then, job(), None))
        except Exception as problem:  # noqa: BLE001 - handed to `then`, which sorts it
            self._done.append((then, None, problem))
        return True

    def deliver(self) -> int:
        count = len(self._done)
        for _ in range(count):
            then, result, error = self._done.popleft()
            then(result, error)
        return count

    def busy(self) -> bool:
        return bool(self.waiting or self._done)

    def close(self) -> None:
        self.waiting.clear()
