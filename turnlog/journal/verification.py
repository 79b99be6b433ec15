"""Verifying journal partitions: chain, fences, headers and, above all, every recorded arrival decided again.

What is found is a `Finding`; a run's check ends at its first one, the partition goes on. Memory: one folded state per run
(a run that ended keeps only what its late outcomes need).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from turnlog.core.decide import Validate
from turnlog.core.errors import BadHistory
from turnlog.core.records import JournalRecord
from turnlog.core.replay import verify_step
from turnlog.core.state import RunState
from turnlog.journal.entries import Entry
from turnlog.journal.history import LoadBlob, base_state, no_blobs
from turnlog.journal.reading import JournalReader
from turnlog.kafka.fenced import SNAPSHOT, Verdict
from turnlog.kafka.port import Partition


class Finding(NamedTuple):
    """Something that must not be. `kind`: divergence, broken_chain, unreadable, unfoldable, headers, snapshot, wrong_partition or log_start.

    `event` is the place of the arrival within its step, -1 where it is about the record as a whole. `differences` name path,
    recorded, decided; only what differs.
    """

    kind: str
    run_id: str
    partition: int
    offset: int
    step: int
    message: str
    event: int = -1
    turn: int | None = None
    arrival: str = ""
    differences: tuple[tuple[str, Any, Any], ...] = ()


class Counts(NamedTuple):
    """What was looked at."""

    records: int = 0
    fences: int = 0
    runs: int = 0
    steps: int = 0
    events: int = 0
    snapshots: int = 0
    repeats: int = 0
    void: int = 0
    earlier: int = 0

    def plus(self, other: Counts) -> Counts:
        return Counts(*(a + b for a, b in zip(self, other, strict=True)))


class PartitionCheck:
    """The check of one partition, fed with its entries in order; `findings` and `counts` grow."""

    def __init__(
        self, journal: JournalReader, partition: Partition, validate: Validate, load_blob: LoadBlob = no_blobs
    ) -> None:
        self._journal = journal
        self._partition = partition
        self._validate = validate
        self._load_blob = load_blob
        self._states: dict[str, RunState] = {}
        self._done: set[str] = set()
        self._seen: Counter[Verdict] = Counter()
        self._events = 0
        self.findings: list[Finding] = []

    @property
    def counts(self) -> Counts:
        seen = self._seen
        return Counts(
            seen.total(), seen[Verdict.FENCE], len(self._states.keys() | self._done), seen[Verdict.STEP], self._events,
            seen[Verdict.SNAPSHOT], seen[Verdict.REPEAT], seen[Verdict.VOID], seen[Verdict.EARLIER],
        )  # fmt: skip

    def take(self, entry: Entry) -> None:
        """Check the partition's next entry."""
        if not self._seen and entry.verdict is not Verdict.FENCE:
            self.findings.append(
                self._finding("log_start", entry, "the log does not begin with a fence (docs/journal.md, J14)")
            )
        self._seen[entry.verdict] += 1
        if entry.run_id in self._done:
            return
        found = self._check(entry)
        if found is not None:
            self.findings.append(found)
            if entry.verdict is not Verdict.FENCE:
                self._done.add(entry.run_id)
                self._states.pop(entry.run_id, None)

    def _check(self, entry: Entry) -> Finding | None:
        match entry.verdict:
            case Verdict.BROKEN:
                return self._finding("broken_chain", entry, entry.why)
            case Verdict.UNREADABLE:
                return self._finding("unreadable", entry, entry.why)
            case Verdict.FENCE | Verdict.STEP | Verdict.SNAPSHOT:
                return self._check_record(entry)
        return None

    def _check_record(self, entry: Entry) -> Finding | None:
        if entry.record is None:
            return self._finding("unreadable", entry, entry.why)
        if entry.differs:
            return self._finding("headers", entry, entry.differs)
        if entry.verdict is Verdict.FENCE:
            return None
        home = self._journal.partition_of(entry.run_id).index
        if entry.run_id not in self._states and home != self._partition.index:
            return self._finding("wrong_partition", entry, f"the run belongs in partition {home}")
        try:
            return self._fold(entry, entry.record)
        except BadHistory as problem:
            return self._finding("unfoldable", entry, str(problem))

    def _fold(self, entry: Entry, record: JournalRecord) -> Finding | None:
        state = self._states.get(entry.run_id)
        if record.kind == SNAPSHOT:
            return self._snapshot(entry, record, state)
        if state is None:
            state = self._states[entry.run_id] = RunState(entry.run_id, record.rules)
        self._events += len(record.events)
        divergence = verify_step(state, record.step, record.events, self._validate)
        if divergence is not None:
            message = f"at event {divergence.event} ({divergence.arrival}) this build decides otherwise"
            return self._finding("divergence", entry, message)._replace(
                event=divergence.event,
                turn=divergence.turn,
                arrival=divergence.arrival,
                differences=divergence.differences,
            )
        if state.ended:
            _slim(state)
        return None

    def _snapshot(self, entry: Entry, record: JournalRecord, folded: RunState | None) -> Finding | None:
        held = base_state(record, self._load_blob)
        if folded is None:
            self._states[entry.run_id] = held
            return None
        if folded.ended or held == folded:
            return None
        names = [
            name for name in RunState.__slots__ if name != "arrived" and getattr(held, name) != getattr(folded, name)
        ]
        differences = tuple((name, getattr(held, name), getattr(folded, name)) for name in names)
        return self._finding("snapshot", entry, "the snapshot is not the fold of the steps before it")._replace(
            differences=differences
        )

    def _finding(self, kind: str, entry: Entry, message: str) -> Finding:
        return Finding(kind, entry.run_id, self._partition.index, entry.offset, entry.step, message)


def _slim(state: RunState) -> None:
    """Drop what no rule reads after the end, so that a partition of finished runs fits in memory."""
    state.transcript.clear()
    state.menu = {}
    state.calls = []


def verify_entries(
    journal: JournalReader,
    partition: Partition,
    entries: Iterable[Entry],
    validate: Validate,
    load_blob: LoadBlob = no_blobs,
) -> tuple[list[Finding], Counts]:
    """Check these entries of one partition."""
    check = PartitionCheck(journal, partition, validate, load_blob)
    for entry in entries:
        check.take(entry)
    return check.findings, check.counts


def short(value: Any, most: int = 200) -> str:
    """A value of a difference as one bounded line."""
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def describe(finding: Finding) -> Iterator[str]:
    """The finding as lines for people."""
    who = f"run {finding.run_id}" if finding.run_id else "fence"
    place = f"{who}, step {finding.step}" if finding.step >= 0 else who
    turn = "" if finding.turn is None else f", turn {finding.turn}"
    yield f"{finding.kind}: {place}{turn} (partition {finding.partition}, offset {finding.offset}): {finding.message}"
    for path, recorded, decided in finding.differences:
        yield f"    {path}"
        yield f"      recorded: {short(recorded)}"
        yield f"      decided:  {short(decided)}"
