"""The rules of a run, each as a short story: given an agent, when this arrives, then that is recorded. Those of its calls are in
`test_core_calls.py`.

After every message `Story` also checks the invariants of docs/invariants.md, so these tests hold more than they say.
"""

from __future__ import annotations

import pytest

from tests.unit.core_stories import TOOLS, started
from turnlog.core.agents import Usage
from turnlog.core.errors import NotStarted, Unrecordable
from turnlog.core.events import (
    Cancel,
    Input,
    ModelAnswer,
    ModelFailure,
    Outcome,
    RunFailed,
    Start,
    Timer,
)
from turnlog.core.limits import (
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
from turnlog.core.transcript import UserMessage
from turnlog.testing.given import T0, Story, agent, call, tool

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
