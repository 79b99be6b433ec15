"""The runs of one ownership: who gets a message, what a run decides, when its effects leave, what stays in memory.

The path of a message: `arrive` -> inbox of its run -> `pump`: decide on a copy, append one record -> `valid`: the record counts,
its effects leave, what waited meanwhile is decided together. One unacknowledged record a run (J5).
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from services.loop.arrivals import Arrival, Reject, traceparent_of
from services.loop.effects import Effects
from services.loop.memory import RunMemory
from services.loop.outbox import Unacked
from services.loop.projections import open_until
from services.loop.runs import Queued, RunSlot
from services.loop.shell import Counters, Shell
from turnlog.codec import Unencodable
from turnlog.core.decide import advance, decide
from turnlog.core.errors import CoreError
from turnlog.core.events import Event, Message, ModelAnswer, ModelFailure, Refusal
from turnlog.core.pending import due_timers, model_due, model_request, next_wake
from turnlog.core.records import InputRef, JournalRecord
from turnlog.core.state import RunState
from turnlog.kafka.fenced import SNAPSHOT, STEP, RecordHeader, Trail, value_digest
from turnlog.kafka.opening import Restored
from turnlog.kafka.ownership import Ownership
from turnlog.kafka.partitioner import partition_of
from turnlog.kafka.port import LogError, Received, TooLarge

if TYPE_CHECKING:
    from services.loop.owner import PartitionOwner

_log = logging.getLogger(__name__)

BATCH_BYTES = 512 * 1024


class Ticket(NamedTuple):
    """What an append needs to be released: which run, what the record is, which inputs it deals with."""

    slot: RunSlot
    kind: str
    digest: bytes
    size: int
    wake: int
    end: int
    events: tuple[Event, ...]
    records: tuple[Received, ...]


class RunTable:
    """See the module. Belongs to one ownership and dies with it."""

    def __init__(
        self, owner: PartitionOwner, shell: Shell, ownership: Ownership[Ticket], epoch: int, restored: Restored,
        dealt_with: Callable[[Received], None],
    ) -> None:  # fmt: skip
        now = shell.now()
        self.index = owner.index
        self.slots: dict[str, RunSlot] = {
            key: RunSlot(key, trail, None, now) for key, trail in restored.fold.trails.items()
        }
        self.waiting: dict[str, list[Arrival]] = {}
        """Arrivals for runs not known yet, in order: until the known runs are streamed, or a start can be resolved (J12)."""
        self.hold = False
        """Nothing is appended for the moment (a fence is about to be)."""
        self.effects = Effects(shell, self.index, Unacked(), self._refused, self.let_go)
        self._owner = owner
        self._shell = shell
        self._ownership = ownership
        self._epoch = epoch
        self._dealt_with = dealt_with
        self._held: list[RunSlot] = []
        self._asked_at: dict[str, int] = {}
        self.memory = RunMemory(self, shell, epoch, restored)

    @property
    def live(self) -> bool:
        """Timers fire and effects are sent again: the backlog has been taken in."""
        return self._owner.ready

    @property
    def token(self) -> bytes:
        """The fence that records are written under now."""
        return self._ownership.token

    def cut(self, reason: str) -> None:
        """The journal is not what it was (J15)."""
        self._owner.cut(reason)

    # ------------------------------------------------------------ arrivals

    def arrive(self, arrival: Arrival) -> None:
        """An inbound record whose key, run id and token are right."""
        if arrival.kind != "result" and self._misrouted(arrival):
            return
        slot = self.slots.get(arrival.run_id)
        if slot is None or arrival.run_id in self.waiting:
            return self._unknown(arrival)
        self._queue(slot, self._queued(arrival))

    def _misrouted(self, arrival: Arrival) -> bool:
        """A command in the wrong partition (another client's partitioner): once to the right one, never processed in place."""
        s, record = self._shell, arrival.record
        right = partition_of(record.key or b"", s.partitions)
        if right == self.index:
            return False
        if any(name == "rerouted" for name, _ in record.headers):
            self.reject(
                Reject(
                    record, "misrouted", f"run {arrival.run_id} belongs to partition {right}, also after one re-routing"
                )
            )
            return True
        s.counters.rerouted += 1
        headers = [*record.headers, ("rerouted", b"1")]
        s.outbox.send(
            s.topics.commands, record.value, record.key, partial(self._dealt_with, record), partition=right, headers=headers,
            refused=lambda problem, done: self.reject(Reject(record, "misrouted", f"it could not be sent on: {problem}")),
        )  # fmt: skip
        return True

    def _queued(self, arrival: Arrival) -> Queued:
        record = arrival.record
        message = Message(record.timestamp_ms, arrival.body, None, None, arrival.call_key, arrival.attempt)  # type: ignore[arg-type]
        return Queued(message, record, arrival.command_id, arrival.kind)

    def _queue(self, slot: RunSlot, item: Queued) -> None:
        slot.inbox.append(item)
        if not slot.queued and not slot.in_flight and not slot.loading:
            slot.queued = True
            self._held.append(slot)

    def pump_all(self) -> None:
        """Decide for every run that something arrived for; called once per round of the poll loop."""
        if self.hold or not self._held:
            return
        held, self._held = self._held, []
        for slot in held:
            slot.queued = False
            self.pump(slot)

    def _unknown(self, arrival: Arrival) -> None:
        """A run that is not open here: it ended, it never was, it starts now, or nobody can say yet."""
        known = self._owner.known
        if known is None or not known.streamed or arrival.run_id in self.waiting:
            self.waiting.setdefault(arrival.run_id, []).append(arrival)
            return
        if arrival.run_id in known:
            return self._after_end(arrival)
        if arrival.start is not None:
            return self._start(arrival)
        if arrival.kind == "result":
            return self.reject(Reject(arrival.record, "unknown_run", f"no run {arrival.run_id} is known here"))
        self._outcome(arrival, "refused", f"there is no run {arrival.run_id}: start it first")

    def _after_end(self, arrival: Arrival) -> None:
        if arrival.start is not None:
            self._outcome(arrival, "duplicate", f"run {arrival.run_id} exists already")
        elif arrival.kind == "result":
            self.reject(Reject(arrival.record, "late", f"run {arrival.run_id} has ended and takes no more results"))
        else:
            self._outcome(arrival, "refused", f"run {arrival.run_id} has ended")

    def _start(self, arrival: Arrival) -> None:
        assert arrival.start is not None
        s = self._shell
        found = s.tables.resolve(arrival.command_id, arrival.start, traceparent_of(arrival.record))
        if isinstance(found, str):
            asked_at = self._asked_at.setdefault(arrival.run_id, s.now())
            if s.now() - asked_at < s.bounds.resolve_wait_ms or not s.tables.caught_up:
                self.waiting.setdefault(arrival.run_id, []).append(arrival)
                return
            del self._asked_at[arrival.run_id]
            return self._outcome(arrival, "refused", found)
        self._asked_at.pop(arrival.run_id, None)
        slot = self.slots[arrival.run_id] = RunSlot(arrival.run_id, None, RunState(arrival.run_id), s.now())
        s.counters.runs_started += 1
        self._queue(slot, self._queued(arrival._replace(body=found)))

    def let_in(self) -> None:
        """Look again at what waited for runs to become known."""
        waiting, self.waiting = self.waiting, {}
        for arrivals in waiting.values():
            for arrival in arrivals:
                self.arrive(arrival)

    def _outcome(self, arrival: Arrival, outcome: str, reason: str) -> None:
        self.effects.outcome(
            arrival.command_id, arrival.run_id, arrival.kind, outcome, reason, partial(self._dealt_with, arrival.record)
        )

    def reject(self, reject: Reject) -> None:
        """A dead letter; and an outcome, where a readable command was refused. Dealt with once the letter is acknowledged."""
        if reject.command is not None:
            c = reject.command
            self.effects.outcome(c.command_id, c.run_id, c.kind, "refused", reject.detail, lambda: None)
        self.effects.dead_letter(reject.record, reject.reason, reject.detail, partial(self._dealt_with, reject.record))

    # ------------------------------------------------------------ deciding

    def reply(self, run_id: str, turn: int, attempt: int, body: ModelAnswer | ModelFailure) -> None:
        """The model answered, or failed."""
        slot = self.slots.get(run_id)
        if slot is not None:
            if slot.ask is not None:
                slot.ask = None
                self._shell.asks -= 1
            self._queue(slot, Queued(Message(self._shell.now(), body, turn, None, None, attempt)))

    def pump(self, slot: RunSlot) -> None:
        if slot.in_flight or slot.loading or not slot.inbox or self.slots.get(slot.run_id) is not slot:
            return
        if self.hold:
            slot.queued = True
            self._held.append(slot)
            return
        if slot.problem:
            return self._turn_away(slot)
        if slot.state is None:
            return self.memory.load(slot)
        self._decide(slot, slot.state, slot.inbox)

    def _decide(self, slot: RunSlot, state: RunState, inbox: list[Queued]) -> None:
        """Decide these messages together on one copy and append what comes of them as one step."""
        slot.inbox = []
        events: list[Event] = []
        refs: list[InputRef] = []
        records: list[Received] = []
        taken = size = 0
        try:
            draft = state.copy()
            for item in inbox:
                size += self._take(slot, draft, item, events, refs, records)
                taken += 1
                if size > BATCH_BYTES:
                    break
            slot.inbox = inbox[taken:]
            if events:
                self._append_step(slot, state, draft, tuple(events), tuple(refs), tuple(records), inbox[:taken])
            elif slot.inbox:
                self._decide(slot, state, slot.inbox)
            elif slot.trail is None:  # its start was refused: there is no such run
                self.slots.pop(slot.run_id, None)
            elif not slot.wake:
                self.set_wake(slot, next_wake(state))  # a timer that came to nothing must not silence the next
        except Exception as problem:  # noqa: BLE001 - the rules will raise it again: this run stops, not its partition
            made = [each for each in inbox[:taken] if each.record in records or each.done in slot.after]
            if not slot.in_flight:  # else the step has them
                slot.inbox = [*made, *inbox[taken:]]
            self.failed(slot, problem)

    def _take(
        self, slot: RunSlot, draft: RunState, item: Queued, events: list[Event], refs: list[InputRef], records: list[Received]
    ) -> int:  # fmt: skip
        """One message; what it makes goes into the lists. Returns about how many bytes it adds."""
        message, record = item.message, item.record
        if record is None:
            own = advance(draft, message, self._shell.validate)
            events.extend(own)
            if item.done is not None:
                slot.after.append(item.done) if own else item.done()
            return 0
        if record.offset <= slot.seen.get(record.topic, -1):
            self._passed(slot, draft, item, record)
            return 0
        if item.kind == "start" and draft.phase != "new":  # for a run that exists: such a start was not even resolved
            self._nothing(slot, draft, item, record)
            return 0
        try:
            made = advance(draft, message._replace(input=len(refs)), self._shell.validate)
        except CoreError as problem:
            self._undecidable(slot, item, record, problem)
            return 0
        if not made:
            self._nothing(slot, draft, item, record)
            return 0
        events.extend(made)
        refs.append(InputRef(record.topic, record.partition, record.offset))
        records.append(record)
        return len(record.value or b"")

    def _passed(self, slot: RunSlot, draft: RunState, item: Queued, record: Received) -> None:
        """A record at or below the run's last input, delivered again after a restore (J11). It stands in one of the run's steps, or
        it made no event and the word about it may have been lost with the last owner: that is said again."""
        if (record.topic, record.offset) in slot.inputs:
            return self._dealt_with(record)
        try:
            known = item.kind == "start" or not decide(draft, item.message, self._shell.validate)
        except CoreError as problem:
            return self._undecidable(slot, item, record, problem)
        if known or item.kind == "result":
            return self._nothing(slot, draft, item, record)
        reason = "this command was taken already"  # so long ago that the run does not remember its id
        self.effects.outcome(
            item.command_id, slot.run_id, item.kind, "duplicate", reason, partial(self._dealt_with, record)
        )

    def _undecidable(self, slot: RunSlot, item: Queued, record: Received, problem: CoreError) -> None:
        """The rules refuse the message itself: a result of nobody's call is a dead letter, a command has its outcome."""
        if item.kind == "result":
            return self.reject(Reject(record, "unknown_call", str(problem)))
        self.effects.outcome(
            item.command_id, slot.run_id, item.kind, "refused", str(problem), partial(self._dealt_with, record)
        )

    def _nothing(self, slot: RunSlot, draft: RunState, item: Queued, record: Received) -> None:
        """A repetition, or a command to a run that has ended."""
        done = partial(self._dealt_with, record)
        if item.kind == "result":
            self._shell.counters.repeats += 1
            return done()
        if item.kind == "start" or item.command_id in draft.commands:
            outcome, reason = (
                "duplicate",
                f"run {slot.run_id} exists already" if item.kind == "start" else "this command was taken already",
            )
        else:
            outcome, reason = "refused", f"run {slot.run_id} has ended"
        self.effects.outcome(item.command_id, slot.run_id, item.kind, outcome, reason, done)

    def _append_step(
        self, slot: RunSlot, before: RunState, draft: RunState, events: tuple[Event, ...], refs: tuple[InputRef, ...],
        records: tuple[Received, ...], items: list[Queued],
    ) -> None:  # fmt: skip
        s, trail, own = self._shell, slot.trail, self._ownership
        step, prev = (trail.step + 1, trail.digest) if trail is not None else (0, None)
        at = events[-1].at
        record = JournalRecord(
            STEP, own.token, slot.run_id, step, prev, at, s.build, draft.rules, self._epoch, refs, events
        )
        try:
            value = s.codec.encode(record)
        except Unencodable as problem:
            return self.stop(slot, f"step {step} cannot be written: {problem}", items)
        if len(value) > s.bounds.step_bytes:
            return self._too_large(slot, before, items, len(value))
        asks = model_due(draft)
        wake = at if asks else next_wake(draft)
        end = open_until(draft)
        header = RecordHeader(STEP, own.token, step, prev, wake or max(end, 0), end)
        ticket = Ticket(slot, STEP, value_digest(value), len(value), header.wake, end, events, records)
        if not self._append(slot, ticket, value, header, items):
            return
        slot.state = draft
        if asks:
            self._ask(slot, draft)

    def append_snapshot(self, slot: RunSlot, value: bytes, header: RecordHeader) -> bool:
        """Append a snapshot; see `_append`."""
        ticket = Ticket(slot, SNAPSHOT, b"", len(value), header.wake, header.end, (), ())
        return self._append(slot, ticket, value, header, [])

    def _append(self, slot: RunSlot, ticket: Ticket, value: bytes, header: RecordHeader, items: list[Queued]) -> bool:
        """False if it could not be handed over: the run is stopped, or every ownership is over."""
        try:
            self._shell.writer.append(self._ownership, ticket, slot.key, value, header)
        except TooLarge as problem:
            self.stop(slot, f"a record of {len(value)} bytes was refused: {problem}", items)
            return False
        except LogError as problem:
            self._shell.writer.renew(f"append: {problem}")
            return False
        slot.in_flight = True
        slot.touched = self._shell.now()
        return True

    def _too_large(self, slot: RunSlot, before: RunState, items: list[Queued], size: int) -> None:
        """A step that does not fit is split by message; a model answer that fits in no step fails typed, and nothing is cut."""
        if len(items) > 1:
            half = len(items) // 2
            slot.inbox = [*items[half:], *slot.inbox]
            return self._decide_first(slot, before, items[:half])
        item = items[0]
        if isinstance(item.message.body, ModelAnswer):
            failure = ModelFailure("answer_too_large", f"the answer makes a step of {size} bytes", False)
            return self._decide_first(slot, before, [item._replace(message=item.message._replace(body=failure))])
        self.stop(slot, f"a step of {size} bytes cannot be written (at most {self._shell.bounds.step_bytes})", items)

    def _decide_first(self, slot: RunSlot, before: RunState, items: list[Queued]) -> None:
        rest = slot.inbox
        self._decide(slot, before, items)
        slot.inbox = [*slot.inbox, *rest]
        if slot.problem:
            self._turn_away(slot)
        elif slot.inbox and not slot.in_flight and not slot.queued:
            slot.queued = True
            self._held.append(slot)

    def _ask(self, slot: RunSlot, state: RunState) -> None:
        """Call the model, once per turn and attempt; its reply is decided later, so the call need not wait for the append (J6)."""
        place = (state.turn, state.model_attempt)
        if slot.asked == place:
            return
        slot.asked = place
        s = self._shell
        s.counters.model_calls += 1
        mailbox, run_id, (turn, attempt), table = s.mailbox, slot.run_id, place, self
        s.asks += 1
        slot.ask = s.providers.ask(
            model_request(state), lambda reply: mailbox.append((table, run_id, turn, attempt, reply))
        )

    # ------------------------------------------------------------ release

    def valid(self, ticket: Ticket, offset: int) -> None:
        """The record counts: keep its place, let its effects leave, go on."""
        slot = ticket.slot
        slot.in_flight = False
        before = self.memory.written
        self.memory.written = before + ticket.size
        if ticket.kind == SNAPSHOT:
            self._snapshot_valid(slot, ticket, offset, before)
        else:
            self._step_valid(slot, ticket, offset, before)
        if slot.unsent:
            self.memory.send_again(slot)
        if slot.inbox:
            self.pump(slot)
        elif slot.state is not None and ticket.kind == STEP and self.memory.snapshot_due(slot):
            self.memory.snapshot(slot)

    def _snapshot_valid(self, slot: RunSlot, ticket: Ticket, offset: int, mark: int) -> None:
        if slot.trail is not None:
            slot.trail.rebase(offset, ticket.size, mark)
        if slot.state is not None and self.live:
            self.take_up(slot)  # a timer that came due meanwhile found the run in flight

    def _step_valid(self, slot: RunSlot, ticket: Ticket, offset: int, mark: int) -> None:
        s = self._shell
        trail = slot.trail
        if trail is None:
            trail = slot.trail = Trail(0, ticket.digest, offset, ticket.size, mark, ticket.wake, ticket.end)
        else:
            trail.add_step(offset, ticket.size, ticket.digest, ticket.wake, ticket.end)
        for record in ticket.records:
            slot.seen[record.topic] = record.offset
            self._dealt_with(record)
        if slot.after:
            after, slot.after = slot.after, []
            for done in after:
                done()
        s.counters.steps += 1
        s.counters.events += len(ticket.events)
        state = slot.state
        if state is None:  # it was stopped meanwhile
            return self.effects.unacked.add(offset)
        try:
            self.effects.leave(slot, state, ticket.events, trail.step, trail.digest, offset)
            self.set_wake(slot, ticket.end if state.ended else next_wake(state))
        except Exception as problem:  # noqa: BLE001 - as in deciding
            return self.failed(slot, problem, offset)
        if state.ended:
            self._ended(slot, state, ticket.events)

    def _ended(self, slot: RunSlot, state: RunState, events: tuple[Event, ...]) -> None:
        if events[-1].kind.startswith("run_"):
            Counters.count(self._shell.counters.runs_ended, state.status)
            level = logging.WARNING if state.status == "failed" else logging.INFO
            _log.log(
                level,
                "run %s: %s",
                state.status,
                state.error or state.reason,
                extra={"run": slot.run_id, "turn": state.turn},
            )
        self._cancel_ask(slot)
        self.let_go(slot)

    def _cancel_ask(self, slot: RunSlot) -> None:
        if slot.ask is not None:
            slot.ask.cancel()
            slot.ask = None
            self._shell.asks -= 1

    def let_go(self, slot: RunSlot) -> None:
        """Forget a run that ended, once nothing can follow and all of its effects are acknowledged."""
        trail = slot.trail
        if trail is None or slot.in_flight or slot.effects or slot.inbox or slot.loading or slot.unsent:
            return
        if (trail.end == 0 or 0 < trail.end <= self._shell.now()) and self.slots.pop(slot.run_id, None) is not None:
            known = self._owner.known
            if known is not None:
                known.ended(slot.key)

    def _refused(self, slot: RunSlot, call_key: str, attempt: int, problem: LogError, done: Callable[[], None]) -> None:
        """Kafka refused the request of a call for good: that is an outcome of the call (J13). Until it is journaled the request
        counts as not acknowledged, else a crash here would leave the call to its deadline."""
        body = Refusal(f"{problem.code or 'refused'}: {problem}")
        if self.slots.get(slot.run_id) is not slot:
            return done()
        self._queue(slot, Queued(Message(self._shell.now(), body, None, None, call_key, attempt), done=done))

    def set_wake(self, slot: RunSlot, wake: int) -> None:
        if wake and wake != slot.wake:
            heapq.heappush(self._shell.wakes, (wake, self.index, slot.run_id))
        slot.wake = wake

    def wake(self, run_id: str, due: int) -> None:
        """A timer of the heap came due; stale ones are ignored."""
        slot = self.slots.get(run_id)
        if slot is None or slot.wake != due or slot.problem:
            return
        slot.wake = 0
        trail = slot.trail
        if trail is not None and trail.end > 0 and not slot.in_flight:
            return self.let_go(slot)
        self.take_up(slot)

    def take_up(self, slot: RunSlot) -> None:
        """Do what the state says must be under way: fire timers that are due, ask the model."""
        if slot.state is None:
            return self.memory.load(slot)
        if slot.in_flight:
            return  # looked at again when the step is valid
        now = self._shell.now()
        try:
            for message in due_timers(slot.state, now) if self._owner.timely else ():
                self._queue(slot, Queued(message))
            if model_due(slot.state):
                self._ask(slot, slot.state)
            if not slot.inbox:
                self.set_wake(slot, next_wake(slot.state))
        except Exception as problem:  # noqa: BLE001 - as in deciding
            self.failed(slot, problem)

    # ------------------------------------------------------------ runs that stop

    def failed(self, slot: RunSlot, problem: Exception, mark: int | None = None) -> None:
        """Something that was asked of a run's state raised what nobody foresaw: that run stops. `mark` is a step whose effects may not
        have left: it holds the floor, so that the next owner sends them."""
        _log.error("run %s: the rules failed", slot.run_id, exc_info=problem)
        if mark is not None:
            self.effects.unacked.add(mark)
        self.stop(slot, f"the rules failed on a message: {problem!r}", [])

    def stop(self, slot: RunSlot, problem: str, items: list[Queued]) -> None:
        """Stop one run for good under this build, with a clear error; the partition goes on (J1)."""
        _log.error("run is stopped: %s", problem, extra={"run": slot.run_id})
        slot.problem = problem
        slot.inbox = [*items, *slot.inbox]
        slot.state = None
        self._cancel_ask(slot)
        if slot.trail is None and not slot.in_flight:
            self.slots.pop(slot.run_id, None)
        self.memory.give_up(slot)
        self._turn_away(slot)

    def _turn_away(self, slot: RunSlot) -> None:
        """Messages for a stopped run: an outcome that says so, or a dead letter (which can be retried later)."""
        inbox, slot.inbox = slot.inbox, []
        for item in inbox:
            if item.done is not None:
                item.done()
            if item.record is None:
                continue
            detail = f"run {slot.run_id} is stopped: {slot.problem[:500]}"
            if item.kind != "result":
                self.effects.outcome(item.command_id, slot.run_id, item.kind, "refused", detail, lambda: None)
            self.reject(Reject(item.record, "run_stopped", detail))

    # ------------------------------------------------------------ time and the end

    def tick(self, *, live: bool) -> None:
        """Late starts, summaries, and the timers of memory."""
        if self.waiting and self._owner.known is not None and self._owner.known.streamed:
            self.let_in()
        now = self._shell.now()
        if not self._ownership.unsure:
            self.effects.publish_due(now, self.failed)
        if live:
            self.memory.tick(now)

    def forget(self, keys: list[bytes]) -> None:
        """Tombstones for runs that ended long ago: their ids may be used again (J12)."""
        for key in keys:
            self.effects.tombstone(key)

    def renewed(self, ownership: Ownership[Any]) -> None:
        """The daily fence is in place: go on under it."""
        self._ownership = ownership
        self.hold = False

    def close(self) -> None:
        """The ownership is over: cancel what was asked, forget the rest."""
        for slot in self.slots.values():
            self._cancel_ask(slot)
        self.slots = {}
        self.waiting = {}
        self._held = []
