"""Agents written as YAML: what is taken, and what is said about the rest."""

from __future__ import annotations

import pytest

from turnlog.cli.agent_file import BadAgent, agents_of
from turnlog.cli.parsing import seconds

GOOD = "name: a\nversion: '1'\nmodel: scripted/x\ninstructions: Help.\n"


def test_the_least_that_an_agent_needs() -> None:
    (agent,) = agents_of(GOOD)
    assert (agent.name, agent.version, agent.model, agent.tools, agent.turn_limit) == ("a", "1", "scripted/x", (), 50)


def test_several_agents_in_one_file() -> None:
    assert [a.name for a in agents_of(GOOD + "---\n" + GOOD.replace("name: a", "name: b"))] == ["a", "b"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("tool: [x/y]", "tool is no field of an agent: did you mean tools?"),
        ("zzz: 1", "known are"),
        ("tools: airline", "must be a list"),
        ("tools: [airline]", "'airline' is not <toolset>/<tool>"),
        ("deadline: soon", "'soon' is no length of time"),
        ("deadline: true", "no length of time"),
        ("parallel_calls: 0", "at least 1"),
        ("turn_limit: many", "whole number"),
        ("conversation: 'yes'", "true or false"),
        ("tool_errors: ignore", "not one of feed_back, fail"),
        ("strategy: magic", "not one of single_shot"),
        ("model_settings: [1]", "must be a mapping"),
        ("model_settings: {a: .nan}", "holds what JSON cannot"),
        ("deadline: 1m\ndeadline_ms: 5", "both given"),
    ],
)  # fmt: skip
def test_every_problem_is_explained(line: str, said: str) -> None:
    with pytest.raises(BadAgent) as bad:
        agents_of(GOOD + line + "\n")
    assert said in str(bad.value)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(BadAgent) as bad:
        agents_of("name: 'a b'\nmodel: gpt\nversion: ''\n")
    assert len(bad.value.problems) == 4


def test_where_the_yaml_breaks_is_told() -> None:
    with pytest.raises(BadAgent, match=r"^not YAML: line 2, column 8: mapping values are not allowed here$"):
        agents_of("name: x\n  model: [a")


@pytest.mark.parametrize("text", ["", "- a\n", "a: [", "42"])
def test_what_is_no_agent_at_all(text: str) -> None:
    with pytest.raises(BadAgent):
        agents_of(text)


@pytest.mark.parametrize(
    ("text", "value"), [("30", 30), (30, 30), ("250ms", 0.25), ("1.5m", 90), ("2h", 7200), ("1d", 86400)]
)
def test_lengths_of_time(text: str | float, value: float) -> None:
    assert seconds(text) == value
