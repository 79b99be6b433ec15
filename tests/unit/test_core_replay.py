"""Fold, verification, snapshots and copies: what is read back is what was recorded, and what cannot be is said so."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import turnlog.core
from turnlog.core import decide as decide_module
from turnlog.core import snapshot
from turnlog.core.decide import decide
from turnlog.core.errors import BadHistory
from turnlog.core.events import (
    ARRIVALS,
    DERIVED,
    KINDS,
    CallRequested,
    CallSettled,
    CommandNote,
    Event,
    Message,
    ModelAnswer,
    Outcome,
    RunCancelled,
    RunSucceeded,
    Start,
    TurnStarted,
    message_of,
)
from turnlog.core.evolve import _FOLDS, evolve, fold
from turnlog.core.replay import Divergence, _compare, verify, verify_step
from turnlog.core.state import RunState
from turnlog.testing.given import Story, accept, agent, call, tool

TOOLS = [tool("add"), tool("stop", ends_run=True)]
Steps = list[tuple[Event, ...]]


def conversation() -> Story:
    """A run in the middle of its third turn that has seen most kinds of events."""
    story = Story(agent(conversation=True, parallel_calls=2, deadline_ms=10**9), TOOLS, withheld=["drop"]).start(
        labels=(("k", "v"),)
    )
    story.model_fails().fire().answer(call("add", n=1), call("nope"), text="Let me see.")
    story.failure(0, retryable=True).fire().result(0, "one").answer(text="One.")
    story.input("And two?").answer(call("add", n=2), call("add", n=3)).input("Quick!").resume()
    return story.failure(0, retryable=True)


def changed(steps: Steps, step: int, event: int, change: Callable[[Event], Event]) -> Steps:
    """The same history with one event that is not what it was."""
    events = list(steps[step])
    events[event] = change(events[event])
    return [*steps[:step], tuple(events), *steps[step + 1 :]]


def payload_with(**fields: Any) -> Callable[[Event], Event]:
    """A change of an event's payload."""

    def change(event: Event) -> Event:
        payload: Any = event.payload
        return event._replace(payload=payload._replace(**fields))

    return change


def checked(steps: Steps) -> Divergence | None:
    return verify("story", enumerate(steps), accept)


# ---------------------------------------------------------------- verification


def test_a_history_as_it_was_recorded_has_no_divergence() -> None:
    story = conversation()
    assert checked(story.steps) is None
    for cut in range(1, len(story.steps)):
        state = fold("story", [event for step in story.steps[:cut] for event in step])
        assert verify("story", list(enumerate(story.steps))[cut:], accept, state) is None, "also from a snapshot on"
        assert state == story.state


def test_a_changed_digest_is_reported_where_it_stands() -> None:
    steps = conversation().steps
    at = next(i for i, step in enumerate(steps) if step[-1].kind == "turn_started" and i > 2)
    found = checked(changed(steps, at, -1, payload_with(request_digest="0" * 64)))
    assert found is not None
    assert (found.step, found.event, found.arrival) == (at, 0, "outcome_received")
    ((path, recorded, decided),) = found.differences
    assert path == f"events[{len(steps[at]) - 1}].payload.request_digest"
    assert recorded == "0" * 64
    assert len(decided) == 64
    assert f"diverges at step {at}" in found.describe()


def test_only_what_differs_is_reported_as_deep_as_it_goes() -> None:
    steps = conversation().steps
    menu = (TOOLS[0]._replace(timeout_ms=1), TOOLS[1])
    found = checked(changed(steps, 0, 0, payload_with(menu=menu)))
    assert found is not None
    assert found.step == 3, "the start says what is pinned; the first request follows from it"
    assert [path for path, _, _ in found.differences] == ["events[2].payload.not_after"]


