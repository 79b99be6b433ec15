"""An explicit-state model of one fenced partition (J1, J5, J6, J7): every interleaving up to a bound, breadth first.

The parts that decide are the product's: `PartitionFold` says what a record is to a reader, `Ownership` says what an
acknowledgement means to a writer. The model supplies the world around them:

    an owner    opens by appending a fence, folds the log up to it, then appends steps of several runs, one unacknowledged per run
    the wire    what an owner appends lands in its order; a step may land although its acknowledgement is lost, and then lands
                once more (J2); what a dead owner has in flight may still land, or not
    a gap read  takes time: it ends in a transition of its own
    giving up   at any moment an owner crashes, or ends because it cannot know (J7)

In every state that can be reached:

    no reader meets a step under the fence in force that neither follows nor repeats its run's last       (J1, J5)
    every effect that left belongs to a step that is valid, and stays so                                  (J6)

`World` has a switch for each rule; a mutant is a world with one rule taken out, and the search must find where that breaks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from typing import Any, NamedTuple

from turnlog.kafka.fenced import FENCE, STEP, PartitionFold, RecordHeader, Verdict, headers_of
from turnlog.kafka.ownership import End, Ownership
from turnlog.kafka.port import Delivered, Partition, Received

PARTITION = Partition("journal", 0)
FAULTS = 2
"""Acknowledgements that may be lost in one history."""


class Step(NamedTuple):
    """A step as it was written: by which owner, of which run, which number, and who wrote the run's previous step (-1: none)."""

    owner: int
    run: int
    number: int
    previous: int = -1


Record = Step | int
"""A record of the log: a step, or the fence of an owner by its number."""


class Flying(NamedTuple):
    """Appended and not acknowledged. `landed`: it is in the log already, and comes a second time."""

    owner: int
    record: Record
    landed: bool = False


class Writer(NamedTuple):
    """What an owner knows. `busy`: runs with an unacknowledged record; `heads`: its last step of each run; `reading`: the range of
    the gap that is being read; `held`: what is acknowledged and may not be released yet."""

    phase: str = "off"
    expected: int = 0
    heads: tuple[tuple[int, Step], ...] = ()
    busy: tuple[int, ...] = ()
    gap: tuple[int, int] | None = None
    reading: tuple[int, int] | None = None
    held: tuple[tuple[Step, int], ...] = ()


DEAD = Writer("dead")


class State(NamedTuple):
    """`released`: steps whose effects left; `faults`: acknowledgements lost so far."""

    log: tuple[Record, ...]
    writers: tuple[Writer, ...]
    flying: tuple[Flying, ...]
    released: frozenset[Step]
    faults: int


class Bounds(NamedTuple):
    """How far the search goes."""

    owners: int
    runs: int
    log: int


class World(NamedTuple):
    """The rules in force. As it stands: all of them."""

    fold: type[PartitionFold] = PartitionFold
    ownership: type[Ownership[Step]] = Ownership
    gaps_are_read: bool = True
    per_run: int = 1
    """Unacknowledged records of one run (J5)."""
    released_at_once: bool = False
    """Effects leave with the append and do not wait for its acknowledgement."""


class Found(NamedTuple):
    """The outcome of a search: how many states, and what is wrong with the last one, if anything."""

    states: int
    problem: str
    log: tuple[Record, ...]


# ---------------------------------------------------------------- records as the product sees them


def token(owner: int) -> bytes:
    return bytes([owner + 1]) * 16


def value(owner: int, run: int, number: int) -> bytes:
    """Within one history an owner writes a step once, so these bytes stand for it."""
    return b"%d wrote step %d of run %d" % (owner, number, run)


@cache
def received(record: Record, offset: int) -> Received:
    """The record as a consumer hands it over."""
    if isinstance(record, int):
        headers = headers_of(RecordHeader(FENCE, token(record), -1, None, 0, -1))
        return Received(*PARTITION, offset, None, b"fence", tuple(headers), 0)
    return Received(
        *PARTITION, offset, b"run-%d" % record.run, value(*record[:3]), tuple(headers_of(header(record))), 0
    )


