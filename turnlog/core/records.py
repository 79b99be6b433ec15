"""Records of the topics beside the journal's events: one NamedTuple per Avro record of `schemas/records` (a test holds it)."""

from __future__ import annotations

from typing import NamedTuple

from turnlog.core.agents import Usage
from turnlog.core.events import Event


class InputRef(NamedTuple):
    """Where a message that went into a step stands in the log."""

    topic: str
    partition: int
    offset: int


class FencePlace(NamedTuple):
    """Where (offset) and when (ms) an earlier fence of the partition was written."""

    offset: int
    at: int


class Fence(NamedTuple):
    """What an ownership says of itself when it opens. `topic_ids` by topic name; `positions` are the committed inbound
    offsets of its moment, one InputRef per inbound topic; `earlier` fences are where the log may be cut (J14), oldest first."""

    owner: str
    topic_ids: tuple[tuple[str, str], ...]
    input_epoch: int
    positions: tuple[InputRef, ...]
    earlier: tuple[FencePlace, ...] = ()


class Snapshot(NamedTuple):
    """A run's state at a step: `state` as JSON text, or in the blob store under `blob` (sha256 hex) when over 256 KiB."""

    state: str | None
    blob: str | None
    size: int


class JournalRecord(NamedTuple):
    """One record of the journal (docs/journal.md). `kind` is fence, step or snapshot; `fence` 16 bytes; `prev` 32 bytes.

    `run_id` is empty and `step` is -1 on a fence. `input_epoch` numbers the inbound topics' lives (J15)."""

    kind: str
    fence: bytes
    run_id: str
    step: int
    prev: bytes | None
    at: int
    build: str
    rules: int
    input_epoch: int
    inputs: tuple[InputRef, ...]
    events: tuple[Event, ...]
    opening: Fence | None = None
    snapshot: Snapshot | None = None


class StartRun(NamedTuple):
    """Body of a start command as upstream sends it."""

    agent: str
    agent_version: str | None = None
    input: str | None = None
    labels: tuple[tuple[str, str], ...] = ()
    turn_limit: int | None = None
    tool_call_budget: int | None = None
    deadline_ms: int | None = None


class SendInput(NamedTuple):
    text: str
    final: bool = False


class CancelRun(NamedTuple):
    reason: str = ""


class ResumeRun(NamedTuple):
    turns: int = 0


class Command(NamedTuple):
    """A wish of an upstream system; exactly one body is set, the one that `kind` (start, input, cancel, resume) names."""

    command_id: str
    run_id: str
    kind: str
    start: StartRun | None = None
    input: SendInput | None = None
    cancel: CancelRun | None = None
    resume: ResumeRun | None = None


class CommandOutcome(NamedTuple):
    """What became of a command: `outcome` is accepted, duplicate or refused; `step` where it was recorded, if it was."""

    command_id: str
    run_id: str
    kind: str
    outcome: str
    reason: str
    step: int | None
    at: int


class ToolRequest(NamedTuple):
    """Work for one toolset. The answer goes to `reply_partition` of `reply_topic` with `reply_token`; not after `not_after` (ms)."""

    run_id: str
    call_key: str
    turn: int
    position: int
    attempt: int
    tool: str
    arguments: str
    takes_text: bool
    not_after: int
    reply_topic: str
    reply_partition: int
    reply_token: bytes
    agent: str
    labels: tuple[tuple[str, str], ...] = ()


class ToolResult(NamedTuple):
    """What a worker reports of one attempt (the fields of `events.Outcome`, addressed)."""

    run_id: str
    call_key: str
    attempt: int
    reply_token: bytes
    status: str
    content: str
    error: str = ""
    retryable: bool = False
    fatal: bool = False
    worker: str = ""


class RunSummary(NamedTuple):
    """The public summary of a run, topic `run-state`. `status`: running, waiting, stopped, succeeded, failed or cancelled;
    `waits_for` says why it is not working (model, tools, input, retry), `head` is the SHA-256 of its last step's value."""

    run_id: str
    agent: str
    agent_version: str
    labels: tuple[tuple[str, str], ...]
    status: str
    reason: str
    waits_for: str
    turn: int
    tool_calls: int
    usage: Usage
    answer: str | None
    error: str | None
    step: int
    head: bytes
    started_at: int
    updated_at: int
    ended_at: int | None


class LedgerEntry(NamedTuple):
    """The one accepted outcome of a call, topic `tool-ledger`."""

    call_key: str
    run_id: str
    turn: int
    position: int
    tool: str
    status: str
    content: str
    attempt: int | None
    step: int
    at: int


class ToolManifest(NamedTuple):
    """What one tool is, topic `tool-manifests`, key `<toolset>/<tool>`. A null value withdraws it."""

    toolset: str
    tool: str
    version: str
    topic: str
    description: str
    parameters: str
    takes_text: bool
    ends_run: bool
    idempotent: bool
    timeout_ms: int
    attempts: int
    backoff_ms: int


class Header(NamedTuple):
    """One Kafka header. Names may repeat, so headers are a list and no map."""

    name: str
    value: bytes | None


class DeadLetter(NamedTuple):
    """What could not be read or taken: the bytes (cut at 512 KiB; `size` and `sha256` of the whole), where from and why.
    `reason` is a stable word, `detail` a sentence that says what to do."""

    source: InputRef
    reason: str
    detail: str
    key: bytes | None
    value: bytes | None
    size: int
    sha256: bytes
    headers: tuple[Header, ...]
    service: str
    at: int