@pytest.mark.parametrize(
    ("field", "value"),
    [("turn", 7), ("position", 1), ("call_key", "other"), ("attempt", 9), ("tool", "other"), ("at", 1)],
)
def test_columns_are_compared_too(field: str, value: Any) -> None:
    steps = conversation().steps
    at = next(i for i, step in enumerate(steps) if step[0].kind == "outcome_received")
    broken = changed(steps, at, 1, lambda e: e._replace(**{field: value}))
    state = fold("story", [event for step in steps[:at] for event in step])
    found = decide_again(state, at, broken[at])
    assert [path for path, _, _ in found] == [f"events[1].{field}"]


def decide_again(state: RunState, step: int, events: tuple[Event, ...]) -> tuple[tuple[str, Any, Any], ...]:
    """What verification finds, also where the recorded events cannot be folded afterwards."""
    found = _compare(state, step, 0, list(events), accept)
    assert found is not None
    return found.differences


def test_an_event_too_many_or_too_few_is_reported_by_kind() -> None:
    steps = conversation().steps
    missing = [(*steps[0][:-1],), *steps[1:]]
    found = checked(missing)
    assert found is not None
    assert found.differences == (("events[1].kind", None, "turn_started"),)
    story = Story(agent(), TOOLS).start()
    ended = [(*story.steps[0], Event("run_cancelled", story.state.at, 0, payload=RunCancelled("why not")))]
    found = checked(ended)
    assert found is not None
    assert found.differences == (("events[2].kind", "run_cancelled", None),)


def test_a_derived_event_without_an_arrival_is_reported() -> None:
    story = Story(agent(), TOOLS).start()
    found = checked([*story.steps, (Event("run_cancelled", story.state.at, 0, payload=RunCancelled("x")),)])
    assert found is not None
    assert (found.step, found.arrival) == (1, "run_cancelled")
    assert found.differences == (("events[0].kind", "run_cancelled", None),)


def test_an_arrival_that_the_rules_refuse_is_reported() -> None:
    story = Story(agent(), TOOLS).start().answer(call("add")).result(0)
    twice = [*story.steps, story.steps[-1][:1]]
    state = fold("story", [event for step in story.steps for event in step])
    assert decide_again(state, 3, twice[-1]) == (("events[0].kind", "outcome_received", None),)
    unknown = story.steps[-1][0]._replace(call_key="story:t9:c9:0000000000000000")
    ((path, recorded, decided),) = decide_again(state, 3, (unknown,))
    assert (path, recorded) == ("rules", "accepted")
    assert "never requested" in decided


