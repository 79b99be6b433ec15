"""The rules: what becomes of a message.

`decide(state, message)` returns the events of one group: first what arrived, then what the rules made of it. It returns
nothing for a repetition (a command or result already seen, a timer or model reply that is no longer awaited) and for a
message to a run that has ended, except a late outcome. It raises UnknownCall or NotStarted, and then nothing has changed.

    message            in phase            makes of it
    Start              new                 first turn, or waits for input (conversation without one)
    Input              input, stopped      next turn; a final one ends the run as succeeded
                       model, calls        waits for the next boundary
    Cancel             any but ended       settles what is open, ends as cancelled
    Resume             stopped             next turn
    ModelAnswer        model               calls requested or rejected; else the answer: waits for input, or succeeded
    ModelFailure       model               another attempt by timer, or failed
    Outcome            calls               settles the call (first result counts), or another attempt by timer; else noted
    Timer              where still set     deadline of run or call, retry of model or call, end of waiting
    Refusal            calls               the call is settled as unreachable
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from turnlog.core import calls as call_rules
from turnlog.core.agents import MenuEntry
from turnlog.core.errors import NotStarted, UnknownCall
from turnlog.core.events import (
    Body, CallRequested, CallSettled, Cancel, CommandNote, Event, Input, InputAwaited, Message, ModelAnswer, ModelFailure,
    Outcome, Payload, Refusal, Resume, RetrySet, RunCancelled, RunFailed, RunStopped, RunSucceeded, Start, Timer, TurnStarted,
)  # fmt: skip
from turnlog.core.evolve import evolve
from turnlog.core.ids import chain_digest
from turnlog.core.limits import IDLE_KEEP_MS, QUEUED_INPUTS, TEXT_CHARS, backoff_ms, cut
from turnlog.core.state import REQUESTED, RETRYING, SETTLED, WAITING, Call, RunState
from turnlog.core.transcript import AssistantMessage

Validate = Callable[[MenuEntry, Any], str | None]
"""Says why parsed arguments break a tool's schema, or None. Pure; passed in because the standard library has none."""


def decide(state: RunState, message: Message, validate: Validate) -> tuple[Event, ...]:
    """The events that record this message and what follows from it. The state is not changed."""
    return advance(state.copy(), message, validate)


def advance(draft: RunState, message: Message, validate: Validate) -> tuple[Event, ...]:
    """Like `decide`, and `draft` is afterwards the state after those events: a shell makes one copy a step and passes it on."""
    if draft.phase == "new" and not isinstance(message.body, Start):
        raise NotStarted(f"run {draft.run_id} has not started")
    if draft.phase == "ended" and not isinstance(message.body, Outcome):
        return ()
    group = _Group(draft, message, validate)
    _RULES[type(message.body)](group, message.body)
    return tuple(group.events)


class _Group:
    """One group in the making: every event is folded into the draft as soon as it is made, so that rules see its effect."""

    __slots__ = ("state", "message", "at", "validate", "events")

    def __init__(self, state: RunState, message: Message, validate: Validate) -> None:
        self.state = state
        self.message = message
        self.at = max(message.at, state.at)
        self.validate = validate
        self.events: list[Event] = []

    def arrived(self, kind: str, body: Payload, call: Call | None = None) -> None:
        m = self.message
        turn = self.state.turn if call is not None else m.turn
        position, key, tool = (call.position, call.key, call.tool) if call is not None else (m.position, m.call_key, None)
        self._add(Event(kind, self.at, turn, position, key, m.attempt, tool, m.input, body))

    def emit(self, kind: str, payload: Payload) -> None:
        turn = self.state.turn
        self._add(Event(kind, self.at, turn if turn >= 0 else None, payload=payload))

    def emit_call(self, kind: str, call: Call, payload: Payload, attempt: int | None = None) -> None:
        self._add(Event(kind, self.at, self.state.turn, call.position, call.key, attempt, call.tool, None, payload))

    def _add(self, event: Event) -> None:
        evolve(self.state, event)
        self.events.append(event)


