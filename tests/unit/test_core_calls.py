"""The rules of calls: order, bounds, bad calls, outcomes, late news, timeouts. Each is a short story (see `test_core_rules.py`)."""

from __future__ import annotations

import pytest

from tests.unit.core_stories import TOOLS, results, started
from turnlog.core.errors import UnknownCall
from turnlog.core.events import (
    CallSettled,
    Outcome,
    RecordedCall,
    Refusal,
    RunFailed,
    RunSucceeded,
)
from turnlog.core.limits import (
    CALL_ATTEMPTS,
    ERROR_CHARS,
    VALUE_BYTES,
)
from turnlog.core.pending import next_wake, pending
from turnlog.testing.given import T0, Story, agent, call, tool

LOOK = tool("look")

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
