"""What the port promises of group members (port.Consumer), on both clusters."""

from __future__ import annotations

import pytest

from tests.contract.worlds import Member, World, append, settle, wait_for
from turnlog.kafka.port import Fatal, LogError, NotOwner, OffsetGone, Partition, Position, Refused, UnknownTopic


def member(world: World, topic: str, *beside: str, instance: str | None = None, start: int | None = 0) -> Member:
    return Member(world.cluster.consumer(f"group-of-{topic}", instance_id=instance), topic, beside, start)


def owns(one: Member, *partitions: int) -> bool:
    return one.consumer.owned() == frozenset(partitions) and not one.waiting


def test_nothing_is_delivered_before_the_owner_says_from_where(world: World) -> None:
    topic, beside = world.topic(partitions=2), world.topic(partitions=2)
    for name in (topic, beside):
        append(world, name, [b"0", b"1", b"2"], partition=1)
    one = member(world, topic, beside, start=None)
    settle(world, lambda: one.consumer.owned() == {0, 1}, one)
    for _ in range(5):
        one.turn()
    assert one.records == []
    one.consumer.add({Partition(topic, 1): 1, Partition(beside, 1): 2})
    settle(world, lambda: len(one.records) == 3, one)
    assert sorted((r.topic == topic, r.offset) for r in one.records) == [(False, 2), (True, 1), (True, 2)]
    one.consumer.close()


def test_add_anew_begins_anew(world: World) -> None:
    topic = world.topic()
    append(world, topic, [b"0", b"1", b"2"])
    one = member(world, topic)
    settle(world, lambda: len(one.records) == 3, one)
    one.consumer.add({Partition(topic, 0): 1})
    settle(world, lambda: len(one.records) == 5, one)
    assert one.values() == [b"0", b"1", b"2", b"1", b"2"]
    one.consumer.close()


def test_paused_and_removed_partitions_are_silent(world: World) -> None:
    topic = world.topic(partitions=2)
    one = member(world, topic)
    settle(world, lambda: owns(one, 0, 1), one)
    one.consumer.pause([Partition(topic, 0)])
    one.consumer.remove([Partition(topic, 1), Partition("never-heard-of", 0)])
    for partition in (0, 1):
        append(world, topic, [b"%d" % partition], partition=partition)
    for _ in range(10):
        one.turn()
    assert one.records == []
    one.consumer.resume([Partition(topic, 0)])
    settle(world, lambda: len(one.records) == 1, one)
    assert one.values() == [b"0"]
    assert one.consumer.owned() == {0, 1}  # what is delivered and what is owned are two things
    one.consumer.close()


def test_poll_takes_no_more_than_asked(world: World) -> None:
    topic = world.topic()
    append(world, topic, [b"%d" % i for i in range(50)])
    one = member(world, topic, start=None)
    settle(world, lambda: owns(one, 0) or bool(one.waiting), one)
    one.consumer.add({Partition(topic, 0): 0})
    seen: list[bytes | None] = []

    def some() -> bool:
        batch = one.consumer.poll(0.1, 7)
        assert len(batch) <= 7
        seen.extend(record.value for record in batch)
        return len(seen) == 50

    wait_for(world, some, "50 records")
    assert seen == [b"%d" % i for i in range(50)]
    one.consumer.close()


def test_partitions_are_handed_over_between_two(world: World) -> None:
    topic, beside = world.topic(partitions=4), world.topic(partitions=4)
    first = member(world, topic, beside)
    settle(world, lambda: owns(first, 0, 1, 2, 3), first)
    second = member(world, topic, beside)

    def shared() -> bool:
        assert not first.consumer.owned() & second.consumer.owned()
        return len(first.consumer.owned()) == len(second.consumer.owned()) == 2 and not second.waiting

    settle(world, shared, first, second)
    revoked = [partitions for how, partitions in first.events if how == "revoked"]
    assert revoked == [tuple(sorted(second.consumer.owned()))]  # cooperative: the others were never given up
    for partition in range(4):
        append(world, topic, [b"t%d" % partition], partition=partition)
        append(world, beside, [b"b%d" % partition], partition=partition)
    settle(world, lambda: len(first.records) + len(second.records) == 8, first, second)
    for one in (first, second):
        assert sorted(one.values(), key=str) == sorted(
            (b"%s%d" % (where, i) for where in (b"t", b"b") for i in one.consumer.owned()), key=str
        )
    first.consumer.close(leave=True)
    settle(world, lambda: owns(second, 0, 1, 2, 3), second)
    second.consumer.close()


