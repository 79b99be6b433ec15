"""What a client knows of the runs and commands it cares about: fed by one follower thread, waited for by many.

Summaries come in any number per run; the one with the highest step counts (an owner that slept may write an old one late, J13).
Bound: runs that ended and commands that are settled are remembered up to KEPT each; whoever asks later reads the topic again.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from turnlog.client.errors import CommandRefused
from turnlog.core.records import CommandOutcome, RunSummary

KEPT: Final = 20_000
ENDED: Final = frozenset({"succeeded", "failed", "cancelled", "stopped"})

Until = Callable[[RunSummary], bool]


def ended(summary: RunSummary) -> bool:
    """The run is over: succeeded, failed, cancelled, or stopped (which can be resumed)."""
    return summary.status in ENDED


def idle(summary: RunSummary) -> bool:
    """The run is over, or waits for its user."""
    return summary.status in ENDED or summary.status == "waiting"


class Watch:
    """One run. `look` means that what is known may be behind the topic, so it must be read once."""

    __slots__ = ("changed", "look", "problem", "run_id", "summary")

    def __init__(self, run_id: str, look: bool, lock: threading.RLock) -> None:
        self.run_id = run_id
        self.summary: RunSummary | None = None
        self.problem: Exception | None = None
        self.look = look
        self.changed = threading.Condition(lock)


class Board:
    """All watches. Thread-safe; callers never hold its lock while they do anything else."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._runs: dict[bytes, Watch] = {}
        self._over: OrderedDict[bytes, None] = OrderedDict()
        self._commands: dict[bytes, CommandOutcome | Exception | None] = {}
        self._settled: OrderedDict[bytes, None] = OrderedDict()
        self._outcome = threading.Condition(self._lock)
        self._failure: Exception | None = None

    # --- who cares

    def watch_run(self, run_id: str, *, look: bool) -> Watch:
        """From now on summaries of this run are kept. `look` only matters for a run not watched yet."""
        key = run_id.encode()
        with self._lock:
            watch = self._runs.get(key)
            if watch is None:
                watch = self._runs[key] = Watch(run_id, look, self._lock)
            return watch

    def watch_command(self, command_id: str) -> bool:
        """From now on its outcome is kept. True if it was not watched before."""
        with self._lock:
            if command_id.encode() in self._commands:
                return False
            self._commands[command_id.encode()] = None
            return True

    def watches(self, key: bytes | None) -> bool:
        """Whether a summary under this key is wanted (before it is decoded)."""
        return key in self._runs

    def awaits(self, key: bytes | None) -> bool:
        """Whether an outcome under this key is wanted."""
        return key in self._commands

    # --- what arrives

    def take_summary(self, summary: RunSummary) -> bool:
        """True if it is news."""
        with self._lock:
            watch = self._runs.get(summary.run_id.encode())
            if watch is None or (watch.summary is not None and summary.step <= watch.summary.step):
                return False
            watch.summary = summary
            watch.changed.notify_all()
            if summary.status in ("succeeded", "failed", "cancelled"):
                self._remember(self._over, summary.run_id.encode(), self._runs)
            return True

    def take_outcome(self, outcome: CommandOutcome) -> None:
        with self._lock:
            key = outcome.command_id.encode()
            if key not in self._commands:
                return
            self._commands[key] = outcome
            self._outcome.notify_all()
            self._remember(self._settled, key, self._commands)
            watch = self._runs.get(outcome.run_id.encode())
            if watch is not None and outcome.kind == "start":
                self._start_settled(watch, outcome)

    def _start_settled(self, watch: Watch, outcome: CommandOutcome) -> None:
        """A refused start ends the waiting; a duplicate means that the run's summary may be older than this client."""
        if outcome.outcome == "refused" and watch.summary is None:
            watch.problem = CommandRefused(outcome)
        elif outcome.outcome == "duplicate" and watch.summary is None:
            watch.look = True
        watch.changed.notify_all()

    def forget_problem(self, run_id: str) -> None:
        """The start is being sent again: what was refused or lost before no longer counts."""
        with self._lock:
            watch = self._runs.get(run_id.encode())
            if watch is not None:
                watch.problem = None

    def lose_command(self, command_id: str, run_id: str, kind: str, problem: Exception) -> None:
        """The log refused the command itself: whoever waits for its outcome, or for the run it would have started, is told."""
        with self._lock:
            if command_id.encode() in self._commands:
                self._commands[command_id.encode()] = problem
                self._outcome.notify_all()
            watch = self._runs.get(run_id.encode())
            if watch is not None and kind == "start" and watch.summary is None:
                watch.problem = problem
                watch.changed.notify_all()

    def fail(self, problem: Exception) -> None:
        """Nothing will arrive any more: everybody who waits, now or later, gets this."""
        with self._lock:
            self._failure = problem
            self._outcome.notify_all()
            for watch in self._runs.values():
                watch.changed.notify_all()

    @staticmethod
    def _remember(
        order: OrderedDict[bytes, None],
        key: bytes,
        known: dict[bytes, Watch] | dict[bytes, CommandOutcome | Exception | None],
    ) -> None:
        order[key] = None
        order.move_to_end(key)
        while len(order) > KEPT:
            known.pop(order.popitem(last=False)[0], None)

    # --- who waits

    def await_run(self, watch: Watch, until: Until, after_step: int, deadline: float) -> RunSummary | None:
        """Block until the run's summary is at `after_step` or later and `until` holds. None when the topic must be looked at
        first (`watch.look`) or the time is over. Raises what became of the run instead."""
        with self._lock:
            while True:
                summary = watch.summary
                if summary is not None and summary.step >= after_step and until(summary):
                    return summary
                problem = watch.problem or self._failure
                if problem is not None:
                    raise problem
                left = deadline - time.monotonic()
                if watch.look or left <= 0:
                    return None
                watch.changed.wait(left)

    def looked(self, watch: Watch) -> None:
        """The topic has been read for this run: from now on the follower tells everything."""
        with self._lock:
            watch.look = False

    def await_outcome(self, command_id: str, deadline: float) -> CommandOutcome | None:
        """Block until the outcome is known; None when the time is over. Raises what became of the command instead."""
        with self._lock:
            while True:
                outcome = self._commands.get(command_id.encode())
                problem = outcome if isinstance(outcome, Exception) else self._failure
                if isinstance(outcome, CommandOutcome):
                    return outcome
                if problem is not None:
                    raise problem
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self._outcome.wait(left)
