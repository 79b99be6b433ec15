"""One run, folded from its journal entries: its state after any step."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from turnlog.core import snapshot
from turnlog.core.errors import BadHistory
from turnlog.core.evolve import evolve
from turnlog.core.records import JournalRecord
from turnlog.core.state import RunState
from turnlog.journal.entries import Entry
from turnlog.kafka.fenced import SNAPSHOT

LoadBlob = Callable[[str], str]
"""The text of a blob by its sha256 (hex). Raises BadHistory for one that is not there."""


class NotInJournal(Exception):
    """The step asked for is not in the journal; the message says what is."""


def no_blobs(digest: str) -> str:
    """For installations without a blob store."""
    raise BadHistory(f"the state lies in a blob store as {digest}, and none is at hand")


def base_state(record: JournalRecord, load_blob: LoadBlob = no_blobs) -> RunState:
    """The state that a snapshot record holds. Raises BadHistory if it cannot be had."""
    held = record.snapshot
    if held is None:
        raise BadHistory(f"run {record.run_id}: a snapshot record without a snapshot")
    if held.state is not None:
        return snapshot.from_json(held.state)
    return snapshot.from_json(load_blob(held.blob or ""))


def records_of(entries: Iterable[Entry]) -> list[JournalRecord]:
    """The records that count, in order. Raises BadHistory for one that counts and cannot be read."""
    found = []
    for entry in entries:
        if not entry.counts:
            continue
        if entry.record is None:
            raise BadHistory(f"run {entry.run_id}: step {entry.step} at offset {entry.offset}: {entry.why}")
        found.append(entry.record)
    return found


def state_at(
    run_id: str, records: Iterable[JournalRecord], step: int | None = None, load_blob: LoadBlob = no_blobs
) -> tuple[RunState, int]:
    """The run's state after `step` (None: after its last), and that step. `records` are those that count, in order.

    Raises NotInJournal, or BadHistory for events that this build cannot fold.
    """
    state, first, last = RunState(run_id), -1, -1
    for record in records:
        if step is not None and record.step > step:
            break
        if record.kind == SNAPSHOT:
            if first < 0:
                state, first = base_state(record, load_blob), record.step
        else:
            if first < 0:
                state, first = RunState(run_id, record.rules), record.step
            for event in record.events:
                evolve(state, event)
        last = record.step
    if first < 0:
        raise NotInJournal(f"the journal has no step of run {run_id}" + ("" if step is None else f" up to step {step}"))
    if step is not None and last != step:
        raise NotInJournal(f"run {run_id} has steps {first} to {last} in the journal, but no step {step}")
    return state, last
