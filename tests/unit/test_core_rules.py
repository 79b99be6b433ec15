"""The rules of a run, each as a short story: given an agent and its tools, when this arrives, then that is recorded.

After every message `Story` also checks the invariants of docs/invariants.md, so these tests hold more than they say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from turnlog.core.agents import MenuEntry, Usage
from turnlog.core.errors import NotStarted, UnknownCall, Unrecordable
from turnlog.core.events import (
    CallSettled,
    Cancel,
    Input,
    ModelAnswer,
    ModelFailure,
    Outcome,
    RecordedCall,
    Refusal,
    RunFailed,
    RunSucceeded,
    Start,
    Timer,
)
from turnlog.core.limits import (
    CALL_ATTEMPTS,
    CALLS_BYTES,
    CALLS_PER_TURN,
    COMMANDS_REMEMBERED,
    CUT_MARK,
    ERROR_CHARS,
    IDLE_KEEP_MS,
    QUEUED_INPUTS,
    RETRY_AFTER_CAP_MS,
    START_BYTES,
    TEXT_BYTES,
    TEXT_CHARS,
    VALUE_BYTES,
    utf8_size,
)
from turnlog.core.pending import due_timers, model_due, next_wake, pending
from turnlog.core.transcript import ToolMessage, UserMessage
from turnlog.testing.given import T0, Story, agent, call, tool

ADD, LOOK, STOP = tool("add"), tool("look"), tool("stop", ends_run=True)
THINK = tool("think", takes_text=True)
TOOLS = [ADD, LOOK, STOP, THINK]


def started(menu: Sequence[MenuEntry] = TOOLS, **overrides: Any) -> Story:
    """A run whose model is asked for the first time."""
    return Story(agent(**overrides), menu).start()


def results(story: Story) -> list[tuple[str, bool]]:
    """Content and failed mark of the tool messages in the transcript."""
    return [(m.content, m.failed) for m in story.state.transcript if isinstance(m, ToolMessage)]


# ---------------------------------------------------------------- start


def test_a_start_with_input_asks_the_model() -> None:
    story = Story(agent(), TOOLS).start("Hello.", labels=(("tenant", "a"), ("tier", "b")), traceparent="00-1-2-01")
    assert story.kinds == ["run_started", "turn_started"]
    assert story.state.labels == (("tenant", "a"), ("tier", "b"))
    assert story.state.traceparent == "00-1-2-01"
    assert model_due(story.state)
    request = pending(story.state).model
    assert request is not None
    assert request.messages == (UserMessage("Hello."),)
    assert request.digest == story.payload("turn_started").request_digest


def test_a_start_without_input_asks_the_model_all_the_same() -> None:
    assert Story(agent(), TOOLS).start(None).kinds == ["run_started", "turn_started"]


def test_a_conversation_without_input_waits_for_its_user() -> None:
    story = Story(agent(conversation=True), TOOLS).start(None)
    assert story.kinds == ["run_started", "input_awaited"]
    assert (story.state.status, story.state.phase) == ("waiting", "input")
    assert story.input("Hello.").kinds == ["input_received", "turn_started"]


def test_a_start_overrides_the_bounds_of_its_agent() -> None:
    state = (
        Story(agent(turn_limit=9, tool_call_budget=9, deadline_ms=9), TOOLS)
        .start(turn_limit=2, tool_call_budget=3, deadline_ms=4)
        .state
    )
    assert (state.turn_limit, state.tool_call_budget, state.deadline) == (2, 3, state.at + 4)


def test_a_second_start_makes_nothing_while_running_and_after_the_end() -> None:
    story = started()
    assert story.start("Another.").events == ()
    story.answer(text="Bye.")
    assert story.start("Another.").events == ()


def test_nothing_but_a_start_opens_a_run() -> None:
    story = Story()
    for body in (Input("i", "hello"), Outcome("ok", ""), Timer("idle", 1), ModelAnswer("hello")):
        with pytest.raises(NotStarted):
            story.when(body)


@pytest.mark.parametrize("bound", ["turn_limit", "tool_call_budget", "deadline_ms"])
def test_a_bound_below_zero_is_none(bound: str) -> None:
    story = Story(agent(**{bound: -5}), TOOLS).start()
    assert story.kinds == ["run_started", "turn_started"]
    assert next_wake(story.state) == 0
    assert story.answer(call("add")).kinds == ["model_answered", "call_requested"]


# ---------------------------------------------------------------- answers


def test_an_answer_without_calls_ends_the_run() -> None:
    story = started().answer(text="42.")
    assert story.kinds == ["model_answered", "run_succeeded"]
    assert (story.state.status, story.state.reason, story.state.answer) == ("succeeded", "answered", "42.")
    assert story.state.usage == Usage(10, 1)


def test_an_answer_of_a_conversation_waits_for_the_user() -> None:
    story = started(conversation=True).answer(text="And now?")
    assert story.kinds == ["model_answered", "input_awaited"]
    assert story.input("Go on.").kinds == ["input_received", "turn_started"]
    assert story.answer(text="Done.").kinds == ["model_answered", "input_awaited"]


@pytest.mark.parametrize("text", [None, ""])
def test_an_empty_answer_is_an_answer(text: str | None) -> None:
    """What is no answer (cut off, broken stream) the provider reports as a failure; a model may have nothing to say."""
    assert started().answer(text=text).kinds == ["model_answered", "run_succeeded"]


def test_an_answer_counts_once_and_only_for_the_turn_and_attempt_under_way() -> None:
    story = started().answer(call("add"))
    again = ModelAnswer(None, (call("add"),))
    assert story.when(again, turn=0, attempt=1).events == ()
    story.result(0)
    assert story.when(again, turn=0, attempt=1).events == ()
    assert story.when(again, turn=1, attempt=2).events == ()
    assert story.when(again, turn=2, attempt=1).events == ()
    assert story.when(again).events == ()


def test_a_long_text_is_cut_once() -> None:
    story = started(conversation=True).answer(text="x" * (TEXT_CHARS + 1))
    text = story.payload("model_answered").text
    assert len(text) == TEXT_CHARS
    assert text.endswith(CUT_MARK)
    assert story.input("on").answer(text=text).payload("model_answered").text == text
    assert started().answer(text="x" * TEXT_CHARS).payload("model_answered").text == "x" * TEXT_CHARS


@pytest.mark.parametrize("character", ["é", "語", "🙂", "\ud800"])
def test_a_long_text_is_cut_between_characters(character: str) -> None:
    text = started().answer(text=character * TEXT_CHARS).payload("model_answered").text
    assert utf8_size(text) <= TEXT_BYTES
    assert set(text.removesuffix(CUT_MARK)) == {character}


def test_calls_are_never_cut_but_fail_the_run() -> None:
    for calls in ([call("add")] * (CALLS_PER_TURN + 1), [call("add", raw="x" * CALLS_BYTES)]):
        story = started().answer(*calls)
        assert story.kinds == ["model_failed", "run_failed"]
        assert story.payload("model_failed").error == "answer_too_large"
        assert story.state.reason == "model_failed"
    assert len(started(parallel_calls=999).answer(*[call("add")] * CALLS_PER_TURN).state.calls) == CALLS_PER_TURN


def test_the_largest_answers_still_fit_into_one_record() -> None:
    """Story checks the size of every group (I10)."""
    huge = tool("🙂" * 3_000, parameters="🙂" * 5_000)
    for calls in (
        [call("x" * 3_000, raw="{")] * 128,
        [call(huge.name, raw="{")] * 32,
        [call("add", raw='"' + "🙂" * 98_000 + '"')],
    ):
        story = started([*TOOLS, huge]).answer(*calls, text="🙂" * TEXT_CHARS)
        assert story.kinds[0] == "model_answered"
    started().answer(text="🙂" * TEXT_CHARS)
    closing = started([tool("stop", ends_run=True)], parallel_calls=1).answer(
        *[call("stop")] * 128, text="🙂" * TEXT_CHARS
    )
    closing.result(0, "x" * VALUE_BYTES)
    assert closing.state.reason == "ended_by_tool"


# ---------------------------------------------------------------- calls: order and bounds


def test_serial_calls_go_out_one_after_the_other() -> None:
    story = started().answer(call("add", n=1), call("add", n=2))
    assert story.kinds == ["model_answered", "call_requested"]
    assert story.result(0, "one").kinds == ["outcome_received", "call_settled", "call_requested"]
    assert story.result(1, "two").kinds == ["outcome_received", "call_settled", "turn_started"]
    assert results(story) == [("one", False), ("two", False)]


def test_parallel_calls_keep_to_their_bound() -> None:
    story = started(parallel_calls=2).answer(*[call("add", n=n) for n in range(4)])
    assert story.kinds == ["model_answered", "call_requested", "call_requested"]
    assert [each.position for each in pending(story.state).requests] == [0, 1]
    assert story.result(1).kinds == ["outcome_received", "call_settled", "call_requested"]
    assert [each.position for each in pending(story.state).requests] == [0, 2]


@pytest.mark.parametrize("bound", [0, -1])
def test_a_bound_below_one_is_one(bound: int) -> None:
    assert started(parallel_calls=bound).answer(call("add"), call("add")).kinds == ["model_answered", "call_requested"]


def test_results_go_back_in_the_order_of_the_calls() -> None:
    story = started(parallel_calls=3).answer(*[call("add", n=n) for n in range(3)])
    story.result(2, "c").result(0, "a").result(1, "b")
    assert [content for content, _ in results(story)] == ["a", "b", "c"]


def test_the_same_call_twice_in_one_answer_is_two_calls() -> None:
    story = started(parallel_calls=2).answer(call("add", n=1), call("add", n=1))
    assert len(set(story.keys)) == 2
    story.result(0, "a")
    assert story.state.calls[1].stage == "requested"


def test_requests_say_where_to_and_until_when() -> None:
    request = started().answer(call("add")).payload("call_requested")
    assert (request.toolset, request.topic, request.not_after) == ("test", "tool-requests.test", T0 + 20 + 60_000)


# ---------------------------------------------------------------- bad calls never raise


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (call("ad"), "There is no tool named 'ad'. Did you mean 'add'? Tools you can call: add, look, stop, think."),
        (call("zebra"), "There is no tool named 'zebra'. Tools you can call"),
        (call("add", raw="{"), "are not valid JSON"),
        (call("add", raw=""), "are empty"),
        (call("add", raw="[1]"), "are JSON but not an object"),
        (call("add", raw='{"n": NaN}'), "are not valid JSON"),
        (call("add", raw='{"n": -Infinity}'), "are not valid JSON"),
        (call("add", raw='{"n": 1e999}'), "are not valid JSON"),
        (call("add", raw='{"n": ' + "9" * 5_000 + "}"), "are not valid JSON"),
        (call("add", raw='{"n": ' + "[" * 100_000 + "]" * 100_000 + "}"), "are not valid JSON"),
        (call("x" * 5_000), "There is no tool named"),
        (call("\ud800"), "There is no tool named '\\ud800'"),
    ],
)
def test_the_model_is_told_how_to_mend_a_bad_call(bad: RecordedCall, says: str) -> None:
    story = started().answer(bad)
    assert story.kinds == ["model_answered", "call_settled", "turn_started"]
    settled = story.payload("call_settled")
    assert settled.status == "rejected"
    assert says in settled.content
    assert len(settled.content) <= ERROR_CHARS
    assert results(story) == [(settled.content, True)]


def test_arguments_that_break_the_schema_are_told_with_the_schema() -> None:
    story = Story(
        agent(), [tool("add", parameters='{"required":["n"]}')], validate=lambda entry, value: "n is missing"
    ).start()
    content = story.answer(call("add")).payload("call_settled").content
    assert "do not fit its schema: n is missing" in content
    assert '{"required":["n"]}' in content


def test_without_tools_the_model_is_told_so() -> None:
    assert "Tools you can call: none." in started([]).answer(call("add")).payload("call_settled").content


def test_a_bad_call_beside_good_ones() -> None:
    story = started(parallel_calls=3).answer(call("nope"), call("add"), call("look"))
    assert story.kinds == ["model_answered", "call_settled", "call_requested", "call_requested"]
    story.result(2).result(1)
    assert [failed for _, failed in results(story)] == [True, False, False]


def test_rejection_is_feedback_also_where_tool_errors_fail_the_run() -> None:
    assert started(tool_errors="fail").answer(call("nope")).kinds[-1] == "turn_started"


def test_a_withheld_tool_ends_the_run() -> None:
    story = Story(agent(parallel_calls=2), TOOLS, withheld=["delete"]).start().answer(call("add"), call("delete"))
    assert story.kinds == ["model_answered", "call_settled", "call_settled", "run_failed"]
    assert (story.state.status, story.state.reason) == ("failed", "tool_withheld")


def test_a_tool_on_the_menu_is_not_withheld() -> None:
    assert Story(agent(), TOOLS, withheld=["add"]).start().answer(call("add")).kinds[-1] == "call_requested"


@pytest.mark.parametrize("text", ["plain words", "", "{", "NaN", "\ud800", "{}"])
def test_a_free_text_tool_takes_anything(text: str) -> None:
    story = started().answer(call("think", raw=text))
    assert story.kinds == ["model_answered", "call_requested"]
    assert story.state.calls[0].arguments == text
    assert story.result(0, "").kinds == ["outcome_received", "call_settled", "turn_started"]
    assert results(story) == [("", False)]


# ---------------------------------------------------------------- tools that end the run


def test_a_tool_may_end_the_run() -> None:
    story = started().answer(call("stop")).result(0, "bye")
    assert story.kinds == ["outcome_received", "call_settled", "run_succeeded"]
    assert story.payload("run_succeeded") == RunSucceeded("ended_by_tool", "bye")


def test_calls_behind_an_ending_one_are_not_started() -> None:
    story = started().answer(call("stop"), call("add")).result(0)
    assert story.kinds == ["outcome_received", "call_settled", "call_settled", "run_succeeded"]
    assert story.state.calls[1].settlement == "not_started"


def test_calls_beside_an_ending_one_are_waited_for() -> None:
    story = started(parallel_calls=2).answer(call("stop"), call("add"), call("look")).result(0, "bye")
    assert story.kinds == ["outcome_received", "call_settled", "call_settled"]
    assert story.result(1).kinds == ["outcome_received", "call_settled", "run_succeeded"]
    assert story.state.answer == "bye"


def test_a_call_beside_an_ending_one_may_be_tried_again() -> None:
    story = started(parallel_calls=2).answer(call("stop"), call("add")).failure(1, retryable=True).result(0, "bye")
    assert story.kinds == ["outcome_received", "call_settled"]
    assert story.fire().kinds == ["timer_fired", "call_requested"]
    assert story.result(1).kinds[-1] == "run_succeeded"


def test_an_ending_tool_that_fails_ends_nothing() -> None:
    assert started().answer(call("stop")).failure(0).kinds == ["outcome_received", "call_settled", "turn_started"]


# ---------------------------------------------------------------- outcomes


def test_a_failing_tool_is_feedback() -> None:
    story = started().answer(call("add")).failure(0, "no such number")
    assert story.kinds == ["outcome_received", "call_settled", "turn_started"]
    assert results(story) == [("no such number", True)]


def test_a_failing_tool_ends_the_run_where_the_agent_says_so() -> None:
    story = started(tool_errors="fail", parallel_calls=2).answer(call("add"), call("look")).failure(0, "no")
    assert story.kinds == ["outcome_received", "call_settled", "call_settled", "run_failed"]
    assert story.payload("run_failed") == RunFailed("tool_error", "add: no")
    assert story.state.calls[1].settlement == "cancelled"


def test_a_fatal_failure_ends_the_run_and_is_not_tried_again() -> None:
    story = started().answer(call("add")).failure(0, "on fire", fatal=True, retryable=True)
    assert story.kinds == ["outcome_received", "call_settled", "run_failed"]
    assert story.state.reason == "tool_fatal"


def test_a_retryable_failure_is_tried_again_by_timer() -> None:
    story = started([tool("add", attempts=3, backoff_ms=100)]).answer(call("add"))
    assert story.failure(0, retryable=True).kinds == ["outcome_received", "call_retry_set"]
    assert pending(story.state).requests == ()
    assert next_wake(story.state) == story.now + 100
    assert story.fire().kinds == ["timer_fired", "call_requested"]
    assert story.events[-1].attempt == 2
    assert story.failure(0, retryable=True).payload("call_retry_set").wake_at == story.now + 200
    story.fire()
    assert story.failure(0, "given up", retryable=True).kinds == ["outcome_received", "call_settled", "turn_started"]
    assert results(story) == [("given up", True)]


def test_all_attempts_have_one_key_and_one_deadline() -> None:
    story = started().answer(call("add"))
    first = story.payload("call_requested").not_after
    story.failure(0, retryable=True).fire()
    assert story.payload("call_requested").not_after == first
    assert {e.call_key for step in story.steps for e in step if e.call_key} == set(story.keys)


def test_attempts_have_a_bound_of_their_own() -> None:
    story = started([tool("add", attempts=10**9, backoff_ms=0, timeout_ms=10**9)]).answer(call("add"))
    for _ in range(CALL_ATTEMPTS - 1):
        assert story.failure(0, retryable=True).fire().kinds == ["timer_fired", "call_requested"]
    assert story.failure(0, retryable=True).kinds == ["outcome_received", "call_settled", "turn_started"]


def test_a_retry_that_would_come_after_the_deadline_is_not_set() -> None:
    story = started([tool("add", backoff_ms=60_000, timeout_ms=60_000)]).answer(call("add"))
    assert story.failure(0, retryable=True).kinds == ["outcome_received", "call_settled", "turn_started"]


def test_a_result_of_an_earlier_attempt_settles_a_call_that_is_still_open() -> None:
    """A request delivered twice: the first worker failed, the second one did it after all."""
    story = started().answer(call("add")).failure(0, retryable=True).fire()
    assert story.result(0, "done by 1", attempt=1).kinds == ["outcome_received", "call_settled", "turn_started"]
    assert list(story.state.open_calls) == [story.steps[-1][0].call_key], "attempt 2 is still out"
    key = story.steps[-1][0].call_key or ""
    assert story.outcome(key, Outcome("ok", "done by 2"), 2).kinds == ["late_outcome_noted"]
    assert story.state.open_calls == {}


def test_a_success_while_a_retry_waits_settles_the_call() -> None:
    story = started().answer(call("add")).failure(0, retryable=True).result(0, "it was done")
    assert story.kinds == ["outcome_received", "call_settled", "turn_started"]
    assert results(story) == [("it was done", False)]
    assert next_wake(story.state) == 0


def test_a_success_after_a_final_failure_of_the_same_attempt_is_noted() -> None:
    """It did happen, so the log must know."""
    story = started().answer(call("add"))
    (key,) = story.keys
    story.failure(0, "connection lost")
    assert story.outcome(key, Outcome("ok", "done"), 1).kinds == ["late_outcome_noted"]
    assert story.outcome(key, Outcome("ok", "done"), 1).events == ()
    assert results(story) == [("connection lost", True)]


def test_a_repeated_outcome_makes_nothing() -> None:
    story = started(parallel_calls=2).answer(call("add"), call("look")).result(0)
    assert story.result(0, attempt=1).events == ()
    assert story.outcome(story.keys[0], Outcome("ok", "other words"), 1).events == ()
    story.failure(1, retryable=True)
    assert story.failure(1, retryable=True).events == ()
    assert story.fire().failure(1, attempt=1).events == (), "attempt 1 failed before"


@pytest.mark.parametrize("attempt", [0, -1, 2, 2**31])
def test_an_attempt_that_was_never_requested_is_unknown(attempt: int) -> None:
    story = started().answer(call("add"))
    with pytest.raises(UnknownCall):
        story.outcome(story.keys[0], Outcome("ok", ""), attempt)
    story.result(0)
    with pytest.raises(UnknownCall):
        story.outcome(story.steps[1][1].call_key or "", Outcome("ok", ""), attempt)


@pytest.mark.parametrize("key", ["", "story", "story:t0:c1:0000000000000000", "other:t0:c0:0000000000000000"])
def test_a_call_that_was_never_requested_is_unknown(key: str) -> None:
    story = started().answer(call("add"), call("look"))
    with pytest.raises(UnknownCall):
        story.outcome(key, Outcome("ok", ""))
    with pytest.raises(UnknownCall):
        story.outcome(story.keys[1], Outcome("ok", ""))
    with pytest.raises(UnknownCall):
        story.when(Outcome("ok", ""))


def test_a_result_too_large_becomes_an_error_that_says_so() -> None:
    story = started().answer(call("add")).result(0, "é" * (VALUE_BYTES // 2 + 1))
    ((content, failed),) = results(story)
    assert failed
    assert content == f"The result has {VALUE_BYTES + 2} bytes, at most {VALUE_BYTES} are allowed. The call did happen."
    assert results(started().answer(call("add")).result(0, "é" * (VALUE_BYTES // 2))) == [
        ("é" * (VALUE_BYTES // 2), False)
    ]


def test_error_text_is_bounded_and_words_are_too() -> None:
    story = started().answer(call("add"))
    body = Outcome("error", "x" * 9_999, "e" * 9_999, worker="w" * 9_999)
    recorded = story.outcome(story.keys[0], body).payload("outcome_received")
    assert len(recorded.content) == ERROR_CHARS
    assert max(len(recorded.error), len(recorded.worker)) <= 200


def test_lone_surrogates_pass_through_everything() -> None:
    story = (
        Story(agent(), TOOLS)
        .start("\ud800")
        .answer(call("add", raw='{"n": "\ud800"}'), text="\udfff")
        .result(0, "\ud83d")
    )
    assert results(story) == [("\ud83d", False)]


@pytest.mark.parametrize("status", ["ERROR", "", "timeout"])
def test_every_status_but_ok_is_an_error(status: str) -> None:
    story = started().answer(call("add"))
    story.outcome(story.keys[0], Outcome(status, "hm"))
    assert story.payload("outcome_received").status == "error"
    assert results(story) == [("hm", True)]


# ---------------------------------------------------------------- late news


def test_a_late_outcome_is_noted_once_and_never_applied() -> None:
    story = started([tool("add", timeout_ms=1_000)]).answer(call("add"))
    (key,) = story.keys
    assert story.fire().kinds == ["timer_fired", "call_settled", "turn_started"]
    before = list(story.state.transcript)
    assert story.outcome(key, Outcome("ok", "after all")).kinds == ["late_outcome_noted"]
    (noted,) = story.events
    assert (noted.turn, noted.position, noted.tool, noted.attempt) == (0, 0, "add", 1)
    assert story.state.transcript == before
    assert story.outcome(key, Outcome("ok", "after all")).events == ()


def test_a_late_outcome_is_noted_after_the_end() -> None:
    story = started().answer(call("add")).cancel()
    assert list(story.state.open_calls) == story.keys
    assert story.result(0, attempt=1).kinds == ["late_outcome_noted"]
    assert story.state.open_calls == {}
    assert story.state.status == "cancelled"
    assert story.result(0, attempt=1).events == ()
    with pytest.raises(UnknownCall):
        story.outcome("story:t9:c9:0000000000000000", Outcome("ok", ""))


def test_a_late_outcome_within_its_turn_is_noted() -> None:
    story = started([tool("add", timeout_ms=1_000), LOOK], parallel_calls=2).answer(call("add"), call("look")).fire()
    assert story.kinds == ["timer_fired", "call_settled"]
    assert story.result(0, "late", attempt=1).kinds == ["late_outcome_noted"]
    assert story.result(1).kinds[-1] == "turn_started"


# ---------------------------------------------------------------- requests that cannot be delivered


def test_a_refused_request_settles_its_call_as_unreachable() -> None:
    story = started().answer(call("add")).refused(0)
    assert story.kinds == ["request_refused", "call_settled", "turn_started"]
    assert results(story) == [("The tool 'add' could not be reached: message too large", True)]
    assert story.state.open_calls == {}


def test_a_refusal_counts_once_and_for_its_attempt_only() -> None:
    story = started(parallel_calls=2).answer(call("add"), call("look"))
    assert story.when(Refusal("no"), call_key=story.keys[0], attempt=2).events == ()
    assert story.when(Refusal("no"), call_key="other", attempt=1).events == ()
    story.refused(0)
    assert story.refused(0).events == ()


def test_a_refused_request_that_was_answered_all_the_same_is_noted() -> None:
    story = started(parallel_calls=2).answer(call("add"), call("look")).refused(0)
    assert story.result(0, attempt=1).kinds == ["late_outcome_noted"]


# ---------------------------------------------------------------- tool timeouts


def test_a_tool_times_out_by_timer() -> None:
    story = started([tool("add", timeout_ms=1_500)]).answer(call("add"))
    assert next_wake(story.state) == story.now + 1_500
    assert story.fire().kinds == ["timer_fired", "call_settled", "turn_started"]
    assert results(story) == [("The tool 'add' gave no result within 1.5 s. It may have happened all the same.", True)]


def test_a_timeout_makes_room_for_the_next_call() -> None:
    story = started([tool("add", timeout_ms=1_000)]).answer(call("add", n=1), call("add", n=2)).fire()
    assert story.kinds == ["timer_fired", "call_settled", "call_requested"]
    assert story.payload("call_requested").not_after == story.now + 990, "its own second, from when the timer was fired"


def test_the_deadline_holds_while_a_retry_waits() -> None:
    story = started([tool("add", timeout_ms=1_000, backoff_ms=900)]).answer(call("add")).failure(0, retryable=True)
    due = story.state.calls[0].deadline
    assert story.timer("call_deadline", due, at=due, turn=0, position=0).kinds == [
        "timer_fired",
        "call_settled",
        "turn_started",
    ]


def test_a_loop_that_slept_does_not_retry_what_is_over() -> None:
    story = started([tool("add", timeout_ms=1_000, backoff_ms=100)]).answer(call("add")).failure(0, retryable=True)
    assert story.fire(later_ms=5_000).kinds == ["timer_fired", "call_settled", "turn_started"]
    assert story.steps[-1][1].payload == CallSettled("timed_out", results(story)[0][0])


def test_a_retry_behind_its_deadline_is_a_timeout() -> None:
    story = started([tool("add", timeout_ms=1_000, backoff_ms=100)]).answer(call("add")).failure(0, retryable=True)
    due = story.state.calls[0].retry_at
    story.timer("call_retry", due, at=story.state.calls[0].deadline, turn=0, position=0)
    assert story.kinds == ["timer_fired", "call_settled", "turn_started"]


# ---------------------------------------------------------------- timers in general


@pytest.mark.parametrize("timer", ["run_deadline", "model_retry", "idle", "call_deadline", "call_retry", "unheard_of"])
@pytest.mark.parametrize("due", [0, -1, 1, T0 + 5])
def test_a_timer_that_is_not_set_makes_nothing(timer: str, due: int) -> None:
    for story in (started(), started().answer(call("add")), started(conversation=True).answer(text="?")):
        assert story.timer(timer, due, turn=0, position=0).events == ()
        assert story.timer(timer, due, turn=0, position=7).events == ()
        assert story.timer(timer, due).events == ()


def test_no_timer_fires_before_its_time() -> None:
    story = started().answer(call("add"))
    due = story.state.calls[0].deadline
    assert story.timer("call_deadline", due, at=due - 1, turn=0, position=0).events == ()
    assert story.timer("call_deadline", due, at=due, turn=0, position=0).kinds[0] == "timer_fired"


def test_due_timers_carry_the_owners_clock_and_ends_come_first() -> None:
    story = started([tool("add", backoff_ms=100)], deadline_ms=5_000).answer(call("add")).failure(0, retryable=True)
    due = due_timers(story.state, story.now + 100_000)
    assert [m.body.timer for m in due if isinstance(m.body, Timer)] == ["run_deadline", "call_deadline", "call_retry"]
    assert {m.at for m in due} == {story.now + 100_000}
    assert due_timers(story.state, story.now) == []


def test_time_never_goes_backwards() -> None:
    story = started().when(Input("i", "hm"), at=5)
    assert story.events[0].at == story.state.at == T0 + 10


# ---------------------------------------------------------------- input


def test_input_while_working_waits_for_the_next_boundary() -> None:
    story = started().input("first")
    assert story.kinds == ["input_received"]
    assert story.answer(call("add")).input("second").kinds == ["input_received"]
    assert story.result(0).kinds[-1] == "turn_started"
    assert [m.text for m in story.state.transcript if isinstance(m, UserMessage)] == ["Hello.", "first", "second"]
    assert story.state.inputs == []


def test_input_keeps_a_run_going_that_would_have_ended() -> None:
    assert started().input("wait").answer(text="Done.").kinds == ["model_answered", "turn_started"]


def test_a_final_input_ends_the_conversation() -> None:
    story = started(conversation=True).answer(text="Anything else?").input("No.", final=True)
    assert story.kinds == ["input_received", "run_succeeded"]
    assert (story.state.reason, story.state.answer) == ("final_input", "Anything else?")
    assert story.state.transcript[-1] == UserMessage("No.")


def test_a_final_input_while_working_ends_the_run_at_the_boundary() -> None:
    story = started(conversation=True).answer(call("add"), text="Let me see.").input("Thanks, bye.", final=True)
    assert story.kinds == ["input_received"]
    assert story.result(0).kinds == ["outcome_received", "call_settled", "run_succeeded"]
    assert story.state.answer == "Let me see."


def test_nothing_is_taken_after_a_final_input() -> None:
    story = started().input("bye", final=True).input("one more")
    assert story.kinds == ["command_noted"]
    assert story.payload("command_noted").reason == "a final input is already waiting"
    assert story.input("one more", command_id=story.payload("command_noted").command_id).events == ()


def test_the_queue_of_inputs_is_bounded() -> None:
    story = started()
    for n in range(QUEUED_INPUTS):
        assert story.input(str(n)).kinds == ["input_received"]
    assert story.input("too many").kinds == ["command_noted"]
    assert story.answer(text="").kinds == ["model_answered", "turn_started"]
    assert story.input("room again").kinds == ["input_received"]


def test_a_command_is_taken_once() -> None:
    story = started(conversation=True).input("a", command_id="same")
    assert story.input("b", command_id="same").events == ()
    assert story.input("c", command_id="start").events == (), "the start was a command, too"
    assert story.cancel(command_id="same").events == ()


def test_the_last_commands_are_remembered() -> None:
    story = started(conversation=True)
    for n in range(COMMANDS_REMEMBERED + 5):
        story.resume(command_id=f"r{n}")
        assert story.kinds == ["command_noted"]
    assert len(story.state.commands) == COMMANDS_REMEMBERED
    assert story.resume(command_id=f"r{COMMANDS_REMEMBERED + 4}").events == ()
    assert story.resume(command_id="r0").kinds == ["command_noted"]


# ---------------------------------------------------------------- cancel


@pytest.mark.parametrize("phase", ["model", "retry of the model", "calls", "retry of a call", "input", "stopped"])
def test_a_run_can_be_cancelled_in_every_phase(phase: str) -> None:
    story = started(conversation=True, turn_limit=1)
    match phase:
        case "retry of the model":
            story.model_fails()
        case "calls":
            story.answer(call("add"), call("look"))
        case "retry of a call":
            story.answer(call("add"), call("look")).failure(0, retryable=True)
        case "input":
            story.answer(text="?")
        case "stopped":
            story.answer(text="?").input("on")
    calls = [each.settlement for each in story.state.calls if each.settlement]
    story.cancel()
    assert (story.kinds[0], story.kinds[-1]) == ("cancel_requested", "run_cancelled")
    assert (story.state.status, story.state.reason, next_wake(story.state)) == ("cancelled", "cancelled", 0)
    if "call" in phase:
        assert calls == []
        assert [each.settlement for each in story.state.calls] == ["cancelled", "not_started"]
    assert story.cancel("again").events == ()


def test_a_call_whose_retry_waits_is_not_outstanding() -> None:
    story = started().answer(call("add")).failure(0, retryable=True)
    assert story.state.open_calls == {}
    assert story.cancel().state.open_calls == {}


def test_queued_input_stands_in_the_transcript_of_a_run_that_was_cancelled() -> None:
    assert started().input("wait!").cancel().state.transcript[-1] == UserMessage("wait!")


# ---------------------------------------------------------------- turn limit, budget, resume


def test_the_turn_limit_is_a_clean_stop_that_can_be_resumed() -> None:
    story = started(turn_limit=1).answer(call("add")).result(0)
    assert story.kinds == ["outcome_received", "call_settled", "run_stopped"]
    assert (story.state.status, story.state.reason) == ("stopped", "turn_limit")
    assert next_wake(story.state) == story.now + IDLE_KEEP_MS
    assert story.resume().kinds == ["resume_requested", "turn_started"]
    assert story.answer(call("add")).result(0).kinds[-1] == "run_stopped"


def test_a_stopped_run_goes_on_for_as_many_turns_as_asked() -> None:
    story = started(turn_limit=1).answer(call("add")).result(0).resume(turns=2)
    assert story.answer(call("add")).result(0).kinds[-1] == "turn_started"
    assert story.answer(call("add")).result(0).kinds[-1] == "run_stopped"
    assert story.resume(turns=-7).answer(call("add")).result(0).kinds[-1] == "run_stopped", "not for ever"


def test_input_resumes_a_stopped_run() -> None:
    story = started(turn_limit=1).answer(call("add")).result(0)
    assert story.input("go on").kinds == ["input_received", "turn_started"]
    assert story.state.transcript[-1] == UserMessage("go on")


def test_a_final_input_ends_a_stopped_run() -> None:
    assert started(turn_limit=1).answer(call("add")).result(0).input("enough", final=True).kinds == [
        "input_received",
        "run_succeeded",
    ]


def test_inputs_that_waited_are_there_after_a_resume() -> None:
    story = started(turn_limit=1).input("waiting").answer(call("add")).result(0)
    assert story.kinds[-1] == "run_stopped"
    assert len(story.state.inputs) == 1
    story.resume()
    assert story.state.transcript[-1] == UserMessage("waiting")
    assert story.payload("turn_started").messages == len(story.state.transcript)


def test_only_a_stopped_run_can_be_resumed() -> None:
    for story in (started(), started().answer(call("add")), started(conversation=True).answer(text="?")):
        assert story.resume().kinds == ["command_noted"]
        assert story.payload("command_noted").reason == "only a stopped run can be resumed"


def test_the_tool_call_budget_is_a_breach() -> None:
    story = started(tool_call_budget=2, parallel_calls=2).answer(call("add")).result(0).answer(call("add"), call("add"))
    assert story.kinds == ["model_answered", "call_settled", "call_settled", "run_failed"]
    assert story.payload("run_failed") == RunFailed(
        "tool_call_budget", "the answer asks for call 3 of this run, its budget is 2"
    )
    assert started(tool_call_budget=2).answer(call("add"), call("add")).kinds[-1] == "call_requested"


# ---------------------------------------------------------------- model failures


def test_a_model_failure_is_tried_again_by_timer() -> None:
    story = started(model_attempts=3, model_backoff_ms=500).model_fails()
    assert story.kinds == ["model_failed", "model_retry_set"]
    assert not model_due(story.state)
    assert next_wake(story.state) == story.now + 500
    assert story.fire().kinds == ["timer_fired"]
    assert model_due(story.state)
    request = pending(story.state).model
    assert request is not None
    assert request.attempt == 2
    assert story.model_fails().payload("model_retry_set").wake_at == story.now + 1_000
    assert story.fire().model_fails().kinds == ["model_failed", "run_failed"]
    assert story.payload("run_failed") == RunFailed("model_failed", "unavailable: try later")


def test_a_retry_has_the_same_request_and_its_answer_counts() -> None:
    story = started()
    digest = story.state.request_digest
    story.model_fails().fire()
    assert story.state.request_digest == digest
    assert story.when(ModelAnswer("from the first attempt"), turn=0, attempt=1).events == ()
    assert story.answer(text="yes").kinds == ["model_answered", "run_succeeded"]


def test_a_provider_may_ask_for_a_longer_pause_within_reason() -> None:
    assert started().model_fails(after_ms=30_000).payload("model_retry_set").wake_at == T0 + 20 + 30_000
    assert started().model_fails(after_ms=10**15).payload("model_retry_set").wake_at == T0 + 20 + RETRY_AFTER_CAP_MS
    assert started().model_fails(after_ms=-(10**15)).payload("model_retry_set").wake_at == T0 + 20 + 500


def test_a_failure_that_cannot_be_mended_ends_the_run() -> None:
    story = started().model_fails("bad_request", "x" * 9_999, retryable=False)
    assert story.kinds == ["model_failed", "run_failed"]
    assert len(story.state.error or "") <= ERROR_CHARS


def test_nothing_is_awaited_while_the_retry_waits() -> None:
    story = started().model_fails()
    assert story.when(ModelFailure("x", "", True), turn=0, attempt=1).events == ()
    assert story.when(ModelAnswer("late"), turn=0, attempt=1).events == ()
    assert story.input("hurry").kinds == ["input_received"]


# ---------------------------------------------------------------- deadlines and waiting


@pytest.mark.parametrize("phase", ["model", "calls", "input"])
def test_the_deadline_of_a_run_ends_it(phase: str) -> None:
    story = started(deadline_ms=5_000, conversation=True)
    if phase == "calls":
        story.answer(call("add"), call("look"))
    if phase == "input":
        story.answer(text="?")
    story.fire()
    assert (story.kinds[0], story.kinds[-1]) == ("timer_fired", "run_failed")
    assert (story.state.reason, story.now) == ("deadline", T0 + 10 + 5_000 + 10)
    assert all(each.settlement for each in story.state.calls)


def test_a_deadline_counts_from_the_start_across_turns_and_goes_on_after_a_stop() -> None:
    story = started(deadline_ms=5_000, turn_limit=1).answer(call("add")).result(0)
    assert next_wake(story.state) == story.now + IDLE_KEEP_MS, "a clean end does not become a failure by waiting"
    story.now += 6_000
    story.resume()
    assert story.fire().kinds == ["timer_fired", "run_failed"]


@pytest.mark.parametrize("how", ["waiting", "stopped"])
def test_a_run_that_waits_too_long_expires(how: str) -> None:
    story = started(conversation=True, turn_limit=1).answer(text="?")
    if how == "stopped":
        story.input("on")
    assert story.state.status == how
    assert story.fire().kinds == ["timer_fired", "run_cancelled"]
    assert (story.state.status, story.state.reason) == ("cancelled", "expired")


def test_input_takes_the_expiry_away() -> None:
    story = started(conversation=True).answer(text="?")
    due = story.state.idle_at
    story.input("here")
    assert story.timer("idle", due, at=due).events == ()


# ---------------------------------------------------------------- commands that cannot be recorded


def test_a_command_too_large_for_the_journal_is_refused_and_changes_nothing() -> None:
    story = Story(agent(), TOOLS)
    huge = tool("huge", parameters="x" * START_BYTES)
    for body in (
        Start("start", story.agent, (), input="x" * (VALUE_BYTES + 1)),
        Start("start", story.agent, (huge,)),
        Start("s" * 300, story.agent, ()),
        Start("start", story.agent, (), labels=(("a", "x" * START_BYTES),)),
    ):
        with pytest.raises(Unrecordable, match="at most"):
            story.when(body)
    story.start()
    with pytest.raises(Unrecordable):
        story.input("é" * VALUE_BYTES)
    assert story.input("x" * VALUE_BYTES).kinds == ["input_received"]


def test_the_reason_of_a_cancel_is_bounded() -> None:
    story = started().when(Cancel("c", "x" * 100_000))
    assert len(story.payload("cancel_requested").reason) == ERROR_CHARS
