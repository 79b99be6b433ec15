"""What is a run waiting for? Answered from its journal, the pure core, and the positions of the workers' group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from turnlog.cli.dead_letters import all_letters
from turnlog.cli.output import emit, fields, from_now, plain, say, when
from turnlog.cli.wiring import Session, tool_group
from turnlog.client import RunUnknown
from turnlog.core import pending
from turnlog.core.events import CallRequested, Event, ModelFailure, Timer
from turnlog.core.ids import place, run_of_key
from turnlog.core.records import JournalRecord
from turnlog.core.state import REQUESTED, RETRYING, SETTLED, Call, RunState
from turnlog.journal.entries import Entry
from turnlog.journal.history import LoadBlob, no_blobs, records_of, state_at
from turnlog.journal.reading import Owner, owners
from turnlog.journal.timeline import counted
from turnlog.kafka.fenced import Verdict
from turnlog.kafka.port import Admin, LogError, Partition


class WaitsFor(NamedTuple):
    """One thing a run waits for. `since` and `until` in ms since the epoch, 0 where unknown or none."""

    what: str
    place: str
    since: int
    until: int
    attempt: int = 0
    detail: str = ""
    tool: str = ""
    key: str = ""
    toolset: str = ""
    topic: str = ""


class NextTimer(NamedTuple):
    timer: str
    due: int
    place: str


class GroupLag(NamedTuple):
    """How far the workers of a toolset are behind its requests. `lag` is None where the group has committed nothing yet."""

    toolset: str
    group: str
    topic: str
    lag: int | None
    waiting_in: int


class Explanation(NamedTuple):
    run_id: str
    status: str
    reason: str
    step: int
    waits: tuple[WaitsFor, ...]
    timers: tuple[NextTimer, ...]
    groups: tuple[GroupLag, ...]
    owner: Owner | None
    broken: str
    error: str
    turned_away: str = ""
    """Why its owner took nothing for it any more since its last step: it is stopped there, and the journal does not know."""


def show(here: Session, run_id: str, now: int, json: bool) -> None:
    """Print the explanation. Raises RunUnknown, BadHistory."""
    entries = here.journal.run(run_id)
    if not entries:
        raise RunUnknown(run_id)
    found = explanation(run_id, entries, here.load_blob)
    topics = {wait.toolset: wait.topic for wait in found.waits if wait.toolset and wait.topic}
    groups = tuple(
        lag_of(here.admin, tool_group(here.prefix, toolset), toolset, topic)
        for toolset, topic in sorted(topics.items())
    )
    since = max((entry.timestamp_ms for entry in entries if entry.run_id == run_id), default=0)
    found = found._replace(groups=groups, turned_away=_turned_away(here, run_id, since))
    if json:
        emit(plain(found))
    else:
        _print(found, now)


def _turned_away(here: Session, run_id: str, since: int) -> str:
    """The newest word of the loop that it is stopped. Something must have arrived for it; until then only a metric tells."""
    of_it = [
        letter.body
        for letter in all_letters(here)
        if letter.body.reason == "run_stopped"
        and letter.body.at >= since
        and run_of_key((letter.body.key or b"").decode("utf-8", "replace")) == run_id
    ]
    return max(of_it, key=lambda body: body.at).detail if of_it else ""


def explanation(run_id: str, entries: list[Entry], load_blob: LoadBlob = no_blobs) -> Explanation:
    """The explanation without the groups. Pure."""
    broken = next(
        (e.why for e in entries if e.run_id == run_id and e.verdict in (Verdict.BROKEN, Verdict.UNREADABLE)), ""
    )
    records = records_of(entries)
    state, step = state_at(run_id, records, None, load_blob)
    opened = owners(entries)
    timers = tuple(
        NextTimer(m.body.timer, m.at, "" if m.turn is None else place(m.turn, m.position))
        for m in sorted(pending.timers(state), key=lambda m: m.at)
        if isinstance(m.body, Timer)
    )
    return Explanation(
        run_id,
        state.status,
        state.reason,
        step,
        tuple(_waits(state, records)),
        timers,
        (),
        opened[-1] if opened else None,
        broken,
        state.error or "",
    )


def _waits(state: RunState, records: list[JournalRecord]) -> Iterator[WaitsFor]:
    events = [event for record in records for event in record.events]
    match state.phase:
        case "model":
            yield _model(state, events)
        case "calls":
            yield from (_call(state, call, events) for call in state.calls if call.stage != SETTLED)
        case "input":
            yield WaitsFor("its user's input", "", _since(events, "input_awaited"), state.idle_at)
        case "stopped":
            yield WaitsFor(
                "resume or input",
                "",
                _since(events, "run_stopped"),
                state.idle_at,
                detail=f"it stopped: {state.reason}",
            )
        case "ended":
            for key, call in state.open_calls.items():
                yield WaitsFor(
                    "a late result", place(call.turn, call.position), state.ended_at, call.not_after, tool=call.tool, key=key,
                    detail="the run is over; the result will only be noted",
                )  # fmt: skip


def _model(state: RunState, events: list[Event]) -> WaitsFor:
    failure = next((e.payload for e in reversed(events) if isinstance(e.payload, ModelFailure)), None)
    said = (
        f"; the last failure: {failure.error}: {failure.message}"
        if failure is not None and state.model_attempt + bool(state.model_retry_at) > 1
        else ""
    )
    if state.model_retry_at > 0:
        since = _since(events, "model_retry_set")
        return WaitsFor(
            "the time to ask the model again",
            place(state.turn),
            since,
            state.model_retry_at,
            state.model_attempt + 1,
            said.removeprefix("; "),
        )
    since = _since(events, "turn_started", "timer_fired")
    detail = f"{state.agent.model} with {counted(len(state.transcript), 'message')}{said}"
    return WaitsFor("the model's answer", place(state.turn), since, 0, state.model_attempt, detail)


def _call(state: RunState, call: Call, events: list[Event]) -> WaitsFor:
    entry = state.menu[call.tool]
    requested = [e for e in events if e.call_key == call.key and e.kind == "call_requested"]
    asked = requested[-1].payload if requested else None
    topic = asked.topic if isinstance(asked, CallRequested) else entry.topic
    wait = WaitsFor(
        "a tool's result", place(state.turn, call.position), requested[-1].at if requested else 0, call.deadline, call.attempt,
        "", call.tool, call.key, entry.toolset, topic,
    )  # fmt: skip
    if call.stage == REQUESTED:
        return wait
    if call.stage == RETRYING:
        return wait._replace(what="the time to try a tool again", attempt=call.attempt + 1, until=call.retry_at)
    others = sum(other.stage in (REQUESTED, RETRYING) for other in state.calls)
    detail = f"{others} of at most {max(1, state.agent.parallel_calls)} calls are under way"
    return wait._replace(what="its turn among the calls", topic="", detail=detail)


def _since(events: Iterable[Event], *kinds: str) -> int:
    return max((event.at for event in events if event.kind in kinds), default=0)


def lag_of(admin: Admin, group: str, toolset: str, topic: str) -> GroupLag:
    """The group's lag on its request topic; what cannot be asked is told as unknown."""
    try:
        info = admin.topics([topic]).get(topic)
        partitions = [Partition(topic, index) for index in range(info.partitions if info else 0)]
        ends, positions = admin.ends(partitions), admin.group_positions(group, partitions)
    except LogError:
        return GroupLag(toolset, group, topic, None, 0)
    behind = [end - max(start, at.offset if (at := positions.get(p)) else start) for p, (start, end) in ends.items()]
    known = any(positions.get(partition) for partition in partitions)
    return GroupLag(toolset, group, topic, sum(behind) if known else None, sum(behind))


