"""Given, when, then for runs, without Kafka: a `Story` is one run in memory to which things happen, one step each.

    story = Story(agent(parallel_calls=2), [tool("add"), tool("stop", ends_run=True)])
    story.start("What is 1 + 1?")
    story.answer(call("add", a=1, b=1))
    story.result(0, "2")
    assert story.kinds == ["outcome_received", "call_settled", "turn_started"]

After every step the invariants of docs/invariants.md are checked; what breaks raises `turnlog.testing.invariants.Broken`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from turnlog.core.agents import AgentSpec, MenuEntry, Usage
from turnlog.core.decide import Validate, decide
from turnlog.core.events import (
    Body,
    Cancel,
    Event,
    Input,
    Message,
    ModelAnswer,
    ModelFailure,
    Outcome,
    RecordedCall,
    Refusal,
    Resume,
    Start,
    Timer,
)
from turnlog.core.evolve import evolve
from turnlog.core.ids import canonical_json
from turnlog.core.pending import due_timers, next_wake
from turnlog.core.state import RunState
from turnlog.testing.invariants import check_run, hold

T0 = 1_700_000_000_000
"""When stories begin, ms since the epoch."""


def agent(**overrides: Any) -> AgentSpec:
    """An agent without bounds."""
    return AgentSpec("tester", "1", "Help.", "scripted/test")._replace(**{"turn_limit": 0, **overrides})


def tool(name: str, **overrides: Any) -> MenuEntry:
    """A tool of the toolset `test` that takes any object."""
    return MenuEntry(name, "test", "1", "tool-requests.test")._replace(**overrides)


_ids = itertools.count()


def call(name: str, /, raw: str | None = None, **arguments: Any) -> RecordedCall:
    """A call as a model asks for it; `raw` is the argument text where it shall not be made from the arguments."""
    return RecordedCall("call_1", name, canonical_json(arguments) if raw is None else raw)


def accept(entry: MenuEntry, value: Any) -> str | None:
    """A validator that finds every object right."""
    return None


class Story:
    """One run. `events` and `kinds` are those of the last message; `steps` all that happened; `now` the time, moved on by 10 ms
    with every message."""

    def __init__(
        self,
        who: AgentSpec | None = None,
        menu: Iterable[MenuEntry] = (),
        *,
        validate: Validate = accept,
        withheld: Sequence[str] = (),
    ) -> None:
        self.agent = who or agent()
        self.menu = tuple(menu)
        self.withheld = tuple(withheld)
        self.validate = validate
        self.state = RunState("story")
        self.steps: list[tuple[Event, ...]] = []
        self.events: tuple[Event, ...] = ()
        self.now = T0

    @property
    def kinds(self) -> list[str]:
        """Kinds of the events that the last message made."""
        return [event.kind for event in self.events]

    def payload(self, kind: str) -> Any:
        """The payload of the only event of this kind that the last message made."""
        (found,) = [event.payload for event in self.events if event.kind == kind]
        return found

    @property
    def keys(self) -> list[str]:
        """Keys of the current turn's calls."""
        return [each.key for each in self.state.calls]

    def when(self, body: Body, at: int | None = None, **place: Any) -> Story:
        """A message arrives. Whatever it makes is recorded, folded and checked; a CoreError passes, and nothing has changed."""
        self.now += 10
        message = Message(self.now if at is None else at, body, **place)
        before = self.state.copy()
        self.events = ()
        try:
            self.events = decide(self.state, message, self.validate)
        finally:
            hold(self.state == before, "I15", "deciding changed the state")
        for event in self.events:
            evolve(self.state, event)
        if self.events:
            self.steps.append(self.events)
            check_run(self.state, self.steps, self.validate)
        return self

    def start(self, text: str | None = "Hello.", **overrides: Any) -> Story:
        """The run's start command."""
        return self.when(Start("start", self.agent, self.menu, self.withheld, text, **overrides))

    def answer(self, *calls: RecordedCall, text: str | None = None, **extra: Any) -> Story:
        """The model answers the call that is under way."""
        body = ModelAnswer(text, calls, usage=Usage(10, 1), **extra)
        return self.when(body, turn=self.state.turn, attempt=self.state.model_attempt)

    def model_fails(
        self, error: str = "unavailable", message: str = "try later", *, retryable: bool = True, after_ms: int = 0
    ) -> Story:
        """The model call that is under way fails."""
        body = ModelFailure(error, message, retryable, after_ms)
        return self.when(body, turn=self.state.turn, attempt=self.state.model_attempt)

    def result(self, position: int, content: str = "done", *, attempt: int | None = None) -> Story:
        """A tool of the current turn has done its work."""
        return self.outcome(self.keys[position], Outcome("ok", content), attempt or self.state.calls[position].attempt)

    def failure(self, position: int, content: str = "broken", *, attempt: int | None = None, **flags: Any) -> Story:
        """A tool of the current turn failed."""
        body = Outcome("error", content, "failed", **flags)
        return self.outcome(self.keys[position], body, attempt or self.state.calls[position].attempt)

    def outcome(self, key: str, body: Outcome, attempt: int = 1) -> Story:
        """Any outcome of any call arrives."""
        return self.when(body, call_key=key, attempt=attempt, input=0)

    def refused(self, position: int, reason: str = "message too large") -> Story:
        """Kafka refuses the request of a call for good."""
        return self.when(Refusal(reason), call_key=self.keys[position], attempt=self.state.calls[position].attempt)

    def input(self, text: str, *, final: bool = False, command_id: str | None = None) -> Story:
        """The user says something."""
        return self.when(Input(command_id or f"input-{next(_ids)}", text, final), input=0)

    def cancel(self, command_id: str = "cancel") -> Story:
        """Somebody cancels the run."""
        return self.when(Cancel(command_id, "no longer needed"), input=0)

    def resume(self, turns: int = 0, command_id: str | None = None) -> Story:
        """Somebody lets a stopped run go on."""
        return self.when(Resume(command_id or f"resume-{next(_ids)}", turns), input=0)

    def fire(self, later_ms: int = 0) -> Story:
        """Time passes until the next timer is due, and `later_ms` more; everything due then fires. `events` has all that came of it."""
        wake = next_wake(self.state)
        assert wake, "no timer is set"
        self.now = max(self.now, wake + later_ms)
        made: list[Event] = []
        for message in due_timers(self.state, self.now):
            self.when(
                message.body,
                at=message.at,
                **{name: getattr(message, name) for name in ("turn", "position", "call_key")},
            )
            made += self.events
        self.events = tuple(made)
        return self

    def timer(self, timer: str, due: int, **place: Any) -> Story:
        """Some timer message, due or not."""
        return self.when(Timer(timer, due), **place)
