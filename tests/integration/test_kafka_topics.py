"""Creating and checking topics on a real cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.broker_fixture import SharedBroker
from turnlog.kafka.client import KafkaCluster
from turnlog.kafka.port import NewTopic, Partition
from turnlog.kafka.topic_check import check_topics
from turnlog.kafka.topics import Layout, create_topics


@pytest.fixture
def layout(topic_prefix: str) -> Layout:
    return Layout(prefix=topic_prefix, partitions=3, toolsets=("billing",))


@pytest.fixture
def cluster(broker: SharedBroker, topic_prefix: str) -> Iterator[KafkaCluster]:
    made = KafkaCluster({"bootstrap.servers": broker.bootstrap})
    yield made
    admin = made.admin()
    admin.delete_topics([name for name in admin.topics() if name.startswith(topic_prefix)])


def test_a_new_installation_is_as_the_check_demands(cluster: KafkaCluster, layout: Layout) -> None:
    admin = cluster.admin()
    assert len(create_topics(admin, layout)) == 10
    assert create_topics(admin, layout) == []
    found = check_topics(admin, layout)
    assert {(d.topic, d.severity) for d in found} == {(layout.prefix + "journal", "warning")}
    partitions = [Partition(topic.name, i) for _, topic in layout.planned() for i in range(topic.partitions)]
    assert set(admin.ends(partitions).values()) == {(0, 0)}


def test_a_topic_that_a_person_made_by_hand_is_seen_through(cluster: KafkaCluster, layout: Layout) -> None:
    admin = cluster.admin()
    by_hand = NewTopic(layout.prefix + "journal", 3, 1, {"cleanup.policy": "compact", "max.message.bytes": "100000"})
    admin.create_topics([by_hand])
    create_topics(admin, layout)
    wrong = {d.what: d.found for d in check_topics(admin, layout) if d.severity == "error"}
    assert wrong == {"cleanup.policy": "compact", "max.message.bytes": "100000", "retention.ms": "604800000"}
