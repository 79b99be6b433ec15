"""What is wrong with an agent or a tool as it was published: whoever may write those topics may write anything into them.

A definition that passes here can be pinned by a run, and nothing in it can stop a loop, make a time that no record can carry, or
send a request anywhere but to its toolset. Each answer is a sentence for whoever published it, or None.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from itertools import islice
from typing import Final

from turnlog.core.agents import AgentSpec
from turnlog.core.ids import parse_json
from turnlog.core.limits import CALL_ATTEMPTS
from turnlog.core.records import ToolManifest

COUNT: Final = 2**31 - 1
TIME_MS: Final = 2**53
"""With the time of day added it still fits 64 bits, and JSON readers keep it exact."""
MODEL_ATTEMPTS: Final = 100
TIMEOUT_MS: Final = 24 * 3_600_000
BACKOFF_MS: Final = 3_600_000
TOOL_ERRORS: Final = ("feed_back", "fail")
NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Names of tools (what every model provider takes) and of toolsets (what a topic name takes)."""

NAMED: Final = 10
"""How many names a sentence lists."""
COMPARED: Final = 1_000
"""How many names are compared with one that is not known."""

_AGENT_BOUNDS: Final = {
    "parallel_calls": (1, COUNT),
    "turn_limit": (0, COUNT),
    "tool_call_budget": (0, COUNT),
    "deadline_ms": (0, TIME_MS),
    "model_attempts": (1, MODEL_ATTEMPTS),
    "model_backoff_ms": (0, COUNT),
    "model_timeout_ms": (1, COUNT),
}
_TOOL_BOUNDS: Final = {"timeout_ms": (1, TIMEOUT_MS), "attempts": (1, CALL_ATTEMPTS), "backoff_ms": (0, BACKOFF_MS)}


def agent_problem(key: str, agent: AgentSpec) -> str | None:
    """Why this agent cannot be published under this key."""
    provider, slash, model = agent.model.partition("/")
    if agent.name != key:
        return f"the record's key must be the agent's name, {agent.name!r:.200}"
    if not (provider and slash and model):
        return f"model {agent.model!r:.200} names no provider: write <provider>/<model>"
    if agent.tool_errors not in TOOL_ERRORS:
        return f"tool_errors must be one of {', '.join(TOOL_ERRORS)}, not {agent.tool_errors!r:.200}"
    if not _is_object(agent.model_settings):
        return "model_settings must be the text of a JSON object"
    return _out_of_bounds(agent, _AGENT_BOUNDS)


def manifest_problem(key: str, manifest: ToolManifest, requests_prefix: str) -> str | None:
    """Why this tool cannot be published under this key. `requests_prefix` and the toolset's name make the topic of its requests."""
    m = manifest
    if key != f"{m.toolset}/{m.tool}":
        return f"the record's key must be <toolset>/<tool>, {m.toolset!r:.100} and {m.tool!r:.100}"
    for name in (m.toolset, m.tool):
        if not NAME.fullmatch(name):
            return f"{name!r:.200} is no name: 1 to 64 of A-Z a-z 0-9 _ -"
    if m.topic != requests_prefix + m.toolset:
        return f"requests of toolset {m.toolset!r} go to {requests_prefix}{m.toolset}, not to {m.topic!r:.300}"
    if not _is_object(m.parameters):
        return "parameters must be the text of a JSON object, a schema"
    return _out_of_bounds(m, _TOOL_BOUNDS)


def pattern_problem(pattern: str, tools: Mapping[str, Collection[str]], rejected: Iterable[str] = ()) -> str | None:
    """Why `<toolset>/<tool>` or `<toolset>/*` of an agent names no tool. `tools`: names by toolset; `rejected`: keys of manifests
    whose last definition was not taken."""
    toolset, _, tool = pattern.partition("/")
    known = tools.get(toolset, ())
    if known and (tool == "*" or tool in known):
        return None
    refused = any(key.startswith(f"{toolset}/") if tool == "*" else key == pattern for key in rejected)
    if known:
        why = f"toolset {toolset!r} has {nearest(tool, known)}"
    else:
        others = nearest(toolset, [name for name, held in tools.items() if held])
        why = f"is a worker of toolset {toolset!r:.200} running? Toolsets announced: {others or 'none'}"
    if refused:
        why = f"a definition of it was rejected, `turnlog dead-letters list` says why; {why}"
    return f"no tool matches {pattern!r:.200}: {why}"


def nearest(name: str, known: Collection[str], most: int = NAMED) -> str:
    """The known names as a list for people, those that look like `name` first, no more than `most` and a count of the others."""
    ordered = sorted(known)
    close = get_close_matches(name[:100], list(islice(ordered, COMPARED)), most, 0.6)
    first = [*close, *(other for other in ordered if other not in close)][:most]
    more = f" and {len(ordered) - len(first)} more" if len(ordered) > len(first) else ""
    return ", ".join(f"{other:.100}" for other in first) + more


def _out_of_bounds(record: AgentSpec | ToolManifest, bounds: dict[str, tuple[int, int]]) -> str | None:
    for name, (least, most) in bounds.items():
        value = getattr(record, name)
        if not least <= value <= most:
            return f"{name} must be {least} to {most}, not {value}"
    return None


def _is_object(text: str) -> bool:
    try:
        return isinstance(parse_json(text), dict)
    except ValueError:
        return False
