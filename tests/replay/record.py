"""The stories behind the histories: `python -m tests.replay.record NAME` plays one and writes it down, once.

A new feature or a fixed fault adds a story here and a history beside it. The docstring is the line that tells it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from tests.replay.histories import write
from turnlog.core.events import Outcome
from turnlog.testing.given import Story, agent, call, tool

SCHEMA = '{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}'
ADD = tool("add", parameters=SCHEMA, backoff_ms=100, timeout_ms=5_000)
TOOLS = [ADD, tool("look", timeout_ms=2_000), tool("think", takes_text=True), tool("hand_over", ends_run=True)]


def answered() -> Story:
    """Two serial calls, one free text, and an answer that ends the run."""
    story = Story(agent(), TOOLS).start("What is 1 + 2?", labels=(("tenant", "a"),))
    story.answer(call("think", raw="I should add."), call("add", n=1)).result(0, "").result(1, "3")
    return story.answer(text="It is 3.")


def in_parallel() -> Story:
    """Three calls at a bound of two; results come in any order, one only at its second attempt; the run is asking the model again."""
    story = Story(agent(parallel_calls=2), TOOLS).start()
    story.answer(call("add", n=1), call("add", n=1), call("look"))
    story.result(1, "second first").failure(0, "busy", retryable=True)
    return story.fire().result(2, "seen").result(0, "at last")


def a_conversation() -> Story:
    """The user speaks, waits, speaks while the model works, and ends it with a final input."""
    story = Story(agent(conversation=True), TOOLS).start(None)
    story.input("Hello.").answer(text="What can I do?").input("Add one.")
    story.input("And hurry.").answer(call("add", n=1)).result(0, "1").answer(text="1.")
    return story.input("Thanks. ###STOP###", final=True)


def cancelled_with_late_news() -> Story:
    """Cancelled while one call was under way and one waited; the result that came afterwards is noted and not applied."""
    story = Story(agent(), TOOLS).start().answer(call("add", n=1), call("add", n=2))
    return story.cancel().result(0, "it did happen", attempt=1)


def stopped_and_resumed() -> Story:
    """The turn limit stops it cleanly, a resume gives it one turn more, input that waited is there, and it stands stopped again."""
    story = Story(agent(turn_limit=1), TOOLS).start().answer(call("add", n=1)).input("I am still here.").result(0, "1")
    return story.resume(turns=1).answer(call("add", n=2)).result(0, "2")


def bad_calls() -> Story:
    """An unknown tool, arguments that are no JSON, no object, NaN and text with a lone surrogate: all are told to the model."""
    story = Story(agent(parallel_calls=9), TOOLS).start()
    return story.answer(
        call("ad", n=1), call("add", raw="{n: 1}"), call("add", raw="[1]"), call("add", raw='{"n": NaN}'),
        call("think", raw="\ud800"), call("add", raw=""),
    ).result(4, "")  # fmt: skip


def timed_out() -> Story:
    """A tool that gave no result in time; its late result is noted in the next turn."""
    story = Story(agent(), TOOLS).start().answer(call("look"))
    (key,) = story.keys
    return story.fire().outcome(key, Outcome("ok", "late", worker="w1"))


def the_model_failed() -> Story:
    """The provider asks for a pause, fails again, answers, and in the next turn fails for good."""
    story = Story(agent(model_attempts=3), TOOLS).start().model_fails(after_ms=3_000).fire().model_fails().fire()
    return story.answer(call("add", n=1)).result(0, "1").model_fails("bad_request", "no such model", retryable=False)


def ended_by_a_tool() -> Story:
    """A tool ends the run; the call beside it is waited for, the one behind it never starts."""
    story = Story(agent(parallel_calls=2), TOOLS).start().answer(call("hand_over"), call("add", n=1), call("add", n=2))
    return story.result(0, "a person takes over").result(1, "1")


def withheld() -> Story:
    """A call of a tool that is withheld ends the run, and the good call beside it is not started."""
    return Story(agent(), TOOLS, withheld=["delete"]).start().answer(call("add", n=1), call("delete"))


def over_its_deadline() -> Story:
    """The run's deadline is over while a retry waits."""
    slow = ADD._replace(backoff_ms=900, timeout_ms=60_000)
    return Story(agent(deadline_ms=500), [slow]).start().answer(call("add", n=1)).failure(0, retryable=True).fire()


def doubled_delivery() -> Story:
    """One attempt failed on one worker and succeeded on another: the success settles the call while its retry waits."""
    story = Story(agent(), TOOLS).start().answer(call("add", n=1))
    return story.failure(0, "row locked", retryable=True).result(0, "1", attempt=1)


def refused_and_failed() -> Story:
    """Kafka refuses a request for good; with `tool_errors: fail` that ends the run."""
    return (
        Story(agent(tool_errors="fail", parallel_calls=2), TOOLS)
        .start()
        .answer(call("add", n=1), call("look"))
        .refused(0)
    )


STORIES: dict[str, Callable[[], Story]] = {
    story.__name__: story
    for story in (
        answered, in_parallel, a_conversation, cancelled_with_late_news, stopped_and_resumed, bad_calls, timed_out,
        the_model_failed, ended_by_a_tool, withheld, over_its_deadline, doubled_delivery, refused_and_failed,
    )
}  # fmt: skip


def record(name: str) -> None:
    """Play the story and write it down. Raises FileExistsError if that was done before."""
    play = STORIES[name]
    story = play()
    print(write(name, (play.__doc__ or "").strip(), story.state, story.steps))


if __name__ == "__main__":
    for each in sys.argv[1:]:
        record(each)
