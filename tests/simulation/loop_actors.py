"""The world around the loop in a simulation: upstream (commands of every quality), one toolset's worker, a model's script."""

from __future__ import annotations

import random
from typing import NamedTuple

from tests.simulation.loop_process import CODEC, REQUESTS, TOKENS, TOPICS
from turnlog.core.agents import AgentSpec, Usage
from turnlog.core.events import ModelAnswer, ModelFailure, RecordedCall
from turnlog.core.records import (
    CancelRun,
    Command,
    ResumeRun,
    SendInput,
    StartRun,
    ToolManifest,
    ToolRequest,
    ToolResult,
)
from turnlog.core.transcript import ModelRequest
from turnlog.kafka.partitioner import partition_of
from turnlog.kafka.port import Partition, Received
from turnlog.testing import MemoryCluster
from turnlog.testing.simulation import Dice, SimClock

MODEL = "scripted/simulation"
AGENTS = (
    AgentSpec("work", "1", "Work.", MODEL, tools=("work/*",), parallel_calls=2, turn_limit=6, model_backoff_ms=50, model_attempts=3,
              model_timeout_ms=1_500),
    AgentSpec("talk", "1", "Talk.", MODEL, tools=("work/a", "work/note"), conversation=True, turn_limit=4, model_backoff_ms=50,
              model_timeout_ms=1_500),
    AgentSpec("strict", "1", "Be strict.", MODEL, tools=("work/*", "lost/gone"), tool_errors="fail", tool_call_budget=6,
              deadline_ms=20_000, model_timeout_ms=1_500),
)  # fmt: skip
SCHEMA = '{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}'
MANIFESTS = (
    ToolManifest("work", "a", "1", REQUESTS, "a", SCHEMA, False, False, True, 3_000, 3, 50),
    ToolManifest("work", "b", "1", REQUESTS, "b", SCHEMA, False, False, True, 1_000, 1, 50),
    ToolManifest("work", "note", "1", REQUESTS, "note", SCHEMA, True, False, True, 3_000, 2, 50),
    ToolManifest("work", "stop", "1", REQUESTS, "stop", SCHEMA, False, True, True, 3_000, 2, 50),
    ToolManifest("lost", "gone", "1", "tool-requests.lost", "gone", SCHEMA, False, False, True, 3_000, 2, 50),
)


def script(request: ModelRequest) -> ModelAnswer | ModelFailure:
    """A function of run and turn alone, as a recorded answer is."""
    rng = random.Random(f"{request.run_id}:{request.turn}")
    calls = []
    if rng.random() < (0.45 if request.agent.conversation else 0.8) and request.turn < 4:
        calls = [_call(rng, request, position) for position in range(rng.randint(1, 3))]
    text = f"answer {request.turn} of {request.run_id}" if not calls or rng.random() < 0.3 else None
    return ModelAnswer(text, tuple(calls), "tool_calls" if calls else "stop", "sim", f"id-{request.turn}", Usage(10, 5))


def _call(rng: random.Random, request: ModelRequest, position: int) -> RecordedCall:
    names = [entry.name for entry in request.menu]
    tool = rng.choice(
        [
            *(n for n in names if n != "stop"),
            "a",
            *(["stop"] if rng.random() < 0.15 else []),
            *(["missing"] if rng.random() < 0.2 else []),
        ]
    )
    arguments = (
        rng.choice(['{"n":1}', '{"n": 2}', '{"n":1}', '{"n":"x"}', "{not json"])
        if rng.random() < 0.3
        else f'{{"n":{position}}}'
    )
    return RecordedCall(f"call_{position}", tool, arguments)


class SentRecord(NamedTuple):
    """An inbound record as the simulation put it there. `command_id` is set where an outcome is owed; `letter` where a dead letter is."""

    partition: Partition
    offset: int
    command_id: str = ""
    letter: bool = False


