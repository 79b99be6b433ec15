"""What may be published as an agent or a tool: nothing of it may stop a loop or lead its requests elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from turnlog.core.agents import AgentSpec
from turnlog.core.definitions import agent_problem, manifest_problem, pattern_problem
from turnlog.core.records import ToolManifest

AGENT = AgentSpec("a", "1", "Do it.", "scripted/echo")
MANIFEST = ToolManifest(
    "bench", "a", "1", "t.tool-requests.bench", "", '{"type":"object"}', False, False, True, 1_000, 3, 200
)
MOST = 2**63 - 1


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "b"}, {"model": ""}, {"model": "scripted"}, {"model": "/x"}, {"model": "x/"}, {"model_settings": "[]"},
        {"model_settings": "no"}, {"tool_errors": "what"}, {"parallel_calls": 0}, {"turn_limit": -1}, {"tool_call_budget": -1},
        {"deadline_ms": -1}, {"deadline_ms": MOST}, {"model_attempts": 0}, {"model_attempts": 101}, {"model_backoff_ms": -MOST},
        {"model_timeout_ms": 0}, {"model_timeout_ms": MOST},
    ],
)  # fmt: skip
def test_an_agent_that_cannot_be_used_is_told_by_field(changes: dict[str, Any]) -> None:
    problem = agent_problem("a", AGENT._replace(**changes))
    assert problem
    assert "name" in changes or next(iter(changes)) in problem


@pytest.mark.parametrize(
    "changes",
    [
        {"tool": "b"}, {"toolset": "other"}, {"topic": "t.journal"}, {"topic": ""}, {"parameters": "no"}, {"parameters": "[1]"},
        {"parameters": '{"a":' * 3_000 + "{}" + "}" * 3_000}, {"timeout_ms": 0}, {"timeout_ms": MOST}, {"attempts": 0},
        {"attempts": 101}, {"backoff_ms": -1}, {"backoff_ms": MOST},
    ],
)  # fmt: skip
def test_a_tool_that_cannot_be_used_is_refused(changes: dict[str, Any]) -> None:
    assert manifest_problem("bench/a", MANIFEST._replace(**changes), "t.tool-requests.")


def test_names_of_tools_are_those_that_providers_take() -> None:
    odd = MANIFEST._replace(tool="a b")
    assert "is no name" in (manifest_problem("bench/a b", odd, "t.tool-requests.") or "")


def test_good_definitions_have_no_problem() -> None:
    assert agent_problem("a", AGENT) is None
    assert manifest_problem("bench/a", MANIFEST, "t.tool-requests.") is None


TOOLS = {"weather": ["forecast", "history"], "mail": ["send"], "gone": []}


@pytest.mark.parametrize(
    ("pattern", "rejected", "said"),
    [
        ("wether/forecast", (), "is a worker of toolset 'wether' running? Toolsets announced: weather, mail"),
        ("gone/*", (), "is a worker of toolset 'gone' running? Toolsets announced: mail, weather"),
        ("weather/histroy", (), "no tool matches 'weather/histroy': toolset 'weather' has history, forecast"),
        (
            "weather/humid",
            ("weather/humid",),
            "a definition of it was rejected, `turnlog dead-letters list` says why; toolset",
        ),
        (
            "air/*",
            ("air/seat",),
            "rejected, `turnlog dead-letters list` says why; is a worker of toolset 'air' running?",
        ),
    ],
)
def test_a_tool_that_is_not_there_is_told_apart(pattern: str, rejected: tuple[str, ...], said: str) -> None:
    problem = pattern_problem(pattern, TOOLS, rejected) or ""
    assert said in problem
    assert ("rejected" in problem) == bool(rejected)


def test_no_more_names_than_one_reads() -> None:
    many = {"big": [f"tool_{number}" for number in range(5_000)]}
    problem = pattern_problem("big/tool_7x", many) or ""
    assert problem.endswith(" and 4990 more")
    assert pattern_problem("big/*", many) is None
