"""One rule taken out at a time: what each mutant patches in the product. The simulation, or the test of the rule, must notice.

python -m tests.simulation.loop_mutants [NAME ...]       how many seeds each needs to be caught
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

from services.loop.known_runs import KnownRuns
from services.loop.memory import RunMemory
from services.loop.outbox import Outbox
from services.loop.owner import PartitionOwner
from services.loop.runs import RunSlot
from services.loop.service import InstanceTaken, LoopService
from services.loop.table import RunTable
from tests.simulation.loop_world import Plan, World
from turnlog.kafka import fenced, opening
from turnlog.kafka.fenced import FENCE, Pointer, RecordHeader, header_of, value_digest
from turnlog.kafka.ownership import FencedWriter, Ownership
from turnlog.kafka.port import Delivered, Partition, Position, Received

Patch = Callable[[Callable[[Any, str, Any], None]], None]
"""Applies a mutant with `set(target, name, value)`, which knows how to undo it."""

MUTANTS: dict[str, Patch] = {}


def mutant(rule: str) -> Callable[[Patch], Patch]:
    """Adds the mutant under `<rule>_<name>`; its docstring or name says what was taken out."""

    def add(patch: Patch) -> Patch:
        MUTANTS[f"{rule}_{patch.__name__}"] = patch
        return patch

    return add


class Mutated:
    """The product with one mutant in it, inside a `with`."""

    def __init__(self, name: str) -> None:
        self._patch = MUTANTS[name]
        self._undo: list[tuple[Any, str, Any]] = []

    def _set(self, target: Any, attribute: str, value: Any) -> None:
        self._undo.append((target, attribute, target.__dict__[attribute]))
        setattr(target, attribute, value)

    def __enter__(self) -> None:
        self._patch(self._set)

    def __exit__(self, *_: object) -> None:
        for target, attribute, value in reversed(self._undo):
            setattr(target, attribute, value)


@mutant("J01")
def prev_forgotten(set_: Any) -> None:
    """Steps do not name the hash of the one before."""
    real = RunTable._append

    def append(self: Any, slot: RunSlot, ticket: Any, value: bytes, header: RecordHeader, items: Any) -> bool:
        return real(
            self,
            slot,
            ticket,
            value,
            header._replace(prev=b"\0" * 32) if header.kind == "step" and header.step else header,
            items,
        )

    set_(RunTable, "_append", append)


@mutant("J02")
def repeats_are_steps(set_: Any) -> None:
    """A reader that takes a repeat for a step that does not follow."""
    real = fenced.PartitionFold._step

    def step(self: Any, key: str, offset: int, value: bytes, header: RecordHeader) -> Any:
        trail = self.trails.get(key)
        if trail is not None and header.step == trail.step:
            trail.broken = "a repeat"
            return fenced.Verdict.BROKEN
        return real(self, key, offset, value, header)

    set_(fenced.PartitionFold, "_step", step)


@mutant("J04")
def fence_unconfirmed(set_: Any) -> None:
    """Who appended a fence owns the partition."""
    set_(opening, "confirm", lambda *_: True)


@mutant("J05")
def two_in_flight(set_: Any) -> None:
    """A run goes on before its last record is acknowledged."""
    real = RunTable._append

    def append(self: Any, slot: RunSlot, *rest: Any) -> bool:
        done = real(self, slot, *rest)
        slot.in_flight = False
        return done

    set_(RunTable, "_append", append)


@mutant("J06")
def gap_not_read(set_: Any) -> None:
    """A higher offset is taken for ours alone."""

    def missing(self: Ownership[Any], start: int, end: int) -> None:
        self.ignored += end - start

    set_(Ownership, "_missing", missing)


@mutant("J06")
def released_while_a_gap_is_read(set_: Any) -> None:
    def acknowledged(self: Ownership[Any], ticket: Any, report: Delivered) -> None:
        self.in_flight -= 1
        if self.ended is not None or report.offset is None:
            return
        start, self.expected = self.expected, report.offset + 1
        if report.offset > start:
            self._missing(start, report.offset)
        self._owner.valid(ticket, report.offset)

    set_(Ownership, "acknowledged", acknowledged)


@mutant("J06")
def later_acks_released_while_a_gap_is_read(set_: Any) -> None:
    real = Ownership.acknowledged

    def acknowledged(self: Ownership[Any], ticket: Any, report: Delivered) -> None:
        if self.ended is None and report.offset == self.expected and self._gap is not None:
            self.in_flight -= 1
            self.expected += 1
            return self._owner.valid(ticket, report.offset)
        return real(self, ticket, report)

    set_(Ownership, "acknowledged", acknowledged)


@mutant("J06")
def foreign_fence_ignored(set_: Any) -> None:
    real = Ownership._gap_read

    def gap_read(self: Any, end: int, records: list[Received] | None, error: Any) -> None:
        kept = (
            None if records is None else [r for r in records if (h := header_of(r.headers)) is None or h.kind != FENCE]
        )
        real(self, end, kept, error)

    set_(Ownership, "_gap_read", gap_read)


@mutant("J06")
def released_before_the_acknowledgement(set_: Any) -> None:
    real = RunTable._append

    def append(self: Any, slot: RunSlot, ticket: Any, value: bytes, header: RecordHeader, items: Any) -> bool:
        done = real(self, slot, ticket, value, header, items)
        if done and ticket.events and slot.state is not None:
            self.effects.leave(slot, slot.state, ticket.events, header.step, ticket.digest, self._ownership.expected)
        return done

    set_(RunTable, "_append", append)


@mutant("J07")
def unknown_fate_is_success(set_: Any) -> None:
    """An acknowledgement without an offset is believed."""
    real = FencedWriter.settle

    def settle(self: Any) -> int:
        for i, (life, ticket, report) in enumerate(list(self._reports)):
            if report.offset is None and report.error is None and hasattr(ticket, "owner"):
                self._reports[i] = (life, ticket, report._replace(offset=ticket.owner.expected))
        return real(self)

    set_(FencedWriter, "settle", settle)


@mutant("J07")
def errors_end_nothing(set_: Any) -> None:
    """The producer is replaced, its ownerships go on."""

    def renew(self: Any, reason: str) -> None:
        self._life += 1
        old, self._producer = self._producer, self._cluster.producer("journal")
        old.close()

    set_(FencedWriter, "renew", renew)


@mutant("J07")
def reports_of_the_old_producer_count(set_: Any) -> None:
    real = FencedWriter.renew

    def renew(self: Any, reason: str) -> None:
        real(self, reason)
        self._life -= 1

    set_(FencedWriter, "renew", renew)


@mutant("J08")
def floor_ignores_unacknowledged_effects(set_: Any) -> None:
    def floor(self: Any, end: int) -> tuple[int, int]:
        return self.oldest_base(end), end

    set_(RunMemory, "floor", floor)


@mutant("J08")
def floor_ignores_what_is_not_resent_yet(set_: Any) -> None:
    def floor(self: Any, end: int) -> tuple[int, int]:
        effects = self._table.effects.unacked.least(end)
        return min(self.oldest_base(end), effects), effects

    set_(RunMemory, "floor", floor)


@mutant("J08")
def floor_runs_ahead_of_a_gap(set_: Any) -> None:
    set_(Ownership, "told", property(lambda self: self.expected))


@mutant("J09")
def plain_commit(set_: Any) -> None:
    """Commits lose the pointer; the positions of the last fence are not used either."""
    from services.loop import owner
    from services.loop.positions import positions as real

    def positions(*given: Any, **named: Any) -> dict[Partition, Position]:
        return {where: Position(at.offset) for where, at in real(*given, **named).items()}

    set_(owner, "positions", positions)


@mutant("J09")
def floor_without_its_token(set_: Any) -> None:
    """The pointer names the newest token instead of the one in force at the floor."""
    real = PartitionOwner.pointer

    def pointer(self: Any) -> Pointer:
        return real(self)._replace(token=self._ownership.token)

    set_(PartitionOwner, "pointer", pointer)


@mutant("J09")
def effects_not_sent_again(set_: Any) -> None:
    def send_again(self: Any, slot: RunSlot) -> None:
        self._unresumed.discard(slot.run_id)
        slot.unsent = []

    set_(RunMemory, "send_again", send_again)


@mutant("J10")
def parked_with_effects_under_way(set_: Any) -> None:
    """What is dropped from memory loses its dirty summary."""

    def park(self: Any, now: int) -> None:
        for slot in self._table.slots.values():
            if slot.state is not None and not slot.in_flight and not slot.inbox and slot.trail is not None:
                slot.state = None
                self._table.effects._dirty.pop(slot.run_id, None)
                slot.dirty = None

    set_(RunMemory, "_park", park)


@mutant("J11")
def seen_not_checked(set_: Any) -> None:
    real = RunTable._take

    def take(self: Any, slot: RunSlot, draft: Any, item: Any, *rest: Any) -> int:
        kept, slot.seen = slot.seen, {}
        try:
            return real(self, slot, draft, item, *rest)
        finally:
            slot.seen = kept

    set_(RunTable, "_take", take)


@mutant("J11")
def committed_before_it_is_dealt_with(set_: Any) -> None:
    from services.loop.positions import Progress

    set_(Progress, "position", property(lambda self: self.next_read))


@mutant("J11")
def the_word_about_repetitions_is_lost(set_: Any) -> None:
    set_(RunTable, "_passed", lambda self, slot, draft, item, record: self._dealt_with(record))


@mutant("J12")
def known_runs_not_awaited(set_: Any) -> None:
    set_(KnownRuns, "streamed", property(lambda self: True))


@mutant("J12")
def ended_runs_unknown_until_read_back(set_: Any) -> None:
    set_(KnownRuns, "ended", lambda self, key: None)


@mutant("J12")
def ended_runs_unknown(set_: Any) -> None:
    set_(KnownRuns, "__contains__", lambda self, run_id: False)


@mutant("J13")
def old_projections_stay(set_: Any) -> None:
    set_(PartitionOwner, "_repair", lambda self: None)


@mutant("J13")
def refused_requests_forgotten(set_: Any) -> None:
    set_(RunTable, "_refused", lambda self, slot, call_key, attempt, problem, done: done())


@mutant("J14")
def trimmed_to_the_floor(set_: Any) -> None:
    """Not to a fence."""
    import services.loop.owner as owner

    set_(owner, "last_fence_at_or_below", lambda fences, offset, before: offset)


@mutant("J14")
def trimmed_beyond_open_runs(set_: Any) -> None:
    import services.loop.owner as owner

    set_(owner, "last_fence_at_or_below", lambda fences, offset, before: max((f.offset for f in fences), default=None))


@mutant("J16")
def timers_before_the_backlog(set_: Any) -> None:
    from services.loop.positions import Progress

    set_(Progress, "caught_up", property(lambda self: True))


@mutant("J01")
def any_number_and_hash_follow(set_: Any) -> None:
    def step(self: Any, key: str, offset: int, value: bytes, header: RecordHeader) -> Any:
        trail = self.trails.get(key)
        if trail is None:
            trail = fenced.Trail(
                header.step, value_digest(value), offset, len(value), self.mark, header.wake, header.end
            )
            self._keep(key, trail, offset)
        else:
            trail.add_step(offset, len(value), value_digest(value), header.wake, header.end)
        return fenced.Verdict.STEP

    set_(fenced.PartitionFold, "_step", step)


@mutant("J02")
def one_producer_for_everything(set_: Any) -> None:
    real: Any = Outbox.__init__

    class Renamed:
        def __init__(self, cluster: Any) -> None:
            self._cluster = cluster

        def producer(self, name: str, *, linger_ms: float = 0.0) -> Any:
            return self._cluster.producer("journal", linger_ms=linger_ms)

    set_(Outbox, "__init__", lambda self, cluster: real(self, Renamed(cluster)))


@mutant("J03")
def unmoved_positions_expire(set_: Any) -> None:
    from services.loop import owner

    set_(owner, "DAY_MS", 1 << 50)


@mutant("J03")
def stays_although_its_id_was_taken(set_: Any) -> None:
    real = LoopService._poll

    def poll(self: Any) -> list[Received]:
        try:
            return real(self)
        except InstanceTaken:
            return []

    set_(LoopService, "_poll", poll)


@mutant("J04")
def token_used_before_its_acknowledgement(set_: Any) -> None:
    real = FencedWriter.append_fence

    def append_fence(self: Any, index: int, value: bytes, token: bytes, done: Any) -> None:
        end = self._cluster.admin().ends([Partition(self.topic, index)])[Partition(self.topic, index)][1]
        real(self, index, value, token, lambda *_: None)
        done(end, None)

    set_(FencedWriter, "append_fence", append_fence)


@mutant("J07")
def fenced_again_without_asking(set_: Any) -> None:
    real = opening.Opening._on_looked

    def on_looked(self: Any, looked: Any) -> None:
        self._confirm_first = False
        real(self, looked)

    set_(opening.Opening, "_on_looked", on_looked)


@mutant("J08")
def bases_grow_old(set_: Any) -> None:
    set_(RunMemory, "_move_floor", lambda self: None)


@mutant("J08")
def steps_outgrow_their_base(set_: Any) -> None:
    set_(RunMemory, "snapshot_due", lambda self, slot: False)


@mutant("J08")
def floor_ignores_open_runs(set_: Any) -> None:
    set_(RunMemory, "oldest_base", lambda self, default: default)


@mutant("J09")
def overtaken_steps_are_forgotten(set_: Any) -> None:
    real = fenced.Trail.rebase

    def rebase(self: Any, *given: int) -> None:
        self.overtaken = []
        real(self, *given)

    set_(fenced.Trail, "rebase", rebase)
    set_(fenced.PartitionFold, "_earlier", property(lambda self: {}, lambda self, value: None))


@mutant("J09")
def repeated_steps_stand_where_they_first_were(set_: Any) -> None:
    set_(fenced.Trail, "moved", lambda self, offset: None)


@mutant("J09")
def everything_is_read(set_: Any) -> None:
    real = opening.restore

    def restore(reader: Any, journal: Any, looked: Any, *rest: Any) -> Any:
        return real(reader, journal, looked._replace(pointer=None), *rest)

    set_(opening, "restore", restore)


@mutant("J09")
def last_fence_not_asked(set_: Any) -> None:
    set_(opening, "_last_fence", lambda *_: None)


@mutant("J10")
def loading_sends_everything_again(set_: Any) -> None:
    from services.loop import memory

    set_(memory, "EVERYTHING_LEFT", 0)
    real = RunMemory._loaded

    def loaded(self: Any, slot: RunSlot, *rest: Any) -> None:
        self._unresumed.add(slot.run_id)
        real(self, slot, *rest)

    set_(RunMemory, "_loaded", loaded)


@mutant("J10")
def hashes_unchecked(set_: Any) -> None:
    from services.loop import runs
    from turnlog.core.state import RunState

    def begin(entry: Any, state: Any, digest: Any) -> Any:
        return RunState(entry.run_id, entry.rules) if state is None else state

    set_(runs, "_begin", begin)


@mutant("J13")
def unsure_repairs_are_dropped(set_: Any) -> None:
    real = PartitionOwner._repair

    def repair(self: Any) -> None:
        if self._ownership is not None and self._ownership.unsure:
            self._repairs.clear()
        real(self)

    set_(PartitionOwner, "_repair", repair)


@mutant("J13")
def refusals_hold_nothing(set_: Any) -> None:
    real = RunTable._refused

    def refused(self: Any, slot: RunSlot, call_key: str, attempt: int, problem: Any, done: Any) -> None:
        done()
        real(self, slot, call_key, attempt, problem, lambda: None)

    set_(RunTable, "_refused", refused)


@mutant("J15")
def ids_not_compared(set_: Any) -> None:
    set_(opening, "_check_ids", lambda *_: None)


@mutant("J15")
def pointers_end_not_compared(set_: Any) -> None:
    real = Pointer.decode

    def decode(text: str) -> Pointer | None:
        found = real(text)
        return found and found._replace(end=0)

    set_(Pointer, "decode", staticmethod(decode))


@mutant("J15")
def lower_offsets_are_fine(set_: Any) -> None:
    real = Ownership.acknowledged

    def acknowledged(self: Any, ticket: Any, report: Delivered) -> None:
        if report.offset is not None and report.offset < self.expected:
            self.expected = report.offset
        real(self, ticket, report)

    set_(Ownership, "acknowledged", acknowledged)


@mutant("J15")
def a_cut_is_forgotten(set_: Any) -> None:
    set_(PartitionOwner, "_remember_cut", lambda self: None)


@mutant("J15")
def epochs_begin_anew(set_: Any) -> None:
    real = PartitionOwner.read_fence

    def read_fence(self: Any, record: Received) -> Any:
        found = real(self, record)
        return found and found._replace(epoch=0)

    set_(PartitionOwner, "read_fence", read_fence)


@mutant("J16")
def the_owners_clock_for_messages(set_: Any) -> None:
    real = RunTable._queued

    def queued(self: Any, arrival: Any) -> Any:
        found = real(self, arrival)
        return found._replace(message=found.message._replace(at=self._shell.now()))

    set_(RunTable, "_queued", queued)


@mutant("J16")
def sleep_goes_unnoticed(set_: Any) -> None:
    set_(PartitionOwner, "slept", lambda self: None)


def caught(name: str, seeds: range, plan: Plan | None = None) -> tuple[int, str] | None:
    """(seed, what was noticed) of the first seed that notices the mutant."""
    with Mutated(name):
        for seed in seeds:
            try:
                World(seed, plan).run()
            except Exception as problem:  # noqa: BLE001 - a mutant may break anything in any way
                return seed, f"{type(problem).__name__}: {problem}"
    return None


def main() -> None:
    logging.disable(logging.CRITICAL)
    for name in sys.argv[1:] or MUTANTS:
        found = caught(name, range(200))
        print(f"{name:55} {'NOT CAUGHT' if found is None else f'seed {found[0]}: {found[1][:150]}'}", flush=True)


if __name__ == "__main__":
    main()
