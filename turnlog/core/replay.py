"""Verifying a run: decide every recorded arrival again and compare the events, digests included."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from turnlog.core.decide import Validate, decide
from turnlog.core.errors import BadHistory, CoreError
from turnlog.core.events import ARRIVALS, Event, message_of
from turnlog.core.evolve import evolve
from turnlog.core.state import RunState


class Divergence(NamedTuple):
    """The first place where this build would decide otherwise. `differences`: path, recorded, decided; only what differs."""

    run_id: str
    step: int
    event: int
    """Place in the step's events of the arrival whose group differs."""
    turn: int | None
    arrival: str
    differences: tuple[tuple[str, Any, Any], ...]

    def describe(self) -> str:
        lines = [
            f"run {self.run_id} diverges at step {self.step}, event {self.event} ({self.arrival}, turn {self.turn}):"
        ]
        lines += [
            f"  {path}: recorded {_short(old)}, this build decides {_short(new)}" for path, old, new in self.differences
        ]
        return "\n".join(lines)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:197] + "..."


def groups(events: Iterable[Event]) -> Iterator[tuple[int, list[Event]]]:
    """The groups of a step, each with the place of its first event. A group opens at an arrival kind."""
    start, group = 0, list[Event]()
    for place, event in enumerate(events):
        if event.kind in ARRIVALS and group:
            yield start, group
            start, group = place, []
        group.append(event)
    if group:
        yield start, group


def verify_step(state: RunState, step: int, events: Iterable[Event], validate: Validate) -> Divergence | None:
    """Decide the step's arrivals again and fold what was recorded; the state goes on as recorded, divergent or not.

    Raises BadHistory for events that this build cannot fold at all.
    """
    found = None
    for place, group in groups(events):
        if found is None:
            found = _compare(state, step, place, group, validate)
        for event in group:
            evolve(state, event)
    return found


def verify(
    run_id: str, steps: Iterable[tuple[int, tuple[Event, ...]]], validate: Validate, state: RunState | None = None
) -> Divergence | None:
    """The first divergence of a run, or None. `steps` are (step, events) in order, from step 0 or from after `state`'s snapshot;
    `state` is folded on."""
    state = RunState(run_id) if state is None else state
    for step, events in steps:
        found = verify_step(state, step, events, validate)
        if found is not None:
            return found
    return None


def _compare(state: RunState, step: int, place: int, group: list[Event], validate: Validate) -> Divergence | None:
    first = group[0]
    decided: tuple[Event, ...] = ()
    problem = None
    try:
        if first.kind in ARRIVALS:
            decided = decide(state, message_of(first), validate)
    except BadHistory:
        raise
    except CoreError as error:
        problem = str(error)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise BadHistory(f"run {state.run_id}: a malformed {first.kind}: {error!r:.200}") from error
    if problem is None and decided == tuple(group):
        return None
    differences = [("rules", "accepted", problem)] if problem else list(_differences(group, decided))
    return Divergence(state.run_id, step, place, first.turn, first.kind, tuple(differences))


def _differences(recorded: list[Event], decided: tuple[Event, ...]) -> Iterator[tuple[str, Any, Any]]:
    for i in range(max(len(recorded), len(decided))):
        old = recorded[i] if i < len(recorded) else None
        new = decided[i] if i < len(decided) else None
        if old is None or new is None or old.kind != new.kind:
            yield f"events[{i}].kind", old and old.kind, new and new.kind
            return
        yield from _fields(f"events[{i}]", old, new)


def _fields(path: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """The parts of two unequal values that differ, as deep as both have the same shape."""
    if old == new:
        return
    if type(old) is not type(new) or not isinstance(old, tuple) or len(old) != len(new):
        yield path, old, new
        return
    names = getattr(old, "_fields", None)
    for i, (a, b) in enumerate(zip(old, new, strict=True)):
        yield from _fields(f"{path}.{names[i]}" if names else f"{path}[{i}]", a, b)
