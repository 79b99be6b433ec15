"""Effects on their way out: requests, projections, outcomes, dead letters, and which steps still have some unacknowledged.

An effect may be sent more than once and in the end is sent at least once: it follows from the journal, and the floor stays at
or before the first step that has an unacknowledged effect (J8, J13).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from turnlog.kafka.port import Cluster, Delivered, Fatal, Headers, LogError, Producer, QueueFull, Refused

_log = logging.getLogger(__name__)


Refusing = Callable[[LogError, Callable[[], None]], None]

KEPT_LINGER_MS = 20.0


class Unacked:
    """How many effects of each step (by its offset) are not acknowledged yet."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: dict[int, int] = {}

    def add(self, mark: int) -> None:
        self._open[mark] = self._open.get(mark, 0) + 1

    def done(self, mark: int) -> None:
        left = self._open[mark] - 1
        if left:
            self._open[mark] = left
        else:
            del self._open[mark]

    def least(self, default: int) -> int:
        """The first step with an unacknowledged effect."""
        return min(self._open, default=default)

    def __len__(self) -> int:
        return len(self._open)


class Sent:
    """One effect under way. Called with its delivery report, inside the producer's `poll`: it only counts."""

    __slots__ = ("_lane", "topic", "value", "key", "partition", "headers", "done", "refused")

    def __init__(
        self, lane: _Lane, topic: str, value: bytes | None, key: bytes | None, partition: int | None, headers: Headers,
        done: Callable[[], None], refused: Refusing | None,
    ) -> None:  # fmt: skip
        self._lane = lane
        self.topic = topic
        self.value = value
        self.key = key
        self.partition = partition
        self.headers = headers
        self.done = done
        self.refused = refused

    def __call__(self, report: Delivered) -> None:
        error = report.error
        if error is not None:
            return self._lane.failed(self, error)
        self._lane.open.pop(self, None)
        self.done()


class _Lane:
    """One producer and what it has under way."""

    def __init__(self, cluster: Cluster, name: str, linger_ms: float) -> None:
        self._make: Callable[[], Producer] = lambda: cluster.producer(name, linger_ms=linger_ms)
        self._producer = self._make()
        self.open: dict[Sent, None] = {}
        """In the order of sending, so that what is sent again is sent in that order."""
        self._later: list[Sent] = []
        self._again: list[Sent] = []
        self._broken = False
        self.lost = 0

    def send(self, sent: Sent) -> None:
        """It goes with the next `poll`, together with all that the round sends: one by one they made small batches, and every batch is a
        request for the broker (a tenth of all CPU a run)."""
        self.open[sent] = None
        self._later.append(sent)

    def _hand_over(self) -> None:
        later, self._later = self._later, []
        for sent in later:
            self._produce(sent)

    def _produce(self, sent: Sent) -> None:
        while True:
            try:
                self._producer.produce(
                    sent.topic,
                    sent.value,
                    key=sent.key,
                    partition=sent.partition,
                    headers=sent.headers,
                    on_delivery=sent,
                )
                return
            except QueueFull:
                self._producer.poll(0.05)
            except LogError as problem:
                return self.failed(sent, problem)

    def failed(self, sent: Sent, error: LogError) -> None:
        """Sort a failure: refused for good is an outcome, a broken producer is replaced, anything else is sent again."""
        if isinstance(error, Refused):
            self.open.pop(sent, None)
            if sent.refused is not None:
                return sent.refused(error, sent.done)
            self.lost += 1
            _log.error("%s: refused for good: %s", sent.topic, error)
            return sent.done()
        if isinstance(error, Fatal):
            self._broken = True
        self._again.append(sent)

    def poll(self) -> None:
        self._hand_over()
        try:
            self._producer.poll(0.0)
        except LogError as problem:
            _log.error("the effects' producer failed: %s", problem)
            self._broken = True
        if self._broken:
            return self._renew()
        if self._again:
            again, self._again = self._again, []
            for sent in again:
                self._produce(sent)

    def _renew(self) -> None:
        old, self._producer = self._producer, self._make()
        old.close()  # its open records are reported as failed, which only notes them
        self._broken = False
        self._again, self._later = [], []
        for sent in list(self.open):
            self._produce(sent)

    def flush(self, timeout_s: float) -> None:
        self._hand_over()
        try:
            self._producer.flush(timeout_s)
        except LogError as problem:
            _log.warning("flush of effects: %s", problem)

    def close(self) -> None:
        self._producer.close()


class Outbox:
    """The producers of everything but the journal. Nothing here waits, except for room in a local queue.

    Two lanes: what somebody waits for (requests, summaries) goes at once; what is only kept (ledger, outcomes, dead letters) is
    gathered for 20 ms. In one lane the former queued behind the latter, one batch a partition: 19 % more CPU a run.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._prompt = _Lane(cluster, "effects", 0.0)
        self._kept = _Lane(cluster, "facts", KEPT_LINGER_MS)
        self._lanes = (self._prompt, self._kept)

    def __len__(self) -> int:
        return len(self._prompt.open) + len(self._kept.open)

    @property
    def lost(self) -> int:
        """Projections that Kafka refused for good; each is in the log."""
        return self._prompt.lost + self._kept.lost

    def send(
        self, topic: str, value: bytes | None, key: bytes | None, done: Callable[[], None], *, partition: int | None = None,
        headers: Headers = (), refused: Refusing | None = None, kept: bool = False,
    ) -> None:  # fmt: skip
        """Send one effect; `done` runs once it is acknowledged. Refused for good, it is `refused` that is
        called instead, with `done` for when it has dealt with that; without it, `done`. `kept`: nobody waits for it."""
        lane = self._kept if kept else self._prompt
        lane.send(Sent(lane, topic, value, key, partition, headers, done, refused))

    def poll(self) -> None:
        """Hand over what was sent, serve reports; replace a broken producer and send its open effects again."""
        for lane in self._lanes:
            lane.poll()

    def flush(self, timeout_s: float) -> int:
        """Wait for acknowledgements, as long for each lane; returns how many effects are still open."""
        for lane in self._lanes:
            lane.flush(timeout_s)
        return len(self)

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()
