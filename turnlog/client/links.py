"""The client's two threads: one appends commands, one follows what becomes of them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from turnlog.client.errors import NotAcknowledged
from turnlog.kafka.port import (
    Cluster,
    Delivered,
    Fatal,
    Headers,
    LogError,
    OffsetGone,
    Partition,
    Producer,
    QueueFull,
    Reader,
    Received,
    Retryable,
)

_log = logging.getLogger(__name__)

_POLL_S = 0.2
_PAUSE_S = 0.05
_CLOSE_S = 10.0

OnDone = Callable[[LogError | None], None]


class Append(NamedTuple):
    """A record to append."""

    topic: str
    key: bytes
    value: bytes
    headers: Headers = ()


class Receipt:
    """Becomes settled when the log has the record, or refuses it."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._done = threading.Event()
        self._error: LogError | None = None

    def settle(self, error: LogError | None) -> None:
        self._error = error
        self._done.set()

    def wait(self, timeout_s: float) -> None:
        """Return once the log has the record. Raises its LogError, or NotAcknowledged when the time is over."""
        if not self._done.wait(timeout_s):
            raise NotAcknowledged(
                f"{self._what} was not acknowledged within {timeout_s:g} s; it may still arrive, sending it again with the same id is safe"
            )
        if self._error is not None:
            raise self._error


class Sender:
    """Appends from any thread; one thread of its own serves the reports. A producer that died is replaced."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self._producer: Producer = cluster.producer(name)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=f"{name}-sender", daemon=True)
        self._thread.start()

    def append(self, record: Append, on_done: OnDone, deadline: float) -> None:
        """Queue the record; `on_done` runs in the sender's thread. A full queue is waited out until `deadline`, then QueueFull."""

        def report(delivered: Delivered) -> None:
            on_done(delivered.error)

        while True:
            try:
                return self._producer.produce(
                    record.topic, record.value, key=record.key, headers=record.headers, on_delivery=report
                )
            except (QueueFull, Fatal):  # a dead producer is replaced by its thread within one poll
                if time.monotonic() >= deadline or self._closing.is_set():
                    raise
                time.sleep(_PAUSE_S)

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                served = self._producer.poll(_POLL_S)
            except LogError as problem:
                _log.error("%s; the client makes a new producer", problem)
                self._replace()
                continue
            if not served and not len(self._producer):
                self._closing.wait(0.0005)  # lets other threads run where poll returns at once

    def _replace(self) -> None:
        dead = self._producer
        try:
            self._producer = self._cluster.producer(self._name)
        except LogError as problem:
            _log.error("%s", problem)
            self._closing.wait(1.0)
            return
        dead.close()

    def close(self) -> None:
        """Wait up to ten seconds for what is queued, then stop."""
        self._closing.set()
        self._thread.join()
        left = self._producer.flush(_CLOSE_S)
        if left:
            _log.warning("%d commands were not acknowledged before the client was closed", left)
        self._producer.close()


class Follower:
    """Follows partitions in a thread of its own and hands every batch to `take`. `fail` is told when it cannot go on."""

    def __init__(
        self,
        reader: Reader,
        offsets: Mapping[Partition, int],
        take: Callable[[list[Received]], None],
        fail: Callable[[LogError], None],
        name: str,
    ) -> None:
        self._reader = reader
        self._take = take
        self._fail = fail
        self._closing = threading.Event()
        reader.follow(offsets)
        self._thread = threading.Thread(target=self._follow, name=f"{name}-follower", daemon=True)
        self._thread.start()

    @property
    def thread(self) -> threading.Thread:
        return self._thread

    def _follow(self) -> None:
        while not self._closing.is_set():
            try:
                batch = self._reader.poll(_POLL_S)
            except Retryable as problem:
                _log.warning("%s", problem)
                self._closing.wait(_PAUSE_S)
                continue
            except OffsetGone as problem:
                self._go_on_behind(problem)
                continue
            except LogError as problem:
                _log.error("the client can follow its runs no longer: %s", problem)
                self._fail(problem)
                return
            if batch:
                self._take(batch)
            else:
                self._closing.wait(0.0005)

    def _go_on_behind(self, problem: OffsetGone) -> None:
        """The log was trimmed while this process slept: go on where it begins now."""
        if problem.partition is None:
            return self._fail(problem)
        _log.warning("%s; the client goes on where the log begins now", problem)
        try:
            start, _ = self._reader.bounds(problem.partition)
            self._reader.follow({problem.partition: start})
        except LogError as again:
            _log.warning("%s", again)
            self._closing.wait(1.0)

    def close(self) -> None:
        self._closing.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._reader.close()
