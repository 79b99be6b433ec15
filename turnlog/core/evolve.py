"""The fold: `evolve(state, event)` changes the state in place by one recorded event and returns it.

Resume, replay and audit are this and nothing else. It never decides: it believes what was recorded, and raises BadHistory
where an event cannot be about this state. The table at the end says in which phases each kind may stand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from turnlog.core.errors import BadHistory
from turnlog.core.events import (
    KINDS,
    CallRequested,
    CallSettled,
    Cancel,
    CommandNote,
    Event,
    Input,
    InputAwaited,
    ModelAnswer,
    Outcome,
    Resume,
    RetrySet,
    RunCancelled,
    RunFailed,
    RunStopped,
    RunSucceeded,
    Start,
    Timer,
    TurnStarted,
)  # fmt: skip
from turnlog.core.ids import call_key, canonical_arguments
from turnlog.core.limits import COMMANDS_REMEMBERED, RULES
from turnlog.core.state import REQUESTED, RETRYING, SETTLED, WAITING, Call, OpenCall, RunState, outcome_bit
from turnlog.core.transcript import AssistantMessage, ToolMessage, base_digest


def evolve(state: RunState, event: Event) -> RunState:
    """Fold one event into the state, in place. Raises BadHistory, and nothing else, for an event that cannot follow; the state
    is then of no use any more."""
    kind, payload = event.kind, event.payload
    try:
        wanted, phases, fold = _FOLDS[kind]
        if state.phase not in phases or type(payload) is not wanted:
            raise _misfit(state, event)
        fold(state, event, payload)
        if event.at > state.at:
            state.at = event.at
    except (LookupError, TypeError, ValueError, AttributeError) as problem:
        if kind not in KINDS:
            raise BadHistory(f"run {state.run_id}: this build does not know events of kind {kind!r}") from None
        raise BadHistory(f"run {state.run_id}: a malformed {kind}: {problem!r:.200}") from problem
    return state


def _misfit(state: RunState, event: Event) -> BadHistory:
    if type(event.payload) is not KINDS[event.kind]:
        return BadHistory(f"run {state.run_id}: {event.kind} without its payload")
    place = "after its end" if state.phase == "ended" else f"in phase {state.phase!r}"
    return BadHistory(f"run {state.run_id}: {event.kind} {place}")


def fold(run_id: str, events: Iterable[Event], rules: int = RULES) -> RunState:
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
    state.turn_limit = _bound(agent.turn_limit if start.turn_limit is None else start.turn_limit)
    state.tool_call_budget = _bound(
        agent.tool_call_budget if start.tool_call_budget is None else start.tool_call_budget
    )
    deadline_ms = _bound(agent.deadline_ms if start.deadline_ms is None else start.deadline_ms)
    state.deadline = event.at + deadline_ms if deadline_ms else 0
    state.turn_end = state.turn_limit
    state.started_at = event.at
    state.base = base_digest(agent, start.menu)
    state.phase = "input"
    _remember(state, start.command_id)
    if start.input is not None:
        state.inputs.append(Input(start.command_id, start.input))


def _bound(value: int) -> int:
    """0 is no bound, and what is below it is none either."""
    return max(0, value)


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
    more = _bound(turns) or state.turn_limit
    state.turn_end = state.turn + 1 + more if more else 0
    state.phase = "input"
    state.status = "running"
    state.reason = ""
    state.idle_at = 0


def _resume_requested(state: RunState, event: Event, body: Resume) -> None:
    _remember(state, body.command_id)
    _resume(state, body.turns)


def _remembered(state: RunState, event: Event, body: Cancel | CommandNote) -> None:
    _remember(state, body.command_id)


def _model_answered(state: RunState, event: Event, answer: ModelAnswer) -> None:
    state.usage = state.usage.plus(answer.usage)
    state.add_message(AssistantMessage(answer.text, answer.calls))
    state.phase = "calls"
    state.tool_calls += len(answer.calls)
    run_id, turn = state.run_id, state.turn
    state.calls = [
        Call(
            position,
            call_key(run_id, turn, position, tool, canonical_arguments(arguments)),
            tool,
            provider_id,
            arguments,
        )
        for position, (provider_id, tool, arguments) in enumerate(answer.calls)
    ]


def _model_failed(state: RunState, event: Event, body: object) -> None:
    state.model_retry_at = -1  # nothing is awaited, and what is next follows in the same group


def _outcome_received(state: RunState, event: Event, outcome: Outcome) -> None:
    state.arrived = outcome
    _answered(state, event, outcome.status == "ok")


def _late_outcome_noted(state: RunState, event: Event, outcome: Outcome) -> None:
    _answered(state, event, outcome.status == "ok")


def _request_refused(state: RunState, event: Event, body: object) -> None:
    _answered(state, event, False)


def _answered(state: RunState, event: Event, ok: bool) -> None:
    key, attempt = event.call_key, event.attempt
    if key is None or attempt is None or not 1 <= attempt <= state.attempts_of(key):
        raise BadHistory(f"run {state.run_id}: {event.kind} for attempt {attempt} of {key}, which was never requested")
    state.attempts_seen[key] = state.attempts_seen.get(key, 0) | outcome_bit(attempt, ok)
    open_call = state.open_calls.get(key)
    if open_call is not None and open_call.attempt == attempt:
        del state.open_calls[key]


def _timer_fired(state: RunState, event: Event, timer: Timer) -> None:
    match timer.timer:
        case "model_retry":
            state.model_attempt += 1
            state.model_retry_at = 0
        case "idle":
            state.idle_at = 0
        case "run_deadline":
            state.deadline = 0


# ---------------------------------------------------------------- what the rules made of it


def _turn_started(state: RunState, event: Event, body: TurnStarted) -> None:
    if event.turn != state.turn + 1:
        raise BadHistory(f"run {state.run_id}: turn {event.turn} does not follow turn {state.turn}")
    _all_settled(state, event)
    state.turn += 1
    state.add_inputs()
    state.calls = []
    state.request_digest = body.request_digest
    state.model_attempt = 1
    state.model_retry_at = 0
    state.phase = "model"
    state.status = "running"
    state.idle_at = 0


def _all_settled(state: RunState, event: Event) -> None:
    for call in state.calls:
        if call.stage != SETTLED:
            raise BadHistory(f"run {state.run_id}: {event.kind} before {call.key} has its result")


def _model_retry_set(state: RunState, event: Event, body: RetrySet) -> None:
    state.model_retry_at = body.wake_at


def _call(state: RunState, event: Event, *stages: str) -> Call:
    """The call an event is about, which must be in one of these stages."""
    position = event.position
    if position is None or not 0 <= position < len(state.calls) or event.turn != state.turn:
        raise BadHistory(f"run {state.run_id}: {event.kind} for a call that turn {state.turn} does not have")
    call = state.calls[position]
    if call.stage not in stages:
        raise BadHistory(f"run {state.run_id}: {event.kind} for {call.key}, which is {call.stage}")
    return call


def _call_requested(state: RunState, event: Event, body: CallRequested) -> None:
    call = _call(state, event, WAITING, RETRYING)
    attempt = call.attempt + 1
    if event.attempt != attempt:
        raise BadHistory(
            f"run {state.run_id}: attempt {event.attempt} of {call.key} does not follow attempt {call.attempt}"
        )
    state.calls[call.position] = call.requested(attempt, body.not_after)
    state.open_calls[call.key] = OpenCall(state.turn, call.position, call.tool, body.not_after, attempt)


def _call_retry_set(state: RunState, event: Event, body: RetrySet) -> None:
    call = _call(state, event, REQUESTED)
    state.arrived = None
    state.calls[call.position] = call.retrying(body.wake_at)


def _call_settled(state: RunState, event: Event, body: CallSettled) -> None:
    call = _call(state, event, WAITING, REQUESTED, RETRYING)
    content = body.content
    if content is None:
        if state.arrived is None:
            raise BadHistory(f"run {state.run_id}: a settlement without content and without an outcome before it")
        content = state.arrived.content
    state.arrived = None
    state.calls[call.position] = call.settled(body.status, content)
    for item in state.calls:
        if item.stage != SETTLED:
            return
    for item in state.calls:
        state.add_message(ToolMessage(item.provider_id, item.tool, item.content, item.settlement != "ok"))


def _input_awaited(state: RunState, event: Event, body: InputAwaited) -> None:
    _all_settled(state, event)
    state.phase = "input"
    state.status = "waiting"
    state.idle_at = body.expires_at


def _end(state: RunState, event: Event, status: str, reason: str) -> None:
    _all_settled(state, event)
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
    _all_settled(state, event)
    state.phase = "stopped"
    state.status = "stopped"
    state.reason = body.reason
    state.idle_at = body.expires_at


_OPEN: Final = frozenset({"model", "calls", "input", "stopped"})
_STARTED: Final = _OPEN | {"ended"}
_BOUNDARY: Final = frozenset({"calls", "input"})
"""Where a turn may begin: behind settled calls, or out of waiting (also for the first time)."""
_MODEL: Final = frozenset({"model"})
_CALLS: Final = frozenset({"calls"})

_ROWS: Final[dict[str, tuple[frozenset[str], Callable[[RunState, Event, Any], None]]]] = {
    "run_started": (frozenset({"new"}), _run_started),
    "input_received": (_OPEN, _input_received),
    "cancel_requested": (_OPEN, _remembered),
    "resume_requested": (frozenset({"stopped"}), _resume_requested),
    "command_noted": (_OPEN, _remembered),
    "model_answered": (_MODEL, _model_answered),
    "model_failed": (_MODEL, _model_failed),
    "outcome_received": (_CALLS, _outcome_received),
    "late_outcome_noted": (_STARTED, _late_outcome_noted),
    "timer_fired": (_OPEN, _timer_fired),
    "request_refused": (_CALLS, _request_refused),
    "turn_started": (_BOUNDARY, _turn_started),
    "model_retry_set": (_MODEL, _model_retry_set),
    "call_requested": (_CALLS, _call_requested),
    "call_retry_set": (_CALLS, _call_retry_set),
    "call_settled": (_CALLS, _call_settled),
    "input_awaited": (_BOUNDARY, _input_awaited),
    "run_succeeded": (_BOUNDARY, _run_succeeded),
    "run_failed": (_OPEN, _run_failed),
    "run_cancelled": (_OPEN, _run_cancelled),
    "run_stopped": (_BOUNDARY, _run_stopped),
}
"""The kinds of events, the phases each may stand in, and what it does to the state."""

_FOLDS: Final = {kind: (KINDS[kind], phases, fold) for kind, (phases, fold) in _ROWS.items()}
