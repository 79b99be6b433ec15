"""What leaves a partition because of its steps: requests, ledger, summaries, outcomes, dead letters; now, or again after a restore.

Nothing here decides: it follows from events that count. Every effect holds the mark of its step until Kafka has it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256

from services.loop import projections
from services.loop.known_runs import state_headers
from services.loop.outbox import Unacked
from services.loop.runs import RunSlot, Unsent
from services.loop.shell import Counters, Shell
from turnlog.core.events import Event
from turnlog.core.records import CommandOutcome, DeadLetter, Header, InputRef, LedgerEntry
from turnlog.core.state import REQUESTED, RunState
from turnlog.kafka.fenced import Trail
from turnlog.kafka.port import LogError, Received

_log = logging.getLogger(__name__)

DEAD_LETTER_BYTES = 512 * 1024
KEY_BYTES = HEADERS_BYTES = 64 * 1024
"""What a dead letter keeps of a key and of headers: with the value and a second copy of the key it stays below a record's bound."""


class _StepEffects:
    """Counts one run's effects of one step; `done` runs inside the producer's poll."""

    __slots__ = ("_unacked", "_slot", "_mark", "_let_go")

    def __init__(self, unacked: Unacked, slot: RunSlot, mark: int, let_go: Callable[[RunSlot], None]) -> None:
        self._unacked = unacked
        self._slot = slot
        self._mark = mark
        self._let_go = let_go

    def add(self) -> Callable[[], None]:
        self._unacked.add(self._mark)
        self._slot.effects += 1
        return self.done

    def done(self) -> None:
        self._unacked.done(self._mark)
        self._slot.effects -= 1
        if not self._slot.effects and self._slot.trail is not None and self._slot.trail.end >= 0:
            self._let_go(self._slot)


