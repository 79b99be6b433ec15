"""Recorded runs as files one can read: a first line that tells the story, one line a step, a last line with where it led.

They stand for the journals of released versions. A history is written once, by `python -m tests.replay.record NAME`, and never
again: when a test of this folder fails, it is the code that broke a promise (docs/words.md: rules).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

from turnlog.core.events import KINDS, Event
from turnlog.core.pending import next_wake, pending
from turnlog.core.state import RunState

FOLDER = Path(__file__).parent / "histories"


class History(NamedTuple):
    """A recorded run. `led_to` is what its last line says: see `outline`."""

    name: str
    story: str
    run_id: str
    rules: int
    steps: list[tuple[Event, ...]]
    led_to: dict[str, Any]


def outline(state: RunState) -> dict[str, Any]:
    """Where a run stands, in the words that must mean the same for ever."""
    effects = pending(state)
    return {
        "status": state.status,
        "reason": state.reason,
        "phase": state.phase,
        "turn": state.turn,
        "answer": state.answer,
        "error": state.error,
        "messages": len(state.transcript),
        "digest": state.digest,
        "asks_model": None
        if effects.model is None
        else [effects.model.turn, effects.model.attempt, effects.model.digest],
        "requests": [[call.key, call.attempt, call.deadline] for call in effects.requests],
        "wake": next_wake(state),
        "open_calls": sorted(state.open_calls),
        "usage": list(state.usage),
    }


def write(name: str, story: str, state: RunState, steps: list[tuple[Event, ...]]) -> Path:
    """Record a history. Raises FileExistsError rather than write one again."""
    lines: list[Any] = [{"story": story, "run_id": state.run_id, "rules": state.rules}]
    lines += [{"step": number, "events": [_plain(event) for event in events]} for number, events in enumerate(steps)]
    lines.append({"led_to": outline(state)})
    path = FOLDER / f"{name}.jsonl"
    with path.open("x") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return path


def read(path: Path) -> History:
    """A history as it was recorded. Fields it does not have take their defaults, as in a record of an older schema."""
    first, *steps, last = [json.loads(line) for line in path.read_text().splitlines()]
    events = [tuple(_event(event) for event in step["events"]) for step in steps]
    return History(path.stem, first["story"], first["run_id"], first["rules"], events, last["led_to"])


def recorded() -> list[Path]:
    """All histories, in the order of their names."""
    return sorted(FOLDER.glob("*.jsonl"))


def _plain(value: Any) -> Any:
    """Named fields, without those that are None."""
    if hasattr(value, "_asdict"):
        return {name: _plain(field) for name, field in value._asdict().items() if field is not None}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _event(plain: dict[str, Any]) -> Event:
    columns = {name: value for name, value in plain.items() if name != "payload"}
    return Event(**columns, payload=_built(KINDS[plain["kind"]], plain["payload"]))


def _built(kind: Any, plain: Any) -> Any:
    """The value of this type that `_plain` took apart."""
    if isinstance(plain, dict):
        hints = get_type_hints(kind)
        return kind(**{name: _built(hints[name], value) for name, value in plain.items()}, **_nones(kind, plain))
    if isinstance(plain, list):
        item = next((arg for arg in get_args(kind) if arg is not Ellipsis), Any)
        return tuple(_built(item, value) for value in plain)
    return plain


def _nones(kind: Any, plain: dict[str, Any]) -> dict[str, None]:
    """Fields without a default that were left out because they were None."""
    return {name: None for name in kind._fields if name not in plain and name not in kind._field_defaults}
