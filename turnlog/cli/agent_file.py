"""Agents written as YAML: one document an agent, checked field by field, with messages for whoever wrote it.

name: airline
version: "3"
model: openai/gpt-4o
instructions: |
  You are ...
tools: [airline/*, mail/send]
deadline: 15m
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import Any, Final

import yaml

from turnlog.cli.parsing import seconds
from turnlog.core.agents import STRATEGIES, AgentSpec
from turnlog.core.definitions import TOOL_ERRORS
from turnlog.core.ids import canonical_json, parse_json, run_id_problem
from turnlog.core.limits import VALUE_BYTES, utf8_size

TIMES: Final = {"deadline": "deadline_ms", "model_backoff": "model_backoff_ms", "model_timeout": "model_timeout_ms"}


class BadAgent(ValueError):
    """What is wrong with an agent's definition, all of it, a line each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def agents_of(text: str) -> list[AgentSpec]:
    """The agents of a YAML text. Raises BadAgent with every problem of every document."""
    try:
        documents = [document for document in yaml.safe_load_all(text) if document is not None]
    except yaml.YAMLError as problem:
        mark = getattr(problem, "problem_mark", None)
        where = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        said = getattr(problem, "problem", None) or " ".join(str(problem).split())
        raise BadAgent([f"not YAML: {where}{said}"]) from None
    problems: list[str] = []
    found: list[AgentSpec] = []
    for number, document in enumerate(documents, 1):
        try:
            found.append(agent_of(document))
        except BadAgent as bad:
            problems += [f"document {number}: {line}" if len(documents) > 1 else line for line in bad.problems]
    if not documents:
        problems.append("the file is empty")
    if problems:
        raise BadAgent(problems)
    return found


def agent_of(document: Any) -> AgentSpec:
    """The agent of one document. Raises BadAgent."""
    if not isinstance(document, dict):
        raise BadAgent(["an agent is a mapping of names to values, as in `name: airline`"])
    problems = list(_unknown(document))
    values: dict[str, Any] = {}
    for name, value in document.items():
        check = _CHECKS.get(name)
        if check is None:
            continue
        field = TIMES.get(str(name), str(name))
        if field in values:
            problems.append(f"{field} and {name} are both given: choose one")
        try:
            values[field] = check(value)
        except ValueError as problem:
            problems.append(f"{name}: {problem}")
    problems += [f"{name} is missing" for name in ("name", "version", "instructions", "model") if name not in document]
    if problems:
        raise BadAgent(problems)
    return AgentSpec(**values)


def _unknown(document: dict[Any, Any]) -> Iterator[str]:
    for name in document:
        if name not in _CHECKS:
            close = get_close_matches(str(name), list(_CHECKS), 1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(_CHECKS))}"
            yield f"{name} is no field of an agent: {hint}"


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be text, not {value!r}")
    if utf8_size(value) > VALUE_BYTES:
        raise ValueError(f"has {utf8_size(value)} bytes, at most {VALUE_BYTES} are allowed")
    return value


def _name(value: Any) -> str:
    problem = run_id_problem(_text(value))
    if problem is not None:
        raise ValueError(problem.replace("run_id", "it"))
    return str(value)


def _version(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float) or str(value) == "":
        raise ValueError(f'must be text such as "3", not {value!r}')
    return str(value)


def _model(value: Any) -> str:
    provider, slash, model = _text(value).partition("/")
    if not (provider and slash and model):
        raise ValueError(f"{value!r} names no provider: write <provider>/<model>, for example openai/gpt-4o")
    return str(value)


def _settings(value: Any) -> str:
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except ValueError:
            raise ValueError("is text but no JSON: write a mapping, for example {temperature: 0}") from None
    if not isinstance(value, dict):
        raise ValueError("must be a mapping, for example {temperature: 0}")
    try:
        return canonical_json(value)
    except (ValueError, TypeError) as problem:
        raise ValueError(f"holds what JSON cannot: {problem}") from None


def _tools(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError("must be a list, for example [airline/*, mail/send]")
    for item in value:
        toolset, slash, tool = item.partition("/") if isinstance(item, str) else ("", "", "")
        if not (toolset and slash and tool):
            raise ValueError(f"{item!r} is not <toolset>/<tool> or <toolset>/*")
    return tuple(value)


def _one_of(*known: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if value not in known:
            raise ValueError(f"{value!r} is not one of {', '.join(known)}")
        return str(value)

    return check


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {value!r}")
    return value


def _number(least: int, most: int = 2**31 - 1) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"must be a whole number of at least {least}, not {value!r}")
        return value

    return check


def _milliseconds(value: Any) -> int:
    return round(seconds(value) * 1000)


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "name": _name,
    "version": _version,
    "instructions": _text,
    "model": _model,
    "model_settings": _settings,
    "tools": _tools,
    "strategy": _one_of(*STRATEGIES),
    "conversation": _flag,
    "parallel_calls": _number(1, 128),
    "tool_errors": _one_of(*TOOL_ERRORS),
    "turn_limit": _number(0),
    "tool_call_budget": _number(0),
    "model_attempts": _number(1, 100),
    "deadline_ms": _number(0, 2**53),
    "model_backoff_ms": _number(0),
    "model_timeout_ms": _number(1),
    **dict.fromkeys(TIMES, _milliseconds),
}
