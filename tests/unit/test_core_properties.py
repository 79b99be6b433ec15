"""The core under random messages: whatever comes, in whatever order, the invariants of docs/invariants.md hold after every step.

One `RuleBasedStateMachine` sends a run what a real one may meet: answers and failures of the model, outcomes of any attempt of any
call (late, doubled, never requested), timers due, late and made up, commands new and repeated, and every earlier message again.

Each of `MUTANTS` breaks one rule; the machine must catch every one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from turnlog.core import decide as decide_module
from turnlog.core import evolve as evolve_module
from turnlog.core.agents import AgentSpec, Usage
from turnlog.core.decide import advance
from turnlog.core.errors import CoreError, NotStarted, UnknownCall, Unrecordable
from turnlog.core.events import (
    TIMERS,
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
from turnlog.core.limits import VALUE_BYTES
from turnlog.core.pending import due_timers, next_wake
from turnlog.core.replay import verify_step
from turnlog.core.snapshot import from_json, to_json
from turnlog.core.state import REQUESTED, WAITING, RunState
from turnlog.testing.given import T0, accept, agent, tool
from turnlog.testing.invariants import Broken, History, check_state, hold

MENU = (
    tool("add", attempts=3, backoff_ms=100, timeout_ms=2_000),
    tool("slow", attempts=1, timeout_ms=500),
    tool("stop", ends_run=True),
    tool("think", takes_text=True),
)
NAMES = ["add", "slow", "think", "add", "slow", "think", "nope", "stop", "add", "slow", "think", "withheld"]
ARGUMENTS = ["{}", "{}", "{}", '{"a": 1}', '{"a": 2}', '{"a": 1, "b": [NaN]}', "{", "", "[]", '"\ud800"', "words"]
TEXTS = st.sampled_from(["", "yes", "é\ud800🙂"])
AGENTS = st.builds(
    agent,
    conversation=st.booleans(),
    parallel_calls=st.integers(0, 3),
    tool_errors=st.sampled_from(["feed_back", "feed_back", "feed_back", "fail"]),
    turn_limit=st.sampled_from([0, 0, 1, 3]),
    tool_call_budget=st.sampled_from([0, 0, 6]),
    deadline_ms=st.sampled_from([0, 0, 0, 20_000]),
    model_attempts=st.integers(1, 3),
)
CALLS = st.lists(
    st.builds(RecordedCall, st.sampled_from(["a", "b"]), st.sampled_from(NAMES), st.sampled_from(ARGUMENTS)),
    min_size=1,
    max_size=4,
)
OUTCOMES = st.builds(
    Outcome, st.sampled_from(["ok", "error", "odd"]), TEXTS, st.sampled_from(["", "failed"]), st.booleans(), st.sampled_from([False] * 9 + [True])
)  # fmt: skip


class AnyRun(RuleBasedStateMachine):
    """One run and everything that can happen to it."""

    def __init__(self) -> None:
        super().__init__()
        self.state = RunState("any")
        self.folded = RunState("any")
        self.verified = RunState("any")
        self.history = History()
        self.sent: list[Message] = []
        self.keys: list[str] = []
        self.now = T0
        self.steps = 0

    # ------------------------------------------------------------ sending

    def send(self, body: Body, at: int | None = None, **place: Any) -> tuple[Event, ...]:
        """Decide one message on a copy, as a shell does, and hold every invariant against what comes of it."""
        self.now += 7
        message = Message(self.now if at is None else at, body, **place)
        before, draft = self.state.copy(), self.state.copy()
        try:
            events = advance(draft, message, accept)
        except CoreError as problem:
            hold(draft == before, "I15", f"a refused message changed the draft: {problem}")
            hold(isinstance(problem, NotStarted | UnknownCall | Unrecordable), "I15", f"{problem!r}")
            return ()
        hold(self.state == before, "I15", "deciding on a copy changed the state")
        hold(bool(events) or draft == before, "I15", "a state changed without an event")
        self.state = draft
        if events:
            self.record(message, events)
        return events

    def record(self, message: Message, events: tuple[Event, ...]) -> None:
        self.history.take(events)
        for event in events:
            evolve(self.folded, event)
        hold(self.folded == self.state, "I11", "the fold of the events is not the live state")
        found = verify_step(self.verified, self.steps, events, accept)
        hold(found is None, "I12", found.describe() if found else "")
        self.sent.append(message)
        self.keys += [
            e.call_key for e in events if e.kind == "call_requested" and e.call_key and e.call_key not in self.keys
        ]
        self.steps += 1
        hold(advance(self.state.copy(), message, accept) == (), "I8", f"{message} made events twice")

    # ------------------------------------------------------------ what happens

    @initialize(who=AGENTS, text=st.none() | TEXTS)
    def start(self, who: AgentSpec, text: str | None) -> None:
        for body in (Input("i", "early"), Outcome("ok", ""), Cancel("c")):
            assert self.send(body) == ()
        self.send(Start("start", who, MENU, ("withheld",), text))

    # Hypothesis picks rules evenly; three of them do what a run waits for, so that runs get somewhere.

    @rule(data=st.data())
    def work(self, data: st.DataObject) -> None:
        self.go_on(data)

    @rule(data=st.data())
    def more_work(self, data: st.DataObject) -> None:
        self.go_on(data)

    @rule(data=st.data())
    def still_more_work(self, data: st.DataObject) -> None:
        self.go_on(data)

    def go_on(self, data: st.DataObject) -> None:
        match self.state.phase:
            case "model" if self.state.model_retry_at:
                self.time_passes(0)
            case "model":
                self.the_model_replies(data)
            case "calls":
                self.a_tool_answers(data)
            case "input" | "stopped":
                self.an_input(data)
            case "ended":
                self.any_outcome(data)

    def the_model_replies(self, data: st.DataObject) -> None:
        place: dict[str, Any] = {"turn": self.state.turn, "attempt": self.state.model_attempt}
        if data.draw(st.integers(0, 7)) == 7:
            after = data.draw(st.sampled_from([0, -5, 9_000, 10**12]))
            self.send(ModelFailure("overloaded", "x" * 3_000, data.draw(st.integers(0, 5)) < 5, after), **place)
        else:
            calls = data.draw(CALLS) if data.draw(st.integers(0, 5)) < 5 else []
            self.send(ModelAnswer(data.draw(st.none() | TEXTS), tuple(calls), usage=Usage(1, 1)), **place)

    def a_tool_answers(self, data: st.DataObject) -> None:
        out = [call for call in self.state.calls if call.stage == REQUESTED]
        if not out:
            return self.time_passes(0)
        call = data.draw(st.sampled_from(out))
        place: dict[str, Any] = {"call_key": call.key, "attempt": call.attempt}
        match data.draw(st.integers(0, 11)):
            case 11:
                self.send(Refusal("no"), **place)
            case 10:
                self.send(Outcome("ok", "x" * (VALUE_BYTES + 1)), **place, input=0)
            case _:
                self.send(data.draw(OUTCOMES), **place, input=0)
        return None

    @precondition(lambda self: bool(self.keys))
    @rule(data=st.data())
    def any_outcome(self, data: st.DataObject) -> None:
        if self.keys:
            key, attempt = (
                data.draw(st.sampled_from(self.keys)),
                data.draw(st.sampled_from([1, 1, 2, 2, 3, 0, -1, 4, None])),
            )
            self.send(data.draw(OUTCOMES), call_key=key, attempt=attempt, input=0)

    @rule(data=st.data())
    def an_input(self, data: st.DataObject) -> None:
        final, number, at = (
            data.draw(st.integers(0, 9)) == 9,
            data.draw(st.integers(0, 60)),
            data.draw(st.sampled_from([None, None, T0])),
        )
        self.send(Input(f"input-{number}", data.draw(TEXTS), final), at, input=0)

    @rule(number=st.integers(0, 40), turns=st.integers(-1, 3))
    def a_resume(self, number: int, turns: int) -> None:
        self.send(Resume(f"resume-{number}", turns), input=0)

    @rule(data=st.data())
    def noise(self, data: st.DataObject) -> None:
        """What a run must not be moved by, and now and then the end of it."""
        place = {
            "turn": data.draw(st.sampled_from([None, self.state.turn, 0])),
            "attempt": data.draw(st.integers(-1, 4)),
        }
        match data.draw(st.integers(0, 12)):
            case 0 | 1:
                if place["turn"] != self.state.turn or place["attempt"] != self.state.model_attempt:
                    assert self.send(ModelAnswer("stray", tuple(data.draw(CALLS))), **place) == ()
            case 2 | 3:
                key = data.draw(st.sampled_from([None, "", "any", "any:t0:c0:0", "any:t0:c1:44136fa355b3678a"]))
                self.send(data.draw(OUTCOMES), call_key=key, attempt=place["attempt"])
            case 4 | 5 if self.state.calls:
                self.send(
                    Refusal("no"), call_key=data.draw(st.sampled_from(self.state.calls)).key, attempt=place["attempt"]
                )
            case 6 | 7:
                assert self.send(Start("other", agent(), MENU)) == ()
            case 8 | 9 | 10:
                timer = Timer(
                    data.draw(st.sampled_from([*TIMERS, "odd"])),
                    data.draw(st.sampled_from([0, -1, 1, T0, T0 + 10**12])),
                )
                assert self.send(timer, turn=self.state.turn, position=data.draw(st.none() | st.integers(-1, 5))) == ()
            case 11 if data.draw(st.integers(0, 2)) == 0:
                self.send(Cancel(f"cancel-{place['attempt']}"), input=0)

    @precondition(lambda self: 0 < next_wake(self.state) < self.now + 10**8)
    @rule(late=st.sampled_from([0, 0, 50, 10_000]))
    def time_passes(self, late: int) -> None:
        self.now = max(self.now, next_wake(self.state) + late)
        due = due_timers(self.state, self.now)
        hold(bool(due), "I13", "the first timer is due and none fires")
        for message in due:
            self.send(
                message.body, at=self.now, turn=message.turn, position=message.position, call_key=message.call_key
            )
        hold(not 0 < next_wake(self.state) <= self.now - 7 * len(due), "I13", "a due timer stayed set")

    @precondition(lambda self: bool(self.sent))
    @rule(data=st.data(), late=st.booleans())
    def an_earlier_message_again(self, data: st.DataObject, late: bool) -> None:
        message = data.draw(st.sampled_from(self.sent))
        place = {name: getattr(message, name) for name in ("turn", "position", "call_key", "attempt", "input")}
        events = self.send(message.body, at=None if late else message.at, **place)
        hold(events == (), "I8", f"{message} counted twice: {events}")

    # ------------------------------------------------------------ what must hold

    @invariant()
    def the_state_is_sound(self) -> None:
        if self.state.phase != "new":
            check_state(self.state)

    @invariant()
    def a_restored_run_goes_on_as_it_would_have(self) -> None:
        """Nothing that matters is outside the snapshot (J8): the live state is one that was loaded."""
        if self.steps % 5 == 4:
            self.state = from_json(to_json(self.state))


FEW = settings(max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(FEW, max_examples=400, stateful_step_count=60)


def test_invariants_hold_under_any_messages() -> None:
    run_state_machine_as_test(AnyRun, settings=FEW)


@pytest.mark.slow
def test_invariants_hold_under_very_many_messages() -> None:
    run_state_machine_as_test(AnyRun, settings=MANY)


# ---------------------------------------------------------------- mutants

Patch = Callable[[pytest.MonkeyPatch], None]


def _with(owner: Any, name: str, change: Callable[[Any], Any]) -> Patch:
    return lambda to: to.setattr(owner, name, change(getattr(owner, name)))


def _in_table(table: dict[Any, Any], key: Any, change: Callable[[Any], Any]) -> Patch:
    return lambda to: to.setitem(table, key, change(table[key]))


def _forgetful(row: Any) -> Any:
    payload, phases, fold = row

    def forget(state: RunState, event: Event, body: Any) -> None:
        fold(state, event, body)
        state.commands.pop(body.command_id, None)

    return payload, phases, forget


def _sharing(copy: Any) -> Any:
    def share(self: RunState) -> RunState:
        new: RunState = copy(self)
        new.calls = self.calls
        return new

    return share


def _timeless(init: Any) -> Any:
    def timeless(self: Any, state: RunState, message: Message, validate: Any) -> None:
        init(self, state, message, validate)
        self.at = message.at

    return timeless


def _settled_too(_: Any) -> Any:
    return lambda self, key: next((call for call in self.calls if call.key == key), None)


def _deaf_to_inputs(_: Any) -> Any:
    return lambda self: (len(self.transcript), self.digest)


def _only_the_first(rule: Any) -> Any:
    def rest(group: Any) -> None:
        group.state.calls, calls = group.state.calls[:1], group.state.calls
        rule(group)
        group.state.calls = group.state.calls + calls[1:]

    return rest


def _and_the_next(request: Any) -> Any:
    def both(group: Any, call: Any) -> None:
        request(group, call)
        following = group.state.calls[call.position + 1 : call.position + 2]
        if following and following[0].stage == WAITING:
            request(group, following[0])

    return both


MUTANTS: dict[str, Patch] = {
    "a late outcome is applied": _with(RunState, "unsettled", _settled_too),
    "an outcome counts twice": _with(decide_module, "outcome_bit", lambda _: lambda attempt, ok: 0),
    "any attempt is taken": _with(RunState, "attempts_of", lambda _: lambda self, key: 99),
    "a reply of another attempt counts": _with(
        decide_module, "_awaited", lambda _: lambda group: group.state.phase == "model"
    ),
    "an end leaves calls without a result": _with(decide_module, "_settle_rest", lambda _: lambda group: None),
    "an end settles one call only": _with(decide_module, "_settle_rest", _only_the_first),
    "a bad call is not answered": _with(decide_module, "_reject_bad_calls", lambda _: lambda group: None),
    "a command counts twice": _in_table(evolve_module._FOLDS, "input_received", _forgetful),
    "a made-up timer fires": _in_table(
        decide_module._RULES_1, Timer, lambda _: lambda g, body: g.arrived("timer_fired", body)
    ),
    "time is that of the message": _with(decide_module._Group, "__init__", _timeless),
    "a copy shares its calls": _with(RunState, "copy", _sharing),
    "a request's digest lacks the input that waited": _with(RunState, "digest_with_inputs", _deaf_to_inputs),
    "more calls go out than may": _with(decide_module, "_request", _and_the_next),
    "a run goes on after its end": _with(evolve_module, "_end", lambda _: lambda *_: None),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    enough = settings(FEW, max_examples=400, database=None, phases=[Phase.generate], report_multiple_bugs=False)
    with pytest.raises((Broken, AssertionError, LookupError, ValueError, CoreError)):
        run_state_machine_as_test(AnyRun, settings=enough)