def test_a_changed_rule_is_reported_at_the_first_step_it_touches(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = conversation().steps
    monkeypatch.setattr(decide_module, "backoff_ms", lambda base, attempt: 777)
    found = checked(steps)
    assert found is not None
    assert (found.step, found.arrival) == (1, "model_failed")
    assert [path for path, _, _ in found.differences] == ["events[1].payload.wake_at"]


def test_each_message_of_a_step_is_compared_on_its_own() -> None:
    """Messages that waited for an acknowledgement are decided together: one step, several groups."""
    steps = conversation().steps
    one = [tuple(event for step in steps for event in step)]
    assert checked(one) is None
    place = [event.kind for event in one[0]].index("input_awaited")
    found = checked(changed(one, 0, place, payload_with(expires_at=1)))
    assert found is not None
    assert (found.step, found.event, found.arrival) == (0, place - 1, "model_answered")


def test_verification_never_repairs() -> None:
    steps = conversation().steps
    broken = changed(steps, 0, 0, payload_with(turn_limit=1))
    state = RunState("story")
    for number, step in enumerate(broken):
        verify_step(state, number, step, accept)
    assert state == fold("story", [event for step in broken for event in step])


# ---------------------------------------------------------------- histories that cannot be


def test_a_message_and_its_event_say_the_same() -> None:
    story = conversation()
    for step in story.steps:
        message = message_of(step[0])
        assert (message.at, message.body if step[0].kind != "command_noted" else None) == (
            step[0].at,
            step[0].payload if step[0].kind != "command_noted" else None,
        )
    for command in ("input", "cancel", "resume"):
        note = Event("command_noted", 1, payload=CommandNote("c", command, "text", True, 3, "why"))
        assert type(message_of(note).body).__name__.lower() == command


@pytest.mark.parametrize(
    "event",
    [
        Event("turn_started", 1, payload=TurnStarted("", 0)),
        Event("run_started", 1),
        Event("run_started", 1, payload=Outcome("ok", "")),
        Event("unheard_of", 1, payload=Outcome("ok", "")),
        Event("command_noted", 1, payload=CommandNote("c", "explode", "", False, 0, "")),
    ],
)
def test_what_is_no_arrival_records_no_message(event: Event) -> None:
    with pytest.raises(BadHistory):
        message_of(event)


def test_every_kind_has_a_fold_and_no_other() -> None:
    assert set(_FOLDS) == set(KINDS)
    assert not set(ARRIVALS) & set(DERIVED)


@pytest.mark.parametrize("kind", ["unheard_of", "", "run_exploded"])
def test_an_unknown_kind_stops_the_run(kind: str) -> None:
    story = conversation()
    event = Event(kind, story.state.at, payload=None)
    with pytest.raises(BadHistory, match="does not know"):
        evolve(story.state.copy(), event)
    with pytest.raises(BadHistory, match="does not know"):
        verify_step(story.state.copy(), 9, [event], accept)
    with pytest.raises(BadHistory, match="does not know"):
        verify_step(story.state.copy(), 9, [*story.steps[-1][:0], event], accept)


def impossible() -> list[Event]:
    story = conversation()
    at, key = story.state.at, story.keys[1]
    spot: dict[str, Any] = {"turn": story.state.turn, "position": 1, "call_key": key}
    return [
        Event("run_started", at, payload=Start("x", agent(), ())),
        Event("turn_started", at, story.state.turn + 1, payload=TurnStarted("", 0)),
        Event("turn_started", at, story.state.turn + 2, payload=TurnStarted("", 0)),
        Event("model_answered", at, story.state.turn, payload=ModelAnswer("")),
        Event("call_requested", at, attempt=2, payload=CallRequested("", "", 1), **spot),
        Event("call_requested", at, payload=CallRequested("", "", 1)),
        Event("call_settled", at, payload=CallSettled("ok", ""), **{**spot, "turn": 0}),
        Event("call_settled", at, payload=CallSettled("ok", ""), **{**spot, "position": 99}),
        Event("call_settled", at, payload=CallSettled("ok", ""), **{**spot, "position": -1}),
        Event("call_settled", at, payload=CallSettled("ok"), **spot),
        Event("outcome_received", at, payload=Outcome("ok", ""), **spot),
        Event("outcome_received", at, attempt=2, payload=Outcome("ok", ""), **spot),
        Event("outcome_received", at, attempt=-1, payload=Outcome("ok", ""), **spot),
        Event("late_outcome_noted", at, attempt=1, call_key="story:t9:c9:0", payload=Outcome("ok", "")),
        Event("run_succeeded", at, payload=RunSucceeded("answered", None)),
        Event("run_cancelled", at, payload=RunCancelled("cancelled")),
        *[Event(kind, at, **spot) for kind in KINDS],
        *[Event(kind, at, attempt=1, payload=RunCancelled("x"), **spot) for kind in KINDS if kind != "run_cancelled"],
    ]


@pytest.mark.parametrize("number", range(len(impossible())))
def test_events_that_cannot_follow_stop_the_run(number: int) -> None:
    with pytest.raises(BadHistory):
        evolve(conversation().state, impossible()[number])


GARBAGE: st.SearchStrategy[Any] = (
    st.none() | st.integers(-3, 3) | st.text(max_size=3) | st.tuples() | st.tuples(st.integers())
)


@given(st.data())
def test_malformed_events_raise_nothing_but_bad_history(data: st.DataObject) -> None:
    """Whatever a damaged or foreign writer puts into a field."""
    steps = HISTORY
    at = data.draw(st.integers(0, len(steps) - 1))
    place = data.draw(st.integers(0, len(steps[at]) - 1))
    event = steps[at][place]
    if data.draw(st.booleans()):
        broken = event._replace(**{data.draw(st.sampled_from(Event._fields)): data.draw(GARBAGE)})
    else:
        payload: Any = event.payload
        broken = event._replace(
            payload=payload._replace(**{data.draw(st.sampled_from(payload._fields)): data.draw(GARBAGE)})
        )
    damaged = changed(steps, at, place, lambda _: broken)
    for read in (lambda: fold("story", [e for step in damaged for e in step]), lambda: checked(damaged)):
        with suppress(BadHistory):
            read()


HISTORY = conversation().steps


def test_a_run_under_rules_this_build_does_not_have_is_stopped() -> None:
    state = RunState("r", rules=99)
    with pytest.raises(BadHistory, match="revision 99"):
        decide(state, Message(1, Start("s", agent(), ())), accept)
    with pytest.raises(BadHistory, match="revision 99"):
        verify("story", enumerate(HISTORY), accept, RunState("story", 99))


# ---------------------------------------------------------------- snapshots and copies


def test_a_snapshot_comes_back_as_it_was_at_every_step() -> None:
    state = RunState("story")
    for step in HISTORY:
        for event in step:
            evolve(state, event)
        assert snapshot.from_json(snapshot.to_json(state)) == state


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "null", "1", '{"layout": 2}', '{"layout": 1}', "[" * 100_000, '{"layout": 1, "run_id": "r"}'],
)
def test_what_is_no_snapshot_is_bad_history(text: str) -> None:
    with pytest.raises(BadHistory):
        snapshot.from_json(text)


