"""Runs recorded by earlier builds fold, verify and go on under this one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.replay.histories import History, outline, read, recorded
from tests.replay.record import STORIES
from turnlog.core.decide import advance
from turnlog.core.events import Cancel, Event, Message
from turnlog.core.evolve import evolve, fold
from turnlog.core.pending import due_timers
from turnlog.core.replay import verify
from turnlog.core.snapshot import from_json, to_json
from turnlog.core.state import RunState
from turnlog.testing.given import accept
from turnlog.testing.invariants import check_run


@pytest.fixture(params=recorded(), ids=lambda path: path.stem)
def history(request: pytest.FixtureRequest) -> History:
    """Each recorded run."""
    path: Path = request.param
    return read(path)


def flat(steps: list[tuple[Event, ...]]) -> list[Event]:
    return [event for step in steps for event in step]


def test_every_story_has_its_history() -> None:
    assert sorted(STORIES) == [path.stem for path in recorded()]


def test_it_leads_where_it_led(history: History) -> None:
    state = fold(history.run_id, flat(history.steps), history.rules)
    assert outline(state) == history.led_to
    check_run(state, history.steps, accept)


def test_this_build_decides_as_the_one_that_recorded_it(history: History) -> None:
    found = verify(history.run_id, enumerate(history.steps), accept, RunState(history.run_id, history.rules))
    assert found is None, found and found.describe()


def test_it_goes_on_from_every_step(history: History) -> None:
    """A crash may fall behind any step: the state loaded there, also by way of a snapshot, decides the rest as it was decided."""
    for cut in range(1, len(history.steps)):
        state = from_json(to_json(fold(history.run_id, flat(history.steps[:cut]), history.rules)))
        assert verify(history.run_id, list(enumerate(history.steps))[cut:], accept, state) is None
        assert outline(state) == history.led_to


def test_it_can_be_brought_to_an_end_from_every_step(history: History) -> None:
    for cut in range(1, len(history.steps) + 1):
        state = fold(history.run_id, flat(history.steps[:cut]), history.rules)
        was_ended = state.ended
        events = advance(state, Message(state.at + 1, Cancel("the end")), accept)
        assert state.ended
        assert bool(events) != was_ended
        check_run(state, [*history.steps[:cut], events] if events else history.steps[:cut], accept)


def test_its_timers_bring_it_on_from_every_step(history: History) -> None:
    """Nobody ever answers again: timers alone lead every run to the model or to an end, in a bounded number of steps."""
    for cut in range(1, len(history.steps) + 1):
        state = fold(history.run_id, flat(history.steps[:cut]), history.rules)
        for _ in range(20):
            due = due_timers(state, state.at + 10**10)
            if not due:
                break
            for message in due:
                for event in advance(state.copy(), message, accept):
                    evolve(state, event)
        assert state.phase in ("model", "ended"), state.phase