def test_the_callbacks_never_say_nothing(world: World) -> None:
    topic = world.topic(partitions=1)
    first = member(world, topic)
    settle(world, lambda: owns(first, 0), first)
    second = member(world, topic)  # one partition, two members: somebody gets nothing
    for _ in range(20):
        first.turn()
        second.turn()
        world.step()
    assert all(partitions for _, partitions in first.events + second.events)
    assert first.consumer.owned() | second.consumer.owned() == {0}
    first.consumer.close()
    second.consumer.close()


def test_close_revokes_what_is_owned(world: World) -> None:
    topic = world.topic(partitions=2)
    one = member(world, topic)
    settle(world, lambda: owns(one, 0, 1), one)
    one.consumer.close()
    assert one.events[-1] == ("revoked", (0, 1))


def test_a_static_member_comes_back_without_a_rebalance(world: World) -> None:
    topic = world.topic(partitions=4)
    stays, goes = member(world, topic, instance="a"), member(world, topic, instance="b")
    settle(world, lambda: len(stays.consumer.owned()) == len(goes.consumer.owned()) == 2, stays, goes)
    before, mine = list(stays.events), goes.consumer.owned()
    goes.consumer.close()
    back = member(world, topic, instance="b")
    settle(world, lambda: back.consumer.owned() == mine, stays, back)
    assert stays.events == before
    for one in (stays, back):
        one.consumer.close()


def test_a_static_member_that_leaves_is_gone_at_once(world: World) -> None:
    topic = world.topic(partitions=2)
    stays, goes = member(world, topic, instance="a"), member(world, topic, instance="b")
    settle(world, lambda: len(stays.consumer.owned()) == len(goes.consumer.owned()) == 1, stays, goes)
    left_at = world.now_ms()
    goes.consumer.close(leave=True)
    assert goes.events[-1][0] == "revoked"
    settle(world, lambda: owns(stays, 0, 1), stays)
    assert world.now_ms() - left_at < 2_500  # the session would have lasted 3 s
    stays.consumer.close()


def test_a_static_member_that_died_is_replaced_when_its_session_ends(world: World) -> None:
    topic = world.topic(partitions=2)
    stays, goes = member(world, topic, instance="a"), member(world, topic, instance="b")
    settle(world, lambda: len(stays.consumer.owned()) == len(goes.consumer.owned()) == 1, stays, goes)
    goes.consumer.close()
    settle(world, lambda: owns(stays, 0, 1), stays)
    stays.consumer.close()


def test_a_taken_instance_id_is_fatal_to_the_former(world: World) -> None:
    topic = world.topic(partitions=2)
    former = member(world, topic, instance="same")
    settle(world, lambda: owns(former, 0, 1), former)
    taker = member(world, topic, instance="same")
    settle(world, lambda: owns(taker, 0, 1), taker)

    def fenced() -> bool:
        try:
            former.turn()
        except Fatal:
            return True
        return False

    wait_for(world, fenced, "the fatal error")
    with pytest.raises(Fatal):  # for good
        former.turn()
    with pytest.raises((Fatal, NotOwner)):
        former.consumer.commit({Partition(topic, 0): Position(0)})
    former.consumer.close()
    taker.turn()
    assert owns(taker, 0, 1)
    taker.consumer.commit({Partition(topic, 0): Position(0)})
    taker.consumer.close()


def test_who_does_not_poll_loses_its_partitions_and_may_not_commit(world: World) -> None:
    topic = world.topic(partitions=2)
    impatient = world.impatient()
    slow = Member(impatient.consumer("slow-" + topic), topic)
    settle(world, lambda: owns(slow, 0, 1), slow)
    other = Member(impatient.consumer("slow-" + topic), topic)
    settle(world, lambda: owns(other, 0, 1), other)
    assert slow.consumer.owned() == {0, 1}  # it cannot know
    with pytest.raises(NotOwner):
        slow.consumer.commit({Partition(topic, 0): Position(7)})
    assert slow.consumer.committed([Partition(topic, 0)]) == {Partition(topic, 0): None}

    # What the rebalance wanted of it before it was put out comes as `revoked` all the same: neither word says who owns it now.
    def told() -> bool:
        return sorted(i for how, some in slow.events if how in ("revoked", "lost") for i in some)[:2] == [0, 1]

    settle(world, told, slow, other)
    assert any(how == "lost" for how, _ in slow.events)
    settle(world, lambda: len(slow.consumer.owned()) == len(other.consumer.owned()) == 1, slow, other)
    slow.consumer.close()
    other.consumer.close()


