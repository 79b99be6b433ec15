"""A stage for one scene: the loop on MemoryLog without chance, moved by hand."""

from __future__ import annotations

from typing import Any, NamedTuple

from services.loop.shell import Bounds
from services.loop.table import RunTable
from tests.simulation.loop_actors import AGENTS, MANIFESTS
from tests.simulation.loop_process import CODEC, GROUP, REQUESTS, TOPICS, LoopProcess
from turnlog.core.events import ModelAnswer, ModelFailure, RecordedCall
from turnlog.core.records import (
    CancelRun,
    Command,
    CommandOutcome,
    DeadLetter,
    Fence,
    JournalRecord,
    ResumeRun,
    RunSummary,
    SendInput,
    StartRun,
    ToolRequest,
    ToolResult,
)  # fmt: skip
from turnlog.core.state import RunState
from turnlog.core.transcript import ModelRequest
from turnlog.kafka.fenced import Pointer, RecordHeader, header_of, headers_of
from turnlog.kafka.ownership import new_token
from turnlog.kafka.partitioner import partition_of
from turnlog.kafka.port import Partition, Received
from turnlog.testing import MemoryCluster
from turnlog.testing.memory_log import MoveKind
from turnlog.testing.scripted import Script
from turnlog.testing.simulation import MemoryBlobs, SimClock

JOURNAL = Partition(TOPICS.journal, 0)
COMMANDS = Partition(TOPICS.commands, 0)
RESULTS = Partition(TOPICS.results, 0)
STATES = Partition(TOPICS.run_state, 0)


def one_call(request: ModelRequest) -> ModelAnswer | ModelFailure:
    """Asks for a call in turn 0, answers in turn 1."""
    if request.turn == 0:
        return ModelAnswer(None, (RecordedCall("call_0", "a", '{"n":1}'),), "tool_calls")
    return ModelAnswer(f"done at turn {request.turn}", (), "stop")


def two_calls(request: ModelRequest) -> ModelAnswer | ModelFailure:
    if request.turn == 0:
        return ModelAnswer(None, tuple(RecordedCall(f"call_{n}", "a", f'{{"n":{n}}}') for n in range(2)), "tool_calls")
    return ModelAnswer("done", (), "stop")


def answers(request: ModelRequest) -> ModelAnswer | ModelFailure:
    """Answers at once."""
    return ModelAnswer(f"answer {request.turn}", (), "stop")


class Entry(NamedTuple):
    """One journal record, read."""

    offset: int
    header: RecordHeader
    record: JournalRecord
    raw: Received


