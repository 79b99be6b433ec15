"""What must be under way now, derived from the state alone.

A crash between "recorded" and "done" repairs itself: whoever restores the state asks here what to do.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from turnlog.core.events import Message, Timer
from turnlog.core.state import REQUESTED, RETRYING, SETTLED, Call, RunState
from turnlog.core.transcript import ModelRequest


class Effects(NamedTuple):
    """`model`: the call to the model; `requests`: calls whose tool request must be out; `wake`: the next timer, 0 if none."""

    model: ModelRequest | None
    requests: tuple[Call, ...]
    wake: int


def pending(state: RunState) -> Effects:
    """Everything that must be under way for this run. Nothing for a run that ended."""
    return Effects(
        model_request(state) if model_due(state) else None,
        tuple(call for call in state.calls if call.stage == REQUESTED) if state.phase == "calls" else (),
        next_wake(state),
    )


def model_due(state: RunState) -> bool:
    """A model call must be under way (not while its retry waits for a timer)."""
    return state.phase == "model" and not state.model_retry_at


def model_request(state: RunState) -> ModelRequest:
    """The request of the current turn and attempt."""
    return ModelRequest(
        state.run_id,
        state.turn,
        state.model_attempt,
        state.agent,
        tuple(state.menu.values()),
        tuple(state.transcript),
        state.request_digest,
    )


def timers(state: RunState) -> list[Message]:
    """Every timer that is set, as the message it becomes (`at` = when it is due). A stopped run has come to its clean end: its
    deadline is over only once it goes on."""
    if state.phase == "ended":
        return []
    found = []
    if state.deadline and state.phase != "stopped":
        found.append(Message(state.deadline, Timer("run_deadline", state.deadline)))
    if state.idle_at:
        found.append(Message(state.idle_at, Timer("idle", state.idle_at)))
    if state.phase == "model" and state.model_retry_at > 0:
        found.append(Message(state.model_retry_at, Timer("model_retry", state.model_retry_at), turn=state.turn))
    if state.phase == "calls":
        for call in state.calls:
            if call.stage in (REQUESTED, RETRYING):
                found.append(_call_timer(state, call, "call_deadline", call.deadline))
            if call.stage == RETRYING:
                found.append(_call_timer(state, call, "call_retry", call.retry_at))
    return found


def _call_timer(state: RunState, call: Call, timer: str, due: int) -> Message:
    return Message(due, Timer(timer, due), turn=state.turn, position=call.position, call_key=call.key)


def next_wake(state: RunState) -> int:
    """When the next timer is due, milliseconds since the epoch; 0 if none is set. The cheap half of `timers`: asked every step."""
    phase = state.phase
    if phase == "ended":
        return 0
    wake = state.idle_at if phase == "stopped" else state.deadline or state.idle_at
    if phase == "input" and 0 < state.idle_at < wake:
        wake = state.idle_at
    elif phase == "model" and state.model_retry_at > 0:
        wake = min(wake, state.model_retry_at) if wake else state.model_retry_at
    elif phase == "calls":
        for call in state.calls:
            due = call.retry_at or call.deadline  # a retry is set only where it comes before the deadline
            if call.stage != SETTLED and due and (not wake or due < wake):
                wake = due
    return wake


_FIRST: Final = {"run_deadline": 0, "idle": 0, "call_deadline": 1}
"""What ends something goes before what begins something: a loop that slept must not retry what is over."""


def due_timers(state: RunState, now: int) -> list[Message]:
    """The timers due at `now`, each with `now` as its time (J16: a timer carries the owner's clock): ends first, then earliest first.

    Deciding one may settle what another is about; that one then gives no events.
    """
    due = [m for m in timers(state) if m.at <= now]
    due.sort(key=lambda m: (_FIRST.get(m.body.timer, 2) if isinstance(m.body, Timer) else 2, m.at))
    return [m._replace(at=now) for m in due]
