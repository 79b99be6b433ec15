"""Scripted models: what they answer, and that latency and faults depend on nothing but their settings and the request."""

from __future__ import annotations

import json
import queue
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.tidy.checkout import ROOT
from turnlog.core.agents import AgentSpec
from turnlog.core.events import ModelAnswer, ModelFailure, RecordedCall
from turnlog.core.transcript import AssistantMessage, ModelRequest, ToolMessage, TranscriptMessage, UserMessage
from turnlog.models.provider import Ask
from turnlog.testing.scripted import (
    SCRIPTS,
    Faults,
    ScriptedProvider,
    ThreadDelay,
    echo,
    played,
    recorded_answers,
    standard_work,
)

WAIT_S = 30.0
Outcomes = list[ModelAnswer | ModelFailure]


def model_request(
    *messages: TranscriptMessage, run_id: str = "r", turn: int = 0, attempt: int = 1, model: str = "scripted/echo"
) -> ModelRequest:
    agent = AgentSpec("a", "1", "", model, model_timeout_ms=1_000)
    return ModelRequest(run_id, turn, attempt, agent, (), messages, "0" * 64)


class ManualDelay:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.due: list[tuple[float, Callable[[], None], threading.Event]] = []

    def after(self, seconds: float, act: Callable[[], None]) -> Ask:
        cancelled = threading.Event()
        self.due.append((self.now_s + seconds, act, cancelled))

        class Cancel:
            def cancel(self) -> None:
                cancelled.set()

        return Cancel()

    def pass_to(self, now_s: float) -> None:
        self.now_s = now_s
        over = [each for each in self.due if each[0] <= now_s]
        self.due = [each for each in self.due if each[0] > now_s]
        for _, act, cancelled in over:
            if not cancelled.is_set():
                act()

    def close(self) -> None:
        self.due.clear()


def test_standard_work() -> None:
    script = standard_work("x", "y")
    answers = [script(model_request(turn=turn)) for turn in range(5)]
    assert all(isinstance(each, ModelAnswer) for each in answers)
    tools = [[call.tool for call in answer.calls] for answer in answers if isinstance(answer, ModelAnswer)]
    assert tools == [["x", "y"]] * 4 + [[]]
    arguments = [call.arguments for each in answers[:4] if isinstance(each, ModelAnswer) for call in each.calls]
    assert [json.loads(each)["n"] for each in arguments] == list(range(8))
    assert isinstance(answers[4], ModelAnswer)
    assert answers[4].text == "done"
    assert script(model_request(turn=5)) is answers[0]


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("hello", ModelAnswer("hello")),
        ('call add {"a": 1, "b": 2}', ModelAnswer(None, (RecordedCall("call_t0_0", "add", '{"a": 1, "b": 2}'),))),
        ("call now", ModelAnswer(None, (RecordedCall("call_t0_0", "now", "{}"),))),
        ("do it:\n call a {broken\n call b", ModelAnswer(None, (RecordedCall("call_t0_0", "a", "{broken"), RecordedCall("call_t0_1", "b", "{}")))),
        ("please call me", ModelAnswer("please call me")),
    ],
)  # fmt: skip
def test_echo(said: str, answer: ModelAnswer) -> None:
    outcome = echo(model_request(UserMessage("before"), AssistantMessage("so"), UserMessage(said)))
    assert (outcome.text, outcome.calls) == (answer.text, answer.calls)


def test_echo_tells_what_the_tools_gave() -> None:
    calls = (RecordedCall("1", "a", "{}"), RecordedCall("2", "b", "{}"))
    results = (ToolMessage("1", "a", "3", False), ToolMessage("2", "b", "no", True))
    answer = echo(model_request(UserMessage("call a\ncall b"), AssistantMessage(None, calls), *results))
    assert answer.text == "a says: 3\nb failed: no"


def test_a_played_run_says_the_same_again() -> None:
    answers = recorded_answers(
        [
            {"content": None, "tool_calls": [{"id": "i", "name": "t", "arguments": "{ }"}]},
            {"content": "bye", "tool_calls": []},
        ]
    )
    script = played({"r": answers})
    assert script(model_request(turn=0)) == ModelAnswer(None, (RecordedCall("i", "t", "{ }"),), "tool_calls")
    assert script(model_request(turn=1)) == script(model_request(turn=1, attempt=2)) == ModelAnswer("bye")
    for beyond in (model_request(turn=2), model_request(run_id="other")):
        problem = script(beyond)
        assert isinstance(problem, ModelFailure)
        assert (problem.error, problem.retryable) == ("script_failed", False)


