"""What the port promises of administration (port.Admin), on both clusters."""

from __future__ import annotations

import pytest

from tests.contract.worlds import Member, World, append, settle, wait_for
from turnlog.kafka.port import NewTopic, NotOwner, OffsetGone, Partition, Position, Refused, UnknownTopic


def test_topics_are_described_and_absent_ones_are_absent(world: World) -> None:
    topic = world.topic(partitions=3, config={"cleanup.policy": "compact"})
    admin = world.cluster.admin()
    found = admin.topics([topic, "nobody-made-this"], with_config=True)
    assert list(found) == [topic]
    assert (found[topic].name, found[topic].partitions, found[topic].replication) == (topic, 3, 1)
    assert found[topic].config["cleanup.policy"] == "compact"
    assert found[topic].topic_id
    assert admin.topics([topic])[topic].config == {}
    assert topic in admin.topics()
    assert admin.topics([]) == {}
    assert admin.brokers() == 1
    admin.close()


def test_configuration_shows_defaults_too(world: World) -> None:
    topic = world.topic()
    assert "retention.ms" in world.cluster.admin().topics([topic], with_config=True)[topic].config


def test_creating_says_per_topic_what_became_of_it(world: World) -> None:
    admin = world.cluster.admin()
    old, new = world.topic(), world.topic()
    admin.delete_topics([new])
    wait_for(world, lambda: new not in admin.topics([new]), "the deletion")
    answers = admin.create_topics([NewTopic(old, 1, 1, {}), NewTopic(new, 2, 1, {"retention.ms": "1000"})])
    assert answers[new] is None
    there_already = answers[old]
    assert isinstance(there_already, Refused)
    assert there_already.code == "TOPIC_ALREADY_EXISTS"
    assert admin.create_topics([]) == {}


def test_more_replicas_than_brokers_are_refused(world: World) -> None:
    (answer,) = world.cluster.admin().create_topics([NewTopic("too-safe", 1, 3, {})]).values()
    assert isinstance(answer, Refused)
    assert answer.code == "INVALID_REPLICATION_FACTOR"


def test_an_unknown_topic_property_is_refused(world: World) -> None:
    (answer,) = world.cluster.admin().create_topics([NewTopic("odd", 1, 1, {"no.such.property": "1"})]).values()
    assert isinstance(answer, Refused)


def test_a_topic_made_anew_has_another_id_and_no_records(world: World) -> None:
    admin = world.cluster.admin()
    topic = world.topic()
    append(world, topic, [b"v"])
    before = admin.topics([topic])[topic].topic_id
    admin.delete_topics([topic])
    wait_for(world, lambda: admin.create_topics([NewTopic(topic, 1, 1, {})])[topic] is None, "the new topic")
    wait_for(world, lambda: topic in admin.topics([topic]), "its visibility")
    assert admin.topics([topic])[topic].topic_id != before
    wait_for(world, lambda: admin.ends([Partition(topic, 0)]) == {Partition(topic, 0): (0, 0)}, "an empty log")
    with pytest.raises(UnknownTopic):
        admin.delete_topics(["nobody-made-this"])


def test_records_are_deleted_up_to_an_offset(world: World) -> None:
    topic = world.topic(partitions=2)
    append(world, topic, [b"v"] * 5)
    admin = world.cluster.admin()
    first, second = Partition(topic, 0), Partition(topic, 1)
    admin.delete_records({first: 3, second: 0})
    assert admin.ends([first, second]) == {first: (3, 5), second: (0, 0)}
    admin.delete_records({first: 2})  # the begin never goes back
    admin.delete_records({first: 5})  # all of it
    assert admin.ends([first]) == {first: (5, 5)}
    with pytest.raises(OffsetGone):
        admin.delete_records({first: 6})
    with pytest.raises(UnknownTopic):
        admin.ends([Partition("nobody-made-this", 0)])


def test_positions_of_a_group_without_members_can_be_set(world: World) -> None:
    topic = world.topic(partitions=2)
    admin = world.cluster.admin()
    group, here, there = f"group-of-{topic}", Partition(topic, 0), Partition(topic, 1)
    assert admin.group_positions(group, [here]) == {here: None}
    admin.reset_positions(group, {here: Position(3, '{"v": 1}')})
    assert admin.group_positions(group, [here, there]) == {here: Position(3, '{"v": 1}'), there: None}
    one = Member(world.cluster.consumer(group), topic)
    settle(world, lambda: one.consumer.owned() == {0, 1}, one)
    with pytest.raises(NotOwner):
        admin.reset_positions(group, {here: Position(0)})
    one.consumer.close()
    assert admin.group_positions(group, [here]) == {here: Position(3, '{"v": 1}')}
