"""What the port promises of readers (port.Reader), on both clusters."""

from __future__ import annotations

import threading

import pytest

from tests.contract.worlds import World, append, wait_for
from turnlog.kafka.port import LogError, OffsetGone, Partition, Reader, Received, Retryable, UnknownTopic


def offsets(reader: Reader, where: Partition, start: int, end: int, timeout_s: float = 30.0) -> list[int]:
    return [record.offset for batch in reader.read(where, start, end, timeout_s=timeout_s) for record in batch]


def test_bounds_follow_the_log(world: World) -> None:
    topic = world.topic()
    where = Partition(topic, 0)
    reader = world.cluster.reader("r")
    assert reader.bounds(where) == (0, 0)
    append(world, topic, [b"v"] * 5)
    assert reader.bounds(where) == (0, 5)
    world.cluster.admin().delete_records({where: 2})
    assert reader.bounds(where) == (2, 5)
    reader.close()


def test_a_range_is_read_whole_and_no_further(world: World) -> None:
    topic = world.topic()
    append(world, topic, [b"%d" % i for i in range(3000)])
    where = Partition(topic, 0)
    reader = world.cluster.reader("r")
    assert offsets(reader, where, 0, 3000) == list(range(3000))
    assert offsets(reader, where, 17, 23) == list(range(17, 23))
    assert offsets(reader, where, 2999, 3000) == [2999]
    assert offsets(reader, where, 5, 5) == []
    assert offsets(reader, where, 3000, 3000) == []
    reader.close()


def test_an_abandoned_read_does_not_spoil_the_next(world: World) -> None:
    topic = world.topic(partitions=2)
    for partition in (0, 1):
        append(world, topic, [b"%d" % partition] * 3000, partition=partition)
    reader = world.cluster.reader("r")
    for batch in reader.read(Partition(topic, 0), 0, 3000):
        assert batch
        break
    values = {record.value for batch in reader.read(Partition(topic, 1), 0, 3000) for record in batch}
    assert values == {b"1"}
    reader.close()


def test_two_ranges_may_be_read_at_once(world: World) -> None:
    topic = world.topic(partitions=2)
    for partition in (0, 1):
        append(world, topic, [b"%d" % partition] * 2000, partition=partition)
    reader = world.cluster.reader("r")
    found: dict[int, list[int]] = {}

    def read(partition: int) -> None:
        found[partition] = offsets(reader, Partition(topic, partition), 0, 2000)

    threads = [threading.Thread(target=read, args=(i,)) for i in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {0: list(range(2000)), 1: list(range(2000))}
    reader.close()


@pytest.mark.parametrize("start", [1, 9])
def test_a_start_outside_the_log_is_gone(world: World, start: int) -> None:
    topic = world.topic()
    append(world, topic, [b"v"] * 5)
    where = Partition(topic, 0)
    world.cluster.admin().delete_records({where: 3})
    reader = world.cluster.reader("r")
    with pytest.raises(OffsetGone) as raised:
        offsets(reader, where, start, start + 1)
    assert raised.value.partition == where
    assert offsets(reader, where, 3, 5) == [3, 4]
    reader.close()


def test_an_end_that_is_not_there_yet_costs_the_time(world: World) -> None:
    topic = world.topic()
    append(world, topic, [b"v"] * 2)
    reader = world.cluster.reader("r")
    seen: list[Received] = []
    with pytest.raises(Retryable):
        seen.extend(record for batch in reader.read(Partition(topic, 0), 0, 5, timeout_s=0.5) for record in batch)
    with pytest.raises(LogError):
        offsets(reader, Partition("nobody-made-this", 0), 0, 1, timeout_s=2)
    reader.close()


def test_unknown_topics_are_named(world: World) -> None:
    reader = world.cluster.reader("r")
    with pytest.raises(UnknownTopic):
        reader.bounds(Partition("nobody-made-this", 0))
    with pytest.raises(UnknownTopic):
        reader.read_at(Partition("nobody-made-this", 0), [0])
    with pytest.raises(UnknownTopic):
        reader.follow({Partition("nobody-made-this", 0): 0})
    reader.close()


def test_single_records_are_read_back(world: World) -> None:
    topic = world.topic()
    append(world, topic, [b"%d" % i for i in range(1000)])
    where = Partition(topic, 0)
    reader = world.cluster.reader("r")
    found = reader.read_at(where, [0, 1, 7, 500, 999])
    assert [(r.offset, r.value) for r in found] == [(i, b"%d" % i) for i in (0, 1, 7, 500, 999)]
    assert reader.read_at(where, []) == []
    world.cluster.admin().delete_records({where: 5})
    with pytest.raises(OffsetGone):
        reader.read_at(where, [3, 7])
    reader.close()


def test_followed_partitions_grow(world: World) -> None:
    topic, other = world.topic(partitions=2), world.topic()
    append(world, topic, [b"0", b"1"])
    reader = world.cluster.reader("r")
    assert reader.poll(0.1) == []
    reader.follow({Partition(topic, 0): 1, Partition(other, 0): 0})
    seen: list[bytes | None] = []

    def more(count: int) -> None:
        def enough() -> bool:
            seen.extend(record.value for record in reader.poll(0.1))
            return len(seen) >= count

        wait_for(world, enough, f"{count} records")

    more(1)
    append(world, other, [b"other"])
    more(2)
    reader.unfollow([Partition(other, 0), Partition(topic, 1)])
    append(world, other, [b"unseen"])
    append(world, topic, [b"2"])
    more(3)
    reader.follow({Partition(topic, 0): 2})  # anew
    more(4)
    assert seen == [b"1", b"other", b"2", b"2"]
    reader.close()


def test_a_followed_position_outside_the_log_is_gone(world: World) -> None:
    topic = world.topic(partitions=2)
    reader = world.cluster.reader("r")
    reader.follow({Partition(topic, 0): 7, Partition(topic, 1): 0})
    raised: list[OffsetGone] = []

    def gone() -> bool:
        try:
            assert reader.poll(0.1) == []
        except OffsetGone as error:
            raised.append(error)
        return bool(raised)

    wait_for(world, gone, "OffsetGone")
    assert raised[0].partition == Partition(topic, 0)
    append(world, topic, [b"v"], partition=1)
    wait_for(world, lambda: bool(reader.poll(0.1)), "the other partition")
    reader.close()


# Small segments that are cleaned at once: compaction never touches the newest segment.
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "200",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "200",
    "min.compaction.lag.ms": "0",
}


@pytest.mark.slow
def test_holes_of_compaction_are_read_over(world: World) -> None:
    topic = world.topic(config=COMPACTED)
    producer = world.cluster.producer("p")
    for i in range(12):
        producer.produce(topic, b"%d" % i, key=b"same")
        assert producer.flush(10) == 0
        threading.Event().wait(0.25)
    producer.close()
    world.compact(topic)
    reader = world.cluster.reader("r")
    where = Partition(topic, 0)
    left = offsets(reader, where, 0, 12)
    assert left[-1] == 11
    assert len(left) < 12
    hole = next(i for i in range(12) if i not in left)
    assert offsets(reader, where, hole, hole + 1) == []  # a range of nothing ends at once
    assert offsets(reader, where, 0, left[-1]) == left[:-1]  # and so does one whose end is a hole
    with pytest.raises(OffsetGone):
        reader.read_at(where, [hole])
    reader.close()