# ---------------------------------------------------------------- commands


def _start(group: _Group, body: Start) -> None:
    if group.state.phase != "new":
        return
    group.arrived("run_started", body)
    if body.input is None and body.agent.conversation:
        group.emit("input_awaited", InputAwaited(group.at + IDLE_KEEP_MS))
    else:
        _next_turn(group)


def _input(group: _Group, body: Input) -> None:
    state = group.state
    if body.command_id in state.commands:
        return
    if state.final_input:
        return _note(group, "input", body, "a final input is already waiting", text=body.text, final=body.final)
    if len(state.inputs) >= QUEUED_INPUTS:
        return _note(group, "input", body, f"{QUEUED_INPUTS} inputs are already waiting", text=body.text, final=body.final)
    working = state.phase in ("model", "calls")
    group.arrived("input_received", body)
    if not working:
        _boundary(group)


def _cancel(group: _Group, body: Cancel) -> None:
    if body.command_id in group.state.commands:
        return
    group.arrived("cancel_requested", body)
    _settle_rest(group)
    group.emit("run_cancelled", RunCancelled("cancelled"))


def _resume(group: _Group, body: Resume) -> None:
    if body.command_id in group.state.commands:
        return
    if group.state.phase != "stopped":
        return _note(group, "resume", body, "only a stopped run can be resumed", turns=body.turns)
    group.arrived("resume_requested", body)
    _next_turn(group)


def _note(
    group: _Group, command: str, body: Input | Resume, reason: str, *, text: str = "", final: bool = False, turns: int = 0
) -> None:
    group.arrived("command_noted", CommandNote(body.command_id, command, text, final, turns, reason))


# ---------------------------------------------------------------- turns


def _boundary(group: _Group) -> None:
    """Between turns, with input waiting: a final one ends the run, any other opens the next turn."""
    state = group.state
    if state.final_input:
        group.emit("run_succeeded", RunSucceeded("final_input", _last_text(state)))
    else:
        _next_turn(group)


def _next_turn(group: _Group) -> None:
    state = group.state
    turn = state.turn + 1
    if state.turn_end and turn >= state.turn_end:
        group.emit("run_stopped", RunStopped("turn_limit", group.at + IDLE_KEEP_MS))
        return
    messages, digest = state.digest_with_inputs()
    started = TurnStarted(chain_digest(state.base, digest), messages)
    group._add(Event("turn_started", group.at, turn, payload=started))


def _last_text(state: RunState) -> str | None:
    for message in reversed(state.transcript):
        if isinstance(message, AssistantMessage) and message.text is not None:
            return message.text
    return None


def _answer(group: _Group, body: ModelAnswer) -> None:
    state = group.state
    if not _awaited(group):
        return
    problem = call_rules.oversize(body.calls)
    if problem is not None:
        return _failure(group, ModelFailure("answer_too_large", problem, False))
    if body.text is not None and len(body.text) > TEXT_CHARS:
        body = body._replace(text=cut(body.text, TEXT_CHARS))
    group.arrived("model_answered", body)
    if body.calls:
        _open_calls(group)
    elif state.inputs:
        _boundary(group)
    elif state.agent.conversation:
        group.emit("input_awaited", InputAwaited(group.at + IDLE_KEEP_MS))
    else:
        group.emit("run_succeeded", RunSucceeded("answered", body.text))


def _awaited(group: _Group) -> bool:
    """The reply belongs to the model call that is under way."""
    state, m = group.state, group.message
    return state.phase == "model" and state.turn == m.turn and state.model_attempt == m.attempt and not state.model_retry_at


