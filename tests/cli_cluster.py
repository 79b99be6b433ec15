"""MemoryLog for programs with threads: one lock, and reads that wait a little instead of none at all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from turnlog.testing import MemoryCluster

_WAITING = frozenset({"poll"})


class _Locked:
    """Every method of the thing behind runs under the cluster's lock; iterators come out as lists."""

    def __init__(self, thing: Any, lock: threading.RLock) -> None:
        self._thing = thing
        self._lock = lock

    def __len__(self) -> int:
        with self._lock:
            return len(self._thing)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._thing, name)

        def call(*args: Any, **options: Any) -> Any:
            with self._lock:
                found = method(*args, **options)
                if name == "read":
                    found = list(found)
            if name in _WAITING and not found:
                time.sleep(0.001)
            return found

        return call


class ThreadedCluster:
    """A `Cluster` whose clients may live in several threads. `memory` is the cluster behind it, to be used under `lock`."""

    def __init__(self) -> None:
        self.memory = MemoryCluster(now_ms=lambda: time.time_ns() // 1_000_000)
        self.lock = threading.RLock()

    def create(self, name: str, partitions: int) -> None:
        with self.lock:
            self.memory.create(name, partitions)

    def producer(self, name: str, *, linger_ms: float = 0.0) -> Any:
        with self.lock:
            return _Locked(self.memory.producer(name, linger_ms=linger_ms), self.lock)

    def consumer(self, group: str, *, instance_id: str | None = None) -> Any:
        with self.lock:
            return _Locked(self.memory.consumer(group, instance_id=instance_id), self.lock)

    def reader(self, name: str) -> Any:
        with self.lock:
            return _Locked(self.memory.reader(name), self.lock)

    def admin(self) -> Any:
        with self.lock:
            return _Locked(self.memory.admin(), self.lock)
