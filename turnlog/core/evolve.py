"""The fold: `evolve(state, event)` changes the state in place by one recorded event and returns it.

Resume, replay and audit are this and nothing else. It never decides: it believes what was recorded and raises BadHistory
only where an event cannot be about this state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from turnlog.core.errors import BadHistory
from turnlog.core.events import (
    CallRequested, CallSettled, Cancel, CommandNote, Event, Input, InputAwaited, ModelAnswer, Outcome, Resume, RetrySet,
    RunCancelled, RunFailed, RunStopped, RunSucceeded, Start, Timer, TurnStarted,
)  # fmt: skip
from turnlog.core.ids import call_key, canonical_arguments
from turnlog.core.limits import COMMANDS_REMEMBERED
from turnlog.core.state import REQUESTED, RETRYING, SETTLED, Call, OpenCall, RunState
from turnlog.core.transcript import AssistantMessage, ToolMessage, base_digest


def evolve(state: RunState, event: Event) -> RunState:
    """Fold one event into the state (in place). Raises BadHistory for an event that cannot follow."""
    fold = _FOLDS.get(event.kind)
    if fold is None:
        raise BadHistory(f"run {state.run_id}: this build does not know events of kind {event.kind!r}")
    if state.phase == "ended" and event.kind != "late_outcome_noted":
        raise BadHistory(f"run {state.run_id}: {event.kind} after its end")
    if event.at > state.at:
        state.at = event.at
    fold(state, event, event.payload)
    return state


def fold(run_id: str, events: Iterable[Event], rules: int = 1) -> RunState:
    """The state after these events, from nothing."""
    state = RunState(run_id, rules)
    for event in events:
        evolve(state, event)
    return state


# ---------------------------------------------------------------- arrivals


def _run_started(state: RunState, event: Event, start: Start) -> None:
    agent = start.agent
    state.agent = agent
    state.menu = {entry.name: entry for entry in start.menu}
    state.withheld = frozenset(start.withheld)
    state.labels = start.labels
    state.traceparent = start.traceparent
    state.turn_limit = agent.turn_limit if start.turn_limit is None else start.turn_limit
    state.tool_call_budget = agent.tool_call_budget if start.tool_call_budget is None else start.tool_call_budget
    deadline_ms = agent.deadline_ms if start.deadline_ms is None else start.deadline_ms
    state.deadline = event.at + deadline_ms if deadline_ms else 0
    state.turn_end = state.turn_limit
    state.started_at = event.at
    state.base = base_digest(agent, start.menu)
    state.phase = "input"
    _remember(state, start.command_id)
    if start.input is not None:
        state.inputs.append(Input(start.command_id, start.input))


def _remember(state: RunState, command_id: str) -> None:
    state.commands[command_id] = None
    if len(state.commands) > COMMANDS_REMEMBERED:
        del state.commands[next(iter(state.commands))]


def _input_received(state: RunState, event: Event, body: Input) -> None:
    _remember(state, body.command_id)
    state.inputs.append(body)
    if state.phase == "stopped":
        _resume(state, 0)


def _resume(state: RunState, turns: int) -> None:
    more = turns or state.turn_limit
    state.turn_end = state.turn + 1 + more if more else 0
    state.phase = "input"
    state.status = "running"
    state.reason = ""
    state.idle_at = 0


def _resume_requested(state: RunState, event: Event, body: Resume) -> None:
    _remember(state, body.command_id)
    _resume(state, body.turns)


def _cancel_requested(state: RunState, event: Event, body: Cancel) -> None:
    _remember(state, body.command_id)


def _command_noted(state: RunState, event: Event, body: CommandNote) -> None:
    _remember(state, body.command_id)


def _model_answered(state: RunState, event: Event, answer: ModelAnswer) -> None:
    state.usage = state.usage.plus(answer.usage)
    state.add_message(AssistantMessage(answer.text, answer.calls))
    state.phase = "calls"
    state.tool_calls += len(answer.calls)
    state.calls = [
        Call(position, _key(state, position, call.tool, call.arguments), call.tool, call.provider_id, call.arguments)
        for position, call in enumerate(answer.calls)
    ]


def _key(state: RunState, position: int, tool: str, arguments: str) -> str:
    return call_key(state.run_id, state.turn, position, tool, canonical_arguments(arguments))


def _model_failed(state: RunState, event: Event, body: object) -> None:
    state.model_retry_at = -1


def _outcome_received(state: RunState, event: Event, outcome: Outcome) -> None:
    state.arrived = outcome
    _answered(state, event)


def _late_outcome_noted(state: RunState, event: Event, outcome: Outcome) -> None:
    _answered(state, event)


def _answered(state: RunState, event: Event) -> None:
    key = event.call_key
    if key is None or event.attempt is None:
        raise BadHistory(f"run {state.run_id}: an outcome without call key or attempt")
    state.attempts_seen[key] = state.attempts_seen.get(key, 0) | (1 << event.attempt)
    if not _retry_may_answer(event):
        state.open_calls.pop(key, None)


def _retry_may_answer(event: Event) -> bool:
    """An error that may be tried again leaves the call open; its settlement closes it."""
    return event.kind == "outcome_received" and isinstance(event.payload, Outcome) and event.payload.status != "ok"


def _timer_fired(state: RunState, event: Event, timer: Timer) -> None:
    match timer.timer:
        case "model_retry":
            state.model_attempt += 1
            state.model_retry_at = 0
        case "idle":
            state.idle_at = 0
        case "run_deadline":
            state.deadline = 0


def _request_refused(state: RunState, event: Event, body: object) -> None:
    if event.call_key is not None:
        state.open_calls.pop(event.call_key, None)


# ---------------------------------------------------------------- what the rules made of it


def _turn_started(state: RunState, event: Event, body: TurnStarted) -> None:
    if event.turn != state.turn + 1:
        raise BadHistory(f"run {state.run_id}: turn {event.turn} does not follow turn {state.turn}")
    state.turn = event.turn
    state.add_inputs()
    state.calls = []
    state.request_digest = body.request_digest
    state.model_attempt = 1
    state.model_retry_at = 0
    state.phase = "model"
    state.status = "running"
    state.idle_at = 0


def _model_retry_set(state: RunState, event: Event, body: RetrySet) -> None:
    state.model_retry_at = body.wake_at


def _call(state: RunState, event: Event) -> Call:
    position = event.position
    if position is None or not 0 <= position < len(state.calls) or event.turn != state.turn:
        raise BadHistory(f"run {state.run_id}: {event.kind} for a call that turn {state.turn} does not have")
    return state.calls[position]


def _call_requested(state: RunState, event: Event, body: CallRequested) -> None:
    call = _call(state, event)
    attempt = event.attempt or 1
    state.calls[call.position] = call._replace(stage=REQUESTED, attempt=attempt, deadline=body.not_after, retry_at=0)
    state.open_calls[call.key] = OpenCall(state.turn, call.position, call.tool, body.not_after)


def _call_retry_set(state: RunState, event: Event, body: RetrySet) -> None:
    call = _call(state, event)
    state.calls[call.position] = call._replace(stage=RETRYING, retry_at=body.wake_at)


def _call_settled(state: RunState, event: Event, body: CallSettled) -> None:
    call = _call(state, event)
    content = body.content
    if content is None:
        if state.arrived is None:
            raise BadHistory(f"run {state.run_id}: a settlement without content and without an outcome before it")
        content = state.arrived.content
        state.open_calls.pop(call.key, None)
    state.arrived = None
    state.calls[call.position] = call._replace(stage=SETTLED, settlement=body.status, content=content, retry_at=0)
    if all(item.stage == SETTLED for item in state.calls):
        for item in state.calls:
            state.add_message(ToolMessage(item.provider_id, item.tool, item.content, item.settlement != "ok"))


def _input_awaited(state: RunState, event: Event, body: InputAwaited) -> None:
    state.phase = "input"
    state.status = "waiting"
    state.idle_at = body.expires_at


def _end(state: RunState, event: Event, status: str, reason: str) -> None:
    state.add_inputs()
    state.phase = "ended"
    state.status = status
    state.reason = reason
    state.ended_at = event.at
    state.deadline = state.idle_at = state.model_retry_at = 0


def _run_succeeded(state: RunState, event: Event, body: RunSucceeded) -> None:
    state.answer = body.answer
    _end(state, event, "succeeded", body.reason)


def _run_failed(state: RunState, event: Event, body: RunFailed) -> None:
    state.error = body.message
    _end(state, event, "failed", body.reason)


def _run_cancelled(state: RunState, event: Event, body: RunCancelled) -> None:
    _end(state, event, "cancelled", body.reason)


def _run_stopped(state: RunState, event: Event, body: RunStopped) -> None:
    state.phase = "stopped"
    state.status = "stopped"
    state.reason = body.reason
    state.idle_at = body.expires_at


_FOLDS: dict[str, Callable[[RunState, Event, Any], None]] = {
    "run_started": _run_started,
    "input_received": _input_received,
    "cancel_requested": _cancel_requested,
    "resume_requested": _resume_requested,
    "command_noted": _command_noted,
    "model_answered": _model_answered,
    "model_failed": _model_failed,
    "outcome_received": _outcome_received,
    "late_outcome_noted": _late_outcome_noted,
    "timer_fired": _timer_fired,
    "request_refused": _request_refused,
    "turn_started": _turn_started,
    "model_retry_set": _model_retry_set,
    "call_requested": _call_requested,
    "call_retry_set": _call_retry_set,
    "call_settled": _call_settled,
    "input_awaited": _input_awaited,
    "run_succeeded": _run_succeeded,
    "run_failed": _run_failed,
    "run_cancelled": _run_cancelled,
    "run_stopped": _run_stopped,
}