def _failure(group: _Group, body: ModelFailure) -> None:
    state = group.state
    if not _awaited(group):
        return
    body = body._replace(message=cut(body.message, call_rules.ERROR_CHARS))
    group.arrived("model_failed", body)
    agent = state.agent
    if body.retryable and state.model_attempt < agent.model_attempts:
        pause = max(backoff_ms(agent.model_backoff_ms, state.model_attempt), body.retry_after_ms)
        group.emit("model_retry_set", RetrySet(group.at + pause))
    else:
        group.emit("run_failed", RunFailed("model_failed", f"{body.error}: {body.message}"))


# ---------------------------------------------------------------- calls


def _open_calls(group: _Group) -> None:
    """Sort the calls of a new answer: a breach ends the run, a bad call is settled with advice, the rest may start."""
    state = group.state
    withheld = [call.tool for call in state.calls if call.tool in state.withheld and call.tool not in state.menu]
    if withheld:
        return _fail(group, "tool_withheld", f"tool {withheld[0]!r} is withheld from this run")
    if state.tool_call_budget and state.tool_calls > state.tool_call_budget:
        message = f"the answer asks for call {state.tool_calls} of this run, its budget is {state.tool_call_budget}"
        return _fail(group, "tool_call_budget", message)
    for call in tuple(state.calls):
        advice = call_rules.advice(state, call, group.validate)
        if advice is not None:
            group.emit_call("call_settled", call, CallSettled("rejected", advice))
    _go_on(group)


def _go_on(group: _Group) -> None:
    """Request what may start now; when every call has its result, close the turn."""
    state = group.state
    room = max(1, state.agent.parallel_calls) - sum(call.stage in (REQUESTED, RETRYING) for call in state.calls)
    if room > 0 and not _ending(state):
        for call in tuple(state.calls):
            if room and call.stage == WAITING:
                _request(group, call)
                room -= 1
    if _ending(state):
        _settle_waiting(group)
    if all(call.stage == SETTLED for call in state.calls):
        _close_turn(group)


def _request(group: _Group, call: Call) -> None:
    entry = group.state.menu[call.tool]
    deadline = call.deadline or group.at + entry.timeout_ms
    group.emit_call("call_requested", call, CallRequested(entry.toolset, entry.topic, deadline), call.attempt + 1)


def _ending(state: RunState) -> bool:
    """A call that ends the run has succeeded."""
    return any(call.settlement == "ok" and state.menu[call.tool].ends_run for call in state.calls)


def _close_turn(group: _Group) -> None:
    state = group.state
    for call in state.calls:
        if call.settlement == "ok" and state.menu[call.tool].ends_run:
            group.emit("run_succeeded", RunSucceeded("ended_by_tool", call.content))
            return
    _boundary(group)


def _outcome(group: _Group, body: Outcome) -> None:
    state, m = group.state, group.message
    key, attempt = m.call_key or "", m.attempt or 0
    if state.attempts_seen.get(key, 0) >> attempt & 1:
        return
    body = call_rules.bounded(body)
    call = next((c for c in state.calls if c.key == key and c.stage in (REQUESTED, RETRYING)), None)
    if call is not None and attempt <= call.attempt and not state.ended:
        group.arrived("outcome_received", body, call)
        _take_outcome(group, call, body)
    elif key in state.open_calls or key in state.attempts_seen:
        _note_late(group, body)
    else:
        raise UnknownCall(f"run {state.run_id} never requested call {key}, attempt {attempt}")


def _note_late(group: _Group, body: Outcome) -> None:
    m = group.message
    known = group.state.open_calls.get(m.call_key or "")
    turn, position, tool = known[:3] if known is not None else (m.turn, m.position, None)
    group._add(Event("late_outcome_noted", group.at, turn, position, m.call_key, m.attempt, tool, m.input, body))


