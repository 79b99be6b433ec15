"""The rules: what becomes of a message.

`decide(state, message)` returns the events of one group: first what arrived, then what the rules made of it. It returns
nothing for a repetition (a command or result already seen, a timer or model reply that is no longer awaited) and for a
message to a run that has ended, except a late outcome. It raises UnknownCall, NotStarted, Unrecordable or (for a run under
rules this build does not have) BadHistory, and then nothing has changed.

    message            in phase            makes of it
    Start              new                 first turn, or waits for input (conversation without one)
    Input              input, stopped      next turn; a final one ends the run as succeeded
                       model, calls        waits for the next boundary
    Cancel             any but ended       settles what is open, ends as cancelled
    Resume             stopped             next turn
    ModelAnswer        model               calls requested or rejected; else the answer: waits for input, or succeeded
    ModelFailure       model               another attempt by timer, or failed
    Outcome            calls               settles the call (first result counts), or another attempt by timer; else noted
    Timer              where still set     deadline of run or call, retry of model or call, end of waiting; none before its time
    Refusal            calls               the call is settled as unreachable
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from turnlog.core import calls as call_rules
from turnlog.core.agents import MenuEntry
from turnlog.core.errors import BadHistory, NotStarted, UnknownCall, Unrecordable
from turnlog.core.events import (
    CallRequested,
    CallSettled,
    Cancel,
    CommandNote,
    Event,
    Input,
    InputAwaited,
    Message,
    ModelAnswer,
    ModelFailure,
    Outcome,
    Payload,
    Refusal,
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
from turnlog.core.evolve import evolve
from turnlog.core.ids import chain_digest, place_of_key
from turnlog.core.limits import (
    ADVICE_BYTES,
    CALL_ATTEMPTS,
    ERROR_CHARS,
    IDLE_KEEP_MS,
    QUEUED_INPUTS,
    RULES,
    TOOL_COLUMN_CHARS,
    backoff_ms,
    cut,
    cut_bytes,
)  # fmt: skip
from turnlog.core.state import REQUESTED, RETRYING, SETTLED, WAITING, Call, RunState, outcome_bit
from turnlog.core.transcript import AssistantMessage

Validate = Callable[[MenuEntry, Any], str | None]
"""Says why parsed arguments break a tool's schema, or None; never raises. Passed in because the standard library has none.

