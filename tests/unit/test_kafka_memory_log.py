"""The faults of MemoryLog that a simulation chooses from; what it shares with a real cluster is tests/contract."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from turnlog.kafka.port import (
    Delivered,
    Fatal,
    NotOwner,
    OffsetGone,
    Partition,
    Position,
    Rebalancing,
    Refused,
    Retryable,
)
from turnlog.testing import MemoryCluster, Move

J0 = Partition("journal", 0)


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000

    def __call__(self) -> int:
        return self.ms


class Sender:
    """A producer on the journal that collects what became of its records."""

    def __init__(self, cluster: MemoryCluster, host: str = "loop") -> None:
        self.cluster = cluster
        self.producer = cluster.host(host).producer(host)
        self.reports: list[Delivered] = []

    def send(self, *values: bytes) -> None:
        for value in values:
            self.producer.produce("journal", value, partition=0, on_delivery=self.reports.append)

    def do(self, *kinds: str) -> None:
        for kind in kinds:
            self.cluster.do(
                next(
                    m
                    for m in self.cluster.choices(faults=True)
                    if m.kind == kind and m.producer == self.producer.number
                )
            )

    def kinds(self, *, faults: bool = True) -> set[str]:
        return {move.kind for move in self.cluster.choices(faults=faults) if move.producer == self.producer.number}

    def offsets(self) -> list[int | None]:
        self.producer.flush(0)
        return [report.offset for report in self.reports]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cluster(clock: Clock) -> MemoryCluster:
    made = MemoryCluster(clock)
    made.create("journal", 2)
    return made


def values(cluster: MemoryCluster) -> list[bytes | None]:
    return [record.value for record in cluster.log(J0)]


def test_under_hold_the_test_decides_when_records_land_and_are_acknowledged(cluster: MemoryCluster) -> None:
    cluster.hold("journal")
    sender = Sender(cluster)
    sender.send(b"a", b"b")
    assert (values(cluster), sender.offsets()) == ([], [])
    assert sender.kinds(faults=False) == {"land"}
    sender.do("land")
    assert (values(cluster), sender.offsets()) == ([b"a"], [])
    assert sender.kinds() == {"land", "ack", "repeat", "ack_unknown", "fail"}
    sender.do("ack", "land", "ack")
    assert (values(cluster), sender.offsets()) == ([b"a", b"b"], [0, 1])
    assert cluster.choices(faults=True) == []


def test_a_repeat_lands_everything_unacknowledged_again_and_reports_the_last_place(cluster: MemoryCluster) -> None:
    cluster.hold()
    sender = Sender(cluster)
    sender.send(b"a", b"b", b"c")
    sender.do("land", "land", "repeat", "ack", "ack", "land", "ack")
    assert values(cluster) == [b"a", b"b", b"a", b"b", b"c"]
    assert sender.offsets() == [2, 3, 4]


def test_success_without_offset(cluster: MemoryCluster) -> None:
    cluster.hold()
    sender = Sender(cluster)
    sender.send(b"a")
    sender.do("land", "ack_unknown")
    sender.producer.poll()
    assert sender.reports == [Delivered("journal", 0, None, None)]


def test_what_was_purged_is_a_ghost_that_lands_later_or_never(cluster: MemoryCluster) -> None:
    cluster.hold("journal")
    former = Sender(cluster, "former")
    former.send(b"landed", b"late", b"never")
    former.do("land")
    former.producer.close()
    assert [type(report.error) for report in former.reports] == [Retryable] * 3
    with pytest.raises(Fatal):
        former.send(b"more")
    successor = Sender(cluster, "successor")
    successor.send(b"fence")
    successor.do("land", "ack")
    assert former.kinds(faults=False) == {"land", "vanish"}
    former.do("land", "vanish")
    assert values(cluster) == [b"landed", b"fence", b"late"]
    assert cluster.choices(faults=True) == []
    assert len(former.reports) == 3


def test_a_failed_producer_raises_for_ever(cluster: MemoryCluster) -> None:
    cluster.hold()
    sender = Sender(cluster)
    sender.send(b"a", b"b")
    sender.do("land", "fail")
    assert sender.producer.poll() == 2
    assert [type(report.error) for report in sender.reports] == [Fatal, Fatal]
    with pytest.raises(Fatal):
        sender.producer.poll()
    with pytest.raises(Fatal):
        sender.send(b"c")
    assert sender.kinds() == {"land", "vanish"}


def test_release_lets_everything_happen_in_order_but_wakes_no_ghost(cluster: MemoryCluster) -> None:
    cluster.hold()
    ghost, alive = Sender(cluster, "ghost"), Sender(cluster, "alive")
    ghost.send(b"ghost")
    alive.send(b"a", b"b")
    cluster.host("ghost").crash()
    cluster.release()
    assert (values(cluster), alive.offsets(), ghost.reports) == ([b"a", b"b"], [0, 1], [])
    alive.send(b"c")
    assert alive.offsets() == [0, 1, 2]
    assert ghost.kinds() == {"land", "vanish"}


def test_refused_appends(cluster: MemoryCluster) -> None:
    cluster.refuse_appends("journal", Refused("policy", "POLICY_VIOLATION"))
    sender = Sender(cluster)
    sender.send(b"a")
    cluster.refuse_appends("journal", None)
    sender.send(b"b")
    assert sender.offsets() == [None, 0]
    assert isinstance(sender.reports[0].error, Refused)


def test_a_cut_log_gives_its_offsets_again(cluster: MemoryCluster) -> None:
    sender = Sender(cluster)
    sender.send(b"a", b"b", b"c")
    reader = cluster.reader("r")
    reader.follow({J0: 3})
    cluster.truncate(J0, 1)
    with pytest.raises(OffsetGone):
        reader.poll(0)
    sender.send(b"d")
    assert sender.offsets() == [0, 1, 2, 1]  # lower than the last: J15
    assert values(cluster) == [b"a", b"d"]


def test_a_topic_made_anew_has_another_id(cluster: MemoryCluster) -> None:
    before = cluster.topic("journal").topic_id
    sender = Sender(cluster)
    sender.send(b"a")
    cluster.recreate("journal")
    sender.send(b"b")
    assert sender.offsets() == [0, 0]
    assert cluster.topic("journal").topic_id != before


def test_compaction_and_retention_leave_holes(cluster: MemoryCluster, clock: Clock) -> None:
    producer = cluster.producer("p")
    for number, (key, value) in enumerate(
        [(b"k", b"0"), (b"l", b"1"), (b"k", b"2"), (b"l", None), (b"k", b"4"), (b"m", b"5")]
    ):
        clock.ms = 1_000 + number
        producer.produce("journal", value, key=key, partition=0)
    cluster.compact("journal")
    assert [record.offset for record in cluster.log(J0)] == [3, 4, 5]
    cluster.compact("journal", tombstones=True)
    assert [record.offset for record in cluster.log(J0)] == [4, 5]
    cluster.expire("journal", before_ms=1_005)
    assert cluster.reader("r").bounds(J0) == (5, 6)


class Member:
    def __init__(self, cluster: MemoryCluster, host: str, instance: str | None = None) -> None:
        self.events: list[tuple[str, Sequence[int]]] = []
        self.host = cluster.host(host)
        self.consumer = self.host.consumer("group", instance_id=instance)
        self.consumer.subscribe("journal", self)

    def assigned(self, partitions: Sequence[int]) -> None:
        self.events.append(("assigned", partitions))

    def revoked(self, partitions: Sequence[int]) -> None:
        self.events.append(("revoked", partitions))

    def lost(self, partitions: Sequence[int]) -> None:
        self.events.append(("lost", partitions))


def test_a_frozen_host_is_a_zombie_that_finds_out_when_it_wakes(cluster: MemoryCluster, clock: Clock) -> None:
    zombie, other = Member(cluster, "one"), None
    zombie.consumer.poll(0)
    other = Member(cluster, "two")
    zombie.host.freeze()
    for _ in range(3):
        other.consumer.poll(0)
    assert other.consumer.owned() == set()  # what the zombie must give up, it must give up itself
    clock.ms += 11_000
    for _ in range(3):
        other.consumer.poll(0)
    assert other.consumer.owned() == {0, 1}
    assert zombie.consumer.owned() == {0, 1}
    zombie.host.thaw()
    with pytest.raises(NotOwner):
        zombie.consumer.commit({J0: Position(1)})
    for _ in range(4):
        zombie.consumer.poll(0)
        other.consumer.poll(0)
    assert zombie.events[:2] == [("assigned", [0, 1]), ("lost", [0, 1])]
    assert len(zombie.consumer.owned()) == len(other.consumer.owned()) == 1


def test_a_nap_shorter_than_the_session_is_not_noticed(cluster: MemoryCluster, clock: Clock) -> None:
    one = Member(cluster, "one")
    one.consumer.poll(0)
    one.host.freeze()
    clock.ms += 9_000
    one.host.thaw()
    one.consumer.poll(0)
    one.consumer.commit({J0: Position(1)})
    assert one.events == [("assigned", [0, 1])]


def test_a_crashed_static_member_that_comes_back_goes_on_without_a_rebalance(cluster: MemoryCluster) -> None:
    one, two = Member(cluster, "one", "a"), Member(cluster, "two", "b")
    for _ in range(3):
        one.consumer.poll(0)
        two.consumer.poll(0)
    mine, generation = one.consumer.owned(), cluster.group("group").generation
    one.host.crash()
    back = Member(cluster, "one", "a")
    back.consumer.poll(0)
    assert (back.consumer.owned(), cluster.group("group").generation) == (mine, generation)
    with pytest.raises(NotOwner):
        one.consumer.commit({J0: Position(1)})
    with pytest.raises(Fatal):
        one.consumer.poll(0)


def test_until_it_has_learnt_of_a_rebalance_a_members_commits_are_for_later(cluster: MemoryCluster) -> None:
    one = Member(cluster, "one")
    one.consumer.poll(0)
    Member(cluster, "two")
    with pytest.raises(Rebalancing):
        one.consumer.commit({J0: Position(1)})
    while one.consumer.poll(0) or one.consumer.owned() == {0, 1}:
        pass
    one.consumer.poll(0)
    one.consumer.commit({J0: Position(1)})


def test_positions_can_be_forgotten_and_commits_refused(cluster: MemoryCluster) -> None:
    one = Member(cluster, "one")
    one.consumer.poll(0)
    one.consumer.commit({J0: Position(1, "pointer"), Partition("journal", 1): Position(2, "p")})
    cluster.forget_metadata("group")
    assert one.consumer.committed([J0]) == {J0: Position(1, "")}
    cluster.forget("group", J0)
    assert one.consumer.committed([J0]) == {J0: None}
    cluster.refuse_commits("group", Retryable("busy", "COORDINATOR_NOT_AVAILABLE"))
    with pytest.raises(Retryable):
        one.consumer.commit({J0: Position(1)})
    one.consumer.commit({J0: Position(1)})


def play(seed: int) -> list[bytes | None]:
    """A little simulation: what the log holds in the end."""
    rng = random.Random(seed)
    cluster = MemoryCluster(Clock(), rng)
    cluster.create("journal", 1)
    cluster.hold()
    senders = [Sender(cluster, f"host {i}") for i in range(3)]
    for number in range(60):
        rng.choice(senders).send(b"%d" % number)
        moves: list[Move] = [move for move in cluster.choices(faults=True) if move.kind != "fail"]
        if moves:
            cluster.do(rng.choice(moves))
    cluster.release()
    assert all(len(sender.offsets()) == len(sender.reports) for sender in senders)
    return values(cluster)


def test_a_seed_gives_the_same_history() -> None:
    assert play(7) == play(7)
    assert play(7) != play(8)
