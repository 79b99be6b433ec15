"""Adopting a log that was cut or made anew (J15), on MemoryLog: where it goes on, and that a loop would then open it."""

from __future__ import annotations

import pytest

from turnlog.kafka.adopt import Adoption, apply, plan
from turnlog.kafka.fenced import Pointer
from turnlog.kafka.opening import ID_CHARS, Clients, LogCut, Looked, Places, look
from turnlog.kafka.port import NotOwner, Partition, Position, UnknownTopic
from turnlog.testing import MemoryCluster

PLACES = Places("journal", "commands", ("commands", "results"))
GROUP = "loop"
TOKEN = b"t" * 16


class World:
    """Three topics of one partition with ten records each, and a pointer at offset 4 of epoch 2."""

    def __init__(self) -> None:
        self.cluster = MemoryCluster(now_ms=lambda: 1)
        self.admin = self.cluster.admin()
        producer = self.cluster.producer("p")
        for name in PLACES.all:
            self.cluster.create(name, 1)
            for _ in range(10):
                producer.produce(name, b"x", partition=0)
        ids = tuple(sorted((name, info.topic_id[:ID_CHARS]) for name, info in self.admin.topics(PLACES.all).items()))
        pointer = Pointer(4, TOKEN, 10, 5, 2, ids)
        self.admin.reset_positions(
            GROUP, {Partition("commands", 0): Position(8, pointer.encode()), Partition("results", 0): Position(9)}
        )

    def plan(self, *known_epochs: int) -> Adoption:
        return plan(self.admin, GROUP, PLACES, 1, known_epochs)

    def look(self) -> Looked:
        """What a loop finds before it opens the partition. Raises LogCut."""
        clients = Clients(self.cluster.consumer(GROUP), self.admin, self.cluster.reader("r"))
        return look(clients, PLACES, 0, lambda record: None)

    def adopted(self) -> tuple[Pointer, int, int]:
        """The pointer and the positions of commands and results, after adopting; a loop would open with them."""
        apply(self.admin, self.plan())
        seen = self.look()
        assert seen.pointer is not None
        commands, results = seen.positions["commands"], seen.positions["results"]
        assert commands is not None
        assert results is not None
        return seen.pointer, commands, results


@pytest.fixture
def world() -> World:
    return World()


def refuses(world: World) -> bool:
    try:
        world.look()
    except LogCut:
        return True
    return False


def test_a_sound_log_keeps_its_floor_and_positions(world: World) -> None:
    pointer, commands, results = world.adopted()
    assert (pointer.floor, pointer.token, pointer.effects, pointer.epoch) == (4, TOKEN, 5, 3)
    assert (commands, results) == (8, 9)


def test_a_journal_that_was_cut_is_read_from_its_start(world: World) -> None:
    world.cluster.truncate(Partition("journal", 0), 6)
    assert refuses(world)
    pointer, commands, _ = world.adopted()
    assert (pointer.floor, pointer.end, pointer.epoch, commands) == (0, 6, 3, 8)


def test_an_inbound_topic_that_was_cut_is_read_again(world: World) -> None:
    world.cluster.truncate(Partition("results", 0), 3)
    assert refuses(world)
    assert [change.why for change in world.plan().changes] == [
        "where it was",
        "cut, it ends at 3: again from its start",
    ]
    _, commands, results = world.adopted()
    assert (commands, results) == (8, 0)


def test_topics_made_anew_begin_at_their_start(world: World) -> None:
    world.cluster.recreate("commands")
    world.cluster.recreate("journal")
    assert refuses(world)
    pointer, commands, results = world.adopted()
    assert (pointer.floor, pointer.end, commands, results) == (0, 0, 0, 9)


def test_lost_positions_begin_at_the_start(world: World) -> None:
    world.cluster.forget(GROUP)
    pointer, commands, results = world.adopted()
    assert (pointer.floor, commands, results, pointer.epoch) == (0, 0, 0, 1)


def test_the_epoch_is_above_every_one_that_is_known(world: World) -> None:
    assert world.plan().epoch == 3
    assert world.plan(7, 1).epoch == 8


def test_planning_changes_nothing(world: World) -> None:
    before = world.admin.group_positions(GROUP, [Partition("commands", 0)])
    world.plan()
    assert world.admin.group_positions(GROUP, [Partition("commands", 0)]) == before


def test_a_living_group_is_refused(world: World) -> None:
    planned = world.plan()

    class Member:
        def assigned(self, partitions: object) -> None: ...
        def revoked(self, partitions: object) -> None: ...
        def lost(self, partitions: object) -> None: ...

    consumer = world.cluster.consumer(GROUP)
    consumer.subscribe("commands", Member())
    consumer.poll(0)
    with pytest.raises(NotOwner, match="stop every loop first"):
        apply(world.admin, planned)


def test_a_missing_topic_is_named() -> None:
    with pytest.raises(UnknownTopic, match="topics create"):
        plan(MemoryCluster(now_ms=lambda: 1).admin(), GROUP, PLACES, 1)
