"""What the port promises of appends (port.Producer), on both clusters."""

from __future__ import annotations

import pytest

from tests.contract.worlds import QUEUE_LIMIT, World, append, read_all
from turnlog.kafka.port import Delivered, QueueFull, TooLarge, UnknownTopic

# Signed hashes from Java's org.apache.kafka.common.utils.UtilsTest; a partition is their low 31 bits modulo the count.
JAVA_MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def test_records_of_one_partition_land_in_the_order_of_produce(world: World) -> None:
    topic = world.topic()
    values = [b"%d" % i for i in range(500)]
    assert append(world, topic, values) == list(range(500))
    assert [record.value for record in read_all(world, topic)] == values


def test_reports_come_in_order_with_topic_partition_and_offset(world: World) -> None:
    topic = world.topic(partitions=2)
    producer = world.cluster.producer("p")
    reports: list[Delivered] = []
    for partition in (1, 0, 1):
        producer.produce(topic, b"v", partition=partition, on_delivery=reports.append)
    assert producer.flush(10) == 0
    assert sorted(reports) == [
        Delivered(topic, 0, 0, None),
        Delivered(topic, 1, 0, None),
        Delivered(topic, 1, 1, None),
    ]
    assert [r.offset for r in reports if r.partition == 1] == [0, 1]
    producer.close()


def test_reports_run_inside_poll_and_nowhere_else(world: World) -> None:
    producer = world.cluster.producer("p")
    reports: list[Delivered] = []
    producer.produce(world.topic(), b"v", on_delivery=reports.append)
    assert len(producer) == 1
    assert reports == []
    served = 0
    for _ in range(100):
        served += producer.poll(0.1)
        if reports:
            break
    assert len(reports) == 1
    assert served >= 1
    assert len(producer) == 0
    producer.close()


@pytest.mark.parametrize("partitions", [4, 12])
def test_keys_go_where_javas_default_partitioner_puts_them(world: World, partitions: int) -> None:
    topic = world.topic(partitions=partitions)
    producer = world.cluster.producer("p")
    for key in JAVA_MURMUR2:
        producer.produce(topic, b"v", key=key)
    assert producer.flush(10) == 0
    found = {record.key: record.partition for i in range(partitions) for record in read_all(world, topic, i)}
    assert found == {key: (h & 0x7FFFFFFF) % partitions for key, h in JAVA_MURMUR2.items()}
    producer.close()


def test_bytes_and_nulls_come_back_as_they_were(world: World) -> None:
    topic = world.topic()
    producer = world.cluster.producer("p")
    headers = (("kind", b"step"), ("kind", b"again"), ("nothing", None), ("empty", b""), ("bytes", b"\x00\xff"))
    producer.produce(topic, b"\x00value\xff", key=b"\xffkey", headers=headers)
    producer.produce(topic, None, key=b"tombstone")
    producer.produce(topic, b"", key=b"")
    producer.produce(topic, b"no key")
    assert producer.flush(10) == 0
    producer.close()
    first, tombstone, empty, keyless = read_all(world, topic)
    assert (first.key, first.value, first.headers) == (b"\xffkey", b"\x00value\xff", headers)
    assert (tombstone.key, tombstone.value, tombstone.headers) == (b"tombstone", None, ())
    assert (empty.key, empty.value) == (b"", b"")
    assert (keyless.key, keyless.value) == (None, b"no key")
    assert (first.topic, first.partition, first.offset) == (topic, 0, 0)


def test_the_time_of_a_record_is_when_the_log_took_it(world: World) -> None:
    topic = world.topic(config={"message.timestamp.type": "LogAppendTime"})
    before = world.now_ms()
    append(world, topic, [b"v"])
    (record,) = read_all(world, topic)
    assert before - 5 <= record.timestamp_ms <= world.now_ms() + 5


def test_a_record_beyond_the_clients_limit_is_refused_before_it_is_sent(world: World) -> None:
    topic = world.topic()
    producer = world.cluster.producer("p")
    with pytest.raises(TooLarge):
        producer.produce(topic, b"x" * (1024 * 1024 + 1))
    producer.produce(topic, b"x" * (1024 * 1024 - 1000))
    assert producer.flush(10) == 0
    producer.close()
    assert len(read_all(world, topic)) == 1


def test_a_record_beyond_the_topics_limit_is_reported(world: World) -> None:
    topic = world.topic(config={"max.message.bytes": "1000"})
    producer = world.cluster.producer("p")
    reports: list[Delivered] = []
    producer.produce(topic, b"x" * 2000, on_delivery=reports.append)
    assert producer.flush(10) == 0
    assert isinstance(reports[0].error, TooLarge)
    assert reports[0].offset is None
    producer.produce(topic, b"fits", on_delivery=reports.append)
    assert producer.flush(10) == 0
    assert reports[1].error is None
    producer.close()


def test_an_unknown_topic_is_reported(world: World) -> None:
    producer = world.cluster.producer("p")
    reports: list[Delivered] = []
    producer.produce("nobody-made-this", b"v", key=b"k", on_delivery=reports.append)
    assert producer.flush(15) == 0
    assert isinstance(reports[0].error, UnknownTopic)
    producer.close()


def test_an_unknown_partition_of_a_known_topic_is_refused_at_once(world: World) -> None:
    topic = world.topic(partitions=2)
    producer = world.cluster.producer("p")
    producer.produce(topic, b"v", partition=1)
    assert producer.flush(10) == 0
    with pytest.raises(UnknownTopic):
        producer.produce(topic, b"v", partition=7)
    assert len(producer) == 0
    producer.close()


def test_a_full_queue_is_back_pressure(world: World) -> None:
    topic = world.topic()
    producer = world.small().producer("p")
    for _ in range(QUEUE_LIMIT):
        producer.produce(topic, b"v")
    with pytest.raises(QueueFull):
        producer.produce(topic, b"one too many")
    assert producer.flush(10) == 0
    producer.produce(topic, b"v")
    assert producer.flush(10) == 0
    producer.close()
    assert len(read_all(world, topic)) == QUEUE_LIMIT + 1


def test_close_gives_up_what_is_under_way_and_says_so(world: World) -> None:
    topic = world.topic()
    producer = world.unreachable().producer("p")
    reports: list[Delivered] = []
    for _ in range(3):
        producer.produce(topic, b"v", partition=0, on_delivery=reports.append)
    assert producer.flush(0.2) == 3
    producer.close()
    assert [(report.offset, report.error is None) for report in reports] == [(None, False)] * 3
