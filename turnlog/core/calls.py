"""What is wrong with a call, said to the model that made it; and the bounds of what comes back.

Every text here is recorded and compared when a run is verified, so none of it may come from a library whose wording changes
(Python's own JSON errors do between minor versions: only their position is used).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from turnlog.core.agents import MenuEntry
from turnlog.core.events import Outcome, RecordedCall
from turnlog.core.ids import parse_json
from turnlog.core.limits import CALLS_BYTES, CALLS_PER_TURN, ERROR_CHARS, VALUE_BYTES, cut, utf8_size

if TYPE_CHECKING:
    from turnlog.core.state import Call, RunState

SCHEMA_CHARS = 1_000
NAMES_SHOWN = 50


def oversize(calls: Sequence[RecordedCall]) -> str | None:
    """Why these calls cannot be recorded: calls are never cut, they fail the run typed."""
    if len(calls) > CALLS_PER_TURN:
        return f"the answer asks for {len(calls)} calls, at most {CALLS_PER_TURN} are allowed"
    size = sum(utf8_size(part) for call in calls for part in call)
    if size > CALLS_BYTES:
        return f"the answer's calls have {size} bytes, at most {CALLS_BYTES} are allowed"
    return None


def advice(state: RunState, call: Call, validate: Callable[[MenuEntry, Any], str | None]) -> str | None:
    """How to mend a call that cannot be made, for the model; None for a good call."""
    entry = state.menu.get(call.tool)
    if entry is None:
        return _unknown_tool(call.tool, list(state.menu))
    if entry.takes_text:
        return None
    try:
        value = parse_json(call.arguments)
    except ValueError as problem:
        position = getattr(problem, "pos", None)
        where = f" (near character {position})" if isinstance(position, int) else ""
        return _bad_arguments(entry, f"are not valid JSON{where}")
    if not isinstance(value, dict):
        return _bad_arguments(entry, "are JSON but not an object")
    wrong = validate(entry, value)
    return None if wrong is None else _bad_arguments(entry, f"do not fit its schema: {cut(wrong, 500)}")


def _unknown_tool(name: str, names: list[str]) -> str:
    close = get_close_matches(name[:100], names, 1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    shown = ", ".join(names[:NAMES_SHOWN]) or "none"
    return cut(f"There is no tool named {cut(name, 200)!r}.{hint} Tools you can call: {shown}.", ERROR_CHARS)


def _bad_arguments(entry: MenuEntry, problem: str) -> str:
    schema = cut(entry.parameters, SCHEMA_CHARS)
    text = f"The arguments of {entry.name!r} {problem}. Call it again with one JSON object that fits this schema: {schema}"
    return cut(text, ERROR_CHARS)


def bounded(outcome: Outcome) -> Outcome:
    """The outcome as it may be recorded: error text of at most 2,000 characters, content of at most 256 KiB (else an error)."""
    if outcome.status != "ok":
        return outcome if len(outcome.content) <= ERROR_CHARS else outcome._replace(content=cut(outcome.content, ERROR_CHARS))
    size = utf8_size(outcome.content)
    if size <= VALUE_BYTES:
        return outcome
    text = f"The result has {size} bytes, at most {VALUE_BYTES} are allowed. The call did happen."
    return Outcome("error", text, "result_too_large", False, False, outcome.worker)
