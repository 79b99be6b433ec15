"""Inbound records as messages for runs, or the reason why they are none.

Everything that can be wrong with a record is decided here, before any run is touched: what comes out is either an `Arrival`
whose key, run id and token are right, or a `Reject` that becomes a dead letter or an outcome.
"""

from __future__ import annotations

from typing import NamedTuple

from services.loop.tokens import ReplyTokens
from turnlog.codec import Codec, Unreadable
from turnlog.core.events import Body, Cancel, Input, Outcome, Resume
from turnlog.core.ids import run_id_problem, run_of_key
from turnlog.core.limits import VALUE_BYTES, utf8_size
from turnlog.core.records import Command, StartRun, ToolResult
from turnlog.kafka.port import Received

LABELS_BYTES = 16 * 1024
"""Names, values, and the length that stands before each: a map may hold the same empty name half a million times."""
ATTEMPTS = 1_000


class Arrival(NamedTuple):
    """A record that is about a run. `start` is set for a start command, whose body must still be resolved; else `body` is."""

    run_id: str
    record: Received
    command_id: str
    kind: str
    body: Body | None
    start: StartRun | None = None
    call_key: str | None = None
    attempt: int | None = None


class Reject(NamedTuple):
    """A record that no run will see. `reason` is a stable word, `detail` says what to do. A readable command gets an outcome
    too (`command`)."""

    record: Received
    reason: str
    detail: str
    command: Command | None = None


class Reception:
    """Reads inbound records. Pure but for the codec's registry look-ups."""

    def __init__(self, codec: Codec, tokens: ReplyTokens) -> None:
        self._codec = codec
        self._tokens = tokens

    def command(self, record: Received) -> Arrival | Reject:
        """A record of `commands`."""
        try:
            command = self._codec.decode(record.value, Command)
        except Unreadable as problem:
            return Reject(record, problem.reason, problem.detail)
        problem_text = run_id_problem(command.run_id)
        if problem_text is not None:
            return Reject(record, "bad_run_id", problem_text)
        if record.key != command.run_id.encode():
            return Reject(record, "key_mismatch", "the record's key must be its run_id")
        if not command.command_id or len(command.command_id) > 256:
            return Reject(record, "bad_command_id", "command_id must have 1 to 256 characters")
        return self._body(record, command)

    def _body(self, record: Received, command: Command) -> Arrival | Reject:
        body: Body | None = None
        match command if _has_one_body(command) else None:
            case Command(kind="start", start=StartRun() as start):
                too_large = _start_problem(start)
                if too_large is not None:
                    return Reject(record, "too_large", too_large, command)
                return Arrival(command.run_id, record, command.command_id, "start", None, start)
            case Command(kind="input", input=given) if given is not None:
                if utf8_size(given.text) > VALUE_BYTES:
                    return Reject(record, "too_large", f"an input may have {VALUE_BYTES} bytes of UTF-8", command)
                body = Input(command.command_id, given.text, given.final)
            case Command(kind="cancel", cancel=cancel) if cancel is not None:
                body = Cancel(command.command_id, cancel.reason[:2000])
            case Command(kind="resume", resume=resume) if resume is not None:
                body = Resume(command.command_id, max(0, resume.turns))
            case _:
                detail = f"kind {command.kind!r} has no body of its own: set exactly the field that kind names (start, input, cancel, resume)"
                return Reject(record, "bad_command", detail, command)
        return Arrival(command.run_id, record, command.command_id, command.kind, body)

    def result(self, record: Received) -> Arrival | Reject:
        """A record of `tool-results`."""
        try:
            result = self._codec.decode(record.value, ToolResult)
        except Unreadable as problem:
            return Reject(record, problem.reason, problem.detail)
        if record.key != result.call_key.encode():
            return Reject(record, "key_mismatch", "the record's key must be its call_key")
        if run_of_key(result.call_key) != result.run_id:
            return Reject(record, "key_mismatch", "call_key does not belong to run_id")
        if not 1 <= result.attempt <= ATTEMPTS or not self._tokens.fits(
            result.reply_token, result.call_key, result.attempt
        ):
            return Reject(
                record,
                "bad_reply_token",
                "the reply token was not made for this call and attempt: copy it from the request",
            )
        if result.status not in ("ok", "error"):
            return Reject(record, "bad_result", f"status must be ok or error, not {result.status!r}")
        body = Outcome(result.status, result.content, result.error, result.retryable, result.fatal, result.worker)
        return Arrival(result.run_id, record, "", "result", body, None, result.call_key, result.attempt)


def _has_one_body(command: Command) -> bool:
    """Two would leave open which one was meant."""
    bodies = (command.start, command.input, command.cancel, command.resume)
    return bodies.count(None) == len(bodies) - 1


def _start_problem(start: StartRun) -> str | None:
    if start.input is not None and utf8_size(start.input) > VALUE_BYTES:
        return f"an input may have {VALUE_BYTES} bytes of UTF-8"
    if sum(utf8_size(name) + utf8_size(value) + 2 for name, value in start.labels) > LABELS_BYTES:
        return f"labels may have {LABELS_BYTES} bytes together"
    for name in ("turn_limit", "tool_call_budget", "deadline_ms"):
        value = getattr(start, name)
        if value is not None and value < 0:
            return f"{name} must not be negative"
    return None


def traceparent_of(record: Received) -> str | None:
    """The W3C trace context that came with a record, if it looks like one."""
    for name, value in record.headers:
        if name == "traceparent" and value is not None and len(value) == 55 and value.isascii():
            return value.decode()
    return None
