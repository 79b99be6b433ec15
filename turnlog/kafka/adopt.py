"""An operator's word that the log as it is now is the log (J15): positions and pointers are set anew, in a new input epoch.

A loop refuses to open a partition whose journal was cut, whose topics were made anew, or whose inbound topics end below their
committed positions. What is lost is lost; `plan` says where to go on, `apply` sets it:

- the journal from the pointer's floor where the log still is the one the pointer speaks of, else from its start (always a fence, J14);
- an inbound topic that was made anew or cut from its start: what came after the cut may lie below the old position, and what was
  dealt with before is recognised as a repetition; any other where it was;
- offsets that runs recorded in older epochs are compared with nothing any more: the epoch is one higher than any known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from turnlog.kafka.fenced import Pointer
from turnlog.kafka.opening import ID_CHARS, NO_TOKEN, Places
from turnlog.kafka.port import Admin, NotOwner, Partition, Position, UnknownTopic


class Change(NamedTuple):
    """What adopting means for one inbound partition. `before` is None where no position was known."""

    partition: Partition
    before: int | None
    after: int
    why: str


class Adoption(NamedTuple):
    """What is to be set. `floors`: from where each journal partition will be read."""

    group: str
    epoch: int
    changes: tuple[Change, ...]
    floors: Mapping[int, int]
    positions: Mapping[Partition, Position]


class _Seen(NamedTuple):
    """The cluster as it is."""

    ids: tuple[tuple[str, str], ...]
    bounds: Mapping[Partition, tuple[int, int]]
    committed: Mapping[Partition, Position | None]


def plan(admin: Admin, group: str, places: Places, partitions: int, known_epochs: Sequence[int] = ()) -> Adoption:
    """What would be set. Changes nothing. `known_epochs`: those that the journal's fences name, in case pointers were lost.

    Raises UnknownTopic if a topic is missing, or the log's errors.
    """
    seen = _look(admin, group, places, partitions)
    pointers = {index: _pointer(seen.committed.get(Partition(places.ownership, index))) for index in range(partitions)}
    epoch = 1 + max([0, *known_epochs, *(pointer.epoch for pointer in pointers.values() if pointer is not None)])
    changes: list[Change] = []
    floors: dict[int, int] = {}
    positions: dict[Partition, Position] = {}
    for index, old in pointers.items():
        fresh = _fresh_pointer(old, Partition(places.journal, index), seen, epoch)
        floors[index] = fresh.floor
        for change in _changes(places, index, old, seen):
            metadata = fresh.encode() if change.partition.topic == places.ownership else ""
            positions[change.partition] = Position(change.after, metadata)
            changes.append(change)
    return Adoption(group, epoch, tuple(changes), floors, positions)


def apply(admin: Admin, adoption: Adoption) -> None:
    """Set what was planned. Raises NotOwner while the group has members: Kafka moves no position of a living group."""
    try:
        admin.reset_positions(adoption.group, adoption.positions)
    except NotOwner as problem:
        raise NotOwner(
            f"group {adoption.group} has members: stop every loop first ({problem})", problem.code
        ) from problem


def _look(admin: Admin, group: str, places: Places, partitions: int) -> _Seen:
    found = admin.topics(list(places.all))
    missing = [topic for topic in places.all if topic not in found]
    if missing:
        raise UnknownTopic(f"topics do not exist: {', '.join(missing)}; create them with `turnlog topics create` first")
    ids = tuple(sorted((topic, info.topic_id[:ID_CHARS]) for topic, info in found.items()))
    every = [Partition(topic, index) for topic in places.all for index in range(partitions)]
    committed = admin.group_positions(group, [p for p in every if p.topic != places.journal])
    return _Seen(ids, admin.ends(every), committed)


def _pointer(position: Position | None) -> Pointer | None:
    return None if position is None else Pointer.decode(position.metadata)


def _fresh_pointer(old: Pointer | None, journal: Partition, seen: _Seen, epoch: int) -> Pointer:
    start, end = seen.bounds[journal]
    same = old is not None and dict(old.ids).get(journal.topic) == dict(seen.ids)[journal.topic]
    if old is not None and same and start <= old.floor and old.end <= end:
        return old._replace(end=end, epoch=epoch, ids=seen.ids)
    return Pointer(start, NO_TOKEN, end, start, epoch, seen.ids)


def _changes(places: Places, index: int, pointer: Pointer | None, seen: _Seen) -> Iterator[Change]:
    known = {} if pointer is None else dict(pointer.ids)
    now = dict(seen.ids)
    for topic in places.inbound:
        partition = Partition(topic, index)
        at = seen.committed.get(partition)
        start, end = seen.bounds[partition]
        if at is None:
            yield Change(partition, None, start, "no position known: from its start")
        elif topic in known and known[topic] != now[topic]:
            yield Change(partition, at.offset, start, "made anew: from its start")
        elif at.offset > end:
            yield Change(partition, at.offset, start, f"cut, it ends at {end}: again from its start")
        else:
            yield Change(partition, at.offset, max(at.offset, start), "where it was")
