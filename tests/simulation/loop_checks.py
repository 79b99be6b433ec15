"""What must hold of the loop's logs, by a reader of its own: J1 spelt out once more, the core's fold, and the effects against it.

`Reference.follow` takes in what is new in every partition and raises Broken at once for what must never happen; `Reference.settled`
checks what must hold once everything has come to rest.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from hashlib import sha256

from services.loop import projections
from tests.simulation.loop_process import CODEC, REQUESTS, TOPICS
from turnlog.core.events import Event, Outcome
from turnlog.core.evolve import evolve
from turnlog.core.records import CommandOutcome, DeadLetter, JournalRecord, LedgerEntry, RunSummary, ToolRequest
from turnlog.core.state import RunState
from turnlog.kafka.port import Received
from turnlog.testing import MemoryCluster
from turnlog.testing.invariants import Broken, History, hold


@dataclass
class RefRun:
    """A run as its valid steps say."""

    state: RunState
    partition: int
    step: int = -1
    digest: bytes = b""
    history: History = field(default_factory=History)
    heads: dict[int, bytes] = field(default_factory=dict)
    requested: set[tuple[str, int]] = field(default_factory=set)
    settled: dict[str, tuple[str, str]] = field(default_factory=dict)
    answered: set[int] = field(default_factory=set)
    steps: list[tuple[Event, ...]] = field(default_factory=list)

    def take(self, entry: JournalRecord, value: bytes) -> None:
        """The next step."""
        self.history.take(entry.events)
        content = ""
        for event in entry.events:
            evolve(self.state, event)
            if isinstance(event.payload, Outcome):
                content = event.payload.content
            if event.kind == "call_requested":
                self.requested.add((event.call_key or "", event.attempt or 0))
            elif event.kind == "call_settled":
                given = event.payload.content  # type: ignore[union-attr]
                self.settled[event.call_key or ""] = (event.payload.status, content if given is None else given)  # type: ignore[union-attr]
            elif event.kind == "model_answered":
                self.answered.add(event.turn or 0)
        self.steps.append(entry.events)
        self.step, self.digest = entry.step, sha256(value).digest()
        self.heads[self.step] = self.digest


class Reference:
    """See the module. Never looks at what the loop believes."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        takes = (
            (TOPICS.journal, self._journal), (REQUESTS, self._request), (TOPICS.ledger, self._ledger), (TOPICS.run_state, self._state),
            (TOPICS.outcomes, self._outcome), (TOPICS.dead_letters, self._letter),
        )  # fmt: skip
        self._sources = [(log, take) for topic, take in takes for log in cluster.topic(topic).logs]
        self._next = [0] * len(self._sources)
        self.tokens: dict[int, bytes] = {}
        self.token_seen: dict[int, set[bytes]] = defaultdict(set)
        self.runs: dict[str, RefRun] = {}
        self.journaled: set[tuple[str, int, int]] = set()
        """Inbound records that stand in a valid step."""
        self.outcomes: dict[str, list[CommandOutcome]] = defaultdict(list)
        self.letters: set[tuple[str, int, int]] = set()
        self.ledger: dict[str, LedgerEntry] = {}
        self.counts: dict[str, int] = defaultdict(int)

    def follow(self) -> None:
        """Take in everything new, the journal first."""
        for place, (log, take) in enumerate(self._sources):
            start = self._next[place]
            if log.end != start:
                self._next[place] = log.end
                for record in log.read(start, 1_000_000):
                    take(record)

    # ------------------------------------------------------------ the journal

    def _journal(self, record: Received) -> None:
        index = record.partition
        headers = dict(record.headers)
        kind, token = headers["kind"], headers["fence"] or b""
        if kind == b"fence":
            hold(
                self.tokens.get(index) is not None or record.offset == 0,
                "J14",
                "a journal that does not begin with a fence",
            )
            self.tokens[index] = token
            self.counts["fences"] += 1
            return
        hold(bool(self.tokens.get(index)), "J14", "a record before any fence")
        if token != self.tokens[index]:
            self.counts["void"] += 1
            return
        entry = CODEC.decode(record.value, JournalRecord)
        hold((record.key or b"").decode() == entry.run_id, "J1", "key and run differ")
        if kind == b"snapshot":
            run = self.runs[entry.run_id]
            hold(
                (run.step, run.digest) == (entry.step, entry.prev),
                "J1",
                f"a snapshot of {entry.run_id} that does not fit",
            )
            self.counts["snapshots"] += 1
            self.counts["blobs"] += entry.snapshot is not None and entry.snapshot.blob is not None
            return
        self._step(index, record, entry)

    def _step(self, index: int, record: Received, entry: JournalRecord) -> None:
        value = record.value or b""
        run = self.runs.get(entry.run_id)
        if run is not None and entry.step == run.step and sha256(value).digest() == run.digest:
            self.counts["repeats"] += 1
            return
        if run is None:
            hold(entry.step == 0 and entry.prev is None, "I1", f"{entry.run_id} begins at step {entry.step}")
            run = self.runs[entry.run_id] = RefRun(RunState(entry.run_id, entry.rules), index)
        else:
            hold(
                (entry.step, entry.prev) == (run.step + 1, run.digest), "I1",
                f"step {entry.step} of {entry.run_id} at offset {record.offset} neither follows nor repeats step {run.step}",
            )  # fmt: skip
        for ref in entry.inputs:
            place = (ref.topic, ref.partition, ref.offset)
            hold(
                place not in self.journaled,
                "J11",
                f"{place} was journaled twice, now in step {entry.step} of {entry.run_id}",
            )
            self.journaled.add(place)
        run.take(entry, value)
        self.counts["steps"] += 1

    # ------------------------------------------------------------ what left

    def _request(self, record: Received) -> None:
        request = CODEC.decode(record.value, ToolRequest)
        run = self.runs.get(request.run_id)
        hold(
            run is not None and (request.call_key, request.attempt) in run.requested,
            "J6",
            f"a request of {request.call_key} that no valid step decided",
        )
        self.counts["requests"] += 1

    def _ledger(self, record: Received) -> None:
        entry = CODEC.decode(record.value, LedgerEntry)
        run = self.runs.get(entry.run_id)
        hold(
            run is not None and run.settled.get(entry.call_key) == (entry.status, entry.content),
            "J6",
            f"a ledger entry of {entry.call_key} that no valid step settled so",
        )
        before = self.ledger.setdefault(entry.call_key, entry)
        hold(before == entry, "I3", f"two accepted outcomes of {entry.call_key}")

    def _state(self, record: Received) -> None:
        if record.value is None:
            return
        summary = CODEC.decode(record.value, RunSummary)
        run = self.runs.get(summary.run_id)
        hold(
            run is not None and run.heads.get(summary.step) == summary.head,
            "J6",
            f"a summary of {summary.run_id} at step {summary.step}, which is not valid",
        )

    def _outcome(self, record: Received) -> None:
        outcome = CODEC.decode(record.value, CommandOutcome)
        self.outcomes[outcome.command_id].append(outcome)
        if outcome.step is not None:
            run = self.runs.get(outcome.run_id)
            hold(
                run is not None and outcome.step in run.heads,
                "J6",
                f"an outcome of {outcome.command_id} at a step that is not valid",
            )

    def _letter(self, record: Received) -> None:
        letter = CODEC.decode(record.value, DeadLetter)
        self.letters.add((letter.source.topic, letter.source.partition, letter.source.offset))
        self.counts[f"letter {letter.reason}"] += 1

    # ------------------------------------------------------------ at rest

    def settled(self) -> None:
        """Everything has come to rest: projections say what the journal says."""
        newest: dict[bytes, Received] = {}
        for log in self._cluster.topic(TOPICS.run_state).logs:
            newest.update({record.key or b"": record for record in log})
        for run_id, run in self.runs.items():
            self._check_summary(run_id, run, newest.get(run_id.encode()))
            for key, found in run.settled.items():
                entry = self.ledger.get(key)
                if entry is None or (entry.status, entry.content) != found:
                    raise Broken(f"(I3) tool-ledger lacks {key}, settled as {found[0]}")
        extra = set(self.ledger) - {key for run in self.runs.values() for key in run.settled}
        hold(not extra, "I3", f"tool-ledger has what was never settled: {extra}")

    @staticmethod
    def _check_summary(run_id: str, run: RefRun, record: Received | None) -> None:
        if record is None or record.value is None:
            raise Broken(f"(J9) run-state has nothing of {run_id}, at step {run.step}")
        wanted = projections.summary(run.state, run.step, run.digest)
        found = CODEC.decode(record.value, RunSummary)
        hold(
            found == wanted,
            "J9",
            f"run-state of {run_id} says step {found.step} ({found.status}), the journal step {run.step} ({run.state.status})",
        )