def header(step: Step) -> RecordHeader:
    digest = sha256(value(step.previous, step.run, step.number - 1)).digest() if step.number else None
    return RecordHeader(STEP, token(step.owner), step.number, digest, 0, -1)


# ---------------------------------------------------------------- the reader


class Read(NamedTuple):
    """What a reader makes of a log."""

    heads: tuple[tuple[int, Step], ...]
    valid: frozenset[Step]
    problem: str


def read(log: tuple[Record, ...], fold_type: type[PartitionFold], known: dict[tuple[Record, ...], Read]) -> Read:
    """Fold the log with the product's reader; remembered by log."""
    found = known.get(log)
    if found is None:
        found = known[log] = _read(log, fold_type())
    return found


def _read(log: tuple[Record, ...], fold: PartitionFold) -> Read:
    heads: dict[int, Step] = {}
    valid: list[Step] = []
    problem = ""
    for offset, record in enumerate(log):
        verdict = fold.take(received(record, offset))
        if verdict is Verdict.BROKEN:
            problem = problem or f"the step at offset {offset} neither follows nor repeats"
        if verdict is Verdict.STEP and isinstance(record, Step):
            heads[record.run] = record
            valid.append(record)
    if len({(step.run, step.number) for step in valid}) != len(valid):
        problem = problem or "two valid steps of one number"
    return Read(tuple(sorted(heads.items())), frozenset(valid), problem)


# ---------------------------------------------------------------- the writer


class Told:
    """The owner's side of an `Ownership`: collects what it is told."""

    def __init__(self) -> None:
        self.valid_steps: list[Step] = []
        self.reading: tuple[int, int] | None = None

    def valid(self, ticket: Step, offset: int) -> None:
        self.valid_steps.append(ticket)

    def over(self, end: End, reason: str) -> None:
        """Its ownership is over; `Ownership.ended` says so."""

    def read_gap(self, partition: Partition, start: int, end: int, done: Any) -> None:
        self.reading = (start, end)


def waken(owner: int, writer: Writer, kind: type[Ownership[Step]]) -> tuple[Ownership[Step], Told]:
    """The product's object in the state that the model remembers."""
    told = Told()
    ownership = kind(PARTITION, token(owner), 0, told, told.read_gap)
    ownership.expected = writer.expected
    ownership._gap = writer.gap
    ownership._held = deque(writer.held)
    told.reading = writer.reading
    return ownership, told


def rest(writer: Writer, ownership: Ownership[Step], told: Told) -> Writer:
    """What the model remembers of the product's object."""
    if ownership.ended is not None:
        return DEAD
    reading = told.reading if ownership._gap is not None else None
    return writer._replace(
        expected=ownership.expected, gap=ownership._gap, reading=reading, held=tuple(ownership._held)
    )


# ---------------------------------------------------------------- what can happen next


