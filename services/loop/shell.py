"""What the parts of a loop process share: clients, codecs, tables, clocks and bounds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Literal

from services.loop.arrivals import Reception
from services.loop.outbox import Outbox
from services.loop.runs import Blobs
from services.loop.tables import Tables
from services.loop.tokens import ReplyTokens
from turnlog.codec import Codec
from turnlog.core.decide import Validate
from turnlog.core.events import ModelAnswer, ModelFailure
from turnlog.kafka.jobs import Runner
from turnlog.kafka.opening import Clients, Places
from turnlog.kafka.ownership import FencedWriter
from turnlog.models.provider import Provider

if TYPE_CHECKING:
    from services.loop.table import RunTable


@dataclass(frozen=True)
class Topics:
    """Full names of the topics the loop touches."""

    commands: str
    results: str
    journal: str
    run_state: str
    ledger: str
    outcomes: str
    dead_letters: str
    agents: str
    manifests: str

    @property
    def places(self) -> Places:
        return Places(self.journal, self.commands, (self.commands, self.results))


@dataclass(frozen=True)
class Bounds:
    """Policy of the loop's memory, snapshots and times. Bytes and milliseconds."""

    snapshot_bytes: int = 64 * 1024
    """A run is snapshotted when its steps since the base exceed 4 x the base, but not before they have this many bytes: a snapshot of
    a short run costs more than it saves."""
    floor_bytes: int = 256 * 1024 * 1024
    """Distance of the journal's end from the floor at which the oldest run is snapshotted anew."""
    park_after_ms: int = 60_000
    commit_every_ms: int = 1_000
    publish_every_ms: int = 1_000
    """How often the summary of a run that is working is published at most."""
    resolve_wait_ms: int = 3_000
    """How long a start waits for an agent or tool that is not known (yet)."""
    reopen_every_ms: int = 24 * 3_600_000
    journal_keep_ms: int = 90 * 24 * 3_600_000
    trim_every_ms: int = 3_600_000
    step_bytes: int = 900 * 1024
    blob_bytes: int = 256 * 1024

    @property
    def run_id_keep_ms(self) -> int:
        return self.journal_keep_ms + 7 * 24 * 3_600_000


Mail = tuple["RunTable", str, int, int, ModelAnswer | ModelFailure]
"""A model's reply on its way to the poll thread: owner, run, turn, attempt, what came."""

VerifyMode = Literal["fail", "park", "warn"]


@dataclass
class Counters:
    """What happened, for metrics; plain numbers, because the hot path counts."""

    steps: int = 0
    events: int = 0
    runs_started: int = 0
    runs_ended: dict[str, int] = field(default_factory=dict)
    requests: int = 0
    model_calls: int = 0
    snapshots: int = 0
    dead_letters: dict[str, int] = field(default_factory=dict)
    rerouted: int = 0
    repeats: int = 0
    divergences: int = 0
    repairs: int = 0
    loads: int = 0
    ownership_ends: dict[str, int] = field(default_factory=dict)

    @staticmethod
    def count(table: dict[str, int], word: str) -> None:
        table[word] = table.get(word, 0) + 1


@dataclass
class Shell:
    """See the module. One per process; everything in it belongs to the poll thread but the mailbox (append only, by anyone)."""

    topics: Topics
    partitions: int
    owner_name: str
    build: str
    codec: Codec
    reception: Reception
    tokens: ReplyTokens
    tables: Tables
    outbox: Outbox
    writer: FencedWriter
    clients: Clients
    runner: Runner
    providers: Provider
    blobs: Blobs
    validate: Validate
    now: Callable[[], int]
    """Wall clock, ms since the epoch."""
    clock: Callable[[], float]
    """Monotonic clock, seconds."""
    blobs_shared: bool = True
    """Every host of the group reaches the same blobs."""
    verify: VerifyMode = "park"
    random: Random = field(default_factory=Random)
    """For pauses that keep two owners from meeting again."""
    bounds: Bounds = field(default_factory=Bounds)
    counters: Counters = field(default_factory=Counters)
    mailbox: deque[Mail] = field(default_factory=deque)
    asks: int = 0
    """Model calls under way."""
    wakes: list[tuple[int, int, str]] = field(default_factory=list)
    """Heap of (due ms, partition, run id); entries may be stale."""
