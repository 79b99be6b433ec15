"""The client process of `agent_run`: starts runs with `turnlog.Client` and waits for their ends, as an upstream service would."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from bench._installation import AGENT, cluster_of
from bench._remote import serve
from turnlog.client import Client
from turnlog.client.watch import ended
from turnlog.codec import Codec
from turnlog.core.records import RunSummary

_STUCK_S = 120.0


class Flow:
    """Keeps a number of runs under way: each end starts the next. Every method but `take` belongs to one thread."""

    def __init__(self, submit: Callable[[str], None], name: str) -> None:
        self._submit = submit
        self._name = name
        self._lock = threading.Lock()
        self._left = 0
        self._sent: dict[str, float] = {}
        self._number = 0
        self._changed = threading.Condition(self._lock)
        self.seconds: list[float] = []
        self.bad: list[str] = []
        self.last_end = 0.0

    @property
    def started(self) -> list[str]:
        return [self._run_id(number) for number in range(self._number)]

    def _run_id(self, number: int) -> str:
        return f"{self._name}-{number}"

    def begin(self, runs: int, in_flight: int) -> None:
        """Start the first ones; `runs` in all."""
        self._left = runs
        for _ in range(min(runs, in_flight)):
            self._next()

    def _next(self) -> None:
        with self._lock:
            if not self._left:
                return
            self._left -= 1
            run_id = self._run_id(self._number)
            self._number += 1
            self._sent[run_id] = time.perf_counter()
        self._submit(run_id)

    def take(self, summary: RunSummary) -> None:
        """A summary of some run; the follower's thread."""
        if not ended(summary):
            return
        with self._lock:
            sent = self._sent.pop(summary.run_id, None)
            if sent is None:
                return
            self.seconds.append(time.perf_counter() - sent)
            self.last_end = time.monotonic()
            if summary.status != "succeeded":
                self.bad.append(f"{summary.run_id}: {summary.status} {summary.reason} {summary.error}")
            self._changed.notify_all()
        self._next()

    def stop(self) -> int:
        """Start no more; returns how many are under way."""
        with self._lock:
            self._left = 0
            return len(self._sent)

    def wait(self, timeout_s: float) -> bool:
        """Until all that was started has ended; False when the time is over first."""
        with self._lock:
            return self._changed.wait_for(lambda: not self._sent and not self._left, timeout_s)

    def wait_for(self, ended_runs: int, timeout_s: float) -> bool:
        """Until so many have ended."""
        with self._lock:
            return self._changed.wait_for(lambda: len(self.seconds) >= ended_runs, timeout_s)


class _Driver:
    """The verbs of the process."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self._client = Client(cluster_of(bootstrap), Codec(), prefix, name="bench-client")
        self._client.on_update(self._on_update)
        self._flow = Flow(self._submit, "none")
        self._single = 0

    def _on_update(self, summary: RunSummary) -> None:
        self._flow.take(summary)

    def _submit(self, run_id: str) -> None:
        self._client.submit(AGENT.name, "go", run_id, acknowledged=False)

    def seq(self, runs: int) -> list[float]:
        """Runs one after the other; seconds of each."""
        found = []
        for _ in range(runs):
            self._single += 1
            began = time.perf_counter()
            handle = self._client.submit(AGENT.name, "go", f"single-{self._single}", acknowledged=False)
            summary = handle.wait(_STUCK_S)
            found.append(time.perf_counter() - began)
            if summary.status != "succeeded":
                raise RuntimeError(f"{summary.run_id}: {summary.status} {summary.reason} {summary.error}")
        return found

    def load(self, name: str, runs: int, in_flight: int) -> tuple[float, list[float]]:
        """So many runs, always so many of them under way: seconds of all together and of each."""
        began = time.monotonic()
        flow = self._flow = Flow(self._submit, name)
        flow.begin(runs, in_flight)
        if not flow.wait(_STUCK_S + runs / 10):
            raise RuntimeError(f"only {len(flow.seconds)} of {runs} runs ended")
        if flow.bad:
            raise RuntimeError(f"{len(flow.bad)} runs did not succeed: {flow.bad[0]}")
        return flow.last_end - began, flow.seconds

    def feed(self, name: str, in_flight: int, until_ended: int) -> None:
        """Begin to keep so many runs under way; returns once so many have ended, and goes on."""
        flow = self._flow = Flow(self._submit, name)
        flow.begin(10**9, in_flight)
        if not flow.wait_for(until_ended, _STUCK_S):
            raise RuntimeError(f"only {len(flow.seconds)} runs ended")

    def stop_feeding(self) -> int:
        return self._flow.stop()

    def drain(self, timeout_s: float) -> tuple[bool, float, list[str]]:
        """Whether all have ended in time, when the last did (monotonic clock of the machine), and all run ids."""
        done = self._flow.wait(timeout_s)
        return done, self._flow.last_end, self._flow.started


def client(connection: Connection, bootstrap: str, prefix: str) -> None:
    driver = _Driver(bootstrap, prefix)
    verbs: dict[str, Callable[..., Any]] = {
        name: getattr(driver, name) for name in ("seq", "load", "feed", "stop_feeding", "drain")
    }
    serve(connection, verbs)