class Model:
    """The transitions of one world within bounds."""

    def __init__(self, bounds: Bounds, world: World) -> None:
        self.bounds = bounds
        self.world = world
        self._known: dict[tuple[Record, ...], Read] = {}

    def first(self) -> State:
        return State((), (Writer(),) * self.bounds.owners, (), frozenset(), 0)

    def read(self, log: tuple[Record, ...]) -> Read:
        return read(log, self.world.fold, self._known)

    def problem(self, state: State) -> str:
        """What is wrong in this state; empty if nothing is."""
        seen = self.read(state.log)
        if seen.problem:
            return seen.problem
        stray = state.released - seen.valid
        return f"an effect left of {sorted(stray)}, not valid" if stray else ""

    def moves(self, state: State) -> Iterator[State]:
        for owner, writer in enumerate(state.writers):
            if writer.phase == "off" and (owner == 0 or state.writers[owner - 1].phase != "off"):
                opening = self._put(state, owner, Writer("fencing"))
                yield opening._replace(flying=(*state.flying, Flying(owner, owner)))
            if writer.phase == "live":
                yield from self._appends(state, owner, writer)
                if writer.reading is not None:
                    yield self._gap_ends(state, owner, writer, writer.reading)
                yield self._put(state, owner, DEAD)
        yield from self._landings(state)

    def _put(self, state: State, owner: int, writer: Writer) -> State:
        return state._replace(writers=(*state.writers[:owner], writer, *state.writers[owner + 1 :]))

    def _appends(self, state: State, owner: int, writer: Writer) -> Iterator[State]:
        heads = dict(writer.heads)
        named = _runs_in(state)  # and one more: which name an untouched run has makes no difference
        for run in range(min(self.bounds.runs, named + 1)):
            if writer.busy.count(run) >= self.world.per_run:
                continue
            last = heads.get(run)
            step = Step(owner, run, last.number + 1, last.owner) if last else Step(owner, run, 0)
            after = writer._replace(heads=tuple(sorted({**heads, run: step}.items())), busy=(*writer.busy, run))
            released = state.released | {step} if self.world.released_at_once else state.released
            yield self._put(state, owner, after)._replace(
                flying=(*state.flying, Flying(owner, step)), released=released
            )

    def _gap_ends(self, state: State, owner: int, writer: Writer, reading: tuple[int, int]) -> State:
        start, end = reading
        records = [received(state.log[at], at) for at in range(start, end)] if self.world.gaps_are_read else []
        ownership, told = waken(owner, writer, self.world.ownership)
        ownership._gap_read(end, records, None)
        return self._after(state, owner, writer, ownership, told)

    def _after(self, state: State, owner: int, writer: Writer, ownership: Ownership[Step], told: Told) -> State:
        moved = self._put(state, owner, rest(writer, ownership, told))
        return moved._replace(released=moved.released.union(told.valid_steps))

    def _landings(self, state: State) -> Iterator[State]:
        """The next record of each owner lands, or does not; what follows it waits its turn."""
        seen = set[int]()
        for place, flying in enumerate(state.flying):
            if flying.owner in seen:
                continue
            seen.add(flying.owner)
            others = state.flying[:place] + state.flying[place + 1 :]
            if state.writers[flying.owner].phase == "dead":
                yield state._replace(flying=others)  # it never lands
            if len(state.log) < self.bounds.log:
                yield from self._lands(state, place, flying, others)
            if (
                self.world.per_run > 1
                and state.faults < FAULTS
                and isinstance(flying.record, Step)
                and not flying.landed
            ):
                yield state._replace(flying=others, faults=state.faults + 1)  # refused, and the next of its run passes

    def _lands(self, state: State, place: int, flying: Flying, others: tuple[Flying, ...]) -> Iterator[State]:
        record, writer = flying.record, state.writers[flying.owner]
        offset, log = len(state.log), (*state.log, flying.record)
        landed = state._replace(log=log, flying=others)
        if writer.phase == "dead":
            yield landed
        elif not isinstance(record, Step):
            live = Writer("live", offset + 1, self.read(log).heads)
            yield self._put(landed, flying.owner, live)
        else:
            if not flying.landed and state.faults < FAULTS:
                again = (*state.flying[:place], flying._replace(landed=True), *state.flying[place + 1 :])
                yield state._replace(log=log, flying=again, faults=state.faults + 1)
            yield self._acknowledged(landed, flying.owner, record, offset)

    def _acknowledged(self, state: State, owner: int, step: Step, offset: int) -> State:
        writer = state.writers[owner]
        ownership, told = waken(owner, writer, self.world.ownership)
        ownership.acknowledged(step, Delivered(*PARTITION, offset, None))
        busy = list(writer.busy)
        busy.remove(step.run)
        return self._after(state, owner, writer._replace(busy=tuple(busy)), ownership, told)


def _runs_in(state: State) -> int:
    """How many runs have a record anywhere; their names are the lowest."""
    records = (*state.log, *(flying.record for flying in state.flying))
    return max((record.run + 1 for record in records if isinstance(record, Step)), default=0)


def explore(bounds: Bounds, world: World = World()) -> Found:  # noqa: B008 - a NamedTuple is a value
    """Every state within the bounds, or all up to the first that is wrong."""
    model = Model(bounds, world)
    first = model.first()
    seen, queue = {first}, deque([first])
    while queue:
        state = queue.popleft()
        problem = model.problem(state)
        if problem:
            return Found(len(seen), problem, state.log)
        for following in model.moves(state):
            if following not in seen:
                seen.add(following)
                queue.append(following)
    return Found(len(seen), "", ())
