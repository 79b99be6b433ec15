"""An installation for tests of the loop as a process: topics, agents, tools answered by the test, raw records, and the journal
looked at afterwards by readers that share no code with the loop's memory.

Tool calls go to toolset `bench`, which the test plays itself (`Hands`): it sees every request, and may keep its answers back.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from services.loop import projections
from turnlog.blobs import DirectoryBlobs
from turnlog.client import Client, StartRequest
from turnlog.codec import Codec
from turnlog.core.agents import AgentSpec
from turnlog.core.events import Event
from turnlog.core.evolve import evolve
from turnlog.core.records import (
    CommandOutcome,
    DeadLetter,
    InputRef,
    LedgerEntry,
    RunSummary,
    ToolManifest,
    ToolRequest,
    ToolResult,
)
from turnlog.core.state import RunState
from turnlog.journal.verification import Counts, Finding, PartitionCheck
from turnlog.kafka.client import KafkaCluster
from turnlog.kafka.fenced import Pointer, Verdict
from turnlog.kafka.partitioner import partition_of
from turnlog.kafka.port import Delivered, Headers, LogError, NewTopic, Partition, Received
from turnlog.kafka.topics import Layout, create_topics
from turnlog.local.process import Child, tail
from turnlog.schema_check import check_arguments
from turnlog.testing.invariants import History

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
CODEC = Codec()
PATIENCE_S = 60.0
"""For conditions that come within a second or two on a machine that has nothing else to do."""
SECRET = "a secret of the tests, nobody else's"

PARALLEL = 4
AGENTS = (
    AgentSpec("echo", "1", "Say it again.", "scripted/echo", model_backoff_ms=50),
    AgentSpec("talk", "1", "Say it again.", "scripted/echo", conversation=True),
    AgentSpec("tools", "1", "Call what you are told.", "scripted/echo", tools=("bench/*",), parallel_calls=PARALLEL),
    AgentSpec("work", "1", "Work.", "scripted/standard_work", tools=("bench/*",), parallel_calls=2),
)
WORK_CALLS = 8
TOOLS = ("bench_a", "bench_b")


def until(done: Callable[[], T], what: str | Callable[[], str], patience_s: float = PATIENCE_S) -> T:
    """Ask again and again until the answer is truthy, and return it; fail after the patience."""
    end = time.monotonic() + patience_s
    while not (found := done()):
        assert time.monotonic() < end, f"never: {what() if callable(what) else what}"
        time.sleep(0.02)
    return found


class LoopProcess:
    """`python -m services.loop` with a log and a health port of its own."""

    def __init__(
        self, name: str, folder: Path, environment: dict[str, str], arguments: Sequence[str] = (), port: int = 0
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._port = port
        self._port_file = folder / f"{name}.port"
        self._port_file.unlink(missing_ok=True)
        own = {"TURNLOG_OBS__PORT_FILE": str(self._port_file), "TURNLOG_OBS__PORT": str(port)}
        command = [sys.executable, "-m", "services.loop", *arguments]
        self.child = Child.start(
            command, name=name, output=self.log, env={**os.environ, **environment, **own}, cwd=ROOT
        )

    def _get(self, path: str, nth: int) -> bytes:
        port = self._port + nth if self._port else int(self._port_file.read_text())
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return bytes(answer.read())

    def reasons(self, nth: int = 0) -> str | None:
        """Why it is not ready; None when it is."""
        try:
            self._get("/health/ready", nth)
        except urllib.error.HTTPError as refused:
            with refused:
                return ", ".join(json.loads(refused.read()).get("reasons", {}).values()) or "no reason given"
        except (OSError, ValueError) as problem:
            return f"no answer: {problem}"
        return None

    def metric(self, name: str, nth: int = 0) -> float:
        """A metric summed over its labels; -1 while the process does not answer."""
        try:
            lines = self._get("/metrics", nth).decode().splitlines()
        except (OSError, ValueError):
            return -1.0
        found = [line for line in lines if line.startswith((f"turnlog_loop_{name} ", f"turnlog_loop_{name}{{"))]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    def until_ready(self, patience_s: float = PATIENCE_S) -> LoopProcess:
        """Ready, with at least one partition."""

        def ready() -> bool:
            assert self.child.alive, f"{self.name} ended with {self.child.poll()}: {self.said()}"
            return self.reasons() is None and self.metric("partitions") > 0

        until(ready, lambda: f"{self.name} ready: {self.reasons()}\n{self.said()}", patience_s)
        return self

    def until_it_serves(self, count: int, nth: int = 0) -> LoopProcess:
        """It has so many partitions, and all of them are live."""

        def serves() -> bool:
            counted = self.metric("partitions", nth) == count and self.metric("partitions_unready", nth) == 0
            return counted and self.reasons(nth) is None

        until(serves, lambda: f"{self.name} serves {count} partitions: {self.reasons(nth)}\n{self.said()}")
        return self

    def until_it_says(self, text: str) -> str:
        """Not ready, with this among its reasons."""

        def said() -> str:
            why = self.reasons() or ""
            return why if text in why else ""

        return until(said, lambda: f"{text!r} in {self.reasons()!r}")

    def said(self) -> str:
        return tail(self.log)

    @property
    def everything_said(self) -> str:
        return self.log.read_text("utf-8", "replace")

    def stop(self) -> None:
        """SIGTERM, and a clean end."""
        self.child.terminate()
        assert self.ended() == 0, self.said()

    def ended(self) -> int | None:
        """Its exit status, waited for."""
        return self.child.wait(PATIENCE_S)


@dataclass
class RunRecord:
    """A run as its valid steps say."""

    state: RunState
    step: int = -1
    head: bytes = b""
    steps: list[tuple[Event, ...]] = field(default_factory=list)
    history: History = field(default_factory=History)
    ledger: dict[str, LedgerEntry] = field(default_factory=dict)

    def take(self, step: int, head: bytes, events: tuple[Event, ...]) -> None:
        self.history.take(events)
        for event in events:
            evolve(self.state, event)
        for entry in projections.ledger_entries(self.state.run_id, events, step):
            assert entry.call_key not in self.ledger, f"call {entry.call_key} was settled twice"
            self.ledger[entry.call_key] = entry
        self.steps.append(events)
        self.step, self.head = step, head

    def count(self, kind: str) -> int:
        return sum(event.kind == kind for events in self.steps for event in events)


@dataclass
class Audit:
    """The journal, judged."""

    runs: dict[str, RunRecord]
    findings: list[Finding]
    counts: Counts
    owners: dict[int, list[str]]
    """Per partition who opened it, in order."""

    @property
    def fences(self) -> int:
        return sum(map(len, self.owners.values()))


class Hands:
    """The toolset `bench`, played by a thread of the test: answers each request, also a repeated one, unless it is held."""

    def __init__(self, cluster: KafkaCluster, topic: str) -> None:
        self.requests: list[ToolRequest] = []
        self.answer: Callable[[ToolRequest], str] = lambda request: f"{request.tool} {request.arguments}"
        self._free = threading.Event()
        self._free.set()
        self._end = threading.Event()
        self._producer = cluster.producer("hands")
        self._reader = cluster.reader("hands")
        admin = cluster.admin()
        count = admin.topics([topic])[topic].partitions
        admin.close()
        self._reader.follow({Partition(topic, index): 0 for index in range(count)})
        self._thread = threading.Thread(target=self._run, name="hands", daemon=True)
        self._thread.start()

    def hold(self) -> None:
        """Keep answers back from now on, until `release`."""
        self._free.clear()

    def release(self) -> None:
        self._free.set()

    def keys(self) -> set[str]:
        return {request.call_key for request in list(self.requests)}

    def of(self, run_id: str) -> list[ToolRequest]:
        return [request for request in list(self.requests) if request.run_id == run_id]

    def close(self) -> None:
        self._end.set()
        self._thread.join()
        self._producer.close()
        self._reader.close()

    def _run(self) -> None:
        waiting: list[ToolRequest] = []
        while not self._end.is_set():
            try:
                found = [CODEC.decode(record.value, ToolRequest) for record in self._reader.poll(0.05)]
            except LogError:  # the broker is being killed
                continue
            self.requests += found
            waiting += found
            if self._free.is_set():
                for request in waiting:
                    self.reply(request, result_for(request, self.answer(request)))
                waiting = []
            self._producer.poll(0)

    def reply(self, request: ToolRequest, result: ToolResult) -> None:
        """Send a result where the request says."""
        topic, partition = request.reply_topic, request.reply_partition
        self._producer.produce(topic, CODEC.encode(result), key=result.call_key.encode(), partition=partition)


def result_for(request: ToolRequest, content: str, status: str = "ok") -> ToolResult:
    r = request
    return ToolResult(r.run_id, r.call_key, r.attempt, r.reply_token, status, content, worker="hands")


class Stage:
    """See the module. `environment` is what every process of the installation gets."""

    def __init__(self, bootstrap: str, folder: Path, *, partitions: int = 4, command_bytes: int = 0) -> None:
        self.prefix = f"loop-{uuid.uuid4().hex[:8]}."
        self.folder = folder
        self.partitions = partitions
        self.environment = {
            "TURNLOG_KAFKA__BOOTSTRAP_SERVERS": bootstrap,
            "TURNLOG_TOPIC_PREFIX": self.prefix,
            "TURNLOG_PARTITIONS": str(partitions),
            "TURNLOG_STATE_DIR": str(folder),
            "TURNLOG_SECRET": SECRET,
            "TURNLOG_MODELS__SCRIPTED": "true",
            "TURNLOG_LOG__FORMAT": "human",
        }
        self.cluster = KafkaCluster({"bootstrap.servers": bootstrap})
        self.admin = self.cluster.admin()
        self.layout = Layout(prefix=self.prefix, partitions=partitions, toolsets=("bench",))
        self._make_topics(command_bytes)
        self.producer = self.cluster.producer("test")
        self._reader = self.cluster.reader("test")
        for agent in AGENTS:
            self.put("agents", agent.name.encode(), CODEC.encode(agent))
        for tool in TOOLS:
            manifest = ToolManifest(
                "bench", tool, "1", f"{self.prefix}tool-requests.bench", "Works.", '{"type":"object"}', False, False, True, 300_000, 3, 200
            )  # fmt: skip
            self.put("tool-manifests", f"bench/{tool}".encode(), CODEC.encode(manifest))
        self.hands = Hands(self.cluster, f"{self.prefix}tool-requests.bench")
        self.client = Client(self.cluster, CODEC, self.prefix)
        self.processes: list[Child] = []
        self._names: dict[int, int] = defaultdict(int)

    def _make_topics(self, command_bytes: int) -> None:
        if command_bytes:
            for _, topic in self.layout.planned(["commands"]):
                config = {**topic.config, "max.message.bytes": str(command_bytes)}
                self.admin.create_topics([NewTopic(topic.name, topic.partitions, topic.replication, config)])
        create_topics(self.admin, self.layout)

    def close(self) -> None:
        for child in self.processes:
            if child.alive:
                child.resume()
                child.kill()
        self.hands.close()
        self.client.close()
        self._reader.close()
        self.producer.close()
        self.admin.close()

    # ------------------------------------------------------------ processes

    def loop(
        self, instance: str = "a", *arguments: str, env: Mapping[str, str] | None = None, port: int = 0
    ) -> LoopProcess:
        """Start a loop process; it is not waited for."""
        environment = {**self.environment, "TURNLOG_INSTANCE": instance, **(env or {})}
        process = LoopProcess(f"loop-{instance}-{len(self.processes)}", self.folder, environment, arguments, port)
        self.processes.append(process.child)
        return process

    def command(self, *arguments: str) -> str:
        """A `turnlog` command, which must succeed; its standard output."""
        command = [sys.executable, "-m", "turnlog.cli.main", *arguments]
        env = {**os.environ, **self.environment}
        done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
        return done.stdout

    # ------------------------------------------------------------ saying something

    def put(
        self, topic: str, key: bytes | None, value: bytes | None, *, partition: int | None = None, headers: Headers = ()
    ) -> InputRef:
        """Append a raw record; where it stands."""
        reports: list[Delivered] = []
        name = self.prefix + topic
        self.producer.produce(name, value, key=key, partition=partition, headers=headers, on_delivery=reports.append)
        assert self.producer.flush(PATIENCE_S) == 0
        (report,) = reports
        assert report.error is None, report.error
        assert report.offset is not None
        return InputRef(name, report.partition, report.offset)

    def run_id(self, partition: int, word: str = "run") -> str:
        """A new run id that belongs to this partition."""
        while True:
            self._names[partition] += 1
            run_id = f"{word}-{self._names[partition]}"
            if self.home(run_id) == partition:
                return run_id

    def home(self, run_id: str) -> int:
        return partition_of(run_id.encode(), self.partitions)

    def submit_work(self, count: int, word: str) -> list[str]:
        """Start so many runs of the standard work: 5 turns, 8 calls each."""
        requests = [StartRequest("work", "go", f"{word}-{n}") for n in range(count)]
        return [handle.run_id for handle in self.client.submit_many(requests)]

    def until_succeeded(self, run_ids: Iterable[str], patience_s: float = 2 * PATIENCE_S) -> None:
        """Every one of these runs ended well."""
        deadline = time.monotonic() + patience_s
        for run_id in run_ids:
            summary = self.client.wait(run_id, max(1.0, deadline - time.monotonic()))
            assert summary.status == "succeeded", summary

    def good_run(self, partition: int) -> None:
        """The partition works: a run on it finishes."""
        run_id = self.run_id(partition, "good")
        handle = self.client.submit("echo", "still here", run_id)
        assert handle.wait(PATIENCE_S).answer == "still here"

    # ------------------------------------------------------------ what stands in the topics

    def everything(self, topic: str) -> Iterator[Received]:
        name = self.prefix + topic
        count = self.admin.topics([name])[name].partitions
        for partition in (Partition(name, index) for index in range(count)):
            for batch in self._reader.read(partition, *self._reader.bounds(partition)):
                yield from batch

    def newest(self, topic: str, kind: type[T]) -> dict[str, T]:
        """Of a compacted topic the last value of each key."""
        found = {record.key or b"": record.value for record in self.everything(topic)}
        return {key.decode(): CODEC.decode(value, kind) for key, value in found.items() if value is not None}

    def all_letters(self) -> list[DeadLetter]:
        return [CODEC.decode(record.value, DeadLetter) for record in self.everything("dead-letters")]

    def letters(self, source: InputRef) -> list[DeadLetter]:
        """The dead letters of one record."""
        return [letter for letter in self.all_letters() if letter.source == source]

    def letter(self, source: InputRef) -> DeadLetter:
        """The one dead letter of a record, waited for."""
        (letter,) = until(lambda: self.letters(source), f"a dead letter for {source}")
        return letter

    def outcomes(self, command_id: str) -> list[CommandOutcome]:
        found = (CODEC.decode(record.value, CommandOutcome) for record in self.everything("command-outcomes"))
        return [outcome for outcome in found if outcome.command_id == command_id]

    def outcome(self, command_id: str) -> CommandOutcome:
        """The last outcome of a command, waited for."""
        return until(lambda: self.outcomes(command_id), f"an outcome of {command_id}")[-1]

    def pointers(self) -> dict[int, Pointer]:
        """What the last commit of each partition says of the journal."""
        partitions = [Partition(f"{self.prefix}commands", index) for index in range(self.partitions)]
        found = self.admin.group_positions(f"{self.prefix}loop", partitions)
        pointers = {p.index: Pointer.decode(at.metadata) for p, at in found.items() if at is not None}
        return {index: pointer for index, pointer in pointers.items() if pointer is not None}

    def journal_ends(self) -> list[int]:
        partitions = [Partition(f"{self.prefix}journal", index) for index in range(self.partitions)]
        ends = self.admin.ends(partitions)
        return [ends[partition][1] for partition in partitions]

    # ------------------------------------------------------------ the journal afterwards

    def audit(self) -> Audit:
        """Every record of the journal judged, every run folded and its events held against the invariants."""
        journal = self.client.journal()
        blobs = DirectoryBlobs(self.folder / "blobs")
        runs: dict[str, RunRecord] = {}
        findings: list[Finding] = []
        counts = Counts()
        owners: dict[int, list[str]] = defaultdict(list)
        for partition in journal.all_partitions():
            check = PartitionCheck(journal, partition, check_arguments, lambda digest: blobs.get(digest).decode())
            for entry in journal.entries(partition):
                check.take(entry)
                record = entry.record
                if entry.verdict is Verdict.FENCE:
                    owners[partition.index].append(record.opening.owner if record and record.opening else "")
                elif entry.verdict is Verdict.STEP and record is not None:
                    run = runs.setdefault(entry.run_id, RunRecord(RunState(entry.run_id, record.rules)))
                    run.take(entry.step, entry.digest, record.events)
            findings += check.findings
            counts = counts.plus(check.counts)
        return Audit(runs, findings, counts, owners)

    def check(self, run_ids: Iterable[str]) -> Audit:
        """Nothing is broken, doubled or lost: chains, events, projections and ledger of these runs, which must have ended well."""
        audit = self.audit()
        assert audit.findings == []
        wanted = list(run_ids)
        for run_id in wanted:
            assert audit.runs[run_id].state.status == "succeeded", run_id
        until(lambda: not self._stale(audit, wanted), lambda: f"projections follow: {self._stale(audit, wanted)}")
        self._check_ledger(audit, wanted)
        self.audit_with_strangers_code()
        return audit

    def _stale(self, audit: Audit, run_ids: Sequence[str]) -> list[str]:
        """Runs whose newest summary is not that of the fold of their steps."""
        found = self.newest("run-state", RunSummary)
        records = ((run_id, audit.runs[run_id]) for run_id in run_ids)
        return [i for i, run in records if found.get(i) != projections.summary(run.state, run.step, run.head)]

    def _check_ledger(self, audit: Audit, run_ids: Sequence[str]) -> None:
        """One entry a call. It may stand there several times (effects are sent again), but always says the same."""
        said: dict[str, set[LedgerEntry]] = defaultdict(set)
        for record in self.everything("tool-ledger"):
            entry = CODEC.decode(record.value, LedgerEntry)
            said[entry.call_key].add(entry)
        for run_id in run_ids:
            for key, entry in audit.runs[run_id].ledger.items():
                assert said[key] == {entry}, f"the ledger says of {key}: {said[key]}"

    def audit_with_strangers_code(self) -> None:
        """The example that imports nothing of Turnlog finds no broken chain either."""
        bootstrap = self.environment["TURNLOG_KAFKA__BOOTSTRAP_SERVERS"]
        command = [sys.executable, "examples/audit_journal.py", bootstrap, f"{self.prefix}journal"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