What it says is recorded and compared when a run is verified, so its words must be its own and stay: those of a schema library
change with its version."""


def decide(state: RunState, message: Message, validate: Validate) -> tuple[Event, ...]:
    """The events that record this message and what follows from it. The state is not changed."""
    return advance(state.copy(), message, validate)


def advance(draft: RunState, message: Message, validate: Validate) -> tuple[Event, ...]:
    """Like `decide`, and `draft` is afterwards the state after those events: a shell makes one copy a step and passes it on.

    When it raises, the draft is unchanged.
    """
    body, phase = message.body, draft.phase
    if phase == "new" and not isinstance(body, Start):
        raise NotStarted(f"run {draft.run_id} has not started")
    if phase == "ended" and not isinstance(body, Outcome):
        return ()
    rules = _REVISIONS.get(draft.rules)
    if rules is None:
        raise BadHistory(
            f"run {draft.run_id} began under revision {draft.rules} of the rules, which this build does not have"
        )
    group = _Group(draft, message, validate)
    rules[type(body)](group, body)
    return tuple(group.events)


class _Group:
    """One group in the making: every event is folded into the draft as soon as it is made, so that rules see its effect."""

    __slots__ = ("at", "events", "message", "state", "validate")

    def __init__(self, state: RunState, message: Message, validate: Validate) -> None:
        self.state = state
        self.message = message
        self.at = max(message.at, state.at)
        self.validate = validate
        self.events: list[Event] = []

    def arrived(self, kind: str, body: Payload, call: Call | None = None) -> None:
        """What arrived; `call` is the call of the current turn that it is about."""
        m = self.message
        if call is None:
            self.add(Event(kind, self.at, m.turn, m.position, m.call_key, m.attempt, None, m.input, body))
        else:
            tool = call.tool[:TOOL_COLUMN_CHARS]
            self.add(Event(kind, self.at, self.state.turn, call.position, call.key, m.attempt, tool, m.input, body))

    def emit(self, kind: str, payload: Payload) -> None:
        """What the rules made of it, about the run."""
        turn = self.state.turn
        self.add(Event(kind, self.at, turn if turn >= 0 else None, None, None, None, None, None, payload))

    def emit_call(self, kind: str, call: Call, payload: Payload, attempt: int | None = None) -> None:
        """What the rules made of it, about a call of the current turn."""
        tool = call.tool[:TOOL_COLUMN_CHARS]
        self.add(Event(kind, self.at, self.state.turn, call.position, call.key, attempt, tool, None, payload))

    def add(self, event: Event) -> None:
        """Fold one more event of the group."""
        evolve(self.state, event)
        self.events.append(event)


# ---------------------------------------------------------------- commands


def _start(group: _Group, body: Start) -> None:
    if group.state.phase != "new":
        return
    _refuse_large(body)
    group.arrived("run_started", body)
    if body.input is None and body.agent.conversation:
        group.emit("input_awaited", InputAwaited(group.at + IDLE_KEEP_MS))
    else:
        _next_turn(group)


def _refuse_large(body: Start | Input) -> None:
    problem = call_rules.unrecordable(body)
    if problem is not None:
        raise Unrecordable(problem)


def _input(group: _Group, body: Input) -> None:
    state = group.state
    if body.command_id in state.commands:
        return
    _refuse_large(body)
    if state.final_input:
        _note_input(group, body, "a final input is already waiting")
    elif len(state.inputs) >= QUEUED_INPUTS:
        _note_input(group, body, f"{QUEUED_INPUTS} inputs are already waiting")
    else:
        working = state.phase in ("model", "calls")
        group.arrived("input_received", body)
        if not working:
            _boundary(group)


def _note_input(group: _Group, body: Input, reason: str) -> None:
    group.arrived("command_noted", CommandNote(body.command_id, "input", body.text, body.final, 0, reason))


def _cancel(group: _Group, body: Cancel) -> None:
    if body.command_id in group.state.commands:
        return
    group.arrived("cancel_requested", Cancel(body.command_id, cut(body.reason, ERROR_CHARS)))
    _settle_rest(group)
    group.emit("run_cancelled", RunCancelled("cancelled"))


def _resume(group: _Group, body: Resume) -> None:
    if body.command_id in group.state.commands:
        return
    if group.state.phase == "stopped":
        group.arrived("resume_requested", body)
        _next_turn(group)
    else:
        reason = "only a stopped run can be resumed"
        group.arrived("command_noted", CommandNote(body.command_id, "resume", "", False, body.turns, reason))


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
    group.add(Event("turn_started", group.at, turn, None, None, None, None, None, started))


def _last_text(state: RunState) -> str | None:
    for message in reversed(state.transcript):
        if isinstance(message, AssistantMessage) and message.text is not None:
            return message.text
    return None


def _answer(group: _Group, body: ModelAnswer) -> None:
    if not _awaited(group):
        return
    problem = call_rules.oversize(body.calls)
    if problem is not None:
        _failure(group, ModelFailure("answer_too_large", problem, False))
    else:
        _take_answer(group, call_rules.bounded_answer(body))


def _take_answer(group: _Group, body: ModelAnswer) -> None:
    state = group.state
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
    return (
        state.phase == "model"
        and state.turn == m.turn
        and state.model_attempt == m.attempt
        and not state.model_retry_at
    )


def _failure(group: _Group, body: ModelFailure) -> None:
    state = group.state
    if not _awaited(group):
        return
    body = call_rules.bounded_failure(body)
    group.arrived("model_failed", body)
    agent = state.agent
    if body.retryable and state.model_attempt < agent.model_attempts:
        pause = max(backoff_ms(agent.model_backoff_ms, state.model_attempt), body.retry_after_ms)
        group.emit("model_retry_set", RetrySet(group.at + pause))
    else:
        group.emit("run_failed", RunFailed("model_failed", cut(f"{body.error}: {body.message}", ERROR_CHARS)))


# ---------------------------------------------------------------- calls


def _open_calls(group: _Group) -> None:
    """Sort the calls of a new answer: a breach ends the run, a bad call is settled with advice, the rest may start."""
    state = group.state
    withheld = next(
        (call.tool for call in state.calls if call.tool in state.withheld and call.tool not in state.menu), None
    )
    if withheld is not None:
        _fail(group, "tool_withheld", f"tool {withheld!r} is withheld from this run")
    elif state.tool_call_budget and state.tool_calls > state.tool_call_budget:
        message = f"the answer asks for call {state.tool_calls} of this run, its budget is {state.tool_call_budget}"
        _fail(group, "tool_call_budget", message)
    else:
        _reject_bad_calls(group)
        _go_on(group)


def _reject_bad_calls(group: _Group) -> None:
    state = group.state
    most = ADVICE_BYTES // len(state.calls)
    for call in tuple(state.calls):
        advice = call_rules.advice(state, call, group.validate)
        if advice is not None:
            group.emit_call("call_settled", call, CallSettled("rejected", cut_bytes(advice, most)))


def _go_on(group: _Group) -> None:
    """Request what may start now; when every call has its result, close the turn."""
    state = group.state
    waiting: list[Call] = []
    under_way = 0
    ending: Call | None = None
    for call in state.calls:
        if call.stage == WAITING:
            waiting.append(call)
        elif call.stage != SETTLED:
            under_way += 1
        elif ending is None and call.settlement == "ok" and state.menu[call.tool].ends_run:
            ending = call
    if ending is not None:
        for call in waiting:
            group.emit_call("call_settled", call, CallSettled("not_started", _NOT_STARTED))
    else:
        for call in waiting[: max(0, max(1, state.agent.parallel_calls) - under_way)]:
            _request(group, call)
            under_way += 1
    if not under_way:
        _close_turn(group, ending)


_NOT_STARTED = "Not started: another call ended the run."


def _request(group: _Group, call: Call) -> None:
    entry = group.state.menu[call.tool]
    deadline = call.deadline or group.at + entry.timeout_ms
    group.emit_call("call_requested", call, CallRequested(entry.toolset, entry.topic, deadline), call.attempt + 1)


def _close_turn(group: _Group, ending: Call | None) -> None:
    if ending is not None:
        group.emit("run_succeeded", RunSucceeded("ended_by_tool", ending.content))
    else:
        _boundary(group)


def _outcome(group: _Group, body: Outcome) -> None:
    state, m = group.state, group.message
    key, attempt = m.call_key or "", m.attempt or 0
    if not 1 <= attempt <= state.attempts_of(key):
        raise UnknownCall(f"run {state.run_id} never requested call {key:.300}, attempt {attempt}")
    body = call_rules.bounded(body)
    if state.attempts_seen.get(key, 0) & outcome_bit(attempt, body.status == "ok"):
        return
    call = state.unsettled(key)
    if call is None:
        _note_late(group, key, body)
    else:
        group.arrived("outcome_received", body, call)
        _take_outcome(group, call, attempt, body)


def _note_late(group: _Group, key: str, body: Outcome) -> None:
    """Of a call that has its result: for the log only. The place is in the key, so it stands there also when all else is forgotten."""
    m = group.message
    turn, position = place_of_key(key)
    known = group.state.open_calls.get(key)
    tool = known.tool[:TOOL_COLUMN_CHARS] if known is not None else None
    group.add(Event("late_outcome_noted", group.at, turn, position, key, m.attempt, tool, m.input, body))


def _take_outcome(group: _Group, call: Call, attempt: int, body: Outcome) -> None:
    """The outcome of an unsettled call: a success of any attempt counts, a failure only of the one under way (an earlier one's is
    a repetition, since a retry is set after a failure only)."""
    state = group.state
    if body.status == "ok":
        group.emit_call("call_settled", call, CallSettled("ok"), attempt)
        _go_on(group)
        return
    entry = state.menu[call.tool]
    wake_at = group.at + backoff_ms(entry.backoff_ms, attempt)
    again = body.retryable and attempt < min(entry.attempts, CALL_ATTEMPTS) and wake_at < call.deadline
    if again and not body.fatal:
        group.emit_call("call_retry_set", call, RetrySet(wake_at), attempt)
        return
    group.emit_call("call_settled", call, CallSettled("error"), attempt)
    if body.fatal:
        _fail(group, "tool_fatal", f"{call.tool}: {body.content}")
    else:
        _after_failed_call(group, call, body.content)


def _after_failed_call(group: _Group, call: Call, text: str) -> None:
    """The call is settled with an error: the model reads it and the run goes on, or that ends the run (`tool_errors: fail`)."""
    if group.state.agent.tool_errors == "fail":
        _fail(group, "tool_error", f"{call.tool}: {text}")
    else:
        _go_on(group)


def _refusal(group: _Group, body: Refusal) -> None:
    state, m = group.state, group.message
    call = next(
        (c for c in state.calls if c.key == m.call_key and c.stage == REQUESTED and c.attempt == m.attempt), None
    )
    if call is None:
        return
    reason = cut(body.reason, ERROR_CHARS // 2)
    group.arrived("request_refused", Refusal(reason), call)
    text = f"The tool {call.tool!r} could not be reached: {reason}"
    group.emit_call("call_settled", call, CallSettled("unreachable", text))
    _after_failed_call(group, call, text)


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
    group.emit("run_failed", RunFailed(reason, cut(message, ERROR_CHARS)))


# ---------------------------------------------------------------- timers


def _timer(group: _Group, body: Timer) -> None:
    state = group.state
    if not 0 < body.due <= group.at:
        return
    match body.timer:
        case "run_deadline" if state.deadline == body.due and state.phase != "stopped":
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
        if group.at < call.deadline:
            _request(group, call)
        else:  # nobody looked in time, and workers would refuse the request
            _time_out(group, call)
    elif body.timer == "call_deadline" and call.deadline == body.due:
        group.arrived("timer_fired", body, call)
        _time_out(group, call)


def _time_out(group: _Group, call: Call) -> None:
    seconds = group.state.menu[call.tool].timeout_ms / 1000
    text = f"The tool {call.tool!r} gave no result within {seconds:g} s. It may have happened all the same."
    group.emit_call("call_settled", call, CallSettled("timed_out", text))
    _after_failed_call(group, call, text)


_Rules = dict[type, Callable[[_Group, Any], None]]

_RULES_1: _Rules = {
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

_REVISIONS: dict[int, _Rules] = {RULES: _RULES_1}
"""The rules by revision. A changed rule is a new table beside the old one, which stays for the runs that began under it."""
