"""What must hold of every run, checked on its events alone, without the fold and the rules that made them (docs/invariants.md).

`History` takes a run's events step by step; `check_run` adds what needs the product: fold, snapshot, verification, timers.
Both raise Broken, which names the invariant. Meant for tests and simulations of any kind: hand in whatever the journal holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from turnlog.core import snapshot
from turnlog.core.decide import Validate
from turnlog.core.events import (
    ARRIVALS,
    DERIVED,
    KINDS,
    TERMINAL,
    CallRequested,
    CallSettled,
    Event,
    ModelAnswer,
    Outcome,
    TurnStarted,
)
from turnlog.core.evolve import evolve
from turnlog.core.ids import EMPTY_DIGEST, chain_digest
from turnlog.core.limits import GROUP_BYTES
from turnlog.core.pending import next_wake, pending, timers
from turnlog.core.replay import groups, verify
from turnlog.core.state import REQUESTED, RETRYING, RunState
from turnlog.core.transcript import base_digest, message_digest


class Broken(AssertionError):
    """An invariant does not hold."""


def hold(condition: bool, number: str, message: str) -> None:
    """Raise Broken unless the condition holds."""
    if not condition:
        raise Broken(f"({number}) {message}")


class History:
    """The events of one run, taken in order. Knows nothing of RunState."""

    def __init__(self) -> None:
        self.turn = -1
        self.at = 0
        self.ended = False
        self.asked: dict[int, str] = {}
        """Tools of the current turn's calls by position."""
        self.attempts: dict[int, int] = {}
        self.settled: dict[int, str] = {}
        self.requests: dict[str, int] = {}
        """Every call ever requested, by key, with its last attempt."""
        self.accepted: set[str] = set()
        self.outcomes: set[tuple[str, int, bool]] = set()

    def take(self, step: Iterable[Event]) -> None:
        """The next step's events."""
        for _, group in groups(step):
            hold(group[0].kind in ARRIVALS, "I9", f"a group begins with {group[0].kind}, which is no arrival")
            hold(all(e.kind in DERIVED for e in group[1:]), "I9", "an arrival inside a group")
            hold(len({e.at for e in group}) == 1, "I9", "a group has one time")
            hold(group[0].at >= self.at, "I9", "time goes backwards")
            size = sum(event_bytes(event) for event in group)
            hold(size <= GROUP_BYTES, "I10", f"a group of {size} bytes")
            self.at = group[0].at
            for event in group:
                self._event(event)

    def _event(self, event: Event) -> None:
        hold(type(event.payload) is KINDS[event.kind], "I9", f"{event.kind} without its payload")
        hold(not self.ended or event.kind == "late_outcome_noted", "I5", f"{event.kind} after the end")
        match event.payload:
            case TurnStarted():
                hold(event.turn == self.turn + 1, "I1", f"turn {event.turn} after turn {self.turn}")
                self._all_answered("the next model call")
                self.turn += 1
                self.asked = {}
            case ModelAnswer(_, calls):
                hold(event.turn == self.turn and not self.asked, "I7", f"a second answer to turn {event.turn}")
                self.asked = {position: call.tool for position, call in enumerate(calls)}
                self.attempts, self.settled = {}, {}
            case CallRequested():
                self._requested(event)
            case CallSettled():
                self._settled(event)
            case Outcome(status):
                self._outcome(event, status)
        if event.kind in TERMINAL:
            self._all_answered("the end")
            self.ended = True

    def _all_answered(self, what: str) -> None:
        open_calls = sorted(set(self.asked) - set(self.settled))
        hold(not open_calls, "I6", f"calls {open_calls} of turn {self.turn} have no result before {what}")

    def _requested(self, event: Event) -> None:
        position, key = event.position, event.call_key
        hold(
            event.turn == self.turn and position in self.asked,
            "I4",
            f"a request of call {position}, which no answer asked for",
        )
        hold(position not in self.settled, "I4", f"a request of call {position}, which is settled")
        assert position is not None
        assert key is not None
        hold(event.attempt == self.attempts.get(position, 0) + 1, "I4", f"attempt {event.attempt} skips or repeats one")
        hold(self.attempts.get(position) is not None or key not in self.requests, "I4", f"{key} names two calls")
        self.attempts[position] = self.requests[key] = event.attempt or 0

    def _settled(self, event: Event) -> None:
        hold(
            event.turn == self.turn and event.position in self.asked,
            "I2",
            f"a result of call {event.position}, which was not asked for",
        )
        hold(event.position not in self.settled, "I2", f"a second result of call {event.position} of turn {event.turn}")
        assert event.position is not None
        assert isinstance(event.payload, CallSettled)
        self.settled[event.position] = event.payload.status
        if event.payload.content is None:
            hold(event.call_key not in self.accepted, "I3", f"a second accepted outcome of {event.call_key}")
            self.accepted.add(event.call_key or "")

    def _outcome(self, event: Event, status: str) -> None:
        key, attempt = event.call_key or "", event.attempt or 0
        hold(
            1 <= attempt <= self.requests.get(key, 0),
            "I4",
            f"an outcome of {key}, attempt {attempt}, which was never requested",
        )
        arrival = (key, attempt, status == "ok")
        hold(arrival not in self.outcomes, "I8", f"the same outcome of {key} twice")
        self.outcomes.add(arrival)


def event_bytes(event: Event) -> int:
    """About what an event takes in the journal: its texts in UTF-8, and 40 bytes for the rest of each event."""
    return 40 + _bytes(event)


def _bytes(value: object) -> int:
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    return sum(map(_bytes, value)) if isinstance(value, tuple) else 4


def check_run(state: RunState, steps: Sequence[tuple[Event, ...]], validate: Validate) -> None:
    """Everything that must hold of a live state and the steps it came from."""
    history = History()
    folded = RunState(state.run_id, state.rules)
    for step in steps:
        history.take(step)
        for event in step:
            evolve(folded, event)
    hold(folded == state, "I11", "the fold of the events is not the live state")
    found = verify(state.run_id, enumerate(steps), validate, RunState(state.run_id, state.rules))
    hold(found is None, "I12", "verification finds a divergence" if found is None else found.describe())
    check_state(state)


def check_state(state: RunState) -> None:
    """What must hold of any state of a run: timers, effects, snapshot, copy."""
    hold(next_wake(state) == min((m.at for m in timers(state)), default=0), "I13", "next_wake is not the first timer")
    effects = pending(state)
    hold(not (state.ended and any(effects)), "I5", f"a run that ended has effects: {effects}")
    for call in effects.requests:
        hold(
            call.stage == REQUESTED and state.open_calls[call.key].attempt == call.attempt,
            "I4",
            f"{call.key} is not open",
        )
    busy = sum(call.stage in (REQUESTED, RETRYING) for call in state.calls)
    hold(busy <= max(1, state.agent.parallel_calls), "I16", f"{busy} calls under way")
    if state.phase == "model":
        hold(state.request_digest == digest_of_request(state), "I17", "the recorded digest is not that of the request")
    text = snapshot.to_json(state)
    hold(snapshot.from_json(text) == state, "I14", "a snapshot does not come back as the state it was made of")
    hold(state.copy() == state, "I14", "a copy is not equal")


def digest_of_request(state: RunState) -> str:
    """The digest of the request under way, from nothing but its parts."""
    digest = EMPTY_DIGEST
    for message in state.transcript:
        digest = message_digest(digest, message)
    return chain_digest(base_digest(state.agent, tuple(state.menu.values())), digest)