class Client:
    """Upstream. What it sent, and what is owed for it."""

    def __init__(self, cluster: MemoryCluster, dice: Dice, partitions: int, most_runs: int) -> None:
        self._cluster = cluster
        self._dice = dice
        self._partitions = partitions
        self._producer = cluster.host("client").producer("client")
        self._numbers = 0
        self._most_runs = most_runs
        self.runs: list[str] = []
        self.sent: list[SentRecord] = []
        self.commands: dict[str, Command] = {}

    def publish_tables(self) -> None:
        for agent in AGENTS:
            self._producer.produce(TOPICS.agents, CODEC.encode(agent), key=agent.name.encode())
        for manifest in MANIFESTS:
            self._producer.produce(
                TOPICS.manifests, CODEC.encode(manifest), key=f"{manifest.toolset}/{manifest.tool}".encode()
            )

    def act(self) -> None:
        """Send something."""
        kinds = [("start", 6.0 if len(self.runs) < self._most_runs else 0.0), ("again", 1.0), ("input", 3.0), ("cancel", 0.4),
                 ("resume", 0.6), ("garbage", 0.7), ("forged", 0.4), ("unknown_agent", 0.2), ("same", 0.7)]  # fmt: skip
        getattr(self, f"_{self._dice.pick(kinds)}")()

    def _id(self) -> str:
        self._numbers += 1
        return f"c{self._numbers}"

    def _run(self) -> str:
        return self._dice.one(self.runs) if self.runs else "r0"

    def _start(self) -> None:
        run_id = f"r{len(self.runs) + 1}"
        self.runs.append(run_id)
        self._send_start(run_id, self._dice.one(AGENTS).name)

    def _send_start(self, run_id: str, agent: str) -> None:
        text = None if self._dice.chance(0.2) else "hello"
        self.command(Command(self._id(), run_id, "start", start=StartRun(agent, input=text, labels=(("team", "x"),))))

    def _again(self) -> None:
        self._send_start(self._run(), self._dice.one(AGENTS).name)

    def _unknown_agent(self) -> None:
        self._send_start(f"u{self._numbers}", "nobody")

    def _input(self) -> None:
        final = self._dice.chance(0.15)
        self.command(
            Command(
                self._id(),
                self._run(),
                "input",
                input=SendInput("go on " + "x" * self._dice.rng.randint(0, 400), final),
            )
        )

    def _cancel(self) -> None:
        self.command(Command(self._id(), self._run(), "cancel", cancel=CancelRun("enough")))

    def _resume(self) -> None:
        self.command(Command(self._id(), self._run(), "resume", resume=ResumeRun(2)))

    def _same(self) -> None:
        """A producer that retries: the same command once more."""
        if self.commands:
            self.command(self._dice.one(list(self.commands.values())))

    def command(self, command: Command) -> None:
        """Send a command, now and then to a wrong partition."""
        self.commands[command.command_id] = command
        right = partition_of(command.run_id.encode(), self._partitions)
        where = self._dice.rng.randrange(self._partitions) if self._dice.chance(0.1) else right
        self._put(TOPICS.commands, where, command.run_id.encode(), CODEC.encode(command), command.command_id)

    def _garbage(self) -> None:
        topic = self._dice.one([TOPICS.commands, TOPICS.results])
        value = self._dice.one([b"", b"garbage", None, b"\0\0\0\0\x01xyz", CODEC.encode(Command("x", "", "start"))])
        self._put(
            topic, self._dice.rng.randrange(self._partitions), self._dice.one([b"k", b"", None]), value, letter=True
        )

    def _forged(self) -> None:
        """A result without the token, or of a run that nobody knows."""
        run_id = self._dice.one([self._run(), "nobody"])
        key = f"{run_id}:t0:c0:{'0' * 16}"
        token = TOKENS.token(key, 1) if self._dice.chance(0.5) else b"\0" * 32
        value = CODEC.encode(ToolResult(run_id, key, 1, token, "ok", "forged"))
        self._put(TOPICS.results, partition_of(run_id.encode(), self._partitions), key.encode(), value, letter=True)

    def _put(
        self, topic: str, index: int, key: bytes | None, value: bytes | None, command_id: str = "", *, letter: bool = False
    ) -> None:  # fmt: skip
        where = Partition(topic, index)
        offset = self._cluster.log(where).end
        self._producer.produce(topic, value, key=key, partition=index)
        self.sent.append(SentRecord(where, offset, command_id, letter))


class Worker:
    """One toolset's worker: answers, errs, answers twice, late or never. `calm`: answers everything once, rightly."""

    def __init__(self, cluster: MemoryCluster, clock: SimClock, dice: Dice) -> None:
        self._cluster = cluster
        self._clock = clock
        self._dice = dice
        self._producer = cluster.host("worker").producer("worker")
        self._next = {p.where: 0 for p in cluster.topic(REQUESTS).logs}
        self._numbers = 0
        self.open: list[ToolRequest] = []

    def read(self) -> list[Received]:
        """Take in new requests."""
        found: list[Received] = []
        for where, start in self._next.items():
            records = self._cluster.log(where).read(start, 1_000)
            if records:
                self._next[where] = records[-1].offset + 1
                found += records
        self.open += [CODEC.decode(record.value, ToolRequest) for record in found]
        return found

    def act(self, *, calm: bool = False) -> None:
        """Deal with one request in whatever way."""
        self.read()
        if not self.open:
            return
        request = self.open.pop(0 if calm else self._dice.rng.randrange(len(self.open)))
        if self._clock.ms > request.not_after and (calm or self._dice.chance(0.7)):
            return
        way = (
            "ok"
            if calm
            else self._dice.pick(
                [("ok", 6.0), ("twice", 1.0), ("retryable", 1.5), ("error", 0.6), ("fatal", 0.1), ("never", 0.8)]
            )
        )
        if way == "never":
            return
        self._answer(request, way)
        if way == "twice":
            self.open.append(request)

    def _answer(self, request: ToolRequest, way: str) -> None:
        self._numbers += 1
        ok = way in ("ok", "twice")
        content = f"{request.call_key}#{self._numbers}" + "y" * self._dice.rng.choice([0, 0, 0, 300])
        result = ToolResult(
            request.run_id, request.call_key, request.attempt, request.reply_token, "ok" if ok else "error", content,
            "" if ok else "broken", way == "retryable", way == "fatal", "w1",
        )  # fmt: skip
        self._producer.produce(
            request.reply_topic, CODEC.encode(result), key=request.call_key.encode(), partition=request.reply_partition
        )