def _print(found: Explanation, now: int) -> None:
    status = f"{found.status} ({found.reason})" if found.reason not in ("", found.status) else found.status
    fields([("run", found.run_id), ("status", status), ("error", found.error), ("step", found.step)])
    if found.broken:
        say(f"its chain is broken, it can never go on: {found.broken}")
    if found.turned_away:
        say(f"what came for it was turned away: {found.turned_away}")
        say("when that is mended: turnlog dead-letters list --reason run_stopped, and retry")
    if not found.waits:
        say("it waits for nothing")
    for wait in found.waits:
        say(_wait_line(wait, now))
    for timer in found.timers[:3]:
        say(
            f"next timer: {timer.timer} {timer.place} {from_now(timer.due, now)} ({when(timer.due)})".replace("  ", " ")
        )
    for group in found.groups:
        say(_group_line(group))
    if found.owner is not None:
        say(
            f"its partition was last opened by {found.owner.name or 'an unknown owner'}, {from_now(found.owner.at, now)}"
        )


def _wait_line(wait: WaitsFor, now: int) -> str:
    parts = [f"waits for {wait.what}"]
    if wait.tool:
        parts.append(f"{wait.tool} ({wait.toolset})" if wait.toolset else wait.tool)
    if wait.place:
        parts.append(wait.place)
    if wait.attempt:
        parts.append(f"attempt {wait.attempt}")
    if wait.since:
        parts.append(f"since {when(wait.since)} ({from_now(wait.since, now)})")
    if wait.until:
        parts.append(f"until {when(wait.until)} ({from_now(wait.until, now)})")
    if wait.key:
        parts.append(f"key {wait.key}")
    if wait.detail:
        parts.append(wait.detail)
    return ", ".join(parts)


def _group_line(group: GroupLag) -> str:
    if group.lag is None:
        return f"toolset {group.toolset}: group {group.group} has never committed on {group.topic}, {counted(group.waiting_in, 'request')} lie there: is a worker running?"
    behind = f"toolset {group.toolset}: group {group.group} is {counted(group.lag, 'request')} behind on {group.topic}"
    return f"{behind}, what a worker has begun included: is one running, and keeping up?" if group.lag else behind
