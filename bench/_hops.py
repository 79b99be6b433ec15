"""The standard run's hops with no work in them: three processes that only consume and produce, on librdkafka itself.

A run: command -> append -> append -> two requests -> two results, four times, then one append and the final projection: 14
acknowledged appends of 600 bytes (one in flight a run), 8 requests, 8 results of 300 bytes. The clients have the product's
properties, the topics the product's names, partitions and configurations.

How the loop waits is what it can do best: in the producer while an append is unacknowledged (its report is the next thing that
can make work in a single run), else in the consumer. Not a busy poll (`poll(0.0003)` is
`poll(0)` to the library, which counts whole milliseconds): on two cores it takes one from the broker.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from bench._remote import serve, until_closed
from turnlog.kafka.client import (
    COMMON_DEFAULTS,
    PRODUCER_DEFAULTS,
    PRODUCER_FIXED,
    READING_DEFAULTS,
    READING_FIXED,
)

TURNS, CALLS = 5, 2
APPENDS = 1 + TURNS + (TURNS - 1) * CALLS
COMMAND, APPEND, REQUEST, RESULT, PROJECTION = (b"." * size for size in (200, 600, 300, 300, 200))
_ACK_WAIT_S = 0.05
_IDLE_WAIT_S = 0.2
_STUCK_S = 60.0


class Wires(NamedTuple):
    """Where the hops go."""

    bootstrap: str
    commands: str
    requests: str
    results: str
    journal: str
    state: str


def producer(bootstrap: str) -> Producer:
    return Producer(
        {**COMMON_DEFAULTS, **PRODUCER_DEFAULTS, "linger.ms": 0, "bootstrap.servers": bootstrap, **PRODUCER_FIXED}
    )


def consumer(bootstrap: str, topics: list[str]) -> Consumer:
    """Follows all partitions of the topics from their ends of now; outside any group."""
    config = {
        **COMMON_DEFAULTS,
        **READING_DEFAULTS,
        "bootstrap.servers": bootstrap,
        **READING_FIXED,
        "group.id": "limit",
    }
    client = Consumer(config)
    wanted = []
    for topic in topics:
        for index in client.list_topics(topic, timeout=10).topics[topic].partitions:
            _, end = client.get_watermark_offsets(TopicPartition(topic, index), timeout=10)
            wanted.append(TopicPartition(topic, index, end))
    client.assign(wanted)
    return client


def batch(client: Consumer, wait_s: float) -> list[Message]:
    """Wait for the first record, take along what else is there."""
    first = client.poll(wait_s)
    if first is None:
        return []
    messages = [first, *client.consume(500, 0)]
    for message in messages:
        if message.error() is not None:
            raise RuntimeError(message.error())
    return messages


class _Run:
    """What the loop must know of a run to send its hops."""

    __slots__ = ("in_flight", "key", "results", "todo", "turn")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.turn = 0
        self.results = 0
        self.in_flight = False
        self.todo: deque[str] = deque()


class _Loop:
    """The loop's hops."""

    def __init__(self, wires: Wires) -> None:
        self._wires = wires
        self._inbound = consumer(wires.bootstrap, [wires.commands, wires.results])
        self._journal = producer(wires.bootstrap)
        self._effects = producer(wires.bootstrap)
        self._runs: dict[bytes, _Run] = {}

    def round(self) -> None:
        wait = _IDLE_WAIT_S
        if len(self._journal):
            self._journal.poll(_ACK_WAIT_S)
            wait = 0.0 if len(self._journal) else _IDLE_WAIT_S
        for message in batch(self._inbound, wait):
            self._take(message.key() or b"", message.topic() == self._wires.commands)
        self._effects.poll(0)

    def _take(self, key: bytes, is_command: bool) -> None:
        if is_command:
            run = self._runs[key] = _Run(key)
            return self._append(run, "start")
        run = self._runs[key.split(b":", 1)[0]]
        run.results += 1
        last = run.results % CALLS == 0
        return self._append(run, "last result" if last else "result")

    def _append(self, run: _Run, what: str) -> None:
        if run.in_flight:
            run.todo.append(what)
            return
        run.in_flight = True
        self._journal.produce(self._wires.journal, APPEND, run.key, on_delivery=partial(self._acknowledged, run, what))

    def _acknowledged(self, run: _Run, what: str, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            raise RuntimeError(error)
        run.in_flight = False
        if what == "answer":
            self._answered(run)
        elif what != "result":
            run.todo.appendleft("answer")
        if run.todo:
            self._append(run, run.todo.popleft())

    def _answered(self, run: _Run) -> None:
        turn, run.turn = run.turn, run.turn + 1
        if turn == TURNS - 1:
            del self._runs[run.key]
            self._effects.produce(self._wires.state, PROJECTION, run.key)
            return
        for call in range(CALLS):
            self._effects.produce(self._wires.requests, REQUEST, b"%s:%d:%d" % (run.key, turn, call))


def loop(connection: Connection, wires: Wires) -> None:
    hops = _Loop(wires)
    closed = until_closed(connection)
    while not closed.is_set():
        hops.round()


def worker(connection: Connection, wires: Wires) -> None:
    inbound, outbound = consumer(wires.bootstrap, [wires.requests]), producer(wires.bootstrap)
    closed = until_closed(connection)
    while not closed.is_set():
        for message in batch(inbound, _IDLE_WAIT_S):
            outbound.produce(wires.results, RESULT, message.key())
        outbound.poll(0)


class _Client:
    """Starts runs and waits for their projections."""

    def __init__(self, wires: Wires) -> None:
        self._wires = wires
        self._inbound = consumer(wires.bootstrap, [wires.state])
        self._outbound = producer(wires.bootstrap)
        self._sent: dict[bytes, float] = {}
        self._number = 0

    def _start(self) -> None:
        key = b"r%d" % self._number
        self._number += 1
        self._sent[key] = time.perf_counter()
        self._outbound.produce(self._wires.commands, COMMAND, key)
        self._outbound.poll(0)

    def _ended(self) -> Iterator[float]:
        """Seconds of each run that ended meanwhile."""
        messages = batch(self._inbound, _STUCK_S)
        if not messages:
            raise RuntimeError(f"no run ended within {_STUCK_S:.0f} s")
        now = time.perf_counter()
        for message in messages:
            yield now - self._sent.pop(message.key() or b"")

    def seq(self, runs: int) -> list[float]:
        """Runs one after the other; seconds of each."""
        found: list[float] = []
        for _ in range(runs):
            self._start()
            found += self._ended()
        return found

    def load(self, runs: int, in_flight: int) -> tuple[float, list[float]]:
        """So many runs, always so many of them under way: seconds of all together and of each."""
        began = time.perf_counter()
        found: list[float] = []
        started = min(runs, in_flight)
        for _ in range(started):
            self._start()
        while len(found) < runs:
            for seconds in self._ended():
                found.append(seconds)
                if started < runs:
                    started += 1
                    self._start()
        return time.perf_counter() - began, found


def client(connection: Connection, wires: Wires) -> None:
    hops = _Client(wires)
    verbs: dict[str, Callable[..., Any]] = {"seq": hops.seq, "load": hops.load}
    serve(connection, verbs)
