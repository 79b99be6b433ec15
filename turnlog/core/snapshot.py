"""A run's state as JSON text and back, for snapshots (J8).

The layout has a version of its own; a build reads every layout it has ever written. Records are arrays in field order, so a
field may only be added at the end, with a default.
"""

from __future__ import annotations

import json
from typing import Any

from turnlog.core.agents import AgentSpec, MenuEntry, Usage
from turnlog.core.errors import BadHistory
from turnlog.core.events import Input, RecordedCall
from turnlog.core.state import Call, OpenCall, RunState
from turnlog.core.transcript import AssistantMessage, ToolMessage, TranscriptMessage, UserMessage

LAYOUT = 1

_PLAIN = (
    "run_id", "rules", "traceparent", "status", "phase", "reason", "answer", "error", "turn", "turn_end", "turn_limit",
    "tool_call_budget", "deadline", "model_attempt", "model_retry_at", "request_digest", "digest", "base", "attempts_seen",
    "tool_calls", "started_at", "at", "ended_at", "idle_at",
)  # fmt: skip


def to_json(state: RunState) -> str:
    """The state as JSON text (about 1 µs per 100 bytes)."""
    body: dict[str, Any] = {name: getattr(state, name) for name in _PLAIN}
    body["layout"] = LAYOUT
    body["agent"] = state.agent
    body["menu"] = list(state.menu.values())
    body["withheld"] = sorted(state.withheld)
    body["labels"] = state.labels
    body["transcript"] = [_message_out(message) for message in state.transcript]
    body["calls"] = state.calls
    body["open_calls"] = state.open_calls
    body["inputs"] = state.inputs
    body["commands"] = list(state.commands)
    body["usage"] = state.usage
    return json.dumps(body, separators=(",", ":"), allow_nan=False)


def from_json(text: str) -> RunState:
    """The state that `to_json` wrote. Raises BadHistory for anything else."""
    try:
        body = json.loads(text)
        if body["layout"] != LAYOUT:
            raise BadHistory(f"snapshot layout {body['layout']!r} is not known to this build")
        return _build(body)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as problem:
        raise BadHistory(f"unreadable snapshot: {problem!r:.200}") from problem


def _build(body: dict[str, Any]) -> RunState:
    state = RunState(body["run_id"], body["rules"])
    for name in _PLAIN:
        setattr(state, name, body[name])
    agent = body["agent"]
    agent[AgentSpec._fields.index("tools")] = tuple(agent[AgentSpec._fields.index("tools")])
    state.agent = AgentSpec(*agent)
    state.menu = {entry[0]: MenuEntry(*entry) for entry in body["menu"]}
    state.withheld = frozenset(body["withheld"])
    state.labels = tuple((name, value) for name, value in body["labels"])
    state.transcript = [_message_in(item) for item in body["transcript"]]
    state.calls = [Call(*item) for item in body["calls"]]
    state.open_calls = {key: OpenCall(*item) for key, item in body["open_calls"].items()}
    state.inputs = [Input(*item) for item in body["inputs"]]
    state.commands = dict.fromkeys(body["commands"])
    state.usage = Usage(*body["usage"])
    return state


def _message_out(message: TranscriptMessage) -> list[Any]:
    match message:
        case UserMessage(text):
            return ["user", text]
        case AssistantMessage(text, calls):
            return ["assistant", text, calls]
        case ToolMessage(provider_id, tool, content, failed):
            return ["tool", provider_id, tool, content, failed]
    raise TypeError(f"no transcript message: {message!r}")


def _message_in(item: list[Any]) -> TranscriptMessage:
    match item:
        case ["user", text]:
            return UserMessage(text)
        case ["assistant", text, calls]:
            return AssistantMessage(text, tuple(RecordedCall(*call) for call in calls))
        case ["tool", provider_id, tool, content, failed]:
            return ToolMessage(provider_id, tool, content, failed)
    raise ValueError(f"no transcript message: {item!r:.80}")
