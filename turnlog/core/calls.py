"""What is wrong with a call, said to the model that made it; and the bounds of what comes back.

Every text here is recorded and compared when a run is verified, so none of it may come from a library whose wording changes
(that of Python's own JSON errors does between minor versions, and even the position they report).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from turnlog.core.agents import AgentSpec, MenuEntry
from turnlog.core.events import Input, ModelAnswer, ModelFailure, Outcome, RecordedCall, Start
from turnlog.core.ids import read_arguments
from turnlog.core.limits import (
    ANSWER_BYTES,
    CALLS_BYTES,
    CALLS_PER_TURN,
    COMMAND_ID_CHARS,
    ERROR_CHARS,
    RETRY_AFTER_CAP_MS,
    START_BYTES,
    TEXT_BYTES,
    TEXT_CHARS,
    VALUE_BYTES,
    WORD_CHARS,
    cut,
    cut_bytes,
    utf8_size,
)  # fmt: skip

if TYPE_CHECKING:
    from turnlog.core.state import Call, RunState

SCHEMA_CHARS = 1_000
_NOT_JSON = (
    "are not valid JSON (look at quotes, commas, brackets, and line breaks inside strings, which are written \\n)"
)
NAMES_SHOWN = 50


def oversize(calls: Sequence[RecordedCall]) -> str | None:
    """Why these calls cannot be recorded: calls are never cut, they fail the run typed."""
    if len(calls) > CALLS_PER_TURN:
        return f"the answer asks for {len(calls)} calls, at most {CALLS_PER_TURN} are allowed"
    size = _calls_bytes(calls)
    if size > CALLS_BYTES:
        return f"the answer's calls have {size} bytes, at most {CALLS_BYTES} are allowed"
    return None


def _calls_bytes(calls: Sequence[RecordedCall]) -> int:
    return utf8_size("".join([part for call in calls for part in call]))


def unrecordable(body: Start | Input) -> str | None:
    """Why this command cannot be recorded, for its sender; None if it can."""
    if len(body.command_id) > COMMAND_ID_CHARS:
        return f"command_id has {len(body.command_id)} characters, at most {COMMAND_ID_CHARS} are allowed"
    text = body.text if isinstance(body, Input) else body.input or ""
    size = utf8_size(text)
    if size > VALUE_BYTES:
        return f"the input has {size} bytes, at most {VALUE_BYTES} are allowed"
    if isinstance(body, Start):
        size += _text_bytes((body.withheld, body.labels, body.traceparent)) + _pinned_bytes(body.agent, body.menu)
        if size > START_BYTES:
            return f"the start with its agent and menu has {size} bytes, at most {START_BYTES} are allowed"
    return None


@lru_cache(maxsize=256)
def _pinned_bytes(agent: AgentSpec, menu: tuple[MenuEntry, ...]) -> int:
    return _text_bytes((agent, menu))


def _text_bytes(value: object) -> int:
    """Bytes of all texts in nested tuples."""
    if isinstance(value, tuple):
        return sum(map(_text_bytes, value))
    return utf8_size(value) if isinstance(value, str) else 0


def bounded_answer(answer: ModelAnswer) -> ModelAnswer:
    """The answer as it may be recorded; calls are left whole (`oversize` judged them). Doing it twice changes nothing."""
    text = answer.text
    if text is not None and len(text) > 65_536:  # a character has four bytes at most: shorter ones always fit
        text = cut_bytes(cut(text, TEXT_CHARS), min(TEXT_BYTES, ANSWER_BYTES - _calls_bytes(answer.calls)))
    if text is answer.text and max(len(answer.finish), len(answer.model), len(answer.response_id)) <= WORD_CHARS:
        return answer
    finish, model, response_id = (cut(word, WORD_CHARS) for word in (answer.finish, answer.model, answer.response_id))
    return ModelAnswer(text, answer.calls, finish, model, response_id, answer.usage)


def bounded_failure(failure: ModelFailure) -> ModelFailure:
    """The failure as it may be recorded. Doing it twice changes nothing."""
    retry_after_ms = min(max(failure.retry_after_ms, 0), RETRY_AFTER_CAP_MS)
    return ModelFailure(
        cut(failure.error, WORD_CHARS), cut(failure.message, ERROR_CHARS), failure.retryable, retry_after_ms
    )


def advice(state: RunState, call: Call, validate: Callable[[MenuEntry, Any], str | None]) -> str | None:
    """How to mend a call that cannot be made, for the model; None for a good call."""
    entry = state.menu.get(call.tool)
    if entry is None:
        return _unknown_tool(call.tool, list(state.menu))
    if entry.takes_text:
        return None
    arguments = read_arguments(call.arguments)
    if not arguments.is_json:
        return _bad_arguments(entry, _NOT_JSON if call.arguments else "are empty")
    if not isinstance(arguments.value, dict):
        return _bad_arguments(entry, "are JSON but not an object")
    wrong = validate(entry, arguments.value)
    return None if wrong is None else _bad_arguments(entry, f"do not fit its schema: {cut(wrong, 500)}")


def _unknown_tool(name: str, names: list[str]) -> str:
    close = get_close_matches(name[:100], names, 1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    shown = ", ".join(names[:NAMES_SHOWN]) or "none"
    return cut(f"There is no tool named {cut(name, 200)!r}.{hint} Tools you can call: {shown}.", ERROR_CHARS)


def _bad_arguments(entry: MenuEntry, problem: str) -> str:
    schema = cut(entry.parameters, SCHEMA_CHARS)
    text = (
        f"The arguments of {entry.name!r} {problem}. Call it again with one JSON object that fits this schema: {schema}"
    )
    return cut(text, ERROR_CHARS)


def bounded(outcome: Outcome) -> Outcome:
    """The outcome as it may be recorded: content of at most 256 KiB (else it becomes an error), error text of at most 2,000
    characters, and every status but `ok` an `error`. Doing it twice changes nothing."""
    if outcome.status != "ok":
        content, error, worker = (
            cut(outcome.content, ERROR_CHARS),
            cut(outcome.error, WORD_CHARS),
            cut(outcome.worker, WORD_CHARS),
        )
        return Outcome("error", content, error, outcome.retryable, outcome.fatal, worker)
    size = utf8_size(outcome.content)
    if size > VALUE_BYTES:
        text = f"The result has {size} bytes, at most {VALUE_BYTES} are allowed. The call did happen."
        return Outcome("error", text, "result_too_large", worker=cut(outcome.worker, WORD_CHARS))
    if len(outcome.worker) <= WORD_CHARS and not outcome.error:
        return outcome
    return Outcome("ok", outcome.content, "", outcome.retryable, outcome.fatal, cut(outcome.worker, WORD_CHARS))