@given(st.data())
def test_a_damaged_snapshot_is_bad_history_or_a_state(data: st.DataObject) -> None:
    body = json.loads(snapshot.to_json(fold("story", [e for step in HISTORY for e in step])))
    body[data.draw(st.sampled_from(sorted(body)))] = data.draw(GARBAGE)
    with suppress(BadHistory):
        snapshot.from_json(json.dumps(body))


def test_a_copy_is_equal_and_independent_in_every_part() -> None:
    state = conversation().state
    for name in RunState.__slots__:
        copy = state.copy()
        before = getattr(state, name)
        assert getattr(copy, name) == before
        if isinstance(before, list):
            getattr(copy, name).append(None)
        elif isinstance(before, dict) and name != "menu":  # the menu is pinned: it is shared and never changed
            getattr(copy, name)["more"] = None
        else:
            setattr(copy, name, "other")
            assert (copy == state) == (name == "arrived")
            continue
        assert copy != state
        assert getattr(state, name) == before


def test_states_are_not_hashable_and_differ_from_anything_else() -> None:
    state = RunState("r")
    assert state != "r"
    with pytest.raises(TypeError):
        hash(state)


# ---------------------------------------------------------------- the core is pure

PURE = {
    "__future__", "collections.abc", "difflib", "functools", "hashlib", "itertools", "json", "math", "re", "typing",
}  # fmt: skip


def test_the_core_imports_only_the_standard_library_and_itself() -> None:
    for path in Path(turnlog.core.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [a.name for a in node.names]
                if isinstance(node, ast.Import)
                else []
            )
            for name in names:
                assert name in PURE or name.startswith("turnlog.core"), f"{path.name} imports {name}"


def test_the_core_calls_nothing_that_asks_the_world() -> None:
    banned = {"open", "print", "input", "hash", "id", "eval", "exec", "set"}
    for path in Path(turnlog.core.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in banned, f"{path.name} line {node.lineno} calls {node.func.id}"
