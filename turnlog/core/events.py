"""Events of a run, and the messages they record.

A message is what arrives (a command, a model reply, a tool outcome, a timer); its body is a record of this module. The first
event of a group is what arrived and carries that very body, so a verifier can rebuild the message from the event and decide
it again. The rest of the group is what the rules made of it.

Every record here stands one to one in `schemas/records/JournalRecord.avsc`: same names, same order (a test holds it).
Event kinds are past tense and name the nullable payload field of the Avro `Event`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from turnlog.core.agents import AgentSpec, MenuEntry, Usage
from turnlog.core.errors import BadHistory

# ---------------------------------------------------------------- bodies of messages (and payloads of arrival events)


class Start(NamedTuple):
    """A start command, with what the shell resolved for it. Overrides of the agent's bounds are None where not given."""

    command_id: str
    agent: AgentSpec
    menu: tuple[MenuEntry, ...]
    withheld: tuple[str, ...] = ()
    """Tools that exist in the toolsets the agent uses but are withheld from this run: calling one ends the run."""
    input: str | None = None
    labels: tuple[tuple[str, str], ...] = ()
    turn_limit: int | None = None
    tool_call_budget: int | None = None
    deadline_ms: int | None = None
    traceparent: str | None = None


class Input(NamedTuple):
    """What the run's user says. `final`: and with that the run is over."""

    command_id: str
    text: str
    final: bool = False


class Cancel(NamedTuple):
    command_id: str
    reason: str = ""


class Resume(NamedTuple):
    """Go on with a stopped run, for `turns` more turns (0: the agent's own turn limit again)."""

    command_id: str
    turns: int = 0


class RecordedCall(NamedTuple):
    """A call as the model asked for it; `arguments` is its text, untouched."""

    provider_id: str
    tool: str
    arguments: str


class ModelAnswer(NamedTuple):
    text: str | None
    calls: tuple[RecordedCall, ...] = ()
    finish: str = "stop"
    model: str = ""
    response_id: str = ""
    usage: Usage = Usage()


class ModelFailure(NamedTuple):
    """No answer. `error` is a stable word (providers: `turnlog.models.errors`; the core adds `answer_too_large`), `message`
    bounded text for people."""

    error: str
    message: str
    retryable: bool
    retry_after_ms: int = 0


class Outcome(NamedTuple):
    """What a worker reports of one attempt of a call."""

    status: str
    """`ok` or `error`."""
    content: str
    error: str = ""
    retryable: bool = False
    fatal: bool = False
    worker: str = ""


class Timer(NamedTuple):
    """A timer came due. `timer` is one of TIMERS."""

    timer: str
    due: int


class Refusal(NamedTuple):
    """Kafka refused the request of a call for good (J13)."""

    reason: str


class CommandNote(NamedTuple):
    """A command that changes nothing in this state, and why; the command itself is in the first four fields."""

    command_id: str
    command: str
    text: str
    final: bool
    turns: int
    reason: str


# ---------------------------------------------------------------- payloads of derived events


class TurnStarted(NamedTuple):
    """A model call is under way. The request is named by digest and by the number of transcript messages it was built from."""

    request_digest: str
    messages: int


class CallRequested(NamedTuple):
    toolset: str
    topic: str
    not_after: int
    """Milliseconds since the epoch; workers refuse the request later."""


class RetrySet(NamedTuple):
    """Another attempt is due at `wake_at` (ms since the epoch)."""

    wake_at: int


class CallSettled(NamedTuple):
    """The one result of a call. `content` is None where it is the content of the outcome that arrived in the same group."""

    status: str
    """One of SETTLEMENTS."""
    content: str | None = None


class InputAwaited(NamedTuple):
    expires_at: int


class RunSucceeded(NamedTuple):
    reason: str
    answer: str | None


class RunFailed(NamedTuple):
    reason: str
    message: str


class RunCancelled(NamedTuple):
    """`cancelled` by a command, or `expired` after waiting too long."""

    reason: str


class RunStopped(NamedTuple):
    """A clean end that stays resumable until `expires_at`."""

    reason: str
    expires_at: int


Body = Start | Input | Cancel | Resume | ModelAnswer | ModelFailure | Outcome | Timer | Refusal
Payload = (
    Body | CommandNote | TurnStarted | CallRequested | RetrySet | CallSettled
    | InputAwaited | RunSucceeded | RunFailed | RunCancelled | RunStopped
)  # fmt: skip

ARRIVALS: Final[dict[str, type]] = {
    "run_started": Start,
    "input_received": Input,
    "cancel_requested": Cancel,
    "resume_requested": Resume,
    "command_noted": CommandNote,
    "model_answered": ModelAnswer,
    "model_failed": ModelFailure,
    "outcome_received": Outcome,
    "late_outcome_noted": Outcome,
    "timer_fired": Timer,
    "request_refused": Refusal,
}
"""The closed set of kinds that open a group, with the payload of each."""

DERIVED: Final[dict[str, type]] = {
    "turn_started": TurnStarted,
    "model_retry_set": RetrySet,
    "call_requested": CallRequested,
    "call_retry_set": RetrySet,
    "call_settled": CallSettled,
    "input_awaited": InputAwaited,
    "run_succeeded": RunSucceeded,
    "run_failed": RunFailed,
    "run_cancelled": RunCancelled,
    "run_stopped": RunStopped,
}

KINDS: Final[dict[str, type]] = {**ARRIVALS, **DERIVED}
TERMINAL: Final = frozenset({"run_succeeded", "run_failed", "run_cancelled"})

TIMERS: Final = ("run_deadline", "model_retry", "call_deadline", "call_retry", "idle")
SETTLEMENTS: Final = ("ok", "error", "rejected", "timed_out", "unreachable", "cancelled", "not_started")


class Event(NamedTuple):
    """A recorded fact. The columns before `payload` are what auditors filter by; `at` is the time of the message of its group,
    milliseconds since the epoch; `input` is the place in the step's `inputs` of the message that arrived, if it came from a topic."""

    kind: str
    at: int
    turn: int | None = None
    position: int | None = None
    call_key: str | None = None
    attempt: int | None = None
    tool: str | None = None
    input: int | None = None
    payload: Payload | None = None


class Message(NamedTuple):
    """Something for a run to decide. `turn`, `position`, `attempt` and `call_key` say what the body is about, where it is about one place."""

    at: int
    body: Body
    turn: int | None = None
    position: int | None = None
    call_key: str | None = None
    attempt: int | None = None
    input: int | None = None


def message_of(event: Event) -> Message:
    """The message that an arrival event records (inverse of what `decide` does first). Raises BadHistory for any other event."""
    body: Any = event.payload
    if type(body) is not ARRIVALS.get(event.kind):
        raise BadHistory(f"{event.kind} with a payload of type {type(body).__name__} records no message")
    if isinstance(body, CommandNote):
        body = _noted_command(body)
    return Message(event.at, body, event.turn, event.position, event.call_key, event.attempt, event.input)


def _noted_command(note: CommandNote) -> Body:
    match note.command:
        case "input":
            return Input(note.command_id, note.text, note.final)
        case "cancel":
            return Cancel(note.command_id, note.text)
        case "resume":
            return Resume(note.command_id, note.turns)
    raise BadHistory(f"no command {note.command!r} can be noted")