class Stage:
    """See the module. One partition unless told; nothing is held back unless told."""

    def __init__(
        self, script: Script = one_call, *, partitions: int = 1, latency_ms: float = 0.0, **bounds: Any
    ) -> None:
        self.clock = SimClock()
        self.partitions = partitions
        self.script = script
        self.latency_ms = latency_ms
        self.bounds = Bounds(**{"commit_every_ms": 100, "publish_every_ms": 100, "resolve_wait_ms": 300, **bounds})
        self.cluster = MemoryCluster(self.clock.now_ms, session_timeout_ms=5_000)
        self.blobs = MemoryBlobs()
        for topic in (TOPICS.commands, TOPICS.results, TOPICS.journal, TOPICS.run_state, TOPICS.ledger):
            self.cluster.create(topic, partitions)
        for topic in (TOPICS.outcomes, TOPICS.dead_letters, TOPICS.agents, TOPICS.manifests, REQUESTS):
            self.cluster.create(topic)
        self.producer = self.cluster.host("upstream").producer("upstream")
        for agent in AGENTS:
            self.producer.produce(TOPICS.agents, CODEC.encode(agent), key=agent.name.encode())
        for manifest in MANIFESTS:
            self.producer.produce(
                TOPICS.manifests, CODEC.encode(manifest), key=f"{manifest.toolset}/{manifest.tool}".encode()
            )
        self.numbers = 0
        self.processes: list[LoopProcess] = []

    # ------------------------------------------------------------ processes

    def start(self, name: str = "loop-0", instance: str | None = None, **options: Any) -> LoopProcess:
        """A process that has joined; nothing has happened yet."""
        self.numbers += 1
        given = {"bounds": self.bounds, "latency_ms": self.latency_ms, "script": self.script, **options}
        process = LoopProcess(
            self.cluster,
            self.clock,
            f"{name}#{self.numbers}",
            instance=instance or name,
            partitions=self.partitions,
            blobs=self.blobs,
            **given,
        )
        self.processes.append(process)
        return process

    def live(self, name: str = "loop-0", **options: Any) -> LoopProcess:
        """A process whose partitions are live."""
        process = self.start(name, **options)
        self.until(process, lambda: bool(process.service.owners) and process.service.unready is None)
        return process

    def spin(self, *processes: LoopProcess, rounds: int = 4, ms: int = 0, jobs: bool = True) -> None:
        """Rounds of these processes (all that run, if none is named); `ms` pass before each."""
        for _ in range(rounds):
            self.clock.advance(ms)
            for process in processes or tuple(self.processes):
                if process.runs:
                    process.round()
                    while jobs and process.job():
                        pass

    def until(self, process: LoopProcess, true: Any, *, ms: int = 100, most: int = 200) -> None:
        """Spin one process until something is true."""
        for _ in range(most):
            if true():
                return
            self.spin(process, rounds=1, ms=ms)
        raise AssertionError(f"it never came true: {process.service.unready}")

    def table(self, process: LoopProcess, index: int = 0) -> RunTable:
        table = process.service.owners[index].table
        assert table is not None, process.service.unready
        return table

    def stage_of(self, process: LoopProcess, index: int = 0) -> str:
        owner = process.service.owners.get(index)
        return owner.stage if owner is not None else ""

    # ------------------------------------------------------------ upstream and worker

    def command(self, run_id: str, kind: str, *, command_id: str = "", index: int | None = None, **body: Any) -> str:
        self.numbers += 1
        command_id = command_id or f"c{self.numbers}"
        command = Command(command_id, run_id, kind, **body)
        where = partition_of(run_id.encode(), self.partitions) if index is None else index
        self.producer.produce(TOPICS.commands, CODEC.encode(command), key=run_id.encode(), partition=where)
        return command_id

    def run(self, run_id: str, agent: str = "work", **named: Any) -> str:
        return self.command(run_id, "start", start=StartRun(agent, input="hello"), **named)

    def input(self, run_id: str, text: str = "go on", **named: Any) -> str:
        return self.command(run_id, "input", input=SendInput(text), **named)

    def cancel(self, run_id: str, **named: Any) -> str:
        return self.command(run_id, "cancel", cancel=CancelRun("enough"), **named)

    def resume(self, run_id: str) -> str:
        return self.command(run_id, "resume", resume=ResumeRun(1))

    def requests(self) -> list[ToolRequest]:
        return [CODEC.decode(record.value, ToolRequest) for record in self.cluster.log(Partition(REQUESTS, 0))]

    def answer(self, request: ToolRequest, status: str = "ok", content: str = "result", **fields: Any) -> None:
        result = ToolResult(
            request.run_id, request.call_key, request.attempt, request.reply_token, status, content, **fields
        )
        self.producer.produce(
            TOPICS.results, CODEC.encode(result), key=request.call_key.encode(), partition=request.reply_partition
        )

    # ------------------------------------------------------------ what the logs say

    def partition(self, topic: str, index: int = 0) -> Partition:
        return Partition(topic, index)

    def cluster_steps(self, run_id: str) -> list[Received]:
        """Records with this key, also those that are no journal record."""
        return [record for record in self.cluster.log(JOURNAL) if record.key == run_id.encode()]

    def journal(self, run_id: str = "", index: int = 0) -> list[Entry]:
        """Every record of the journal partition, or those of one run."""
        found = []
        for record in self.cluster.log(Partition(TOPICS.journal, index)):
            header = header_of(record.headers)
            assert header is not None
            entry = Entry(record.offset, header, CODEC.decode(record.value, JournalRecord), record)
            if not run_id or entry.record.run_id == run_id:
                found.append(entry)
        return found

    def kinds(self, run_id: str) -> list[str]:
        """Kinds of all events of a run's records, in order (void and repeated ones too)."""
        return [event.kind for entry in self.journal(run_id) for event in entry.record.events]

    def fences(self) -> list[Entry]:
        return [entry for entry in self.journal() if entry.header.kind == "fence"]

    def outcomes(self, command_id: str = "") -> list[CommandOutcome]:
        found = [
            CODEC.decode(record.value, CommandOutcome) for record in self.cluster.log(Partition(TOPICS.outcomes, 0))
        ]
        return [outcome for outcome in found if not command_id or outcome.command_id == command_id]

    def letters(self) -> list[DeadLetter]:
        return [
            CODEC.decode(record.value, DeadLetter) for record in self.cluster.log(Partition(TOPICS.dead_letters, 0))
        ]

    def summary(self, run_id: str) -> RunSummary | None:
        """The newest projection of a run."""
        found = [r for r in self.cluster.log(STATES) if r.key == run_id.encode()]
        return CODEC.decode(found[-1].value, RunSummary) if found and found[-1].value is not None else None

    def pointer(self, index: int = 0) -> Pointer | None:
        position = self.cluster.group(GROUP).positions.get(Partition(TOPICS.commands, index))
        return Pointer.decode(position.metadata) if position is not None else None

    def committed(self, where: Partition) -> int | None:
        position = self.cluster.group(GROUP).positions.get(where)
        return position.offset if position is not None else None

    def state(self, process: LoopProcess, run_id: str) -> RunState | None:
        slot = self.table(process).slots.get(run_id)
        return slot.state if slot is not None else None

    def make_anew(self, topic: str) -> None:
        """Deleted and created: empty, with an id that differs where real ones do, from the first character on."""
        self.numbers += 1
        self.cluster.recreate(topic)
        self.cluster.topic(topic).topic_id = f"{self.numbers}-anew"

    # ------------------------------------------------------------ the network by hand

    def move(self, kind: MoveKind, topic: str = TOPICS.journal, *, times: int = 1) -> int:
        """Do moves of a kind on a topic, as many as there are up to `times`; returns how many."""
        done = 0
        for _ in range(times):
            found = [m for m in self.cluster.choices(faults=True) if m.kind == kind and m.partition.topic == topic]
            if not found:
                break
            self.cluster.do(found[0])
            done += 1
        return done

    def append(self, value: bytes, header: RecordHeader, key: bytes | None = None, index: int = 0) -> int:
        """Somebody else writes a journal record, whatever is held; its offset."""
        log = self.cluster.log(Partition(TOPICS.journal, index))
        return log.append(key, value, tuple(headers_of(header)), self.clock.now_ms())

    def foreign_fence(self) -> bytes:
        """Another ownership's fence lands."""
        token = new_token()
        record = JournalRecord(
            "fence", token, "", -1, None, self.clock.ms, "other", 0, 0, (), (), Fence("other", (), 0, ())
        )
        self.append(CODEC.encode(record), RecordHeader("fence", token, -1, None, 0, -1))
        return token