def test_without_latency_the_answer_is_there_before_ask_returns() -> None:
    provider = ScriptedProvider(SCRIPTS)
    outcomes: Outcomes = []
    provider.ask(model_request(model="scripted/standard_work", turn=4), outcomes.append).cancel()
    assert [each.text for each in outcomes if isinstance(each, ModelAnswer)] == ["done"]
    assert provider.asked == 1


def test_an_unknown_script_and_a_broken_one() -> None:
    def broken(_: ModelRequest) -> ModelAnswer:
        raise ZeroDivisionError("mine")

    outcomes: Outcomes = []
    ScriptedProvider(SCRIPTS).ask(model_request(model="scripted/none"), outcomes.append)
    ScriptedProvider(broken).ask(model_request(), outcomes.append)
    assert [each.error for each in outcomes if isinstance(each, ModelFailure)] == ["script_failed"] * 2
    assert "echo, standard_work" in str(outcomes[0])
    assert "ZeroDivisionError" in str(outcomes[1])


def test_latency_cancel_and_close() -> None:
    delay = ManualDelay()
    provider = ScriptedProvider(echo, latency_ms=20, delay=delay)
    outcomes: Outcomes = []
    provider.ask(model_request(UserMessage("kept")), outcomes.append)
    provider.ask(model_request(UserMessage("given up")), outcomes.append).cancel()
    delay.pass_to(0.019)
    assert not outcomes
    delay.pass_to(0.02)
    assert [each.text for each in outcomes if isinstance(each, ModelAnswer)] == ["kept"]
    provider.ask(model_request(UserMessage("abandoned")), outcomes.append)
    provider.close()
    delay.pass_to(9)
    provider.ask(model_request(), outcomes.append)
    assert [each.error for each in outcomes[1:] if isinstance(each, ModelFailure)] == ["closed"]


def test_slower_than_the_agent_waits() -> None:
    delay = ManualDelay()
    outcomes: Outcomes = []
    ScriptedProvider(echo, latency_ms=5_000, delay=delay).ask(model_request(), outcomes.append)
    delay.pass_to(1.0)
    assert outcomes == [ModelFailure("timeout", "no whole answer within 1 s", True)]


def test_lost_replies_reached_the_model() -> None:
    delay = ManualDelay()
    outcomes: Outcomes = []
    provider = ScriptedProvider(echo, faults=Faults(lose=1.0), delay=delay)
    provider.ask(model_request(), outcomes.append)
    assert (provider.asked, outcomes) == (1, [])
    delay.pass_to(1.0)
    assert [each.error for each in outcomes if isinstance(each, ModelFailure)] == ["timeout"]


def test_faults_come_from_the_seed_alone() -> None:
    faults = Faults(seed=7, fail=0.2, lose=0.1)
    requests = [model_request(run_id=f"r{number}") for number in range(2_000)]
    first = [faults.of(each) for each in requests]
    assert first == [faults.of(each) for each in requests]
    assert first != [faults._replace(seed=8).of(each) for each in requests]
    assert first != [faults.of(each._replace(attempt=2)) for each in requests]
    assert 300 < first.count("fail") < 500
    assert 130 < first.count("lose") < 270


def test_failures_do_not_reach_the_model() -> None:
    provider = ScriptedProvider(echo, faults=Faults(fail=1.0))
    outcomes: Outcomes = []
    provider.ask(model_request(), outcomes.append)
    assert outcomes == [ModelFailure("provider_error", "a fault by seed", True)]
    assert provider.asked == 0


def test_the_delay_thread() -> None:
    delay = ThreadDelay()
    order: queue.SimpleQueue[str] = queue.SimpleQueue()

    def broken() -> None:
        raise ZeroDivisionError("the callback's own")

    delay.after(0.02, lambda: order.put("second"))
    delay.after(0.01, lambda: order.put("first"))
    delay.after(0.0, lambda: order.put("never")).cancel()
    delay.after(0.0, broken)
    assert [order.get(timeout=WAIT_S) for _ in range(2)] == ["first", "second"]
    delay.after(3_600, lambda: order.put("never"))
    delay.close()
    delay.after(0.0, lambda: order.put("never"))
    assert order.empty()


def test_the_script_of_the_readme_works() -> None:
    text = (ROOT / "services" / "loop" / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    module: dict[str, Any] = {}
    exec(code, module)
    provider = module["make"]("mine", {}, None)
    outcomes: Outcomes = []
    provider.ask(model_request(model="mine/curious"), outcomes.append)
    provider.ask(model_request(UserMessage("x"), turn=1, model="mine/curious"), outcomes.append)
    first, second = outcomes
    assert isinstance(first, ModelAnswer)
    assert isinstance(second, ModelAnswer)
    assert first.calls[0].tool == "forecast"
    assert second.text == "After 1 messages I know enough."
