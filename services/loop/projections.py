"""What leaves the loop because of a step: pure functions from events and state to records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from turnlog.core.events import CallSettled, CommandNote, Event, Outcome
from turnlog.core.ids import canonical_arguments
from turnlog.core.records import CommandOutcome, LedgerEntry, RunSummary, ToolRequest
from turnlog.core.state import RETRYING, Call, RunState

COMMAND_KINDS = {
    "run_started": "start",
    "input_received": "input",
    "cancel_requested": "cancel",
    "resume_requested": "resume",
}

GRACE_MS = 60_000
"""How long after `not_after` a result may still come in: clocks and queues."""


def waits_for(state: RunState) -> str:
    """Why the run is not working, in a word: model, tools, input, retry; empty where nothing is awaited."""
    match state.phase:
        case "model":
            return "retry" if state.model_retry_at else "model"
        case "calls":
            return "retry" if all(call.stage == RETRYING or call.settlement for call in state.calls) else "tools"
        case "input" if state.status == "waiting":
            return "input"
    return ""


def summary(state: RunState, step: int, head: bytes) -> RunSummary:
    """The public summary of a run at a step."""
    return RunSummary(
        state.run_id, state.agent.name, state.agent.version, state.labels, state.status, state.reason, waits_for(state),
        state.turn, state.tool_calls, state.usage, state.answer if state.ended else _last_answer(state), state.error, step, head,
        state.started_at, state.at, state.ended_at or None,
    )  # fmt: skip


def _last_answer(state: RunState) -> str | None:
    """What a waiting run answered last: its user needs it to go on."""
    if state.status != "waiting" or not state.transcript:
        return None
    return getattr(state.transcript[-1], "text", None)


def ledger_entries(state_run: str, events: Sequence[Event], step: int) -> Iterator[LedgerEntry]:
    """The settled calls of a step."""
    content = ""
    for event in events:
        payload = event.payload
        if isinstance(payload, Outcome):
            content = payload.content
        elif isinstance(payload, CallSettled):
            yield LedgerEntry(
                event.call_key or "", state_run, event.turn or 0, event.position or 0, event.tool or "", payload.status,
                content if payload.content is None else payload.content, event.attempt, step, event.at,
            )  # fmt: skip


def command_outcomes(run_id: str, events: Sequence[Event], step: int) -> Iterator[CommandOutcome]:
    """What became of the commands that arrived in a step."""
    for event in events:
        kind = COMMAND_KINDS.get(event.kind)
        if kind is not None:
            command_id = getattr(event.payload, "command_id", "")
            yield CommandOutcome(command_id, run_id, kind, "accepted", "", step, event.at)
        elif isinstance(event.payload, CommandNote):
            note = event.payload
            yield CommandOutcome(note.command_id, run_id, note.command, "refused", note.reason, step, event.at)


def tool_request(state: RunState, call: Call, reply_topic: str, reply_partition: int, token: bytes) -> ToolRequest:
    """The request of a call's current attempt. Canonical arguments; a free-text tool gets its text untouched."""
    takes_text = state.menu[call.tool].takes_text
    return ToolRequest(
        state.run_id, call.key, state.turn, call.position, call.attempt, call.tool,
        call.arguments if takes_text else canonical_arguments(call.arguments),
        takes_text, call.deadline, reply_topic, reply_partition, token, state.agent.name, state.labels,
    )  # fmt: skip


def open_until(state: RunState) -> int:
    """The `end` header of a step: -1 while the run goes on, 0 when nothing can follow, else until when late news is recorded."""
    if not state.ended:
        return -1
    return max((call.not_after + GRACE_MS for call in state.open_calls.values()), default=0)