def test_positions_are_kept_with_their_text_and_a_plain_commit_erases_it(world: World) -> None:
    topic, beside = world.topic(partitions=2), world.topic()
    one = member(world, topic)
    settle(world, lambda: owns(one, 0, 1), one)
    here, there, never = Partition(topic, 1), Partition(beside, 0), Partition(topic, 0)
    text = '{"floor": 7, "ü": "ß"}'
    one.consumer.commit({here: Position(5, text), there: Position(9)})
    assert one.consumer.committed([here, there, never]) == {
        here: Position(5, text),
        there: Position(9, ""),
        never: None,
    }
    one.consumer.commit({here: Position(5)})
    assert one.consumer.committed([here]) == {here: Position(5, "")}
    one.consumer.commit({})
    assert one.consumer.committed([]) == {}
    one.consumer.close()


def test_commit_soon_answers_inside_a_later_poll(world: World) -> None:
    topic = world.topic()
    one = member(world, topic)
    settle(world, lambda: owns(one, 0), one)
    answers: list[LogError | None] = []
    one.consumer.commit_soon({Partition(topic, 0): Position(1, "x")}, answers.append)
    one.consumer.commit_soon({Partition(topic, 0): Position(2, "y")}, answers.append)
    one.consumer.commit_soon({Partition(topic, 0): Position(2, "z")})
    assert answers == []
    settle(world, lambda: len(answers) == 2, one)
    assert answers == [None, None]
    at = Partition(topic, 0)
    settle(world, lambda: one.consumer.committed([at])[at] == Position(2, "z"), one)
    one.consumer.close()


@pytest.mark.parametrize("start", [0, 9])
def test_a_position_outside_the_log_is_an_error_and_ends_the_delivery(world: World, start: int) -> None:
    topic = world.topic(partitions=2)
    append(world, topic, [b"0", b"1", b"2"])
    world.cluster.admin().delete_records({Partition(topic, 0): 2})
    one = member(world, topic, start=None)
    settle(world, lambda: len(one.consumer.owned()) == 2, one)
    one.consumer.add({Partition(topic, 0): start})
    raised: list[OffsetGone] = []

    def gone() -> bool:
        try:
            one.turn()
        except OffsetGone as error:
            raised.append(error)
        return bool(raised)

    wait_for(world, gone, "OffsetGone")
    assert raised[0].partition == Partition(topic, 0)
    for _ in range(3):
        one.turn()
    assert one.records == []
    one.consumer.add({Partition(topic, 0): 2})
    settle(world, lambda: one.values() == [b"2"], one)
    one.consumer.close()


def test_an_unknown_topic_is_refused(world: World) -> None:
    consumer = world.cluster.consumer("g")
    with pytest.raises(UnknownTopic):
        consumer.subscribe("nobody-made-this", Ignoring())
    consumer.close()
    topic = world.topic()
    one = member(world, topic)
    settle(world, lambda: owns(one, 0), one)
    with pytest.raises(UnknownTopic):
        one.consumer.add({Partition("nobody-made-this-either", 0): 0})
    one.consumer.close()


class Ignoring:
    def assigned(self, partitions: object) -> None: ...
    def revoked(self, partitions: object) -> None: ...
    def lost(self, partitions: object) -> None: ...


class Contrary(Ignoring):
    """Does in each callback what is not allowed there."""

    def __init__(self, world: World, topic: str) -> None:
        self.refused: list[str] = []
        self.topic = topic
        self.consumer = world.cluster.consumer("contrary-" + topic)
        self.consumer.subscribe(topic, self)

    def assigned(self, partitions: object) -> None:
        try:
            self.consumer.remove([Partition(self.topic, 0)])
        except Refused:
            self.refused.append("remove in assigned")
        self.consumer.add({Partition(self.topic, 0): 0})  # this is allowed

    def revoked(self, partitions: object) -> None:
        try:
            self.consumer.add({Partition(self.topic, 0): 0})
        except Refused:
            self.refused.append("add in revoked")


def test_add_belongs_to_assigned_and_remove_to_revoked(world: World) -> None:
    topic = world.topic()
    append(world, topic, [b"0"])
    contrary = Contrary(world, topic)
    records: list[bytes | None] = []

    def one() -> bool:
        records.extend(record.value for record in contrary.consumer.poll(0.1))
        return bool(records)

    wait_for(world, one, "the record")
    contrary.consumer.close()
    assert contrary.refused == ["remove in assigned", "add in revoked"]