class Effects:
    """See the module. One per ownership."""

    def __init__(
        self, shell: Shell, index: int, unacked: Unacked, refused: Callable[[RunSlot, str, int, LogError, Callable[[], None]], None],
        let_go: Callable[[RunSlot], None],
    ) -> None:  # fmt: skip
        self.unacked = unacked
        self._shell = shell
        self._index = index
        self._refused = refused
        self._let_go = let_go
        self._dirty: dict[str, tuple[RunSlot, _StepEffects]] = {}

    # ------------------------------------------------------------ a step that counts

    def leave(
        self, slot: RunSlot, state: RunState, events: Sequence[Event], step: int, head: bytes, offset: int
    ) -> None:
        """Send what this step causes."""
        effects = _StepEffects(self.unacked, slot, offset, self._let_go)
        outcomes = ledger = False
        for event in events:
            kind = event.kind
            if kind == "call_requested":
                self._request(slot, state, event, effects)
            elif kind == "call_settled":
                ledger = True
            elif kind in projections.COMMAND_KINDS or kind == "command_noted":
                outcomes = True
        if ledger:
            for entry in projections.ledger_entries(slot.run_id, events, step):
                self._ledger(entry, effects)
        if outcomes:
            for outcome in projections.command_outcomes(slot.run_id, events, step):
                self._send_outcome(outcome, effects.add())
        self._summary(slot, state, step, head, effects)

    def _request(self, slot: RunSlot, state: RunState, event: Event, effects: _StepEffects) -> None:
        if event.turn != state.turn:
            return
        call = state.calls[event.position or 0]
        if call.key != event.call_key or call.stage != REQUESTED or call.attempt != event.attempt:
            return
        s = self._shell
        token = s.tokens.token(call.key, call.attempt)
        request = projections.tool_request(state, call, s.topics.results, self._index, token)
        key, attempt = call.key, call.attempt
        s.counters.requests += 1
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug(
                "%s requested",
                call.tool,
                extra={"run": slot.run_id, "turn": state.turn, "key": key, "attempt": attempt},
            )
        headers = [("traceparent", state.traceparent.encode())] if state.traceparent else []
        s.outbox.send(
            state.menu[call.tool].topic, s.codec.encode(request), key.encode(), effects.add(), headers=headers,
            refused=lambda problem, done: self._refused(slot, key, attempt, problem, done),
        )  # fmt: skip

    def _ledger(self, entry: LedgerEntry, effects: _StepEffects) -> None:
        s = self._shell
        s.outbox.send(
            s.topics.ledger,
            s.codec.encode(entry),
            entry.call_key.encode(),
            effects.add(),
            partition=self._index,
            kept=True,
        )

    def _send_outcome(self, outcome: CommandOutcome, done: Callable[[], None]) -> None:
        s = self._shell
        s.outbox.send(s.topics.outcomes, s.codec.encode(outcome), outcome.command_id.encode(), done, kept=True)

    # ------------------------------------------------------------ summaries, coalesced

    def _summary(self, slot: RunSlot, state: RunState, step: int, head: bytes, effects: _StepEffects) -> None:
        """At once when the run ended, stopped or waits; else with the next round, newest only."""
        if state.status != "running":
            self._publish(slot, state, step, head, effects.add())
            return self._dirty_done(slot)
        if slot.dirty is None:
            slot.dirty = step
            effects.add()
            self._dirty[slot.run_id] = (slot, effects)

    def _dirty_done(self, slot: RunSlot) -> None:
        if slot.dirty is not None:
            slot.dirty = None
            self._dirty.pop(slot.run_id)[1].done()

    def _publish(self, slot: RunSlot, state: RunState, step: int, head: bytes, done: Callable[[], None]) -> None:
        s = self._shell
        slot.sent_at = s.now()
        record = projections.summary(state, step, head)
        headers = state_headers(step, record.ended_at)
        s.outbox.send(
            s.topics.run_state, s.codec.encode(record), slot.key, done, partition=self._index, headers=headers
        )

    def publish_due(self, now: int, failed: Callable[[RunSlot, Exception], None]) -> None:
        """Publish the summaries of working runs whose turn it is; one that cannot be made holds the mark of its step."""
        every = self._shell.bounds.publish_every_ms
        for slot, _ in list(self._dirty.values()):
            if now - slot.sent_at < every or slot.state is None:
                continue
            if now - slot.state.started_at < every:
                continue  # short runs are published once, at their end
            self._publish_dirty(slot, failed)

    def publish_all(self, failed: Callable[[RunSlot, Exception], None]) -> None:
        """Publish the summaries of working runs, whose turn will not come here any more."""
        for slot, _ in list(self._dirty.values()):
            self._publish_dirty(slot, failed)

    def _publish_dirty(self, slot: RunSlot, failed: Callable[[RunSlot, Exception], None]) -> None:
        if slot.in_flight or slot.state is None or slot.trail is None:
            return  # the state is that of a step which may not count
        slot.dirty = None
        _, effects = self._dirty.pop(slot.run_id)
        try:
            self._publish(slot, slot.state, slot.trail.step, slot.trail.digest, effects.done)
        except Exception as problem:  # noqa: BLE001 - of one run, and not of its partition
            failed(slot, problem)

    # ------------------------------------------------------------ again, after a restore

    def send_again(self, slot: RunSlot, state: RunState, unsent: Sequence[Unsent], trail: Trail) -> None:
        """Effects of steps that may not have left: newest summary, ledger and outcomes as they were, requests only where unanswered."""
        self.facts_again(slot, unsent)
        if state.phase == "calls":
            for offset, _, events in unsent:
                effects = _StepEffects(self.unacked, slot, offset, self._let_go)
                for event in events:
                    if event.kind == "call_requested":
                        self._request(slot, state, event, effects)
        last = _StepEffects(self.unacked, slot, unsent[-1].offset, self._let_go)
        self._publish(slot, state, trail.step, trail.digest, last.add())

    def facts_again(self, slot: RunSlot, unsent: Sequence[Unsent]) -> None:
        """Ledger entries and outcomes of steps, as they were."""
        for offset, step, events in unsent:
            effects = _StepEffects(self.unacked, slot, offset, self._let_go)
            for entry in projections.ledger_entries(slot.run_id, events, step):
                self._ledger(entry, effects)
            for outcome in projections.command_outcomes(slot.run_id, events, step):
                self._send_outcome(outcome, effects.add())

    # ------------------------------------------------------------ what belongs to no step

    def outcome(
        self, command_id: str, run_id: str, kind: str, outcome: str, reason: str, done: Callable[[], None]
    ) -> None:
        """What became of a command that no run recorded."""
        self._send_outcome(CommandOutcome(command_id, run_id, kind, outcome, reason, None, self._shell.now()), done)

    def dead_letter(self, record: Received, reason: str, detail: str, done: Callable[[], None]) -> None:
        """Keep the bytes of a record that could not be read or taken, with where from and why."""
        s = self._shell
        Counters.count(s.counters.dead_letters, reason)
        letter = letter_of(record, reason, detail, "loop", s.now())
        s.outbox.send(s.topics.dead_letters, s.codec.encode(letter), letter.key, done, kept=True)

    def tombstone(self, key: bytes) -> None:
        s = self._shell
        s.outbox.send(s.topics.run_state, None, key, lambda: None, partition=self._index)


def letter_of(record: Received, reason: str, detail: str, service: str, now: int) -> DeadLetter:
    """The dead letter of a record: value cut at 512 KiB, with the size and hash of the whole; key and headers are bounded too."""
    value, key = record.value, record.key
    return DeadLetter(
        InputRef(record.topic, record.partition, record.offset), reason, detail[:2_000], None if key is None else key[:KEY_BYTES],
        None if value is None else value[:DEAD_LETTER_BYTES], len(value or b""), sha256(value or b"").digest(),
        tuple(_bounded_headers(record)), service, now,
    )  # fmt: skip


def _bounded_headers(record: Received) -> Iterator[Header]:
    """The first headers, up to a bound of bytes together."""
    left = HEADERS_BYTES
    for name, value in record.headers:
        left -= len(name) * 4 + len(value or b"")
        if left < 0:
            return
        yield Header(name, value)
