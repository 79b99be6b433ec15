"""What leaves the worker: results and dead letters, each until the log acknowledged it.

What is sent is produced at once by whatever thread has it, and stays with the outbox until its report: delivered, then its
record is settled; refused for good, then `on_refused` decides; anything else (queue full, purged, producer finished), then it is
produced again, on a new producer if need be. So a result can land twice (readers recognise the key) but is never given up
silently. A report of success without an offset counts as delivered: the log says "persisted before", and where does not matter.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from turnlog.kafka.port import Delivered, Fatal, LogError, Producer, Refused
from turnlog.tools.work import Owed

_log = logging.getLogger(__name__)

RENEWALS: Final = 10
"""So many producers in a row without one delivery, and the worker gives up (its supervisor starts a new process)."""
RENEWAL_PAUSE_S: Final = 1.0


class Outbox:
    """`send` may be called by any thread; `tend` and `close` belong to the poll thread, and both callbacks run in it."""

    def __init__(
        self,
        make_producer: Callable[[], Producer],
        on_delivered: Callable[[Owed], None],
        on_refused: Callable[[Owed, LogError], None],
    ) -> None:
        self._make_producer = make_producer
        self._on_delivered = on_delivered
        self._on_refused = on_refused
        self._producer = make_producer()
        self._lock = threading.Lock()  # between `produce` here and the change of producers
        self._waiting: deque[Owed] = deque()
        self._outstanding: set[Owed] = set()
        self._refused: deque[tuple[Owed, LogError]] = deque()
        self._finished = False
        self._renewals = 0
        self._next_renewal = 0.0

    @property
    def outstanding(self) -> int:
        """Sent and not acknowledged yet."""
        return len(self._outstanding)

    @property
    def stuck(self) -> bool:
        """Whether something waits to be produced (again)."""
        return bool(self._waiting or self._refused)

    def send(self, owed: Owed) -> None:
        """Produce `owed.value` under the key of its request, or keep it for the next `tend`. Never blocks, never raises."""
        self._outstanding.add(owed)
        record = owed.record
        # The trace goes on from request to result; other headers are the requester's.
        headers = [header for header in record.headers if header[0] == "traceparent"] if record.headers else ()
        try:
            with self._lock:
                self._producer.produce(
                    owed.topic,
                    owed.value,
                    key=record.key,
                    partition=owed.partition,
                    headers=headers,
                    on_delivery=partial(self._reported, owed),
                )
        except Refused as problem:
            self._refused.append((owed, problem))
        except LogError as problem:
            self._finished = self._finished or isinstance(problem, Fatal)
            self._waiting.append(owed)

    def tend(self, now: float, timeout_s: float = 0.0) -> None:
        """Serve reports, produce again what waits, replace a finished producer. Raises Fatal after RENEWALS in vain."""
        try:
            self._producer.poll(timeout_s)
        except Fatal:
            self._finished = True
        if self._finished:
            self._renew(now)
        for _ in range(len(self._refused)):
            self._refuse(*self._refused.popleft())
        for _ in range(len(self._waiting)):
            self.send(self._waiting.popleft())

    def _reported(self, owed: Owed, report: Delivered) -> None:
        error = report.error
        if error is None:
            self._renewals = 0
            self._outstanding.discard(owed)
            self._on_delivered(owed)
        elif isinstance(error, Refused):
            self._refuse(owed, error)
        else:
            self._finished = self._finished or isinstance(error, Fatal)
            self._waiting.append(owed)

    def _refuse(self, owed: Owed, problem: LogError) -> None:
        self._outstanding.discard(owed)
        self._on_refused(owed, problem)

    def _renew(self, now: float) -> None:
        if now < self._next_renewal:
            return
        self._next_renewal = now + RENEWAL_PAUSE_S
        self._renewals += 1
        if self._renewals > RENEWALS:
            raise Fatal(f"{RENEWALS} producers in a row were finished before they delivered anything")
        _log.warning("the producer is finished: making a new one, %d records go again", len(self._outstanding))
        fresh = self._make_producer()
        with self._lock:
            old, self._producer, self._finished = self._producer, fresh, False
        old.close()  # what it purges is reported in here, and waits for the next round

    def close(self) -> None:
        """Close the producer; what is still outstanding may or may not land."""
        self._producer.close()
