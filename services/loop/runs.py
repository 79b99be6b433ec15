"""One run as its owner holds it, and how it is loaded from the journal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import NamedTuple, Protocol

from turnlog.codec import Codec
from turnlog.core.decide import Validate
from turnlog.core.errors import BadHistory
from turnlog.core.events import Event, Message
from turnlog.core.evolve import evolve
from turnlog.core.records import JournalRecord
from turnlog.core.replay import Divergence, verify_step
from turnlog.core.snapshot import from_json
from turnlog.core.state import RunState
from turnlog.kafka.fenced import SNAPSHOT, Trail
from turnlog.kafka.port import Received
from turnlog.models.provider import Ask


class Queued(NamedTuple):
    """A message that waits for its run. `record` is None for replies and timers; else the inbound record it came in."""

    message: Message
    record: Received | None = None
    command_id: str = ""
    kind: str = ""
    done: Callable[[], None] | None = None
    """Called once the message is journaled, or came to nothing."""


class Unsent(NamedTuple):
    """A valid step whose effects may not have left."""

    offset: int
    step: int
    events: tuple[Event, ...]


class RunSlot:
    """A run of a partition: parked (a trail only), loading, or in memory.

    `in_flight`: a record of the run is not acknowledged (J5). `asked`: turn and attempt the model was last asked for.
    `seen`: per inbound topic the last offset in the run's own inputs (J11). `problem`: why the run is stopped for good here.
    """

    __slots__ = (
        "run_id", "key", "trail", "state", "inbox", "in_flight", "loading", "asked", "ask", "seen", "unsent", "touched", "wake",
        "dirty", "sent_at", "effects", "problem", "queued", "after", "inputs",
    )  # fmt: skip

    def __init__(self, run_id: str, trail: Trail | None, state: RunState | None, now: int) -> None:
        self.run_id = run_id
        self.key = run_id.encode()
        self.trail = trail
        self.state = state
        self.inbox: list[Queued] = []
        self.in_flight = False
        self.loading = False
        self.asked: tuple[int, int] | None = None
        self.ask: Ask | None = None
        self.seen: dict[str, int] = {}
        self.unsent: list[Unsent] = []
        self.touched = now
        self.wake = trail.wake if trail is not None else 0
        self.dirty: int | None = None
        """Offset of the first step that the run's published summary lacks."""
        self.sent_at = 0
        self.effects = 0
        """Effects of this run that are not acknowledged."""
        self.problem = trail.broken if trail is not None else ""
        self.queued = False
        self.inputs: frozenset[tuple[str, int]] = frozenset()
        """Topic and offset of what stands in the steps that the run was loaded from, in this input epoch."""
        self.after: list[Callable[[], None]] = []
        """To be called when the step in flight is valid."""


class Blobs(Protocol):
    """Where states over 256 KiB lie."""

    def get(self, digest: str) -> bytes: ...
    def put(self, data: bytes) -> str: ...


class Loaded(NamedTuple):
    """A run folded from its records. `unsent`: its steps from the effects mark on; `divergence`: what this build decides otherwise."""

    state: RunState
    seen: dict[str, int]
    unsent: list[Unsent]
    divergence: Divergence | None
    inputs: frozenset[tuple[str, int]]
    """What stands in the steps since the base; `seen` has what came before it too."""


def load(
    run_id: str,
    trail: Trail,
    records: Sequence[Received],
    codec: Codec,
    validate: Validate,
    blobs: Blobs,
    epoch: int,
    effects: int,
) -> Loaded:
    """Fold a run from its base and the steps since, checking every hash of the chain, and decide it again on the way. Records before
    the base are steps that a snapshot has overtaken: of them only the effects count.

    Raises BadHistory for a chain that does not hold or events this build cannot fold, Unreadable for bytes it cannot read.
    """
    state: RunState | None = None
    digest: bytes | None = None
    seen: dict[str, int] = {}
    inputs: set[tuple[str, int]] = set()
    unsent: list[Unsent] = []
    divergence: Divergence | None = None
    for record in records:
        value = record.value or b""
        entry = codec.decode(value, JournalRecord)
        if entry.run_id != run_id:
            raise BadHistory(f"offset {record.offset} holds a record of run {entry.run_id!r}")
        if record.offset < trail.base:
            if entry.kind != SNAPSHOT and entry.step not in [each.step for each in unsent]:
                unsent.append(Unsent(record.offset, entry.step, entry.events))
        elif entry.kind == SNAPSHOT:
            state, digest = _from_snapshot(entry, blobs), entry.prev
        else:
            state = _begin(entry, state, digest)
            digest = sha256(value).digest()
            found = _take(state, entry, validate, divergence is None)
            divergence = divergence or found
            if record.offset >= effects:
                unsent.append(Unsent(record.offset, entry.step, entry.events))
        if entry.input_epoch == epoch:
            for ref in entry.inputs:
                inputs.add((ref.topic, ref.offset))
                seen[ref.topic] = max(ref.offset, seen.get(ref.topic, -1))
    if state is None or digest != trail.digest:
        raise BadHistory(f"run {run_id}: the records read do not end at its last step {trail.step}")
    return Loaded(state, seen, unsent, divergence, frozenset(inputs))


def _begin(entry: JournalRecord, state: RunState | None, digest: bytes | None) -> RunState:
    if state is None:
        if entry.step != 0:
            raise BadHistory(f"run {entry.run_id}: begins at step {entry.step}")
        return RunState(entry.run_id, entry.rules)
    if entry.prev != digest:
        raise BadHistory(f"run {entry.run_id}: step {entry.step} does not name the hash of the step before it")
    return state


def _take(state: RunState, entry: JournalRecord, validate: Validate, check: bool) -> Divergence | None:
    if check:
        return verify_step(state, entry.step, entry.events, validate)
    for event in entry.events:
        evolve(state, event)
    return None


def _from_snapshot(entry: JournalRecord, blobs: Blobs) -> RunState:
    snapshot = entry.snapshot
    if snapshot is None or (snapshot.state is None and snapshot.blob is None):
        raise BadHistory(f"run {entry.run_id}: a snapshot without state")
    text = snapshot.state if snapshot.state is not None else blobs.get(snapshot.blob or "").decode()
    return from_json(text)
