"""One simulated loop process: the real LoopService on a MemoryHost, with a fake clock and jobs that run when the simulation says so."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from services.loop.arrivals import Reception
from services.loop.effects import letter_of
from services.loop.outbox import Outbox
from services.loop.service import InstanceTaken, LoopService
from services.loop.shell import Bounds, Counters, Shell, Topics
from services.loop.tables import Tables
from services.loop.tokens import ReplyTokens
from turnlog.codec import Codec
from turnlog.core.agents import MenuEntry
from turnlog.kafka.jobs import StepRunner
from turnlog.kafka.opening import Clients
from turnlog.kafka.ownership import FencedWriter
from turnlog.kafka.port import LogError, Partition, Position, Rebalance, Received
from turnlog.schema_check import check_arguments
from turnlog.testing import MemoryCluster, MemoryHost
from turnlog.testing.memory_clients import MemoryConsumer
from turnlog.testing.scripted import Faults, Script, ScriptedProvider
from turnlog.testing.simulation import MemoryBlobs, SimClock, SimDelay

TOPICS = Topics(
    "commands",
    "tool-results",
    "journal",
    "run-state",
    "tool-ledger",
    "command-outcomes",
    "dead-letters",
    "agents",
    "tool-manifests",
)
REQUESTS = "tool-requests.work"
GROUP = "loop"
SECRET = b"a simulated installation's secret"
TOKENS = ReplyTokens([SECRET])
CODEC = Codec()


class DeafConsumer:
    """A member that has not heard yet that it lost its partitions: it goes on delivering what it can, and hears nothing of the
    group. What a process that was stopped looks like until its client has spoken to the coordinator again."""

    def __init__(self, inner: MemoryConsumer) -> None:
        self._inner = inner
        self.deaf = False
        self.stale: frozenset[int] = frozenset()

    def fall_deaf(self) -> None:
        self.deaf, self.stale = True, self._inner.owned()

    def subscribe(self, topic: str, rebalance: Rebalance) -> None:
        self._inner.subscribe(topic, rebalance)

    def poll(self, timeout_s: float, most: int = 500) -> list[Received]:
        return self._inner._cursor.next(most) if self.deaf else self._inner.poll(timeout_s, most)

    def owned(self) -> frozenset[int]:
        return self.stale if self.deaf else self._inner.owned()

    def add(self, offsets: Mapping[Partition, int]) -> None:
        self._inner.add(offsets)

    def remove(self, partitions: Iterable[Partition]) -> None:
        self._inner.remove(partitions)

    def pause(self, partitions: Iterable[Partition]) -> None:
        self._inner.pause(partitions)

    def resume(self, partitions: Iterable[Partition]) -> None:
        self._inner.resume(partitions)

    def commit(self, positions: Mapping[Partition, Position], *, timeout_s: float = 10.0) -> None:
        self._inner.commit(positions, timeout_s=timeout_s)

    def commit_soon(
        self, positions: Mapping[Partition, Position], on_done: Callable[[LogError | None], None] | None = None
    ) -> None:
        self._inner.commit_soon(positions, on_done)

    def committed(
        self, partitions: Iterable[Partition], *, timeout_s: float = 10.0
    ) -> dict[Partition, Position | None]:
        return self._inner.committed(partitions, timeout_s=timeout_s)

    def close(self, *, leave: bool = False) -> None:
        self._inner.close(leave=leave)


class LoopProcess:
    """See the module. `gone` says why it is no more; `on_ask` is told every question to the model as it is asked."""

    def __init__(
        self, cluster: MemoryCluster, clock: SimClock, name: str, *, instance: str, partitions: int, script: Script, blobs: MemoryBlobs,
        seed: int = 0, bounds: Bounds | None = None, faults: Faults | None = None, latency_ms: float = 0.0,
        validate: Callable[[MenuEntry, Any], str | None] = check_arguments, build: str = "simulation",
    ) -> None:  # fmt: skip
        self.name = name
        self.instance = instance
        self.clock = clock
        self.host: MemoryHost = cluster.host(name)
        self.inner = self.host.consumer(GROUP, instance_id=instance)
        self.consumer = DeafConsumer(self.inner)
        self.runner = StepRunner()
        self.delay = SimDelay(clock)
        self.provider = ScriptedProvider(script, latency_ms=latency_ms, faults=faults, delay=self.delay)
        self.frozen = False
        self.gone = ""
        self.shell = self._shell(cluster, blobs, partitions, bounds or Bounds(), validate, build, random.Random(seed))
        self.service = LoopService(self.shell)
        self.service.start()

    def _shell(
        self, cluster: MemoryCluster, blobs: MemoryBlobs, partitions: int, bounds: Bounds,
        validate: Callable[[MenuEntry, Any], str | None], build: str, rng: random.Random,
    ) -> Shell:  # fmt: skip
        clients = Clients(self.consumer, self.host.admin(), self.host.reader("loop"))
        outbox = Outbox(self.host)
        counters = Counters()

        def read_gap(partition: Partition, start: int, end: int, then: Callable[..., None]) -> None:
            self.runner.submit(
                "loading", lambda: [r for b in clients.reader.read(partition, start, end) for r in b], then
            )

        def reject(record: Received, reason: str, detail: str) -> None:
            letter = letter_of(record, reason, detail, "loop", self.clock.now_ms())
            outbox.send(TOPICS.dead_letters, CODEC.encode(letter), letter.key, lambda: None)

        tables = Tables(self.host.reader("tables"), CODEC, TOPICS.agents, TOPICS.manifests, "tool-requests.", reject)
        return Shell(
            topics=TOPICS, partitions=partitions, owner_name=self.name, build=build, codec=CODEC, reception=Reception(CODEC, TOKENS),
            tokens=TOKENS, tables=tables, outbox=outbox, writer=FencedWriter(self.host, TOPICS.journal, read_gap), clients=clients,
            runner=self.runner, providers=self.provider, blobs=blobs, validate=validate, now=self.clock.now_ms,
            clock=self.clock.monotonic, bounds=bounds, counters=counters, random=rng,
        )  # fmt: skip

    @property
    def runs(self) -> bool:
        """It takes turns: neither dead nor stopped by a signal."""
        return not self.gone and not self.frozen

    def round(self) -> None:
        """One round of the poll loop."""
        self.delay.run_due()
        try:
            self.service.round()
        except InstanceTaken:
            self.crash("its instance id was taken")

    def job(self, place: int = 0) -> bool:
        """Run one of the jobs that wait, the oldest unless told."""
        return self.runner.run_one(place)

    def crash(self, why: str = "killed") -> None:
        self.gone = why
        self.host.crash()

    def drain(self) -> None:
        """SIGTERM: stop cleanly."""
        self.clock.creep_ms = 500
        try:
            self.service.drain()
        finally:
            self.clock.creep_ms = 0
        self.gone = "stopped"
        self.host.crash()  # what it left unacknowledged may still land

    def freeze(self) -> None:
        self.frozen = True
        self.host.freeze()

    def thaw(self, *, deaf: bool) -> None:
        self.frozen = False
        if deaf:
            self.consumer.fall_deaf()
        else:
            self.host.thaw()

    def hear(self) -> None:
        """The client speaks to the coordinator again."""
        if self.consumer.deaf:
            self.consumer.deaf = False
            self.host.thaw()