def _take_outcome(group: _Group, call: Call, body: Outcome) -> None:
    state, attempt = group.state, group.message.attempt or 0
    if body.status == "ok":
        group.emit_call("call_settled", call, CallSettled("ok"), attempt)
        return _go_on(group)
    if body.fatal:
        group.emit_call("call_settled", call, CallSettled("error"), attempt)
        return _fail(group, "tool_fatal", f"{call.tool}: {body.content}")
    if body.retryable and attempt < call.attempt:
        return  # an attempt before the one under way: recorded, and the later one decides
    wake_at = group.at + backoff_ms(state.menu[call.tool].backoff_ms, call.attempt)
    if body.retryable and call.attempt < state.menu[call.tool].attempts and wake_at < call.deadline:
        return group.emit_call("call_retry_set", call, RetrySet(wake_at), attempt)
    group.emit_call("call_settled", call, CallSettled("error"), attempt)
    _after_failed_call(group, call, body.content)


def _after_failed_call(group: _Group, call: Call, text: str) -> None:
    if group.state.agent.tool_errors == "fail":
        return _fail(group, "tool_error", f"{call.tool}: {text}")
    _go_on(group)


def _refusal(group: _Group, body: Refusal) -> None:
    state, m = group.state, group.message
    call = next((c for c in state.calls if c.key == m.call_key and c.stage == REQUESTED and c.attempt == m.attempt), None)
    if call is None:
        return
    reason = cut(body.reason, call_rules.ERROR_CHARS)
    group.arrived("request_refused", Refusal(reason), call)
    text = f"The tool {call.tool!r} could not be reached: {reason}"
    group.emit_call("call_settled", call, CallSettled("unreachable", text))
    _after_failed_call(group, call, text)


def _settle_waiting(group: _Group) -> None:
    for call in tuple(group.state.calls):
        if call.stage == WAITING:
            group.emit_call("call_settled", call, CallSettled("not_started", "Not started: another call ended the run."))


def _settle_rest(group: _Group) -> None:
    """Every call gets its one result, also when the run ends."""
    for call in tuple(group.state.calls):
        if call.stage == WAITING:
            group.emit_call("call_settled", call, CallSettled("not_started", "Not started: the run ended."))
        elif call.stage != SETTLED:
            text = "No result: the run ended while this call was under way. It may have happened."
            group.emit_call("call_settled", call, CallSettled("cancelled", text))


def _fail(group: _Group, reason: str, message: str) -> None:
    _settle_rest(group)
    group.emit("run_failed", RunFailed(reason, cut(message, call_rules.ERROR_CHARS)))


# ---------------------------------------------------------------- timers


def _timer(group: _Group, body: Timer) -> None:
    state = group.state
    match body.timer:
        case "run_deadline" if state.deadline == body.due:
            group.arrived("timer_fired", body)
            _fail(group, "deadline", "the run's deadline is over")
        case "idle" if state.idle_at == body.due:
            group.arrived("timer_fired", body)
            group.emit("run_cancelled", RunCancelled("expired"))
        case "model_retry" if state.phase == "model" and state.model_retry_at == body.due:
            group.arrived("timer_fired", body)
        case "call_deadline" | "call_retry":
            _call_timer(group, body)


def _call_timer(group: _Group, body: Timer) -> None:
    position = group.message.position
    calls = group.state.calls
    if position is None or group.message.turn != group.state.turn or not 0 <= position < len(calls):
        return
    call = calls[position]
    if call.stage not in (REQUESTED, RETRYING):
        return
    if body.timer == "call_retry" and call.retry_at == body.due:
        group.arrived("timer_fired", body, call)
        _request(group, call)
    elif body.timer == "call_deadline" and call.deadline == body.due:
        group.arrived("timer_fired", body, call)
        seconds = group.state.menu[call.tool].timeout_ms / 1000
        text = f"The tool {call.tool!r} gave no result within {seconds:g} s. It may have happened all the same."
        group.emit_call("call_settled", call, CallSettled("timed_out", text))
        _after_failed_call(group, call, text)


_RULES: dict[type[Body], Callable[[_Group, Any], None]] = {
    Start: _start,
    Input: _input,
    Cancel: _cancel,
    Resume: _resume,
    ModelAnswer: _answer,
    ModelFailure: _failure,
    Outcome: _outcome,
    Timer: _timer,
    Refusal: _refusal,
}
